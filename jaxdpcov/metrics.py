"""Errors of an estimated covariance against the true one, and distances between the Gaussians that they define.

Every function takes `(estimate, truth)`, matrices (..., d, d) of which the symmetric part counts, batched over leading
axes that broadcast, and returns numbers (...). All run under jit, vmap and grad; a distance that vanishes where the
two agree has gradient 0 there. A non-finite entry gives NaN. A matrix that is not positive definite where a formula
needs it gives the worst value of the metric (inf, or 1 for `hellinger`) with gradient 0: an average over a study shows
it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import linalg
from jaxdpcov.linalg.matrix import Array, matmul


def frobenius(estimate: Any, truth: Any) -> Array:
    """Frobenius norm of the difference, ||estimate - truth||_F, in the units of a covariance.

    >>> from jaxdpcov import metrics
    >>> float(metrics.frobenius([[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]))
    5.0
    """
    estimate, truth = _pair(estimate, truth)
    return _norm(estimate - truth)


def spectral(estimate: Any, truth: Any) -> Array:
    """Spectral norm of the difference, its largest |eigenvalue|, in the units of a covariance.

    The gradient is a subgradient where several eigenvalues share the largest size.

    >>> from jaxdpcov import metrics
    >>> float(metrics.spectral([[3.0, 0.0], [0.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]]))
    4.0
    """
    estimate, truth = _pair(estimate, truth)
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
    estimate, truth = _pair(estimate, truth)
    scale = truth
    if floor is not None:
        top = jnp.max(jnp.linalg.eigvalsh(truth, symmetrize_input=False), axis=-1)
        scale = linalg.psd_project(truth, floor=jnp.asarray(floor).astype(truth.dtype) * top)
    # ||S^{-1/2} E S^{-1/2}||_F = ||L^{-1} E L^{-T}||_F, as S^{-1/2} and L^{-1} differ by a rotation on the left.
    lower, ok = linalg.try_cholesky(scale)
    return _worst(_norm(_whiten(lower, estimate - truth)), ok, jnp.inf, estimate, truth)


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
    estimate, truth = _pair(estimate, truth)
    return _stein(estimate, truth)[0]


def kl(estimate: Any, truth: Any, estimate_mean: Any = None, truth_mean: Any = None) -> Array:
    """Kullback-Leibler divergence KL(N(m, S) || N(m^, S^)) of the truth from the estimate, in nats.

    The direction is that of maximum likelihood, the loss of coding data of the truth by the estimate; swap the
    arguments for the other one.

    Args:
        estimate, truth: covariances S^ and S (..., d, d).
        estimate_mean, truth_mean: means m^ and m (..., d), both or neither (then the Gaussians are centred).

    Returns:
        The divergence (...); inf where either covariance is not positive definite.

    >>> from jaxdpcov import metrics
    >>> float(metrics.kl([[1.0]], [[1.0]], [2.0], [0.0]))
    2.0
    """
    estimate, truth = _pair(estimate, truth)
    loss, lower, ok = _stein(estimate, truth)
    shift = _shift(estimate_mean, truth_mean, lower)
    return 0.5 * loss if shift is None else jnp.where(ok, 0.5 * (loss + _mahalanobis_squared(lower, shift)), loss)


def hellinger(estimate: Any, truth: Any, estimate_mean: Any = None, truth_mean: Any = None) -> Array:
    """Hellinger distance of N(m^, S^) and N(m, S): sqrt(1 - integral sqrt(p q)), in [0, 1].

    Args:
        estimate, truth: covariances (..., d, d).
        estimate_mean, truth_mean: means (..., d), both or neither (then the Gaussians are centred).

    Returns:
        The distance (...), with relative precision also near 0; 1 where a covariance is not positive definite. (Two
        Gaussians that are singular in the same direction have a smaller one: leave constant columns out.)

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.hellinger([[4.0]], [[1.0]])), 4)  # sqrt(1 - sqrt(2 * 2 / 5))
    0.3249
    """
    estimate, truth = _pair(estimate, truth)
    lower, ok = linalg.try_cholesky(0.5 * estimate + 0.5 * truth)
    # With m_i the eigenvalues of S^{-1} S^, the u_i = (m_i - 1)/(m_i + 1) are those of (S + S^)^{-1/2} (S^ - S)
    # (S + S^)^{-1/2}, and 4 m/(1 + m)^2 = 1 - u^2: nothing cancels as the two come together.
    u = jnp.linalg.eigvalsh(_whiten(lower, 0.5 * estimate - 0.5 * truth), symmetrize_input=False)
    ok &= jnp.all(jnp.abs(u) < 1, axis=-1)
    log_affinity = 0.25 * jnp.sum(jnp.log1p(-(jnp.where(ok[..., None], u, 0.0) ** 2)), axis=-1)
    shift = _shift(estimate_mean, truth_mean, lower)
    if shift is not None:
        log_affinity = log_affinity - 0.125 * _mahalanobis_squared(lower, shift)
    return _worst(_root(-jnp.expm1(log_affinity)), ok, 1.0, estimate, truth)


def bures_wasserstein(estimate: Any, truth: Any, estimate_mean: Any = None, truth_mean: Any = None) -> Array:
    """2-Wasserstein distance of N(m^, S^) and N(m, S), in data units: for centred ones the Bures distance.

    sqrt(|m^ - m|^2 + tr S^ + tr S - 2 tr (S^{1/2} S^ S^{1/2})^{1/2}), computed as min ||S^^{1/2} - S^{1/2} Q||_F over
    rotations Q, which loses no digits where the two are near.

    Args:
        estimate, truth: covariances (..., d, d), PSD, singular or not; of an indefinite one the PSD part counts.
        estimate_mean, truth_mean: means (..., d), both or neither (then the Gaussians are centred).

    Returns:
        The distance (...). Its gradient in a singular covariance is infinite along the null space; 0 is given there.

    References: Bhatia, Jain, Lim 2019, "On the Bures-Wasserstein distance between positive definite matrices".

    >>> from jaxdpcov import metrics
    >>> float(metrics.bures_wasserstein([[9.0, 0.0], [0.0, 0.0]], [[4.0, 0.0], [0.0, 0.0]]))
    1.0
    """
    estimate, truth = _pair(estimate, truth)
    root = linalg.sqrtm(estimate)
    other = linalg.sqrtm(linalg.after(truth, root))
    # At the minimum the derivative in Q vanishes (envelope theorem), so the rotation counts as a constant.
    product = jax.lax.stop_gradient(matmul(other, root))
    left, _, right = jnp.linalg.svd(jnp.where(jnp.isfinite(product), product, 0.0), full_matrices=False)
    apart = root - matmul(other, matmul(left, right))
    same = jnp.all(estimate == truth, axis=(-2, -1), keepdims=True)
    apart = jnp.where(same, 0.0, apart)
    shift = _shift(estimate_mean, truth_mean, apart)
    if shift is not None:
        apart = jnp.concatenate([apart, shift[..., None, :]], axis=-2)
    return _norm(apart)


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
    estimate, truth = _pair(estimate, truth)
    return _norm(linalg.top_projector(estimate, k) - linalg.top_projector(truth, k)) * float(np.sqrt(0.5))


def correlation_error(estimate: Any, truth: Any) -> Array:
    """Frobenius norm of the difference of the two correlation matrices; see `linalg.correlation`.

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.correlation_error([[4.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]])), 4)
    0.7071
    """
    estimate, truth = _pair(estimate, truth)
    return _norm(linalg.correlation(estimate) - linalg.correlation(truth))


def _pair(estimate: Any, truth: Any) -> tuple[Array, Array]:
    """Symmetric parts of both matrices at one dtype and one shape."""
    estimate, truth = linalg.symmetrize(estimate), linalg.symmetrize(truth)
    if estimate.shape[-1] != truth.shape[-1]:
        raise ValueError(f"estimate and truth must have one size, got shapes {estimate.shape} and {truth.shape}")
    dtype = np.promote_types(estimate.dtype, truth.dtype)
    shape = np.broadcast_shapes(estimate.shape, truth.shape)
    return jnp.broadcast_to(estimate.astype(dtype), shape), jnp.broadcast_to(truth.astype(dtype), shape)


def _shift(estimate_mean: Any, truth_mean: Any, beside: Array) -> Array | None:
    """Difference of the means (..., d) in the dtype and batch shape of a matrix `beside`; None when there are none."""
    if (estimate_mean is None) != (truth_mean is None):
        raise ValueError("give estimate_mean and truth_mean both, or neither")
    if estimate_mean is None:
        return None
    shape = beside.shape[:-1]
    first, second = (jnp.asarray(mean).astype(beside.dtype) for mean in (estimate_mean, truth_mean))
    return jnp.broadcast_to(first, shape) - jnp.broadcast_to(second, shape)


def _root(x: Array) -> Array:
    """sqrt with derivative 0 at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), jnp.where(jnp.isnan(x), x, 0.0))


