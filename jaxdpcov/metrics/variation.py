"""Total variation distance of two Gaussians: closed-form bounds on it, and an estimate by draws with its error."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, linalg
from jaxdpcov.linalg.matrix import Array, matmul
from jaxdpcov.metrics._line import line
from jaxdpcov.metrics._steps import (
    excess,
    kind_root,
    mahalanobis_squared,
    pair,
    shift_of,
    solve,
    whiten,
    worst_unless,
)


def total_variation_bounds(
    estimate: Any, truth: Any, estimate_mean: Any = None, truth_mean: Any = None
) -> tuple[Array, Array]:
    """Bounds (lower, upper) on the total variation distance of N(m^, S^) and N(m, S), in [0, 1]; exact for d = 1.

    With t_i the distance on the line of N(0, 1) and N(0, k_i), k_i the eigenvalues of S^{-1} S^ (a linear map takes the
    centred pair to these, independent), H the Hellinger distance and Delta the smaller of the Mahalanobis distances of
    the means under S and under S^:

    Upper, the smallest of
        sqrt(KL/2), KL in either direction (Pinsker);
        H sqrt(2 - H^2), which is never above the sqrt(1 - exp(-KL)) of Bretagnolle and Huber (Jensen);
        the same of the centred pair, or 1 - prod(1 - t_i) (the best couplings of the coordinates, side by side), plus
        erf(Delta / (2 sqrt 2)), the exact distance of N(m^, S) and N(m, S), or of N(m^, S^) and N(m, S^). Triangle
        inequality: N(m^, S^) is as far from N(m^, S), and N(m, S^) from N(m, S), as the centred ones are apart.
    (3/2) ||S^{-1/2} S^ S^{-1/2} - I||_F of Devroye et al. for the centred pair is never below sqrt(KL/2) where it is
    below 1: no eigenvalue is then below 1/3, so that KL < ||.||_F^2 / 2.

    Lower, the largest of
        H^2;
        max t_i, and min(1, ||.||_F)/100 (Devroye et al.): both are bounds of the centred pair, and means apart only add
        to its distance. (Let A be where p >= q, in coordinates that make S and S^ diagonal: an ellipsoid along those in
        which S^ is the wider one, the complement of one along the others. Moving the wider one alone in each
        coordinate lowers q(A) and raises p(A) by Anderson's inequality, so A tells the two apart at least as well.)
        the distance on the line of the projections on (S + S^)^{-1} (m^ - m), exact where S = S^.

    Args:
        estimate, truth: covariances S^ and S (..., d, d).
        estimate_mean, truth_mean: means m^ and m (..., d), both or neither (then the Gaussians are centred).

    Returns:
        (lower, upper), each (...), with relative precision also near 0; rounding moves them by up to sqrt(eps) where
        variances are 1/eps apart. Where one covariance is not positive definite (1, 1), the distance of a singular
        Gaussian from a regular one; where neither is, (0, 1). Gradients are those of the formula that counts, and 0
        where the two Gaussians agree.

    References: Devroye, Mehrabian, Reddad 2018, "The total variation distance between high-dimensional Gaussians with
    the same mean", theorem 1.1; Kamath, Li, Singhal, Ullman 2019, "Privately learning high-dimensional distributions".

    >>> from jaxdpcov import metrics
    >>> lower, upper = metrics.total_variation_bounds([[1.0]], [[1.0]], [2.0], [0.0])
    >>> round(float(lower), 4), round(float(upper), 4)  # erf(1 / sqrt 2)
    (0.6827, 0.6827)
    """
    estimate, truth = pair(estimate, truth)
    inner, first = linalg.try_cholesky(truth)
    outer, second = linalg.try_cholesky(linalg.after(estimate, first))
    middle, third = linalg.try_cholesky(linalg.after(0.5 * estimate + 0.5 * truth, second))
    ok = first & second & third
    # As in `hellinger`: k = (1 + u)/(1 - u) with u the eigenvalues of the gap, and nothing cancels near u = 0.
    gap = jnp.where(ok[..., None, None], whiten(middle, 0.5 * estimate - 0.5 * truth), 0.0)
    u = jnp.linalg.eigvalsh(gap, symmetrize_input=False)
    shift = shift_of(estimate_mean, truth_mean, middle)
    if estimate.shape[-1] == 1:
        away = jnp.zeros_like(u) if shift is None else solve(inner, shift[..., None])[..., 0]
        lower = upper = line(_log_ratio(u), away)[..., 0]
    else:
        lower, upper = _bounds(u, gap, shift, inner, outer, middle)
    # Variances further apart than 1/eps count as that far: nearer ones tell less, so that the lower bound stands.
    seen = jnp.all(jnp.abs(u) <= _top(u), axis=-1)
    upper = jnp.where(seen, jnp.maximum(jnp.minimum(upper, 1.0), lower), 1.0)
    lower, upper = worst_unless(lower, ok, 0.0, estimate, truth), worst_unless(upper, ok, 1.0, estimate, truth)
    return jnp.where(first ^ second, upper, lower), upper


def total_variation(
    key: Any, estimate: Any, truth: Any, estimate_mean: Any = None, truth_mean: Any = None, *, draws: int = 10_000
) -> tuple[Array, Array]:
    """Total variation distance of N(m^, S^) and N(m, S) by draws: an unbiased estimate and its standard error.

    TV = E |p - q|/(p + q) over the even mixture of both: the mean of |tanh(log(p/q)/2)|, numbers in [0, 1], over draws
    half from p and half from q, so that the standard error is at most 1/(2 sqrt(draws)). log(p/q) is formed without
    cancellation: the relative error stays near 1/sqrt(draws) however near the two are.

    Args:
        key: one PRNG key; `draws` from it for each pair of a batch.
        estimate, truth: covariances S^ and S (..., d, d).
        estimate_mean, truth_mean: means m^ and m (..., d), both or neither (then the Gaussians are centred).
        draws: number of draws, >= 4, rounded up to an even one; static. They take 2 draws d numbers of memory a pair.

    Returns:
        (distance, standard error), each (...); (1, 0) where a covariance is not positive definite. The gradient of the
        distance is an unbiased estimate of the distance's own (the draws move with the parameters), and 0 where the two
        agree.

    >>> import jax
    >>> from jaxdpcov import metrics
    >>> distance, error = metrics.total_variation(jax.random.key(0), [[1.0]], [[1.0]], [2.0], [0.0])
    >>> bool(abs(distance - 0.6827) < 5 * error < 0.02)
    True
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 4:
        raise ValueError(f"draws must be a whole number >= 4, got {draws!r}")
    estimate, truth = pair(estimate, truth)
    inner, first = linalg.try_cholesky(truth)
    outer, second = linalg.try_cholesky(linalg.after(estimate, first))
    ok = first & second
    shift = shift_of(estimate_mean, truth_mean, inner)
    shift = jnp.zeros(truth.shape[:-1], truth.dtype) if shift is None else shift
    half = (draws + 1) // 2
    z = jax.random.normal(_checks.typed_key(key), (2, *truth.shape[:-1], half), truth.dtype)
    values = jnp.stack([_contrast(outer, inner, -shift, z[0]), _contrast(inner, outer, shift, z[1])], axis=-2)
    distance = jnp.mean(values, axis=(-2, -1))
    error = kind_root(jnp.sum(jnp.var(values, axis=-1, ddof=1), axis=-1) / (4 * half))
    return worst_unless(distance, ok, 1.0, estimate, truth), worst_unless(error, ok, 0.0, estimate, truth)


def _contrast(other: Array, own: Array, shift: Array, z: Array) -> Array:
    """|p - q|/(p + q) at draws `own` z of p = N(shift, own own^T), q = N(0, other other^T); z is (..., d, draws).

    With E = other^{-1} (own - other) and c = other^{-1} shift, log(p/q) = (E z + c)^T (2 z + E z + c)/2 - sum log(1 +
    E_ii): it vanishes with E and c.
    """
    apart = solve(other, own - other)
    moved = matmul(apart, z) + solve(other, shift[..., None])
    log_ratio = 0.5 * jnp.sum(moved * (2.0 * z + moved), axis=-2)
    log_ratio = log_ratio - jnp.sum(jnp.log1p(jnp.diagonal(apart, axis1=-2, axis2=-1)), axis=-1)[..., None]
    return jnp.where(log_ratio == 0, 0.0, jnp.abs(jnp.tanh(0.5 * log_ratio)))  # the derivative of |0| is 1 to JAX


def _bounds(
    u: Array, gap: Array, shift: Array | None, inner: Array, outer: Array, middle: Array
) -> tuple[Array, Array]:
    """The bounds of `total_variation_bounds` for d > 1, from the factors of S, S^ and (S + S^)/2."""
    u = jnp.clip(u, -_top(u), _top(u))
    alone = line(_log_ratio(u), jnp.zeros_like(u))
    more, less = 2.0 * u / (1.0 - u), -2.0 * u / (1.0 + u)  # k - 1 and 1/k - 1
    lower = jnp.max(alone, axis=-1)
    for relative in (more, less):
        lower = jnp.maximum(lower, 0.01 * jnp.minimum(kind_root(jnp.sum(relative**2, axis=-1)), 1.0))
    # KL of the truth from the estimate, KL the other way, and -2 log of the affinity: integral sqrt(p q).
    forward, backward = (0.5 * jnp.sum(excess(relative), axis=-1) for relative in (less, more))
    closeness = -0.5 * jnp.sum(jnp.log1p(-(u**2)), axis=-1)
    upper = jnp.minimum(_classical(forward, backward, closeness), -jnp.expm1(jnp.sum(jnp.log1p(-alone), axis=-1)))
    if shift is not None:
        by_truth, by_estimate = mahalanobis_squared(inner, shift), mahalanobis_squared(outer, shift)
        whitened = solve(middle, shift[..., None])
        squared = jnp.sum(whitened**2, axis=(-2, -1))
        forward, backward = forward + 0.5 * by_estimate, backward + 0.5 * by_truth
        closeness = closeness + 0.25 * squared
        least = kind_root(jnp.minimum(by_truth, by_estimate))
        upper = jnp.minimum(upper + line(jnp.zeros_like(least), least), _classical(forward, backward, closeness))
        # On the direction w = (S + S^)^{-1} (m^ - m), the variances are as 1 - r to 1 + r.
        length = kind_root(squared)
        unit = whitened / jnp.where(length > 0, length, 1.0)[..., None, None]
        r = jnp.clip(jnp.sum(unit * matmul(gap, unit), axis=(-2, -1)), -_top(u), _top(u))
        lower = jnp.maximum(lower, line(_log_ratio(r), length / jnp.sqrt(1.0 - r)))
    return jnp.maximum(lower, -jnp.expm1(-0.5 * closeness)), upper


def _classical(forward: Array, backward: Array, closeness: Array) -> Array:
    """The smallest of Pinsker's bounds and H sqrt(2 - H^2) = sqrt(1 - affinity^2)."""
    pinsker = kind_root(0.5 * jnp.minimum(forward, backward))
    return jnp.minimum(pinsker, kind_root(-jnp.expm1(-closeness)))


def _top(u: Array) -> float:
    """The largest u that is told from 1."""
    return 1.0 - 4.0 * float(np.finfo(u.dtype).eps)


def _log_ratio(u: Array) -> Array:
    """log k of k = (1 + u)/(1 - u)."""
    u = jnp.clip(u, -_top(u), _top(u))
    return jnp.log1p(u) - jnp.log1p(-u)
