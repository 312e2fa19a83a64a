"""Whitening and Mahalanobis distances of a release: the maps, the floor from the noise, batches, bad cases."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    GaussianConfig,
    LaplaceConfig,
    PureDP,
    coinpress_covariance,
    coinpress_mean,
    diagonal,
    emcov,
    gaussian,
    laplace,
)
from jaxdpcov.apps import _noise
from jaxdpcov.apps.whitening import mahalanobis, whitening

#: Four columns, one of them constant, in bounds of unlike widths.
LOWER, UPPER = np.array([-4.0, 0.0, 7.0, -0.3]), np.array([4.0, 80.0, 7.0, 0.3])
BOX = Bounds.box(LOWER, UPPER)
DIRECTION = np.diag([1.0, 50.0, 0.0, 1e-3]) + 0.1 * np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0] * 4, [0] * 4])
METHODS = ("zca", "pca", "cholesky")


def rows(n: int = 3000) -> np.ndarray:
    z = np.random.default_rng(0).normal(size=(n, 4)) @ np.array(
        [[1.0, 8.0, 0.0, 0.05], [0.0, 9.0, 0.0, 0.02], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.06]]
    )
    return np.clip(z + np.array([1.0, 30.0, 7.0, 0.05]), LOWER, UPPER)


@cache
def release(rho: float = 5.0, **config: Any) -> Any:
    return gaussian(jax.random.key(0), rows(), ZCDP(rho), BOX, config=GaussianConfig(**config))


def floored(made: Any) -> np.ndarray:
    """The covariance floored at a quarter of the noise's edge, in the noise's own units: slow NumPy."""
    second, mean = made.measured["second_moment"], made.measured["mean"]
    std, m, s = np.array(second.std), np.array(mean.value), np.array(mean.std)
    d = len(m)
    noise = np.zeros((d, d))
    for j in range(d):
        for k in range(d):
            a, b = max(m[j] ** 2 - s[j] ** 2, 0), max(m[k] ** 2 - s[k] ** 2, 0)
            cross = a * s[k] ** 2 + b * s[j] ** 2 + s[j] ** 2 * s[k] ** 2
            noise[j, k] = np.sqrt(std[j, k] ** 2 + cross * (2 if j == k else 1))
    on = np.flatnonzero(UPPER > LOWER)
    noise, scale = noise[np.ix_(on, on)], np.array(made.scale)[on]
    unit = np.sqrt(np.diag(noise))
    edge = 2 * max(np.sqrt(np.sum((noise / np.outer(unit, unit)) ** 2, axis=1)))
    full = np.outer(unit * scale, unit * scale)
    values, vectors = np.linalg.eigh(np.array(made.covariance)[np.ix_(on, on)] / full)
    result = np.zeros((d, d))
    result[np.ix_(on, on)] = (vectors * np.maximum(values, 0.25 * edge)) @ vectors.T * full
    return result


@pytest.mark.parametrize("rho", [5.0, 1e-5])
def test_each_map_takes_the_floored_covariance_to_the_identity(rho: float) -> None:
    made = release(rho)
    expected, live = floored(made), np.diag(UPPER > LOWER)
    assert (np.linalg.eigvalsh(expected)[1] > np.linalg.eigvalsh(made.covariance)[1] + 1e-12) == (rho < 1)
    for method in METHODS:
        found = whitening(made, method)
        np.testing.assert_allclose(found.covariance, expected, rtol=1e-9, atol=1e-12)
        w, back = np.array(found.matrix), np.array(found.inverse_matrix)
        np.testing.assert_allclose(w @ expected @ w.T @ w, w, atol=1e-8 * np.abs(w).max())
        np.testing.assert_allclose(back @ w, live, atol=1e-8)
        np.testing.assert_allclose(back @ back.T, expected, rtol=1e-8, atol=1e-10)
        shape = {"zca": w - w.T, "cholesky": np.triu(w, 1), "pca": np.zeros(1)}[method]
        np.testing.assert_allclose(shape, 0.0, atol=1e-9)
    pca = whitening(made, "pca")
    variances = np.sum(np.array(pca.inverse_matrix) ** 2, axis=0)
    np.testing.assert_allclose(variances[:3], np.linalg.eigvalsh(expected)[:0:-1], rtol=1e-8)
    assert variances[3] == 0.0 and np.all(np.max(pca.matrix, axis=1)[:3] >= -np.min(pca.matrix, axis=1)[:3])


def test_rows_become_white_and_come_back() -> None:
    made, x = release(), rows()
    for method in METHODS:
        found = whitening(made, method)
        white = np.array(found.transform(x))
        np.testing.assert_allclose(found.inverse(white)[:, [0, 1, 3]], x[:, [0, 1, 3]], atol=1e-8)
        np.testing.assert_allclose(found.inverse(white)[:, 2], 7.0)
        cov = np.cov(white.T)
        np.testing.assert_allclose(cov[np.diag(cov) > 0][:, np.diag(cov) > 0], np.eye(3), atol=0.12)


def test_distances() -> None:
    made, x = release(), rows(20)
    covariance, on = floored(made), [0, 1, 3]
    shift = (x - np.array(made.mean))[:, on]
    expected = np.sum(shift * np.linalg.solve(covariance[np.ix_(on, on)], shift.T).T, axis=1)
    np.testing.assert_allclose(mahalanobis(made, x), expected, rtol=1e-8)
    other = mahalanobis(made, x, floor=0.3, mean=np.zeros(4))
    values, vectors = np.linalg.eigh(np.array(made.covariance)[np.ix_(on, on)])
    inverse = (vectors / np.maximum(values, 0.3)) @ vectors.T
    np.testing.assert_allclose(other, np.sum(x[:, on] @ inverse * x[:, on], axis=1), rtol=1e-8)


def test_batches_jit_and_gradients() -> None:
    keys = jax.random.split(jax.random.key(3), 2)
    batch = jax.vmap(lambda key: gaussian(key, rows(), ZCDP(0.5), BOX))(keys)
    together = jax.jit(whitening)(batch)
    for i in range(2):
        alone = whitening(jax.tree.map(lambda leaf, i=i: leaf[i], batch))
        for mine, single in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
            np.testing.assert_allclose(mine[i], single, rtol=1e-6, atol=1e-9)
    assert together.transform(rows(5)).shape == (2, 5, 4) and mahalanobis(batch, rows(5)).shape == (2, 5)

    @jax.jit
    def loss(shift: Any, rho: Any) -> Any:
        made = gaussian(jax.random.key(3), rows(), ZCDP(rho), BOX)
        moved = dataclasses.replace(made, covariance=made.covariance + shift * jnp.asarray(DIRECTION))
        return jnp.sum(whitening(moved).matrix)

    slopes = jax.jit(jax.grad(loss, (0, 1)))(0.0, 0.5)
    numeric = (loss(1e-5, 0.5) - loss(-1e-5, 0.5)) / 2e-5
    assert abs(numeric) > 1e-3 and np.isclose(slopes[0], numeric, rtol=1e-5) and np.isfinite(slopes[1])


def test_a_missing_mean() -> None:
    pairs, zero = release(center="pairs"), release(center="zero")
    for use in (lambda r: whitening(r), lambda r: mahalanobis(r, rows(2))):
        with pytest.raises(ValueError, match="no mean: pass mean="):
            use(pairs)
    np.testing.assert_array_equal(whitening(zero).mean, zero.center)
    np.testing.assert_array_equal(whitening(pairs, mean=np.ones(4)).mean, np.ones(4))
    with pytest.raises(ValueError, match="mean must have one number for each of the 4 columns"):
        whitening(pairs, mean=[1.0, 2.0])


def test_singular_and_indefinite_covariances() -> None:
    noise_alone = release(1e-7, psd="none")
    assert np.linalg.eigvalsh(noise_alone.covariance)[0] < 0
    for method in METHODS:
        assert np.all(np.isfinite(whitening(noise_alone, method).matrix))
        with pytest.raises(ValueError, match="the covariance is singular"):
            whitening(release(1e-5), method, floor=None)
    traced = jax.jit(lambda r: whitening(r, floor=0.0))(release(1e-5))
    assert np.all(np.isnan(traced.matrix))
    broken = jax.jit(lambda rho: gaussian(jax.random.key(1), rows(), ZCDP(rho), BOX))(-1.0)
    assert np.all(np.isnan(whitening(broken).matrix))


def test_one_column_and_one_row() -> None:
    for made in (
        laplace(jax.random.key(0), np.ones((1, 1)), PureDP(0.5), Bounds.l2(2.0)),
        laplace(
            jax.random.key(0),
            rows(9),
            PureDP(0.1),
            BOX,
            config=LaplaceConfig(relation="add_remove"),
        ),
    ):
        found = whitening(made)
        assert np.all(np.isfinite(found.matrix)) and float(found.matrix[0, 0]) > 0


def test_noise_levels_of_other_mechanisms() -> None:
    x = rows()[:, [0, 3]]
    pure = emcov(jax.random.key(0), x, PureDP(5.0), Bounds.box(LOWER[[0, 3]], UPPER[[0, 3]]))
    level = np.array(_noise.level(pure, "this"))
    expected = np.max(pure.measured["eigenvalues"].std) * np.array(pure.scale) ** 2
    np.testing.assert_allclose(level, np.diag(expected), rtol=1e-12)
    alone = whitening(diagonal(jax.random.key(0), x, ZCDP(0.5), Bounds.l2(5.0)))
    assert alone.matrix[0, 1] == 0.0 and np.all(np.diag(alone.matrix) > 0)
    # CoinPress's noise goes with its own guess of the covariance: the small column must keep its variance.
    press = coinpress_covariance(jax.random.key(1), x, ZCDP(5.0), Bounds.spectrum(1e-4, 100.0))
    used = whitening(press, mean=[1.0, 0.05]).covariance
    np.testing.assert_allclose(used, press.covariance, rtol=1e-6)


def test_wrong_arguments_raise() -> None:
    with pytest.raises(ValueError, match="method must be one of 'zca', 'pca', 'cholesky'"):
        whitening(release(), "zac")
    for floor in ("none", -1.0, np.nan, np.ones(2)):
        with pytest.raises(ValueError, match='floor must be "noise" or a number >= 0'):
            whitening(release(), floor=floor)
    with pytest.raises(ValueError, match=r"rows must be \(n, 4\), got shape \(3, 2\)"):
        whitening(release()).transform(np.ones((3, 2)))
    mean = coinpress_mean(jax.random.key(0), rows(), ZCDP(0.5), Bounds.spectrum(0.1, 10.0, mean_radius=10.0))
    with pytest.raises(ValueError, match="coinpress_mean releases a mean and no covariance"):
        whitening(mean)
