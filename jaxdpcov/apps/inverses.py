"""Precision and partial correlations with their uncertainty from the known noise, and the edges that are beyond it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.apps import _noise
from jaxdpcov.apps.intervals import Interval, check_level, ends, half_widths
from jaxdpcov.release import Release, column_names


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
        are longer than they need be, as docs/results/intervals.md shows.

    Edge cases: rows and columns of constant columns are 0. Under add/remove the noise of n is a term of its own.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.inverses import precision_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 2))
    >>> found = precision_interval(gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.box(0.0, 1.0)), 0.999)
    >>> found.contains(jax.numpy.linalg.inv(jax.numpy.cov(rows.T))).tolist()
    [[True, True], [True, True]]
    """
    check_level(level)
    _checks.choice("population", population, (False, True))

    def one(release: Release) -> Any:
        value, std, degrees = _through(_joint(release), _precision)
        diagonal = jnp.diagonal(value)
        sampling = jnp.sqrt((diagonal[:, None] * diagonal[None, :] + value**2) / degrees) if population else 0.0 * std
        half, total = half_widths("gaussian", level, [std], sampling)
        return ends(value, total, half)

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
    >>> from jaxdpcov.apps.inverses import partial_correlation_interval
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 3))
    >>> release = gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.box(0.0, 1.0))
    >>> partial_correlation_interval(release, 0.999, population=True).contains(jax.numpy.eye(3)).all().tolist()
    True
    """
    check_level(level)
    _checks.choice("population", population, (False, True))

    def one(release: Release) -> Any:
        r, std = _partial(_joint(release), population)
        half, total = half_widths("gaussian", level, [std], jnp.zeros_like(std))
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
    >>> from jaxdpcov.apps.inverses import edges
    >>> x = jax.random.uniform(jax.random.key(1), (10_000, 3))
    >>> rows = x.at[:, 1].set(0.5 * x[:, 0] + 0.5 * x[:, 1])
    >>> [edge[:2] for edge in edges(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.box(0.0, 1.0)))]
    [('x0', 'x1')]
    """
    from scipy import special, stats

    check_level(level)
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
