"""Synthetic rows from a release: Gaussian, truncated to the public bounds, or a Gaussian copula of bounded columns."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, linalg
from jaxdpcov.apps import _noise
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.distributions import Gaussian
from jaxdpcov.release import Release

#: Terms of the Hermite series that tell the correlation of two transformed normal columns, and points of its integrals.
_ORDER, _POINTS = 24, 4000


def synthetic(release: Release, key: Any, n: int, *, method: str = "copula", mean: Any = None, tries: int = 100) -> Any:
    """Synthetic rows (n, d), data units, with about the mean and covariance of a release.

    Formal guarantee: post-processing of the release, at no further cost, whatever n and however often.

    Args:
        release: one release with a covariance, or for "gaussian" and "truncated" a batch: (..., n, d).
        key: one PRNG key, used up. One key gives one table.
        n: number of rows, static.
        method: "gaussian": of `release.distribution`, unbounded. "truncated": the same, of which only rows within the
            public bounds count. "copula": columns within their bounds with the released means and variances,
            coupled so that their correlations are the released ones.
        mean: (d,), data units: for a release without a mean.
        tries: of "truncated": draws for each row, static. A row that none of them puts within the bounds is the last
            one, moved to the nearest point within them.

    Returns:
        "gaussian", "truncated": a JAX array. "copula": a NumPy array, made on the host.

    Truncation takes off what lies outside, so that means move inward and variances shrink: by much where a column
    reaches its bounds. The copula does not: column j is F_j^-1(Phi(z_j)) of normal z. F_j is the Beta law on
    [lower, upper] of the released mean and variance, the law of 0/1 columns being their limit; what a release does
    not know is the shape of a column. The correlations of z are solved for, pair by pair, so that those of the columns
    are the released ones, by Mehler's series: corr = sum_k a_ik a_jk r^k, a_jk the Hermite coefficients of F_j^-1(Phi).
    Where no r reaches so far the nearest is taken, and the nearest correlation matrix if they make none.

    Raises:
        ValueError: for releases without a covariance or the mean that is needed; for "truncated" and "copula" without
            bounds of the rows (`Bounds.spectrum` bounds the population); for "copula" of a batch or an invalid
            release, or under a trace.

    Edge cases: constant columns are constant. A mean outside of the bounds counts as the nearest point within; a
        variance that is too large for bounds and mean as the largest that there is (values at the two ends). Under l2
        bounds the copula's columns are each within center +- radius, which the ball does not follow from. Indicator
        columns of one category are each 0 or 1 (with the copula) and need not add up to 1.

    References: Cario, Nelson 1997 (NORTA), for the copula with given correlations.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.sampling import synthetic
    >>> rows = jax.random.uniform(jax.random.key(1), (2000, 2))
    >>> release = gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.box(0.0, 1.0))
    >>> made = synthetic(release, jax.random.key(2), 5000)
    >>> made.shape, bool(made.min() >= 0.0 and made.max() <= 1.0)
    ((5000, 2), True)
    """
    _checks.choice("method", method, ("gaussian", "truncated", "copula"))
    for name, count in (("n", n), ("tries", tries)):
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise ValueError(f"{name} must be a whole number >= 1, got {count!r}")
    key = _checks.typed_key(key)
    covariance, center = _noise.covariance(release, "a synthetic table"), _noise.centre(release, mean)
    if method != "gaussian" and not isinstance(release.bounds, (BoxBounds, L2Bounds)):
        raise ValueError(f'method="{method}" needs bounds of the rows (Bounds.box or Bounds.l2), got {release.bounds}')
    if method == "copula":
        _need_single(release)
        return _copula(release, key, n, np.asarray(covariance), np.asarray(center))
    lanes = np.ndim(release.status)
    if method == "gaussian":
        law = release.distribution if mean is None and release.mean is not None else Gaussian(center, covariance)
        assert isinstance(law, Gaussian)
        return jnp.moveaxis(law.sample(key, (n,)), 0, lanes)
    keys = key if not lanes else jax.random.split(key, np.shape(release.status))

    def one(release: Release, key: Any, covariance: jax.Array, center: jax.Array) -> jax.Array:
        ball = isinstance(release.bounds, L2Bounds)
        middle, reach = jnp.asarray(release.center), jnp.asarray(release.scale)
        if ball:
            reach = jnp.broadcast_to(jnp.asarray(release.bounds.radius, middle.dtype), middle.shape)
        else:
            lower, upper = (jnp.broadcast_to(jnp.asarray(end, middle.dtype), middle.shape)
                            for end in (release.bounds.lower, release.bounds.upper))  # fmt: skip
            reach = 0.5 * upper - 0.5 * lower
        return _truncated(key, covariance, center, middle, reach, n, int(tries), ball)

    return _noise.lanes(one, release, keys, covariance, center)


def _need_single(release: Release) -> None:
    """ValueError unless this is one release, of numbers."""
    if np.ndim(release.status):
        lane = "jax.tree.map(lambda leaf: leaf[i], releases)"
        raise ValueError(f"expected one release, got a batch of shape {np.shape(release.status)}: take {lane}")
    if _checks.is_traced(release):
        raise ValueError('method="copula" works on the host: call it outside of jit, vmap and grad')


@functools.partial(jax.jit, static_argnames=("n", "tries", "ball"))
def _truncated(
    key: Any,
    covariance: jax.Array,
    mean: jax.Array,
    middle: jax.Array,
    reach: jax.Array,
    n: int,
    tries: int,
    ball: bool,
) -> jax.Array:
    """Rows drawn anew until they lie within the bounds, all together, at most `tries` times."""
    live = reach > 0
    size = jnp.where(live, reach, 1.0)
    root = linalg.sqrtm(jnp.where(live[:, None] & live[None, :], covariance, 0.0))

    def draw(attempt: Any) -> jax.Array:
        # The key is used up by the folds alone.
        z = Gaussian(jnp.zeros_like(mean), jnp.eye(mean.shape[0], dtype=mean.dtype))
        moved = jnp.matmul(z.sample(jax.random.fold_in(key, attempt), (n,)), root, precision="highest")
        return ((mean - middle)[None, :] + moved) / size[None, :]

    def outside(u: jax.Array) -> jax.Array:
        if ball:
            return jnp.sum(u * u, axis=1) > 1.0
        return jnp.any((jnp.abs(u) > 1.0) & live[None, :], axis=1)

    def again(state: Any) -> Any:
        attempt, u, out = state
        u = jnp.where(out[:, None], draw(attempt), u)
        return attempt + 1, u, outside(u)

    first = draw(0)
    _, u, _ = jax.lax.while_loop(
        lambda state: (state[0] < tries) & jnp.any(state[2]), again, (1, first, outside(first))
    )
    if ball:
        u = u / jnp.maximum(1.0, jnp.sqrt(jnp.sum(u * u, axis=1)))[:, None]
    else:
        u = jnp.where(live[None, :], jnp.clip(u, -1.0, 1.0), jnp.where(jnp.isnan(u), jnp.nan, 0.0))
    return middle[None, :] + u * jnp.where(live, reach, 0.0)[None, :]


def _copula(release: Release, key: Any, n: int, covariance: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Normal columns, each mapped to its own law within its bounds, on the host."""
    from scipy import special

    if not (np.all(np.isfinite(covariance)) and np.all(np.isfinite(mean))):
        raise ValueError(f"this release of {release.mechanism} is invalid: its mean or covariance is NaN")
    d, dtype = release.d, covariance.dtype
    lower, upper = _box(release)
    laws = [_law(mean[j], covariance[j, j], lower[j], upper[j]) for j in range(d)]
    points = (np.arange(_POINTS) + 0.5) / _POINTS
    series = _hermite(np.stack([_quantile(law, points) for law in laws]), special.ndtri(points))
    latent = _latent(np.asarray(linalg.correlation(jnp.asarray(covariance, float)), float), series)
    z = Gaussian(jnp.zeros(d, dtype), jnp.asarray(latent, dtype)).sample(key, (n,))
    u = special.ndtr(np.asarray(z, float))
    table = np.stack([_quantile(law, u[:, j]) for j, law in enumerate(laws)], axis=1)
    # Rounding, not the law, decides beyond the ends.
    return np.clip(lower + (upper - lower) * table, lower, upper).astype(dtype)


