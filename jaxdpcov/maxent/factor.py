"""The Cholesky solver: an interior-point method (Ferrando et al. 2026) on the factor L of W = L L^T.

Everything happens in coordinates that the factor makes natural, W = L (I + S) L^T with S symmetric: there -log det is
-log det(I + S) for every L, so that the barrier is never ill-conditioned. With G = gamma.(W - y) and A = L^T G L,

    gradient A - I,   second derivative S -> S + L^T (gamma.(L S L^T)) L,   gap tr A - log det A - d where A > 0.

G is supported on the mask, so where it is positive definite it is a point of the dual, and the gap is that of W and G.
The optimum is A = I. The barrier continuation starts at t / tau with tau large, where the problem is easy, and raises
t tenfold whenever the gap at the present t is small.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from jaxdpcov.maxent.linear import Operator, product
from jaxdpcov.maxent.problem import (
    Limits,
    Problem,
    barrier_start,
    cholesky,
    cold_start,
    inverse,
    scaled,
    symmetric,
    usable_start,
)
from jaxdpcov.maxent.system import Route, solve_system

#: t grows by this factor where the gap at the present t is below NEAR nats for each column.
GROWTH, NEAR = 10.0, 0.1
#: Full steps at the full t in a row that gain less than a tenth on the best gap: rounding is all that is left.
IDLE = 5


class State(NamedTuple):
    """The factor, the share of t reached, the gap there, the best gap at the full t, and how the last steps went."""

    factor: jax.Array
    share: jax.Array
    gap: jax.Array
    best: jax.Array
    idle: jax.Array
    steps: jax.Array
    inner_steps: jax.Array


def turned_pull(problem: Problem, factor: jax.Array) -> jax.Array:
    """A = L^T G L, with 1 on the diagonal for columns that are not measured."""
    pull = problem.gamma * jnp.where(problem.on, product(factor, factor.T) - problem.y, 0.0)
    absent = jnp.where(problem.present, 0.0, jnp.ones_like(problem.size))
    return symmetric(product(factor.T, pull, factor)) + jnp.diag(absent)


def gap_of(a: jax.Array) -> jax.Array:
    """tr A - log det A - d, infinite where A is not positive definite; near A = I a bound free of cancellation."""
    off = a - jnp.eye(a.shape[0], dtype=a.dtype)
    square = jnp.sum(off * off)
    exact = jnp.trace(off) - 2.0 * jnp.sum(jnp.log(jnp.diagonal(cholesky(a))))
    # x - log(1 + x) <= x^2 / (2 (1 - |x|)), summed over the eigenvalues of A - I.
    bound = 0.5 * square / (1.0 - jnp.sqrt(jnp.minimum(square, 0.01)))
    return jnp.where(square < 0.01, bound, jnp.where(jnp.isfinite(exact), exact, jnp.inf))


def curvature(problem: Problem, factor: jax.Array) -> Operator:
    """S -> S + L^T (gamma.(L S L^T)) L."""
    return lambda s: s + product(factor.T, problem.gamma * product(factor, s, factor.T), factor)


def push_through(
    problem: Problem, factor: jax.Array, b: jax.Array, target: jax.Array, route: Route
) -> tuple[jax.Array, jax.Array]:
    """Nearly S with curvature(S) = b, so that about half the square of what is left is at most the target.

    The preconditioner that the factor's own conjugate gradients lack: with J S = mask.(L S L^T) the map is
    I + J^T gamma J, and its inverse is I - J^T (1/gamma + J J^T)^-1 J, a well-scaled system on the mask alone.
    """
    b, w = symmetric(b), symmetric(product(factor, factor.T))
    own = jnp.diagonal(w)
    # A residual rho of the small system leaves L^T (gamma.rho) L of the large one: nearly this weighted square.
    weight = problem.gamma * problem.gamma * (own[:, None] * own[None, :] + w * w)
    seen = jnp.where(problem.on, symmetric(product(factor, b, factor.T)), 0.0)
    v, _, steps = solve_system(problem, w, w, seen, weight, target, route)
    return b - symmetric(product(factor.T, v, factor)), steps


def first_state(problem: Problem, init: jax.Array | None) -> State:
    """Where both inner methods start: at `init` and the full t if the gap is small there, else cold at t / tau.

    A point that is not near costs more steps than the way from the cold start: W leaves its measurements unwillingly.
    """
    zero = jnp.zeros((), jnp.int32)

    def at(factor: jax.Array, share: jax.Array) -> State:
        gap = gap_of(turned_pull(scaled(problem, share), factor))
        return State(factor, share, gap, jnp.full_like(gap, jnp.inf), zero, zero, zero)

    share = 1.0 / barrier_start(problem)
    cold = at(jnp.diag(1.0 / jnp.sqrt(cold_start(problem, share))), share)
    if init is None:
        return cold
    warm = at(cholesky(inverse(cholesky(usable_start(init, problem)))), jnp.ones_like(share))
    near = warm.gap <= NEAR * problem.size
    return jax.tree.map(lambda a, b: jnp.where(near, a, b), warm, cold)


def next_share(problem: Problem, state: State, limits: Limits) -> jax.Array:
    """The share of t to work at now."""
    near = state.gap <= jnp.maximum(NEAR * problem.size, limits.gap)
    return jnp.where(near, jnp.minimum(1.0, GROWTH * state.share), state.share)


def unfinished(state: State, limits: Limits) -> jax.Array:
    """Whether to go on."""
    wanting = (state.gap > limits.gap) | (state.share < 1)
    return wanting & (state.steps < limits.max_steps) & (state.idle < IDLE)


def result(problem: Problem, state: State) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Covariance, precision, gap at the full t, outer steps, inner steps."""
    covariance = symmetric(product(state.factor, state.factor.T))
    gap = gap_of(turned_pull(problem, state.factor))
    return covariance, inverse(state.factor), gap, state.steps, state.inner_steps


