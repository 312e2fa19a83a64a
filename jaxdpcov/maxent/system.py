"""The linear system of the dual: V -> mask.(W V X + X V W)/2 + Q.V, on whole matrices or on a list of edges."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov.maxent.linear import Operator, choose, conjugate_gradient, product, row_effects, shortcut, suits_eigen
from jaxdpcov.maxent.problem import Problem, cholesky, symmetric


class Edges(NamedTuple):
    """The measured entries j <= k as lists of one fixed length; `copies` is 1 on the diagonal, 2 off it, 0 in pads."""

    row: jax.Array
    column: jax.Array
    copies: jax.Array


def list_edges(on: jax.Array, max_edges: int) -> Edges:
    """The entries of the mask's upper triangle, at most all diagonal ones and `max_edges` others."""
    d = on.shape[0]
    upper = jnp.triu(on, 1)
    row, column = jnp.nonzero(upper, size=max_edges, fill_value=0)
    used = jnp.arange(max_edges) < jnp.sum(upper)
    every = jnp.arange(d)
    copies = jnp.concatenate([jnp.where(jnp.diagonal(on), 1, 0), jnp.where(used, 2, 0)])
    return Edges(jnp.concatenate([every, row]), jnp.concatenate([every, column]), copies)


class Route(NamedTuple):
    """How systems are solved: the preconditioner's name, the list of edges if they are solved on it, the cap."""

    choice: str
    edges: Edges | None
    max_steps: jax.Array


def solve_system(
    problem: Problem,
    w: jax.Array,
    x: jax.Array,
    b: jax.Array,
    weight: jax.Array,
    target: jax.Array,
    route: Route,
    equal: jax.Array | bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """V on the mask with the operator's value b, until (1/2) sum weight r^2 <= target for what is left, r.

    At W = X = K^-1 the operator is the dual's second derivative; away from there it is the primal-dual one of
    Helmberg, Rendl, Vanderbei and Wolkowicz (1996), Kojima, Shindoh and Hara (1997) and Monteiro (1997). `equal`
    says that w and x are one matrix, which saves work.

    Returns:
        V (exactly symmetric), the size of what is left, and the steps.
    """
    if route.edges is not None:
        return _on_edges(problem, w, x, b, weight, target, route.choice == "exact", route.edges, route.max_steps, equal)

    def run(make: Callable[[Problem, jax.Array, jax.Array], Operator]) -> Callable[[], Any]:
        def go() -> Any:
            return conjugate_gradient(
                operator(problem, w, x),
                make(problem, w, x),
                b,
                lambda r: 0.5 * jnp.sum(weight * r * r),
                target,
                route.max_steps,
            )

        return go

    v, left, steps = choose(
        route.choice,
        lambda: suits_eigen(problem.q, problem.on),
        run(eigen_preconditioner),
        run(diagonal_preconditioner),
    )
    return symmetric(v), left, steps


def operator(problem: Problem, w: jax.Array, x: jax.Array) -> Operator:
    """The map itself, self-adjoint and positive definite on the matrices supported on the mask."""
    return lambda v: jnp.where(problem.on, symmetric(product(w, v, x)) + problem.q * v, 0.0)


def diagonal(problem: Problem, w: jax.Array, x: jax.Array) -> jax.Array:
    """The operator's diagonal in the independent entries, 1 off the mask."""
    own = symmetric(jnp.diagonal(w)[:, None] * jnp.diagonal(x)[None, :])
    both = jnp.where(jnp.eye(w.shape[0], dtype=bool), 0.0, w * x)
    return jnp.where(problem.on, own + both + problem.q, 1.0)


def diagonal_preconditioner(problem: Problem, w: jax.Array, x: jax.Array) -> Operator:
    """Divide by the diagonal: right for sparse masks, and for precisions of many scales."""
    inverse = 1.0 / diagonal(problem, w, x)
    return lambda r: inverse * r


def eigen_preconditioner(problem: Problem, w: jax.Array, x: jax.Array) -> Operator:
    """The inverse if the mask were full, W = mu X and Q_ij = s_i s_j: right for dense masks.

    In the scale of s the operator is then V -> mu X V X + V, diagonal in the eigenbasis of the scaled X.
    """
    root = jnp.sqrt(row_effects(problem.q, problem.on)[0])
    both = root[:, None] * root[None, :]
    values, u = jnp.linalg.eigh(x / both, symmetrize_input=False)
    mu = jnp.sum(w * x) / jnp.sum(x * x)
    turned = mu * values[:, None] * values[None, :] + 1.0

    def apply(r: jax.Array) -> jax.Array:
        inside = product(u.T, r / both, u) / turned
        return jnp.where(problem.on, product(u, inside, u.T) / both, 0.0)

    return apply


def _on_edges(
    problem: Problem,
    w: jax.Array,
    x: jax.Array,
    b: jax.Array,
    weight: jax.Array,
    target: jax.Array,
    exact: bool,
    edges: Edges,
    max_steps: jax.Array,
    equal: jax.Array | bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same on the list: V has so few entries that the operator is cheaper as an explicit small matrix."""
    row, column = edges.row, edges.column
    # The vectors carry scale * V_jk: their plain inner product is then the trace inner product of the matrices.
    scale = jnp.sqrt(edges.copies.astype(w.dtype))
    h = explicit(w, x, edges, equal)
    own = jnp.where(scale > 0, problem.q[row, column], 1.0)
    part = weight[row, column]
    u, left, steps = conjugate_gradient(
        lambda v: product(h, v) + own * v,
        _exact(h, own) if exact else lambda r: r / (jnp.diagonal(h) + own),
        b[row, column] * scale,
        lambda r: 0.5 * jnp.sum(part * r * r),
        target,
        max_steps,
    )
    v = jnp.zeros_like(w).at[row, column].add(jnp.where(scale > 0, u / jnp.where(scale > 0, scale, 1.0), 0.0))
    return v + jnp.triu(v, 1).T, left, steps


def explicit(w: jax.Array, x: jax.Array, edges: Edges, equal: jax.Array | bool) -> jax.Array:
    """The operator without Q as a matrix: for each pair of the list the trace inner product <E, (W F X + X F W)/2>."""
    row, column = edges.row, edges.column
    scale = jnp.sqrt(edges.copies.astype(w.dtype))
    both = scale[:, None] * scale[None, :]

    def pure() -> jax.Array:
        at_row, at_column = x[row], x[column]
        return 0.5 * both * (at_row[:, row] * at_column[:, column] + at_row[:, column] * at_column[:, row])

    def mixed() -> jax.Array:
        w_row, w_column, x_row, x_column = w[row], w[column], x[row], x[column]
        h = w_row[:, row] * x_column[:, column] + w_row[:, column] * x_column[:, row]
        h = h + x_row[:, row] * w_column[:, column] + x_row[:, column] * w_column[:, row]
        return 0.25 * both * h

    if isinstance(equal, bool):
        return pure() if equal else mixed()
    return shortcut(equal, pure, mixed)


def _exact(h: jax.Array, own: jax.Array) -> Operator:
    """The inverse of h + diag(own) from a factorisation, scaled to a unit diagonal; the diagonal's if that fails."""
    root = jnp.sqrt(jnp.diagonal(h) + own)
    unit = jnp.eye(h.shape[0], dtype=bool)
    factor = cholesky(jnp.where(unit, 1.0, h / (root[:, None] * root[None, :])))
    fine = jnp.all(jnp.isfinite(factor))
    factor = jnp.where(fine, factor, unit.astype(h.dtype))
    return lambda r: jax.scipy.linalg.cho_solve((factor, True), r / root) / root
