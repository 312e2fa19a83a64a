"""The public solver: checks its arguments, picks what can be picked before compilation, and solves."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.maxent.implicit import Choices, solution
from jaxdpcov.maxent.linear import DENSE
from jaxdpcov.maxent.problem import Limits, MaxentConfig, MaxentResult, measured, symmetric, weights
from jaxdpcov.status import NOT_CONVERGED, OK

#: `max_edges` is rounded up to a multiple of this.
BUCKET = 128


def fit(
    y: Any,
    lam: Any,
    mask: Any,
    *,
    t: Any = 1.0,
    method: str = "dual",
    init: Any = None,
    config: MaxentConfig = MaxentConfig(),  # noqa: B008 (a frozen record)
) -> MaxentResult:
    """The maximum-entropy covariance for noisy measurements of some of its entries.

    The minimiser over positive definite W of t sum lam_jk (W_jk - y_jk)^2 - log det W, the sum over the measured
    pairs, each counted once. It is the mode of a Gaussian likelihood of the measurements (lam = 1/sigma^2) under the
    prior det(W)^(1/(2t)); unmeasured entries are those of the Gaussian with the largest entropy, whose precision
    is zero there.

    Args:
        y: (d, d), the measurements, symmetric (the symmetric part is used). Entries off the mask are ignored, NaN too.
        lam: (d, d) or (), their precisions 1/sigma^2, positive and finite on the mask.
        mask: (d, d) boolean and symmetric, which entries are measured. A column whose diagonal entry is not measured
            is left out with its edges, and comes back zero.
        t: the weight of the measurements against the entropy. Where noise has made the measurements infeasible, the
            smallest eigenvalue falls as 1/t.
        method: "dual", Newton's method on the precision; "cholesky", an interior-point method on the factor of W.
        init: (d, d), a precision to start from, such as the `precision` of a smaller mask; None starts cold.
            Where it is not positive definite on the mask the start is cold, and for "cholesky" where it is not near
            the optimum. It does not change the answer.
        config: how to solve; see `MaxentConfig`.

    Returns:
        MaxentResult. Differentiable, forward and reverse, in y, lam and t (once: derivatives of derivatives are
        those of the same equations); the derivative of gap is zero.

    Edge cases:
        A solve that stops before its gap meets `tol` has status NOT_CONVERGED, never 0, and returns its last point.
        A y that is not finite on the mask, a lam or t that is not positive and finite: NaN and NOT_CONVERGED (a t
        that is not traced raises). No column measured: zeros. y_jj may be zero or negative.
        Under `vmap` every lane is solved as if alone: on a CPU one after the other, elsewhere in step, where all wait
        for the slowest. Where the mask is traced, in a caller's jit or scan, many columns with few edges want
        `MaxentConfig(max_edges=...)`.

    References:
        Ferrando et al. (2026), PACE-GGM. Dempster (1972), Covariance selection.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import maxent
    >>> y = jnp.array([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    >>> chain = jnp.abs(jnp.arange(3)[:, None] - jnp.arange(3)[None, :]) < 2
    >>> found = maxent.fit(y, 1e4, chain)
    >>> int(found.status), round(float(found.covariance[0, 2]), 2), abs(float(found.precision[0, 2])) < 1e-6
    (0, 0.5, True)
    """
    _checks.choice("method", method, ("dual", "cholesky"))
    _checks.positive("t", t)
    y, lam, mask = _array(y), _array(lam), _array(mask)
    if y.ndim != 2 or y.shape[0] != y.shape[1] or y.shape[0] == 0:
        raise ValueError(f"y must be a square matrix, got shape {y.shape}")
    if lam.shape not in ((), y.shape):
        raise ValueError(f"lam must be a number or have the shape of y, {y.shape}; got {lam.shape}")
    if np.shape(t) != ():
        raise ValueError(f"t must be a single number, got shape {np.shape(t)}")
    if mask.shape != y.shape or mask.dtype != bool:
        raise ValueError(f"mask must be boolean of shape {y.shape}, got {mask.dtype} of {mask.shape}")
    if init is not None:
        init = _array(init)
        if init.shape != y.shape:
            raise ValueError(f"init must have the shape of y, {y.shape}; got {init.shape}")
    return _fit(y, lam, mask, t, init, _resolved(config, mask, y.dtype), method)


def _array(a: Any) -> Any:
    """As an array; no JAX operation here, outside jit: each would cost as much as a small solve."""
    return a if hasattr(a, "dtype") else np.asarray(a)


def _dtype(given: Any) -> Any:
    """The dtype to solve in."""
    return jax.dtypes.canonicalize_dtype(given if jnp.issubdtype(given, jnp.floating) else float)


def _resolved(config: MaxentConfig, mask: Any, dtype: Any) -> MaxentConfig:
    """The tolerances, and what a mask that is not traced settles: the preconditioner, and `max_edges`.

    `max_edges` is rounded up, so that a mask that grows edge by edge compiles a few times only.
    """
    double = jnp.finfo(_dtype(dtype)).bits == 64
    tol = (1e-8 if double else 1e-4) if config.tol is None else config.tol
    derivative = (1e-12 if double else 1e-5) if config.derivative_tol is None else config.derivative_tol
    config = dataclasses.replace(config, tol=tol, derivative_tol=derivative)
    d = len(mask)
    every = max(1, d * (d - 1) // 2)
    exact = config.preconditioner == "exact"
    if isinstance(mask, jax.core.Tracer):
        return dataclasses.replace(config, max_edges=config.max_edges or every) if exact else config
    seen = np.asarray(mask)
    columns = int(np.count_nonzero(np.diagonal(seen)))
    entries = int(np.count_nonzero(seen))
    if config.preconditioner == "auto" and entries <= DENSE * columns * columns:
        config = dataclasses.replace(config, preconditioner="diagonal")
    bucket = min(BUCKET * max(1, -(-(entries - columns) // (2 * BUCKET))), every)
    # An explicit square matrix of all entries against two products of d x d matrices, memory against arithmetic.
    if config.max_edges is None and (exact or 4 * (d + bucket) ** 2 <= d**3):
        config = dataclasses.replace(config, max_edges=bucket)
    return config


@partial(jax.jit, static_argnames=("method",))
def _fit(y: Any, lam: Any, mask: Any, t: Any, init: Any, config: MaxentConfig, method: str) -> MaxentResult:
    dtype = _dtype(y.dtype)
    y, lam, t = (jnp.asarray(a).astype(dtype) for a in (y, lam, t))
    lam = jnp.broadcast_to(lam, y.shape)
    if init is not None:
        init = jax.lax.stop_gradient(jnp.asarray(init).astype(dtype))
    on = measured(jnp.asarray(mask))
    own = jnp.diagonal(on)
    y, lam = symmetric(jnp.where(on, y, 0.0)), symmetric(jnp.where(on, lam, 1.0))
    gamma = weights(lam, t, on)
    # Not finite and positive: solve something easy in its place, so that no lane spins, and return NaN.
    sound = jnp.all(jnp.isfinite(y)) & jnp.all(jnp.where(on, (gamma > 0) & (gamma < jnp.inf), True)) & (t > 0)
    y, gamma = jnp.where(sound, y, 0.0), jnp.where(sound, gamma, on.astype(y.dtype))
    limits = _limits(config, y.dtype, jnp.maximum(jnp.sum(own), 1).astype(y.dtype))
    choices = Choices(method, config.preconditioner, config.max_edges, config.inner, config.diagonal, config.memory)
    found = solution(choices, y, gamma, on, init, limits)
    block = own[:, None] & own[None, :]

    def shown(a: jax.Array) -> jax.Array:
        return jnp.where(sound, jnp.where(block, a, 0.0), jnp.nan)

    gap = jnp.where(sound, found.gap, jnp.nan)
    return MaxentResult(
        covariance=shown(found.covariance),
        precision=shown(found.precision),
        gap=gap,
        steps=found.steps,
        inner_steps=found.inner_steps,
        status=jnp.where(gap <= limits.gap, OK, NOT_CONVERGED).astype(jnp.int32),
    )


def _limits(config: MaxentConfig, dtype: Any, size: jax.Array) -> Limits:
    return Limits(
        jnp.asarray(config.tol, dtype) * size,
        jnp.asarray(config.max_steps, jnp.int32),
        jnp.asarray(config.max_inner, jnp.int32),
        jnp.asarray(config.derivative_tol, dtype),
    )
