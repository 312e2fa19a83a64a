"""The one call for people with raw data: a file, an array or a data frame in, a private release out."""

import contextlib
import dataclasses
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdpcov import _checks, _progress
from jaxdpcov.bounds import Bounds, BoxBounds, SpectrumBounds
from jaxdpcov.data.io import Table, open_table
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._registry import MECHANISMS, Mechanism, fold
from jaxdpcov.mechanisms.private_range import RangeConfig, private_range
from jaxdpcov.plan import rule
from jaxdpcov.privacy import ledger
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP, split, to_zcdp
from jaxdpcov.release import Release

#: The method of `estimate` and of the command line unless one is named: chosen from public inputs (`plan.rule`), the
#: mechanism of that name under a box and a zCDP budget.
DEFAULT_METHOD = "auto"


def estimate(
    data: Any,
    *,
    bounds: Any,
    private_bounds: Mapping[str, float] | None = None,
    private_bounds_share: float = 0.1,
    rho: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    method: str = DEFAULT_METHOD,
    center: str | None = None,
    relation: str = "replace",
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    person: str | None = None,
    max_rows: int | None = None,
    missing: str = "row",
    key: Any = None,
    progress: Callable[[int, int | None], None] | None = None,
    **options: Any,
) -> Release:
    """Release a private covariance and mean of raw data, in float64 whatever JAX's global setting is.

    Formal guarantee: that of the mechanism `method` at the budget given, for one row, or for one person where
    `person` names the column that says whose row it is. Operating-system entropy makes the key unless one is given.

    Args:
        data: path of a CSV, Parquet, npy or npz file (read in blocks), NumPy array (n, d), pandas or polars
            DataFrame, pyarrow Table or Dataset.
        bounds: public bounds: a mapping {column: (low, high)} with an entry for every column used, or `Bounds.l2`,
            `Bounds.box` in the order of the columns. Indicators of `categories` have bounds (0, 1) already.
        private_bounds: {column: the largest standard deviation that it may have}: the `bounds` of these columns may be
            wide, and tighter ones around nearly all values are found privately (`private_range`, for bell-shaped
            columns) and used in their place; `release.bounds` has them.
        private_bounds_share: the share of the budget that this takes.
        rho, epsilon, delta: the budget: `rho` (zCDP), `epsilon` with `delta`, or `epsilon` alone (pure DP).
        method: name of a mechanism. "auto": chosen from the kinds of bounds and budget and the options given, before
            any data are read: the mechanism `auto` under a box and a zCDP budget, else the planned best that applies;
            the ledger says which and why.
        center: "private" (measure the mean), "zero" (moments about the public centre) or "pairs" (differences of
            paired rows: the whole file is read into memory, and paired by a permutation from the key). None: that of
            the method, "private" save for CoinPress.
        relation: "replace" (n is public) or "add_remove".
        columns: names of the columns to use; all of them unless given.
        categories: {column: public list of its values}: the column becomes 0/1 indicators `column=value`.
        person, max_rows: one contribution for each person: at most `max_rows` of their rows, sharing weight one.
        missing: what happens to a row with a missing or non-finite cell. "row": it becomes the centre of the bounds.
            "cell": the cell does. "error": refused, a look at the data without privacy that the ledger records.
        key: None (operating-system entropy), a JAX PRNG key, or an integer seed, which makes a release for study
            only: a seed can be guessed.
        progress: called with (done, total) as a file is read, in bytes or rows; total may be None. Then, by mechanisms
            of many rounds, with the thousandths of the budget that are spent.
        **options: fields of the mechanism's config, such as `mean_share=0.3` or `psd="floor"`. With "auto" they
            decide too: a mechanism that has them all is taken.

    Returns:
        `Release` of NumPy arrays, float64, with column names.

    Raises:
        ValueError, TypeError: one line that names the argument and what is allowed.
        DataError: the data are no table of numbers; the message names a line or column, never a value.

    >>> import numpy as np
    >>> from jaxdpcov import estimate
    >>> rows = np.random.default_rng(0).uniform(0, 100, (500, 2))
    >>> release = estimate(rows, bounds={"x0": (0, 100), "x1": (0, 100)}, rho=0.5)
    >>> release.covariance.shape, release.key_source
    ((2, 2), 'os')
    """
    mechanism, budget, config = check_arguments(
        method=method, rho=rho, epsilon=epsilon, delta=delta, center=center, relation=relation, missing=missing,
        options=options, bounds=bounds,
    )  # fmt: skip
    chosen = None
    if method == "auto":
        asked = {"center": center, "relation": relation, **options}
        _, chosen = rule.choose(PureDP if isinstance(budget, PureDP) else ZCDP, bounds, asked)
    with jax.enable_x64(True):
        typed, source = _key(key)
        table = open_table(
            data,
            columns=columns,
            categories=categories,
            person=person,
            max_rows=max_rows,
            selection_key=_selection_key(typed),
            progress=progress,
        )
        box = _bounds(bounds, table)
        if missing != "row":
            table = table.with_missing(missing, _centers(box, table.d) if missing == "cell" else None)
        lists = categories and {name: list(values) for name, values in categories.items()}  # an array's repr is cut
        choices = (columns and tuple(columns), lists, person, max_rows, missing == "cell")
        if choices != (None, None, None, None, False):
            # They shape the rows, and are public like bounds: for other ones the key must not draw the same noise.
            typed = jax.random.fold_in(typed, zlib.crc32(repr(choices).encode()))
        found = None
        if private_bounds is not None:
            found, budget, box, typed = _private_bounds(
                typed, table, budget, box, relation, private_bounds, private_bounds_share
            )
            if missing == "cell":  # the centres of the wide bounds may lie outside of those that were found
                table = table.with_missing(missing, _centers(box, table.d))
        with _progress.reporting(progress):
            unbounded = isinstance(budget, ApproxDP) and ApproxDP in mechanism.budgets  # bins of rows in memory
            release = mechanism.function(typed, _rows(table, config, unbounded), budget, box, config=config)
        if found is not None:
            release = _joined(found, release)
        release = jax.tree_util.tree_map(np.asarray, release)
    tree = release.ledger
    if chosen is not None:
        tree = ledger.Seq((ledger.Remark(chosen), tree))
    if missing == "error":
        tree = ledger.Seq((ledger.Remark("missing cells: looked for without privacy"), tree))
    return dataclasses.replace(
        release,
        ledger=tree,
        columns=tuple(table.columns),
        unit="row" if person is None else "person",
        key_source=source,
    )


