"""The row map: sanitise, centre, clip and scale rows to frame units, in which every sensitivity is stated.

One map serves all mechanisms. A frame turns public bounds into `z`: the unit l2 ball, or the box [-1, 1]^d;
`covariance` and `mean` take results back to the user's units.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov._records import record
from jaxdpcov.bounds import Bounds, BoxBounds, L2Bounds


@record(static=("domain",))
class Frame:
    """Public bounds in the form that the row map needs; build it with `frame`.

    domain: "ball" (z in the unit l2 ball) or "box" (z in [-1, 1]^d).
    center, scale: (d,) data units, x = center + scale z. lower, upper: (d,) for the box (unused in a ball).
    live: (d,) bool, False for a constant column. valid: () bool, False when a traced bound is no bound.
    """

    domain: str
    center: Any
    scale: Any
    lower: Any
    upper: Any
    live: Any
    valid: Any

    def rows(self, x: jax.Array) -> jax.Array:
        """Map rows (m, d) in data units to z. Never raises on data: a row that is not finite becomes 0."""
        if self.domain == "ball":
            return clip_l2(x - self.center[None, :], self.scale[0]) * (1.0 / self.scale[0])
        half = jnp.where(self.live, self.scale, jnp.ones_like(self.scale))
        return jnp.clip((self._into_box(x) - self.center[None, :]) / half[None, :], -1.0, 1.0)

    def clip(self, x: jax.Array) -> jax.Array:
        """Rows (m, d) clipped to the bounds, in data units."""
        if self.domain == "ball":
            return self.center[None, :] + clip_l2(x - self.center[None, :], self.scale[0])
        return self._into_box(x)

    def _into_box(self, x: jax.Array) -> jax.Array:
        finite = jnp.all(jnp.isfinite(x), axis=-1, keepdims=True)
        sane = jnp.where(finite, x, jnp.broadcast_to(self.center[None, :], x.shape))
        return jnp.clip(sane, self.lower[None, :], self.upper[None, :])

    def covariance(self, z_covariance: jax.Array) -> jax.Array:
        """A (d, d) matrix of second-order moments in z, in data units."""
        # The product of two scales commutes to the last bit, so what is symmetric stays exactly so.
        return z_covariance * (self.scale[:, None] * self.scale[None, :])

    def mean(self, z_mean: jax.Array) -> jax.Array:
        """A (d,) mean in z, in data units."""
        return self.center + self.scale * z_mean


@functools.partial(jax.jit, static_argnames=("d", "dtype"))
def frame(bounds: Bounds, d: int, dtype: Any) -> Frame:
    """The frame of `Bounds.l2` or `Bounds.box` for d columns, in floating type `dtype`."""

    def column(value: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(value, dtype), (d,))

    if isinstance(bounds, L2Bounds):
        center = column(0.0 if bounds.center is None else bounds.center)
        radius = column(bounds.radius)
        valid = in_range(radius[0]) & jnp.all(jnp.isfinite(center))
        return Frame("ball", center, radius, center - radius, center + radius, jnp.ones(d, bool), valid)
    if isinstance(bounds, BoxBounds):
        lower, upper = column(bounds.lower), column(bounds.upper)
        scale = 0.5 * upper - 0.5 * lower
        valid = jnp.all(jnp.isfinite(lower) & jnp.isfinite(upper) & ((lower == upper) | in_range(scale)))
        return Frame("box", 0.5 * lower + 0.5 * upper, scale, lower, upper, (scale != 0) | ~valid, valid)
    raise TypeError(f"expected Bounds.l2 or Bounds.box, got {type(bounds).__name__}")


@record()
class BallOfBox(Frame):
    """A box put into the unit ball by u = z / sqrt(d), d its live columns: x = center + scale u. See `ball_frame`."""

    def rows(self, x: jax.Array) -> jax.Array:
        """Map rows (m, d) in data units to u; the norm of a corner is 1 up to rounding."""
        half = jnp.where(self.live, self.scale, jnp.ones_like(self.scale))
        reach = 1.0 / _root_of_live(self.live, x.dtype)
        return jnp.clip((self._into_box(x) - self.center[None, :]) / half[None, :], -reach, reach)

    def clip(self, x: jax.Array) -> jax.Array:
        """Rows (m, d) clipped to the box, in data units."""
        return self._into_box(x)


def in_range(scale: Any, dtype: Any = None) -> Any:
    """Whether radii or half-widths are positive and their squares, inverses too, are normal floats of their dtype.

    Beyond that range z or the covariance would be flushed to 0 or overflow.
    """
    about = jnp.finfo(scale.dtype if dtype is None else dtype)
    return (scale >= float(np.sqrt(float(about.tiny)))) & (scale <= float(np.sqrt(float(about.max))))


def ball_frame(bounds: Bounds, d: int, dtype: Any) -> Frame:
    """The frame of public bounds whose domain is always the unit ball: that of `Bounds.l2`, or `BallOfBox`."""
    made = frame(bounds, d, dtype)
    if made.domain == "ball":
        return made
    scale = made.scale * _root_of_live(made.live, dtype)
    return BallOfBox("ball", made.center, scale, made.lower, made.upper, made.live, made.valid)


def reach(of_ball: Frame) -> jax.Array:
    """The radius of the unit ball of a `ball_frame` in data units under l2 bounds, in half-widths under a box."""
    if isinstance(of_ball, BallOfBox):
        return _root_of_live(of_ball.live, of_ball.scale.dtype)
    return of_ball.scale[0]


def _root_of_live(live: jax.Array, dtype: Any) -> jax.Array:
    return jnp.sqrt(jnp.maximum(jnp.sum(live, dtype=dtype), 1.0))


def row_norms(u: jax.Array) -> jax.Array:
    """l2 norms (m,) of finite rows (m, d), computed as in `clip_l2`: exact under powers of two, no square overflows."""
    tiny = jnp.finfo(u.dtype).tiny
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(u), axis=-1, keepdims=True))
    unit = u * (1.0 / jnp.clip(largest, tiny, 1.0 / tiny))
    # A row of zeros keeps the square root differentiable by the floor, and its norm 0 by the factor.
    return largest[:, 0] * jnp.sqrt(jnp.maximum(jnp.sum(unit * unit, axis=-1), 0.5))


def clip_l2(x: jax.Array, radius: Any) -> jax.Array:
    """Scale rows (..., m, d) longer than `radius` onto the ball about 0; a non-finite row becomes 0.

    Idempotent and never overshooting: a row whose computed norm is at most `radius` stays bit for bit, a longer
    one is scaled by (radius / norm)(1 - (8 + d/2) eps), below what rounding in a norm of d terms can add.

    >>> import jax.numpy as jnp
    >>> print(clip_l2(jnp.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(3))
    [[0.6 0.8]
     [0.3 0.4]]
    """
    eps, tiny = jnp.finfo(x.dtype).eps, jnp.finfo(x.dtype).tiny
    # Asked of each entry: a maximum over a row does not always pass NaN on (XLA drops it in vectorised loops on CPUs).
    finite = jnp.all(jnp.isfinite(x), axis=-1, keepdims=True)
    x = jnp.where(finite, x, jnp.zeros_like(x))
    # The largest entry keeps squares in range. It cancels out of the norm, so no derivative passes through it.
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    # Within [tiny, 1/tiny] its inverse is a normal number; a subnormal one may be flushed to 0, and the norm with it.
    largest = jnp.clip(largest, tiny, 1.0 / tiny)
    unit = x * (1.0 / largest)
    # At least 1 but for rounding and rows below `tiny`; the floor keeps the square root differentiable there.
    norm = largest * jnp.sqrt(jnp.maximum(jnp.sum(unit * unit, axis=-1, keepdims=True), 0.5))
    inside = norm <= radius
    ratio = radius / jnp.where(inside, radius, norm)  # not radius / 0, whose derivative would not be finite
    # A subnormal ratio has too few digits for the margin: such a row is dropped to 0 instead.
    shrink = jnp.where(ratio >= tiny, ratio, jnp.zeros_like(ratio)) * (1.0 - (8 + 0.5 * x.shape[-1]) * eps)
    return x * jnp.where(inside, jnp.ones_like(norm), shrink)


def clip(x: jax.Array, bounds: Bounds) -> jax.Array:
    """Clip rows (m, d) to public bounds, in data units: what every mechanism does first.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import Bounds
    >>> clip(jnp.array([[0.0, 0.5], [1e6, -3.0]]), Bounds.box(0.0, 1.0)).tolist()
    [[0.0, 0.5], [1.0, 0.0]]
    """
    return frame(bounds, x.shape[-1], x.dtype).clip(x)
