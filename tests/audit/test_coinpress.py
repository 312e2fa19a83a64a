"""Attacks on CoinPress: neighbours never move a query by more than its sensitivity, noise has its stated scale."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    CoinPressConfig,
    PureDP,
    Rows,
    audit,
    coinpress_covariance,
    coinpress_gaussian,
    coinpress_mean,
    coinpress_mean_1d,
    coinpress_variance_1d,
)
from jaxdpcov.mechanisms import _mapped as measure
from jaxdpcov.privacy import accounting, ledger, noise, sensitivity

KEY = jax.random.key(11)
HOSTILE = [0.0, 1.0, -1.0, 30.0, 1e9, -1e160, 1.7e308, np.inf, -np.inf, np.nan, 5e-324]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No noise: what leaves a query is the exact statistic."""
    monkeypatch.setattr(noise, "standard_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    jax.clear_caches()
    yield
    jax.clear_caches()


def neighbours(d: int, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(count, 4, d) data sets and the same with one row replaced: Gaussian, aligned, orthogonal and hostile rows."""
    scale = rng.choice([0.1, 1.0, 10.0, 1e6], size=(count, 4, 1))
    x = rng.normal(size=(count, 4, d)) * scale
    y = x.copy()
    who = rng.integers(4, size=count)
    other = rng.normal(size=(count, d)) * rng.choice([0.0, 1.0, 10.0, 1e6], size=(count, 1))
    axes = np.eye(d)[rng.integers(d, size=count)] * 1e3
    other = np.where(rng.random((count, 1)) < 0.3, axes, other)
    hostile = rng.choice(HOSTILE, size=(count, d))
    other = np.where(rng.random((count, 1)) < 0.3, hostile, other)
    y[np.arange(count), who] = other
    orthogonal = rng.random(count) < 0.3  # far along two axes, beyond every clipping radius
    x[orthogonal, 0], y[orthogonal] = 1e5 * np.eye(d)[0], x[orthogonal]
    y[orthogonal, 0] = 1e5 * np.eye(d)[-1]
    return x, y


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("d", [1, 3])
def test_no_neighbour_moves_a_second_moment_by_more(silent: None, d: int, paired: bool) -> None:
    """Through maps as the rounds make them, hostile rows included; the bound is met by orthogonal rows."""
    rng = np.random.default_rng(1)
    x, y = neighbours(d, 3000, rng)
    maps = rng.normal(size=(3000, d, d)) * rng.choice([1e-6, 1.0, 100.0], size=(3000, 1, 1))
    query = measure.Query(jnp.asarray(2.0 if paired else 4.0), jnp.asarray(1.7), jnp.asarray(0.5))

    @jax.jit
    @jax.vmap
    def answer(rows: Any, a: Any) -> Any:
        pairs = jax.random.key(2) if paired else None
        found = measure.second_moment(
            jax.random.key(3), Rows.array(rows), pairs, jnp.zeros(d), a, query, kind="goe", what="test"
        )
        return found.value, found.entry.sensitivity

    (left, declared), (right, _) = answer(x, maps), answer(y, maps)
    moved = np.linalg.norm(np.asarray(left - right), axis=(1, 2))
    bound = np.asarray(declared)[0] * 1.7**2 / (2.0 if paired else 4.0)
    assert np.all(np.isfinite(moved)) and moved.max() <= bound
    assert moved.max() >= (0.99 if not paired or d == 1 else 0.7) * bound


@pytest.mark.parametrize("d", [1, 3])
def test_no_neighbour_moves_a_mean_by_more(silent: None, d: int) -> None:
    rng = np.random.default_rng(2)
    x, y = neighbours(d, 3000, rng)
    far = rng.random(3000) < 0.3
    x[far, 1], y[far] = 1e7, x[far]
    y[far, 1] = -1e7
    maps = rng.normal(size=(3000, d, d))
    query = measure.Query(jnp.asarray(4.0), jnp.asarray(1.7), jnp.asarray(0.5))
    points = rng.normal(size=(3000, d))

    @jax.jit
    @jax.vmap
    def answer(rows: Any, a: Any, about: Any) -> Any:
        found = measure.mean(jax.random.key(3), Rows.array(rows), jnp.zeros(d), a, about, query, what="test")
        return found.value, found.entry.sensitivity

    (left, declared), (right, _) = answer(x, maps, points), answer(y, maps, points)
    moved = np.linalg.norm(np.asarray(left - right), axis=1)
    bound = np.asarray(declared)[0] * 1.7 / 4.0
    assert np.all(np.isfinite(moved)) and 0.99 * bound <= moved.max() <= bound


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("paired", [False, True])
def test_hostile_rows_stay_and_maps_overflow(silent: None, dtype: Any, paired: bool) -> None:
    """Rows that stay (partners in a pair among them) are hostile too, and maps take them beyond all numbers."""
    rng, d, count = np.random.default_rng(6), 2, 3000
    hostile = np.array([0.0, 1.0, -1.0, 1e30, -3e38, np.inf, np.nan, 1e-45] if dtype == np.float32 else HOSTILE)
    x = rng.choice(hostile.astype(dtype), size=(count, 4, d))
    y = x.copy()
    y[np.arange(count), rng.integers(4, size=count)] = rng.choice(hostile.astype(dtype), size=(count, d))
    top = float(np.finfo(dtype).max)
    maps = (rng.normal(size=(count, d, d)) * rng.choice([1e-30, 1.0, 1e30, top / 8], size=(count, 1, 1))).astype(dtype)
    query = measure.Query(*(jnp.asarray(number, dtype) for number in (2.0 if paired else 4.0, 1.7, 0.5)))

    @jax.jit
    @jax.vmap
    def answer(rows: Any, a: Any) -> Any:
        zero, pairs = jnp.zeros(d, dtype), jax.random.key(2) if paired else None
        moment = measure.second_moment(
            jax.random.key(3), Rows.array(rows), pairs, zero, a, query, kind="goe", what="test"
        )
        mean = measure.mean(jax.random.key(4), Rows.array(rows), zero, a, zero, query, what="test")
        return (moment.value, moment.entry.sensitivity), (mean.value, mean.entry.sensitivity)

    for (left, declared), (right, _), units in zip(answer(x, maps), answer(y, maps), (1.7**2, 1.7)):
        bound = float(declared[0]) * units / (2.0 if paired else 4.0)
        moved = np.linalg.norm(np.asarray(left - right, float).reshape(count, -1), axis=1)
        assert np.all(np.isfinite(moved)) and np.all(moved <= bound * (1 + 1e-6))
        assert moved.max() >= 0.7 * bound


LANES = 4000


def scale_is(draws: np.ndarray, std: float) -> bool:
    """Two-sided test that independent draws of mean 0 have this std, for the normal law; alarm rate 1e-6."""
    from scipy.stats import chi2

    statistic = float(np.sum((draws / std) ** 2))
    return bool(chi2.ppf(5e-7, draws.size) < statistic < chi2.isf(5e-7, draws.size))


def accepted_alone(draws: np.ndarray, std: float) -> bool:
    """The right scale passes, and 2/3 and 3/2 of it do not."""
    return scale_is(draws, std) and not scale_is(draws, std / 1.5) and not scale_is(draws, std * 1.5)


@pytest.mark.parametrize("center", ["zero", "pairs"])
@pytest.mark.parametrize("kind", ["goe", "sgw"])
def test_every_round_of_the_covariance_has_its_noise(kind: str, center: str) -> None:
    """Rows of zeros: each answer is noise alone, at sensitivity sqrt(2) gamma^2/m and the round's share of rho."""
    n, d, rho = 9, 3, 0.3
    config = CoinPressConfig(rounds=2, noise=kind, center=center, split=(0.25, 0.75))
    made = jax.jit(
        jax.vmap(
            lambda k: coinpress_covariance(k, jnp.zeros((n, d)), ZCDP(rho), Bounds.spectrum(1.0, 9.0), config=config)
        )
    )(jax.random.split(jax.random.clone(KEY), LANES))
    gamma = np.sqrt(d + 2 * np.sqrt(d * np.log(10)) + 2 * np.log(10))
    units = 4 if center == "pairs" else 9
    for s, share in enumerate((0.25, 0.75)):
        std = 2**0.5 * gamma**2 / units / np.sqrt(2 * rho * share)
        answers = np.asarray(made.extra["second_moments"])[:, s]
        rows, cols = np.triu_indices(d, 1)
        assert accepted_alone(np.diagonal(answers, axis1=1, axis2=2), std)
        assert accepted_alone(answers[:, rows, cols], std * (0.5**0.5 if kind == "goe" else 1.0))
    first, second = (np.asarray(made.extra["second_moments"])[:, s, 0, 1] for s in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08  # 5 standard errors
    # What the release states of each entry's noise, mapped back by each lane's own A.
    found = made.measured["second_moment"]
    assert accepted_alone(np.asarray(found.value / found.std)[:, 0, 0], 1.0)
    assert accepted_alone(np.asarray(found.value / found.std)[:, 0, 2], 1.0)


def test_both_parts_of_the_joint_release_have_their_noise() -> None:
    """Rows of zeros: the covariance's answers at its share of rho, the mean's at the rest, each at its sensitivity."""
    n, d, rho, share = 9, 2, 0.3, 0.25
    config = CoinPressConfig(rounds=1, mean_rounds=1, mean_share=share)
    bounds = Bounds.spectrum(1.0, 9.0, mean_radius=3.0)
    made = jax.jit(jax.vmap(lambda k: coinpress_gaussian(k, jnp.zeros((n, d)), ZCDP(rho), bounds, config=config)))(
        jax.random.split(jax.random.clone(KEY), LANES)
    )
    gamma = np.sqrt(d + 2 * np.sqrt(d * np.log(10)) + 2 * np.log(10))
    answers = np.asarray(made.extra["second_moments"])[:, 0]
    std = 2**0.5 * gamma**2 / 4 / np.sqrt(2 * rho * (1 - share))
    assert accepted_alone(np.diagonal(answers, axis1=1, axis2=2), std)
    assert accepted_alone(answers[:, 0, 1], std / 2**0.5)
    gamma = np.sqrt(d + 2 * np.sqrt(d * np.log(100)) + 2 * np.log(100))
    std = 2 * min(np.sqrt(9 + 18 + gamma**2), 3 + gamma) / n / np.sqrt(2 * rho * share)
    # In the units that the mapped rows have: A by ellipsoid = A^{-1} A^{-T}, up to a rotation.
    inside = np.linalg.solve(np.linalg.cholesky(made.extra["ellipsoid"]), np.asarray(made.mean)[..., None])[..., 0]
    assert accepted_alone(inside, std)


def test_rounds_of_the_mean_have_their_noise() -> None:
    n, rho = 9, 0.3
    bounds = Bounds.spectrum(np.diag([1.0, 4.0]), 1.0, mean_radius=3.0)
    run = jax.jit(
        jax.vmap(lambda k: coinpress_mean(k, jnp.zeros((n, 2)), ZCDP(rho), bounds, config=CoinPressConfig(rounds=1)))
    )
    made = run(jax.random.split(jax.random.clone(KEY), LANES))
    gamma = np.sqrt(2 + 2 * np.sqrt(2 * np.log(100)) + 2 * np.log(100))
    std = 2 * np.sqrt(9 + 18 + gamma**2) / n / np.sqrt(2 * rho)
    assert accepted_alone(np.asarray(made.mean)[:, 0], std) and accepted_alone(np.asarray(made.mean)[:, 1], 2 * std)
    np.testing.assert_allclose(made.measured["mean"].std[0] * made.scale[0], [std, 2 * std], rtol=1e-9)


def test_laplace_rounds_have_their_noise() -> None:
    """E|L| is the scale: a mean of 4,000 lies within 8% of it but for a chance of 1e-6; 2/3 and 3/2 do not."""
    n, epsilon = 9, 0.7
    keys = jax.random.split(jax.random.clone(KEY), LANES)
    x, config = jnp.zeros((n, 1)), CoinPressConfig(rounds=1, center="zero")
    gamma = np.sqrt(1 + 2 * np.sqrt(np.log(100)) + 2 * np.log(100))
    bounds = Bounds.spectrum(1.0, 1.0, mean_radius=3.0)
    mean = jax.jit(jax.vmap(lambda k: coinpress_mean_1d(k, x, PureDP(epsilon), bounds, config=config).mean[0]))
    scale = 2 * np.sqrt(9 + 18 + gamma**2) / n / epsilon
    assert np.mean(np.abs(mean(keys))) == pytest.approx(scale, rel=0.08)
    wide = Bounds.spectrum(1.0, 4.0)
    variance = jax.jit(
        jax.vmap(
            lambda k: coinpress_variance_1d(k, x, PureDP(epsilon), wide, config=config).measured["second_moment"].value
        )
    )
    scale = 4 * gamma**2 / n / epsilon
    assert np.mean(np.abs(variance(jax.random.clone(keys)))) == pytest.approx(scale, rel=0.08)


BOUNDS = Bounds.spectrum(1.0, 4.0, mean_radius=1.0)
#: The worst neighbours there are: a row at the centre (for a mean, far on the other side) against one beyond all radii.
WORST = (np.zeros((2, 1)), np.array([[1e6], [0.0]]))
OPPOSITE = (np.array([[-1e6], [0.0]]), np.array([[1e6], [0.0]]))
CASES = {
    "covariance": (coinpress_covariance, ZCDP(0.5), CoinPressConfig(rounds=2, center="zero")),
    "covariance pairs": (coinpress_covariance, ZCDP(0.5), CoinPressConfig(rounds=2)),
    "mean": (coinpress_mean, ZCDP(0.5), CoinPressConfig(rounds=2)),
    "gaussian": (coinpress_gaussian, ZCDP(0.5), CoinPressConfig(rounds=2, mean_rounds=1)),
    "mean pure": (coinpress_mean_1d, PureDP(1.0), CoinPressConfig(rounds=2)),
    "variance pure": (coinpress_variance_1d, PureDP(1.0), CoinPressConfig(rounds=2, center="zero")),
}


@pytest.mark.parametrize("name", CASES)
def test_no_attack_beats_the_budget(name: str) -> None:
    """All that a release holds, learned by the best linear test on two worst neighbours."""
    mechanism, budget, config = CASES[name]
    delta = 1e-3 if isinstance(budget, ZCDP) else 0.0
    limit = accounting.epsilon_of_rho(0.5, delta) if isinstance(budget, ZCDP) else 1.0
    worst = OPPOSITE if name.startswith("mean") else WORST
    found = audit.audit(
        jax.random.clone(KEY), mechanism, *worst, budget, BOUNDS, config=config, draws=4000, delta=delta
    )
    assert found.epsilon_lower <= limit
    assert found.epsilon_lower > (0.1 if "pure" in name else 0.5)  # and it is an attack


def test_a_planted_fault_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensitivity ten times too small, in the one place that states it."""
    monkeypatch.setattr(sensitivity, "slack", lambda dtype: 0.1)
    jax.clear_caches()
    mechanism, budget, config = CASES["covariance"]
    found = audit.audit(jax.random.clone(KEY), mechanism, *WORST, budget, BOUNDS, config=config, draws=4000, delta=1e-3)
    jax.clear_caches()
    assert found.epsilon_lower > accounting.epsilon_of_rho(0.5, 1e-3)


def test_the_ledger_knows_every_round() -> None:
    made = coinpress_gaussian(
        jax.random.clone(KEY), WORST[0], ZCDP(0.5), BOUNDS, config=CoinPressConfig(rounds=3, mean_rounds=2)
    )
    entries = ledger.entries(made.ledger)
    assert len(entries) == 5 and all(entry.kind == "gaussian" for entry in entries)
    assert 0.5 * (1 - 1e-12) <= sum(float(entry.cost) for entry in entries) <= 0.5
