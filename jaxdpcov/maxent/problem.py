"""The maximum-entropy problem: records, objective, residual, duality gap, and where the solvers start."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov._records import record


@record(static=("preconditioner", "max_edges", "inner", "diagonal", "memory"))
class MaxentConfig:
    """How `fit` solves; the defaults suit everything but studies of the solvers.

    Args:
        tol: stop where the duality gap is at most `tol` times the number of measured columns; None is 1e-8 in
            float64 and 1e-4 in float32. A gap of g nats leaves every measured entry within sqrt(g / t) of its own
            noise standard deviations of the optimum.
        max_steps: outer steps (Newton steps, or rounds of L-BFGS) after which a solve is given up and reported.
        max_inner: conjugate-gradient steps for one outer step or one derivative, L-BFGS steps for one round.
        derivative_tol: relative residual of the linear solve behind a derivative; None is 1e-12 in float64 and
            1e-5 in float32. A derivative is NaN where the residual stays above the square root of that.
        preconditioner: "diagonal" for sparse masks or precisions of many scales, "eigen" for dense masks, "auto" to
            choose between the two, "exact" for a factorisation (cubic in the number of edges; for instances too
            ill-conditioned for the others).
        max_edges: where not None, conjugate gradients work on that many off-diagonal entries, not on whole
            matrices: faster for sparse masks in many columns. A mask with more edges cannot converge, and is
            reported. `fit` fills it in where it helps and the mask is not traced.
        inner: "newton" or "lbfgs", the inner method of `method="cholesky"`.
        diagonal: "log" or "softplus", how `inner="lbfgs"` keeps the diagonal of the factor positive.
        memory: pairs of vectors that `inner="lbfgs"` keeps.
    """

    tol: Any = None
    max_steps: Any = 200
    max_inner: Any = 5000
    derivative_tol: Any = None
    preconditioner: str = "auto"
    max_edges: int | None = None
    inner: str = "newton"
    diagonal: str = "log"
    memory: int = 20

    def __post_init__(self) -> None:
        for name in ("tol", "derivative_tol"):
            if getattr(self, name) is not None:
                _checks.positive(name, getattr(self, name))
        _checks.positive("max_inner", self.max_inner)
        _checks.choice("preconditioner", self.preconditioner, ("auto", "diagonal", "eigen", "exact"))
        _checks.choice("inner", self.inner, ("newton", "lbfgs"))
        _checks.choice("diagonal", self.diagonal, ("log", "softplus"))
        for name in ("max_edges", "memory"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")


@record()
class MaxentResult:
    """What `fit` found.

    Attributes:
        covariance: (d, d), the reconstruction W; unmeasured columns are zero.
        precision: (d, d), the inverse K of W on the measured columns; unmeasured columns are zero.
        gap: (), the duality gap in nats: how far the objective at W can be above the optimum.
        steps: (), outer steps. inner_steps: (), conjugate-gradient or L-BFGS steps in all.
        status: (), 0 or `status.NOT_CONVERGED`.
    """

    covariance: Any
    precision: Any
    gap: Any
    steps: Any
    inner_steps: Any
    status: Any


class Problem(NamedTuple):
    """One instance in the solvers' form: minimise (1/2) sum_jk gamma_jk (W_jk - y_jk)^2 - log det W.

    This sum runs over the whole matrix and the user's objective counts each pair once, so gamma_jk = t lam_jk off
    the diagonal and gamma_jj = 2 t lam_jj; q is 1/gamma. y, gamma and q are 0 off the mask `on`. A column that is
    not measured is carried along as an independent one of variance 1, which adds nothing to any formula.
    """

    y: jax.Array
    gamma: jax.Array
    q: jax.Array
    on: jax.Array
    size: jax.Array

    @property
    def present(self) -> jax.Array:
        """(d,), which columns are measured; `size` is their number (at least 1)."""
        return jnp.diagonal(self.on)


class Limits(NamedTuple):
    """The numbers of a config; `gap` and `derivative` in the problem's dtype, the counts int32."""

    gap: jax.Array
    max_steps: jax.Array
    max_inner: jax.Array
    derivative: jax.Array


def symmetric(a: jax.Array) -> jax.Array:
    """The symmetric part."""
    return (a + a.T) * 0.5


def measured(mask: jax.Array) -> jax.Array:
    """The mask, symmetric, without the edges of columns whose own diagonal entry is not measured."""
    own = jnp.diagonal(mask)
    return mask & mask.T & own[:, None] & own[None, :]


def weights(lam: jax.Array, t: Any, on: jax.Array) -> jax.Array:
    """gamma of `Problem`: t lam off the diagonal, 2 t lam on it, 0 where nothing is measured."""
    twice = 1.0 + jnp.eye(on.shape[0], dtype=lam.dtype)
    return jnp.where(on, twice * (t * jnp.where(on, lam, 1.0)), 0.0)


