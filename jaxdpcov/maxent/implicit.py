"""Derivatives of the solution by the implicit function theorem: what was solved for is what is differentiated.

The two methods differentiate two different conditions, so that each checks the other. With a dot for a change:

    dual      y + Q.K - K^-1 = 0 on the mask    (mask.(W K' W) + Q.K') = -(y' + Q'.K),  W' = -W K' W;
    cholesky  L^T (gamma.(L L^T - y)) L = I     (S + L^T (gamma.(L S L^T)) L) = L^T (gamma.y' - gamma'.(W - y)) L,
              W' = L S L^T, K' = -K W' K.

Both are linear systems with a self-adjoint map, so that the same solve serves forward and reverse mode.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.maxent import dual, factor, first_order
from jaxdpcov.maxent.linear import lane_by_lane, product
from jaxdpcov.maxent.problem import Limits, Problem, make, symmetric
from jaxdpcov.maxent.system import Route, diagonal, list_edges, operator, solve_system


class Choices(NamedTuple):
    """What is fixed at compile time: a hashable."""

    method: str
    preconditioner: str
    max_edges: int | None
    inner: str
    diagonal: str
    memory: int


class Solved(NamedTuple):
    """W, K (unmeasured columns are those of the identity), gap, outer and inner steps."""

    covariance: jax.Array
    precision: jax.Array
    gap: jax.Array
    steps: Any
    inner_steps: Any


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def solution(
    choices: Choices, y: jax.Array, gamma: jax.Array, on: jax.Array, init: jax.Array | None, limits: Limits
) -> Solved:
    """Solve one instance; differentiable in y and gamma, where `init` and the limits do not matter."""
    return lane_by_lane(partial(_solve, choices), y, gamma, on, init, limits)


def _solve(
    choices: Choices, y: jax.Array, gamma: jax.Array, on: jax.Array, init: jax.Array | None, limits: Limits
) -> Solved:
    problem = make(y, gamma, on)
    if choices.method == "cholesky" and choices.inner == "lbfgs":
        return Solved(*first_order.solve(problem, init, choices.diagonal, choices.memory, limits))
    if choices.method == "cholesky":
        return Solved(*factor.solve(problem, init, _route(choices, on, limits), limits))
    return Solved(*dual.solve(problem, init, _route(choices, on, limits), limits))


def _route(choices: Choices, on: jax.Array, limits: Limits) -> Route:
    edges = None if choices.max_edges is None else list_edges(on, choices.max_edges)
    return Route(choices.preconditioner, edges, limits.max_inner)


@solution.defjvp
def _tangent(choices: Choices, primals: Any, tangents: Any) -> tuple[Solved, Solved]:
    y, gamma, on, _, limits = primals
    dy, dgamma = tangents[:2]
    found = solution(choices, *primals)
    rule = _from_factor if choices.method == "cholesky" else _from_dual
    dw, dk = rule(choices, make(y, gamma, on), found, dy, dgamma, limits)
    count = np.zeros((), jax.dtypes.float0)
    return found, Solved(dw, dk, jnp.zeros_like(found.gap), count, count)


def _from_dual(
    choices: Choices, problem: Problem, found: Solved, dy: jax.Array, dgamma: jax.Array, limits: Limits
) -> tuple[jax.Array, jax.Array]:
    w, k = found.covariance, found.precision
    on = problem.on
    change = symmetric(jnp.where(on, problem.q * (problem.q * k) * dgamma - dy, 0.0))
    still = jax.lax.stop_gradient((w, problem))

    def solve(_matvec: Callable[[jax.Array], jax.Array], b: jax.Array) -> jax.Array:
        w, at = still  # the linear solve is never differentiated itself
        weight = jnp.where(on, 1.0 / diagonal(at, w, w), 0.0)
        b = jnp.where(on, b, 0.0)
        size = 0.5 * jnp.sum(weight * b * b)
        v, left, _ = solve_system(at, w, w, b, weight, limits.derivative**2 * size, _route(choices, on, limits))
        return jnp.where(left <= limits.derivative * size, v, jnp.nan)

    def apply(v: jax.Array) -> jax.Array:
        return jnp.where(on, operator(problem, w, w)(jnp.where(on, v, 0.0)), v)

    solved: Any = jax.lax.custom_linear_solve(apply, change, solve, symmetric=True)
    dk = symmetric(solved)
    return -product(w, dk, w), dk


def _from_factor(
    choices: Choices, problem: Problem, found: Solved, dy: jax.Array, dgamma: jax.Array, limits: Limits
) -> tuple[jax.Array, jax.Array]:
    w, k = found.covariance, found.precision
    lower = jnp.linalg.cholesky(w)
    pull = problem.gamma * dy - dgamma * jnp.where(problem.on, w - problem.y, 0.0)
    change = symmetric(product(lower.T, jnp.where(problem.on, pull, 0.0), lower))
    at, still = jax.lax.stop_gradient((problem, lower))

    def solve(_matvec: Callable[[jax.Array], jax.Array], b: jax.Array) -> jax.Array:
        apply, route = factor.curvature(at, still), _route(choices, problem.on, limits)
        b = symmetric(b)

        def improve(carry: Any) -> Any:
            s, r, rounds = carry
            more, _ = factor.push_through(at, still, r, 0.5e-6 * jnp.sum(r * r), route)
            s = s + more
            return s, symmetric(b - apply(s)), rounds + 1

        def rough(carry: Any) -> jax.Array:
            _, r, rounds = carry
            return (jnp.sum(r * r) > limits.derivative**2 * jnp.sum(b * b)) & (rounds < 10)

        s, r, _ = jax.lax.while_loop(rough, improve, (jnp.zeros_like(b), b, jnp.zeros((), jnp.int32)))
        return jnp.where(jnp.sum(r * r) <= limits.derivative * jnp.sum(b * b), s, jnp.nan)

    solved: Any = jax.lax.custom_linear_solve(factor.curvature(problem, lower), change, solve, symmetric=True)
    dw = symmetric(product(lower, symmetric(solved), lower.T))
    return dw, -symmetric(product(k, dw, k))
