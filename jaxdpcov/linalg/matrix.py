"""Symmetric matrices as arrays: checks, symmetric part, Cholesky that reports failure, isometric vectorisation."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def symmetrize(a: Any) -> Array:
    """The symmetric part (a + a^T)/2 of a matrix (..., d, d), exactly symmetric and free of overflow.

    >>> from jaxdpcov import linalg
    >>> linalg.symmetrize([[1.0, 4.0], [2.0, 1.0]]).tolist()
    [[1.0, 3.0], [3.0, 1.0]]
    """
    return symmetric(as_matrix("a", a))


def as_matrix(name: str, a: Any) -> Array:
    """`a` as a float array (..., d, d) with d >= 1; ValueError or TypeError naming it otherwise."""
    a = jnp.asarray(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] == 0:
        raise ValueError(f"{name} must be a square matrix (..., d, d), got shape {a.shape}")
    if jnp.issubdtype(a.dtype, jnp.integer) or a.dtype == jnp.bool_:
        a = a.astype(jnp.asarray(0.0).dtype)
    if a.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"{name} must be float32 or float64, got {a.dtype}")
    return a


def symmetric(a: Array) -> Array:
    return 0.5 * a + 0.5 * a.mT


def matmul(*factors: Array) -> Array:
    return functools.reduce(functools.partial(jnp.matmul, precision="highest"), factors)


def per_matrix(name: str, value: Any, a: Array) -> Array:
    """A number, or one number per matrix of the batch, as an array (..., 1) beside the eigenvalues (..., d)."""
    number = jnp.asarray(value).astype(a.dtype)
    try:
        return jnp.broadcast_to(number, a.shape[:-2])[..., None]
    except ValueError:
        raise ValueError(f"{name} must be one number, or one per matrix of the batch {a.shape[:-2]}, "
                         f"got shape {number.shape}") from None  # fmt: skip


@jax.custom_jvp
def _cholesky(a: Array) -> tuple[Array, Array]:
    lower = jnp.linalg.cholesky(a, symmetrize_input=False)
    ok = jnp.all(jnp.isfinite(lower), axis=(-2, -1))
    return jnp.where(ok[..., None, None], lower, eye_like(a)), ok


@_cholesky.defjvp
def _cholesky_jvp(primals: Any, tangents: Any) -> Any:
    lower, ok = _cholesky(*primals)
    solve = functools.partial(jax.lax.linalg.triangular_solve, lower, lower=True)
    inner = solve(solve(tangents[0], left_side=True), left_side=False, transpose_a=True)
    inner = jnp.where(ok[..., None, None], jnp.tril(inner) - 0.5 * inner * eye_like(inner), 0.0)
    return (lower, ok), (matmul(lower, inner), np.zeros(ok.shape, jax.dtypes.float0))


_compiled_cholesky = jax.jit(_cholesky)


def try_cholesky(a: Any) -> tuple[Array, Array]:
    """Cholesky factor of a matrix and whether it exists, without NaN.

    Args:
        a: matrix (..., d, d); its symmetric part is used.

    Returns:
        (L, ok): L lower triangular (..., d, d) with L L^T = a where `ok` (...) is True, the identity where `a` is not
        positive definite to rounding or has a non-finite entry. Derivatives of L are 0 where `ok` is False.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> lower, ok = linalg.try_cholesky(jnp.diag(jnp.array([1.0, -0.3])))
    >>> bool(ok), lower.diagonal().tolist()
    (False, [1.0, 1.0])
    """
    return _compiled_cholesky(symmetrize(a))


def after(a: Any, first: Any) -> Array:
    """`a` unchanged, to be computed once `first` is there.

    On a CPU, two independent batches of factorisations (`eigh`, Cholesky) in one program may run at a time, and each
    may then hold the threads that the other waits for, for good. Where a program has two, give what came of one to
    this function as `first`, and what comes back to the other.

    Args:
        a: array of floats, any shape.
        first: array of floats or booleans, any shape; its values and derivatives have no effect.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> linalg.after(jnp.ones(2), jnp.array([jnp.nan, 3.0])).tolist()
    [1.0, 1.0]
    """
    a = jnp.asarray(a)
    first = jax.lax.stop_gradient(jnp.asarray(first).astype(a.dtype))
    # Nothing here can be dropped by a compiler that does not know the finite numbers to be finite.
    nothing = 0.0 * jnp.sum(jnp.where(jnp.isfinite(first), first, jnp.zeros_like(first)))
    return a + jnp.where(jnp.isfinite(nothing), nothing, jnp.zeros_like(nothing))


def times_power_of_two(a: Array, exponent: Array) -> Array:
    """a 2^exponent, computed after `a` itself is stored; `exponent` is an integer array that broadcasts against `a`.

    Two products by halves of the exponent, each a normal number: exact unless the result is subnormal, as `jnp.ldexp`
    is, which takes apart the bits of each entry and costs more than ten times as much. Unstored, what `a` comes from
    would be computed anew for each entry that a factorisation reads.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.matrix import times_power_of_two
    >>> times_power_of_two(jnp.array([3.0, 0.5]), jnp.array(-1)).tolist()
    [1.5, 0.25]
    """
    half = exponent // 2
    one = jnp.ones((), a.dtype)
    return jax.lax.optimization_barrier(a) * jnp.ldexp(one, half) * jnp.ldexp(one, exponent - half)


def eye_like(a: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)


def svec(a: Any) -> Array:
    """The upper triangle, row by row, with off-diagonals times sqrt(2): (..., d(d+1)/2), ||svec(a)||_2 = ||a||_F.

    >>> from jaxdpcov import linalg
    >>> [round(float(x), 4) for x in linalg.svec([[1.0, 2.0], [2.0, 3.0]])]
    [1.0, 2.8284, 3.0]
    """
    a = symmetrize(a)
    rows, cols = np.triu_indices(a.shape[-1])
    weights = jnp.asarray(np.where(rows == cols, 1.0, math.sqrt(2.0)), a.dtype)
    return a[..., rows, cols] * weights.reshape((1,) * (a.ndim - 2) + weights.shape)


def smat(v: Any) -> Array:
    """The symmetric matrix (..., d, d) of a vector (..., d(d+1)/2): the inverse of `svec`.

    >>> from jaxdpcov import linalg
    >>> linalg.smat([1.0, 0.0, 3.0]).tolist()
    [[1.0, 0.0], [0.0, 3.0]]
    """
    v = jnp.asarray(v)
    d = (math.isqrt(8 * v.shape[-1] + 1) - 1) // 2 if v.ndim else 0
    if d == 0 or d * (d + 1) // 2 != v.shape[-1]:
        raise ValueError(f"v must have d(d+1)/2 entries on its last axis, got shape {v.shape}")
    if not jnp.issubdtype(v.dtype, jnp.floating):
        v = v.astype(jnp.asarray(0.0).dtype)
    rows, cols = np.triu_indices(d)
    where = np.zeros((d, d), np.int32)
    where[rows, cols] = where[cols, rows] = np.arange(rows.size)
    weights = jnp.asarray(np.where(np.eye(d, dtype=bool), 1.0, math.sqrt(0.5)), v.dtype)
    return v[..., where] * weights.reshape((1,) * (v.ndim - 1) + (d, d))
