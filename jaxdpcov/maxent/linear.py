"""Conjugate gradients, and what keeps the lanes of a `vmap` from paying for one another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Operator = Callable[[jax.Array], jax.Array]

#: The eigenbasis preconditioner pays (measured, d = 20..150) where nearly all entries are measured ...
DENSE = 0.85
#: ... with precisions near a product of row and column effects: root mean square of the misfit of log q.
SPREAD = 0.2


def conjugate_gradient(
    apply: Operator, precondition: Operator, b: jax.Array, size: Operator, target: jax.Array, max_steps: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Solve apply(x) = b for a symmetric positive definite operator until size(residual) <= target.

    `size` measures the residual in the caller's own terms (a duality gap), so a step is never solved further than
    it is worth; that is why this is not `jax.scipy.sparse.linalg.cg`.

    Returns:
        x, the last size, and the steps. Rounding that makes a curvature non-positive, or a NaN, ends the loop.
    """

    def going(state: Any) -> jax.Array:
        _, r, _, _, steps, sound = state
        return sound & (size(r) > target) & (steps < max_steps)

    def step(state: Any) -> Any:
        x, r, p, before, steps, _ = state
        z = precondition(r)
        rz = jnp.sum(r * z)
        p = z + (rz / before) * p
        hp = apply(p)
        curvature = jnp.sum(p * hp)
        sound = (curvature > 0) & (rz > 0)
        length = jnp.where(sound, rz / jnp.where(sound, curvature, 1.0), 0.0)
        return x + length * p, r - length * hp, p, jnp.where(sound, rz, 1.0), steps + 1, sound

    nothing = jnp.zeros_like(b)
    first = (nothing, b, nothing, jnp.ones((), b.dtype), jnp.zeros((), jnp.int32), jnp.ones((), bool))
    x, r, _, _, steps, _ = jax.lax.while_loop(going, step, first)
    return x, size(r), steps


def product(*factors: jax.Array) -> jax.Array:
    """The matrix product of the factors from left to right, in full precision on every device."""
    result = factors[0]
    for factor in factors[1:]:
        result = jnp.matmul(result, factor, precision="highest")
    return result


def row_effects(q: jax.Array, on: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(d,) s with s_i s_j near q_ij off the diagonal (means of log q by row), and the root mean square misfit."""
    off = on & ~jnp.eye(on.shape[0], dtype=bool)
    logs = jnp.where(off, jnp.log(jnp.where(off, q, 1.0)), 0.0)
    counts = jnp.sum(off, axis=1).astype(q.dtype)
    total = jnp.maximum(jnp.sum(counts), 1.0)
    effects = jnp.sum(logs, axis=1) / jnp.maximum(counts, 1.0) - 0.5 * jnp.sum(logs) / total
    misfit = jnp.where(off, logs - effects[:, None] - effects[None, :], 0.0)
    return jnp.exp(effects), jnp.sqrt(jnp.sum(misfit * misfit) / total)


def suits_eigen(q: jax.Array, on: jax.Array) -> jax.Array:
    """Whether the eigenbasis preconditioner is the better one for this mask and these precisions."""
    columns = jnp.sum(jnp.diagonal(on)).astype(q.dtype)
    dense = jnp.sum(on).astype(q.dtype) > DENSE * columns * columns
    return dense & (row_effects(q, on)[1] < SPREAD)


@jax.custom_batching.custom_vmap
def _unbatched(predicate: jax.Array) -> jax.Array:
    return predicate


@_unbatched.def_vmap
def _false(axis_size: int, in_batched: Any, predicate: jax.Array) -> tuple[jax.Array, bool]:
    # A batched predicate would turn `cond` into `select`, and every lane would pay for both branches, an
    # eigendecomposition in one of them; a vote would let one lane change the rounding of the others.
    return jnp.zeros((), bool), False


def shortcut(predicate: jax.Array, quick: Callable[[], Any], full: Callable[[], Any]) -> Any:
    """quick() where the predicate holds and is not batched, else full(), which must be right in every lane."""
    return jax.lax.cond(_unbatched(jax.lax.stop_gradient(predicate)), quick, full)


def choose(choice: str, predicate: Callable[[], jax.Array], dense: Callable[[], Any], sparse: Callable[[], Any]) -> Any:
    """dense() for "eigen", sparse() for "diagonal"; "auto" asks the predicate, and is sparse where that is batched."""
    if choice != "auto":
        return dense() if choice == "eigen" else sparse()
    return shortcut(predicate(), dense, sparse)


def lane_by_lane(run: Callable[..., Any], *arguments: Any) -> Any:
    """run(*arguments), under `vmap` on a CPU for one lane after the other; not to be differentiated.

    A loop over a batch runs until its slowest lane is done, and with loops in loops that multiplies, while a small
    matrix takes a core nearly as long in a batch as alone (measured on two cores). A GPU needs the batch: there the
    lanes go in step.
    """
    alone = jax.custom_batching.sequential_vmap(run)
    return jax.lax.platform_dependent(*arguments, cpu=alone, default=run)
