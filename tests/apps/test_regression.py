"""Regression from a release: coefficients, the noise's ridge, standard errors that hold, batches, bad cases."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, PureDP, coinpress_mean, gaussian, laplace
from jaxdpcov.apps.regression import regression
from jaxdpcov.privacy.noise import Measured

LOWER, UPPER = np.array([-3.0, 0.0, 5.0, -40.0]), np.array([3.0, 10.0, 5.0, 40.0])
BOX, N = Bounds.box(LOWER, UPPER), 5000
BETA, INTERCEPT = np.array([4.0, -1.5, 0.0]), 6.0


def rows(seed: int = 0, n: int = N) -> np.ndarray:
    """Two features that go together, a constant one, and the target."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1.5, 1.5, n)
    b = 5.0 + a + rng.uniform(-2.5, 2.5, n)
    x = np.stack([a, b, np.full(n, 5.0)], axis=1)
    return np.column_stack([x, INTERCEPT + x @ BETA + rng.normal(size=n)])


@jax.jit
def released(key: Any, x: Any, rho: Any) -> Any:
    return gaussian(key, x, ZCDP(rho), BOX)


@cache
def release(rho: float = 5.0) -> Any:
    return released(jax.random.key(0), rows(), rho)


def test_it_is_least_squares_where_the_noise_is_small() -> None:
    found, x = regression(release(1e9), "x3"), rows()
    design = np.column_stack([x[:, :2], np.ones(N)])
    expected = np.linalg.lstsq(design, x[:, 3], rcond=None)[0]
    np.testing.assert_allclose(found.coefficients, [*expected[:2], 0.0], rtol=1e-3)
    np.testing.assert_allclose(found.intercept, expected[2], rtol=1e-3)
    assert np.all(np.array(found.ridge) == 0.0)
    residuals = x[:, 3] - design @ expected
    np.testing.assert_allclose(found.residual_variance, np.mean(residuals**2), rtol=1e-2)
    np.testing.assert_allclose(found.predict(x[:, :3]), design @ expected, atol=1e-2)
    assert (found.target, found.features) == ("x3", ("x0", "x1", "x2"))


def slow(made: Any, ridge: Any) -> tuple[np.ndarray, float, np.ndarray]:
    """Coefficients, intercept and what was added, of the two live features: plain NumPy."""
    covariance, mean, std = np.array(made.covariance), np.array(made.mean), noise(made)
    a = covariance[:2, :2]
    if ridge == "noise":
        u = np.sqrt(np.diag(std))[:2]
        edge = 2 * np.max(np.sqrt(np.sum((std[:2, :2] / np.outer(u, u)) ** 2, axis=1)))
        smallest = np.linalg.eigvalsh(a / np.outer(u, u))[0]
        ridge = max(0.0, 0.5 * edge - max(0.0, smallest - edge)) * u**2
    added = ridge * np.ones(2)
    beta = np.linalg.solve(a + np.diag(added), covariance[:2, 3])
    return beta, mean[3] - beta @ mean[:2], added


def noise(made: Any) -> np.ndarray:
    """Std of each entry of the covariance, data units."""
    second, mean, scale = made.measured["second_moment"], made.measured["mean"], np.array(made.scale)
    m, s = np.array(mean.value), np.array(mean.std)
    a = np.maximum(m**2 - s**2, 0.0)
    v = np.array(second.std) ** 2 + (np.outer(a, s**2) + np.outer(s**2, a) + np.outer(s**2, s**2)) * (1 + np.eye(4))
    return np.sqrt(v) * np.outer(scale, scale)


@pytest.mark.parametrize("rho", [5.0, 2e-3, 1e-4])
def test_the_ridge_is_that_of_the_noise(rho: float) -> None:
    made = release(rho)
    for ridge in ("noise", 0.7):
        beta, intercept, added = slow(made, ridge)
        found = regression(made, 3, ridge=ridge)
        np.testing.assert_allclose(found.ridge[:2], added, rtol=1e-8)
        np.testing.assert_allclose(found.coefficients, [*beta, 0.0], rtol=1e-7)
        np.testing.assert_allclose(found.intercept, intercept, rtol=1e-7)
    assert (slow(made, "noise")[2][0] > 0) == (rho < 1)


def test_columns_by_name_features_and_units() -> None:
    made = dataclasses.replace(release(), columns=("age", "income", "always", "spent"))
    found = regression(made, "income", features=["spent", 0])
    assert (found.target, found.features) == ("income", ("spent", "age"))
    c = np.array(made.covariance)
    expected = np.linalg.solve(c[np.ix_([3, 0], [3, 0])], c[[3, 0], 1])
    np.testing.assert_allclose(regression(made, 1, features=[3, 0], ridge=None).coefficients, expected, rtol=1e-8)
    with pytest.raises(ValueError, match="no column 'wage'.*the columns are age, income, always, spent"):
        regression(made, "wage")
    for bad in (["income"], [], [0, "age"]):
        with pytest.raises(ValueError, match="features must be different columns beside the target"):
            regression(made, "income", features=bad)


