"""Budgets are checked when made, split without growing in any arithmetic, and converted on the safe side."""

import itertools
import math
import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdpcov.privacy.accounting import epsilon_of_rho, rho_of_epsilon
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP, split, to_zcdp
from jaxdpcov.privacy.ledger import Entry, total

NOT_POSITIVE = [0, -1, 0.0, -1e-300, math.nan, math.inf, -math.inf, np.float32(0), np.array(-1.0), 10**400]
NOT_NUMBERS = ["abc", "1", True, False, np.True_, None, [1.0], (1.0,), 1j, np.array(["a"]), b"1", {}]

totals = st.floats(-8.0, 8.0).map(lambda power: 10.0**power)
weights = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=24)


def normalised(parts: list[float]) -> tuple[float, ...]:
    whole = math.fsum(parts)
    return tuple(part / whole for part in parts)


# -- what a budget may be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", NOT_POSITIVE, ids=repr)
def test_a_budget_is_positive_and_finite(value: object) -> None:
    for make, name in ((ZCDP, "rho"), (PureDP, "epsilon"), (lambda x: ApproxDP(x, 1e-6), "epsilon")):
        with pytest.raises(ValueError, match=rf"^{name} must be finite.*got") as caught:
            make(value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
def test_a_budget_is_a_number(value: object) -> None:
    for make, name in ((ZCDP, "rho"), (PureDP, "epsilon"), (lambda x: ApproxDP(x, 1e-6), "epsilon")):
        with pytest.raises(TypeError, match=f"^{name} must be a number, got") as caught:
            make(value)
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="^delta must be a number, got"):
        ApproxDP(1.0, value)


@pytest.mark.parametrize("value", [0, 1, -1, 1.5, math.nan, math.inf], ids=repr)
def test_a_delta_is_a_probability(value: object) -> None:
    with pytest.raises(ValueError, match="^delta must satisfy 0 < delta < 1, got"):
        ApproxDP(1.0, value)


def test_a_key_or_a_bool_array_is_no_budget() -> None:
    for value in (jax.random.key(0), jnp.array(True)):
        with pytest.raises(TypeError, match="^rho must be a number, got [^\n]*$"):
            ZCDP(value)


def test_numbers_of_the_host_become_floats() -> None:
    for value in (2, np.int32(2), np.float32(2), np.array(2.0)):
        assert type(ZCDP(value).rho) is float and ZCDP(value) == ZCDP(2.0)
    assert ZCDP(jnp.array(2)).rho.dtype == jnp.float64
    assert ZCDP(jnp.array(2.0, jnp.float32)).rho.dtype == jnp.float32


def test_short_texts() -> None:
    assert repr(ZCDP(0.1)) == "ZCDP(rho=0.1)" and str(ZCDP(0.1)) == "0.1-zCDP"
    assert repr(ApproxDP(1, 1e-6)) == "ApproxDP(epsilon=1.0, delta=1e-06)" and str(ApproxDP(1, 1e-6)) == "(1, 1e-06)-DP"
    assert str(PureDP(1 / 3)) == "0.333333-DP"
    assert repr(ZCDP(np.ones(10_000))) == "ZCDP(rho=float64[10000])"
    texts = []
    jax.jit(lambda budget: texts.append(f"{budget!r} {budget}"))(ZCDP(0.5))
    assert texts == ["ZCDP(rho=float64[]) float64[]-zCDP"]


def test_budgets_are_pytrees_without_checks_in_transformations() -> None:
    assert jax.tree.leaves(ApproxDP(1.0, 0.1)) == [1.0, 0.1]
    assert jax.tree.map(lambda x: -x, ZCDP(1.0)).rho == -1.0
    np.testing.assert_array_equal(jax.vmap(lambda b: b.rho * 2.0)(ZCDP(jnp.array([1.0, 2.0]))), [2.0, 4.0])
    assert jax.grad(lambda b: b.rho**2)(ZCDP(3.0)).rho == 6.0


# -- split -------------------------------------------------------------------------------------------------------