def make(y: jax.Array, gamma: jax.Array, on: jax.Array) -> Problem:
    """The instance with these numbers, already 0 off the mask."""
    q = jnp.where(on, 1.0 / jnp.where(on, gamma, 1.0), 0.0)
    size = jnp.maximum(jnp.sum(jnp.diagonal(on)), 1).astype(y.dtype)
    return Problem(y, gamma, q, on, size)


def scaled(problem: Problem, share: jax.Array) -> Problem:
    """The same instance at `share` of its t."""
    return problem._replace(gamma=problem.gamma * share, q=problem.q / share)


def isolated(y: jax.Array, gamma: jax.Array) -> jax.Array:
    """1/W for the positive root W of gamma W (W - y) = 1: the precision of a column measured by itself."""
    root = jnp.sqrt(y * y + 4.0 / gamma)
    # Two forms of one root: each adds numbers of one sign, so that no digits cancel.
    return jnp.where(y > 0, 2.0, 0.5 * gamma * (jnp.abs(y) + root) ** 2) / (jnp.abs(y) + root)


def cold_start(problem: Problem, factor: Any = 1.0) -> jax.Array:
    """(d,), the precision of each column as if only it were measured, at `factor` times t."""
    gamma = jnp.where(problem.present, jnp.diagonal(problem.gamma) * factor, 1.0)
    return jnp.where(problem.present, isolated(jnp.diagonal(problem.y), gamma), 1.0)


def barrier_start(problem: Problem) -> jax.Array:
    """tau >= 1 such that at t / tau even the best measured variance is within its noise: there all is easy."""
    diagonal = jnp.diagonal(problem.y)
    return jnp.maximum(1.0, jnp.max(jnp.diagonal(problem.gamma) * diagonal * diagonal))


def usable_start(init: jax.Array | None, problem: Problem) -> jax.Array:
    """A positive definite K supported on the mask: `init` if it is one (new columns filled in), else `cold_start`."""
    own = cold_start(problem)
    if init is None:
        return jnp.diag(own)
    given = jnp.where(problem.on, symmetric(init), 0.0)
    diagonal = jnp.where(problem.present & (jnp.diagonal(given) > 0), jnp.diagonal(given), own)
    given = jnp.where(jnp.eye(given.shape[0], dtype=bool), jnp.diag(diagonal), given)
    return jnp.where(jnp.all(jnp.isfinite(cholesky(given))), given, jnp.diag(own))


def cholesky(a: jax.Array) -> jax.Array:
    """The lower Cholesky factor; NaN where `a` is not positive definite."""
    return jax.lax.linalg.cholesky(a, symmetrize_input=False)


def inverse(factor: jax.Array) -> jax.Array:
    """The inverse of the matrix that has this lower Cholesky factor, exactly symmetric."""
    return symmetric(jax.scipy.linalg.cho_solve((factor, True), jnp.eye(factor.shape[0], dtype=factor.dtype)))


def residual(problem: Problem, k: jax.Array, w: jax.Array) -> jax.Array:
    """R = y + Q.K - W on the mask; where W = K^-1 it is the dual's gradient in the trace inner product."""
    return jnp.where(problem.on, problem.y + problem.q * k - w, 0.0)


def weighted_square(gamma: jax.Array, r: jax.Array) -> jax.Array:
    """(1/2) sum gamma R^2, at the residual R of K and K^-1 exactly the duality gap of that pair."""
    return 0.5 * jnp.sum(gamma * r * r)


def objective(covariance: Any, y: Any, lam: Any, mask: Any, t: Any = 1.0) -> jax.Array:
    """F(W) = t sum lam (W - y)^2 - log det W over the measured pairs, each counted once.

    Args:
        covariance: (d, d), W; its unmeasured columns are ignored. NaN comes back where W is not positive definite.
        y, lam, mask, t: as in `fit`.

    Returns:
        (), the objective that `fit` minimises, in nats.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import maxent
    >>> one = jnp.ones((1, 1))
    >>> round(float(maxent.objective(2.0 * one, one, one, one > 0)), 4)  # 1 - log 2
    0.3069
    """
    on = measured(mask)
    lam = jnp.broadcast_to(jnp.asarray(lam, covariance.dtype), on.shape)
    inside = jnp.where(
        jnp.diagonal(on)[:, None] & jnp.diagonal(on)[None, :],
        symmetric(covariance),
        jnp.eye(on.shape[0], dtype=covariance.dtype),
    )
    miss = jnp.where(on, inside - jnp.where(on, symmetric(y), 0.0), 0.0)
    logdet = 2.0 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(inside))))
    return weighted_square(weights(lam, t, on), miss) - logdet
