"""The audit itself: its bound holds, comes near the truth, and sees leaks of every kind that a release can have."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, Bounds, GaussianConfig, audit, gaussian, status
from jaxdpcov.privacy import accounting
from jaxdpcov.privacy.noise import Measured

ROWS, NEIGHBOUR = np.zeros((3, 2)), np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
BUDGET, BOUNDS, DELTA = ZCDP(0.5), Bounds.l2(1.0), 0.05
CONFIG = GaussianConfig(center="zero", psd="none")


def attack(mechanism, seed: int = 0, **options) -> float:
    settings = {"draws": 3000, "delta": DELTA, "config": CONFIG} | options
    return audit.audit(jax.random.key(seed), mechanism, ROWS, NEIGHBOUR, BUDGET, BOUNDS, **settings).epsilon_lower


# The estimate, on outputs of known laws.


def shifted(mu: float, draws: int, seed: int, columns: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(draws, columns)) + shift / math.sqrt(columns) for shift in (mu, 0.0)]


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
def test_the_bound_stays_below_the_exact_gaussian_curve_and_near_it(mu: float, delta: float) -> None:
    """N(mu, 1) against N(0, 1), over one and five outputs: its epsilon at delta is known (Balle and Wang 2018)."""
    exact = accounting.gaussian_epsilon(mu, delta) if delta > 0 else math.inf
    found = [
        audit.epsilon_lower(*shifted(mu, 20_000, seed, columns), delta, 0.99) for seed in range(3) for columns in (1, 5)
    ]
    assert max(found) <= exact
    if delta == 0.05:
        assert min(found) >= 0.6 * exact
    assert min(found) > 0.0


def test_the_confidence_is_kept() -> None:
    """No difference at all: at 90% confidence few of 100 audits may report one."""
    alarms = sum(audit.epsilon_lower(*shifted(0.0, 400, seed), 0.0, 0.9) > 0 for seed in range(100))
    assert alarms <= scipy.stats.binom.ppf(1 - 1e-6, 100, 0.1)


def test_a_weaker_confidence_gives_a_larger_bound() -> None:
    runs = shifted(1.0, 5000, 0)
    bounds = [audit.epsilon_lower(*runs, 0.05, confidence) for confidence in (0.999, 0.9, 0.5)]
    assert bounds == sorted(bounds)


def test_laplace_outputs_are_seen_from_either_side() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.laplace(size=(20_000, 1)) for _ in range(2)]
    for first, second in ((1.0, 0.0), (0.0, 1.0)):
        found = audit.epsilon_lower(noise[0] + first, noise[1] + second, 0.0, 0.99)
        assert 0.8 < found <= 1.0


def test_an_exact_number_and_a_missing_one_are_seen() -> None:
    noise = np.random.default_rng(0).normal(size=(2, 1000, 3))
    clean = audit.epsilon_lower(*noise, 1e-5, 0.99)
    with_exact = [np.concatenate([runs, np.full((1000, 1), 0.1 + 1e-9 * i)], 1) for i, runs in enumerate(noise)]
    assert clean < 0.5 and audit.epsilon_lower(*with_exact, 1e-5, 0.99) > 3.0
    with_nan = noise.copy()
    with_nan[0, ::3, 1] = np.nan
    assert audit.epsilon_lower(*with_nan, 1e-5, 0.99) > 1.0


# Mechanisms with a fault planted in what they release.


def leaking(change):
    """`gaussian`, with something changed in its release that depends on the exact rows."""

    def mechanism(key, rows, budget, bounds, config):
        release = gaussian(key, rows, budget, bounds, config=config)
        return dataclasses.replace(release, **change(release, jnp.sum(rows**2)))

    return mechanism


LEAKS = {
    "trace in diagnostics": lambda r, t: {"diagnostics": {"trace": t}},
    "trace in extra": lambda r, t: {"extra": {"trace": t}},
    "trace as a noise std": lambda r, t: {"measured": {"second_moment": Measured(jnp.zeros(()), 1.0 + t)}},
    "trace in the ledger": lambda r, t: {"ledger": dataclasses.replace(r.ledger.children[0], scale=1.0 + t)},
    "trace in the budget": lambda r, t: {"spent": ZCDP(0.5 + 1e-12 * t)},
    "a status bit": lambda r, t: {"status": jnp.where(t > 0.5, status.TOO_FEW_ROWS, status.OK)},
    "a count": lambda r, t: {"n": 3.0 + 1e-9 * t},
    "NaN": lambda r, t: {"covariance": jnp.where(t > 0.5, jnp.nan, r.covariance)},
    "less noise": lambda r, t: {"covariance": 0.5 * r.covariance + 0.5 * jnp.diag(jnp.stack([t, 0.0 * t])) / 3.0},
}


def test_a_sound_release_passes() -> None:
    claim = accounting.epsilon_of_rho(0.5, DELTA)
    assert 0.2 < attack(gaussian) <= claim


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_seen(leak: str) -> None:
    assert attack(leaking(LEAKS[leak])) > accounting.epsilon_of_rho(0.5, DELTA)


def test_audits_repeat_and_report_what_they_did() -> None:
    call = functools.partial(
        audit.audit, mechanism=gaussian, rows=ROWS, neighbour=NEIGHBOUR, budget=BUDGET, bounds=BOUNDS, config=CONFIG,
        draws=101, batch_size=7,
    )  # fmt: skip
    first = call(jax.random.key(3))
    assert first == call(jax.random.key(3))
    assert (first.draws, first.delta, first.confidence) == (101, 1e-5, 0.99)
    assert first._fields == ("epsilon_lower", "delta", "draws", "confidence")


def test_arguments_are_checked() -> None:
    for options, message in (
        ({"draws": 7}, "draws must be at least 8"),
        ({"delta": -0.1}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
    ):
        with pytest.raises(ValueError, match=message):
            attack(gaussian, **options)
