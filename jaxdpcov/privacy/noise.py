"""Additive noise: the only door through which a number computed from the rows leaves the private side."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.privacy._draws import float_dtype, standard_gumbel, standard_laplace, standard_normal
from jaxdpcov.privacy.ledger import Entry

__all__ = [
    "Measured",
    "calibrate",
    "gaussian",
    "laplace",
    "standard_gumbel",
    "standard_laplace",
    "standard_normal",
    "symmetric_gaussian",
    "symmetric_laplace",
]


@record()
class Measured:
    """A statistic with its noise in it.

    value: the noisy statistic, in the units of what was measured.
    std: the standard deviation of the noise on each entry, same shape and units as `value`; 0 where an entry is a
        public constant, NaN where the budget was invalid. A pure function of public numbers.
    """

    value: Any
    std: Any


def gaussian(key: Any, value: Any, *, sensitivity: Any, rho: Any, what: str) -> tuple[Measured, Entry]:
    """The Gaussian mechanism: independent N(0, sensitivity^2 / (2 rho)) on every entry.

    **Formal guarantee.** rho-zCDP for every neighbouring relation under which `value` has l2 sensitivity at most
    `sensitivity` (Bun and Steinke 2016, Proposition 1.6), up to floating-point rounding: the noise must be large
    against the spacing of floats at the size of `value`. The draws are right up to 15.1 standard deviations.

    Args:
        key: one PRNG key, used up.
        value: the exact statistic, float32 or float64, any shape (whole numbers become JAX's default float).
        sensitivity: bound on the l2 norm of the change of `value` between neighbours, one number >= 0, its units.
        rho: zCDP budget, one number > 0.
        what: name of the statistic in the ledger.

    Returns:
        `(Measured, Entry)`; `Measured.std` has the shape of `value`.

    Edge cases:
        Nothing here raises on the numbers. A rho that is not a positive finite number, a sensitivity that is
        negative, NaN or infinite, and a quotient that under- or overflows the dtype make every entry NaN.
        Sensitivity 0 says that `value` is a public constant: it is returned as it is.

    References:
        Bun, Steinke (2016), arXiv 1605.02065.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import noise
    >>> measured, entry = noise.gaussian(
    ...     jax.random.key(0), jnp.zeros(3), sensitivity=2.0, rho=0.5, what="column sums")
    >>> measured.std.tolist(), entry.kind, entry.cost
    ([2.0, 2.0, 2.0], 'gaussian', 0.5)
    """
    exact = _statistic(value)
    scale = calibrate(sensitivity, rho, exact.dtype, squared=True)
    measured = _add(exact, standard_normal(key, exact.shape, exact.dtype), jnp.broadcast_to(scale, exact.shape), 1.0)
    return measured, Entry(what, "gaussian", "rho", sensitivity, scale, rho)


def symmetric_gaussian(
    key: Any,
    matrix: Any,
    *,
    sensitivity: Any,
    rho: Any,
    diag: Any = 1.0,
    off: Any = 2.0**-0.5,
    mask: Any = None,
    what: str,
) -> tuple[Measured, Entry]:
    """Symmetric Gaussian noise: std s diag on the diagonal and s off beside it, s = sensitivity / sqrt(2 rho).

    **Formal guarantee.** rho-zCDP where `sensitivity` is, between neighbours A and B, a bound on
    sqrt( sum_j (A_jj - B_jj)^2 / diag^2 + sum_{j<k} (A_jk - B_jk)^2 / off^2 ): the noise is then the Gaussian
    mechanism on the triangle divided by its weights, and mirroring is post-processing. The three pairs in use:

    - diag 1, off 1/sqrt(2) (default, the Gaussian orthogonal ensemble): that norm is the Frobenius norm of A - B.
    - diag 1, off 1 (Dong, Liang and Yi 2022): the norm of the triangle, at most the Frobenius norm.
    - diag sqrt(2/(d+1)), off 1: rows in a box, d non-constant columns; there the weighted norm is at most d/n.

    Args:
        key: one PRNG key, used up.
        matrix: (d, d) exact symmetric statistic, float32 or float64; its symmetric part is taken.
        sensitivity: bound on the weighted norm above, one number >= 0, units of `matrix`.
        rho: zCDP budget, one number > 0.
        diag: weight of the diagonal, one number > 0.
        off: weight of the other entries, one number > 0.
        mask: (d,) booleans, public: False marks a column known to be constant. Entries in its row and column pass
            without noise (std 0), so they must be public constants in `matrix`.
        what: name of the statistic in the ledger.

    Returns:
        `(Measured, Entry)`; value and std are (d, d) and exactly symmetric. `Entry.scale` is s.

    Edge cases:
        As in `gaussian`; a weight that is not a positive finite number makes every entry NaN too.

    References:
        Dong, Liang, Yi (2022), arXiv 2205.14324; Bun, Steinke (2016), arXiv 1605.02065.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import noise
    >>> measured, _ = noise.symmetric_gaussian(
    ...     jax.random.key(0), jnp.eye(2), sensitivity=1.0, rho=0.5, off=0.5, what="second moment")
    >>> measured.std.tolist(), bool((measured.value == measured.value.T).all())
    ([[1.0, 0.5], [0.5, 1.0]], True)
    """
    exact = _symmetric_statistic(matrix)
    scale = calibrate(sensitivity, rho, exact.dtype, squared=True)
    std = _triangle(exact.shape[0], _weigh(scale, diag, exact.dtype), _weigh(scale, off, exact.dtype), mask)
    draws = _square(standard_normal(key, _size(exact), exact.dtype), exact.shape[0])
    return _mirror(_add(exact, draws, std, 1.0)), Entry(what, "gaussian", "rho", sensitivity, scale, rho)


def laplace(key: Any, value: Any, *, sensitivity: Any, epsilon: Any, what: str) -> tuple[Measured, Entry]:
    """The Laplace mechanism: independent Laplace noise of scale b = sensitivity / epsilon on every entry.

    **Formal guarantee.** epsilon-DP for every neighbouring relation under which `value` has l1 sensitivity at most
    `sensitivity` (Dwork, McSherry, Nissim and Smith 2006), up to floating-point rounding as in `gaussian`. The
    draws are right up to 117 scales.

    Args:
        key: one PRNG key, used up.
        value: the exact statistic, float32 or float64, any shape.
        sensitivity: bound on the l1 norm of the change of `value` between neighbours, one number >= 0, its units.
        epsilon: pure-DP budget, one number > 0.
        what: name of the statistic in the ledger.

    Returns:
        `(Measured, Entry)`; `Measured.std` is sqrt(2) b in the shape of `value`, `Entry.scale` is b.

    Edge cases:
        As in `gaussian`: invalid numbers give NaN, sensitivity 0 no noise.

    References:
        Dwork, McSherry, Nissim, Smith (2006).

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import noise
    >>> _, entry = noise.laplace(jax.random.key(0), jnp.zeros(3), sensitivity=1.0, epsilon=0.5, what="sums")
    >>> float(entry.scale), entry.unit, entry.cost
    (2.0, 'epsilon', 0.5)
    """
    exact = _statistic(value)
    scale = calibrate(sensitivity, epsilon, exact.dtype)
    draws = standard_laplace(key, exact.shape, exact.dtype)
    measured = _add(exact, draws, jnp.broadcast_to(scale, exact.shape), 2.0**0.5)
    return measured, Entry(what, "laplace", "epsilon", sensitivity, scale, epsilon)


def symmetric_laplace(
    key: Any, matrix: Any, *, sensitivity: Any, epsilon: Any, mask: Any = None, what: str
) -> tuple[Measured, Entry]:
    """Symmetric Laplace noise: independent on the upper triangle with its diagonal, scale b, mirrored.

    **Formal guarantee.** epsilon-DP where `sensitivity` bounds the l1 norm of the change of the upper triangle
    with its diagonal: the Laplace mechanism on the triangle, and mirroring is post-processing.

    Args:
        key: one PRNG key, used up.
        matrix: (d, d) exact symmetric statistic, float32 or float64; its symmetric part is taken.
        sensitivity: bound on the l1 norm of the triangle's change, one number >= 0, units of `matrix`.
        epsilon: pure-DP budget, one number > 0.
        mask: (d,) booleans, public, as in `symmetric_gaussian`.
        what: name of the statistic in the ledger.

    Returns:
        `(Measured, Entry)`; value and std are (d, d) and exactly symmetric.

    Edge cases:
        As in `gaussian`.

    References:
        Dwork, McSherry, Nissim, Smith (2006).

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import noise
    >>> measured, _ = noise.symmetric_laplace(
    ...     jax.random.key(0), jnp.eye(2), sensitivity=1.0, epsilon=2.0, what="second moment")
    >>> measured.value.shape
    (2, 2)
    """
    exact = _symmetric_statistic(matrix)
    scale = calibrate(sensitivity, epsilon, exact.dtype)
    scales = _triangle(exact.shape[0], scale, scale, mask)
    draws = _square(standard_laplace(key, _size(exact), exact.dtype), exact.shape[0])
    measured = _mirror(_add(exact, draws, scales, 2.0**0.5))
    return measured, Entry(what, "laplace", "epsilon", sensitivity, scale, epsilon)


def calibrate(sensitivity: Any, budget: Any, dtype: Any, *, squared: bool = False) -> Array:
    """The noise scale sensitivity / budget, or sensitivity / sqrt(2 budget) when `squared`; NaN rather than too small.

    0 exactly where `sensitivity` is exactly 0 and the budget valid. NaN where the budget is not a positive finite
    number, the sensitivity is negative, NaN or infinite, or the quotient leaves the normal range of `dtype`
    (an underflow would be a release without noise). Finite derivatives where the result is finite.
    """
    bound, is_zero = _number("sensitivity", sensitivity, dtype)
    spent, _ = _number("rho" if squared else "epsilon", budget, dtype)
    valid = (spent > 0) & (spent < jnp.inf) & (bound >= 0) & (bound < jnp.inf)
    divisor = jnp.where(valid, spent, jnp.ones_like(spent))  # a harmless value: NaN would pass into the gradient
    scale = bound / (jnp.sqrt(2.0 * divisor) if squared else divisor)
    return jnp.where(valid & (is_zero | _normal(scale)), scale, jnp.nan)


def _weigh(scale: Array, weight: Any, dtype: Any) -> Array:
    """scale * weight, NaN unless the weight is positive and finite and a nonzero scale stays in the normal range."""
    factor, _ = _number("weight", weight, dtype)
    product = scale * factor
    valid = (factor > 0) & (factor < jnp.inf) & ((scale == 0) | _normal(product))
    return jnp.where(valid, product, jnp.nan)


def _normal(scale: Array) -> Array:
    return (scale >= jnp.finfo(scale.dtype).tiny) & (scale < jnp.inf)


def _number(name: str, number: Any, dtype: Any) -> tuple[Array, Array]:
    """`number` in `dtype`, and whether it is exactly zero before the cast; TypeError or ValueError for no number.

    A positive sensitivity must not pass for a public constant because it is small. A cast to float32 may round it to
    0, and compiled code takes subnormals for 0 in comparisons, even when it is asked about the bits (LLVM turns
    `bits << 1 == 0` back into a comparison of floats). So the bits are added up in two halves first: the sum below
    is 0 only for +0 and -0, since 3 low < 2^(half + 2) is no other multiple of 2^(half + 1).
    """
    if np.ndim(number) != 0:
        raise ValueError(f"{name} must be a single number, got shape {np.shape(number)}")
    host = None if isinstance(number, jax.Array) else _checks.concrete(name, number)
    if host is not None:
        with np.errstate(all="ignore"):
            return jnp.asarray(host.astype(dtype)), jnp.asarray(host == 0)
    if not jnp.issubdtype(number.dtype, jnp.floating):
        return number.astype(dtype), number == 0
    half = 4 * number.dtype.itemsize
    bits = number.view(jnp.dtype(f"uint{2 * half}"))
    high, low = bits >> half, bits & (2**half - 1)
    return number.astype(dtype), (high << (half + 1)) + 3 * low == 0


def _statistic(value: Any) -> Array:
    exact = jnp.asarray(value)
    if jnp.issubdtype(exact.dtype, jnp.integer) or exact.dtype == jnp.bool_:
        exact = exact.astype(float_dtype())
    float_dtype(exact.dtype)
    return exact


def _symmetric_statistic(matrix: Any) -> Array:
    """The symmetric part: a projection, so it lowers sensitivities if it moves them, and gradients stay symmetric."""
    exact = _statistic(matrix)
    if exact.ndim != 2 or exact.shape[0] != exact.shape[1]:
        raise ValueError(f"matrix must be square, got shape {exact.shape}")
    return 0.5 * exact + 0.5 * exact.T


def _triangle(d: int, diagonal: Array, beside: Array, mask: Any) -> Array:
    """(d, d) scales: `diagonal` on the diagonal, `beside` off it, 0 in masked rows and columns, NaN all over if any is.

    The scale beside the diagonal does not exist at d = 1, yet an invalid one spoils the release there too: the
    answer to an invalid argument does not depend on d.
    """
    scales = jnp.where(np.eye(d, dtype=bool), diagonal, beside)
    if mask is not None:
        keep = jnp.asarray(mask)
        if keep.shape != (d,) or keep.dtype != jnp.bool_:
            raise ValueError(f"mask must be ({d},) booleans, got {keep.dtype} of shape {keep.shape}")
        scales = jnp.where(keep[:, None] & keep[None, :], scales, jnp.zeros_like(scales))
    return jnp.where(jnp.isnan(diagonal) | jnp.isnan(beside), jnp.nan, scales)


def _add(exact: Array, draws: Array, scales: Array, std_per_scale: float) -> Measured:
    """exact + scales * draws; draws are finite, so scale 0 adds exactly nothing and scale NaN spoils the entry."""
    return Measured(exact + scales * draws, scales * std_per_scale)


def _size(matrix: Array) -> tuple[int]:
    """Entries of the upper triangle with its diagonal."""
    return (matrix.shape[0] * (matrix.shape[0] + 1) // 2,)


def _square(triangle: Array, d: int) -> Array:
    """(d, d) symmetric, from its upper triangle (d (d + 1)/2,) row by row."""
    i, j = (jax.lax.broadcasted_iota(np.int32, (d, d), axis) for axis in (0, 1))
    row, column = jnp.minimum(i, j), jnp.maximum(i, j)
    return triangle.at[row * (2 * d - 1 - row) // 2 + column].get(mode="promise_in_bounds")


def _mirror(measured: Measured) -> Measured:
    """The upper triangle copied onto the lower one, so that the two agree to the last bit."""
    upper = np.triu(np.ones(measured.value.shape, dtype=bool))
    return Measured(jnp.where(upper, measured.value, measured.value.T), measured.std)