def _box(release: Release) -> tuple[np.ndarray, np.ndarray]:
    """Ends (d,) of each column's interval, data units."""
    bounds, d = release.bounds, release.d
    if isinstance(bounds, L2Bounds):
        center, radius = np.asarray(release.center, float), np.asarray(bounds.radius, float)
        return center - radius, center + radius
    return tuple(np.broadcast_to(np.asarray(end, float), (d,)) for end in (bounds.lower, bounds.upper))  # type: ignore[return-value]


def _law(mean: float, variance: float, lower: float, upper: float) -> tuple[float, float]:
    """(mean, concentration a + b) of the Beta law on [0, 1]: 0 for two values at the ends, infinite for one value."""
    width = upper - lower
    if width <= 0:
        return 0.5, math.inf
    m = min(max((mean - lower) / width, 0.0), 1.0)
    v = max(variance / width**2, 0.0)
    most = m * (1.0 - m)
    if v <= 1e-12 or most <= 1e-12:
        return m, math.inf
    concentration = most / v - 1.0
    # Below that a Beta variable is at an end but for a chance of a hundredth.
    return m, 0.0 if concentration < 2e-3 else concentration


def _quantile(law: tuple[float, float], u: np.ndarray) -> np.ndarray:
    from scipy import special

    m, concentration = law
    if math.isinf(concentration):
        return np.full_like(u, m)
    if concentration == 0.0:
        return (u > 1.0 - m).astype(u.dtype)
    return special.betaincinv(m * concentration, (1.0 - m) * concentration, u)


