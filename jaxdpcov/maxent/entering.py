"""A better warm start where one measurement is new: its pair of columns is solved alone before the first full step.

A new edge starts at K_e = 0 and may be many standard deviations off, where a Newton step is mostly its own error. With
all else fixed, the dual in the 2 x 2 block B of its two columns is a maximum-entropy problem of two columns: for
K_BB = P + D, where P is (W_BB)^-1, -log det K is -log det(P + D) up to a constant, and W follows by a rank-two update.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov.maxent.linear import conjugate_gradient, product
from jaxdpcov.maxent.problem import Problem, make, residual, symmetric
from jaxdpcov.maxent.system import diagonal_preconditioner, operator

#: Newton steps for the pair of columns; a start needs no more precision than they give.
STEPS = 12


def entered(problem: Problem, k: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(K, K^-1) after the pair of columns is solved whose edge makes up most of the gap; as given if none does."""
    r = residual(problem, k, x)
    share = problem.gamma * r * r
    edges = jnp.triu(share, 1)
    row, column = jnp.unravel_index(jnp.argmax(edges), k.shape)
    pair = jnp.stack([row, column])
    worth = edges[row, column] > 0.25 * jnp.sum(share)  # half of the gap, which counts every edge twice

    def block(a: jax.Array) -> jax.Array:
        return a[pair[:, None], pair[None, :]]

    alone = _two_by_two(block(x))
    # Q.(K_BB + D) in terms of the block's own precision P + D: the difference moves the measurements.
    y = block(problem.y) + block(problem.q) * (block(k) - alone)
    own = make(y, jnp.where(worth, block(problem.gamma), 1.0), jnp.ones((2, 2), bool))
    change = _solved(own, alone) - alone
    change = jnp.where(worth & jnp.all(jnp.isfinite(change)), change, 0.0)
    beside = x[:, pair]
    middle = product(jnp.linalg.inv(jnp.eye(2, dtype=k.dtype) + product(change, block(x))), change)
    return k.at[pair[:, None], pair[None, :]].add(change), symmetric(x - product(beside, middle, beside.T))


def _two_by_two(a: jax.Array) -> jax.Array:
    """The inverse."""
    return jnp.array([[a[1, 1], -a[0, 1]], [-a[1, 0], a[0, 0]]]) / (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0])


def _solved(problem: Problem, start: jax.Array) -> jax.Array:
    """The optimal precision of two columns, nearly: damped Newton steps, which keep it positive definite."""

    def step(_: Any, k: jax.Array) -> jax.Array:
        w = _two_by_two(k)
        b = -residual(problem, k, w)
        v, _, _ = conjugate_gradient(
            operator(problem, w, w),
            diagonal_preconditioner(problem, w, w),
            b,
            lambda r: jnp.sum(r * r),
            1e-12 * jnp.sum(b * b),
            jnp.full((), 4, jnp.int32),
        )
        decrement = jnp.sqrt(jnp.maximum(jnp.sum(v * b), 0.0))
        return symmetric(k + v / jnp.where(decrement > 0.25, 1.0 + decrement, 1.0))

    return jax.lax.fori_loop(0, STEPS, step, start)
