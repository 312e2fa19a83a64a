"""The dual solver: Newton steps on K > 0 supported on the mask, primal-dual where the measurements are infeasible.

Minimised is g(K) = -log det K + <K, y> + (1/2) sum Q K^2, whose optimum is W^-1. Beside K the loop keeps a W > 0 of
its own. A step solves the two optimality conditions, y + Q.K - W = 0 on the mask and W = tau K^-1, to first order:

    (mask.(W V X + X V W)/2 + Q.V) = tau X - y - Q.K on the mask,   dW = tau X - W - (W V X + X V W)/2,   X = K^-1.

The loop starts direct: W = X and tau = 1, which is Newton's method on g and takes a few full steps from a warm start.
Where measurements contradict each other by many standard deviations it would take thousands of short ones; then the
loop starts again at a large tau, from a pair that is optimal there but for the edges, and lowers tau as fast as full
steps allow.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov.maxent.entering import entered
from jaxdpcov.maxent.linear import choose, product, row_effects, shortcut, suits_eigen
from jaxdpcov.maxent.problem import (
    Limits,
    Problem,
    barrier_start,
    cholesky,
    cold_start,
    inverse,
    isolated,
    residual,
    symmetric,
    usable_start,
    weighted_square,
)
from jaxdpcov.maxent.system import Route, solve_system

#: Direct Newton is given up at the first step shorter than this, after this many, or after so many idle ones.
SHORT, MANY, STUCK = 0.2, 15, 2
#: Full steps at tau = 1 in a row that gain less than a tenth on the best gap: rounding is all that is left.
IDLE = 5


class State(NamedTuple):
    """The pair (w, k), x = k^-1, the gap of (x, k) and the best one, the last length; direct until tau is raised."""

    w: jax.Array
    k: jax.Array
    x: jax.Array
    gap: jax.Array
    best: jax.Array
    length: jax.Array
    direct: jax.Array
    idle: jax.Array
    steps: jax.Array
    inner_steps: jax.Array


def solve(
    problem: Problem, init: jax.Array | None, route: Route, limits: Limits
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Covariance, precision, gap, outer steps and conjugate-gradient steps."""
    k = usable_start(_spectral_start(problem, route.choice) if init is None else init, problem)
    x = inverse(cholesky(k))
    if init is not None:
        k, x = entered(problem, k, x)
    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), k.dtype)
    gap = _gap(problem, k, x)
    first = State(x, k, x, gap, gap, one, jnp.ones((), bool), zero, zero, zero)

    def going(state: State) -> jax.Array:
        moving = (state.idle < IDLE) & (state.length > 0)
        return (state.gap > limits.gap) & (state.steps < limits.max_steps) & moving

    last = jax.lax.while_loop(going, lambda state: _advance(problem, state, route, limits), first)
    return last.x, last.k, last.gap, last.steps, last.inner_steps


def _spectral_start(problem: Problem, choice: str) -> jax.Array | None:
    """The optimum in closed form if the mask were full and q_jk = s_j s_k: in that scale an eigenvalue at a time."""

    def closed() -> jax.Array:
        root = jnp.sqrt(row_effects(problem.q, problem.on)[0])
        both = root[:, None] * root[None, :]
        mu, u = jnp.linalg.eigh(problem.y / both, symmetrize_input=False)
        return product(u * isolated(mu, jnp.ones_like(mu))[None, :], u.T) / both

    if choice in ("diagonal", "exact"):
        return None
    return choose(choice, lambda: suits_eigen(problem.q, problem.on), closed, lambda: jnp.zeros_like(problem.y))


def _gap(problem: Problem, k: jax.Array, x: jax.Array) -> jax.Array:
    return weighted_square(problem.gamma, residual(problem, k, x))


