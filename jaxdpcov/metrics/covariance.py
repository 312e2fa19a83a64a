"""Errors of an estimated covariance matrix: Frobenius, spectral, Mahalanobis, Stein, eigenspaces, correlations."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdpcov import linalg
from jaxdpcov.linalg.matrix import Array
from jaxdpcov.metrics._steps import norm, pair, stein_loss, whiten, worst_unless


def frobenius(estimate: Any, truth: Any) -> Array:
    """Frobenius norm of the difference, ||estimate - truth||_F, in the units of a covariance.

    >>> from jaxdpcov import metrics
    >>> float(metrics.frobenius([[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]))
    5.0
    """
    estimate, truth = pair(estimate, truth)
    return norm(estimate - truth)


def spectral(estimate: Any, truth: Any) -> Array:
    """Spectral norm of the difference, its largest |eigenvalue|, in the units of a covariance.

    The gradient is a subgradient where several eigenvalues share the largest size.

    >>> from jaxdpcov import metrics
    >>> float(metrics.spectral([[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]))
    4.0
    """
    estimate, truth = pair(estimate, truth)
    size = jnp.max(jnp.abs(jnp.linalg.eigvalsh(estimate - truth, symmetrize_input=False)), axis=-1)
    return jnp.where(size == 0, 0.0, size)  # the derivative of |0| is 1 to JAX


def mahalanobis(estimate: Any, truth: Any, floor: Any = None) -> Array:
    """Mahalanobis (affine-invariant, relative) error ||S^{-1/2} (S^ - S) S^{-1/2}||_F, S = truth, S^ = estimate.

    Args:
        estimate: (..., d, d), may be indefinite.
        truth: (..., d, d), positive definite unless `floor` is given.
        floor: None, or a number relative to the truth's largest eigenvalue: S^{-1/2} is then of S with its eigenvalues
            raised to at least floor * lambda_max(S) (the difference keeps S itself, so that the error of the truth
            is 0). 1e-6, say, where the truth is singular.

    Returns:
        The error (...), without units; ||S^{-1/2} S^ S^{-1/2} - I||_F where no floor acts; inf where the truth is
        not positive definite and no floor is given.

    >>> from jaxdpcov import metrics
    >>> float(metrics.mahalanobis([[3.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 4.0]]))
    2.0
    """
    estimate, truth = pair(estimate, truth)
    scale = truth
    if floor is not None:
        top = jnp.max(jnp.linalg.eigvalsh(truth, symmetrize_input=False), axis=-1)
        scale = linalg.psd_project(truth, floor=jnp.asarray(floor).astype(truth.dtype) * top)
    # ||S^{-1/2} E S^{-1/2}||_F = ||L^{-1} E L^{-T}||_F, as S^{-1/2} and L^{-1} differ by a rotation on the left.
    lower, ok = linalg.try_cholesky(scale)
    return worst_unless(norm(whiten(lower, estimate - truth)), ok, jnp.inf, estimate, truth)


def stein(estimate: Any, truth: Any) -> Array:
    """Stein's loss of the inverse: tr(P S) - log det(P S) - d with P = estimate^{-1}, S = truth.

    It measures the precision matrix that a user of the estimate would form; twice `kl` of centred Gaussians.

    Returns:
        The loss (...), >= 0 and without units; inf where either matrix is not positive definite.

    References: James and Stein 1961.

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.stein([[2.0]], [[1.0]])), 4)  # 1/2 - log(1/2) - 1
    0.1931
    """
    estimate, truth = pair(estimate, truth)
    return stein_loss(estimate, truth)[0]


def subspace_distance(estimate: Any, truth: Any, k: int) -> Array:
    """Distance of the leading `k`-dimensional eigenspaces: ||sin Theta||_F = ||P^ - P||_F / sqrt(2).

    Args:
        estimate, truth: (..., d, d).
        k: dimension of both eigenspaces, those of the k largest eigenvalues; static.

    Returns:
        The root of the sum of the squared sines of the k principal angles (...), in [0, sqrt(min(k, d - k))]. Not
        determined where the k-th and the next eigenvalue of either matrix are equal.

    References: Davis and Kahan 1970.

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.subspace_distance([[1.0, 0.0], [0.0, 2.0]], [[2.0, 0.0], [0.0, 1.0]], k=1)), 4)
    1.0
    """
    estimate, truth = pair(estimate, truth)
    return norm(linalg.top_projector(estimate, k) - linalg.top_projector(truth, k)) * float(np.sqrt(0.5))


def correlation_error(estimate: Any, truth: Any) -> Array:
    """Frobenius norm of the difference of the two correlation matrices; see `linalg.correlation`.

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.correlation_error([[4.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])), 4)
    0.7071
    """
    estimate, truth = pair(estimate, truth)
    return norm(linalg.correlation(estimate) - linalg.correlation(truth))
