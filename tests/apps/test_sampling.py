"""Synthetic rows: moments, bounds, correlations through the copula, keys, batches, bad cases."""

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, coinpress_covariance, gaussian
from jaxdpcov.apps import sampling
from jaxdpcov.apps.sampling import synthetic

#: A skewed column, one of 0/1, a constant one and one that hangs on the first two.
LOWER, UPPER = np.array([0.0, 0.0, 4.0, -10.0]), np.array([8.0, 1.0, 4.0, 10.0])
BOX, LIVE, MANY = Bounds.box(LOWER, UPPER), [0, 1, 3], 40_000


def rows(n: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(0)
    a = 8.0 * rng.beta(0.7, 2.5, n)
    b = (rng.uniform(size=n) < 0.1 + 0.08 * a).astype(float)
    c = np.clip(3.0 * b + 1.2 * (a - 2.0) + 2.0 * rng.normal(size=n), -10, 10)
    return np.column_stack([a, b, np.full(n, 4.0), c])


@cache
def release(rho: float = 1e8, **config: Any) -> Any:
    return gaussian(jax.random.key(0), rows(), ZCDP(rho), BOX, config=GaussianConfig(**config))


def test_gaussian_rows_have_the_moments_of_the_release() -> None:
    made = np.asarray(synthetic(release(), jax.random.key(1), MANY, method="gaussian"))
    np.testing.assert_allclose(made.mean(0), release().mean, atol=0.06)
    np.testing.assert_allclose(np.cov(made.T), release().covariance, rtol=0.05, atol=0.1)
    same = release().distribution.sample(jax.random.key(1), (MANY,))
    np.testing.assert_array_equal(made, same)


def test_the_copula_keeps_means_variances_correlations_and_bounds() -> None:
    made = synthetic(release(), jax.random.key(1), MANY)
    assert isinstance(made, np.ndarray) and made.shape == (MANY, 4)
    assert np.all(made >= LOWER) and np.all(made <= UPPER)
    std = np.sqrt(np.diag(rows().T @ rows() / 4000))
    np.testing.assert_allclose(made.mean(0), rows().mean(0), atol=0.02 * std.max())
    np.testing.assert_allclose(made.std(0), rows().std(0), rtol=0.02)
    ours, truth = (np.corrcoef(x[:, LIVE].T) for x in (made, rows()))
    np.testing.assert_allclose(ours, truth, atol=0.02)
    assert set(np.unique(made[:, 1])) == {0.0, 1.0} and np.all(made[:, 2] == 4.0)
    # The plain copula, whose normal columns have the wanted correlations themselves, misses them.
    laws = [sampling._law(m, v, a, b) for m, v, a, b in zip(rows().mean(0), rows().var(0), LOWER, UPPER)]
    plain = np.random.default_rng(0).multivariate_normal(np.zeros(3), truth, MANY)
    from scipy import special

    missed = np.stack([sampling._quantile(laws[j], special.ndtr(plain[:, k])) for k, j in enumerate(LIVE)])
    assert np.max(np.abs(np.corrcoef(missed) - truth)) > 0.05


def test_marginals_are_the_beta_laws() -> None:
    stats = pytest.importorskip("scipy.stats")
    for m, v in ((0.2, 0.02), (0.9, 0.08), (0.5, 0.2)):
        law = sampling._law(10.0 + 5.0 * m, 25.0 * v, 10.0, 15.0)
        total = m * (1 - m) / v - 1
        u = np.linspace(0.01, 0.99, 9)
        np.testing.assert_allclose(sampling._quantile(law, u), stats.beta(m * total, (1 - m) * total).ppf(u), rtol=1e-9)
    assert sampling._law(0.5, -1.0, 0.0, 1.0) == (0.5, np.inf)
    assert sampling._law(7.0, 1.0, 0.0, 1.0) == (1.0, np.inf)
    assert sampling._law(0.3, 9.0, 0.0, 1.0) == (0.3, 0.0)
    assert sampling._law(2.0, 0.0, 2.0, 2.0)[1] == np.inf


def test_truncated_rows_lie_within_and_follow_the_truncated_law() -> None:
    """One wide column in [-1, 1]: the truncated normal's own variance, within 4.5 standard errors; and a ball."""
    stats = pytest.importorskip("scipy.stats")
    narrow = dataclasses.replace(
        release(), covariance=np.diag([4.0, 1.0, 0.0, 9.0]), mean=np.array([1.0, 0.5, 4.0, 2.0])
    )
    made = np.asarray(synthetic(narrow, jax.random.key(1), MANY, method="truncated"))
    assert np.all(made >= LOWER) and np.all(made <= UPPER) and np.all(made[:, 2] == 4.0)
    for j, (m, s) in {0: (1.0, 2.0), 1: (0.5, 1.0), 3: (2.0, 3.0)}.items():
        law = stats.truncnorm((LOWER[j] - m) / s, (UPPER[j] - m) / s, m, s)
        assert stats.kstest(made[:, j], law.cdf).pvalue > 1e-5
    assert not np.any((made == LOWER) | (made == UPPER), axis=0)[LIVE].any()
    ball = gaussian(jax.random.key(0), np.zeros((50, 4)), ZCDP(1e-3), Bounds.l2(2.0, np.ones(4)))
    inside = np.asarray(synthetic(ball, jax.random.key(1), MANY, method="truncated", tries=3))
    lengths = np.linalg.norm(inside - 1.0, axis=1)
    assert np.all(lengths <= 2.0 + 1e-9) and np.mean(lengths > 2.0 - 1e-9) > 0.1  # few tries: the rest on the sphere


def test_keys_batches_and_jit() -> None:
    key = jax.random.key(5)
    for method in ("gaussian", "truncated", "copula"):
        one, two, other = (
            np.asarray(synthetic(release(), k, 50, method=method))
            for k in (jax.random.key(5), jax.random.key(5), jax.random.key(6))
        )
        np.testing.assert_array_equal(one, two)
        assert not np.any(one[:, 0] == other[:, 0])
    batch = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 2), release())
    for method in ("gaussian", "truncated"):
        made = np.asarray(synthetic(batch, jax.random.clone(key), 30, method=method))
        assert made.shape == (2, 30, 4) and not np.any(made[0, :, 0] == made[1, :, 0])
    inside = jax.jit(lambda r, k: synthetic(r, k, 50, method="truncated"))(release(), jax.random.key(5))
    np.testing.assert_allclose(inside, synthetic(release(), jax.random.key(5), 50, method="truncated"), rtol=1e-9)
    with pytest.raises(ValueError, match=r"expected one release, got a batch of shape \(2,\)"):
        synthetic(batch, key, 30)
    with pytest.raises(ValueError, match="works on the host"):
        jax.jit(lambda r: synthetic(r, jax.random.key(0), 30))(release())


