"""The conversions against 60-digit arithmetic on the published formulas, dp-accounting, and their own round trips."""

import itertools
import math
from collections.abc import Callable

import jax
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from jaxdpcov.privacy import accounting
from jaxdpcov.privacy.accounting import (
    delta_of_rho,
    delta_of_rho_simple,
    epsilon_of_rho,
    epsilon_of_rho_simple,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    rho_of_epsilon,
    rho_of_epsilon_simple,
)

TOLERANCE = 1e-9
RHOS = [10.0**power for power in range(-8, 9)]
EPSILONS = [1e-3, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 50.0]
DELTAS = [1e-12, 1e-9, 1e-6, 1e-5, 1e-3, 1e-2]
FLOATS = [5e-324, 1e-310, 1e-200, 1e-100, 1e-16, 1e-8, 1e-3, 1.0, 700.0, 1e8, 1e16, 1e100, 1e200, 1.7e308]
PROBABILITIES = [5e-324, 1e-300, 1e-100, 1e-12, 1e-5, 0.01, 0.5, 0.999999, 1.0 - 2.0**-53]

budgets = st.floats(-8.0, 8.0).map(lambda power: 10.0**power)
epsilons = st.floats(-3.0, math.log10(50.0)).map(lambda power: 10.0**power)
deltas = st.floats(-12.0, -2.0).map(lambda power: 10.0**power)


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(60):
        yield


def least(function: Callable[[mpf], mpf]) -> mpf:
    """The minimum over all orders alpha > 1 of a function with one valley, by golden section in log(alpha - 1)."""
    shrink = (mpmath.sqrt(5) - 1) / 2
    low, high = mpf(-30), mpf(60)
    left, right = high - shrink * (high - low), low + shrink * (high - low)
    at_left, at_right = function(1 + mpmath.exp(left)), function(1 + mpmath.exp(right))
    for _ in range(100):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - shrink * (high - low)
            at_left = function(1 + mpmath.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + shrink * (high - low)
            at_right = function(1 + mpmath.exp(right))
    return min(at_left, at_right)


def exact_log_delta(rho: float, epsilon: float) -> mpf:
    """log of inf over alpha of exp((alpha - 1)(alpha rho - eps)) / (alpha - 1) * (1 - 1/alpha)^alpha."""
    rho, epsilon = mpf(rho), mpf(epsilon)
    best = least(lambda a: (a - 1) * (a * rho - epsilon) - mpmath.log(a - 1) + a * mpmath.log(1 - 1 / a))
    return min(best, mpf(0))  # the limit of alpha to 1, which the search stops short of


def exact_epsilon(rho: float, delta: float) -> mpf:
    """The same bound, solved for epsilon at each alpha."""
    rho, delta = mpf(rho), mpf(delta)
    return least(lambda a: a * rho + (a * mpmath.log(1 - 1 / a) - mpmath.log((a - 1) * delta)) / (a - 1))


def exact_rho(epsilon: float, delta: float) -> mpf:
    """The same bound, solved for rho at each alpha: the best alpha gives the largest."""
    epsilon, delta = mpf(epsilon), mpf(delta)
    return -least(lambda a: -(epsilon - (a * mpmath.log(1 - 1 / a) - mpmath.log((a - 1) * delta)) / (a - 1)) / a)


def exact_gaussian_delta(mu: float, epsilon: float) -> mpf:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    mu, epsilon = mpf(mu), mpf(epsilon)

    def phi(x: mpf) -> mpf:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    return phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


def above(value: float, exact: mpf, relative: float = TOLERANCE) -> None:
    """`value` is rounded up, by little."""
    assert exact <= value <= exact * (1 + mpf(relative)), f"{value!r} against {mpmath.nstr(exact, 17)}"


def below(value: float, exact: mpf, relative: float = TOLERANCE) -> None:
    """`value` is rounded down, by little."""
    assert exact * (1 - mpf(relative)) <= value <= exact, f"{value!r} against {mpmath.nstr(exact, 17)}"


# -- the zCDP curve ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_of_rho_is_the_best_order_rounded_up(delta: float) -> None:
    for rho in RHOS:
        exact = exact_epsilon(rho, delta)
        if exact > 0:
            above(epsilon_of_rho(rho, delta), exact)
        else:
            assert epsilon_of_rho(rho, delta) == 0.0


@pytest.mark.parametrize("delta", DELTAS)
def test_rho_of_epsilon_is_the_best_order_rounded_down(delta: float) -> None:
    for epsilon in EPSILONS:
        below(rho_of_epsilon(epsilon, delta), exact_rho(epsilon, delta))


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.9, 1.0])
def test_delta_of_rho_is_the_best_order_rounded_up(fraction: float) -> None:
    for rho, log_delta in itertools.product(RHOS, (-0.01, -5.0, -27.0, -690.0)):
        epsilon = fraction * (rho + 2.0 * math.sqrt(-rho * log_delta))
        above(delta_of_rho(rho, epsilon), mpmath.exp(exact_log_delta(rho, epsilon)))


