"""Confidence intervals for single entries of a release from its known noise: covariances, variances and means."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.apps import _noise
from jaxdpcov.release import Release


@record()
class Interval:
    """Two-sided confidence intervals, one for each entry; leading axes of a batch of releases come first.

    estimate: as measured, without bias: not what post-processing made of it (a PSD step, shrinkage). std: of its error.
    lower, upper: the ends. All in the units of the entries; NaN where nothing was measured.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.intervals import mean_interval
    >>> release = gaussian(jax.random.key(0), jax.numpy.ones((1000, 2)), ZCDP(rho=0.5), Bounds.box(0.0, 2.0))
    >>> found = mean_interval(release)
    >>> found.contains([1.0, 1.0]).tolist()
    [True, True]
    """

    estimate: Any
    std: Any
    lower: Any
    upper: Any

    def contains(self, values: Any) -> jax.Array:
        """Whether the intervals hold these values, entry by entry."""
        values = jnp.asarray(values, self.lower.dtype)
        values = jnp.broadcast_to(values, np.broadcast_shapes(values.shape, self.lower.shape))
        return (self.lower <= values) & (values <= self.upper)


def covariance_interval(release: Release, level: Any = 0.95, *, population: bool = False) -> Interval:
    """Confidence intervals (d, d) for single covariances and variances, squared data units.

    Formal guarantee: post-processing of the release, at no further cost.

    Args:
        release: of a mechanism whose `measured` has entries of the second moment with their noise: `gaussian`,
            `laplace`, `diagonal` (variances alone), `separate`, `clipped_*`, `adaptive`, `ssp_select`, `auto`, `pace`
            (chosen entries alone), `coinpress_covariance`, `coinpress_gaussian`, `coinpress_variance_1d` and the
            private preconditioners; or a batch of them.
        level: of each interval by itself, in (0, 1); not of all at once.
        population: False: for the sample's own value, of which the noise is the only error. True: for that of the
            population that rows were drawn from independently, under the assumption that it is Gaussian and its rows
            are not clipped: heavy tails make the interval too short.

    Returns:
        `Interval`. A "row" here is what the release protects: of a person with several rows, n counts persons, each
        of whom gives the average of theirs; the interval for the population is then, if anything, too long. The
        sample's value is what an exact mechanism would have measured: the covariance (divided by n)
        of the rows as clipped (to the bounds, or to a private radius); with center="zero" their second moment about the
        public centre; with center="pairs" that of the half differences of the pairs drawn.

    How. The noise of an entry is that of the second moment, less what a noisy mean takes off (the terms, and the
    variance that each adds, are in `_noise`; the unknown mean in it is estimated). Gaussian noise gives normal
    intervals. Laplace noise gives the quantiles of the sum of independent Laplace variables, exact where it is one
    (means; moments about a public centre), else to first order. The sampling variance is (C_jj C_kk + C_jk^2)/m, over
    m rows or pairs of them, and a centred estimate is multiplied by n/(n-1). Under add/remove n is noisy, which to
    first order is one more term.

    Raises:
        ValueError: where the release has no such statistics, for a level outside (0, 1).

    Edge cases: constant columns have intervals of length 0, entries that were not measured NaN. A noisy count below 1
        says nothing: infinite intervals. Entries that `pace` chose were chosen for being large: an interval of
        one may miss more often. An invalid release gives NaN.

    References: Karwa, Vadhan 2018, for intervals that count the noise; Anderson 2003, theorem 3.4.4, for the sampling.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.intervals import covariance_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 2))
    >>> found = covariance_interval(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.box(0.0, 1.0)))
    >>> found.lower.shape, found.contains(jax.numpy.cov(rows.T, ddof=0)).tolist()
    ((2, 2), [[True, True], [True, True]])
    """
    check_level(level)
    _checks.choice("population", population, (False, True))

    def one(release: Release) -> Any:
        return _of_covariance(_noise.statistics(release, "an interval"), level, population)

    return Interval(*_noise.lanes(one, release))


def variance_interval(release: Release, level: Any = 0.95, *, population: bool = False) -> Interval:
    """Confidence intervals (d,) for the variances: the diagonal of `covariance_interval`.

    >>> import jax
    >>> from jaxdpcov import Bounds, PureDP, diagonal
    >>> from jaxdpcov.apps.intervals import variance_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 2))
    >>> found = variance_interval(diagonal(jax.random.key(0), rows, PureDP(1.0), Bounds.box(0.0, 1.0)), 0.999)
    >>> found.contains(rows.var(axis=0)).tolist()
    [True, True]
    """
    every = covariance_interval(release, level, population=population)
    return Interval(*(jnp.diagonal(leaf, axis1=-2, axis2=-1) for leaf in jax.tree.leaves(every)))


def mean_interval(release: Release, level: Any = 0.95, *, population: bool = False) -> Interval:
    """Confidence intervals (d,) for single means, data units.

    Formal guarantee: post-processing of the release, at no further cost.

    Args:
        release: of a mechanism whose `measured` has a mean, `product_mean` and `learn_product` aside, whose bias is of
            a size with their noise; or a batch.
        level, population: as in `covariance_interval`. The sampling variance C_jj/n is estimated, and the interval is
            normal (the central limit theorem), so rows need not be Gaussian.

    Raises:
        ValueError: where the release has no mean of its own, for a level outside (0, 1), and, with population=True,
            where variances were not measured.

    >>> import jax
    >>> from jaxdpcov import Bounds, PureDP, laplace
    >>> from jaxdpcov.apps.intervals import mean_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 2))
    >>> found = mean_interval(laplace(jax.random.key(0), rows, PureDP(1.0), Bounds.box(0.0, 1.0)), 0.999)
    >>> found.contains(rows.mean(axis=0)).tolist()
    [True, True]
    """
    check_level(level)
    _checks.choice("population", population, (False, True))
    if "mean" not in release.measured:
        raise ValueError(f'this release of {release.mechanism} has no mean of its own (center="private" measures one)')
    if release.mechanism in ("product_mean", "learn_product"):
        raise ValueError(
            f"{release.mechanism} truncates rows to weigh bias against noise, and its noise alone makes no interval: "
            "release with gaussian"
        )

    def one(release: Release) -> Any:
        noisy, count = release.measured["mean"], release.measured.get("n")
        scale, center = jnp.asarray(release.scale), jnp.asarray(release.center)
        value, std = _noise.marked(release, jnp.asarray(noisy.value), jnp.asarray(noisy.std))
        n, law = jnp.asarray(release.n, value.dtype), _noise.law(release)
        parts = [std]
        if count is not None:
            moved = jnp.where(jnp.asarray(count.value) < 1.0, jnp.inf, jnp.abs(value) * (count.std / n))
            parts.append(jnp.where(std == 0, 0.0, moved))
        sampling = jnp.zeros_like(std)
        if population:
            found = _noise.statistics(release, "the sampling variance of an interval for the population")
            sampling = jnp.sqrt(jnp.maximum(jnp.diagonal(found.covariance()), 0.0) / n)
        half, total = half_widths(law, level, parts, sampling)
        return ends(center + scale * value, scale * total, scale * half)

    return Interval(*_noise.lanes(one, release))


def check_level(level: Any) -> None:
    _checks.between("level", level, 0.0, 1.0)


def ends(value: jax.Array, std: jax.Array, half: jax.Array) -> Any:
    return value, std, value - half, value + half


@functools.partial(jax.jit, static_argnames="population")
def _of_covariance(found: _noise.Statistics, level: Any, population: bool) -> Any:
    value, parts = found.covariance(), found.parts()
    sampling = jnp.zeros_like(value)
    if population:
        m = found.size
        if found.mean is not None:
            value = value * (m / jnp.maximum(m - 1.0, 1.0))
        variance = jnp.maximum(jnp.diagonal(value), 0.0)
        each = variance[:, None] * variance[None, :] + value**2
        sampling = jnp.sqrt(each / jnp.maximum(m - float(found.mean is not None), 1.0))
    half, total = half_widths(found.law, level, parts, sampling)
    return ends(value * found.units, total * found.units, half * found.units)


def half_widths(law: str, level: Any, parts: list[jax.Array], sampling: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Half the lengths of intervals, and stds, for a sum of independent noise (stds) and normal sampling error."""
    total = _noise.root(_noise.sum_of_squares([*parts, sampling]))
    level = jnp.asarray(level, total.dtype)
    normal = total * jax.scipy.special.ndtri(0.5 + 0.5 * level)
    if law == "gaussian":
        return normal, total
    known = (total > 0) & jnp.isfinite(total)
    stds = jnp.stack([jnp.where(known, part, 1.0 if k == 0 else 0.0) for k, part in enumerate(parts)], axis=-1)
    half = _laplace_quantile(stds, jnp.where(known, sampling, 0.0), 0.5 - 0.5 * level)
    return jnp.where(known, half, total), total


