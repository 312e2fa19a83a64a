"""Correlation matrices: of a covariance, and the nearest one to any symmetric matrix."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov.linalg.matrix import Array, eye_like, symmetrize
from jaxdpcov.linalg.spectral import psd_part

#: Caps of the loops below; Newton needs about 5 to 10 steps, and its step is halved now and then only.
_NEWTON_STEPS, _HALVINGS = 40, 12


def correlation(cov: Any) -> Array:
    """The correlation matrix of a covariance: cov_jk / sqrt(cov_jj cov_kk).

    Args:
        cov: covariance (..., d, d); its symmetric part is used. A noisy one may be indefinite.

    Returns:
        Correlations (..., d, d): symmetric, the diagonal exactly 1, every entry in [-1, 1] (PSD where `cov` is; for an
        indefinite `cov` see `nearest_correlation`, or project to PSD first).

    Edge cases:
        A column whose variance is 0 (or negative, as noise can make it) has no correlation with anything: its row is
        that of the identity. A non-finite entry gives NaN throughout.

    >>> from jaxdpcov import linalg
    >>> linalg.correlation([[4.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]).tolist()
    [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    return _correlation(symmetrize(cov))


@jax.jit
def _correlation(cov: Array) -> Array:
    variance = jnp.diagonal(cov, axis1=-2, axis2=-1)
    absent = variance <= 0
    std = jnp.sqrt(jnp.where(absent, 1.0, variance))
    # The product of two stds neither under- nor overflows, and commutes to the last bit.
    ratio = jnp.clip(cov / (std[..., :, None] * std[..., None, :]), -1.0, 1.0)
    ratio = jnp.where(absent[..., :, None] | absent[..., None, :], 0.0, ratio)
    finite = jnp.all(jnp.isfinite(cov), axis=(-2, -1), keepdims=True)
    return jnp.where(finite, jnp.where(eye_like(cov) == 1, 1.0, ratio), jnp.nan)


def nearest_correlation(a: Any) -> tuple[Array, Array]:
    """The correlation matrix nearest in Frobenius norm: min ||X - a||_F over X PSD with unit diagonal.

    Newton's method on the dual, X = (a + Diag(y))_+ with diag(X) = 1 solved for y (Qi and Sun 2006): the solution that
    alternating projections with Dykstra's correction (Higham 2002) reach in hundreds of steps, in about ten.

    Args:
        a: matrix (..., d, d) of order one, such as a noisy correlation matrix; its symmetric part is used.

    Returns:
        (X, residual): X (..., d, d) PSD to rounding with exactly unit diagonal, and residual (...) = the largest
        |diag(X) - 1| before the last rescaling of X to unit diagonal, a few d eps where the solver converged.

    Edge cases:
        Where the loop stops at its cap, X is still a correlation matrix, but not the nearest; the residual tells.
        A non-finite entry gives NaN for both. Derivatives of X in `a` are those of the solution (implicit function
        theorem), forward and reverse, first order; that of the residual is 0.

    References: Qi and Sun 2006, "A quadratically convergent Newton method for computing the nearest correlation
    matrix"; Higham 2002, "Computing the nearest correlation matrix - a problem from finance".

    >>> from jaxdpcov import linalg
    >>> matrix, residual = linalg.nearest_correlation([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    >>> [round(float(x), 4) for x in matrix[0]], float(residual) < 1e-5
    ([1.0, 0.7607, 0.1573], True)
    """
    return _nearest_correlation(symmetrize(a))


@jax.jit
def _nearest_correlation(a: Array) -> tuple[Array, Array]:
    if a.ndim > 2:
        return jax.vmap(_nearest_correlation)(a)
    d = a.shape[-1]
    tolerance = 8.0 * d * float(jnp.finfo(a.dtype).eps)

    def excess(y: Array) -> Array:
        return jnp.diagonal(psd_part(a + jnp.diag(y))) - 1.0

    start = 1.0 - jnp.diagonal(a)
    y = jax.lax.custom_root(
        excess, start, functools.partial(_newton, jax.lax.stop_gradient(a), tolerance), _conjugate_gradients
    )
    matrix = psd_part(a + jnp.diag(y))
    residual = jax.lax.stop_gradient(jnp.max(jnp.abs(jnp.diagonal(matrix) - 1.0)))
    return _correlation(matrix), residual


def _conjugate_gradients(operator: Callable[[Array], Array], right: Array) -> Array:
    """Solve with the Hessian of the dual, which is symmetric, and positive definite at the solution."""
    eps = float(jnp.finfo(right.dtype).eps)

    def solve(matvec: Callable[[Array], Array], b: Array) -> Array:
        return jax.scipy.sparse.linalg.cg(matvec, b, tol=16.0 * eps, maxiter=2 * b.size + 20)[0]

    # JAX's own wrapper of `cg` lets its start, zeros_like(b), depend on b, and so cannot be transposed in a root.
    return jax.lax.custom_linear_solve(operator, right, solve, symmetric=True)


def _newton(a: Array, tolerance: float, excess: Callable[[Array], Array], start: Array) -> Array:
    """Newton-CG with step halving on the convex dual, whose gradient is `excess`, until that is at most `tolerance`."""

    def evaluate(y: Array) -> tuple[Array, Array]:
        part = psd_part(a + jnp.diag(y))
        return 0.5 * jnp.sum(part * part) - jnp.sum(y), jnp.diagonal(part) - 1.0

    def size(gradient: Array) -> Array:
        return jnp.max(jnp.abs(gradient))

    def unfinished(state: tuple[Array, Array, Array, Array, Array]) -> Array:
        _, _, gradient, count, moved = state
        return (size(gradient) > tolerance) & (count < _NEWTON_STEPS) & moved  # False for NaN

    def step(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        y, value, gradient, count, _ = state
        hessian = jax.linearize(excess, y)[1]
        # Far from the solution the Hessian may be singular; the ridge fades as fast as the gradient.
        ridge = 1e-2 * jnp.minimum(size(gradient), 1.0)
        direction = -_conjugate_gradients(lambda h: hessian(h) + ridge * h, gradient)
        slope = jnp.sum(gradient * direction)

        def accepted(length: Array, trial: Array, slack: Array) -> Array:
            # By the dual, or by its gradient where rounding hides the dual's decrease.
            return (trial <= value + 1e-4 * length * slope) | (slack < 0.5 * size(gradient))

        def halve(inner: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            length = 0.5 * inner[0]
            return length, *evaluate(y + length * direction), inner[3] + 1

        def refused(inner: tuple[Array, Array, Array, Array]) -> Array:
            length, trial, fresh, halvings = inner
            return ~accepted(length, trial, size(fresh)) & (halvings < _HALVINGS)

        full = jnp.ones((), y.dtype)
        first = (full, *evaluate(y + direction), jnp.zeros((), jnp.int32))
        length, trial, fresh, _ = jax.lax.while_loop(refused, halve, first)
        good = accepted(length, trial, size(fresh))
        return (
            jnp.where(good, y + length * direction, y),
            jnp.where(good, trial, value),
            jnp.where(good, fresh, gradient),
            count + 1,
            good,
        )

    state = (start, *evaluate(start), jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return jax.lax.while_loop(unfinished, step, state)[0]
