"""Conversions between zCDP, approximate DP and the exact Gaussian curve, on the host, rounded to the safe side.

Two curves are kept, each once, as an upper bound on delta; everything else inverts them.

rho-zCDP. For every order alpha = 1 + t > 1 a rho-zCDP mechanism is (epsilon, delta)-DP with

    log delta = t (rho - epsilon) + rho t^2 - t log(1 + 1/t) - log(1 + t)

(Canonne, Kamath, Steinke 2020). The right-hand side is strictly convex in t, and at its minimum

    epsilon = rho (1 + 2 t) - log(1 + 1/t),        log(1/delta) = rho t^2 + log(1 + t),

a curve in t along which both grow. So each of the three conversions is one monotone equation in log t, solved over
the whole range of floats. As *any* t gives a valid bound and the best t a stationary one, an error in t costs only
its square, and never privacy.

One Gaussian release with mu = sensitivity / standard deviation (Balle, Wang 2018). With x = epsilon/mu - mu/2,

    delta = Phi(-x) - e^epsilon Phi(-x - mu) = phi(x) (R(x) - R(x + mu)),       R = (1 - Phi) / phi,

where Mills' ratio R takes the exponentials out of the difference, so that 1e-300 keeps its digits. It holds for one
release with a fixed mu, and for budgets fixed in advance (mu adds in squares); not for a budget that was chosen from
earlier outputs, where only the zCDP curve may be used.

Rounding: epsilon and delta are never below the exact value, rho and mu never above it, each within 1e-9 relative;
delta is at least the smallest float, because no Gaussian release is pure DP. Feeding an answer back never gives
more than was asked: `epsilon_of_rho(rho_of_epsilon(e, d), d) <= e`.

References: Bun, Steinke 2016 (arXiv 1605.02065); Canonne, Kamath, Steinke 2020 (2004.00010), Proposition 12 and
Corollary 13; Balle, Wang 2018 (1805.06530), Theorem 8.
"""

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from jaxdpcov import _checks

_ULP = 2.0**-53  # the relative error of one rounding
_SMALLEST = math.ulp(0.0)
_GAUSSIAN_SLACK = 2e-12  # over ten times the rounding of the Gaussian curve where delta is a float, erfcx included
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def epsilon_of_rho(rho: float, delta: float) -> float:
    """The smallest epsilon for which rho-zCDP is known to imply (epsilon, delta)-DP, rounded up.

    Args:
        rho: zCDP parameter, finite and > 0.
        delta: 0 < delta < 1.

    Returns:
        epsilon >= 0; exactly 0 where rho is so small that (0, delta)-DP holds already.

    Edge cases: never above `epsilon_of_rho_simple`. Close to the rho where epsilon reaches 0 it is a small difference,
    good to 1e-15 of rho (alpha - 1) rather than of itself. Traced numbers raise: convert outside jit.

    References: Canonne, Kamath, Steinke 2020, Proposition 12.

    >>> from jaxdpcov.privacy.accounting import epsilon_of_rho
    >>> round(epsilon_of_rho(0.5, 1e-6), 6)
    5.221534
    """
    rho, delta = _positive("rho", rho), _probability("delta", delta)
    log_inverse = -math.log(delta)
    t = _order(lambda t: math.log(rho * t * t + math.log1p(t)) - math.log(log_inverse))
    terms = (rho, rho * t, -math.log1p(1.0 / t), log_inverse / t, -math.log1p(t) / t)
    return min(max(math.fsum(terms) + _rounding(terms), 0.0), epsilon_of_rho_simple(rho, delta))


def delta_of_rho(rho: float, epsilon: float) -> float:
    """The smallest delta for which rho-zCDP is known to imply (epsilon, delta)-DP, rounded up.

    Args:
        rho: zCDP parameter, finite and > 0.
        epsilon: finite and >= 0.

    Returns:
        0 < delta <= 1; the smallest float, 5e-324, stands for everything below it.

    Edge cases: never above `delta_of_rho_simple`. Traced numbers raise: convert outside jit.

    References: Canonne, Kamath, Steinke 2020, Corollary 13.

    >>> from jaxdpcov.privacy.accounting import delta_of_rho, epsilon_of_rho
    >>> f"{delta_of_rho(0.5, epsilon_of_rho(0.5, 1e-6)):.9e}"
    '1.000000000e-06'
    """
    rho, epsilon = _positive("rho", rho), _not_negative("epsilon", epsilon)
    gap = rho - epsilon
    t = _order(lambda t: gap + 2.0 * rho * t - math.log1p(1.0 / t))
    terms = (gap, rho * t, -math.log1p(1.0 / t))
    log_delta = t * (math.fsum(terms) + _rounding(terms)) - math.log1p(t)
    return min(_exp_up(log_delta * (1.0 - 8.0 * _ULP)), delta_of_rho_simple(rho, epsilon))