def _hermite(values: np.ndarray, z: np.ndarray) -> np.ndarray:
    """(d, order) coefficients of standardised columns in the orthonormal Hermite polynomials, degree 1 first."""
    centred = values - values.mean(axis=1, keepdims=True)
    std = np.sqrt(np.mean(centred**2, axis=1, keepdims=True))
    unit = centred / np.where(std > 0, std, 1.0)
    before, now = np.zeros_like(z), np.ones_like(z)
    found = []
    for k in range(1, _ORDER + 1):
        before, now = now, (z * now - math.sqrt(k - 1) * before) / math.sqrt(k)
        found.append(np.mean(unit * now, axis=1))
    return np.stack(found, axis=1)


def _latent(wanted: np.ndarray, series: np.ndarray) -> np.ndarray:
    """The correlations of normal columns that give their images the wanted ones, by bisection; a PSD matrix."""
    products = series[:, None, :] * series[None, :, :]
    low, high = -np.ones_like(wanted), np.ones_like(wanted)
    for _ in range(50):
        middle = 0.5 * (low + high)
        reached = np.zeros_like(middle)
        for k in range(_ORDER - 1, -1, -1):
            reached = (reached + products[:, :, k]) * middle
        above = reached > wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    latent = 0.5 * (low + high)
    # A column that does not vary goes with none.
    flat = np.all(series == 0, axis=1)
    latent = np.where(flat[:, None] | flat[None, :], 0.0, 0.5 * (latent + latent.T))
    np.fill_diagonal(latent, 1.0)
    if np.linalg.eigvalsh(latent)[0] < 0:
        latent = np.asarray(linalg.nearest_correlation(jnp.asarray(latent))[0], float)
    return latent
