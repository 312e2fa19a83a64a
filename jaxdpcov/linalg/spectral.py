"""Spectral functions V f(values) V^T of symmetric matrices, with derivatives that stay finite at ties.

d f(A)[E] = V (F * V^T E V) V^T with the divided differences F_ij = (f_i - f_j)/(x_i - x_j), f'(x_i) at ties
(Daleckii and Krein 1965; Higham 2008, theorem 3.11). No eigenvector is differentiated, so nothing divides by a gap.
One custom rule serves all functions; each brings its divided difference, in closed form where it has a kink or a
singularity, so that no tolerance decides which eigenvalues count as equal.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.linalg.matrix import (
    Array,
    after,
    eye_like,
    matmul,
    per_matrix,
    symmetric,
    symmetrize,
    times_power_of_two,
    try_cholesky,
)


@dataclasses.dataclass(frozen=True)
class _Spectral:
    """A function of the ascending eigenvalues (..., d) and parameters (..., 1), with its divided differences."""

    value: Callable[..., Array]
    divided: Callable[..., Array]


def _elementwise(value: Callable[..., Array], pair: Callable[..., Array]) -> _Spectral:
    """A scalar function from f(x, *params) and its divided difference f[x, y](x, y, *params)."""

    def divided(x: Array, *params: Array) -> Array:
        return pair(x[..., :, None], x[..., None, :], *(p[..., None] for p in params))

    return _Spectral(value, divided)


def _eigh(a: Array) -> tuple[Array, Array]:
    """Ascending eigenvalues and eigenvectors at any scale; NaN eigenvalues where an entry is not finite.

    The solver sees finite entries at most 1 in size (scaled by a power of two, which is exact), so that it never
    iterates on NaN, and tiny or huge matrices do not rest on the scaling that some backends do and others do not.
    """
    finite = jnp.all(jnp.isfinite(a), axis=(-2, -1), keepdims=True)
    safe = jnp.where(finite, a, 0.0)
    exponent = jnp.frexp(jax.lax.stop_gradient(jnp.max(jnp.abs(safe), axis=(-2, -1), keepdims=True)))[1]
    values, vectors = jnp.linalg.eigh(times_power_of_two(safe, -exponent), symmetrize_input=False)
    return jnp.where(finite[..., 0], jnp.ldexp(values, exponent[..., 0]), jnp.nan), vectors


@functools.partial(jax.jit, static_argnums=0)
def _apply(function: _Spectral, a: Array, params: tuple[Array, ...]) -> Array:
    """V function(values) V^T, compiled as one piece also where a person calls it eagerly."""
    return _spectral(function, a, params)[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _spectral(function: _Spectral, a: Array, params: tuple[Array, ...]) -> tuple[Array, Array]:
    """V function(values) V^T, and the eigenvalues of `a` themselves, ascending."""
    values, vectors = _eigh(a)
    return _assemble(vectors, function.value(values, *params), values), values


def _assemble(vectors: Array, value: Array, values: Array) -> Array:
    # The addition keeps NaN in a function that would lose it, such as x**0.
    marked = jnp.where(jnp.isnan(values), jnp.nan, value)
    return symmetric(matmul(vectors * marked[..., None, :], vectors.mT))


@_spectral.defjvp
def _spectral_jvp(function: _Spectral, primals: Any, tangents: Any) -> tuple[Any, Any]:
    (a, params), (e, dparams) = primals, tangents
    values, vectors = _eigh(a)
    value, moved = jax.jvp(lambda p: function.value(values, *p), (params,), (dparams,))
    turned = matmul(vectors.mT, e, vectors)
    inner = function.divided(values, *params) * turned
    inner = inner + moved[..., None] * jnp.eye(a.shape[-1], dtype=a.dtype).reshape((1,) * (a.ndim - 2) + a.shape[-2:])
    found = _assemble(vectors, value, values), values
    return found, (symmetric(matmul(vectors, inner, vectors.mT)), jnp.diagonal(turned, axis1=-2, axis2=-1))


def spectral_map(a: Any, function: Callable[..., Array], *params: Any) -> Array:
    """Apply a smooth scalar function to the eigenvalues: V function(values, *params) V^T, one `eigh`.

    Args:
        a: matrix (..., d, d); its symmetric part is used.
        function: elementwise and differentiable, `function(x, *params)`; a named function rather than a fresh
            lambda in each call, and what is traced goes through `params`, not through a closure.
        params: numbers, or one per matrix of the batch; traced and differentiated.

    Returns:
        A symmetric matrix (..., d, d).

    Edge cases:
        Eigenvalues nearer to each other than sqrt(eps) times the largest |eigenvalue| count as tied, and the
        derivative there is function' at their midpoint: right where `function` is smooth at that scale. Functions
        with a kink or a singularity have routines of their own here (`psd_project`, `powm`, `logm`).
        First derivatives only (forward and reverse); second ones hold where all eigenvalues are well apart.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.spectral_map(jnp.zeros((2, 2)), jnp.exp).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    a = symmetrize(a)
    return _apply(_smooth(function), a, tuple(per_matrix("a parameter", p, a) for p in params))


