"""CoinPress with constants="theory": confidence sets hold the truth as often as they say and never grow."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    CoinPressConfig,
    PureDP,
    coinpress_covariance,
    coinpress_gaussian,
    coinpress_mean,
    coinpress_mean_1d,
    coinpress_variance_1d,
    status,
)
from tests.mechanisms.coinpress_cases import (
    SIGMA,
    covariance,
    gaussian_rows,
    key,
)

# Coverage of "theory": failures over Gaussian rows and noise, false alarm below 1e-6 for a true rate of beta.


def _failures(run, lanes: int) -> int:
    return int(np.sum(~np.asarray(jax.jit(jax.vmap(run))(jax.random.split(key(17), lanes)))))


def _most(lanes: int, beta: float) -> int:
    from scipy.stats import binom

    return int(binom.isf(1e-6, lanes, beta))


@pytest.mark.parametrize("center", ["zero", "pairs"])
def test_theory_covers_the_covariance(center: str) -> None:
    beta, n = 0.2, 500
    config = CoinPressConfig(rounds=3, constants="theory", center=center, beta=beta)
    inverse = np.linalg.inv(np.linalg.cholesky(SIGMA))

    def covered(k):
        rows_key, release_key = jax.random.split(k)
        x = jnp.matmul(jax.random.normal(rows_key, (n, 3)), np.linalg.cholesky(SIGMA).T)
        release = coinpress_covariance(release_key, x, ZCDP(5.0), Bounds.spectrum(1.0, 500.0), config=config)
        return jnp.linalg.eigvalsh(inverse @ release.extra["ellipsoid"] @ inverse.T)[0] >= 1.0

    assert _failures(covered, 300) <= _most(300, beta)


@pytest.mark.parametrize("pure", [False, True])
def test_theory_covers_mean_and_variance(pure: bool) -> None:
    beta, n, d = 0.2, 300, 1 if pure else 2
    budget, config = PureDP(2.0) if pure else ZCDP(0.5), CoinPressConfig(rounds=2, constants="theory", beta=beta)
    mean = coinpress_mean_1d if pure else coinpress_mean

    def mean_covered(k):
        rows_key, release_key = jax.random.split(k)
        x = 3.0 + 2.0 * jax.random.normal(rows_key, (n, d))
        release = mean(release_key, x, budget, Bounds.spectrum(1.0, 4.0, mean_radius=30.0), config=config)
        return jnp.linalg.norm(release.mean - 3.0) / 2.0 <= release.extra["radius"]

    def variance_covered(k):
        rows_key, release_key = jax.random.split(k)
        x = 3.0 + 2.0 * jax.random.normal(rows_key, (n, 1))
        release = coinpress_variance_1d(release_key, x, budget, Bounds.spectrum(0.1, 100.0), config=config)
        low, high = release.extra["interval"]
        return (low <= 4.0) & (4.0 <= high)

    for run in (mean_covered, variance_covered):
        assert _failures(run, 1000) <= _most(1000, beta)


def test_the_joint_confidence_sets_cover() -> None:
    beta, n = 0.2, 600
    config = CoinPressConfig(rounds=3, mean_rounds=2, constants="theory", beta=beta)
    bounds = Bounds.spectrum(1.0, 50.0, mean_radius=30.0)
    std = jnp.array([1.0, 3.0])

    def covered(k):
        rows_key, release_key = jax.random.split(k)
        x = 5.0 + jax.random.normal(rows_key, (n, 2)) * std[None, :]
        release = coinpress_gaussian(release_key, x, ZCDP(5.0), bounds, config=config)
        ellipsoid, away = release.extra["ellipsoid"], release.mean - 5.0
        inside = jnp.linalg.eigvalsh(ellipsoid / (std[:, None] * std[None, :]))[0] >= 1.0
        return inside & (away @ jnp.linalg.solve(ellipsoid, away) <= release.extra["radius"] ** 2)

    assert _failures(covered, 300) <= _most(300, beta)


#: Sample mean 0 and variance 1: one set of rows serves all draws.
STANDARD = np.random.default_rng(4).normal(size=(1000, 1))
STANDARD = (STANDARD - STANDARD.mean()) / STANDARD.std()


@pytest.mark.parametrize("pure", [False, True])
def test_practical_rounds_do_not_lose_the_variance(pure: bool) -> None:
    """A range of 1e6, default rounds, at most one loss in 1,000 draws.

    One low draw in an early round would be enough, were the next interval made from it as it is: the variance would be
    lost in about one of a hundred draws, and then by any factor.
    """
    budget, config = PureDP(8.0) if pure else ZCDP(0.5), CoinPressConfig(center="zero")

    def found(k):
        release = coinpress_variance_1d(k, 30.0 * STANDARD, budget, Bounds.spectrum(1.0, 1e6), config=config)
        return jnp.abs(release.covariance[0, 0] / 900.0 - 1.0) < 0.5

    assert _failures(found, 4000) <= _most(4000, 1e-3)


def test_practical_rounds_seldom_lose_the_mean_under_pure_dp() -> None:
    """A radius of 1e6: lost with probability at most beta/20 = 0.0025; 0.005 in each round adds up to 0.01."""
    bounds, config = Bounds.spectrum(1.0, 1.0, mean_radius=1e6), CoinPressConfig()

    def found(k):
        release = coinpress_mean_1d(k, STANDARD + 5e5, PureDP(3.0), bounds, config=config)
        return jnp.abs(release.mean[0] - 5e5) < 1.0

    assert _failures(found, 8000) <= _most(8000, 0.0025)


def test_theory_takes_no_round_that_would_enlarge_the_set() -> None:
    x, bounds = gaussian_rows(200), Bounds.spectrum(1.0, 500.0)
    config = CoinPressConfig(rounds=4, constants="theory", center="zero")
    for rho in (1e-6, 1e-3, 0.1, 10.0, 1e6):
        found = covariance(x, rho, config)
        volume = np.linalg.slogdet(found.extra["ellipsoid"])[1]
        assert volume <= 3 * np.log(500.0) + 1e-9
    hopeless = covariance(x, 1e-6, config)
    np.testing.assert_allclose(hopeless.extra["ellipsoid"], 500.0 * np.eye(3), rtol=1e-12, atol=1e-9)
    assert int(hopeless.status) & status.TOO_FEW_ROWS
    assert not int(covariance(gaussian_rows(4000), 10.0, config, bounds=bounds).status) & status.TOO_FEW_ROWS
    paper = covariance(x, 1e-3, dataclasses.replace(config, constants="paper"))
    assert np.linalg.slogdet(paper.extra["ellipsoid"])[1] > 3 * np.log(500.0)  # as printed, it may
