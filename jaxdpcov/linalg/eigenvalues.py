"""Eigenvalues for the eigenvectors of a noisy matrix: its own ones shrunk, or a noisy spectrum put in order.

Not batched: use `jax.vmap`. A mask (d,) of booleans marks the columns that matter; the others are zero rows and
columns, whose eigenvalues are known to be 0 and come first.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxdpcov.linalg.matrix import times_power_of_two


def eigh_masked(a: Array, mask: Any = None) -> tuple[Array, Array]:
    """Ascending eigenvalues (d,) and eigenvectors (d, d) of a symmetric matrix, unmasked columns before all others.

    Args:
        a: (d, d) symmetric, zero in the rows and columns that `mask` leaves out.
        mask: (d,) booleans, None for all.

    Returns:
        Eigenvalues, 0 for the columns left out, then ascending; and their eigenvectors as columns.

    Edge cases: an entry that is not finite makes all eigenvalues NaN. Derivatives are finite at ties, where that of an
    eigenvector does not exist: the part of it within the tie is taken as 0.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.eigenvalues import eigh_masked
    >>> eigh_masked(jnp.diag(jnp.array([3.0, 0.0, -1.0])), jnp.array([True, False, True]))[0].tolist()
    [0.0, -1.0, 3.0]
    """
    d = a.shape[0]
    if mask is None:
        mask = jnp.ones(d, bool)
    # The diagonal of the columns left out goes below the spectrum, at different places so that none tie.
    size = d * jax.lax.stop_gradient(jnp.max(jnp.abs(a)))
    below = -(2.0 + jnp.arange(d, dtype=a.dtype) / d) * jnp.maximum(size, jnp.finfo(a.dtype).tiny)
    values, vectors = _eigh(a + jnp.diag(jnp.where(mask, jnp.zeros_like(below), below)))
    return jnp.where(~of_columns(mask) & jnp.isfinite(values), jnp.zeros_like(values), values), vectors


def of_columns(mask: Array) -> Array:
    """(d,) booleans: which of the eigenvalues from `eigh_masked` belong to the columns of `mask`, namely the last ones.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.eigenvalues import of_columns
    >>> of_columns(jnp.array([True, False, True])).tolist()
    [False, True, True]
    """
    return jnp.arange(mask.shape[0]) >= mask.shape[0] - jnp.sum(mask)


def recompose(vectors: Array, values: Array) -> Array:
    """The symmetric matrix with these eigenvalues (d,) for the columns of `vectors` (d, d)."""
    product = jnp.matmul(vectors * values[None, :], vectors.T, precision="highest")
    return 0.5 * (product + product.T)


def rebuild(vectors: Array, values: Array, mask: Array, floor: Any, ceiling: Any) -> Array:
    """`recompose` with values moved to floor..ceiling (None: no end), and 0 for the columns that `mask` leaves out.

    Args:
        vectors, values: as from `eigh_masked` with this mask (d,).
        floor, ceiling: one number each, or None for the ceiling.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.eigenvalues import rebuild
    >>> values = jnp.array([0.0, -1.0, 3.0])
    >>> rebuild(jnp.eye(3), values, jnp.array([False, True, True]), 0.5, 2.0).diagonal().tolist()
    [0.0, 0.5, 2.0]
    """
    kept = jnp.where(of_columns(mask), jnp.clip(values, floor, ceiling), jnp.zeros_like(values))
    return jnp.where(mask[:, None] & mask[None, :], recompose(vectors, kept), 0.0)


def isotonic(values: Array, mask: Any = None) -> Array:
    """The nearest non-decreasing sequence to `values` (d,): at most as far from every non-decreasing one as they are.

    Args:
        values: (d,).
        mask: (d,) booleans, None for all: the entries left out must come first and become 0.

    Returns:
        (d,): entry k is the largest over i <= k of the smallest over j >= k of the mean of values[i..j].

    References: Robertson, Wright, Dykstra 1988, theorem 1.4.4 (max-min formula).

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.eigenvalues import isotonic
    >>> isotonic(jnp.array([3.0, 1.0, 2.0, 5.0])).tolist()
    [2.0, 2.0, 2.0, 5.0]
    """
    d = values.shape[0]
    if mask is None:
        mask = jnp.ones(d, bool)
    kept = jnp.where(mask, values, jnp.zeros_like(values))
    ends = jnp.concatenate([jnp.zeros_like(kept[:1]), jnp.cumsum(kept)])
    first, last = jnp.arange(d)[:, None], jnp.arange(d)[None, :]
    means = (ends[None, 1:] - ends[:-1, None]) / jnp.maximum(last - first + 1, 1).astype(values.dtype)
    means = jnp.where(first <= last, means, jnp.inf)
    smallest = jax.lax.cummin(means, axis=1, reverse=True)
    candidates = jnp.where((first <= last) & mask[:, None], smallest, -jnp.inf)
    return jnp.where(mask, jnp.max(candidates, axis=0), jnp.zeros_like(values))


def rotation_invariant(eigenvalues: Array, off: Any, mask: Any = None) -> Array:
    """Eigenvalues of a noisy matrix moved to where the signal's own quadratic forms are expected.

    For M = S + W with eigenvectors v_i, the nearest matrix to S with these eigenvectors has the eigenvalues v_i' S v_i.
    For rotation-invariant noise of std `off` beside the diagonal they tend, as d grows, to x_i - 2 off^2 Re g(x_i),
    where g is the Stieltjes transform of the eigenvalues x of M, known from M alone. Here it is the sum over all j of
    (x_i - x_j) / ((x_i - x_j)^2 + h^2), smoothed over h = sqrt(2) off, the size of the noise on one eigenvalue.

    Args:
        eigenvalues: (d,) of M, any order.
        off: standard deviation of the noise beside the diagonal, one number >= 0.
        mask: (d,) booleans over eigenvalues, None for all: those left out pull no other and stay.

    Returns:
        (d,): no longer ascending in all cases, and of either sign.

    Edge cases: unchanged at d = 1 and at off = 0; NaN where `off` is NaN.

    References: Stein 1975; Bun, Allez, Bouchaud, Potters 2016 (arXiv 1502.06736).

    >>> import jax.numpy as jnp
    >>> from jaxdpcov.linalg.eigenvalues import rotation_invariant
    >>> print(rotation_invariant(jnp.array([-1.0, 1.0]), 1.0).round(3))
    [-0.333  0.333]
    """
    if mask is None:
        mask = jnp.ones(eigenvalues.shape, bool)
    off = jnp.asarray(off, eigenvalues.dtype)
    width = math.sqrt(2.0) * jnp.where(off == 0, jnp.ones_like(off), off)
    gaps = (eigenvalues[:, None] - eigenvalues[None, :]) / width
    pull = jnp.where(mask[None, :], gaps / (gaps * gaps + 1.0), jnp.zeros_like(gaps))
    moved = eigenvalues - jnp.where(off == 0, jnp.zeros_like(width), width) * jnp.sum(pull, axis=1)
    return jnp.where(mask, moved, eigenvalues)


@jax.custom_jvp
def _eigh(a: Array) -> tuple[Array, Array]:
    """Ascending eigenvalues and eigenvectors at any scale; NaN eigenvalues where an entry is not finite."""
    finite = jnp.all(jnp.isfinite(a))
    safe = jnp.where(finite, a, jnp.zeros_like(a))
    exponent = jnp.frexp(jnp.max(jnp.abs(safe)))[1]
    values, vectors = jnp.linalg.eigh(times_power_of_two(safe, -exponent), symmetrize_input=False)
    return jnp.where(finite, jnp.ldexp(values, exponent), jnp.nan), vectors


@_eigh.defjvp
def _eigh_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (a,), (e,) = primals, tangents
    values, vectors = _eigh(a)
    inner = jnp.matmul(vectors.T, jnp.matmul(0.5 * (e + e.T), vectors, precision="highest"), precision="highest")
    gaps = values[None, :] - values[:, None]
    tie = jnp.abs(gaps) <= 8.0 * jnp.finfo(a.dtype).eps * jnp.max(jnp.abs(values))
    turn = jnp.where(tie, jnp.zeros_like(gaps), inner / jnp.where(tie, jnp.ones_like(gaps), gaps))
    return (values, vectors), (jnp.diagonal(inner), jnp.matmul(vectors, turn, precision="highest"))
