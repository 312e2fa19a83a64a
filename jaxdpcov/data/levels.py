"""Queries on rows of the unit ball by powers of two: masses by level, and moments of rows clipped at a radius.

Level j holds the rows with 2^-(j+1) < |u| <= 2^-j, and none of the rows u = 0. `frame` is a `clip.ball_frame`; norms
count as at most 1, whatever rounding says. Everything here is exact and private: it leaves through `privacy` only.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.data import clip


class Masses(NamedTuple):
    """Sums over rows by norm, in units of u.

    beyond: (L,) weight of the rows with |u| > 2^-i, i = 0..L-1. mass: (L,) their sum of |u|^2.
    total: () the sum of |u|^2 over all rows.
    """

    beyond: Any
    mass: Any
    total: Any


class Moments(NamedTuple):
    """Sums over rows clipped at a radius and divided by it: second (d, d), first (d,)."""

    second: Any
    first: Any


def count(dtype: Any) -> int:
    """The number of levels L: 80, or 60 in float32, where 4^-L is at the end of the normal numbers."""
    return 80 if jnp.finfo(dtype).bits >= 64 else 60


def radii(dtype: Any) -> jax.Array:
    """(L,) the radii 1, 1/2, 1/4, ..., exact."""
    return radius(jnp.arange(count(dtype)), dtype)


def radius(level: Any, dtype: Any) -> jax.Array:
    """2^-level, exact."""
    level = jnp.asarray(level)
    return jnp.ldexp(jnp.ones(level.shape, dtype), -level)


def masses(x: jax.Array, weights: Any, frame: clip.Frame) -> Masses:
    """`Masses` of one block of rows (m, d) in data units."""
    return _masses(frame.rows(x), weights)


def pair_masses(first: jax.Array, second: jax.Array, valid: Any, frame: clip.Frame) -> Masses:
    """`Masses` of half differences of paired rows."""
    return _masses(half_differences(first, second, frame), valid)


def rows_by_level(x: jax.Array, weights: Any, frame: clip.Frame) -> jax.Array:
    """(L,) int32: how many rows of one block are in each level; the last holds all shorter ones too."""
    norm = jnp.minimum(clip.row_norms(frame.rows(x)), 1.0)
    norm = norm if weights is None else jnp.where(weights > 0, norm, 0.0)
    ends = jnp.append(radii(x.dtype), 0.0)
    beyond = jnp.sum(norm[:, None] > ends[None, :], axis=0, dtype=jnp.int32)
    return beyond[1:] - beyond[:-1]


def moments_at_level(x: jax.Array, weights: Any, frame: clip.Frame, level: Any) -> Moments:
    """`Moments` of one block of rows clipped at 2^-level; a `LevelTable` answers this from memory."""
    return _moments(frame.rows(x), weights, radius(level, x.dtype))


def moments_at_radius(x: jax.Array, weights: Any, frame: clip.Frame, at: Any) -> Moments:
    """`Moments` of one block of rows clipped at any radius in (0, 1]."""
    return _moments(frame.rows(x), weights, at)


def pair_moments(first: jax.Array, second: jax.Array, valid: Any, frame: clip.Frame, at: Any) -> Moments:
    """`Moments` of half differences of paired rows, clipped at a radius in (0, 1]."""
    return _moments(half_differences(first, second, frame), valid, at)


def moments_by_level(x: jax.Array, weights: Any, frame: clip.Frame, which: Any) -> tuple[Moments, Moments]:
    """Sums over the rows of each level in `which` (K,): of rows divided by 2^-level, and of rows divided by |u|.

    Shapes (K, d, d) and (K, d). The two are all that `Moments` at every radius 2^-k are made of. The last level holds
    all shorter rows too.
    """
    u = frame.rows(x)
    norm = jnp.minimum(clip.row_norms(u), 1.0)
    top = radius(which, x.dtype)
    bottom = jnp.where(which == count(x.dtype) - 1, jnp.zeros_like(top), 0.5 * top)
    inside = (norm[:, None] <= top[None, :]) & (norm[:, None] > bottom[None, :])

    def sums(of_level: jax.Array, at: jax.Array) -> Moments:
        return _moments(u, of_level if weights is None else of_level * weights, at)

    levels = inside.T.astype(x.dtype)
    # A radius below every norm of the level sends its rows to the sphere; of the last level nobody asks.
    whole, sphere = (jax.lax.map(lambda each: sums(*each), (levels, at)) for at in (top, 0.5 * top))
    return whole, sphere


def table(by_level: tuple[Moments, Moments]) -> Moments:
    """(K+1, d, d) and (K+1, d): `Moments` at the radii of K successive levels and of the next, from `moments_by_level`.

    At the radius of level t, longer rows (levels j < t) are on the sphere, and the others count 4^(t-j) of their own
    level's unit in the second moment, 2^(t-j) in the first.
    """
    whole, sphere = by_level
    size = whole.first.shape[0]
    t, j = np.arange(size + 1)[:, None], np.arange(size)[None, :]
    share = np.where(j >= t, 2.0 ** (np.minimum(t - j, 0)), 0.0)

    def sums(power: int, inner: jax.Array, outer: jax.Array) -> jax.Array:
        inside, outside = (jnp.asarray(weights, inner.dtype) for weights in (share**power, j < t))
        at = functools.partial(jnp.tensordot, axes=1, precision="highest")
        return at(inside, inner) + at(outside, outer)

    return Moments(sums(2, whole.second, sphere.second), sums(1, whole.first, sphere.first))


def half_differences(first: jax.Array, second: jax.Array, frame: clip.Frame) -> jax.Array:
    """(u - u') / 2 of paired rows: in the unit ball, with half the covariance of u as its second moment."""
    return 0.5 * (frame.rows(first) - frame.rows(second))


def _masses(u: jax.Array, weights: Any) -> Masses:
    norm = jnp.minimum(clip.row_norms(u), 1.0)
    square = norm * norm
    counted = jnp.ones_like(norm) if weights is None else weights
    beyond = (norm[:, None] > radii(u.dtype)[None, :]).astype(u.dtype)
    both = jnp.matmul(jnp.stack([counted, counted * square]), beyond, precision="highest")
    return Masses(both[0], both[1], jnp.sum(counted * square))


def _moments(u: jax.Array, weights: Any, at: Any) -> Moments:
    w = clip.clip_l2(u * (1.0 / at), 1.0)
    weighted = w if weights is None else w * weights[:, None]
    return Moments(jnp.matmul(weighted.T, w, precision="highest"), jnp.sum(weighted, axis=0))
