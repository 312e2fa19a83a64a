"""Distances of the Gaussians of two covariances and means: Kullback-Leibler, chi-square, Hellinger, Wasserstein."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import linalg
from jaxdpcov.linalg.matrix import Array, matmul
from jaxdpcov.metrics._steps import (
    kind_root,
    mahalanobis_squared,
    norm,
    pair,
    shift_of,
    stein_loss,
    whiten,
    worst_unless,
)


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
    estimate, truth = pair(estimate, truth)
    loss, lower, ok = stein_loss(estimate, truth)
    shift = shift_of(estimate_mean, truth_mean, lower)
    return 0.5 * loss if shift is None else jnp.where(ok, 0.5 * (loss + mahalanobis_squared(lower, shift)), loss)


def chi_square(estimate: Any, truth: Any, estimate_mean: Any = None, truth_mean: Any = None) -> Array:
    """Chi-square divergence of the truth from the estimate: integral p^2/q - 1, p of N(m, S) and q of N(m^, S^).

    Finite where S, S^ and 2 S^ - S are positive definite: the estimate's variance is more than half of the truth's in
    every direction. It is then exp((m^ - m)^T (2 S^ - S)^{-1} (m^ - m)) / prod sqrt(k_i (2 - k_i)) - 1 with k_i the
    eigenvalues of S^^{-1} S. It bounds `kl` from above, kl <= log(1 + chi_square).

    Args:
        estimate, truth: covariances S^ and S (..., d, d).
        estimate_mean, truth_mean: means m^ and m (..., d), both or neither (then the Gaussians are centred).

    Returns:
        The divergence (...), with relative precision also near 0; inf where it is not finite, with gradient 0, and
        where it exceeds the largest float.

    References: Nielsen and Nock 2014, "On the chi square and higher-order chi distances".

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.chi_square([[1.0]], [[1.0]], [1.0], [0.0])), 4)  # e - 1
    1.7183
    """
    estimate, truth = pair(estimate, truth)
    lower, first = linalg.try_cholesky(estimate)
    outer, second = linalg.try_cholesky(linalg.after(estimate + (estimate - truth), first))
    # The 1 - k_i are the eigenvalues v of S^^{-1/2} (S^ - S) S^^{-1/2}, and k (2 - k) = 1 - v^2: nothing cancels.
    v = jnp.linalg.eigvalsh(whiten(lower, linalg.after(estimate - truth, second)), symmetrize_input=False)
    ok = first & second & jnp.all(jnp.abs(v) < 1, axis=-1)
    log_sum = -0.5 * jnp.sum(jnp.log1p(-(jnp.where(ok[..., None], v, 0.0) ** 2)), axis=-1)
    shift = shift_of(estimate_mean, truth_mean, lower)
    if shift is not None:
        log_sum = log_sum + mahalanobis_squared(outer, shift)
    small = ~(log_sum >= np.log(np.finfo(log_sum.dtype).max))
    return worst_unless(jnp.expm1(jnp.where(small, log_sum, 0.0)), ok & small, jnp.inf, estimate, truth)


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
    estimate, truth = pair(estimate, truth)
    lower, ok = linalg.try_cholesky(0.5 * estimate + 0.5 * truth)
    # With m_i the eigenvalues of S^{-1} S^, the u_i = (m_i - 1)/(m_i + 1) are those of (S + S^)^{-1/2} (S^ - S)
    # (S + S^)^{-1/2}, and 4 m/(1 + m)^2 = 1 - u^2: nothing cancels as the two come together.
    u = jnp.linalg.eigvalsh(whiten(lower, 0.5 * estimate - 0.5 * truth), symmetrize_input=False)
    ok &= jnp.all(jnp.abs(u) < 1, axis=-1)
    log_affinity = 0.25 * jnp.sum(jnp.log1p(-(jnp.where(ok[..., None], u, 0.0) ** 2)), axis=-1)
    shift = shift_of(estimate_mean, truth_mean, lower)
    if shift is not None:
        log_affinity = log_affinity - 0.125 * mahalanobis_squared(lower, shift)
    return worst_unless(kind_root(-jnp.expm1(log_affinity)), ok, 1.0, estimate, truth)


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
    estimate, truth = pair(estimate, truth)
    root = linalg.sqrtm(estimate)
    other = linalg.sqrtm(linalg.after(truth, root))
    # At the minimum the derivative in Q vanishes (envelope theorem), so the rotation counts as a constant.
    product = jax.lax.stop_gradient(matmul(other, root))
    left, _, right = jnp.linalg.svd(jnp.where(jnp.isfinite(product), product, 0.0), full_matrices=False)
    apart = root - matmul(other, matmul(left, right))
    same = jnp.all(estimate == truth, axis=(-2, -1), keepdims=True)
    apart = jnp.where(same, 0.0, apart)
    shift = shift_of(estimate_mean, truth_mean, apart)
    if shift is not None:
        apart = jnp.concatenate([apart, shift[..., None, :]], axis=-2)
    return norm(apart)
