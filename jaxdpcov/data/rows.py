"""Data homes: an array or a stream of blocks behind one reduction, so that one mechanism text serves both.

A mechanism asks for `rows.reduce(f, *args)`: the sum over row blocks of `f(block, weights, *args)`, where f is a
module-level function that returns a pytree of sums. Nothing else of the rows is reachable.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.bounds import Bounds
from jaxdpcov.data import arrays, clip, levels
from jaxdpcov.data.arrays import as_float_array

#: Entries of one block of an array: about the size at which block and partial products stay in a core's cache.
BLOCK_ENTRIES = 400_000

BlockSum = Callable[..., Any]

_WEIGHTED_BLOCKS = (
    "blocks of rows need unweighted rows: a person's rows would sit in several blocks; give constants='practical'"
)

_WEIGHTED_PAIRS = (
    "center='pairs' needs unweighted rows: a person's rows would sit in several pairs; give another center="
)


class Rows:
    """Sensitive rows (n, d) in one of their homes; make one with `Rows.array` or `Rows.chunked`.

    `n` is the number of contributions (rows, or persons where rows carry weights). It is public under the
    replace-one relation and never leaves a mechanism under add/remove-one.
    """

    d: int
    dtype: Any
    weighted: bool

    @staticmethod
    def array(values: Any, weights: Any = None, n: Any = None) -> "ArrayRows":
        """Rows of one array (n, d); `weights` (n,) in [0, 1] need the public number of contributions `n`.

        A weight of 0 is padding; the rows of one person share a total weight of 1.
        """
        values = as_float_array(values)
        if weights is not None:
            if np.shape(weights) != (values.shape[0],):
                raise ValueError(f"weights must have shape ({values.shape[0]},), got {np.shape(weights)}")
            if n is None:
                raise ValueError("weights need n=, the public number of contributions (persons) that they add up to")
            weights = jnp.clip(jnp.nan_to_num(jnp.asarray(weights, values.dtype)), 0.0, 1.0)
        if n is not None:
            _checks.positive("n", n)
        return ArrayRows(values, weights, n)

    @staticmethod
    def chunked(
        blocks: Callable[[], Iterable[Any]],
        *,
        d: int,
        n: int | None = None,
        block_rows: int = 65_536,
        weighted: bool = False,
    ) -> "ChunkedRows":
        """Rows that arrive in blocks: `blocks()` returns a fresh iterator of (m, d) arrays.

        With `weighted=True` it yields pairs (values (m, d), weights (m,)), and `n` is required. `block_rows` is the
        size to which blocks are cut and padded, so that one compilation serves every file.
        """
        return ChunkedRows(blocks, d=d, n=n, block_rows=block_rows, weighted=weighted)

    def reduce(self, f: BlockSum, *args: Any) -> Any:
        """Sum over blocks of f(block (m, d), weights (m,) or None, *args)."""
        raise NotImplementedError

    def reduce_pairs(self, f: BlockSum, key: jax.Array, *args: Any) -> Any:
        """Sum over blocks of f(first (m, d), second (m, d), valid (m,) or None, *args), rows paired once each."""
        raise NotImplementedError

    def reduce_block(self, f: BlockSum, key: jax.Array, block: int, blocks: int, *args: Any) -> Any:
        """Sum of f(rows (m, d), weights, *args) over one of `blocks` disjoint blocks of floor(n / blocks) rows each.

        Which rows a block holds does not depend on what they are, so that queries on several blocks compose in
        parallel; up to blocks - 1 rows are in none. `block` counts from 0.
        """
        raise NotImplementedError

    def count(self) -> Any:
        """The number of contributions n; of a stream without a given n, known after its first pass."""
        raise NotImplementedError

    def level_moments(self, bounds: Bounds) -> "LevelTable":
        """The moments at every radius that `adaptive` may choose, so that repeated releases need no pass over the rows.

        For studies on data that may be looked at: the size of the table (and with it time and what is compiled) tells
        which levels hold a row. A single release of real data takes the rows themselves.

        Args:
            bounds: those of the releases to come, concrete.

        Returns:
            `LevelTable`, to be given to `separate`, `adaptive`, `auto` or `emcov` in place of the rows. Where bounds
            that are traced turn out to be others, the release is NaN and its status says so.

        >>> import jax, jax.numpy as jnp
        >>> from jaxdpcov import Bounds, Rows, ZCDP, adaptive
        >>> table = Rows.array(jnp.eye(4)).level_moments(Bounds.l2(1.0))
        >>> lanes = jax.random.split(jax.random.key(0), 3)
        >>> jax.vmap(lambda key: adaptive(key, table, ZCDP(0.5), Bounds.l2(1.0)).covariance)(lanes).shape
        (3, 4, 4)
        """
        if _checks.is_traced(self if isinstance(self, ArrayRows) else (), bounds):
            raise TypeError("level_moments looks at the rows, which are traced here: make the table outside jit")
        frame = clip.ball_frame(bounds, self.d, self.dtype)
        run = functools.partial(_array_reduce, self) if isinstance(self, ArrayRows) else self.reduce
        sums = run(levels.masses, frame)
        held = np.flatnonzero(run(levels.rows_by_level, frame))
        top, last = (held[0], held[-1]) if held.size else (0, 0)
        parts = run(levels.moments_by_level, frame, jnp.arange(top, last + 1))
        n = jnp.asarray(self.count(), self.dtype)
        return LevelTable(frame, sums, levels.table(parts, frame.live), jnp.asarray(top, jnp.int32), n)


@record()
class ArrayRows(Rows):
    """Rows of one in-memory array; a pytree, so it passes through jit and vmap."""

    values: Any
    weights: Any = None
    n: Any = None

    @property
    def d(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return int(self.values.shape[-1])

    @property
    def dtype(self) -> Any:
        """Floating type of the rows."""
        return self.values.dtype

    @property
    def weighted(self) -> bool:  # type: ignore[override]
        """True when rows carry weights."""
        return self.weights is not None

    def count(self) -> Any:
        """The public number of contributions: the row count unless it was given."""
        return self.values.shape[0] if self.n is None else self.n

    def reduce(self, f: BlockSum, *args: Any) -> Any:
        """See `Rows.reduce`: a loop over slices of the array, no copy of it."""

        def at(start: Any, size: int) -> Any:
            weights = None if self.weights is None else jax.lax.dynamic_slice(self.weights, (start,), (size,))
            return f(jax.lax.dynamic_slice(self.values, (start, 0), (size, self.d)), weights, *args)

        return _loop(at, self.values.shape[0], self.d)

    def reduce_pairs(self, f: BlockSum, key: jax.Array, *args: Any) -> Any:
        """See `Rows.reduce_pairs`: pairs by a permutation from the key; with n odd one row is left out."""
        if self.weighted:
            raise ValueError(_WEIGHTED_PAIRS)
        order = jax.random.permutation(key, self.values.shape[0])

        def at(start: Any, size: int) -> Any:
            chosen = jax.lax.dynamic_slice(order, (2 * start,), (2 * size,))
            both = self.values[chosen]
            return f(both[0::2], both[1::2], None, *args)

        return _loop(at, self.values.shape[0] // 2, 2 * self.d)

    def reduce_block(self, f: BlockSum, key: jax.Array, block: int, blocks: int, *args: Any) -> Any:
        """See `Rows.reduce_block`: blocks by a permutation from the key."""
        if self.weighted:
            raise ValueError(_WEIGHTED_BLOCKS)
        order = jax.random.permutation(key, self.values.shape[0])
        size = self.values.shape[0] // blocks

        def at(start: Any, length: int) -> Any:
            chosen = jax.lax.dynamic_slice(order, (block * size + start,), (length,))
            return f(self.values[chosen], None, *args)

        return _loop(at, size, self.d)


@record()
class LevelTable(Rows):
    """Sums over rows by level in place of the rows; a pytree. Make one with `Rows.level_moments`.

    frame: of the bounds that it was made for. masses: of all levels. moments: at the radii of levels from `top` on.
    """

    frame: Any
    masses: levels.Masses
    moments: levels.Moments
    top: Any
    n: Any
    weighted = False

    @property
    def d(self) -> int:  # type: ignore[override]
        """Number of columns."""
        return int(self.moments.first.shape[-1])

    @property
    def dtype(self) -> Any:
        """Floating type of the sums."""
        return self.moments.first.dtype

    def count(self) -> Any:
        """The number of contributions of the rows that the table was made from."""
        return self.n

    def reduce(self, f: BlockSum, *args: Any) -> Any:
        """See `Rows.reduce`: answers the two queries by level from memory, and no other."""
        if f is levels.masses:
            return self._checked(args[0], self.masses)
        if f is not levels.moments_at_level:
            raise TypeError(
                "a table of level moments serves `separate`, `adaptive`, `auto` and `emcov` only: "
                "give the rows themselves"
            )
        frame, level = args
        at = jnp.asarray(level, jnp.int32) - self.top
        # Above the top level no row is clipped; below the last one all are on the sphere.
        first = levels.radius(jnp.maximum(-at, 0), self.dtype)
        inner, last = jnp.maximum(at, 0), self.moments.first.shape[0] - 1
        second, mean, spectrum = (part[jnp.minimum(inner, last)] for part in self.moments)
        square = first * first
        return self._checked(frame, levels.Moments(second * square, mean * first, spectrum * square))

    def reduce_pairs(self, f: BlockSum, key: jax.Array, *args: Any) -> Any:
        """Raises: each key pairs the rows anew."""
        raise ValueError("center='pairs' needs the rows: a table of level moments holds no pairs")

    def reduce_block(self, f: BlockSum, key: jax.Array, block: int, blocks: int, *args: Any) -> Any:
        """Raises: each key cuts the rows into other blocks."""
        raise ValueError("blocks of rows need the rows: a table of level moments holds none")

    def _checked(self, frame: clip.Frame, sums: Any) -> Any:
        """`sums`, NaN unless they were made for these bounds (to rounding)."""
        same = jnp.asarray(type(frame) is type(self.frame))
        for own, given in zip((self.frame.center, self.frame.scale), (frame.center, frame.scale)):
            same &= jnp.all(jnp.abs(own - given) <= 8.0 * jnp.finfo(self.dtype).eps * jnp.abs(own))
        if not _checks.is_traced(same) and not same:
            raise ValueError("the table of level moments was made for other bounds")
        return jax.tree_util.tree_map(lambda leaf: jnp.where(same, leaf, jnp.nan), sums)


class ChunkedRows(Rows):
    """Rows of a re-iterable stream of blocks, reduced by a host loop over blocks of one padded size."""

    def __init__(
        self, blocks: Callable[[], Iterable[Any]], *, d: int, n: int | None, block_rows: int, weighted: bool
    ) -> None:
        if d < 1:
            raise ValueError(f"d must be at least 1, got {d}")
        if block_rows < 2:
            raise ValueError(f"block_rows must be at least 2, got {block_rows}")
        if n is not None:
            _checks.positive("n", n)
        elif weighted:
            raise ValueError("weighted blocks need n=, the public number of contributions (persons)")
        self._blocks, self._n, self.d, self.weighted = blocks, n, d, weighted
        self.block_rows = block_rows + block_rows % 2  # even, so that no pair straddles two blocks

    @property
    def dtype(self) -> Any:
        """Floating type of the arithmetic: JAX's default, float64 where x64 is on."""
        return jnp.zeros(()).dtype

    def count(self) -> Any:
        """The number of contributions, as an array so that another n compiles nothing anew."""
        if self._n is None:
            self._n = sum(block.shape[0] for block, _ in self._cut())
        return jnp.asarray(self._n, self.dtype)

    def reduce(self, f: BlockSum, *args: Any) -> Any:
        """See `Rows.reduce`."""
        return self._passes(_block_step(f), args)

    def reduce_pairs(self, f: BlockSum, key: jax.Array, *args: Any) -> Any:
        """See `Rows.reduce_pairs`: neighbours in the order of arrival, which must be public and not sorted.

        Differences of neighbours in a sorted or grouped file are too small, and so is the covariance; where the order
        depends on the rows, one row that is replaced may move, and change all pairs after it. `estimate` reads a file
        into memory instead.
        """
        if self.weighted:
            raise ValueError(_WEIGHTED_PAIRS)
        return self._passes(_pair_step(f), args)

    def reduce_block(self, f: BlockSum, key: jax.Array, block: int, blocks: int, *args: Any) -> Any:
        """See `Rows.reduce_block`: row i of the order of arrival is in block i mod `blocks`.

        That order must be public, as for pairs: where it depends on the rows, one row that is replaced may move others
        between blocks. `estimate` reads a file into memory instead.
        """
        if self.weighted:
            raise ValueError(_WEIGHTED_BLOCKS)
        used = int(self.count()) // blocks * blocks
        return self._passes(_block_step(f), args, lambda at: (at % blocks == block) & (at < used))

    def _passes(
        self, step: Callable[..., Any], args: tuple[Any, ...], keep: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> Any:
        """One step a block; with `keep` rows count where it says so of their place in the order of arrival."""
        total, seen = None, 0
        for block, weights in self._cut():
            if keep is not None:
                weights = keep(np.arange(seen, seen + len(weights))).astype(weights.dtype)
            seen += block.shape[0]
            missing = self.block_rows - block.shape[0]
            total = step(total, np.pad(block, ((0, missing), (0, 0))), np.pad(weights, (0, missing)), args)
        if total is None:
            raise ValueError("the data have no rows")
        if not self.weighted:
            self._settle(seen)
        return total

    def _settle(self, seen: int) -> None:
        if self._n is None:
            self._n = seen
        if self._n != seen:
            raise ValueError("the number of rows differs from n= or from an earlier pass over the same data")

    def _cut(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Blocks of exactly `block_rows` rows and their weights (the last one shorter)."""
        return arrays.cut(
            self._blocks(), d=self.d, dtype=self.dtype, weighted=self.weighted, block_rows=self.block_rows
        )


@functools.partial(jax.jit, static_argnums=1)
def _array_reduce(rows: Rows, f: BlockSum, *args: Any) -> Any:
    return rows.reduce(f, *args)


def _loop(at: Callable[[Any, int], Any], n: int, width: int) -> Any:
    """Sum of at(start, size) over slices that cover 0..n: a loop of static count, the tail apart."""
    size = max(64, BLOCK_ENTRIES // width)
    full, tail = divmod(n, size)
    if full <= 1:
        return at(0, n)
    total = jax.lax.fori_loop(1, full, lambda i, acc: _add(acc, at(i * size, size)), at(0, size))
    return total if tail == 0 else _add(total, at(full * size, tail))


def _add(left: Any, right: Any) -> Any:
    return jax.tree_util.tree_map(jnp.add, left, right)


@functools.cache
def _block_step(f: BlockSum) -> Callable[..., Any]:
    """One compiled step of a stream: the first trace starts the total, the second adds to it."""

    @jax.jit
    def step(total: Any, block: jax.Array, weights: jax.Array, args: tuple[Any, ...]) -> Any:
        part = ArrayRows(block, weights).reduce(f, *args)  # in slices that stay in cache
        return part if total is None else _add(total, part)

    return step


@functools.cache
def _pair_step(f: BlockSum) -> Callable[..., Any]:
    @jax.jit
    def step(total: Any, block: jax.Array, weights: jax.Array, args: tuple[Any, ...]) -> Any:
        part = f(block[0::2], block[1::2], weights[0::2] * weights[1::2], *args)
        return part if total is None else _add(total, part)

    return step


def as_rows(rows: Any) -> Rows:
    """`rows` as `Rows`: an array-like (n, d) becomes `Rows.array`."""
    return rows if isinstance(rows, Rows) else Rows.array(rows)