@functools.lru_cache(maxsize=64)
def _smooth(function: Callable[..., Array]) -> _Spectral:
    """Divided differences of any smooth function: the quotient, or the derivative at the midpoint of a near tie."""

    def divided(x: Array, *params: Array) -> Array:
        lifted = tuple(p[..., None] for p in params)
        rows, cols = x[..., :, None], x[..., None, :]
        near = jnp.sqrt(jnp.finfo(x.dtype).eps) * jnp.max(jnp.abs(rows), axis=-2, keepdims=True)
        tied = jnp.abs(rows - cols) <= near
        middle = 0.5 * rows + 0.5 * cols
        slope = jax.jvp(lambda t: function(t, *lifted), (middle,), (jnp.ones_like(middle),))[1]
        value = function(x, *params)
        return jnp.where(tied, slope, (value[..., :, None] - value[..., None, :]) / jnp.where(tied, 1.0, rows - cols))

    return _Spectral(function, divided)


def _clip(x: Array, floor: Array, ceiling: Array) -> Array:
    return jnp.minimum(jnp.maximum(x, floor), ceiling)


def _clip_pair(x: Array, y: Array, floor: Array, ceiling: Array) -> Array:
    """In [0, 1] for every pair; 1/2 where both sit on a kink, which is what a central difference gives."""
    tied = x - y == 0
    kink = jnp.where((x == floor) | (x == ceiling), 0.5, 0.0)
    slope = jnp.where((x > floor) & (x < ceiling), 1.0, kink)
    quotient = (_clip(x, floor, ceiling) - _clip(y, floor, ceiling)) / jnp.where(tied, 1.0, x - y)
    return jnp.where(tied, slope.astype(x.dtype), quotient)


def _log_ratio(x: Array, y: Array) -> tuple[Array, Array, Array]:
    """(larger, ratio - 1, log ratio) for 0 <= x, y, precise for near and for far pairs; ratio 1 where both are 0."""
    high, low = jnp.maximum(x, y), jnp.minimum(x, y)
    safe = jnp.where(high > 0, high, 1.0)
    less = jnp.where(high > 0, (low - high) / safe, 0.0)
    ratio = low / safe
    return high, less, jnp.where((ratio < 0.5) & (high > 0), jnp.log(ratio), jnp.log1p(less))


def _power(x: Array, floor: Array, exponent: Array) -> Array:
    return jnp.power(jnp.maximum(x, floor), exponent)


def _power_pair(x: Array, y: Array, floor: Array, exponent: Array) -> Array:
    """high^(p-1) (r^p - 1)/(r - 1) at the clipped pair, r = low/high, times that of the clipping (chain rule)."""
    high, less, log_ratio = _log_ratio(jnp.maximum(x, floor), jnp.maximum(y, floor))
    tied = less == 0
    slope = jnp.where(tied, exponent, jnp.expm1(exponent * log_ratio) / jnp.where(tied, 1.0, less))
    outer = jnp.where((high == 0) & (exponent < 1), 0.0, jnp.power(high, exponent - 1.0) * slope)
    return jnp.where(exponent == 0, 0.0, outer) * _clip_pair(x, y, floor, jnp.full_like(floor, jnp.inf))


