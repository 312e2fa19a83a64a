"""First-order use of the Cholesky form: the objective as a function of L, and the interior-point method by L-BFGS."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from jaxdpcov.maxent.factor import State, first_state, gap_of, next_share, result, turned_pull, unfinished
from jaxdpcov.maxent.linear import product
from jaxdpcov.maxent.problem import Limits, Problem, measured, scaled, symmetric, weighted_square, weights


def cholesky_objective(factor: Any, y: Any, lam: Any, mask: Any, t: Any = 1.0) -> jax.Array:
    """F(L L^T) = t sum lam (L L^T - y)^2 - log det L L^T, for use in a loss: plain and differentiable in everything.

    L -> L L^T is one-to-one onto the positive definite matrices where L is lower triangular with a positive diagonal,
    and both it and its inverse are smooth: F has no stationary point but its minimum, at chol(fit(...).covariance).

    Args:
        factor: (d, d), L. Its strict upper triangle is ignored, and so are the rows and columns of unmeasured columns.
            The diagonal must be positive (keep it so by exp or softplus); the value is NaN or infinite elsewhere.
        y, lam, mask, t: as in `fit`.

    Returns:
        (), the objective in nats.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov import maxent
    >>> one = jnp.ones((1, 1))
    >>> float(jax.grad(maxent.cholesky_objective)(one, one, one, one > 0)[0, 0])
    -2.0
    """
    on = measured(mask)
    lam = jnp.broadcast_to(jnp.asarray(lam, factor.dtype), on.shape)
    own = jnp.diagonal(on)
    lower = jnp.where(own[:, None] & own[None, :], jnp.tril(factor), jnp.eye(on.shape[0], dtype=factor.dtype))
    miss = jnp.where(on, product(lower, lower.T) - jnp.where(on, symmetric(y), 0.0), 0.0)
    return weighted_square(weights(lam, t, on), miss) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(lower)))


def positive_diagonal(name: str) -> Callable[[jax.Array], jax.Array]:
    """The map from free numbers to a positive diagonal, 1 at 0: exp ("log") or a shifted softplus."""
    if name == "log":
        return jnp.exp
    return lambda x: jax.nn.softplus(x + jnp.log(jnp.expm1(jnp.ones_like(x))))


def solve(
    problem: Problem, init: jax.Array | None, diagonal: str, memory: int, limits: Limits
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """The interior-point method with L-BFGS inside; returns as `factor.result`.

    The unknown is T, lower triangular, in L T: each round starts at T = I, where the metric is the factor's own, and
    ends when the gap at its share of t is small enough or after `max_inner` steps.
    """
    positive = positive_diagonal(diagonal)
    optimizer = optax.lbfgs(memory_size=memory)
    eye = jnp.eye(problem.y.shape[0], dtype=problem.y.dtype)

    def turn(theta: jax.Array) -> jax.Array:
        return jnp.tril(theta, -1) + jnp.diag(positive(jnp.diagonal(theta)))

    def one_round(state: State) -> State:
        share = next_share(problem, state, limits)
        at = scaled(problem, share)
        wanted = jnp.where(share < 1, jnp.maximum(0.1 * problem.size, limits.gap), limits.gap)

        def loss(theta: jax.Array) -> jax.Array:
            t = turn(theta)
            lower = product(state.factor, t)
            miss = jnp.where(at.on, product(lower, lower.T) - at.y, 0.0)
            return weighted_square(at.gamma, miss) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(t)))

        def gap_at(theta: jax.Array) -> jax.Array:
            return gap_of(turned_pull(at, product(state.factor, turn(theta))))

        def going(carry: Any) -> jax.Array:
            _, _, gap, count = carry
            return (gap > wanted) & (count < limits.max_inner)

        def step(carry: Any) -> Any:
            theta, memory_state, _, count = carry
            value, grad = optax.value_and_grad_from_state(loss)(theta, state=memory_state)
            updates, memory_state = optimizer.update(grad, memory_state, theta, value=value, grad=grad, value_fn=loss)
            theta = theta + updates
            return theta, memory_state, gap_at(theta), count + 1

        zero = jnp.zeros_like(eye)
        start = (zero, optimizer.init(zero), gap_at(zero), jnp.zeros((), jnp.int32))
        theta, _, gap, count = jax.lax.while_loop(going, step, start)
        factor = product(state.factor, turn(theta))
        moving = (gap <= 0.9 * state.best) | (share < 1)
        return State(
            factor=factor,
            share=share,
            gap=gap,
            best=jnp.where(share == 1, jnp.minimum(state.best, gap), state.best),
            idle=jnp.where(moving, 0, state.idle + 1),
            steps=state.steps + 1,
            inner_steps=state.inner_steps + count,
        )

    # optax mixes int32 and int64 counters where x64 is on.
    with jax.numpy_dtype_promotion("standard"):
        last = jax.lax.while_loop(lambda state: unfinished(state, limits), one_round, first_state(problem, init))
    return result(problem, last)