def _norm(x: Array) -> Array:
    """Frobenius norm over the last two axes at any scale, with derivative 0 at 0."""
    top = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=(-2, -1)))
    top = jnp.where(top == 0, 1.0, top)
    return top * _root(jnp.sum((x / top[..., None, None]) ** 2, axis=(-2, -1)))


def _solve(lower: Array, right: Array) -> Array:
    return jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True)


def _whiten(lower: Array, middle: Array) -> Array:
    """L^{-1} M L^{-T}, symmetric."""
    return linalg.symmetrize(_solve(lower, _solve(lower, middle).mT))


def _mahalanobis_squared(lower: Array, shift: Array) -> Array:
    return jnp.sum(_solve(lower, shift[..., None]) ** 2, axis=(-2, -1))


def _stein(estimate: Array, truth: Array) -> tuple[Array, Array, Array]:
    """(Stein's loss of the inverse, Cholesky factor C of the estimate, whether both are positive definite).

    With truth = L L^T and K = C^{-1} L (lower triangular), the loss is ||K||_F^2 - 2 sum log K_ii - d: the squares
    below the diagonal, and K_ii^2 - 1 - 2 log K_ii = t^2 + 2 (t - log(1 + t)) with t = (L_ii - C_ii)/C_ii. Every term
    is >= 0, so that nothing cancels but in the last bracket, of the size of t^2.
    """
    outer, first = linalg.try_cholesky(estimate)
    inner, second = linalg.try_cholesky(linalg.after(truth, first))
    ok = first & second
    below = jnp.sum(jnp.tril(_solve(outer, inner), -1) ** 2, axis=(-2, -1))
    c, ell = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (outer, inner))
    t = (ell - c) / c
    loss = below + jnp.sum(t * t + 2.0 * (t - jnp.log1p(t)), axis=-1)
    return _worst(loss, ok, jnp.inf, estimate, truth), outer, ok


def _worst(value: Array, ok: Array, worst: float, *matrices: Array) -> Array:
    """`value` where `ok`, else the `worst` value, or NaN where a matrix is not finite."""
    known = jnp.all(jnp.stack([jnp.all(jnp.isfinite(m), axis=(-2, -1)) for m in matrices]), axis=0)
    return jnp.where(ok & known, value, jnp.where(known, jnp.asarray(worst, value.dtype), jnp.nan))