def check_parts(whole: float, parts: tuple[float, ...], eps: float) -> None:
    """The parts' sum, exact and in floats in several orders, is at most the whole and short of it by little."""
    exact = sum(map(Fraction, parts))
    assert exact <= Fraction(whole)
    assert exact >= Fraction(whole) * (1 - Fraction(4 * len(parts) * eps))
    orders = [parts, parts[::-1], sorted(parts), random.Random(0).sample(parts, len(parts))]
    dtype = np.float32 if eps > 1e-10 else np.float64
    for order in orders:
        left = dtype(0)
        for part in order:
            left = left + dtype(part)
        right = dtype(0)
        for part in reversed(order):
            right = dtype(part) + right
        assert left <= whole and right <= whole


@settings(max_examples=400)
@given(totals, weights)
def test_parts_never_exceed_the_whole(whole: float, parts: list[float]) -> None:
    shares = normalised(parts)
    pieces = split(whole, shares)
    assert all(type(piece) is float for piece in pieces)
    np.testing.assert_allclose(pieces, whole * np.array(shares), rtol=1e-10)
    check_parts(whole, pieces, np.finfo(np.float64).eps)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("traced_shares", [False, True])
def test_compiled_parts_never_exceed_the_whole(dtype: jnp.dtype, traced_shares: bool) -> None:
    rng = np.random.default_rng(0)
    wholes = jnp.asarray(10.0 ** rng.uniform(-8, 8, 5000), dtype)
    for count in (2, 3, 7):
        shares = normalised(rng.uniform(0.01, 1.0, count).tolist())
        if traced_shares:
            parts = jax.jit(split)(wholes, tuple(jnp.asarray(share, dtype) for share in shares))
        else:
            parts = jax.jit(lambda whole, shares=shares: split(whole, shares))(wholes)
        assert all(part.dtype == dtype for part in parts)
        for whole, *pieces in zip(np.asarray(wholes).tolist(), *(np.asarray(part).tolist() for part in parts)):
            check_parts(whole, tuple(pieces), float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pieces_of_a_piece_listed_flat(dtype: type) -> None:
    rng = np.random.default_rng(1)

    @jax.jit
    def spend(whole: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, ...]:
        one, rest = split(whole, (first, 1.0 - first))
        two, three = split(rest, (second, 1.0 - second))
        return one, two, three, one + two + three

    for _ in range(500):
        whole = dtype(10.0 ** rng.uniform(-8, 8))
        *parts, inside = spend(whole, *rng.uniform(0.01, 0.99, 2).astype(dtype))
        assert inside <= whole
        for order in itertools.permutations(parts):
            assert order[0] + order[1] + order[2] <= whole
            assert order[0] + order[1] + order[2] >= whole * (1.0 - 20.0 * np.finfo(dtype).eps)


def test_split_under_vmap_grad_and_numpy() -> None:
    wholes = np.array([1.0, 2.0, 3.0])
    host = split(wholes, (0.25, 0.75))
    batched = jax.vmap(lambda whole: split(whole, (0.25, 0.75)))(jnp.asarray(wholes))
    for one, other in zip(host, batched):
        np.testing.assert_allclose(one, other, rtol=1e-15)
    for index, share in enumerate((0.25, 0.75)):
        slope = jax.grad(lambda whole, index=index: split(whole, (0.25, 0.75))[index])(2.0)
        assert slope == pytest.approx(share, rel=1e-14)


def test_one_share_is_everything() -> None:
    assert split(0.3, (1.0,)) == (0.3,)


def test_traced_nonsense_gives_nan() -> None:
    compiled = jax.jit(split)
    for whole in (0.0, -1.0, math.nan, math.inf):
        assert np.isnan(compiled(whole, (0.5, 0.5))).all()
    for shares in ((1.5, 0.5), (-0.1, 1.1), (math.nan, 0.5), (0.5, 1.0, 0.2)):
        assert np.isnan(compiled(1.0, shares)).all()


@pytest.mark.parametrize("shares", [(), (0.5, 0.6), (0.5, 0.4), (1.5, -0.5), (0.0, 1.0), (0.5, math.nan), (0.1,)])
def test_concrete_shares_are_checked(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="^shares must"):
        split(1.0, shares)
    if shares:
        with pytest.raises(ValueError, match="^shares must"):
            jax.jit(lambda whole: split(whole, shares))(1.0)


def test_a_share_below_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match="^shares must leave something for the last part"):
        split(1.0, (1.0, 1e-17))