def test_the_smallest_deltas_keep_their_digits() -> None:
    for epsilon, at_most in ((27.0, 1e-154), (37.5, 1e-298)):
        delta = delta_of_rho(0.5, epsilon)
        assert delta < at_most
        above(delta, mpmath.exp(exact_log_delta(0.5, epsilon)))


@given(budgets, deltas, epsilons)
def test_never_worse_than_the_simple_form(rho: float, delta: float, epsilon: float) -> None:
    assert epsilon_of_rho(rho, delta) <= epsilon_of_rho_simple(rho, delta)
    assert delta_of_rho(rho, epsilon) <= delta_of_rho_simple(rho, epsilon)
    assert rho_of_epsilon(epsilon, delta) >= rho_of_epsilon_simple(epsilon, delta)


@given(budgets, deltas, epsilons)
def test_simple_forms_on_the_safe_side(rho: float, delta: float, epsilon: float) -> None:
    with mpmath.workdps(60):
        log_inverse = -mpmath.log(mpf(delta))
        above(epsilon_of_rho_simple(rho, delta), rho + 2 * mpmath.sqrt(rho * log_inverse), 1e-14)
        root = mpmath.sqrt(log_inverse + epsilon) - mpmath.sqrt(log_inverse)
        below(rho_of_epsilon_simple(epsilon, delta), root**2, 1e-14)
        exact = mpmath.exp(-((mpf(epsilon) - rho) ** 2) / (4 * mpf(rho))) if epsilon > rho else mpf(1)
        if exact > 1e-300:
            above(delta_of_rho_simple(rho, epsilon), exact, 1e-11)


@given(epsilons, deltas)
def test_rho_of_epsilon_fed_back_gives_no_more(epsilon: float, delta: float) -> None:
    rho = rho_of_epsilon(epsilon, delta)
    assert epsilon * (1.0 - TOLERANCE) <= epsilon_of_rho(rho, delta) <= epsilon
    assert delta * (1.0 - TOLERANCE) <= delta_of_rho(rho, epsilon) <= delta


@given(budgets, deltas)
def test_epsilon_of_rho_round_trip(rho: float, delta: float) -> None:
    epsilon = epsilon_of_rho(rho, delta)
    if epsilon > 1e-3:
        assert rho_of_epsilon(epsilon, delta) == pytest.approx(rho, rel=TOLERANCE)
        # A delta turns on epsilon by the factor alpha - 1 times epsilon, which multiplies what epsilon was rounded by.
        assert delta_of_rho(rho, epsilon) == pytest.approx(delta, rel=TOLERANCE)


@given(budgets, deltas, epsilons, st.floats(1e-6, 1.0))
def test_monotone(rho: float, delta: float, epsilon: float, more: float) -> None:
    grown = 1.0 + more
    assert epsilon_of_rho(rho * grown, delta) >= epsilon_of_rho(rho, delta)
    assert epsilon_of_rho(rho, min(delta * grown, 0.9)) <= epsilon_of_rho(rho, delta)
    assert delta_of_rho(rho * grown, epsilon) >= delta_of_rho(rho, epsilon)
    assert delta_of_rho(rho, epsilon * grown) <= delta_of_rho(rho, epsilon)
    assert rho_of_epsilon(epsilon * grown, delta) > rho_of_epsilon(epsilon, delta)
    assert rho_of_epsilon(epsilon, min(delta * grown, 0.9)) > rho_of_epsilon(epsilon, delta)


