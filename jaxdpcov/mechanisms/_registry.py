"""The one signature: a decorator that checks public arguments, folds the key, compiles, and lists the mechanism."""

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.data import clip
from jaxdpcov.data.rows import ArrayRows, Rows, as_rows
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP, to_zcdp
from jaxdpcov.release import Release

_MAKERS = {L2Bounds: "Bounds.l2(radius)", BoxBounds: "Bounds.box(lower, upper)", SpectrumBounds: "Bounds.spectrum(...)"}


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A registered mechanism: its public function and what it accepts.

    settle: makes the choices that a config leaves open, such as a number of rounds, from concrete public numbers.
    """

    name: str
    function: Callable[..., Release]
    config: type
    budgets: tuple[type, ...]
    bounds: tuple[type, ...]
    settle: Callable[[Rows, Any, Any, Any], Any] | None = None


#: Every public mechanism by name, in the order of definition; the contract tests and `estimate` read it.
MECHANISMS: dict[str, Mechanism] = {}


def mechanism(
    *,
    config: type,
    budgets: tuple[type, ...],
    bounds: tuple[type, ...],
    host: bool = False,
    settle: Callable[[Rows, Any, Any, Any], Any] | None = None,
) -> Callable[[Callable[..., Release]], Callable[..., Release]]:
    """Turn a core `f(key, rows, budget, bounds, config) -> Release` into a public, registered mechanism.

    The public function takes `rows` (n, d) or `Rows`, any budget that buys one of `budgets`, and `config=None` for
    the default. The core sees `Rows`, a `ZCDP` or `PureDP`, and numbers in the dtype of the rows. With `host` it is
    never compiled as a whole here: a core that has a path of its own for the host compiles its parts. What a config
    leaves open and only the host can choose, such as a number of rounds, `settle(rows, budget, bounds, config)`
    returns chosen from public numbers; the key is folded with that config, so that None gives what its choice gives.
    """

    def decorate(core: Callable[..., Release]) -> Callable[..., Release]:
        name = core.__name__

        @functools.wraps(core)
        def run(key: Any, rows: Rows, budget: Any, bounds: Any, config: Any) -> Release:
            public = (budget, bounds, config.law() if hasattr(config, "law") else config)
            key = fold(key, f"{name}, {rows.d} columns", public)
            return core(key, rows, budget, bounds, config)

        compiled = jax.jit(run)

        @functools.wraps(core)
        def public(key: Any, rows: Any, budget: Any, bounds: Any, *, config: Any = None) -> Release:
            rows = as_rows(rows)
            key = _checks.typed_key(key)
            settings = _config(name, config, entry.config)
            budget, bounds = _budget(name, budget, budgets), _bounds(name, bounds, entry.bounds, rows.d, rows.dtype)
            if settle is not None:
                settings = settle(rows, budget, bounds, settings)
            arguments = jax.tree_util.tree_map(functools.partial(_number, rows.dtype), (budget, bounds, settings))
            # A stream is a host loop over compiled steps; everything else is one program.
            return (compiled if isinstance(rows, ArrayRows) and not host else run)(key, rows, *arguments)

        signature = inspect.signature(core)
        last = signature.parameters["config"].replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
        public.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*list(signature.parameters.values())[:-1], last]
        )
        entry = Mechanism(name, public, config, budgets, bounds, settle)
        MECHANISMS[name] = entry
        return public

    return decorate


@functools.partial(jax.jit, static_argnames="name")
def fold(key: jax.Array, name: str, public: Any) -> jax.Array:
    """`key` folded with the name of a mechanism and every public input of a release.

    One key at two budgets would otherwise give the same draws at two scales, and the exact statistic by subtraction.
    """
    leaves, structure = jax.tree_util.tree_flatten(public)
    # Shapes too: ([0, 1], 2) and (0, [1, 2]) are different boxes of the same words.
    shapes = [np.shape(leaf) for leaf in leaves]
    key = jax.random.fold_in(key, zlib.crc32(f"{name} {structure} {shapes}".encode()))
    words = [_words(leaf) for leaf in leaves]
    if not words:
        return key
    flat = jnp.concatenate(words)
    # Two multilinear hashes of avalanched words: distinct inputs meet with probability about 2^-64.
    odd = np.random.Generator(np.random.PCG64(20_220_527)).integers(0, 2**32, (2, flat.size), np.uint32) | np.uint32(1)
    for salt, weights in enumerate(odd):
        mixed = _avalanche(flat ^ np.uint32(0x9E3779B9 * salt % 2**32))
        key = jax.random.fold_in(key, jnp.sum(mixed * weights, dtype=jnp.uint32))
    return key


def _words(leaf: Any) -> jax.Array:
    """The bits of a leaf as uint32 words."""
    array = jax.lax.stop_gradient(jnp.asarray(leaf))
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(array, jnp.uint32).reshape(-1)


def _avalanche(word: jax.Array) -> jax.Array:
    """A bijection of uint32 in which every input bit moves every output bit (the finaliser of MurmurHash3)."""
    word = (word ^ (word >> 16)) * np.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * np.uint32(0xC2B2AE35)
    return word ^ (word >> 16)


def _number(dtype: Any, leaf: Any) -> Any:
    """A public number in the dtype of the rows; a concrete one never rounds up, so a budget stays within itself."""
    if isinstance(leaf, jax.core.Tracer) or not np.issubdtype(np.asarray(leaf).dtype, np.floating):
        return jnp.asarray(leaf, dtype)
    exact = np.asarray(leaf, np.float64)
    rounded = exact.astype(dtype)
    return jnp.asarray(
        np.where(rounded > exact, np.nextafter(rounded, np.asarray(-np.inf, dtype)), rounded).astype(dtype)
    )


def _budget(name: str, budget: Any, allowed: tuple[type, ...]) -> Any:
    """The budget in a unit that the mechanism accounts in, or one line that says what to do."""
    if not isinstance(budget, (ZCDP, PureDP, ApproxDP)):
        raise TypeError(f"budget must be ZCDP(rho), PureDP(epsilon) or ApproxDP(epsilon, delta), got {budget!r}")
    if any(np.ndim(number) for number in vars(budget).values()):
        raise ValueError(f"budget must be one budget, got {budget!r}; use jax.vmap over budgets")
    if isinstance(budget, allowed):
        return budget
    if isinstance(budget, ApproxDP) and ZCDP in allowed:
        return to_zcdp(budget)
    if isinstance(budget, PureDP):
        raise TypeError(
            f"{name} adds Gaussian noise, which no pure-DP budget buys: give ZCDP(rho) or ApproxDP(epsilon, delta)"
        )
    raise TypeError(
        f"{name} is a pure-DP mechanism: give PureDP(epsilon); PureDP.from_zcdp(rho) is the epsilon whose price is rho"
    )


def _bounds(name: str, bounds: Any, allowed: tuple[type, ...], d: int, dtype: Any) -> Any:
    if not isinstance(bounds, allowed):
        wanted = " or ".join(_MAKERS[kind] for kind in allowed)
        raise TypeError(f"{name} needs {wanted}, got {type(bounds).__name__}")
    for field, value in vars(bounds).items():
        if np.ndim(value) == 1 and np.shape(value) != (d,):
            raise ValueError(f"{field} must have one entry for each of the {d} columns, got shape {np.shape(value)}")
        if np.ndim(value) >= 2 and not (isinstance(bounds, SpectrumBounds) and np.shape(value) == (d, d)):
            allows = f" or the shape ({d}, {d})" if isinstance(bounds, SpectrumBounds) else ""
            raise ValueError(f"{field} must have one entry for each column{allows}, got shape {np.shape(value)}")
    _check_range(bounds, dtype)
    if isinstance(bounds, SpectrumBounds):
        _check_matrix(bounds)
    return bounds


def _check_matrix(bounds: SpectrumBounds) -> None:
    """A concrete matrix A0 must be a lower bound that some covariance below `upper` A0 can meet."""
    if np.ndim(bounds.lower) != 2 or _checks.is_traced(bounds.lower):
        return
    matrix = np.asarray(bounds.lower, np.float64)
    size = float(np.max(np.abs(matrix)))
    if not np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-6 * size) or np.linalg.eigvalsh(matrix)[0] <= 1e-14 * size:
        raise ValueError("lower must be a symmetric positive definite matrix (or one number)")
    if not _checks.is_traced(bounds.upper) and np.any(np.asarray(bounds.upper) < 1.0):
        raise ValueError(f"upper must be at least 1 where lower is a matrix A0: Sigma <= upper A0; got {bounds.upper}")


def _check_range(bounds: Any, dtype: Any) -> None:
    """Refuse concrete radii and half-widths whose squares are no normal numbers of the rows' dtype."""
    if _checks.is_traced(bounds) or isinstance(bounds, SpectrumBounds):
        return
    if isinstance(bounds, L2Bounds):
        what, scale = "radius", np.asarray(bounds.radius, np.float64)
    else:
        ends = np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)
        lower, upper = np.broadcast_arrays(*ends)
        what, scale = "(upper - lower)/2", (0.5 * upper - 0.5 * lower)[lower != upper]
    if np.any((scale > 0) & ~clip.in_range(scale, dtype)):  # others, which no constructor lets through, fail closed
        about = jnp.finfo(dtype)
        low, high = float(about.tiny) ** 0.5, float(about.max) ** 0.5
        raise ValueError(
            f"{what} must lie between {low:.2g} and {high:.2g} in {np.dtype(dtype).name}; rescale the data"
        )


def _config(name: str, config: Any, kind: type) -> Any:
    if config is None:
        return kind()
    if not isinstance(config, kind):
        raise TypeError(f"{name} takes config={kind.__name__}(...), got {type(config).__name__}")
    return config
