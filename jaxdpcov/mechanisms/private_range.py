"""Private intervals that hold nearly all values of each column, from a wide or unbounded prior range of their means."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, status
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds, SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.data.tally import tally
from jaxdpcov.mechanisms import _prior, _range
from jaxdpcov.mechanisms._mapped import mapped
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.privacy import ledger, selection, tails
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP
from jaxdpcov.release import Release

_NAME = "private_range"


@record(static=("bins", "relation"))
class RangeConfig:
    """Choices of `private_range`.

    std: the largest standard deviation that a column may have, data units, a number or one for each column (d,); the
        width of the bins. Needed with `Bounds.box`; infinite for a column whose public interval is to stay. Under
        `Bounds.spectrum` it is the square root of the largest variance, and None.
    bins: half-numbers of bins by stage. None: from the bounds, on the host. Not used under `ApproxDP`.
    beta: probability that the interval of some (near) normal column misses a row, or its mean, in (0, 1).
    relation: "replace" only.

    >>> from jaxdpcov import RangeConfig
    >>> RangeConfig(std=15.0).beta
    0.05
    """

    std: Any = None
    bins: tuple[int, ...] | None = None
    beta: Any = 0.05
    relation: str = "replace"

    def __post_init__(self) -> None:
        if self.std is not None:
            if isinstance(self.std, (tuple, list)):
                object.__setattr__(self, "std", np.asarray(self.std, float))
            std = _checks.concrete("std", self.std)
            if np.ndim(self.std) > 1 or (std is not None and not np.all(std > 0)):
                raise ValueError(f"std must be positive, a number or one for each column; got {self.std!r}")
        object.__setattr__(self, "bins", _range.check_bins(self.bins))
        _checks.between("beta", self.beta, 0.0, 1.0)
        if self.relation != "replace":
            raise ValueError(f"relation must be 'replace': intervals depend on a public n; got {self.relation!r}")


def _settle(rows: Rows, budget: Any, bounds: Any, config: RangeConfig) -> RangeConfig:
    box = isinstance(bounds, BoxBounds)
    if box != (config.std is not None):
        raise ValueError(
            f"{_NAME} needs std= with Bounds.box, the largest standard deviation of each column"
            if box
            else "std= goes with Bounds.box; Bounds.spectrum has the largest variance itself"
        )
    if np.ndim(config.std) == 1 and np.shape(config.std) != (rows.d,):
        raise ValueError(f"std must have one entry for each of the {rows.d} columns, got shape {np.shape(config.std)}")
    if isinstance(budget, ApproxDP):
        return dataclasses.replace(config, bins=None)
    if not box and bounds.mean_radius is None:
        raise ValueError(f"{_NAME} needs mean_radius=, or a budget ApproxDP(epsilon, delta), which needs none")

    def choose() -> tuple[int, ...]:
        if box:
            half = 0.5 * np.asarray(bounds.upper, np.float64) - 0.5 * np.asarray(bounds.lower, np.float64)
            return _range.choose_bins(float(np.max(half / np.asarray(config.std, np.float64))))
        radius = _prior.number(bounds.mean_radius)
        assert radius is not None
        return _range.choose_bins(radius / float(np.min(_std(bounds, np))))

    known = {"lower": bounds.lower, "upper": bounds.upper}
    known |= {"std": config.std} if box else {"mean_radius": bounds.mean_radius}
    return _prior.settled(config, "bins", choose, **known)


def _std(bounds: SpectrumBounds, xp: Any = jnp) -> Any:
    """The largest standard deviation of each column under `Bounds.spectrum`, () or (d,); on the host by NumPy."""
    if np.ndim(bounds.lower) == 2:
        return xp.sqrt(bounds.upper * xp.diagonal(xp.asarray(bounds.lower)))
    return xp.sqrt(xp.asarray(bounds.upper))


@mechanism(config=RangeConfig, budgets=(ZCDP, PureDP, ApproxDP), bounds=(BoxBounds, SpectrumBounds), settle=_settle)
def private_range(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: RangeConfig) -> Release:
    """A private interval for each column that holds nearly all of its values, where only their scale is known.

    Formal guarantee, replace-one with public n: one histogram for each of k columns in bins of the width `std`.
    rho-zCDP: Gaussian noise at l2 sensitivity sqrt(2 k) of all counts together. epsilon-DP: Laplace noise at l1
    sensitivity 2 k. (epsilon, delta)-DP: Laplace noise on bins that hold a row, and a threshold that one row alone
    passes with probability below delta/k; bins then need no limits, and the means no prior range at all. The heaviest
    bins and all that follows from them are released. It holds for any rows.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`; under `ApproxDP` in memory and unweighted. A row that is not finite
            becomes the public centre.
        budget: `ZCDP(rho)`, `PureDP(epsilon)`, or `ApproxDP(epsilon, delta)`, which is spent as it is and never
            turned into rho.
        bounds: `Bounds.box(lower, upper)`, wide public intervals of the values, with config.std; or
            `Bounds.spectrum(lower, upper, mean_center=, mean_radius=)`; `mean_radius` may be missing under `ApproxDP`.
        config: `RangeConfig`.

    Returns:
        `Release` with mean (d,), the centres of the heaviest bins, no covariance; `extra` has "lower" and "upper" (d,),
        data units. Of n rows of normal columns none is outside with probability 1 - beta, n not too small.

    Edge cases: n too small to find the bin, or under `ApproxDP` no bin above the threshold (then the public centre and
        range, infinite if there is none): the status says so. Columns far from normal lose what lies beyond about
        sqrt(2 log(2 n d/beta)) + 1.5 standard deviations from the heaviest bin.

    References: Karwa, Vadhan 2018 (arXiv 1711.03908), algorithms 1 to 3; docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, RangeConfig, ZCDP, private_range
    >>> rows = 170.0 + 10.0 * jax.random.normal(jax.random.key(1), (2000, 1))
    >>> release = private_range(
    ...     jax.random.key(0), rows, ZCDP(0.1), Bounds.box(0.0, 10_000.0), config=RangeConfig(std=20.0))
    >>> bool(release.extra["lower"][0] > 0), bool(release.extra["upper"][0] < 350)
    (True, True)
    """
    n = jnp.asarray(rows.count(), rows.dtype)
    # n is public, and the intervals depend on it: one key at another n must not give the same draws.
    key = fold(key, _NAME, n)
    about = _about(bounds, config, n, rows.d)
    pure = isinstance(budget, PureDP)
    if isinstance(budget, ApproxDP):
        values, counts = tally(rows, _nearest, about.center, about.per_unit)
        point, located, tree, bits = _stable(key, values, counts, budget)
        spent: Any = budget
    else:
        assert config.bins is not None
        amount = budget.epsilon if pure else budget.rho
        found = _range.find(
            key, rows, about.center, about.per_unit, amount, about.b, config.bins, columns=about.columns, pure=pure
        )
        point, located, tree, bits = found.point, jnp.asarray(True), ledger.Seq(found.entries), found.bits
        spent = PureDP(ledger.total(tree, "epsilon")) if pure else ZCDP(ledger.total(tree, "rho"))
        bits |= jnp.where((amount > 0) & jnp.isfinite(amount), status.OK, status.INVALID_BUDGET)
    mean, lower, upper = _interval(point, located, about, n, rows.d, isinstance(bounds, BoxBounds))
    return Release(
        covariance=None,
        mean=mean,
        measured={},
        center=about.center,
        scale=about.std,
        n=n,
        bounds=bounds,
        status=bits | jnp.where(about.valid, status.OK, status.INVALID_BOUNDS),
        spent=spent,
        ledger=tree,
        config=config,
        diagnostics={},
        extra={"lower": lower, "upper": upper},
        mechanism=_NAME,
        relation=config.relation,
    )


@record()
class _About:
    """Public numbers by column, data units.

    center, std: (d,); per_unit: 1/std, 0 for a column that is left alone; low, high: (d,) where values may be.
    columns: () how many are searched. b: () failure probability of a step. valid: ().
    """

    center: Any
    std: Any
    per_unit: Any
    low: Any
    high: Any
    columns: Any
    b: Any
    valid: Any


@functools.partial(jax.jit, static_argnames="d")
def _about(bounds: Any, config: RangeConfig, n: jax.Array, d: int) -> _About:
    dtype = n.dtype

    def column(value: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(value, dtype), (d,))

    if isinstance(bounds, BoxBounds):
        low, high, given = column(bounds.lower), column(bounds.upper), column(config.std)
        center, searched = 0.5 * low + 0.5 * high, given < jnp.inf
        std = jnp.where(searched, given, jnp.maximum(0.5 * high - 0.5 * low, jnp.finfo(dtype).tiny))
        valid = jnp.all(jnp.isfinite(low) & jnp.isfinite(high) & (low <= high))
    else:
        about = _prior.prior(bounds, n, d)
        center, std, searched = about.center, column(_std(bounds)), jnp.ones(d, bool)
        reach = jnp.inf if bounds.mean_radius is None else about.radius
        low, high, valid = center - reach, center + reach, about.valid
    valid &= jnp.all(std > 0) & jnp.all(jnp.isfinite(std)) & (n >= 1)
    per_unit = jnp.where(searched & valid, 1.0 / std, jnp.where(valid, 0.0, jnp.nan))
    columns = jnp.maximum(jnp.sum(searched, dtype=dtype), 1.0)
    # Each stage's noise, the sample in the histograms, and the rows about the mean fail with probability b each.
    b = jnp.asarray(config.beta, dtype) / (2.0 + len(config.bins or (1,)))
    return _About(center, std, per_unit, low, high, columns, b, valid)


def _nearest(x: jax.Array, center: jax.Array, per_unit: jax.Array) -> jax.Array:
    """The bin of each value, as a whole number in floating point, which has one for every float."""
    steps = jnp.round(mapped(x, center, per_unit))
    return jnp.where(jnp.isfinite(steps), steps, jnp.zeros_like(steps))


@jax.jit
def _stable(key: jax.Array, values: jax.Array, counts: jax.Array, budget: ApproxDP) -> Any:
    """Bins by the threshold, whether there is one, and the rest."""
    what = "histograms of bins in use"
    index, entry = selection.stable_argmax(key, counts, epsilon=budget.epsilon, delta=budget.delta, what=what)
    m = values.shape[0]
    point = jnp.take_along_axis(values, jnp.minimum(index, m - 1)[None, :], axis=0)[0]
    valid = (budget.epsilon > 0) & jnp.isfinite(budget.epsilon) & (budget.delta > 0) & (budget.delta < 1)
    bits = jnp.where(jnp.any(index == m), status.TOO_FEW_ROWS, status.OK)
    bits |= jnp.where(valid, status.OK, status.INVALID_BUDGET)
    return jnp.where(valid, point, jnp.nan), (index < m) | ~valid, ledger.Seq((entry,)), bits


@functools.partial(jax.jit, static_argnames=("d", "box"))
def _interval(point: jax.Array, found: jax.Array, about: _About, n: jax.Array, d: int, box: bool) -> Any:
    """Centres and ends, data units: means are within 1.5 standard deviations of a point, rows within q of the mean."""
    beyond = about.std * tails.eta(1, about.b / (n * d))
    public_low, public_high = (about.low, about.high) if box else (about.low - beyond, about.high + beyond)
    searched = found & (about.per_unit != 0.0)
    middle = jnp.where(searched, jnp.clip(about.center + about.std * point, about.low, about.high), about.center)
    reach = about.std * _range.OFFSET + beyond
    lower = jnp.where(searched, jnp.maximum(middle - reach, public_low), public_low)
    upper = jnp.where(searched, jnp.minimum(middle + reach, public_high), public_high)
    known = jnp.where(about.valid, jnp.ones_like(middle), jnp.nan)
    return middle * known, lower * known, upper * known