@pytest.mark.parametrize(("rho", "delta"), [(0.02, 1e-6), (0.5, 1e-5), (3.0, 1e-9)])
def test_dp_accounting_at_the_same_order(rho: float, delta: float) -> None:
    import dp_accounting
    from dp_accounting import rdp

    t = np.geomspace(0.02, 1e4, 20_001)
    accountant = rdp.RdpAccountant(orders=(1.0 + t).tolist()).compose(dp_accounting.ZCDpEvent(rho))
    theirs = accountant.get_epsilon(delta)
    # Their orders are a fine grid, so theirs lies above ours by the grid's error, of second order in its step.
    assert theirs * (1.0 - 1e-6) <= epsilon_of_rho(rho, delta) <= theirs * (1.0 + 1e-12)


# -- the Gaussian curve ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-12, 1e-8, 1e-5, 1e-3, 0.05, 0.5, 0.999, 1.001, 3.0, 30.0, 1e3, 1e4, 1e5])
def test_gaussian_delta_is_exact_to_rounding(mu: float) -> None:
    for x in (-10.0, -3.0, -0.1, 0.0, 0.1, 1.0, 2.99, 3.01, 5.0, 12.0, 25.0, 37.0):
        epsilon = mu * x + 0.5 * mu * mu
        if epsilon >= 0.0:
            above(gaussian_delta(mu, epsilon), exact_gaussian_delta(mu, epsilon), 1e-11)


def test_gaussian_curve_on_the_grid_of_budgets() -> None:
    for epsilon, delta in itertools.product(EPSILONS, DELTAS):
        mu = gaussian_mu(epsilon, delta)
        for moved, safe in ((mu, True), (mu * (1.0 + TOLERANCE), False)):
            assert (exact_gaussian_delta(moved, epsilon) <= delta) is safe
    for rho, delta in itertools.product(RHOS, DELTAS):
        mu = math.sqrt(2.0 * rho)
        epsilon = gaussian_epsilon(mu, delta)
        assert exact_gaussian_delta(mu, epsilon) <= delta
        if epsilon > 0.0:
            assert exact_gaussian_delta(mu, epsilon * (1.0 - TOLERANCE)) > delta


def test_gaussian_without_epsilon_is_the_total_variation() -> None:
    for mu in (1e-300, 1e-9, 0.1, 1.0, 5.0):
        above(gaussian_delta(mu, 0.0), mpmath.erf(mpf(mu) / (2 * mpmath.sqrt(2))), 2e-11)
        assert gaussian_epsilon(mu, gaussian_delta(mu, 0.0)) == 0.0


@given(budgets, deltas)
def test_one_gaussian_is_never_dearer_than_its_zcdp(rho: float, delta: float) -> None:
    mu = math.sqrt(2.0 * rho)
    epsilon = gaussian_epsilon(mu, delta)
    assert epsilon <= epsilon_of_rho(rho, delta) * (1.0 + 1e-12)
    assert gaussian_delta(mu, epsilon) <= delta


@given(epsilons, deltas, st.floats(1e-6, 1.0))
def test_gaussian_inverses_and_monotone(epsilon: float, delta: float, more: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert 0.5 * mu * mu >= rho_of_epsilon(epsilon, delta)
    assert delta * (1.0 - TOLERANCE) <= gaussian_delta(mu, epsilon) <= delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=TOLERANCE)
    grown = 1.0 + more
    assert gaussian_mu(epsilon * grown, delta) > mu
    assert gaussian_mu(epsilon, min(delta * grown, 0.9)) > mu
    assert gaussian_delta(mu * grown, epsilon) > gaussian_delta(mu, epsilon)
    assert gaussian_delta(mu, epsilon * grown) < gaussian_delta(mu, epsilon)


