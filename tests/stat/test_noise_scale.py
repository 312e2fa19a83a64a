"""Two-sided tests of every noise scale: the claimed scale is accepted, 0.7 and 1.4 times it are rejected.

Energies of normal noise are tested by the exact chi-square law, the others by their known mean and variance at
thousands of draws; each check has a false-alarm rate of 1e-6 at a random seed, and the seeds are fixed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov.privacy import noise, selection

ALARM = 1e-6
REPEATS, D = 2000, 40


def normal_scale_is(draws, std):
    """Are the draws N(0, std^2)? Two-sided chi-square test of their energy."""
    energy = float(np.sum((np.asarray(draws, np.float64) / std) ** 2))
    low, high = scipy.stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], np.size(draws))
    return bool(low < energy < high)


def laplace_scale_is(draws, scale):
    """Are the draws Laplace of this scale? |x| / scale is exponential, so twice its sum is chi-square."""
    total = 2 * float(np.sum(np.abs(np.asarray(draws, np.float64)) / scale))
    low, high = scipy.stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], 2 * np.size(draws))
    return bool(low < total < high)


def accepted_alone(check, draws, scale):
    """The right scale passes, and the same test fails when the noise is 0.7 or 1.4 times too large."""
    draws = np.asarray(draws)
    return check(draws, scale) and not check(0.7 * draws, scale) and not check(1.4 * draws, scale)


def _matrices(release, repeats=REPEATS, seed=0):
    keys = jax.random.split(jax.random.key(seed), repeats)
    return np.asarray(jax.jit(jax.vmap(lambda key: release(key)[0].value))(keys))


def _symmetric(d=D, dtype=np.float64, **arguments):
    numbers = {"sensitivity": 3.0, "rho": 0.02, "what": "m", **arguments}
    return lambda key: noise.symmetric_gaussian(key, jnp.zeros((d, d), dtype), **numbers)


def _parts(matrices):
    d = matrices.shape[-1]
    rows, columns = np.triu_indices(d, 1)
    return matrices[:, np.arange(d), np.arange(d)], matrices[:, rows, columns]


S = 3.0 / np.sqrt(2 * 0.02)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "weights, energy",
    [({}, D * (D + 1) / 2), ({"diag": 1.0, "off": 1.0}, D**2), ({"diag": (2 / (D + 1)) ** 0.5, "off": 1.0}, None)],
    ids=["goe", "sgw", "box"],
)
def test_symmetric_gaussian(weights, energy, dtype):
    matrices = _matrices(_symmetric(dtype=dtype, **weights))
    diagonal, beside = _parts(matrices)
    assert accepted_alone(normal_scale_is, diagonal, S * weights.get("diag", 1.0))
    assert accepted_alone(normal_scale_is, beside, S * weights.get("off", 0.5**0.5))
    if energy is not None:  # sd of the mean energy here is 0.08%
        mean_energy = np.mean(np.sum(matrices.astype(np.float64) ** 2, axis=(1, 2)))
        assert mean_energy == pytest.approx(S**2 * energy, rel=0.02)
        assert (0.7**2) * mean_energy != pytest.approx(S**2 * energy, rel=0.02)
        assert (1.4**2) * mean_energy != pytest.approx(S**2 * energy, rel=0.02)


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_a_wrong_sensitivity_is_rejected(factor):
    """The fault planted in the call itself, not in the draws."""
    diagonal, beside = _parts(_matrices(_symmetric(sensitivity=3.0 * factor), repeats=200))
    assert not normal_scale_is(diagonal, S) and not normal_scale_is(beside, S / 2**0.5)


def test_a_forgotten_factor_two_in_rho_is_rejected():
    diagonal, _ = _parts(_matrices(_symmetric(rho=0.04), repeats=200))
    assert not normal_scale_is(diagonal, S)


def test_the_claimed_std_is_the_std():
    """`Measured.std` entry by entry, by one chi-square test of everything divided by it."""
    keep = np.arange(6) != 2
    release = _symmetric(d=6, diag=0.3, off=0.9, mask=keep)
    std = np.asarray(release(jax.random.key(0))[0].std)
    matrices = _matrices(release)
    rows, columns = np.nonzero(np.triu(std) > 0)
    assert len(rows) == 15 and not matrices[:, std == 0].any()
    assert accepted_alone(normal_scale_is, matrices[:, rows, columns] / std[rows, columns], 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gaussian(dtype):
    release = lambda key: noise.gaussian(key, jnp.zeros(500, dtype), sensitivity=3.0, rho=0.02, what="m")  # noqa: E731
    assert accepted_alone(normal_scale_is, _matrices(release, 50), S)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_laplace(dtype):
    release = lambda key: noise.laplace(key, jnp.zeros(500, dtype), sensitivity=3.0, epsilon=0.2, what="m")  # noqa: E731
    assert accepted_alone(laplace_scale_is, _matrices(release, 50), 15.0)


def test_symmetric_laplace():
    numbers = {"sensitivity": 3.0, "epsilon": 0.2, "what": "m"}
    matrices = _matrices(lambda key: noise.symmetric_laplace(key, jnp.zeros((D, D)), **numbers), 500)
    for part in _parts(matrices):
        assert accepted_alone(laplace_scale_is, part, 15.0)


def _exponential_share(epsilon, seed):
    """Share of draws in which the better of two candidates wins, at a gap of 4 and sensitivity 2."""
    keys = jax.random.split(jax.random.key(seed), 40_000)
    draw = lambda key: selection.exponential(key, jnp.array([0.0, 4.0]), sensitivity=2.0, epsilon=epsilon, what="m")[0]  # noqa: E731
    return int(np.sum(np.asarray(jax.jit(jax.vmap(draw))(keys)))), keys.shape[0]


def test_exponential_scale():
    """The win probability is 1 / (1 + exp(-epsilon 4 / (2 * 2))); exact binomial test."""
    fits = lambda epsilon, seed: (  # noqa: E731
        scipy.stats.binomtest(*_exponential_share(epsilon, seed), 1 / (1 + np.exp(-1.0))).pvalue > ALARM
    )
    assert fits(1.0, 0)
    assert not fits(0.7, 1) and not fits(1.4, 2)


def _crossing_share(epsilon, seed):
    """Share of draws in which one query, 5 below the threshold at sensitivity 2, is found above it."""
    keys = jax.random.split(jax.random.key(seed), 40_000)
    draw = lambda key: selection.above_threshold(  # noqa: E731
        key, jnp.array([-5.0]), threshold=0.0, epsilon=epsilon, sensitivity=2.0, what="m"
    )[0]
    return int(np.sum(np.asarray(jax.jit(jax.vmap(draw))(keys)) == 0)), keys.shape[0]


def test_above_threshold_scale():
    """Lap(b) + Lap(2b), b = 2 * 2, exceeds t with probability (4 e^(-t/2b) - e^(-t/b)) / 6; exact binomial test."""
    b, t = 4.0, 5.0
    share = (4 * np.exp(-t / (2 * b)) - np.exp(-t / b)) / 6
    fits = lambda epsilon, seed: scipy.stats.binomtest(*_crossing_share(epsilon, seed), share).pvalue > ALARM  # noqa: E731
    assert fits(1.0, 0)
    assert not fits(0.7, 1) and not fits(1.4, 2)