def _advance(problem: Problem, state: State, route: Route, limits: Limits) -> State:
    tau = _next_tau(problem, state)
    v, dw, inner = _direction(problem, state, tau, route, limits)
    length, factor = _longest(state, v, dw)
    stuck = (state.idle >= STUCK) & (state.gap > 0.01 * problem.size)
    again = state.direct & ((length < SHORT) | (state.steps >= MANY) | stuck)
    w, k = state.w + length * dw, state.k + length * v
    cold_w, cold_k = _barrier_pair(problem)
    k = jnp.where(again, cold_k, k)
    x = inverse(jnp.where(again, jnp.sqrt(cold_k), factor))
    w = jnp.where(again, cold_w, jnp.where(state.direct, x, w))
    gap = _gap(problem, k, x)
    moving = (gap <= 0.9 * state.best) | (tau > 1) | (length < 1) | again
    return State(
        w=w,
        k=k,
        x=x,
        gap=gap,
        best=jnp.where(again, gap, jnp.minimum(gap, state.best)),
        length=jnp.where(again, 1.0, length),
        direct=state.direct & ~again,
        idle=jnp.where(moving, 0, state.idle + 1),
        steps=state.steps + 1,
        inner_steps=state.inner_steps + inner,
    )


def _next_tau(problem: Problem, state: State) -> jax.Array:
    """The barrier parameter to aim at: the pair's own, lowered a hundredfold after a full step, less after others."""
    absent = state.w.shape[0] - jnp.sum(problem.present)
    own = (jnp.sum(state.w * state.k) - absent.astype(state.w.dtype)) / problem.size
    share = jnp.where(state.length == 1, 0.01, jnp.where(state.length > 0.5, 0.1, 0.5))
    return jnp.where(own > 1.5, jnp.maximum(1.0, share * own), 1.0)


def _direction(
    problem: Problem, state: State, tau: jax.Array, route: Route, limits: Limits
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The change of K, that of W, and the conjugate-gradient steps it took."""
    w, k, x = state.w, state.k, state.x
    aim = jnp.where(problem.present, tau, 1.0)[:, None] * x
    b = jnp.where(problem.on, aim - problem.y - problem.q * k, 0.0)
    # What conjugate gradients leave adds to the next gap, and Newton's own error is of the order of gap^2.
    left = jnp.minimum(state.gap * jnp.minimum(0.1, state.gap / problem.size), 0.01 * tau * problem.size)
    target = jnp.maximum(left, 0.1 * limits.gap)
    v, _, steps = solve_system(problem, w, x, b, problem.gamma, target, route, state.direct)
    # The direct phase takes no W but X along: it spares itself two products and a factorisation.
    dw = shortcut(state.direct, lambda: jnp.zeros_like(w), lambda: aim - w - symmetric(product(w, v, x)))
    return v, dw, steps


def _longest(state: State, v: jax.Array, dw: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step length that keeps both matrices positive definite (1 if it can, 0 if none does), K's factor there."""

    def factors(length: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        factor = cholesky(state.k + length * v)
        other = shortcut(state.direct, lambda: factor, lambda: cholesky(state.w + length * dw))
        inside = jnp.all(jnp.isfinite(factor)) & (state.direct | jnp.all(jnp.isfinite(other)))
        return length, factor, inside

    def outside(trial: tuple[jax.Array, ...]) -> jax.Array:
        return ~trial[2] & (trial[0] > 1e-6)

    def shorter(trial: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        return factors(0.7 * trial[0])

    length, factor, inside = jax.lax.while_loop(outside, shorter, factors(jnp.ones((), v.dtype)))
    # A shortened step ends just inside the cone; a tenth less keeps clear of its border.
    length = jnp.where(inside, jnp.where(length == 1, 1.0, 0.9 * length), 0.0)
    return length, jnp.where(length == 1, factor, cholesky(state.k + length * v))


def _barrier_pair(problem: Problem) -> tuple[jax.Array, jax.Array]:
    """(W, K) with W = tau K^-1, optimal at t / tau for the diagonal measurements alone."""
    tau = barrier_start(problem)
    own = cold_start(problem, 1.0 / tau)
    return jnp.diag(1.0 / own), jnp.diag(jnp.where(problem.present, tau * own, 1.0))