def rho_of_epsilon(epsilon: float, delta: float) -> float:
    """The largest rho for which rho-zCDP is known to imply (epsilon, delta)-DP, rounded down.

    Args:
        epsilon: finite and >= 0.
        delta: 0 < delta < 1.

    Returns:
        rho with `epsilon_of_rho(rho, delta) <= epsilon` and `delta_of_rho(rho, epsilon) <= delta`, in floats;
        0 where the answer lies below the smallest float (delta below 1e-160 with as small an epsilon).

    Edge cases: traced numbers raise: convert outside jit.

    References: Canonne, Kamath, Steinke 2020, Proposition 12.

    >>> from jaxdpcov.privacy.accounting import rho_of_epsilon, rho_of_epsilon_simple
    >>> round(rho_of_epsilon(1.0, 1e-6), 6), round(rho_of_epsilon_simple(1.0, 1e-6), 6)
    (0.024356, 0.017469)
    """
    epsilon, delta = _not_negative("epsilon", epsilon), _probability("delta", delta)
    log_inverse = -math.log(delta)

    def slope(t: float) -> float:  # from +inf to below 0 as t grows; t above expm1(log 1/delta) would need rho < 0
        spare = log_inverse - math.log1p(t)
        return spare / t * (1.0 / t + 2.0) - math.log1p(1.0 / t) - epsilon

    t = _order(lambda t: -slope(t))
    terms = (epsilon, math.log1p(1.0 / t), -log_inverse / t, math.log1p(t) / t)
    rho = max((math.fsum(terms) - _rounding(terms)) / (1.0 + t), rho_of_epsilon_simple(epsilon, delta))

    def kept(rho: float) -> bool:
        return rho <= 0.0 or (epsilon_of_rho(rho, delta) <= epsilon and delta_of_rho(rho, epsilon) <= delta)

    return max(_until(kept, rho, -1.0), 0.0)


