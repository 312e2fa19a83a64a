"""Attacks on preconditioning and on the range finder: neighbours, the scale of the noise, and the budget as a whole."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, norm

from jaxdpcov import (
    ZCDP,
    Bounds,
    KLSUConfig,
    Rows,
    audit,
    learn_gaussian,
    naive_pce,
    pgce,
    ppc,
    private_mean,
)
from jaxdpcov.mechanisms import _mapped, _range
from jaxdpcov.privacy import accounting, ledger, noise, sensitivity
from tests.audit.test_coinpress import HOSTILE, accepted_alone, neighbours
from tests.reference.attack import weaken
from tests.reference.coinpress import chi_tail

KEY = jax.random.key(23)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No noise: what leaves a query is the exact statistic."""
    monkeypatch.setattr(noise, "standard_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("d", [1, 3])
def test_no_neighbour_moves_a_second_moment_of_kept_rows_by_more(silent: None, d: int, paired: bool) -> None:
    """Rows beyond the radius count as 0. Worst: two orthogonal rows on the sphere, which rounding must not lift."""
    rng, count, reach = np.random.default_rng(1), 3000, 1.7
    x, y = neighbours(d, count, rng)
    maps = rng.normal(size=(count, d, d)) * rng.choice([1e-6, 1.0, 100.0], size=(count, 1, 1))
    # At the radius, to the last bits on either side, in a turned frame.
    edge = rng.random(count) < 0.5
    turns = np.linalg.qr(rng.normal(size=(count, d, d)))[0]
    last = 1.0 + rng.choice([-1e-15, 0.0, 1e-15], size=(count, 1))
    x[edge, 0], y[edge] = (last * reach * turns[:, 0])[edge], x[edge]
    x[edge, 1:] = y[edge, 1:] = 0.0
    x[edge, 0] *= 2**0.5 if paired else 1.0
    y[edge, 0] = ((2**0.5 if paired else 1.0) * reach * turns[:, -1])[edge] if d > 1 else 0.0
    maps[edge] = np.eye(d)
    n = 2.0 if paired else 4.0
    query = _mapped.Query(jnp.asarray(n), jnp.asarray(reach), jnp.asarray(0.5))

    @jax.jit
    @jax.vmap
    def answer(rows: Any, a: Any) -> Any:
        pairs, zero = jax.random.key(2) if paired else None, jnp.zeros(d)
        found = _mapped.second_moment(
            jax.random.key(3), Rows.array(rows), pairs, zero, a, query, kind="goe", long_rows="drop", what="test"
        )
        return found.value, found.entry.sensitivity

    (left, declared), (right, _) = answer(x, maps), answer(y, maps)
    moved = np.linalg.norm(np.asarray(left - right), axis=(1, 2))
    bound = np.asarray(declared)[0] * reach**2 / n
    assert declared[0] == pytest.approx(2**0.5 if d > 1 else 1.0, rel=1e-9)
    assert np.all(np.isfinite(moved)) and 0.99 * bound <= moved.max() <= bound


@pytest.mark.parametrize("d", [1, 3])
def test_no_neighbour_moves_the_histograms_by_more(d: int) -> None:
    """All columns at once, hostile rows and maps too: l2 by sqrt(2 d), l1 by 2 d, and the sum of counts stays."""
    rng, count = np.random.default_rng(4), 2000
    x, y = neighbours(d, count, rng)
    hostile = rng.random(count) < 0.3
    x[hostile] = rng.choice(HOSTILE, size=x.shape)[hostile]
    y[hostile, 1:] = x[hostile, 1:]
    maps = rng.normal(size=(count, d, d)) * rng.choice([1e-6, 1.0, 1e300], size=(count, 1, 1))
    points = rng.normal(size=(count, d)) * rng.choice([0.0, 1.0, 1e9], size=(count, 1))
    grid = jnp.arange(-3.0, 4.0)

    @jax.jit
    @jax.vmap
    def counts(rows: Any, a: Any, point: Any) -> Any:
        return Rows.array(rows).reduce(_range._histogram, jnp.zeros(d), a, point, jnp.asarray(2.0), grid)

    left, right = (np.asarray(counts(each, maps, points)).reshape(count, -1) for each in (x, y))
    assert np.all(left.reshape(count, d, -1).sum(-1) == 4.0)  # no row is lost, none counts twice
    assert np.linalg.norm(left - right, axis=1).max() == pytest.approx((2.0 * d) ** 0.5, rel=1e-12)
    assert np.abs(left - right).sum(1).max() == 2.0 * d
    for pure, bound in ((False, (2.0 * d) ** 0.5), (True, 2.0 * d)):
        cost, b = jnp.asarray(0.7), jnp.asarray(0.05)
        found = _range.find(
            jax.random.clone(KEY), Rows.array(x[0]), jnp.zeros(d), jnp.eye(d), cost, b, (3, 5), pure=pure
        )
        for entry in found.entries:
            assert bound <= float(entry.sensitivity) <= bound * (1 + 1e-9) and float(entry.cost) <= 0.35


# The scale of the noise, in both directions, and half of it planted.

LANES = 4000
#: Rows of zeros: all that a release shows is noise. Far too few for a round to change the map.
NOTHING = np.zeros((9, 2))
BOUNDS = Bounds.spectrum(1.0, 9.0, mean_radius=3.0)


def releases(mechanism: Callable[..., Any], rho: float, config: KLSUConfig) -> Any:
    run = jax.jit(jax.vmap(lambda k: mechanism(k, NOTHING, ZCDP(rho), BOUNDS, config=config)))
    return run(jax.random.split(jax.random.clone(KEY), LANES))


def _moment_is_right(measured: Any, pairs: bool, rho: float) -> bool:
    """Noise of std sqrt(2) gamma^2/m at rho, in units of the largest covariance, 9, on and off the diagonal."""
    std = 9.0 * 2**0.5 * chi_tail(2, 0.1) ** 2 / (4 if pairs else 9) / np.sqrt(2 * rho)
    values, stated = np.asarray(measured.value), np.asarray(measured.std)
    np.testing.assert_allclose(stated[:, 0, 0], std, rtol=1e-9)
    diagonal, off = np.diagonal(values, axis1=1, axis2=2), values[:, 0, 1]
    return accepted_alone(diagonal, std) and accepted_alone(off, std / 2**0.5)


def round_is_right() -> bool:
    """The last of two rounds."""
    made = releases(ppc, 0.6, KLSUConfig(rounds=2, center="zero"))
    return _moment_is_right(made.measured["second_moment"], False, 0.3)


def estimate_is_right() -> bool:
    """What is left after a round at a quarter of rho."""
    made = releases(pgce, 0.6, KLSUConfig(rounds=1, long_rows="drop", precondition_share=0.25))
    return _moment_is_right(made.measured["second_moment"], True, 0.45)


def mean_is_right() -> bool:
    """All nine rows in one bin, which noise of std 0.5 does not hide; then 2 r/n at a tenth of rho."""
    made = releases(private_mean, 8.0, KLSUConfig(rounds=0, bins=(2,), range_share=0.9))
    tail, off = chi_tail(2, 0.01), 0.5**0.5
    reach = min(np.sqrt(off**2 + 6 * off + tail**2), off + tail)
    std = 3.0 * 2 * reach / 9 / np.sqrt(2 * 0.8)
    np.testing.assert_allclose(made.measured["mean"].std, std, rtol=1e-9)
    return accepted_alone(np.asarray(made.mean), std)


def _wins_are_right(pure: bool) -> bool:
    """How often a bin that is short of the heaviest by `gap` wins: a law of the noise's scale alone.

    Gaussian noise of std s: P(N > gap/(s sqrt(2))). Laplace noise of scale s: exp(-t) (2 + t)/4 at t = gap/s.
    """
    d, cost, gap, lanes = 3, 0.02 if pure else 0.0002, 300, 20_000
    x = jnp.zeros((10**5, d)).at[: (10**5 - gap) // 2].set(1.0)

    @jax.jit
    @jax.vmap
    def wins(key: Any) -> Any:
        found = _range.find(
            key, Rows.array(x), jnp.zeros(d), jnp.eye(d), jnp.asarray(cost), jnp.asarray(0.1), (1,), pure=pure
        )
        return found.point == 1.0

    won = np.asarray(wins(jax.random.split(jax.random.clone(KEY), lanes)))
    scale = 2.0 * d / cost if pure else np.sqrt(2.0 * d) / np.sqrt(2.0 * cost)
    chances = [
        np.exp(-gap / s) * (2.0 + gap / s) / 4.0 if pure else norm.sf(gap / (s * 2**0.5))
        for s in (scale, scale / 1.5, scale * 1.5)
    ]
    inside = [
        binom.ppf(5e-7, won.size, p) <= np.sum(won) <= binom.isf(5e-7, won.size, p) for p in chances
    ]  # columns are independent
    return inside[0] and not inside[1] and not inside[2]


def histogram_is_right() -> bool:
    return _wins_are_right(pure=False)


#: A check for each primitive, and its name where the noise is added.
CHECKS: dict[str, tuple[Callable[[], bool], str, str]] = {
    "round": (round_is_right, "symmetric_gaussian", ""),
    "estimate": (estimate_is_right, "symmetric_gaussian", ""),
    "histogram": (histogram_is_right, "gaussian", "histograms, stage 1 of 1"),
    "mean": (mean_is_right, "gaussian", ""),
}


@pytest.mark.parametrize("name", CHECKS)
def test_noise_has_its_scale_and_half_of_it_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-sided, at an alarm rate of 1e-6 for each statistic: 2/3 and 3/2 of the stated scale are rejected too."""
    check, door, what = CHECKS[name]
    assert check()
    weaken(monkeypatch, door, what, 0.5)
    jax.clear_caches()
    assert not check()
    jax.clear_caches()


def test_laplace_histograms_have_their_noise() -> None:
    assert _wins_are_right(pure=True)


# The whole release, attacked.

#: A row at the centre against one beyond all radii; for a mean, from one far side to the other.
WORST = (np.zeros((2, 1)), np.array([[1e6], [0.0]]))
OPPOSITE = (np.array([[-1e6], [0.0]]), np.array([[1e6], [0.0]]))
NARROW = Bounds.spectrum(1.0, 4.0, mean_radius=1.0)
ATTACKED = {
    "naive, drop": (naive_pce, KLSUConfig(center="zero", long_rows="drop"), OPPOSITE),
    "rounds": (ppc, KLSUConfig(rounds=2, center="zero"), WORST),
    "pairs": (pgce, KLSUConfig(rounds=1), WORST),
    "mean": (private_mean, KLSUConfig(rounds=1, bins=(2,), precondition_share=0.1), OPPOSITE),
    "gaussian": (learn_gaussian, KLSUConfig(rounds=1, bins=(1, 2)), WORST),
}


@pytest.mark.parametrize("name", ATTACKED)
def test_no_attack_beats_the_budget(name: str) -> None:
    """All that a release holds, learned by the best linear test on two worst neighbours."""
    mechanism, config, worst = ATTACKED[name]
    if name == "naive, drop":
        # The worst kept row: just within the radius, where a clipped one would be too.
        worst = (np.zeros((2, 1)), np.array([[2.0 * chi_tail(1, 0.1) * (1 - 1e-9)], [0.0]]))
    found = audit.audit(
        jax.random.clone(KEY), mechanism, *worst, ZCDP(0.5), NARROW, config=config, draws=4000, delta=1e-3
    )
    assert 0.5 < found.epsilon_lower <= accounting.epsilon_of_rho(0.5, 1e-3)  # and it is an attack


def test_a_planted_sensitivity_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times too small, in the one place that states it."""
    monkeypatch.setattr(sensitivity, "slack", lambda dtype: 0.1)
    jax.clear_caches()
    mechanism, config, worst = ATTACKED["rounds"]
    found = audit.audit(
        jax.random.clone(KEY), mechanism, *worst, ZCDP(0.5), NARROW, config=config, draws=4000, delta=1e-3
    )
    jax.clear_caches()
    assert found.epsilon_lower > accounting.epsilon_of_rho(0.5, 1e-3)


def test_the_ledger_knows_every_query() -> None:
    config = KLSUConfig(rounds=3, bins=(1, 2))
    made = learn_gaussian(jax.random.clone(KEY), WORST[0], ZCDP(0.5), NARROW, config=config)
    entries = ledger.entries(made.ledger)
    assert len(entries) == 7 and all(entry.kind == "gaussian" for entry in entries)
    assert 0.5 * (1 - 1e-12) <= sum(float(entry.cost) for entry in entries) <= 0.5
