"""Principal components of a private covariance: components, explained variance, projection; post-processing alone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import linalg
from jaxdpcov._records import record
from jaxdpcov.release import Release


@record()
class PCA:
    """Principal components of a release; leading axes of a batch of releases come first.

    components: (k, d) orthonormal rows, largest variance first; the largest entry of each is positive.
    explained_variance: (k,) variances along them, squared data units (without units for a correlation matrix), >= 0.
    explained_variance_ratio: (k,) shares of the total variance; 0 where there is none.
    center, scale: (d,) what `transform` subtracts and then divides by, data units. The center is the private mean, or
        the public centre where the release has no mean; the scale is 1, or the private standard deviations.
    noise_edge: () the largest eigenvalue that noise alone would show, units of `explained_variance`: what lies below
        cannot be told from none. None where the release's noise does not tell.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.pca import pca
    >>> rows = jax.random.normal(jax.random.key(1), (1000, 3))
    >>> found = pca(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.l2(4.0)), k=2)
    >>> coordinates = found.transform(rows)
    >>> coordinates.shape, found.inverse_transform(coordinates).shape, found.projector().shape
    ((1000, 2), (1000, 3), (3, 3))
    """

    components: Any
    explained_variance: Any
    explained_variance_ratio: Any
    center: Any
    scale: Any
    noise_edge: Any

    def transform(self, rows: Any) -> jax.Array:
        """Coordinates (n, k) of rows (n, d) along the components. As sensitive as the rows: do not publish them."""
        rows = jnp.asarray(rows, self.components.dtype)
        rows = rows.reshape((1,) * (self.components.ndim - rows.ndim) + rows.shape)
        return jnp.matmul((rows - self.center[..., None, :]) / self.scale[..., None, :], self.components.mT)

    def inverse_transform(self, coordinates: Any) -> jax.Array:
        """The rows (n, d), data units, at given coordinates (n, k)."""
        coordinates = jnp.asarray(coordinates, self.components.dtype)
        return self.center[..., None, :] + jnp.matmul(coordinates, self.components) * self.scale[..., None, :]

    def projector(self) -> jax.Array:
        """The orthogonal projector (d, d) onto the span of the components."""
        return linalg.symmetrize(jnp.matmul(self.components.mT, self.components, precision="highest"))


def pca(release: Release, k: int | None = None, *, correlation: bool = False) -> PCA:
    """Principal components of the private covariance (or correlation) of a release.

    Formal guarantee: post-processing of the release, at no further cost. Which rows are then projected, and who sees
    the result, is outside of it: `PCA.transform` of sensitive rows is sensitive.

    Args:
        release: of any mechanism that gives a covariance, or a batch of releases.
        k: number of components, 1 <= k <= d, static; all by default.
        correlation: take the correlation matrix, so that no column counts more for its unit. A column whose private
            variance is not positive is then a component of its own.

    Returns:
        `PCA`.

    Edge cases: negative eigenvalues of a noisy covariance count as 0 variance. Components within a tied or nearly
        tied group are determined by the noise alone, and their derivatives are not finite. An invalid release gives
        NaN.

    References: Chaudhuri, Sarwate, Sinha 2013 (arXiv 1207.2812) and Dwork, Talwar, Thakurta, Zhang 2014, for private
        principal components from a noisy covariance.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.pca import pca
    >>> rows = jax.random.normal(jax.random.key(1), (10_000, 3)) @ jnp.diag(jnp.array([3.0, 1.0, 1.0]))
    >>> found = pca(gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.l2(10.0)), k=1)
    >>> abs(found.components).round(1).tolist(), found.transform(rows).shape
    ([[1.0, 0.0, 0.0]], (10000, 1))
    """
    if release.covariance is None:
        raise ValueError(f"{release.mechanism} releases a mean and no covariance, which pca needs")
    d = release.d
    if k is None:
        k = d
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= d:
        raise ValueError(f"k must be a whole number with 1 <= k <= d = {d}, got {k!r}")
    covariance = linalg.symmetrize(release.covariance)
    std = jnp.sqrt(jnp.maximum(jnp.diagonal(covariance, axis1=-2, axis2=-1), 0.0))
    scale = jnp.where(std > 0.0, std, jnp.ones_like(std)) if correlation else jnp.ones_like(std)
    matrix = linalg.correlation(covariance) if correlation else covariance
    finite = jnp.all(jnp.isfinite(matrix), axis=(-2, -1), keepdims=True)
    values, vectors = jnp.linalg.eigh(jnp.where(finite, matrix, jnp.zeros_like(matrix)), symmetrize_input=False)
    components = jnp.flip(vectors, axis=-1).mT[..., :k, :]
    components = jnp.where(finite, components * _sign(components), jnp.nan)
    variances = jnp.where(finite[..., 0], jnp.maximum(jnp.flip(values, axis=-1), 0.0), jnp.nan)
    total = jnp.sum(variances, axis=-1, keepdims=True)
    ratio = variances / jnp.where(total > 0.0, total, jnp.ones_like(total))
    center = release.center if release.mean is None else release.mean
    edge = _noise_edge(release, scale)
    return PCA(components, variances[..., :k], ratio[..., :k], jnp.asarray(center), scale, edge)


def _sign(components: jax.Array) -> jax.Array:
    """The sign of each component's largest entry, the first of them."""
    largest = jnp.argmax(jnp.abs(components), axis=-1, keepdims=True)
    return jnp.where(jnp.take_along_axis(components, largest, axis=-1) < 0.0, -1.0, 1.0).astype(components.dtype)


def _noise_edge(release: Release, scale: jax.Array) -> Any:
    """The edge of the noise's spectrum in the units of the matrix, where the release measured a whole matrix."""
    found = release.measured.get("second_moment", release.measured.get("covariance"))
    if found is None or jnp.shape(found.std) != jnp.shape(release.covariance):
        return None
    unit = jnp.asarray(release.scale) / scale
    return linalg.noise_floor(found.std * unit[..., :, None] * unit[..., None, :], release.d, fraction=1.0)