def check_arguments(
    *,
    method: str = DEFAULT_METHOD,
    rho: Any = None,
    epsilon: Any = None,
    delta: Any = None,
    center: str | None = None,
    relation: str = "replace",
    missing: str = "row",
    options: Mapping[str, Any] | None = None,
    bounds: Any = None,
) -> tuple[Mechanism, Any, Any]:
    """The mechanism, budget and config that these arguments of `estimate` ask for: all checks that need no data.

    bounds: public bounds, or their type, which the method "auto" is chosen by; a box unless given.

    >>> from jaxdpcov.estimate import check_arguments
    >>> mechanism, budget, config = check_arguments(method="gaussian", rho=0.5, options={"psd": "floor"})
    >>> mechanism.name, budget, config.psd
    ('gaussian', ZCDP(rho=0.5), 'floor')
    """
    asked = {"center": center, "relation": relation, **(options or {})}
    _checks.choice("missing", missing, ("row", "cell", "error"))
    if method == "auto":
        budget = _budget(None, rho, epsilon, delta)
        mechanism, _ = rule.choose(PureDP if isinstance(budget, PureDP) else ZCDP, bounds, asked)
    else:
        mechanism = _mechanism(method)
        budget = _budget(mechanism, rho, epsilon, delta)
    return mechanism, budget, _config(mechanism, asked)


def check_budget(*, rho: Any = None, epsilon: Any = None, delta: Any = None) -> ZCDP | ApproxDP | PureDP:
    """The budget that these arguments of `estimate` name, whatever the method.

    >>> from jaxdpcov.estimate import check_budget
    >>> check_budget(epsilon=1.0)
    PureDP(epsilon=1.0)
    """
    return _budget(None, rho, epsilon, delta)


