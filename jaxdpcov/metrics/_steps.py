"""Steps that the metrics share: pairs of matrices and of means, norms and roots with kind derivatives, worst values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import linalg
from jaxdpcov.linalg.matrix import Array


def pair(estimate: Any, truth: Any) -> tuple[Array, Array]:
    """Symmetric parts of both matrices at one dtype and one shape."""
    estimate, truth = linalg.symmetrize(estimate), linalg.symmetrize(truth)
    if estimate.shape[-1] != truth.shape[-1]:
        raise ValueError(f"estimate and truth must have one size, got shapes {estimate.shape} and {truth.shape}")
    dtype = np.promote_types(estimate.dtype, truth.dtype)
    shape = np.broadcast_shapes(estimate.shape, truth.shape)
    return jnp.broadcast_to(estimate.astype(dtype), shape), jnp.broadcast_to(truth.astype(dtype), shape)


def shift_of(estimate_mean: Any, truth_mean: Any, beside: Array) -> Array | None:
    """Difference of the means (..., d) in the dtype and batch shape of a matrix `beside`; None when there are none."""
    if (estimate_mean is None) != (truth_mean is None):
        raise ValueError("give estimate_mean and truth_mean both, or neither")
    if estimate_mean is None:
        return None
    shape = beside.shape[:-1]
    first, second = (jnp.asarray(mean).astype(beside.dtype) for mean in (estimate_mean, truth_mean))
    return jnp.broadcast_to(first, shape) - jnp.broadcast_to(second, shape)


def kind_root(x: Array) -> Array:
    """sqrt with derivative 0 at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), jnp.where(jnp.isnan(x), x, 0.0))


def norm(x: Array) -> Array:
    """Frobenius norm over the last two axes at any scale, with derivative 0 at 0."""
    top = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=(-2, -1)))
    top = jnp.where(top == 0, 1.0, top)
    return top * kind_root(jnp.sum((x / top[..., None, None]) ** 2, axis=(-2, -1)))


def solve(lower: Array, right: Array) -> Array:
    return jax.lax.linalg.triangular_solve(lower, right, left_side=True, lower=True)


def whiten(lower: Array, middle: Array) -> Array:
    """L^{-1} M L^{-T}, symmetric."""
    return linalg.symmetrize(solve(lower, solve(lower, middle).mT))


def mahalanobis_squared(lower: Array, shift: Array) -> Array:
    return jnp.sum(solve(lower, shift[..., None]) ** 2, axis=(-2, -1))


def stein_loss(estimate: Array, truth: Array) -> tuple[Array, Array, Array]:
    """(Stein's loss of the inverse, Cholesky factor C of the estimate, whether both are positive definite).

    With truth = L L^T and K = C^{-1} L (lower triangular), the loss is ||K||_F^2 - 2 sum log K_ii - d: the squares
    below the diagonal, and K_ii^2 - 1 - 2 log K_ii = t^2 + 2 (t - log(1 + t)) with t = (L_ii - C_ii)/C_ii. Every term
    is >= 0, so that nothing cancels but in the last bracket, of the size of t^2.
    """
    outer, first = linalg.try_cholesky(estimate)
    inner, second = linalg.try_cholesky(linalg.after(truth, first))
    ok = first & second
    below = jnp.sum(jnp.tril(solve(outer, inner), -1) ** 2, axis=(-2, -1))
    c, ell = (jnp.diagonal(x, axis1=-2, axis2=-1) for x in (outer, inner))
    t = (ell - c) / c
    loss = below + jnp.sum(t * t + 2.0 * (t - jnp.log1p(t)), axis=-1)
    return worst_unless(loss, ok, jnp.inf, estimate, truth), outer, ok


def worst_unless(value: Array, ok: Array, worst: float, *matrices: Array) -> Array:
    """`value` where `ok`, else the `worst` value, or NaN where a matrix is not finite."""
    known = jnp.all(jnp.stack([jnp.all(jnp.isfinite(m), axis=(-2, -1)) for m in matrices]), axis=0)
    return jnp.where(ok & known, value, jnp.where(known, jnp.asarray(worst, value.dtype), jnp.nan))


def excess(x: Array) -> Array:
    """x - log(1 + x) >= 0 for x > -1, with relative precision also near 0, where it is x^2/2.

    With y = x/(2 + x), log(1 + x) = 2 (y + y^3/3 + y^5/5 + ...) and x - 2 y = x y.
    """
    near = jnp.abs(x) < 0.25
    y = jnp.where(near, x, 0.0) / (2.0 + jnp.where(near, x, 0.0))
    squared = y * y
    series = jnp.zeros_like(y)
    for k in range(10, 0, -1):  # |y| < 1/7: the next term is below 1e-17 of the sum
        series = series * squared + 1.0 / (2 * k + 1)
    return jnp.where(near, y * (jnp.where(near, x, 0.0) - 2.0 * squared * series), x - jnp.log1p(x))