def test_noise_std_and_standard_errors_cover() -> None:
    """800 releases: 95% intervals of the rows' own coefficients, then those of the population over fresh rows.

    A true coverage of 95% leaves 0.95 +- 4 standard errors of 0.0077 with probability below 1e-4 for each number.
    """
    fit = jax.jit(lambda made: jax.tree.leaves(regression(made, 3, ridge=None))[:5])
    x = rows()
    own = np.linalg.lstsq(np.column_stack([x[:, :2], np.ones(N)]), x[:, 3], rcond=None)[0][:2]
    hits: dict[str, list[np.ndarray]] = {"own": [], "population": []}
    for i in range(800):
        for kind, data, truth in (("own", x, own), ("population", rows(i, 1200), BETA[:2])):
            beta, _, _, noise_only, total = fit(released(jax.random.key(i), data, 60.0 if kind == "own" else 3.0))
            std = noise_only if kind == "own" else total
            hits[kind].append(np.abs(np.array(beta)[:2] - truth) <= 1.96 * np.array(std)[:2])
    for kind, inside in hits.items():
        assert np.all(np.abs(np.mean(inside, axis=0) - 0.95) < 0.031), (kind, np.mean(inside, axis=0))


def test_noise_that_is_too_large_has_no_standard_errors() -> None:
    found = regression(release(1e-4), 3, ridge=1e-9)
    assert np.all(np.isnan(found.noise_std)) and np.all(np.isnan(found.standard_error))
    assert np.all(np.isfinite(regression(release(60.0), 3).standard_error))


def test_the_ridge_helps_where_the_noise_is_large() -> None:
    """Median prediction error over 20 releases at noise of the signal's size: least squares err more by a third."""
    x, errors = rows(), dict[Any, float]()
    for ridge in ("noise", 1e-6):
        found = [regression(released(jax.random.key(i), x, 3e-4), 3, ridge=ridge) for i in range(20)]
        errors[ridge] = float(np.median([np.mean((np.array(f.predict(x[:, :3])) - x[:, 3]) ** 2) for f in found]))
    assert errors["noise"] < 0.75 * errors[1e-6], errors


def test_batches_and_gradients() -> None:
    batch = jax.vmap(lambda key: gaussian(key, rows(), ZCDP(0.5), BOX))(jax.random.split(jax.random.key(3), 2))
    together = regression(batch, 3)
    for i in range(2):
        alone = regression(jax.tree.map(lambda leaf, i=i: leaf[i], batch), 3)
        for mine, single in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
            np.testing.assert_allclose(mine[i], single, rtol=1e-7)
    assert together.predict(rows()[:4, :3]).shape == (2, 4)

    @jax.jit
    def loss(shift: Any) -> Any:
        made = release()
        moved = dataclasses.replace(made, covariance=made.covariance + shift * jnp.ones((4, 4)))
        return jnp.sum(regression(moved, 3).coefficients)

    assert np.isclose(jax.jit(jax.grad(loss))(0.0), (loss(1e-6) - loss(-1e-6)) / 2e-6, rtol=1e-5)


def test_singular_indefinite_and_invalid() -> None:
    made = release(1e-4)
    singular = dataclasses.replace(made, covariance=np.ones((4, 4)))
    with pytest.raises(ValueError, match="the covariance of the features is singular"):
        regression(singular, 3, ridge=None)
    assert np.all(np.isnan(jax.jit(lambda r: regression(r, 3, ridge=0.0).coefficients)(singular)))
    assert np.all(np.isfinite(regression(singular, 3).coefficients))
    indefinite = dataclasses.replace(made, covariance=np.diag([1.0, -1.0, 0.0, 1.0]))
    found = regression(indefinite, 3)
    assert np.all(np.isfinite(found.coefficients)) and float(found.residual_variance) >= 0
    assert np.all(np.isnan(regression(released(jax.random.key(0), rows(), -1.0), 3).coefficients))
    # Without measured statistics, a number alone will do.
    bare = dataclasses.replace(made, measured={})
    with pytest.raises(ValueError, match='gaussian measures no entry of the second moment, which ridge="noise" '):
        regression(bare, 3)
    other = regression(bare, 3, ridge=0.1)
    np.testing.assert_allclose(other.coefficients, regression(made, 3, ridge=0.1).coefficients, rtol=1e-9)
    assert np.all(np.isnan(other.noise_std))
    nowhere = dataclasses.replace(made, measured={"second_moment": Measured(np.zeros((4, 4)), np.zeros((4, 4)))})
    assert np.all(np.isfinite(regression(nowhere, 3, ridge=0.1).coefficients))


def test_pure_and_other_centres() -> None:
    tiny = laplace(jax.random.key(0), rows()[:1, [0, 3]], PureDP(0.1), Bounds.l2(50.0))
    assert np.all(np.isfinite(regression(tiny, 1).coefficients))
    pairs = gaussian(jax.random.key(0), rows(), ZCDP(5.0), BOX, config=GaussianConfig(center="pairs"))
    with pytest.raises(ValueError, match="no mean: pass mean="):
        regression(pairs, 3)
    found = regression(pairs, 3, mean=rows().mean(0))
    np.testing.assert_allclose(found.coefficients[:2], BETA[:2], rtol=0.3)
    bounds = Bounds.spectrum(0.1, 10.0, mean_radius=10.0)
    with pytest.raises(ValueError, match="coinpress_mean releases a mean and no covariance"):
        regression(coinpress_mean(jax.random.key(0), rows(), ZCDP(0.5), bounds), 3)
    with pytest.raises(ValueError, match=r"rows must be \(n, 3\), the features alone"):
        regression(release(), 3).predict(rows())