def test_noise_larger_than_the_signal_and_bad_releases() -> None:
    for config in ({"psd": "none"}, {}):
        wild = release(1e-6, **config)
        for method in ("gaussian", "truncated", "copula"):
            made = np.asarray(synthetic(wild, jax.random.key(1), 40, method=method, tries=5))
            assert np.all(np.isfinite(made))
            assert method == "gaussian" or (np.all(made >= LOWER) and np.all(made <= UPPER))
    # Correlations that no columns have together: the nearest matrix that is one.
    odd = np.ones((4, 4)) - 1.9 * np.eye(4)[[1, 0, 2, 3]] * (np.arange(4) < 2)[:, None]
    latent = sampling._latent(odd, np.eye(4)[:, :1] * 0.0 + np.eye(1, sampling._ORDER))
    assert np.linalg.eigvalsh(latent)[0] > -1e-9 and np.allclose(np.diag(latent), 1.0)
    single = gaussian(jax.random.key(0), np.ones((1, 1)), ZCDP(0.5), Bounds.box(0.0, 2.0))
    assert synthetic(single, jax.random.key(0), 7).shape == (7, 1)
    broken = jax.jit(lambda rho: gaussian(jax.random.key(1), rows(), ZCDP(rho), BOX))(-1.0)
    with pytest.raises(ValueError, match="this release of gaussian is invalid"):
        synthetic(broken, jax.random.key(0), 7)
    assert np.all(np.isnan(synthetic(broken, jax.random.key(0), 7, method="truncated")[:, LIVE]))


def test_wrong_arguments_raise() -> None:
    key = jax.random.key(0)
    for n in (0, 2.5, True):
        with pytest.raises(ValueError, match="n must be a whole number >= 1"):
            synthetic(release(), key, n)
    with pytest.raises(ValueError, match="tries must be a whole number >= 1"):
        synthetic(release(), key, 5, method="truncated", tries=0)
    with pytest.raises(ValueError, match="method must be one of"):
        synthetic(release(), key, 5, method="normal")
    with pytest.raises(TypeError, match="key must be a JAX PRNG key"):
        synthetic(release(), 0, 5)
    pairs = release(center="pairs")
    with pytest.raises(ValueError, match="no mean: pass mean="):
        synthetic(pairs, key, 5)
    assert synthetic(pairs, key, 5, mean=rows().mean(0)).shape == (5, 4)
    press = coinpress_covariance(jax.random.key(1), rows()[:, LIVE], ZCDP(5.0), Bounds.spectrum(0.1, 100.0))
    for method in ("truncated", "copula"):
        with pytest.raises(ValueError, match=f'method="{method}" needs bounds of the rows'):
            synthetic(press, jax.random.key(1), 5, method=method, mean=np.zeros(3))
    assert synthetic(press, jax.random.key(2), 5, method="gaussian", mean=np.zeros(3)).shape == (5, 3)
