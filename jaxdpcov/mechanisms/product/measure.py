"""The noisy queries of the product mechanisms, in units u of the box [0, 1]^d: truncated sums, and the radius.

A query may flip columns (u -> 1 - u), weight them and truncate rows; flips, weights and radii are public or made from
earlier noisy answers. One function joins each reduction to the noise that fits it.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms.product.config import Known
from jaxdpcov.privacy import noise, selection, sensitivity


class Block(NamedTuple):
    """One of `blocks` disjoint blocks of rows, drawn by `key`; `block` counts from 0."""

    key: Any
    block: int
    blocks: int


class Shape(NamedTuple):
    """What is summed: columns where `flipped` (d,) as 1 - u, times weights (d,), which are 0 for columns left out."""

    flipped: Any
    weights: Any


class Answer(NamedTuple):
    """A noisy mean over rows: value and std (d,) in u, 0 in columns left out; the line of the ledger."""

    value: Any
    std: Any
    entry: Any


def mean(
    key: jax.Array, rows: Rows, block: Block | None, about: Known, shape: Shape, radius: Any, cost: Any, *, what: str
) -> Answer:
    """The mean of u over all rows, or over one block: of y = weights u truncated to norm `radius`, divided by weights.

    The noise on sum y is Gaussian at l2 sensitivity min(sqrt(2) radius, |weights|); `cost` is its rho.
    """
    if block is None:
        total, size = rows.reduce(_truncated, about.frame, shape, radius), about.n
    else:
        total = rows.reduce_block(_truncated, *block, about.frame, shape, radius)
        size = block_size(about.n, block.blocks)
    answer = _noisy(key, total, size, about, shape, radius, cost)
    return answer._replace(entry=dataclasses.replace(answer.entry, what=what))


@functools.partial(jax.jit, static_argnums=1)
def block_size(n: jax.Array, blocks: int) -> jax.Array:
    """Rows in a block, at least 1 where it is divided by: an empty block is pure noise."""
    return jnp.maximum(jnp.floor(n / blocks), 1.0)


def weighted(x: jax.Array, frame: clip.Frame, shape: Shape) -> jax.Array:
    """Rows (m, d) in data units as y = weights u, u in [0, 1]^d; a row that is not finite is the middle of the box."""
    u = 0.5 + 0.5 * frame.rows(x)
    return jnp.where(shape.flipped[None, :], 1.0 - u, u) * shape.weights[None, :]


def _truncated(x: jax.Array, weights: Any, frame: clip.Frame, shape: Shape, radius: jax.Array) -> jax.Array:
    y = clip.clip_l2(weighted(x, frame, shape), radius)
    return jnp.sum(y if weights is None else y * weights[:, None], axis=0)


@jax.jit
def _noisy(
    key: jax.Array, total: jax.Array, size: jax.Array, about: Known, shape: Shape, radius: jax.Array, cost: jax.Array
) -> Answer:
    bound = sensitivity.truncated_sum(radius, reach(shape.weights)) * about.slack
    found, entry = noise.gaussian(key, total, sensitivity=bound, rho=cost, what="")
    asked = shape.weights > 0.0
    divisor = size * jnp.where(asked, shape.weights, 1.0)
    value = found.value / divisor
    value = jnp.where(shape.flipped, 1.0 - value, value)
    # What is not a number stays so: it tells of an invalid public number.
    failed = jnp.isnan(found.std)
    keep = asked | failed
    return Answer(jnp.where(keep, value, 0.0), jnp.where(keep, found.std / divisor, 0.0), entry)


def reach(weights: jax.Array) -> jax.Array:
    """The largest norm of a row, |weights|; that of one column where all are left out, so that noise has a scale."""
    square = jnp.sum(weights * weights)
    return jnp.sqrt(jnp.where(square > 0.0, square, 1.0))


class Choice(NamedTuple):
    """The question for a radius, all of it public or released.

    radii, loss: (k,) the candidates, the first of which truncates nothing, and what each is predicted to cost apart
    from what it takes away.
    mass: () the mean of sum_j a_j y_j over rows, for weights a. most: () what one row counts at most, in units of it.
    weight: () what one such unit that is taken away costs.
    """

    radii: Any
    loss: Any
    mass: Any
    most: Any
    weight: Any


def radius(key: jax.Array, rows: Rows, about: Known, shape: Shape, choice: Choice, cost: Any) -> tuple[jax.Array, Any]:
    """The radius with nearly the least loss plus `weight` times the mass that it takes away.

    A radius takes the share max(0, 1 - radius/|y|) of a row, and of its mass. The exponential mechanism; `cost` in rho.
    """
    return _choose(key, rows.reduce(_lost, about.frame, shape, choice), about, choice, cost)


def _lost(x: jax.Array, weights: Any, frame: clip.Frame, shape: Shape, choice: Choice) -> jax.Array:
    y = weighted(x, frame, shape)
    norms, mass = clip.row_norms(y)[:, None], jnp.sum(y * shape.weights[None, :], axis=1)
    longer = norms > choice.radii[None, :]
    share = jnp.where(longer, 1.0 - choice.radii[None, :] / jnp.where(longer, norms, 1.0), 0.0)
    lost = share * jnp.minimum(mass / choice.mass, choice.most)[:, None]
    return jnp.sum(lost if weights is None else lost * weights[:, None], axis=0)


@jax.jit
def _choose(key: jax.Array, lost: jax.Array, about: Known, choice: Choice, cost: jax.Array) -> tuple[jax.Array, Any]:
    bound = sensitivity.lost_share(choice.most) * choice.weight * about.slack
    scores = -choice.weight * lost - choice.loss
    # A radius that gains less than the choice can tell apart is not on offer: chosen by chance it would cost more.
    offered = choice.loss[0] - choice.loss >= 2.0 * bound / jnp.sqrt(8.0 * cost)
    offered = offered | (jnp.arange(offered.shape[0]) == 0)
    index, entry = selection.exponential(key, scores, sensitivity=bound, rho=cost, mask=offered, what="radius")
    return choice.radii[index], entry