def _laplace_quantile(stds: jax.Array, sampling: jax.Array, tail: jax.Array) -> jax.Array:
    """The x that a sum of independent Laplace variables, stds (..., k), and a normal one exceeds with chance `tail`.

    By partial fractions of its characteristic function the sum of Laplace variables of scales b_i is a mixture of
    them, with weights prod over k of b_i^2 / (b_i^2 - b_k^2). Scales that tie are moved apart by a hundredth, and all
    brought back to the same variance.
    """
    b = -jnp.sort(-stds, axis=-1) / 2.0**0.5
    apart = [b[..., 0]]
    for k in range(1, b.shape[-1]):
        least = b[..., 0] * 1e-3 * 0.9**k
        apart.append(jnp.minimum(jnp.maximum(b[..., k], least), 0.99 * apart[-1]))
    moved = jnp.stack(apart, axis=-1)
    b = moved * jnp.sqrt(jnp.sum(b**2, axis=-1) / jnp.sum(moved**2, axis=-1))[..., None]
    squares = (b / b[..., :1]) ** 2
    gaps = squares[..., :, None] - squares[..., None, :]
    eye = jnp.broadcast_to(np.eye(b.shape[-1], dtype=bool), gaps.shape)
    weights = jnp.prod(jnp.where(eye, 1.0, squares[..., :, None] / jnp.where(eye, 1.0, gaps)), axis=-1)
    sigma = jnp.maximum(sampling, 1e-9 * b[..., 0])[..., None]
    ndtr, log_ndtr = jax.scipy.special.ndtr, jax.scipy.special.log_ndtr

    def exceeded(x: jax.Array) -> jax.Array:
        x = x[..., None]
        # A normal and a Laplace variable together: P(N + L > x).
        near = jnp.exp(0.5 * (sigma / b) ** 2 - x / b + log_ndtr(x / sigma - sigma / b))
        far = jnp.exp(0.5 * (sigma / b) ** 2 + x / b + log_ndtr(-x / sigma - sigma / b))
        return jnp.sum(weights * (ndtr(-x / sigma) + 0.5 * (near - far)), axis=-1)

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = 0.5 * (low + high)
        above = exceeded(middle) > tail
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    reach = (jnp.sum(b, axis=-1) + sigma[..., 0]) * (5.0 - jnp.log(tail))
    low, high = jax.lax.fori_loop(0, 60, halve, (jnp.zeros_like(reach), reach))
    return 0.5 * (low + high)
