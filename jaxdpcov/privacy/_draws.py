"""Draws of the standard normal, Laplace and Gumbel laws that stay right far out in the tails, in both precisions.

Each draw starts from the distance p of a uniform number to the nearer end of (0, 1), held as
p = 2^-(halvings + 1) * fraction: `halvings` counts the leading zeros of a long run of random bits, so p has its
full relative precision down to 2^-170, far below the smallest float32. The maps to the three laws work on
-log p and never form 1 - p where that would lose digits.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxdpcov import _checks

_LOG2 = math.log(2.0)
_EXTRA_WORDS = 4  # 128 bits beyond an entry's own: the draws end where p < 2^-169

# Rational approximations of the normal quantile: Wichura (1988), Algorithm AS 241, routines PPND7 (relative error
# 1e-7) and PPND16 (1e-16). Numerator and denominator in ascending order, for the centre, the near and the far tail.
_PPND7 = (
    ((3.3871327179, 50.434271938, 159.29113202, 59.109374720), (1.0, 17.895169469, 78.757757664, 67.187563600)),
    ((1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103), (1.0, 0.73700164250, 0.12021132975)),
    ((6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997), (1.0, 0.24197894225, 0.012258202635)),
)
_PPND16 = (
    (
        (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
        (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
         21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
    ),
    (
        (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
        (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
         0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
    ),
    (
        (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
         0.0265321895265761230930, 0.00124266094738807843860, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
        (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
         7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
    ),
)  # fmt: skip


def standard_normal(key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Array:
    """Independent N(0, 1) draws with the right tail mass up to 15.1 standard deviations, in float32 and float64.

    `jax.random.normal` in float32 never exceeds 5.42 (8.29 in float64): a difference of two neighbouring
    statistics could push the value past the end of such noise, where it shows. Here |z| > t has the normal law's
    probability down to 2^-169 (the last standard deviation is drawn at |z| = 15.1); the relative error of one
    draw's value is about 1e-7 (float32) or 1e-15 (float64). Central draws lie on the grid of a 22-bit (float32) or
    51-bit (float64) uniform number, never zero.

    Args:
        key: one PRNG key, used up.
        shape: shape of the result.
        dtype: float32 or float64; None is JAX's default float type.

    Returns:
        An array of `shape`. Finite always. The work does not depend on the values drawn.

    References:
        Wichura (1988), Algorithm AS 241; Mironov (2012) on what the ends of a sampler give away.

    >>> import jax
    >>> from jaxdpcov.privacy.noise import standard_normal
    >>> standard_normal(jax.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _draw(_normal, _checks.typed_key(key), tuple(shape), float_dtype(dtype))


def standard_laplace(key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Array:
    """Independent Laplace draws of scale 1 (density e^-|x| / 2), right up to |x| = 117; see `standard_normal`.

    `jax.random.laplace` in float32 stops at 16.6.
    """
    return _draw(_laplace, _checks.typed_key(key), tuple(shape), float_dtype(dtype))


def standard_gumbel(key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Array:
    """Independent standard Gumbel draws, right from -4.7 to 117 (mass beyond: 2^-169 on each side).

    `jax.random.gumbel` in float32 stops at 15.9: a candidate 16 noise scales behind could never be chosen.
    """
    return _draw(_gumbel, _checks.typed_key(key), tuple(shape), float_dtype(dtype))


def normal_quantile(minus_log_p: Array, p: Array) -> Array:
    """The z >= 0 with P(N > z) = p for 0 < p <= 1/2; `minus_log_p` rules in the tail, where p may have underflowed."""
    centre, near, far = _PPND7 if minus_log_p.dtype == np.float32 else _PPND16
    q = 0.5 - p
    root = jnp.sqrt(minus_log_p)
    tail = jnp.where(root <= 5.0, _ratio(near, root - 1.6), _ratio(far, root - 5.0))
    return jnp.where(q <= 0.425, q * _ratio(centre, 0.180625 - q * q), tail)


def float_dtype(dtype: Any = None) -> np.dtype:
    """`dtype` as float32 or float64 (None: JAX's default); TypeError for a type in which the noise is not shaped."""
    name = np.dtype(jnp.result_type(float) if dtype is None else dtype)
    if name not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"noise is drawn in float32 or float64, got {name}")
    if jax.dtypes.canonicalize_dtype(name) != name:
        raise TypeError("float64 noise needs jax_enable_x64; it is off")
    return name


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(law: Callable[..., Array], key: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """One compiled function for each law, shape and dtype; inlined inside a caller's jit.

    The draws are made on a square grid (see `_nearer_end`) and laid out in `shape` at the end.
    """
    size = math.prod(shape)
    columns = max(math.isqrt(max(size - 1, 0)) + 1, 1)
    rows = -(-size // columns)
    return _held(law(*_nearer_end(key, rows, columns, dtype))).reshape(-1)[:size].reshape(shape)


def _held(x: Array) -> Array:
    """`x`, computed once: XLA copies cheap-looking arithmetic into every consumer of it, save across a loop.

    Without it a release of 50 columns in a batch draws its noise about ten times over: five times the time of the
    whole release (jaxlib 0.10.2, CPU, where `optimization_barrier` is gone before fusion).
    """
    return lax.fori_loop(0, 2, lambda i, x: jnp.where(i == 2, jnp.zeros_like(x), x), x)


def _normal(sign: Array, halvings: Array, fraction: Array) -> Array:
    return sign * normal_quantile(*_distance(halvings, fraction))


def _laplace(sign: Array, halvings: Array, fraction: Array) -> Array:
    # |x| = -log of the uniform number 2 p, one halving fewer. Both terms are >= 0: no cancellation near 0.
    return sign * (halvings * _LOG2 - jnp.log(fraction))


def _gumbel(sign: Array, halvings: Array, fraction: Array) -> Array:
    # U = p: -log(-log p).  U = 1 - p: -log(-log1p(-p)) = -log p - log(-log1p(-p) / p), where the ratio (1 to 1.39)
    # stays exact when p itself would underflow.
    minus_log, p = _distance(halvings, fraction)
    return jnp.where(sign < 0, -jnp.log(minus_log), minus_log - jnp.log(-jnp.log1p(-p) / p))


def _nearer_end(key: Array, rows: int, columns: int, dtype: np.dtype) -> tuple[Array, Array, Array]:
    """Sign (+-1), halvings g and fraction v in (1/2, 1) of p = 2^-(g+1) v, p uniform on (0, 1/2), on a grid.

    Each entry owns 41 bits (float32) or 44 bits (float64) for g, and g counts their leading zeros. Only an entry
    whose own bits are all zero (odds 2^-41) reads on, in 128 bits that are the exclusive-or of one word of its row
    and one of its column. So each entry's law is exact and any three are independent; the joint
    law is that of independent entries unless four zero runs fall on the corners of a rectangle, odds below
    size^2 2^-166 (1e-38 for a million entries). It costs three times fewer bits than a long run for each entry.
    """
    owned, cells = (2 if dtype == np.float32 else 3), rows * columns
    # All bits in one call: each call of the generator costs a fifth of a second of compilation.
    bits = jax.random.bits(key, (owned * cells + _EXTRA_WORDS * (rows + columns),), jnp.uint32)
    first, second, *rest = (bits[i * cells : (i + 1) * cells].reshape(rows, columns) for i in range(owned))
    third = rest[0] if rest else None
    extra = bits[owned * cells :].reshape(_EXTRA_WORDS, rows + columns)
    return _assemble(first, second, third, extra[:, :rows, None], extra[:, None, rows:], dtype)


def _assemble(
    first: Array, second: Array, third: Array | None, by_row: Array, by_column: Array, dtype: np.dtype
) -> tuple[Array, Array, Array]:
    """The pure part of `_nearer_end`: `first` and the low bits of `second` count halvings, the next one is the sign,
    and the high bits of `second`, with all of `third` in float64, are the fraction."""
    high_bits = 22 if third is None else 19
    rest_bits = 31 - high_bits
    digits = (second >> np.uint32(32 - high_bits)).astype(jnp.int32).astype(dtype)
    if third is not None:
        digits = digits * 2.0**32 + third.astype(dtype)
    fraction_bits = high_bits if third is None else high_bits + 32
    fraction = 0.5 + (digits + 0.5) * 2.0 ** -(fraction_bits + 1)  # midpoints: never 1/2, never 1
    negative = (second >> np.uint32(rest_bits)) & np.uint32(1)
    sign = 1.0 - 2.0 * negative.astype(jnp.int32).astype(dtype)

    grid = (_EXTRA_WORDS, *first.shape)
    extra = jnp.broadcast_to(by_row, grid) ^ jnp.broadcast_to(by_column, grid)
    zeros = lax.clz(extra[_EXTRA_WORDS - 1])
    for word in reversed(range(_EXTRA_WORDS - 1)):
        zeros = jnp.where(extra[word] == 0, zeros + np.uint32(32), lax.clz(extra[word]))
    rest = second << np.uint32(32 - rest_bits)
    halvings = jnp.where(rest == 0, zeros + np.uint32(rest_bits), lax.clz(rest))
    halvings = jnp.where(first == 0, halvings + np.uint32(32), lax.clz(first))
    return sign, halvings.astype(jnp.int32).astype(dtype), fraction


def _distance(halvings: Array, fraction: Array) -> tuple[Array, Array]:
    """-log p and p = 2^-(halvings + 1) fraction, p held at 2^-101 or more so that float32 never underflows."""
    minus_log = (halvings + 1.0) * _LOG2 - jnp.log(fraction)
    return minus_log, fraction * _power_of_two(-1.0 - jnp.minimum(halvings, 100.0))


def _power_of_two(exponent: Array) -> Array:
    """2^exponent of whole numbers in the normal range, by its bits: `jnp.ldexp` takes apart what it scales."""
    about = jnp.finfo(exponent.dtype)
    integer = np.int64 if about.bits == 64 else np.int32
    biased = exponent.astype(integer) + np.asarray(1 - about.minexp, integer)
    return lax.bitcast_convert_type(biased << np.asarray(about.nmant, integer), exponent.dtype)


def _ratio(terms: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    """Numerator over denominator by Horner's rule; plain floats keep the dtype (and weakness) of x."""
    above, below = (_horner(coefficients, x) for coefficients in terms)
    return above / below


def _horner(coefficients: tuple[float, ...], x: Array) -> Array:
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        total = total * x + coefficient
    return total