def epsilon_of_rho_simple(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho log(1/delta)), rounded up: the textbook form, never below `epsilon_of_rho`.

    References: Bun, Steinke 2016, Proposition 1.3.

    >>> from jaxdpcov.privacy.accounting import epsilon_of_rho_simple
    >>> round(epsilon_of_rho_simple(0.5, 1e-6), 6)
    5.756522
    """
    rho, delta = _positive("rho", rho), _probability("delta", delta)
    return (rho + 2.0 * math.sqrt(rho) * math.sqrt(-math.log(delta))) * (1.0 + 8.0 * _ULP)


def delta_of_rho_simple(rho: float, epsilon: float) -> float:
    """exp(-(epsilon - rho)^2 / (4 rho)), 1 where epsilon <= rho, rounded up; never below `delta_of_rho`.

    References: Bun, Steinke 2016, Proposition 1.3.

    >>> from jaxdpcov.privacy.accounting import delta_of_rho_simple
    >>> round(delta_of_rho_simple(0.5, 2.0), 6)
    0.324652
    """
    rho, epsilon = _positive("rho", rho), _not_negative("epsilon", epsilon)
    if epsilon <= rho:
        return 1.0
    root = (epsilon - rho) / (2.0 * math.sqrt(rho))
    return _exp_up(-root * root * (1.0 - 8.0 * _ULP))


def rho_of_epsilon_simple(epsilon: float, delta: float) -> float:
    """(sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)))^2, rounded down; never above `rho_of_epsilon`.

    References: Bun, Steinke 2016, Proposition 1.3.

    >>> from jaxdpcov.privacy.accounting import rho_of_epsilon_simple
    >>> round(rho_of_epsilon_simple(1.0, 1e-6), 6)
    0.017469
    """
    epsilon, delta = _not_negative("epsilon", epsilon), _probability("delta", delta)
    log_inverse = -math.log(delta)
    root = epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))
    return root * root * (1.0 - 16.0 * _ULP)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact delta at epsilon of one Gaussian release, rounded up.

    Args:
        mu: sensitivity / noise standard deviation (no unit), finite and > 0; rho = mu^2 / 2.
        epsilon: finite and >= 0.

    Returns:
        0 < delta <= 1; the smallest float, 5e-324, stands for everything below it.

    Edge cases: holds for a mu that was fixed in advance only. Traced numbers raise: convert outside jit.

    References: Balle, Wang 2018, Theorem 8.

    >>> from jaxdpcov.privacy.accounting import gaussian_delta
    >>> f"{gaussian_delta(1.0, 1.0):.6f}", f"{gaussian_delta(0.01, 0.3):.3e}"
    ('0.126937', '1.896e-201')
    """
    return _exp_up(_gaussian_log_delta(_positive("mu", mu), _not_negative("epsilon", epsilon)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon at delta of one Gaussian release, rounded up: the inverse of `gaussian_delta` in epsilon.

    Args:
        mu: sensitivity / noise standard deviation (no unit), finite and > 0; rho = mu^2 / 2.
        delta: 0 < delta < 1.

    Returns:
        epsilon >= 0 with `gaussian_delta(mu, epsilon) <= delta`; exactly 0 where (0, delta)-DP holds already,
        infinity where it lies above the largest float.

    Edge cases: holds for a mu that was fixed in advance only. Traced numbers raise: convert outside jit.

    References: Balle, Wang 2018, Theorem 8.

    >>> from jaxdpcov.privacy.accounting import epsilon_of_rho, gaussian_epsilon
    >>> round(gaussian_epsilon(1.0, 1e-6), 6), round(epsilon_of_rho(0.5, 1e-6), 6)
    (4.886554, 5.221534)
    """
    mu, delta = _positive("mu", mu), _probability("delta", delta)
    high = mu * (0.5 * mu + math.sqrt(-2.0 * math.log(delta))) * (1.0 + 1e-9)  # the simple zCDP form, a valid bound
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if math.isinf(high):
        return high
    root = _root(lambda epsilon: math.log(delta) - _gaussian_log_delta(mu, epsilon), 0.0, high)
    return _until(lambda epsilon: gaussian_delta(mu, epsilon) <= delta, root, 1.0)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu at which one Gaussian release is (epsilon, delta)-DP, rounded down (noise std = sensitivity/mu).

    Args:
        epsilon: finite and >= 0.
        delta: 0 < delta < 1.

    Returns:
        mu > 0 (no unit) with `gaussian_delta(mu, epsilon) <= delta`.

    Edge cases: holds for budgets fixed in advance only. Traced numbers raise: convert outside jit.

    References: Balle, Wang 2018, Theorem 8 and Algorithm 1.

    >>> from jaxdpcov.privacy.accounting import gaussian_mu
    >>> round(1 / gaussian_mu(1.0, 1e-6), 6)  # noise per unit of sensitivity
    4.224679
    """
    epsilon, delta = _not_negative("epsilon", epsilon), _probability("delta", delta)
    log_delta = math.log(delta)
    # The simple zCDP form is a lower bound, and so is delta itself, as delta(epsilon) <= delta(0) <= mu / sqrt(2 pi).
    low = max(math.sqrt(2.0) * math.sqrt(rho_of_epsilon_simple(epsilon, delta)), delta)
    high = 2.0 * low
    while _gaussian_log_delta(high, epsilon) <= log_delta:
        low, high = high, 2.0 * high
    root = _root(lambda mu: _gaussian_log_delta(mu, epsilon) - log_delta, low, high)
    return _until(lambda mu: gaussian_delta(mu, epsilon) <= delta, root, -1.0)


# -- the zCDP curve ----------------------------------------------------------------------------------------------


def _order(equation: Callable[[float], float]) -> float:
    """t = alpha - 1 where an increasing equation crosses zero; an end of the range of floats where it does not."""
    span = 700.0  # e^700 is a float, and so is its inverse
    if equation(math.exp(-span)) >= 0.0:
        return math.exp(-span)
    if equation(math.exp(span)) <= 0.0:
        return math.exp(span)
    return math.exp(_root(lambda u: equation(math.exp(u)), -span, span))


def _rounding(terms: tuple[float, ...]) -> float:
    """A bound on the error of an exact sum of terms, each good to a few roundings."""
    return math.fsum(8.0 * _ULP * abs(term) for term in terms)


# -- the Gaussian curve ------------------------------------------------------------------------------------------


def _gaussian_log_delta(mu: float, epsilon: float) -> float:
    """log delta, rounded up by the slack."""
    from scipy import special

    # x is a difference of numbers that can be 1e8 times larger than it: exact rationals, one rounding each.
    half_square = Fraction(mu) ** 2 / 2
    x = _float((Fraction(epsilon) - half_square) / Fraction(mu))
    y = _float((Fraction(epsilon) + half_square) / Fraction(mu))
    if mu > 1.0 and x <= 0.0:
        upper_tail = special.ndtr(x) + math.exp(-0.5 * x * x - _LOG_SQRT_2PI) * _mills(y)  # = 1 - delta
        return math.log1p(-float(upper_tail) * (1.0 - _GAUSSIAN_SLACK))
    if mu > 1.0:
        drop = _mills(x) - _mills(y)
    else:
        # R(x) - R(x + mu) cancels for a small mu: integrate -R' over it, 1 - s R(s) > 0, by ten Gauss nodes.
        nodes, weights = _gauss_nodes()
        drop = 0.5 * mu * float(weights @ _mills_descent(x + 0.5 * mu * (nodes + 1.0)))
    if not drop > 0.0:
        return -math.inf
    return -0.5 * x * x - _LOG_SQRT_2PI + math.log(drop) + _GAUSSIAN_SLACK


@functools.cache
def _gauss_nodes() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(10)
    return nodes, weights


def _mills(x: float) -> float:
    """(1 - Phi(x)) / phi(x)."""
    from scipy import special

    return math.sqrt(0.5 * math.pi) * float(special.erfcx(x * math.sqrt(0.5)))


def _mills_descent(x: np.ndarray) -> np.ndarray:
    """1 - x R(x) = -R'(x), for x > -1, without cancellation."""
    from scipy import special

    # R(x) = 1/(x + K), K = 1/(x + 2/(x + 3/(x + ...))), so 1 - x R = K/(x + K): 60 levels reach 1e-16 from x = 3.
    far = np.maximum(x, 3.0)
    tail = np.zeros_like(far)
    for level in range(60, 0, -1):
        tail = level / (far + tail)
    near = np.minimum(x, 3.0)
    direct = 1.0 - near * math.sqrt(0.5 * math.pi) * special.erfcx(near * math.sqrt(0.5))
    return np.where(x > 3.0, tail / (far + tail), direct)


# -- helpers -----------------------------------------------------------------------------------------------------


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy import optimize

    return float(optimize.brentq(function, low, high, xtol=1e-320, rtol=8.0 * _ULP, maxiter=5000))


def _until(kept: Callable[[float], bool], value: float, direction: float) -> float:
    """Move `value` by single roundings, then doubled ones, to the side on which `kept` holds."""
    step = math.ulp(value)
    while not kept(value):
        value += direction * step
        step *= 2.0
    return value


def _exp_up(log_value: float) -> float:
    """exp, rounded up, within the probabilities above zero."""
    return min(max(math.exp(min(log_value, 0.0)) * (1.0 + 4.0 * _ULP), _SMALLEST), 1.0)


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _number(name: str, value: Any) -> float:
    if _checks.is_traced(value):
        raise TypeError(f"{name} is traced, and this conversion works on concrete numbers: convert outside jit")
    seen = _checks.concrete(name, value)
    assert seen is not None
    if isinstance(value, np.bool_):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if seen.ndim != 0:
        raise ValueError(f"{name} must be a single number, got shape {seen.shape}")
    return float(seen)


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    _checks.positive(name, number)
    return number


def _not_negative(name: str, value: Any) -> float:
    number = _number(name, value)
    if not (math.isfinite(number) and number >= 0.0):
        raise ValueError(f"{name} must be finite and >= 0, got {number!r}")
    return number


def _probability(name: str, value: Any) -> float:
    number = _number(name, value)
    _checks.between(name, number, 0, 1)
    return number
