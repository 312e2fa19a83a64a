"""Tail bounds of the noise: values that its norms exceed with probability at most b, proven for every d >= 1.

All are for noise of scale one: standard normal diagonal for the Gaussian matrices, Laplace scale 1 for the Laplace
ones; multiply by the scale. Three laws of symmetric matrices, independent on the upper triangle and mirrored:
"goe" (off-diagonal variance 1/2), "sgw" (variance 1 everywhere) and "laplace". They are public: nothing here sees
rows. Names are those of Dong, Liang and Yi (2022), whose own looser forms come with `constants="paper"`.

Two facts about Gaussian vectors carry the proofs. f is a convex function with Lipschitz constant L, z_b the upper
b-quantile of N(0, 1).
(i) f(g) has an upper b-quantile of at most E f(g) + L z_b for b <= 1/2: by Gaussian isoperimetry it is at most
    median + L z_b (Borell; Sudakov and Tsirelson), and the median of a convex f is at most its mean (Kwapien 1994).
(ii) sum_i a_i (g_i^2 - 1) exceeds 2 |a|_2 sqrt(x) + 2 |a|_inf x with probability at most e^-x for a >= 0 (Laurent and
    Massart 2000, Lemma 1).
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxdpcov import _checks
from jaxdpcov.privacy._draws import normal_quantile

_CONSTANTS = ("proven", "paper")


def eta(d: int, b: Any, *, noise: str = "gaussian", constants: str = "proven") -> Array:
    """Bound on the l2 norm of d independent draws: ||v|| <= eta with probability at least 1 - b.

    Args:
        d: number of entries, static, >= 1.
        b: failure probability in (0, 1), number or traced.
        noise: "gaussian" for N(0, I), "laplace" for Laplace scale 1.
        constants: "proven", or "paper" for the form of Dong, Liang and Yi (2022).

    Returns:
        A number in the dtype of `b` (weakly typed for a Python float). NaN for a traced b outside (0, 1).

    Edge cases:
        Exact at d = 1 (both laws) and at d = 2 (Gaussian).

    References:
        Laurent, Massart (2000); Kwapien (1994); Dong, Liang, Yi (2022), arXiv 2205.14324.

    >>> from jaxdpcov.privacy import tails
    >>> round(float(tails.eta(1, 0.05)), 4)
    1.96
    """
    share = _arguments(d, b, noise, ("gaussian", "laplace"), constants)
    if noise == "laplace":
        if constants == "paper":
            return 1.5 * math.sqrt(d) + _paper_laplace_rate(d) * jnp.log(2.0 / share)
        return _laplace_norm(share, entries=d, energy=2.0 * d, variance=20.0 * d, largest=1.0, width=math.sqrt(d))
    x = -jnp.log(share)
    from_squares = jnp.sqrt(d + 2.0 * jnp.sqrt(d * x) + 2.0 * x)  # (ii), a = 1
    if constants == "paper":
        return from_squares
    if d == 1:
        return _upper_quantile(share / 2.0)
    if d == 2:
        return jnp.sqrt(2.0 * x)  # ||v||^2 / 2 is exponential
    return jnp.minimum(from_squares, _mean_norm(d) + jnp.maximum(_upper_quantile(share), 0.0))  # (i), L = 1


def upsilon(d: int, b: Any, *, noise: str = "goe", constants: str = "proven") -> Array:
    """Bound on the spectral norm of a (d, d) noise matrix, exceeded with probability at most b.

    Args:
        d: number of rows, static, >= 1.
        b: failure probability in (0, 1), number or traced.
        noise: "goe", "sgw" or "laplace".
        constants: "proven", or "paper" (d >= 2), whose Gaussian form is for "sgw" and holds for "goe" too.

    Returns:
        A number in the dtype of `b` (weakly typed for a Python float). NaN for a traced b outside (0, 1).

    Edge cases:
        Exact at d = 1. `constants="paper"` has log d in a denominator and raises at d = 1.

    References:
        Sudakov-Fernique comparison: Vershynin (2018), Theorem 7.2.11; Tropp (2012), arXiv 1004.4389, Theorem 3.6;
        Dong, Liang, Yi (2022), arXiv 2205.14324.

    >>> from jaxdpcov.privacy import tails
    >>> bool(tails.upsilon(40, 0.05, noise="goe") < tails.upsilon(40, 0.05, noise="sgw"))
    True
    """
    share = _arguments(d, b, noise, ("goe", "sgw", "laplace"), constants)
    if constants == "paper":
        if d == 1:
            raise ValueError('constants="paper" needs d >= 2, got d = 1')
        theta = min((math.log(d) / d) ** 0.3, 0.5)
        reach = math.log(d) if noise == "laplace" else math.sqrt(math.log(d))
        mean = (1.0 + theta) * (2.0 * math.sqrt(d) + 6.0 * reach / math.sqrt(math.log1p(theta)))
        x = jnp.log(2.0 / share)
        if noise == "laplace":
            return mean + math.sqrt(2.0) * _paper_laplace_rate(d * (d + 1) // 2) * x
        return mean + jnp.sqrt(2.0 * x)
    if d == 1:
        return eta(1, share, noise="laplace" if noise == "laplace" else "gaussian")
    frobenius = omega(d, share, noise=noise)
    if noise == "laplace":
        return jnp.minimum(frobenius, _laplace_spectral(d, share))
    # The largest eigenvalue is the maximum of X_u = u'Wu over unit u. For goe E(X_u - X_v)^2 = ||uu' - vv'||_F^2
    # = 2 (1 - <u,v>^2) <= 2 |u - v|^2, so its mean is at most that of max sqrt(2) <g, u> = sqrt(2) |g|
    # (Sudakov-Fernique), and it is 1-Lipschitz in the draws. For sgw both squares are at most twice as large; its
    # Lipschitz constant is max_u sqrt(sum u_j^4 + 4 sum_{j<k} u_j^2 u_k^2) = sqrt(2 - min sum u_j^4) =
    # sqrt(2 - 1/d). (i) with b/2 for each end of the spectrum.
    growth, lipschitz = (math.sqrt(2.0), 1.0) if noise == "goe" else (2.0, math.sqrt(2.0 - 1.0 / d))
    spectral = growth * _mean_norm(d) + lipschitz * _upper_quantile(share / 2.0)
    return jnp.minimum(frobenius, spectral)


def omega(d: int, b: Any, *, noise: str = "goe", constants: str = "proven") -> Array:
    """Bound on the Frobenius norm of a (d, d) noise matrix, exceeded with probability at most b.

    Args:
        d: number of rows, static, >= 1.
        b: failure probability in (0, 1), number or traced.
        noise: "goe", "sgw" or "laplace".
        constants: "proven", or "paper", whose Gaussian form is for "sgw" and holds for "goe" too.

    Returns:
        A number in the dtype of `b` (weakly typed for a Python float). NaN for a traced b outside (0, 1).

    Edge cases:
        Exact at d = 1.

    References:
        Laurent, Massart (2000); Dong, Liang, Yi (2022), arXiv 2205.14324.

    >>> from jaxdpcov.privacy import tails
    >>> round(float(tails.omega(40, 0.05)) / (40 * 41 / 2) ** 0.5, 2)
    1.06
    """
    share = _arguments(d, b, noise, ("goe", "sgw", "laplace"), constants)
    entries = d * (d + 1) // 2
    if noise == "laplace":
        if constants == "paper":
            return 1.5 * d + _paper_laplace_rate(entries) * jnp.log(2.0 / share)
        # ||W||_F^2 = sum of d squares with weight 1 and d(d-1)/2 with weight 2; a square has mean 2, variance 20.
        return _laplace_norm(
            share,
            entries=entries,
            energy=2.0 * d * d,
            variance=20.0 * d * (2 * d - 1),
            largest=1.0 if d == 1 else 2.0,
            width=float(d),
        )
    if constants == "paper":
        x = jnp.log(2.0 / share)
        return jnp.sqrt(d * d + 2.0 * (1.0 + math.sqrt(2.0 * (d - 1))) * jnp.sqrt(d * x) + 6.0 * x)
    if noise == "goe" or d == 1:
        return eta(entries, share)  # ||W||_F is the norm of a standard normal vector of that many entries
    x = -jnp.log(share)
    # (ii): weight 1 on the diagonal, 2 off it, so |a|_2^2 = d + 2 d (d-1).  (i): E||W||_F <= d, Lipschitz sqrt(2).
    from_squares = jnp.sqrt(d * d + 2.0 * jnp.sqrt(d * (2 * d - 1) * x) + 4.0 * x)
    return jnp.minimum(from_squares, d + math.sqrt(2.0) * jnp.maximum(_upper_quantile(share), 0.0))


def _laplace_norm(share: Array, *, entries: int, energy: float, variance: float, largest: float, width: float) -> Array:
    """Bound on sqrt(sum_i a_i E_i^2), E_i independent exponential: the squares of Laplace draws with weights a.

    `energy` and `variance` are the mean and variance of the sum, `largest` max a_i, `width` sqrt(sum a_i).

    First bound: all E_i are at most log(entries / b) with probability 1 - b. Second: with probability 1 - b/2 all
    are at most M = log(2 entries / b), and the sum of a_i min(E_i, M)^2 is at most `energy` plus its deviation at
    b/2 by Bennett's inequality, with range c = max a M^2; cutting off lowers mean and variance. The log-Laplace
    transform at y / c is at most w (e^y - 1 - y), w = variance / c^2, so (x + w (e^y - 1 - y)) c / y is a bound for
    every y > 0; y is taken near the best.
    """
    highest = jnp.log(entries / share)
    if entries == 1:
        return highest
    x = jnp.log(2.0 / share)
    top = largest * jnp.log(2.0 * entries / share) ** 2
    w = variance / top**2
    y = jnp.log1p(jnp.sqrt(2.0 * x / w) + x / (3.0 * w))
    deviation = (x + w * (jnp.expm1(y) - y)) * top / y
    return jnp.minimum(width * highest, jnp.sqrt(energy + deviation))


def _laplace_spectral(d: int, share: Array) -> Array:
    """Bound on the spectral norm of a Laplace matrix by the matrix Laplace transform (Tropp 2012, Theorem 3.6).

    W = sum over the triangle of L_jk A_jk, where A_jk^2 projects on e_j and e_k. For |h| < 1 E exp(h L A) =
    exp(-log(1 - h^2) A^2), as E cosh(h L) = 1 / (1 - h^2) and L is symmetric; the squares A^2 add up to d I. So
    P(largest eigenvalue > t) <= d exp(-h t - d log(1 - h^2)), and with both ends of the spectrum at b/2 each,
    t = (log(2d/b) - d log(1 - h^2)) / h is a bound for every h in (0, 1); h is taken near the best.
    """
    x = jnp.log(2.0 * d / share)
    guess = x + jnp.sqrt(x * x + 4.0 * d * x)
    h = guess / (d + jnp.sqrt(d * d + guess * guess))
    return (x - d * jnp.log1p(-h * h)) / h


def _paper_laplace_rate(entries: int) -> float:
    return 2.0 * max((math.sqrt(2.0) + 1.0) / (math.sqrt(2.0) - 1.0), 2.0 * math.log2(entries))


def _mean_norm(d: int) -> float:
    """E|g| for g ~ N(0, I_d), a little under sqrt(d)."""
    return math.sqrt(2.0) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))


def _upper_quantile(share: Array) -> Array:
    """The z with P(N > z) = share."""
    smaller = jnp.minimum(share, 1.0 - share)
    minus_log = -jnp.where(share <= 0.5, jnp.log(share), jnp.log1p(-share))
    return jnp.where(share <= 0.5, 1.0, -1.0) * normal_quantile(minus_log, smaller)


def _arguments(d: int, b: Any, noise: str, laws: tuple[str, ...], constants: str) -> Array:
    """Check the arguments and give b as an array, NaN where it is traced and no probability."""
    if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or d < 1:
        raise ValueError(f"d must be a whole number >= 1, got {d!r}")
    _checks.between("b", b, 0.0, 1.0)
    _checks.choice("noise", noise, laws)
    _checks.choice("constants", constants, _CONSTANTS)
    share = jnp.asarray(b)
    return jnp.where((share > 0.0) & (share < 1.0), share, jnp.nan)
