"""Whitening by a private covariance, and Mahalanobis distances: post-processing alone, floored at the known noise."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, linalg
from jaxdpcov._records import record
from jaxdpcov.apps import _noise
from jaxdpcov.linalg import eigenvalues
from jaxdpcov.release import Release


@record()
class Whitening:
    """A linear map after which rows have a covariance near the identity; leading axes of a batch come first.

    matrix: (d, d), W with W S W^T = I for the floored covariance S, per data unit; zero rows and columns where a column
        is constant (and then I has as many zeros on its diagonal).
    inverse_matrix: (d, d), W^-1, data units.
    mean: (d,) what `transform` subtracts, data units.
    covariance: (d, d), S, squared data units.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.whitening import whitening
    >>> rows = jax.random.normal(jax.random.key(1), (1000, 3))
    >>> found = whitening(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.l2(4.0)))
    >>> white = found.transform(rows)
    >>> white.shape, bool(abs(found.inverse(white) - rows).max() < 1e-4)
    ((1000, 3), True)
    """

    matrix: Any
    inverse_matrix: Any
    mean: Any
    covariance: Any

    def transform(self, rows: Any) -> jax.Array:
        """Rows (n, d), data units, whitened: (n, d). As sensitive as the rows: do not publish them."""
        rows = _lined_up(rows, self.matrix)
        return jnp.matmul(rows - self.mean[..., None, :], self.matrix.mT, precision="highest")

    def inverse(self, rows: Any) -> jax.Array:
        """The rows (n, d), data units, that `transform` takes to these; constant columns come back as their mean."""
        rows = _lined_up(rows, self.matrix)
        return self.mean[..., None, :] + jnp.matmul(rows, self.inverse_matrix.mT, precision="highest")


def whitening(release: Release, method: str = "zca", *, floor: Any = "noise", mean: Any = None) -> Whitening:
    """The whitening map of the private covariance of a release.

    Formal guarantee: post-processing of the release, at no further cost. `Whitening.transform` of sensitive rows is
    sensitive.

    Args:
        release: of any mechanism that gives a covariance, or a batch of releases.
        method: "zca", the symmetric root S^(-1/2), which moves rows least; "pca", principal components scaled to
            variance 1, largest first; "cholesky", L^-1 of S = L L^T: row j depends on the first j columns only.
        floor: eigenvalues below it are raised to it before anything is divided by them. "noise": from the noise
            level that the release itself states (below). A number: in squared data units; None or 0: none.
        mean: (d,), data units: for a release without a mean, which needs it unless it took moments about the public
            centre.

    Returns:
        `Whitening`.

    The noise's own floor. Eigenvalues of a covariance S below the largest one of the noise, its edge, cannot be told
    from 0, and an eigenvalue near 0 ruins an inverse. With columns in units u_j in which each variance has noise of
    std 1, so that no column decides for its unit, the edge is about 2 max_j sqrt(sum_k s_jk^2), s the noise's std
    after centring; the floor is a quarter of it (`linalg.noise_floor` says why a quarter) on diag(u)^-1 S diag(u)^-1.

    Raises:
        ValueError: for releases without a covariance, or without the mean that is needed, or whose noise level is not
            known (give a number as floor), and, where numbers are concrete, for a singular covariance without floor.

    Edge cases: constant columns (lower = upper) have variance 0 and stay out. A covariance that is singular without a
        floor, where it is traced, and an invalid release give NaN. Derivatives of "pca" are those of eigenvectors: not
        those of the exact map at ties.

    References: Kessy, Lewin, Strimmer 2018 (arXiv 1512.00809), whose "cholesky" map is the upper triangular one;
        Bandeira and van Handel 2016, for the edge.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.whitening import whitening
    >>> rows = jax.random.normal(jax.random.key(1), (10_000, 2)) @ jax.numpy.diag(jax.numpy.array([2.0, 0.5]))
    >>> found = whitening(gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.l2(8.0)))
    >>> abs(found.matrix.diagonal()).round(1).tolist()
    [0.5, 2.0]
    """
    _checks.choice("method", method, ("zca", "pca", "cholesky"))
    floor = _noise.check_floor("floor", floor)
    covariance = _noise.covariance(release, "whitening")
    center = _noise.centre(release, mean)

    def one(release: Release, covariance: jax.Array) -> Any:
        std = _noise.level(release, 'floor="noise" (a number will do, too)') if floor is None else None
        return _map(covariance, std, floor, jnp.asarray(release.scale) != 0, method)

    matrix, inverse, used, definite = _noise.lanes(one, release, covariance)
    if not _checks.is_traced(definite) and not np.all(definite):
        raise ValueError(
            'the covariance is singular: whitening needs floor="noise" or a positive number in squared data units'
        )
    return Whitening(matrix, inverse, center, used)


def mahalanobis(release: Release, rows: Any, *, floor: Any = "noise", mean: Any = None) -> jax.Array:
    """Squared Mahalanobis distances (n,) of rows (n, d) from the private mean: (x - m)^T S^-1 (x - m), no units.

    Formal guarantee: post-processing of the release; an exact function of the rows given, so for public or test rows
    only: distances of sensitive rows are sensitive.

    Args, Raises, Edge cases: as `whitening`; constant columns do not count.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.whitening import mahalanobis
    >>> rows = jax.random.normal(jax.random.key(1), (10_000, 2))
    >>> release = gaussian(jax.random.key(0), rows, ZCDP(rho=10.0), Bounds.l2(5.0))
    >>> (mahalanobis(release, [[0.0, 0.0], [3.0, 4.0]]) / 25.0).round(1).tolist()
    [0.0, 1.0]
    """
    white = whitening(release, "cholesky", floor=floor, mean=mean).transform(rows)
    return jnp.sum(white * white, axis=-1)


@functools.partial(jax.jit, static_argnames="method")
def _map(covariance: jax.Array, std: Any, floor: Any, live: jax.Array, method: str) -> Any:
    """W, its inverse, the floored covariance, and whether it was definite (an invalid release is, with NaN)."""
    used = _noise.raised(covariance, std, floor, live)
    valid = jnp.all(jnp.isfinite(used))
    on = live[:, None] & live[None, :]
    # Constant columns get the size of the others, so that they are no cause of trouble, and are taken out again.
    size = jnp.max(jnp.diagonal(used))
    size = jnp.where(size > 0, size, 1.0)
    filled = used + jnp.diag(jnp.where(live, 0.0, size))
    lower, definite = linalg.try_cholesky(filled)
    # What is left of a column's variance after those before it; rounding alone would pass for a variance.
    left = jnp.min(jnp.diagonal(lower) ** 2 / jnp.diagonal(filled))
    definite &= left > 8.0 * live.shape[0] * jnp.finfo(used.dtype).eps
    if method == "cholesky":
        inverse = lower
        matrix = jax.lax.linalg.triangular_solve(
            lower, jnp.eye(live.shape[0], dtype=used.dtype), left_side=True, lower=True
        )
    elif method == "zca":
        filled = jnp.where(definite, linalg.after(filled, definite), jnp.eye(live.shape[0], dtype=used.dtype))
        inverse = linalg.sqrtm(filled)
        matrix = linalg.inv_sqrtm(linalg.after(filled, inverse))
    else:
        values, vectors = eigenvalues.eigh_masked(linalg.after(used, definite), live)
        here = eigenvalues.of_columns(live) & (values > 0)
        root = jnp.sqrt(jnp.where(here, values, 1.0))
        inverse = jnp.flip(jnp.where(here, vectors * root[None, :], 0.0), axis=1)
        matrix = jnp.flip(jnp.where(here, vectors / root[None, :], 0.0), axis=1).T
        largest = jnp.take_along_axis(matrix, jnp.argmax(jnp.abs(matrix), axis=1, keepdims=True), axis=1)
        sign = jnp.where(largest < 0, -1.0, 1.0).astype(used.dtype)
        matrix, inverse = matrix * sign, inverse * sign.T
    if method != "pca":
        matrix, inverse = jnp.where(on, matrix, 0.0), jnp.where(on, inverse, 0.0)
    bad = ~(definite & valid)
    return *(jnp.where(bad, jnp.nan, x) for x in (matrix, inverse)), used, definite | ~valid


def _lined_up(rows: Any, matrix: Any) -> jax.Array:
    """Rows as floats, with leading axes of 1 for those of a batch of maps."""
    rows = jnp.asarray(rows, matrix.dtype)
    if rows.ndim < 2 or rows.shape[-1] != matrix.shape[-1]:
        raise ValueError(f"rows must be (n, {matrix.shape[-1]}), got shape {rows.shape}")
    return rows.reshape((1,) * (matrix.ndim - rows.ndim) + rows.shape)