def _mechanism(method: str) -> Mechanism:
    if method not in MECHANISMS:
        hint = _checks.hint(method, MECHANISMS)
        raise ValueError(f"method must be one of {', '.join(MECHANISMS)}; got {method!r}{hint}")
    return MECHANISMS[method]


def _budget(mechanism: Mechanism | None, rho: Any, epsilon: Any, delta: Any) -> ZCDP | ApproxDP | PureDP:
    """Exactly one of rho, epsilon with delta, or epsilon alone, in a form that a settled mechanism takes."""
    if (rho is None) == (epsilon is None):
        raise ValueError("give exactly one budget: rho=0.5, or epsilon=1.0 with delta=1e-6, or epsilon=1.0 (pure DP)")
    if rho is not None:
        if delta is not None:
            raise ValueError("delta goes with epsilon, not with rho")
        if mechanism is not None and ZCDP not in mechanism.budgets:
            raise ValueError(f"{mechanism.name} is pure DP: give epsilon= (PureDP.from_zcdp(rho) has the price rho)")
        return ZCDP(rho)
    if delta is not None:
        if mechanism is not None and ZCDP not in mechanism.budgets:
            raise ValueError(f"{mechanism.name} is pure DP: give epsilon= without delta=")
        return ApproxDP(epsilon, delta)
    if mechanism is not None and PureDP not in mechanism.budgets:
        pure = ", ".join(name for name, each in MECHANISMS.items() if PureDP in each.budgets)
        raise ValueError(
            f"{mechanism.name} has no pure-DP form: give delta= as well (say 1e-6), or a method that has one ({pure})"
        )
    return PureDP(epsilon)


def _config(mechanism: Mechanism, chosen: dict[str, Any]) -> Any:
    """The mechanism's config from keywords; defaults that it does not know are dropped, anything else is named."""
    fields = {field.name: field for field in dataclasses.fields(mechanism.config)}
    for name, default in (("center", None), ("relation", "replace")):
        if chosen[name] is None or (name not in fields and chosen[name] == default):
            del chosen[name]
    for name in chosen:
        if name not in fields:
            raise ValueError(f"{mechanism.name} has no option {name!r}; it has {', '.join(fields)}")
    return mechanism.config(**chosen)


def _key(key: Any) -> tuple[jax.Array, str]:
    """The key and where it came from: "os", "user" or "study"."""
    if key is None:
        words = jax.random.key_data(jax.random.key(0)).shape[0]
        entropy = np.frombuffer(secrets.token_bytes(4 * words), np.uint32)
        return jax.random.wrap_key_data(jax.numpy.asarray(entropy)), "os"
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise ValueError("key: a seed must fit into 64 bits")
        return jax.random.key(int(key)), "study"
    return _checks.typed_key(key), "user"


def _selection_key(key: jax.Array) -> bytes:
    """Bytes that decide which rows of a person are kept, from a stream of the key that nothing else uses."""
    words = jax.random.bits(jax.random.fold_in(key, 0x726F7773), (8,), jax.numpy.uint32)
    return np.asarray(words).tobytes()


def _bounds(bounds: Any, table: Table) -> Bounds:
    """Bounds by column name as a box in the order of the table's columns."""
    if isinstance(bounds, Bounds):
        return bounds
    if not isinstance(bounds, Mapping):
        raise TypeError(
            "bounds must be a mapping such as {'age': (0, 120)}, Bounds.box(lower, upper) or Bounds.l2(radius); "
            f"got {type(bounds).__name__}"
        )
    known = dict(bounds)
    for name in table.indicators:
        known.setdefault(name, (0.0, 1.0))
    lower, upper = [], []
    for name in table.columns:
        if name not in known:
            raise ValueError(
                f"bounds has no entry for column {name!r}: add one, such as {{{name!r}: (0, 100)}}, or leave the "
                "column out with columns="
            )
        try:
            low, high = (float(end) for end in known.pop(name))
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"bounds of column {name!r} must be two numbers (low, high)") from None
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise ValueError(f"bounds of column {name!r} must be finite with low <= high, got ({low:g}, {high:g})")
        lower.append(low)
        upper.append(high)
    if known:
        raise ValueError(f"bounds has an entry for {next(iter(known))!r}, which is none of the columns used")
    return Bounds.box(np.array(lower), np.array(upper))


