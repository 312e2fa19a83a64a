"""Queries on rows of the unit ball by their norms: masses by level, and moments of rows clipped at a radius.

The radius of level j is 2^(-j/4). Level j holds the rows with norms up to it and above that of level j + 1, and none of
the rows u = 0. `frame` is a `clip.ball_frame`; norms count as at most 1, whatever rounding says. Everything here is
exact and private: it leaves through `privacy` only.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.data import clip
from jaxdpcov.linalg import eigenvalues

#: Levels between a radius and its half. Noise goes with the square of the radius: four of them leave at most 1.41
#: times the noise of the best radius, 1.19 on average; one would leave 4 and 2.
PER_OCTAVE = 4


class Masses(NamedTuple):
    """Sums over rows by norm, in units of u.

    beyond: (L,) weight of the rows longer than the radius of each level. mass: (L,) their sum of |u|^2.
    total: () the sum of |u|^2 over all rows.
    """

    beyond: Any
    mass: Any
    total: Any


class Moments(NamedTuple):
    """Sums over rows clipped at a radius and divided by it: second (d, d), first (d,).

    spectrum: (d,) the eigenvalues of `second` as `linalg.eigenvalues.eigh_masked` has them, where they are known.
    """

    second: Any
    first: Any
    spectrum: Any = None


def count(dtype: Any) -> int:
    """The number of levels L: 80 octaves of them, or 60 in float32, at the end of whose normal numbers is 4^-60."""
    return PER_OCTAVE * (80 if jnp.finfo(dtype).bits >= 64 else 60)


def radii(dtype: Any) -> jax.Array:
    """(L,) the radii, from 1 down."""
    return radius(jnp.arange(count(dtype)), dtype)


def radius(level: Any, dtype: Any) -> jax.Array:
    """2^(-level/4) for level >= 0, exact at whole octaves, and in one ratio from octave to octave."""
    level = jnp.asarray(level)
    return jnp.ldexp(_in_octave(dtype)[level % PER_OCTAVE], -(level // PER_OCTAVE))


def _in_octave(dtype: Any) -> jax.Array:
    """(4,) the radii above 1/2."""
    return jnp.asarray(2.0 ** (-np.arange(PER_OCTAVE) / PER_OCTAVE), dtype)


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
    """`Moments` of one block of rows clipped at a level's radius; a `LevelTable` answers this from memory."""
    return _moments(frame.rows(x), weights, radius(level, x.dtype))


def moments_at_radius(x: jax.Array, weights: Any, frame: clip.Frame, at: Any) -> Moments:
    """`Moments` of one block of rows clipped at any radius in (0, 1]."""
    return _moments(frame.rows(x), weights, at)


def pair_moments(first: jax.Array, second: jax.Array, valid: Any, frame: clip.Frame, at: Any) -> Moments:
    """`Moments` of half differences of paired rows, clipped at a radius in (0, 1]."""
    return _moments(half_differences(first, second, frame), valid, at)


def moments_by_level(x: jax.Array, weights: Any, frame: clip.Frame, which: Any) -> tuple[Moments, Moments]:
    """Sums over the rows of each level in `which` (K,): of rows divided by its radius, and of rows divided by |u|.

    Shapes (K, d, d) and (K, d). The two are all that `Moments` at every level are made of. The last level holds all
    shorter rows too.
    """
    u = frame.rows(x)
    norm = jnp.minimum(clip.row_norms(u), 1.0)
    top = radius(which, x.dtype)
    below = radius(which + 1, x.dtype)
    bottom = jnp.where(which == count(x.dtype) - 1, jnp.zeros_like(top), below)
    inside = (norm[:, None] <= top[None, :]) & (norm[:, None] > bottom[None, :])

    def sums(of_level: jax.Array, at: jax.Array) -> Moments:
        return _moments(u, of_level if weights is None else of_level * weights, at)

    levels = inside.T.astype(x.dtype)
    # A radius below every norm of the level sends its rows to the sphere; of the last level nobody asks.
    whole, sphere = (jax.lax.map(lambda each: sums(*each), (levels, at)) for at in (top, below))
    return whole, sphere


@jax.jit
def table(by_level: tuple[Moments, Moments], live: jax.Array) -> Moments:
    """`Moments` with spectra at the radii of K successive levels and the next, K + 1 in all, from `moments_by_level`.

    live: (d,) booleans, the columns that are not constant.
    At the radius of level t, longer rows (levels j < t) are on the sphere, and the others count 2^((t-j)/4) of their
    own level's unit in the first moment, the square of that in the second.
    """
    whole, sphere = by_level
    size = whole.first.shape[0]
    t, j = np.arange(size + 1)[:, None], np.arange(size)[None, :]
    share = np.where(j >= t, 2.0 ** (np.minimum(t - j, 0) / PER_OCTAVE), 0.0)

    def sums(power: int, inner: jax.Array, outer: jax.Array) -> jax.Array:
        inside, outside = (jnp.asarray(weights, inner.dtype) for weights in (share**power, j < t))
        at = functools.partial(jnp.tensordot, axes=1, precision="highest")
        return at(inside, inner) + at(outside, outer)

    second = sums(2, whole.second, sphere.second)
    spectrum = jax.lax.map(lambda one: eigenvalues.eigh_masked(one, live)[0], second)
    return Moments(second, sums(1, whole.first, sphere.first), spectrum)


def half_differences(first: jax.Array, second: jax.Array, frame: clip.Frame) -> jax.Array:
    """(u - u') / 2 of paired rows: in the unit ball, with half the covariance of u as its second moment."""
    return 0.5 * (frame.rows(first) - frame.rows(second))


def _masses(u: jax.Array, weights: Any) -> Masses:
    norm = jnp.minimum(clip.row_norms(u), 1.0)
    square = norm * norm
    counted = jnp.ones_like(norm) if weights is None else weights
    # norm = part 2^-octave with part in (1/2, 1]: exact, so that a row is compared with the radii themselves.
    part, power = jnp.frexp(norm)
    whole = part == 0.5
    part, octave = jnp.where(whole, 1.0, part), jnp.where(whole, 1 - power, -power)
    octaves = count(u.dtype) // PER_OCTAVE
    octave = jnp.where(norm > 0, octave, -1)  # a zero row is in none
    of_octave = (octave[:, None] == jnp.arange(octaves, dtype=octave.dtype)[None, :]).astype(u.dtype)
    # The first column holds all rows of the octave: none of them is beyond its first radius.
    longer = (part[:, None] > _in_octave(u.dtype)[None, :]).at[:, 0].set(True).astype(u.dtype)
    each = jnp.stack([counted, counted * square], axis=1)[:, :, None] * longer[:, None, :]
    sums = jnp.matmul(of_octave.T, each.reshape(-1, 2 * PER_OCTAVE), precision="highest")
    sums = sums.reshape(octaves, 2, PER_OCTAVE)
    before = jnp.cumsum(sums[:, :, 0], axis=0) - sums[:, :, 0]
    beyond = before[:, :, None] + sums.at[:, :, 0].set(0.0)
    by_level = jnp.moveaxis(beyond, 1, 0).reshape(2, -1)
    return Masses(by_level[0], by_level[1], jnp.sum(counted * square))


def _moments(u: jax.Array, weights: Any, at: Any) -> Moments:
    w = clip.clip_l2(u * (1.0 / at), 1.0)
    weighted = w if weights is None else w * weights[:, None]
    return Moments(jnp.matmul(weighted.T, w, precision="highest"), jnp.sum(weighted, axis=0))
