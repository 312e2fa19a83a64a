"""Shrinkage of off-diagonals and the floor from the noise level: exact cases, weight, and risk in simulation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import linalg
from tests.reference import linalg as reference
from tests.reference.matrices import central, noisy, positive, symmetric


def test_shrink_agrees_with_the_definition():
    rng = np.random.default_rng(40)
    for d in (3, 5, 9):
        cov, std = symmetric(d, d) * 0.2, rng.uniform(0.05, 0.2, size=(d, d))
        std = (std + std.T) / 2
        matrix, weight = jax.jit(linalg.shrink_to_diagonal)(cov, std)
        expected, share = reference.shrink_to_diagonal(cov, std)
        np.testing.assert_allclose(weight, share, rtol=1e-12)
        np.testing.assert_allclose(matrix, expected, atol=1e-15)
        assert np.array_equal(matrix, matrix.mT) and np.array_equal(np.diagonal(matrix), np.diagonal(cov))


def test_shrink_without_noise_is_the_identity_to_the_last_bit():
    cov = positive(41, 6, 2)
    matrix, weight = linalg.shrink_to_diagonal(cov, 0.0)
    assert np.array_equal(matrix, linalg.symmetrize(cov)) and (weight == 0).all()
    matrix, weight = linalg.shrink_to_diagonal(np.eye(3), 0.0)
    assert weight == 0 and np.array_equal(matrix, np.eye(3))
    assert linalg.shrink_to_diagonal(np.eye(3), 1.0)[1] == 1
    for d in (1, 2):
        assert linalg.shrink_to_diagonal(np.ones((d, d)), 0.5)[1] == 0


def test_shrink_broadcasts_and_has_finite_gradients():
    cov = positive(42, 4, 3)
    std = np.array([0.0, 0.1, 10.0]).reshape(3, 1, 1)
    matrix, weight = linalg.shrink_to_diagonal(cov, std)
    assert weight[0] == 0 and 0 < weight[1] < 1 and weight[2] == 1
    for i in range(3):
        np.testing.assert_allclose(matrix[i], linalg.shrink_to_diagonal(cov[i], std[i, 0, 0])[0], atol=1e-15)
    slope = jax.grad(lambda x, s: jnp.sum(linalg.shrink_to_diagonal(x, s)[0] ** 2), argnums=(0, 1))
    for x, s in ((cov[0], 0.1), (np.eye(4), 0.1), (np.zeros((4, 4)), 0.0), (cov[0], 0.0)):
        assert all(np.isfinite(g).all() for g in slope(jnp.asarray(x), s))
    e, a = symmetric(43, 4), cov[0]
    g = slope(jnp.asarray(a), 0.1)
    f = functools.partial(linalg.shrink_to_diagonal, noise_std=0.1)
    np.testing.assert_allclose(np.sum(g[0] * e), central(lambda x: jnp.sum(f(x)[0] ** 2), a, e, 1e-6), rtol=1e-7)


def test_shrink_weight_at_zero_signal_and_at_a_known_share():
    """d = 60: the mean of 50 weights is within 2% of the share of noise; a std off by 0.7 or 1.4 is seen."""
    d, s = 60, 0.1
    for ratio, seed in ((0.0, 44), (0.5, 45), (1.0, 46), (3.0, 47)):
        signal = np.where(np.eye(d, dtype=bool), 1.0, ratio * s)
        x = noisy(seed, signal, np.full((d, d), s), 50)
        right = 1 / (1 + ratio**2)
        for factor in (0.7, 1.0, 1.4):
            near = abs(float(linalg.shrink_to_diagonal(x, factor * s)[1].mean()) / right - 1) < 0.02
            capped = ratio == 0.0 and factor > 1  # a weight of 1 either way
            assert near == (factor == 1.0 or capped), (ratio, factor)


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("d", [3, 12])
def test_shrink_lowers_the_risk_at_every_signal_strength(d, unequal):
    """Mean squared error over 4,000 draws against no shrinkage, paired: lower by more than 4 se at small signals.

    At large signals the gain falls as 1/signal^2; there, and at d = 3, it may not be worse by more than 3 se (a false
    alarm in 700 cases; the seeds are fixed).
    """
    rng = np.random.default_rng(48)
    std = np.full((d, d), 0.1) if not unequal else np.outer(*[rng.uniform(0.3, 1.0, d)] * 2) * 0.2
    shape = symmetric(49, d)
    for i, strength in enumerate((0.0, 0.1, 0.3, 1.0, 3.0, 10.0)):
        truth = np.eye(d) + np.where(np.eye(d), 0.0, shape) * 0.1 * strength
        x = noisy(50 + i, truth, std, 4000)
        out = np.asarray(linalg.shrink_to_diagonal(x, std)[0])
        gain = np.sum((x - truth) ** 2, axis=(-2, -1)) - np.sum((out - truth) ** 2, axis=(-2, -1))
        error = gain.std() / np.sqrt(gain.size)
        assert gain.mean() > (4 * error if strength <= 0.3 and d > 3 else -3 * error), strength


def test_noise_floor_follows_the_edge_of_the_noise_spectrum():
    d, s = 60, 0.3
    x = noisy(60, np.zeros((d, d)), np.full((d, d), s), 40)
    edge = np.abs(np.linalg.eigvalsh(x)).max(axis=-1).mean()
    assert abs(float(linalg.noise_floor(s, d, fraction=1.0)) / edge - 1) < 0.05
    assert linalg.noise_floor(0.0, d) == 0
    std = np.random.default_rng(61).uniform(0.1, 1.0, (2, 5, 5))
    expected = 0.5 * np.sqrt((std**2).sum(-1).max(-1))
    np.testing.assert_allclose(linalg.noise_floor(std, 5), expected, rtol=1e-14)
    assert linalg.noise_floor(1, 4) == 1.0  # an integer counts as a number
    assert np.isfinite(jax.grad(lambda t: linalg.noise_floor(t, 3))(0.0))


def test_noise_floor_serves_the_inverse():
    """Stein's loss of a low-rank covariance in noise: a quarter of the edge against a near-zero floor and the whole."""
    d, s = 20, 0.03
    q = np.linalg.qr(symmetric(62, d))[0]
    truth = (q * np.r_[np.ones(3), np.full(d - 3, 0.05)]) @ q.T
    x = noisy(63, truth, np.full((d, d), s), 50)

    def loss(fraction):
        inverse = np.linalg.inv(linalg.psd_project(x, floor=linalg.noise_floor(s, d, fraction))) @ truth
        return np.mean(np.trace(inverse, axis1=-2, axis2=-1) - np.linalg.slogdet(inverse)[1] - d)

    assert loss(0.25) < 0.7 * loss(0.01) and loss(0.25) < 0.7 * loss(1.0)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_scales(scale):
    a = positive(9, 4)
    for one, other in zip(linalg.shrink_to_diagonal(a * scale, 0.1 * scale), linalg.shrink_to_diagonal(a, 0.1)):
        np.testing.assert_allclose(one / (scale if one.ndim else 1.0), other, atol=1e-14)
    np.testing.assert_allclose(linalg.noise_floor(scale, 4) / scale, linalg.noise_floor(1.0, 4), rtol=1e-14)


def test_a_bad_entry_gives_nan():
    a = symmetric(8, 4, 4)
    a[0, 1, 2], a[1, 0, 0], a[2, 3, 1] = np.nan, np.inf, -np.inf
    shrunk, weight = linalg.shrink_to_diagonal(a, 0.1)
    assert np.isnan(shrunk[:3]).all() and np.isnan(weight[:3]).all() and np.isfinite(shrunk[3]).all()
    assert np.isnan(linalg.shrink_to_diagonal(a[3], np.nan)[0]).all()


@pytest.mark.x64_off
def test_x64_off():
    assert linalg.shrink_to_diagonal(positive(64, 3), 0.1)[0].dtype == jnp.float32
    assert linalg.noise_floor(0.1, 3).dtype == linalg.noise_floor(np.full((3, 3), 0.1), 3).dtype == jnp.float32
