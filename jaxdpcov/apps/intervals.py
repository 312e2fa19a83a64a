"""Confidence intervals for single entries of a release from its known noise; precision, and edges beyond noise."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.apps import _noise
from jaxdpcov.release import Release, column_names


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
    _level(level)
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
    _level(level)
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
        half, total = _half_widths(law, level, parts, sampling)
        return _ends(center + scale * value, scale * total, scale * half)

    return Interval(*_noise.lanes(one, release))


def precision_interval(release: Release, level: Any = 0.95, *, population: bool = False) -> Interval:
    """Confidence intervals (d, d) for single entries of the inverse covariance, inverse squared data units.

    Formal guarantee: post-processing of the release, at no further cost.

    Args:
        release, level: as in `covariance_interval`, of a mechanism that measures all entries with independent noise:
            `gaussian`, `laplace`, `clipped_gaussian`, `clipped_separate`, `separate`, `adaptive`, `ssp_select`, `auto`
            where it measured all. Of Laplace noise the sum of many is taken for normal.
        population: as in `covariance_interval`: False, noise alone; True, with the sampling of Gaussian rows.

    Returns:
        `Interval` of the inverse of the covariance as measured. Standard deviations are to first order in the noise
        (delta method). Where the smallest eigenvalue as measured is below half the edge of the noise's own spectrum, in
        the units of `_noise.units`, that is not to be trusted and all is NaN. Not far above that the intervals
        are longer than they need be: 97% to 99% of those of 95% hold (docs/results/intervals.md).

    Edge cases: rows and columns of constant columns are 0. Under add/remove the noise of n is a term of its own.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.intervals import precision_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 2))
    >>> found = precision_interval(gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.box(0.0, 1.0)), 0.999)
    >>> found.contains(jax.numpy.linalg.inv(jax.numpy.cov(rows.T))).tolist()
    [[True, True], [True, True]]
    """
    _level(level)
    _checks.choice("population", population, (False, True))

    def one(release: Release) -> Any:
        value, std, degrees = _through(_joint(release), _precision)
        diagonal = jnp.diagonal(value)
        sampling = jnp.sqrt((diagonal[:, None] * diagonal[None, :] + value**2) / degrees) if population else 0.0 * std
        half, total = _half_widths("gaussian", level, [std], sampling)
        return _ends(value, total, half)

    return Interval(*_noise.lanes(one, release))


def partial_correlation_interval(release: Release, level: Any = 0.95, *, population: bool = False) -> Interval:
    """Confidence intervals (d, d) for single partial correlations, that of two columns given all others; no units.

    Formal guarantee: post-processing of the release, at no further cost.

    Args, Edge cases: as `precision_interval`. `std` is that of the partial correlation r; the ends are normal on
        Fisher's scale atanh r, hence within [-1, 1]. The diagonal is 1 with intervals of length 0, and columns without
        variance are uncorrelated with all.

    References: Fisher 1924, for the sampling variance (1 - r^2)^2/(n - d - 1).

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.intervals import partial_correlation_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 3))
    >>> release = gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.box(0.0, 1.0))
    >>> partial_correlation_interval(release, 0.999, population=True).contains(jax.numpy.eye(3)).all().tolist()
    True
    """
    _level(level)
    _checks.choice("population", population, (False, True))

    def one(release: Release) -> Any:
        r, std = _partial(_joint(release), population)
        half, total = _half_widths("gaussian", level, [std], jnp.zeros_like(std))
        eye = np.eye(r.shape[0], dtype=bool)
        inner = jnp.where(eye, 0.0, jnp.clip(r, -1.0 + 1e-6, 1.0 - 1e-6))
        on_fisher = jnp.where(eye, 0.0, half / (1.0 - inner**2))
        lower, upper = (jnp.tanh(jnp.arctanh(inner) + sign * on_fisher) for sign in (-1.0, 1.0))
        nan = jnp.isnan(r)
        return r, total, *(jnp.where(eye & ~nan, 1.0, end) for end in (lower, upper))

    return Interval(*_noise.lanes(one, release))


class Edge(NamedTuple):
    """A partial correlation beyond noise; a list of them is a table to `pandas.DataFrame`.

    first, second: names of the columns. partial_correlation, std: as measured, and of its noise (and sampling).
    p_value: of no partial correlation, two-sided. q_value: the smallest level at which it is still an edge.
    """

    first: str
    second: str
    partial_correlation: float
    std: float
    p_value: float
    q_value: float


def edges(release: Release, level: float = 0.05, *, population: bool = True, method: str = "bh") -> list[Edge]:
    """The pairs of columns whose partial correlation is beyond the noise, at a false-discovery rate of `level`.

    Formal guarantee: post-processing of the release, at no further cost.

    Args:
        release: one release (not a batch), as for `precision_interval`.
        level: bound on the expected share of false edges among those found, in (0, 1).
        population: True: beyond noise and sampling, of a Gaussian population. False: beyond the noise alone: pairs
            whose partial correlation in the rows themselves is not 0, which by sampling it never is.
        method: "bh" (Benjamini and Hochberg: tests independent or positively dependent), or "by" (any dependence;
            fewer edges).

    Returns:
        Edges, smallest p-value first. None where the noise is too large for the standard deviations to be trusted
        (see `precision_interval`).

    Raises:
        ValueError: for batches, releases without the statistics, and a level outside (0, 1).

    References: Benjamini, Hochberg 1995; Benjamini, Yekutieli 2001; Drton, Perlman 2007, for graphs by tests.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.intervals import edges
    >>> x = jax.random.uniform(jax.random.key(1), (10_000, 3))
    >>> rows = x.at[:, 1].set(0.5 * x[:, 0] + 0.5 * x[:, 1])
    >>> [edge[:2] for edge in edges(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.box(0.0, 1.0)))]
    [('x0', 'x1')]
    """
    from scipy import special, stats

    _level(level)
    _checks.choice("method", method, ("bh", "by"))
    _checks.choice("population", population, (False, True))
    if np.ndim(release.status):
        lane = "jax.tree.map(lambda leaf: leaf[i], releases)"
        raise ValueError(f"expected one release, got a batch of shape {np.shape(release.status)}: take {lane}")
    r, std = (np.asarray(x, float) for x in _partial(_joint(release), population))
    live = np.flatnonzero(np.asarray(release.scale) != 0)
    pairs = [(int(i), int(j)) for k, i in enumerate(live) for j in live[k + 1 :]]
    if not pairs or not np.all(np.isfinite([std[pair] for pair in pairs])):
        return []
    # Under no partial correlation Fisher's scale and r itself agree; the std of r there is what is used.
    p = np.array(
        [2.0 * special.ndtr(-abs(r[pair]) / std[pair]) if std[pair] > 0 else float(r[pair] == 0) for pair in pairs]
    )
    q = stats.false_discovery_control(p, method=method)
    names = column_names(release)
    found = [
        Edge(names[i], names[j], float(r[i, j]), float(std[i, j]), float(p[k]), float(q[k]))
        for k, (i, j) in enumerate(pairs)
        if q[k] <= level
    ]
    return sorted(found, key=lambda edge: (edge.p_value, -abs(edge.partial_correlation) / max(edge.std, 1e-300)))


def _level(level: Any) -> None:
    _checks.between("level", level, 0.0, 1.0)


def _ends(value: jax.Array, std: jax.Array, half: jax.Array) -> Any:
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
    half, total = _half_widths(found.law, level, parts, sampling)
    return _ends(value * found.units, total * found.units, half * found.units)


def _half_widths(law: str, level: Any, parts: list[jax.Array], sampling: jax.Array) -> tuple[jax.Array, jax.Array]:
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


def _joint(release: Release) -> _noise.Statistics:
    """The statistics of a release, all entries of which are measured with independent noise."""
    found = _noise.statistics(release, "an inverse")
    names = ("gaussian", "laplace", "clipped_gaussian", "adaptive", "ssp_select", "auto")
    if not found.joint:
        raise ValueError(f"the noise of {release.mechanism} is not independent between entries, which the uncertainty "
                         f"of an inverse needs: release with one of {', '.join(names)}")  # fmt: skip
    known = found.second.value
    if release.mechanism == "diagonal" and release.d > 1:
        raise ValueError("diagonal measures variances alone, and an inverse needs all entries")
    if not _checks.is_traced(known) and np.any(np.isnan(known)) and np.all(np.isfinite(np.diagonal(known))):
        raise ValueError(f"{release.mechanism} measured chosen entries alone here, and an inverse needs all of them")
    return found


def _filled(covariance: jax.Array, live: jax.Array) -> jax.Array:
    """With 1 for the variance of constant columns."""
    both = live[:, None] & live[None, :]
    return jnp.where(both, covariance, 0.0) + jnp.diag(jnp.where(live, 0.0, 1.0))


def _precision(covariance: jax.Array, live: jax.Array) -> jax.Array:
    both = live[:, None] & live[None, :]
    return jnp.where(both, _inverse(_filled(covariance, live)), 0.0)


def _partial_correlation(covariance: jax.Array, live: jax.Array) -> jax.Array:
    inverse = _inverse(_filled(covariance, live))
    own = jnp.sqrt(jnp.diagonal(inverse))
    r = -inverse / (own[:, None] * own[None, :])
    return jnp.where(np.eye(live.shape[0], dtype=bool), 1.0, r)


def _inverse(a: jax.Array) -> jax.Array:
    """Of a positive definite matrix, in units in which its diagonal is 1; NaN for one that is not."""
    unit = jnp.sqrt(jax.lax.stop_gradient(jnp.diagonal(a)))
    scaled = a / (unit[:, None] * unit[None, :])
    lower = jnp.linalg.cholesky(scaled, symmetrize_input=False)
    half = jax.lax.linalg.triangular_solve(lower, jnp.eye(a.shape[0], dtype=a.dtype), left_side=True, lower=True)
    return jnp.matmul(half.T, half, precision="highest") / (unit[:, None] * unit[None, :])


@functools.partial(jax.jit, static_argnames="function")
def _through(found: _noise.Statistics, function: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`function` of the covariance as measured, its noise's std, and degrees of freedom; NaN beyond the first order."""
    live = found.scale != 0
    covariance, std = found.covariance(), found.std()
    unit = _noise.units(std)
    here = covariance / (unit[:, None] * unit[None, :])
    size = jnp.max(jnp.abs(jnp.diagonal(here)))
    filled = here + jnp.diag(jnp.where(live, 0.0, size))
    enough = jnp.linalg.eigvalsh(filled, symmetrize_input=False)[0] > _noise.edge(std, unit, 0.5)

    def of(c: jax.Array) -> jax.Array:
        return function(c, live)

    value, noise = of(covariance * found.units), _noise.propagate(of, found)
    degrees = jnp.maximum(found.size - jnp.sum(live, dtype=std.dtype) - 1.0, 1.0)
    return jnp.where(enough, value, jnp.nan), jnp.where(enough, noise, jnp.nan), degrees


@functools.partial(jax.jit, static_argnames="population")
def _partial(found: _noise.Statistics, population: bool) -> tuple[jax.Array, jax.Array]:
    """Partial correlations and the std of their errors."""
    r, noise, degrees = _through(found, _partial_correlation)
    live = found.scale != 0
    sampling = (
        jnp.where(live[:, None] & live[None, :], (1.0 - r**2) / jnp.sqrt(degrees), 0.0) if population else 0.0 * r
    )
    return r, jnp.sqrt(noise**2 + sampling**2)