def _log(x: Array, floor: Array) -> Array:
    return jnp.log(jnp.maximum(x, floor))


def _log_pair(x: Array, y: Array, floor: Array) -> Array:
    high, less, log_ratio = _log_ratio(jnp.maximum(x, floor), jnp.maximum(y, floor))
    tied = less == 0
    outer = jnp.where(tied, 1.0, log_ratio / jnp.where(tied, 1.0, less)) / jnp.where(high > 0, high, jnp.inf)
    return outer * _clip_pair(x, y, floor, jnp.full_like(floor, jnp.inf))


_CLIP = _elementwise(_clip, _clip_pair)
_POWER = _elementwise(_power, _power_pair)
_LOG = _elementwise(_log, _log_pair)


def psd_project(a: Any, floor: Any = 0.0, ceiling: Any = None) -> Array:
    """The symmetric matrix with eigenvalues in [floor, ceiling] that is nearest in Frobenius norm: eigenvalues clipped.

    Args:
        a: matrix (..., d, d); its symmetric part is used.
        floor: smallest eigenvalue of the result, units of `a`; a number or one per matrix, traced and differentiable.
        ceiling: largest eigenvalue, likewise; None for no ceiling. Where it lies below the floor, the ceiling wins.

    Returns:
        A symmetric matrix (..., d, d): `a`'s symmetric part itself, unrounded, where a Cholesky factorisation (and its
        Frobenius norm, for the ceiling) shows that it obeys the bounds already (then no `eigh` runs, save under `vmap`
        or where another matrix of the batch needs it).

    Edge cases:
        A non-finite entry gives NaN throughout. Eigenvalues meet the bounds to rounding, about d eps times the largest.
        Derivatives (first order, in `a`, `floor` and `ceiling`) are finite everywhere; at an eigenvalue exactly on
        a bound they are the mean of both sides.

    References: Higham 1988, "Computing a nearest symmetric positive semidefinite matrix".

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.psd_project(jnp.diag(jnp.array([2.0, 1.0, -1.0])), ceiling=1.5).diagonal().tolist()
    [1.5, 1.0, 0.0]
    """
    return psd_project_with_lowest(a, floor, ceiling)[0]


def psd_project_with_lowest(a: Any, floor: Any = 0.0, ceiling: Any = None) -> tuple[Array, Array]:
    """`psd_project`, and the smallest eigenvalue (...) of `a`, or the floor where that is all that had to be known.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.spectral import psd_project_with_lowest
    >>> [float(psd_project_with_lowest(jnp.diag(jnp.array([2.0, x])))[1]) for x in (-1.0, 1.0)]
    [-1.0, 0.0]
    """
    a = symmetrize(a)
    low = per_matrix("floor", floor, a)
    high = None if ceiling is None else per_matrix("ceiling", ceiling, a)
    return _psd_project(a, low, high)


@jax.jit
def _psd_project(a: Array, floor: Array, ceiling: Array | None) -> tuple[Array, Array]:
    eye = eye_like(a)
    fixed, low, high = jax.lax.stop_gradient((a, floor, ceiling))
    inside = try_cholesky(fixed - low[..., None] * eye)[1]
    if high is not None:
        size = jnp.max(jnp.abs(fixed), axis=(-2, -1))
        unit = fixed / jnp.where(size > 0, size, jnp.ones_like(size))[..., None, None]
        inside &= size * jnp.sqrt(jnp.sum(unit * unit, axis=(-2, -1))) < high[..., 0]  # on it, both sides count
    top = jnp.full_like(floor, jnp.inf) if ceiling is None else ceiling
    known = jnp.broadcast_to(floor[..., 0], a.shape[:-2])

    def by_eigenvalues() -> tuple[Array, Array]:
        clipped, values = _spectral(_CLIP, after(a, inside), (floor, top))
        return jnp.where(inside[..., None, None], a, clipped), jnp.where(inside, known, values[..., 0])

    return jax.lax.cond(jnp.all(inside), lambda: (a, known), by_eigenvalues)