def solve(
    problem: Problem, init: jax.Array | None, route: Route, limits: Limits
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Newton's method; returns as `result`."""
    last = jax.lax.while_loop(
        lambda state: unfinished(state, limits),
        lambda state: _advance(problem, state, route, limits),
        first_state(problem, init),
    )
    return result(problem, last)


def _advance(problem: Problem, state: State, route: Route, limits: Limits) -> State:
    """One Newton step at the present share of t, no further along its line than the minimum there."""
    share = next_share(problem, state, limits)
    at = scaled(problem, share)
    eye = jnp.eye(problem.y.shape[0], dtype=problem.y.dtype)
    a = turned_pull(at, state.factor)
    gap, b = gap_of(a), eye - a
    half_square = 0.5 * jnp.sum(b * b)
    # The residual is the next A - I up to Newton's own error, and half its square is the next gap.
    left = half_square * jnp.minimum(0.01, half_square / problem.size)
    s, inner = push_through(at, state.factor, b, jnp.maximum(left, 0.1 * limits.gap), route)
    decrement = jnp.sqrt(jnp.maximum(jnp.sum(s * b), 0.0))

    def trial(length: jax.Array) -> tuple[jax.Array, ...]:
        turn = cholesky(eye + length * s)
        factor = product(state.factor, turn)
        next_a = turned_pull(at, factor)
        next_gap = gap_of(next_a)
        # F is convex in W: a slope not above zero at the new point, <A' - I, T^-1 S T^-T> with T the turn, proves
        # that F fell. Near the optimum the slope is rounding error, and a halved gap is the proof.
        turned_s = solve_triangular(turn, solve_triangular(turn, s, lower=True).T, lower=True)
        halved = jnp.isfinite(next_gap) & (next_gap <= 0.5 * gap)
        return length, factor, next_gap, (jnp.sum((next_a - eye) * turned_s) <= 0) | halved

    def failing(attempt: tuple[jax.Array, ...]) -> jax.Array:
        return ~attempt[-1] & (attempt[0] > 1e-6)

    def shorter(attempt: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        # F is self-concordant: 1/(1 + decrement) is safe for an exact step, halving covers the inexact one.
        return trial(jnp.where(attempt[0] == 1, jnp.minimum(0.9, 1.0 / (1.0 + decrement)), 0.5 * attempt[0]))

    length, factor, next_gap, good = jax.lax.while_loop(failing, shorter, trial(jnp.ones_like(gap)))
    moving = (next_gap <= 0.9 * state.best) | (share < 1) | (length < 1)
    return State(
        factor=jnp.where(good, factor, state.factor),
        share=share,
        gap=jnp.where(good, next_gap, gap),
        best=jnp.where(good & (share == 1), jnp.minimum(state.best, next_gap), state.best),
        idle=jnp.where(good, jnp.where(moving, 0, state.idle + 1), IDLE),
        steps=state.steps + 1,
        inner_steps=state.inner_steps + inner,
    )