def _private_bounds(
    key: jax.Array, table: Table, budget: Any, box: Any, relation: str, std: Mapping[str, float], share: float
) -> tuple[Release, Any, BoxBounds, jax.Array]:
    """The release of the intervals, the budget and the bounds that are left for the estimate, and its key."""
    if not isinstance(box, BoxBounds):
        raise ValueError(f"private_bounds narrows public bounds of columns, not {type(box).__name__}")
    if relation != "replace":
        raise ValueError("private_bounds needs relation='replace': intervals depend on a public n")
    if not isinstance(std, Mapping) or not std:
        raise TypeError("private_bounds must be a mapping {column: largest standard deviation} with an entry or more")
    for name, value in std.items():
        if name not in table.columns:
            raise ValueError(f"private_bounds has an entry for {name!r}, which is none of the columns used")
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not number or not 0.0 < float(value) < np.inf:
            raise ValueError(f"private_bounds of column {name!r} must be a positive finite number, got {value!r}")
    _checks.between("private_bounds_share", share, 0.0, 1.0)
    amount = budget.epsilon if isinstance(budget, PureDP) else (budget := to_zcdp(budget)).rho
    first, rest = (type(budget)(part) for part in split(amount, (share, 1.0 - share)))
    widths = np.array([float(std.get(name, np.inf)) for name in table.columns])
    lower, upper = (np.broadcast_to(np.asarray(end, float), (table.d,)) for end in (box.lower, box.upper))
    # Public choices again, the wide bounds too, which fill missing cells and may lead to one interval from two of them.
    public = jax.numpy.asarray([lower, upper, widths]), jax.numpy.asarray(share)
    range_key, key = jax.random.split(fold(key, "private_bounds", public))
    config = RangeConfig(std=widths)
    found = private_range(range_key, _rows(table, config), first, Bounds.box(lower, upper), config=config)
    return found, rest, Bounds.box(np.asarray(found.extra["lower"]), np.asarray(found.extra["upper"])), key


def _joined(found: Release, release: Release) -> Release:
    """The release, with the bounds that were found and what they have cost."""
    spent = jax.tree_util.tree_map(lambda one, other: one + other, found.spent, release.spent)
    both = ledger.Seq((found.ledger, release.ledger))
    return dataclasses.replace(
        release, ledger=both, spent=spent, status=found.status | release.status, extra=found.extra | release.extra
    )


def _centers(public: Any, d: int) -> np.ndarray:
    """The public centre of each column, which stands in for a missing cell."""
    if isinstance(public, BoxBounds):
        center = 0.5 * np.asarray(public.lower, float) + 0.5 * np.asarray(public.upper, float)
    else:
        given = public.mean_center if isinstance(public, SpectrumBounds) else public.center
        center = np.asarray(0.0 if given is None else given, float)
    if center.shape not in ((), (d,)):
        raise ValueError(f"bounds must have one entry for each of the {d} columns, got shape {center.shape}")
    return np.broadcast_to(center, (d,))


def _rows(table: Table, config: Any, in_memory: bool = False) -> Rows:
    """A stream of blocks, so that another number of rows compiles nothing; an array where rows must be permuted.

    A stream would pair neighbours (or deal rows out in turn), and files are often sorted: by a column, or by person.
    """
    if in_memory or getattr(config, "center", None) == "pairs" or getattr(config, "permutes", False):
        values, weights = table.read()
        return Rows.array(values, weights, table.n)
    block_rows = table.block_rows
    with contextlib.suppress(TypeError):  # no n before the first pass
        block_rows = min(block_rows, max(256, 1 << (int(table.n) - 1).bit_length()))  # type: ignore[arg-type]
    return Rows.chunked(table.blocks, d=table.d, n=table.n, block_rows=block_rows, weighted=table.weighted)
