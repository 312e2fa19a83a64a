"""The exact total variation distance of two normal distributions on the line, with relative precision also near 0."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.linalg.matrix import Array

#: Gauss-Legendre nodes and weights on (-1, 1): exact to rounding for the normal density over an interval of length 1.
_RULE = tuple(zip(*(x.tolist() for x in np.polynomial.legendre.leggauss(10))))
#: Shift beyond which the distance is 1 to rounding, whatever the wider one's spread in floating point.
_FAR = 1e15


@jax.custom_jvp
def line(log_ratio: Array, shift: Array) -> Array:
    """TV(N(0, 1), N(shift, e^log_ratio)), elementwise; its derivative is that of a set held fixed (envelope theorem).

    The two densities cross at two points, x of the narrower one's units, and the distance is what the narrower one has
    more of between them. Each end adds a mass of the standard normal density between x and (x - shift)/sigma, and no
    difference of near numbers is formed. Derivative 0 is given where both arguments are 0.
    """
    _, _, near, width, far, far_width = _ends(log_ratio, shift)
    return _mass(near, width) + _mass(far, far_width)


def _ends(log_ratio: Array, shift: Array) -> tuple[Array, ...]:
    """(s, delta; start and width of the mass at the end toward the shift; the same for the other end).

    s >= 0 is the log ratio and delta >= 0 the shift in units of the narrower one, sigma = e^{s/2}. The ends are the
    roots of alpha x^2 + 2 beta x - gamma = 0, the right one > 0 and the left one < 0 (at -infinity where s = 0).
    """
    s = jnp.abs(log_ratio)
    delta = jnp.minimum(jnp.abs(shift) * jnp.exp(0.5 * jnp.maximum(-log_ratio, 0.0)), _FAR)
    shrink = jnp.exp(-0.5 * s)
    alpha, beta, gamma = -jnp.expm1(-s), delta * shrink**2, (delta * shrink) ** 2 + s
    reach = beta + jnp.sqrt(beta**2 + alpha * gamma)
    right = jnp.where(reach > 0, gamma / jnp.where(reach > 0, reach, 1.0), 1.0)
    left = jnp.where(alpha > 0, reach / jnp.where(alpha > 0, alpha, 1.0), jnp.inf)
    far = (left + delta) * shrink
    return s, delta, (right - delta) * shrink, delta * shrink - right * jnp.expm1(-0.5 * s), far, s / (left + far)


def _density(x: Array) -> Array:
    return jnp.exp(-0.5 * x * x) * math.sqrt(0.5 / math.pi)


def _mass(start: Array, width: Array) -> Array:
    """Standard normal mass of (start, start + width)."""
    short = jnp.minimum(width, 1.0)
    small = sum(0.5 * w * _density(start + short * (0.5 + 0.5 * x)) for x, w in _RULE) * short
    scale = math.sqrt(0.5)
    return jnp.where(width < 1, small, 0.5 * (jax.lax.erf(scale * (start + width)) - jax.lax.erf(scale * start)))


@line.defjvp
def _line_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (log_ratio, shift), (by_ratio, by_shift) = primals, tangents
    s, delta, near, width, far, far_width = _ends(log_ratio, shift)
    # In units of the narrower one, the wider one's mass between the ends moves with its spread and with its place.
    ends = _density(near) * near + jnp.where(jnp.isfinite(far), _density(far) * far, 0.0)
    place = (_density(near) - _density(far)) * jnp.exp(-0.5 * s)
    moved = jnp.where(shift >= 0, by_shift, -by_shift) * jnp.exp(0.5 * jnp.maximum(-log_ratio, 0.0))
    swapped = log_ratio < 0
    slope = 0.5 * ends * jnp.where(swapped, -by_ratio, by_ratio)
    slope = slope + place * (moved - jnp.where(swapped, 0.5 * delta * by_ratio, 0.0))
    return _mass(near, width) + _mass(far, far_width), jnp.where((s == 0) & (delta == 0), 0.0, slope)