@pytest.mark.parametrize("mu", [0.05, 0.7, 2.0])
def test_dp_accounting_on_one_gaussian(mu: float) -> None:
    from dp_accounting.pld import privacy_loss_mechanism

    theirs = privacy_loss_mechanism.GaussianPrivacyLoss(standard_deviation=1.0 / mu, sensitivity=1.0)
    for epsilon in (0.01, 0.3, 1.0, 4.0):
        exact = float(theirs.get_delta_for_epsilon(epsilon))
        if exact > 1e-14:  # theirs is a difference of probabilities
            assert gaussian_delta(mu, epsilon) == pytest.approx(exact, rel=1e-9, abs=1e-16)


# -- the whole range of floats, and what is no number -------------------------------------------------------------


@pytest.mark.parametrize("convert", [epsilon_of_rho, epsilon_of_rho_simple, gaussian_epsilon])
def test_epsilons_over_all_floats(convert: Callable[[float, float], float]) -> None:
    for budget, delta in itertools.product(FLOATS, PROBABILITIES):
        epsilon = convert(budget, delta)
        assert epsilon >= 0.0 and (math.isfinite(epsilon) or budget > 1e150)


@pytest.mark.parametrize("convert", [rho_of_epsilon, rho_of_epsilon_simple, gaussian_mu])
def test_budgets_over_all_floats(convert: Callable[[float, float], float]) -> None:
    for epsilon, delta in itertools.product([0.0, *FLOATS], PROBABILITIES):
        budget = convert(epsilon, delta)
        assert budget >= 0.0 and math.isfinite(budget)


@pytest.mark.parametrize("convert", [delta_of_rho, delta_of_rho_simple, gaussian_delta])
def test_deltas_over_all_floats(convert: Callable[[float, float], float]) -> None:
    for budget, epsilon in itertools.product(FLOATS, [0.0, *FLOATS]):
        assert 0.0 < convert(budget, epsilon) <= 1.0


PUBLIC = {
    epsilon_of_rho: ("rho", "delta"),
    epsilon_of_rho_simple: ("rho", "delta"),
    delta_of_rho: ("rho", "epsilon"),
    delta_of_rho_simple: ("rho", "epsilon"),
    rho_of_epsilon: ("epsilon", "delta"),
    rho_of_epsilon_simple: ("epsilon", "delta"),
    gaussian_delta: ("mu", "epsilon"),
    gaussian_epsilon: ("mu", "delta"),
    gaussian_mu: ("epsilon", "delta"),
}


@pytest.mark.parametrize("convert", PUBLIC, ids=lambda convert: convert.__name__)
def test_bad_numbers_are_named(convert: Callable[..., float]) -> None:
    for position, name in enumerate(PUBLIC[convert]):
        bad = [
            -1.0,
            math.nan,
            math.inf,
            *([0.0, 1.0, 2.0] if name == "delta" else []),
            *([0] if name in "rho mu" else []),
        ]
        for value in bad:
            arguments = [0.5, 0.5]
            arguments[position] = value
            with pytest.raises(ValueError, match=rf"^{name} must .*got") as caught:
                convert(*arguments)
            assert "\n" not in str(caught.value)
        for value in ("abc", True, np.True_, None, 1j):
            arguments = [0.5, 0.5]
            arguments[position] = value
            with pytest.raises(TypeError, match=f"^{name} must be a number, got"):
                convert(*arguments)
        arguments = [0.5, 0.5]
        arguments[position] = np.array([0.5])
        with pytest.raises(ValueError, match=f"^{name} must be a single number"):
            convert(*arguments)
        with pytest.raises(TypeError, match=f"^{name} is traced.*convert outside jit"):
            jax.jit(lambda x, position=position: convert(*[x, 0.5][:: 1 if position == 0 else -1]))(0.5)


def test_numbers_of_any_host_type() -> None:
    expected = epsilon_of_rho(0.5, 0.25)
    for number in (np.float64(0.5), np.float32(0.5), np.array(0.5), jax.numpy.asarray(0.5)):
        assert epsilon_of_rho(number, 0.25) == expected
    assert isinstance(expected, float)
    assert accounting.epsilon_of_rho(1, 0.25) == epsilon_of_rho(1.0, 0.25)