@pytest.mark.x64_off
def test_split_with_x64_off() -> None:
    parts = jax.jit(lambda budget: split(budget.rho, (0.2, 0.8)))(ZCDP(1.0))
    assert all(part.dtype == jnp.float32 for part in parts)
    check_parts(1.0, tuple(map(float, parts)), float(jnp.finfo(jnp.float32).eps))
    assert all(type(part) is float for part in split(1.0, (0.2, 0.8)))


# -- conversions -------------------------------------------------------------------------------------------------


@given(totals, st.booleans())
def test_pure_budget_of_a_zcdp_price(rho: float, bounded_range: bool) -> None:
    epsilon = PureDP.from_zcdp(rho, bounded_range=bounded_range).epsilon
    factor = 8.0 if bounded_range else 2.0
    assert epsilon == pytest.approx(math.sqrt(factor * rho), rel=1e-14)
    entry = Entry("x", "exponential" if bounded_range else "laplace", "epsilon", 1.0, epsilon, epsilon)
    assert total(entry, "rho") <= rho
    assert PureDP.from_zcdp(ZCDP(rho), bounded_range=bounded_range).epsilon == epsilon


def test_pure_budget_of_a_price_traced_and_batched() -> None:
    rhos = 10.0 ** np.random.default_rng(0).uniform(-8, 8, 2000)
    for dtype in (np.float32, np.float64):
        given_rhos = rhos.astype(dtype)
        epsilon = jax.jit(lambda rho: PureDP.from_zcdp(rho).epsilon)(given_rhos)
        assert epsilon.dtype == dtype
        assert np.all(np.asarray(epsilon) ** 2 / 2 <= given_rhos)
        np.testing.assert_allclose(epsilon, np.sqrt(2 * given_rhos), rtol=10 * np.finfo(dtype).eps)
    np.testing.assert_allclose(PureDP.from_zcdp(rhos).epsilon, np.sqrt(2 * rhos), rtol=1e-14)
    assert np.isnan(jax.jit(lambda rho: PureDP.from_zcdp(rho).epsilon)(-1.0))
    with pytest.raises(ValueError, match="^rho must be finite and > 0, got -1"):
        PureDP.from_zcdp(-1.0)


@given(st.floats(1e-3, 50.0), st.floats(-12.0, -2.0))
def test_approximate_budget_buys_no_more_than_it_says(epsilon: float, power: float) -> None:
    delta = 10.0**power
    rho = to_zcdp(ApproxDP(epsilon, delta)).rho
    assert type(rho) is float and rho == rho_of_epsilon(epsilon, delta)
    assert epsilon_of_rho(rho, delta) <= epsilon


def test_to_zcdp_of_the_other_kinds() -> None:
    assert to_zcdp(ZCDP(0.3)) == ZCDP(0.3)
    assert to_zcdp(PureDP(2.0)) == ZCDP(2.0)
    assert jax.jit(lambda budget: to_zcdp(budget).rho)(PureDP(2.0)) == 2.0
    with pytest.raises(TypeError, match="^budget must be ZCDP"):
        to_zcdp(1.0)  # type: ignore[arg-type]


def test_to_zcdp_of_a_sweep() -> None:
    swept = to_zcdp(ApproxDP(np.array([0.5, 1.0]), 1e-6)).rho
    np.testing.assert_array_equal(swept, [rho_of_epsilon(0.5, 1e-6), rho_of_epsilon(1.0, 1e-6)])


def test_a_traced_approximate_budget_says_what_to_do() -> None:
    with pytest.raises(TypeError, match="convert outside jit"):
        jax.jit(lambda budget: to_zcdp(budget).rho)(ApproxDP(1.0, 1e-6))
    with pytest.raises(TypeError, match="convert outside jit"):
        jax.jit(lambda delta: to_zcdp(ApproxDP(1.0, delta)).rho)(1e-6)
