"""Attacks on product_mean and learn_product: neighbours, noise scales, and all that a release holds."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, ProductConfig, Rows, audit, learn_product, product_mean
from jaxdpcov.mechanisms.product import config as public
from jaxdpcov.mechanisms.product import measure
from jaxdpcov.privacy import accounting, noise, sensitivity

KEY = jax.random.key(12)
UNIT = Bounds.box(0.0, 1.0)
HOSTILE = [0.0, 1.0, 0.5, -1.0, 30.0, 1e9, -1e160, 1.7e308, np.inf, -np.inf, np.nan, 5e-324]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No noise: what leaves a query is the exact statistic."""
    monkeypatch.setattr(noise, "standard_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    jax.clear_caches()
    yield
    jax.clear_caches()


def moved(count: int = 3000, d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """How far one replaced row moves a sum in units of its weights, and the sensitivity declared: (count,) each.

    Rows with supports that do not meet, all-one rows, random and hostile ones; masks, weights and flips; all radii.
    """
    rng = np.random.default_rng(1)
    x = rng.random((count, 4, d)) ** rng.choice([1.0, 4.0], size=(count, 1, 1))
    other = rng.random((count, d))
    support = rng.random((count, d)) < rng.choice([0.2, 0.5, 1.0], size=(count, 1))
    x[:, 0] = np.where(rng.random((count, 1)) < 0.6, support, x[:, 0])
    other = np.where(rng.random((count, 1)) < 0.6, ~support, other)
    other = np.where(rng.random((count, 1)) < 0.2, rng.choice(HOSTILE, size=(count, d)), other)
    y = x.copy()
    y[:, 0] = other
    weights = np.where(rng.random((count, 1)) < 0.5, rng.random((count, d)), rng.random((count, d)) < 0.7)
    weights[:, 0] = 1.0
    flipped = rng.random((count, d)) < rng.choice([0.0, 0.5], size=(count, 1))
    radii = rng.choice([0.1, 0.5, 0.8, 1.2, 2.0, 9.0], size=count)
    about = public.known(jnp.asarray(4.0), ZCDP(0.5), UNIT, d, True)

    @jax.jit
    @jax.vmap
    def answer(rows: Any, shape: measure.Shape, radius: Any) -> Any:
        found = measure.mean(
            jax.random.key(3), Rows.array(rows), None, about, shape, radius, jnp.asarray(0.5), what="test"
        )
        return found.value, found.entry.sensitivity

    shape = measure.Shape(jnp.asarray(flipped), jnp.asarray(weights))
    (left, declared), (right, _) = (answer(jnp.asarray(each), shape, jnp.asarray(radii)) for each in (x, y))
    return 4.0 * np.linalg.norm(np.asarray(left - right) * weights, axis=1), np.asarray(declared)


def test_no_neighbour_moves_a_truncated_sum_by_more(silent: None) -> None:
    found, declared = moved()
    assert np.all(found <= declared * (1 + 1e-9)) and np.max(found / declared) > 0.999


def test_the_sensitivity_of_the_paper_is_beaten(silent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """B instead of sqrt(2) B, planted in the one place that states it."""
    monkeypatch.setattr(sensitivity, "truncated_sum", jnp.minimum)
    found, declared = moved()
    assert np.max(found / declared) > 1.4


def test_no_neighbour_moves_a_score_by_more() -> None:
    """What each radius takes away, over random and hostile rows."""
    rng = np.random.default_rng(2)
    about = public.known(jnp.asarray(2.0), ZCDP(0.5), UNIT, 3, True)
    shape = measure.Shape(jnp.zeros(3, bool), jnp.asarray([1.0, 0.5, 0.2]))
    for most in (1.0, 3.0):
        radii = jnp.asarray([1e-3, 0.1, 0.5, 1.0, 2.0])
        choice = measure.Choice(radii, 0.0 * radii, jnp.asarray(0.2), jnp.asarray(most), jnp.asarray(0.5))
        lost = jax.jit(jax.vmap(lambda x, choice=choice: measure._lost(x, None, about.frame, shape, choice)))
        x = rng.choice(HOSTILE, size=(4000, 2, 3))
        y = x.copy()
        y[:, 0] = rng.choice(HOSTILE, size=(4000, 3))
        change = np.abs(np.asarray(lost(x) - lost(y)))
        assert 0.99 * sensitivity.lost_share(most) <= change.max() <= sensitivity.lost_share(most)


LANES = 4000


def scale_is(draws: np.ndarray, std: Any) -> bool:
    """Two-sided test that independent draws of mean 0 have this std, for the normal law; alarm rate 1e-6."""
    from scipy.stats import chi2

    statistic = float(np.sum((draws / std) ** 2))
    return bool(chi2.ppf(5e-7, draws.size) < statistic < chi2.isf(5e-7, draws.size))


def accepted_alone(draws: np.ndarray, std: Any) -> bool:
    """The right scale passes, and 2/3 and 3/2 of it do not."""
    return scale_is(draws, std) and not scale_is(draws, std / 1.5) and not scale_is(draws, std * 1.5)


def test_both_measurements_of_practical_have_their_noise() -> None:
    """Rows that no radius moves (all zero): an answer is noise alone, of the stated size; and that size by hand."""
    n, d, rho = 50, 3, 0.5
    made = jax.jit(jax.vmap(lambda k: product_mean(k, jnp.zeros((n, d)), ZCDP(rho), UNIT)))(
        jax.random.split(jax.random.clone(KEY), LANES)
    )
    value, std = (0.5 * np.asarray(each) for each in (made.measured["mean"].value + 1.0, made.measured["mean"].std))
    assert accepted_alone(value / std, 1.0)
    weights, radius = np.asarray(made.extra["weights"]), np.asarray(made.extra["radius"])[:, None]
    reach = np.linalg.norm(weights, axis=1, keepdims=True)
    look = np.sqrt(d / (2 * 0.2 * rho)) / n
    last = np.minimum(2**0.5 * radius, reach) / np.sqrt(2 * 0.8 * 0.96 * rho) / n / weights
    np.testing.assert_allclose(std, (look**-2 + last**-2) ** -0.5, rtol=1e-9)
    assert np.mean(radius < reach) > 0.5


def test_blocks_of_theory_have_their_noise() -> None:
    """Rows of zeros in 3 columns: round 1 on one block, and the last measurement on the other, each at all of rho."""
    n, d, rho = 50, 3, 2000.0
    config = ProductConfig(constants="theory")
    made = jax.jit(jax.vmap(lambda k: product_mean(k, jnp.zeros((n, d)), ZCDP(rho), UNIT, config=config)))(
        jax.random.split(jax.random.clone(KEY), LANES)
    )
    assert np.all(made.extra["final_round"] == 2)
    std = np.sqrt(3.0) / 25 / np.sqrt(2 * rho)
    assert accepted_alone(0.5 + 0.5 * np.asarray(made.measured["mean"].value), std)
    np.testing.assert_allclose(0.5 * made.measured["mean"].std, std, rtol=1e-9)


#: One corner against the opposite one, two rows that share no column, and one column.
WORST = (np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
APART = (np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
ALONE = (np.zeros((2, 1)), np.array([[1.0], [0.0]]))
CASES = {
    "practical": (product_mean, ProductConfig(), WORST),
    "practical apart": (product_mean, ProductConfig(), APART),
    "theory": (product_mean, ProductConfig(constants="theory"), ALONE),
    "learn": (learn_product, ProductConfig(), WORST),
}


@pytest.mark.parametrize("name", CASES)
def test_no_attack_beats_the_budget(name: str) -> None:
    """All that a release holds, learned by the best linear test on two worst neighbours."""
    mechanism, config, rows = CASES[name]
    found = audit.audit(jax.random.clone(KEY), mechanism, *rows, ZCDP(0.5), UNIT, config=config, draws=4000, delta=1e-3)
    assert found.epsilon_lower <= accounting.epsilon_of_rho(0.5, 1e-3)
    assert found.epsilon_lower > 0.3  # and it is an attack


def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the sensitivity, in the one place that states it."""
    rule = sensitivity.truncated_sum
    monkeypatch.setattr(sensitivity, "truncated_sum", lambda radius, reach: rule(radius, reach) / 3.0)
    jax.clear_caches()

    def measured(*args: Any, **options: Any) -> Any:  # what is the mean itself: a linear test sees little through more
        return product_mean(*args, **options).measured["mean"].value

    found = audit.audit(
        jax.random.clone(KEY), measured, *ALONE, ZCDP(0.5), UNIT, draws=20_000, batch_size=10_000, delta=1e-3
    )
    jax.clear_caches()
    assert found.epsilon_lower > accounting.epsilon_of_rho(0.5, 1e-3)