def psd_part(a: Array) -> Array:
    """`psd_project` at floor 0 of a symmetric matrix, always by its eigenvalues: for use inside loops."""
    zero = jnp.zeros((*a.shape[:-2], 1), a.dtype)
    return _spectral(_CLIP, a, (zero, jnp.full_like(zero, jnp.inf)))[0]


def powm(a: Any, exponent: Any, floor: Any = 0.0) -> Array:
    """The real power max(A, floor)^exponent of a symmetric matrix (..., d, d), eigenvalues below `floor` raised to it.

    Args:
        a: matrix (..., d, d), units u; its symmetric part is used.
        exponent: any real number, or one per matrix; traced and differentiable.
        floor: smallest eigenvalue used, units of `a`, >= 0; traced and differentiable.

    Returns:
        A symmetric matrix (..., d, d), units u^exponent.

    Edge cases:
        A negative power of a matrix that is singular after the floor is not finite. For an exponent below 1 the
        derivative inside the null space is infinite; 0 is given there.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.powm(4.0 * jnp.eye(2), 1.5).tolist()
    [[8.0, 0.0], [0.0, 8.0]]
    """
    a = symmetrize(a)
    return _apply(_POWER, a, (per_matrix("floor", floor, a), per_matrix("exponent", exponent, a)))


def sqrtm(a: Any) -> Array:
    """The symmetric square root of the PSD part of a matrix (..., d, d): negative eigenvalues count as 0; see `powm`.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.sqrtm(jnp.diag(jnp.array([4.0, 9.0]))).diagonal().tolist()
    [2.0, 3.0]
    """
    return powm(a, 0.5)


def inv_sqrtm(a: Any, floor: Any = 0.0) -> Array:
    """The symmetric inverse square root max(A, floor)^(-1/2) of a matrix (..., d, d); see `powm`.

    `floor` is absolute, in the units of `a`; without one, a singular matrix gives a result that is not finite.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.inv_sqrtm(jnp.diag(jnp.array([4.0, -1.0])), floor=0.25).diagonal().tolist()
    [0.5, 2.0]
    """
    return powm(a, -0.5, floor)


def logm(a: Any, floor: Any = 0.0) -> Array:
    """The symmetric logarithm log max(A, floor) of a matrix (..., d, d); not finite where singular after the floor.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.logm(jnp.eye(2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    a = symmetrize(a)
    return _apply(_LOG, a, (per_matrix("floor", floor, a),))


def top_projector(a: Any, k: int) -> Array:
    """The orthogonal projector (..., d, d) onto the eigenvectors of the `k` largest eigenvalues.

    Its derivative divides by the gaps between the k-th group and the rest, 0 being given where such a gap is 0.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.top_projector(jnp.diag(jnp.array([3.0, 1.0, 2.0])), 2).diagonal().tolist()
    [1.0, 0.0, 1.0]
    """
    a = symmetrize(a)
    if not 1 <= k <= a.shape[-1]:
        raise ValueError(f"k must satisfy 1 <= k <= d = {a.shape[-1]}, got {k}")
    return _apply(_top(k), a, ())


@functools.lru_cache(maxsize=64)
def _top(k: int) -> _Spectral:
    def value(x: Array) -> Array:
        d = x.shape[-1]
        return jnp.broadcast_to(jnp.asarray(np.arange(d) >= d - k, x.dtype), x.shape)

    def divided(x: Array) -> Array:
        f, gap = value(x), x[..., :, None] - x[..., None, :]
        return jnp.where(gap == 0, 0.0, (f[..., :, None] - f[..., None, :]) / jnp.where(gap == 0, 1.0, gap))

    return _Spectral(value, divided)
