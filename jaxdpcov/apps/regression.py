"""Linear and ridge regression from one private covariance of features with their target: post-processing alone."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, linalg
from jaxdpcov._records import record
from jaxdpcov.apps import _noise
from jaxdpcov.release import Release, column_names


@record(static=("features", "target"))
class Regression:
    """A linear model of one column by others; leading axes of a batch of releases come first.

    coefficients: (p,), target units per unit of each feature; 0 for a constant feature. intercept: (), target units.
    residual_variance: () the mean squared residual that the private covariance gives the model, target units squared.
    noise_std, standard_error: (p,) standard deviations of the coefficients, see `regression`; NaN where not honest.
    ridge: (p,) what was added to the features' variances, squared units of each.
    features, target: column names.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.regression import regression
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 3), minval=-1.0)
    >>> rows = rows.at[:, 2].set(rows[:, 0] - 0.5 * rows[:, 1])
    >>> found = regression(gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.box(-1.5, 1.5)), "x2")
    >>> found.coefficients.round(1).tolist(), found.predict([[1.0, 1.0]]).round(1).tolist()
    ([1.0, -0.5], [0.5])
    """

    coefficients: Any
    intercept: Any
    residual_variance: Any
    noise_std: Any
    standard_error: Any
    ridge: Any
    features: tuple[str, ...]
    target: str

    def predict(self, rows: Any) -> jax.Array:
        """The target (n,) at rows (n, p) of the features, in their order. As sensitive as the rows."""
        rows = jnp.asarray(rows, self.coefficients.dtype)
        if rows.ndim < 2 or rows.shape[-1] != self.coefficients.shape[-1]:
            raise ValueError(f"rows must be (n, {len(self.features)}), the features alone, got shape {rows.shape}")
        rows = rows.reshape((1,) * (self.coefficients.ndim + 1 - rows.ndim) + rows.shape)
        product = jnp.matmul(rows, self.coefficients[..., :, None], precision="highest")
        return product[..., 0] + self.intercept[..., None]


def regression(
    release: Release,
    target: str | int,
    *,
    features: Sequence[str | int] | None = None,
    ridge: Any = "noise",
    mean: Any = None,
) -> Regression:
    """The linear model of one column by others that the private covariance of a release gives.

    Formal guarantee: post-processing of the release, at no further cost; the same release gives the model of any
    target.

    Args:
        release: of any mechanism that gives a covariance, or a batch of releases.
        target: the column to predict, by name or number.
        features: columns to predict it by, names or numbers; all others by default.
        ridge: "noise": from the noise level that the release itself states (below). A number: added to each feature's
            variance, squared units of each. None or 0: none, least squares.
        mean: (d,), data units: for a release without a mean, which needs it unless it took moments about the public
            centre (the model then goes through that centre).

    Returns:
        `Regression`.

    The noise's own ridge. Least squares divide by the eigenvalues of the features' covariance, and fail where the
    noise decides on one of them. As in AdaSSP, the ridge makes up for what the smallest eigenvalue lacks against
    the noise matrix: max(0, edge/2 - max(0, smallest - edge)), edge that of the noise's spectrum; the true smallest
    eigenvalue is at least the noisy one less the edge. AdaSSP spends a third of its budget on the smallest eigenvalue;
    here it is that of the release itself. Both are taken with features in units in which each variance has noise of
    std 1. AdaSSP's ridge is at least the whole edge, for the worst direction; half of it, which shrinks less, is
    a choice of ours.

    Standard deviations. `noise_std`: that of the noise in the coefficients, about those that the rows' own moments
    would give with the same ridge, to first order in the noise (delta method). `standard_error`: with the sampling of
    rows, about the coefficients of the population, under a linear model with independent errors of one variance. Both
    leave the ridge's bias out. They are NaN where the first order is not to be trusted, namely where the ridge plus the
    smallest eigenvalue is below twice the noise's edge; for releases under `Bounds.spectrum`, whose noise
    is not independent between entries; and for those of too few measured entries (`diagonal`, `pace`).

    Raises:
        ValueError: for columns that the release has not, for releases without a covariance or the mean that is needed,
            or whose noise level is not known (give a number as ridge), and, where numbers are concrete, for features
            whose covariance is singular without ridge.

    Edge cases: a constant feature has coefficient 0. A covariance that is not PSD is projected first. A singular one
        without ridge, where it is traced, and an invalid release give NaN.

    References: Wang 2018 (arXiv 1803.02596), algorithm AdaSSP; Vu, Slavkovic 2009, for standard errors with noise.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.regression import regression
    >>> rows = jax.random.uniform(jax.random.key(1), (10_000, 2))
    >>> rows = rows.at[:, 1].set(0.25 + 0.5 * rows[:, 0])
    >>> found = regression(gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.box(0.0, 1.0)), target=1)
    >>> found.coefficients.round(1).tolist(), round(float(found.intercept), 2), found.features
    ([0.5], 0.25, ('x0',))
    """
    ridge = _noise.check_floor("ridge", ridge)
    covariance = _noise.covariance(release, "regression")
    center = _noise.centre(release, mean)
    y = _noise.column(release, target)
    x = tuple(_noise.column(release, f) for f in features) if features is not None else _others(release.d, y)
    if not x or y in x or len(set(x)) < len(x):
        raise ValueError(f"features must be different columns beside the target {target!r}, at least one, got {x}")

    def one(release: Release, covariance: jax.Array, center: jax.Array) -> Any:
        known = _stated(release)
        # Without a ridge of its own the level is needed; else it serves the standard deviations alone.
        std = (
            _noise.level(release, 'ridge="noise" (a number will do, too)')
            if ridge is None or known is not None
            else None
        )
        live = jnp.asarray(release.scale) != 0
        found = known if known is not None and known.joint else None
        return _solve(covariance, center, std, ridge, found, live, jnp.asarray(release.n, covariance.dtype), x, y)

    coefficients, intercept, residual, noise, total, added, definite = _noise.lanes(one, release, covariance, center)
    if not _checks.is_traced(definite) and not np.all(definite):
        raise ValueError('the covariance of the features is singular: regression needs ridge="noise" or a number > 0')
    names = column_names(release)
    chosen = tuple(names[j] for j in x)
    return Regression(coefficients, intercept, residual, noise, total, added, chosen, names[y])


def _others(d: int, y: int) -> tuple[int, ...]:
    return tuple(j for j in range(d) if j != y)


def _stated(release: Release) -> _noise.Statistics | None:
    """The statistics of a release, None where it has none."""
    try:
        return _noise.statistics(release, "regression")
    except ValueError:
        return None


@functools.partial(jax.jit, static_argnames=("x", "y"))
def _solve(
    covariance: jax.Array,
    center: jax.Array,
    std: Any,
    ridge: Any,
    found: Any,
    live: jax.Array,
    n: jax.Array,
    x: tuple[int, ...],
    y: int,
) -> Any:
    at = np.array(x)
    block, dtype = np.ix_(at, at), covariance.dtype
    alive = live[at]
    both = alive[:, None] & alive[None, :]
    unit = jnp.sqrt(_sizes(covariance)) if std is None else _noise.units(std)
    full = linalg.psd_project(covariance / (unit[:, None] * unit[None, :]))
    # Constant features: uncorrelated, and neither small nor large.
    here = jnp.where(both, full[block], 0.0)
    size = jnp.max(jnp.where(alive, jnp.diagonal(here), 0.0))
    here = here + jnp.diag(jnp.where(alive, 0.0, jnp.where(size > 0, size, 1.0)))
    edge = None if std is None else _noise.edge(std[block], unit[at], 1.0)
    smallest = jnp.linalg.eigvalsh(linalg.after(here, full[0, 0]), symmetrize_input=False)[0]
    if edge is not None and ridge is None:
        added = jnp.clip(1.5 * edge - smallest, 0.0, 0.5 * edge) * jnp.ones(len(x), dtype)
    else:
        added = jnp.asarray(ridge, dtype) / unit[at] ** 2
    lower, definite = linalg.try_cholesky(linalg.after(here + jnp.diag(added), smallest))
    left = jnp.min(jnp.diagonal(lower) ** 2 / (jnp.diagonal(here) + added))
    definite &= left > 8.0 * len(x) * jnp.finfo(dtype).eps
    right = jnp.where(alive, full[at, y], 0.0)
    solved = _solve_with(lower, right) / unit[at]
    beta = jnp.where(alive, solved, 0.0) * unit[y]
    raw = full * (unit[:, None] * unit[None, :])
    residual = raw[y, y] - 2.0 * jnp.dot(beta, raw[at, y]) + jnp.dot(beta, jnp.dot(raw[block], beta))
    residual = jnp.maximum(residual, 0.0)
    valid = jnp.all(jnp.isfinite(covariance)) & jnp.all(jnp.isfinite(center))
    intercept = center[y] - jnp.dot(beta, center[at])
    diagonal = added * unit[at] ** 2
    noise = total = jnp.full(len(x), jnp.nan, dtype)
    if found is not None and edge is not None:
        noise = jnp.where(smallest + jnp.min(added) >= 2.0 * edge, _noise_std(found, diagonal, alive, at, y), jnp.nan)
        inverse = _solve_with(lower, jnp.eye(len(x), dtype=dtype)) / unit[at][:, None] / unit[at][None, :]
        spread = jnp.matmul(inverse, jnp.matmul(jnp.where(both, raw[block], 0.0), inverse))
        freedom = jnp.maximum(n - len(x) - 1.0, 1.0)
        total = jnp.sqrt(noise**2 + residual * jnp.diagonal(spread) / freedom)
    values = (beta, intercept, residual, noise, total, diagonal)
    return *(jnp.where(definite & valid, v, jnp.nan) for v in values), definite | ~valid


def _sizes(covariance: jax.Array) -> jax.Array:
    """Variances, 1 where there is none."""
    variance = jnp.diagonal(covariance)
    return jnp.where(variance > 0, variance, 1.0)


def _solve_with(lower: jax.Array, right: jax.Array) -> jax.Array:
    """(L L^T)^-1 of a vector or matrix."""
    columns = right if right.ndim > 1 else right[:, None]
    inner = jax.lax.linalg.triangular_solve(lower, columns, left_side=True, lower=True)
    solved = jax.lax.linalg.triangular_solve(lower, inner, left_side=True, lower=True, transpose_a=True)
    return solved.reshape(right.shape)


def _noise_std(found: Any, ridge: jax.Array, alive: jax.Array, at: np.ndarray, y: int) -> jax.Array:
    """Of the coefficients of the covariance as measured, in data units."""
    both = alive[:, None] & alive[None, :]

    def coefficients(measured: jax.Array) -> jax.Array:
        block = jnp.where(both, measured[np.ix_(at, at)], 0.0)
        block = block + jnp.diag(jnp.where(alive, ridge, 1.0))
        unit = jnp.sqrt(jax.lax.stop_gradient(_sizes(block)))
        scaled = block / (unit[:, None] * unit[None, :])
        # What is indefinite gives NaN here, and is not resolved.
        lower = jnp.linalg.cholesky(scaled, symmetrize_input=False)
        return _solve_with(lower, jnp.where(alive, measured[at, y], 0.0) / unit) / unit

    return _noise.propagate(coefficients, found)
