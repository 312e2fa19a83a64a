"""Discriminants from a release: the twin without noise, floors, rare and absent classes, batches, bad cases."""

import dataclasses
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, PureDP, coinpress_mean, estimate, gaussian, laplace
from jaxdpcov.apps.discriminant import discriminant
from jaxdpcov.privacy.noise import Measured

#: Two features, a constant one, and indicators of three classes.
LOWER, UPPER = np.array([-5.0, 0.0, 2.0, 0.0, 0.0, 0.0]), np.array([5.0, 60.0, 2.0, 1.0, 1.0, 1.0])
BOX, N = Bounds.box(LOWER, UPPER), 6000
CENTRES = np.array([[-2.0, 20.0], [0.0, 40.0], [2.0, 30.0]])
WITHIN = np.array([[1.0, 2.0], [2.0, 16.0]])


def kinds(n: int = N) -> np.ndarray:
    return np.random.default_rng(1).choice(3, n, p=[0.5, 0.3, 0.2])


def rows(n: int = N) -> np.ndarray:
    kind = kinds(n)
    x = CENTRES[kind] + np.random.default_rng(2).normal(size=(n, 2)) @ np.linalg.cholesky(WITHIN).T
    return np.clip(np.column_stack([x, np.full(n, 2.0), np.eye(3)[kind]]), LOWER, UPPER)


@jax.jit
def released(key: Any, x: Any, rho: Any) -> Any:
    return gaussian(key, x, ZCDP(rho), BOX)


@cache
def release(rho: float = 1e9) -> Any:
    return released(jax.random.key(0), rows(), rho)


def test_it_is_that_of_scikit_learn_where_the_noise_is_small() -> None:
    sklearn = pytest.importorskip("sklearn.discriminant_analysis")
    x, kind = rows(), kinds()
    twin = sklearn.LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(x[:, :2], kind)
    found = discriminant(release(), classes=[3, 4, 5])
    np.testing.assert_allclose(found.frequencies, twin.priors_, rtol=1e-3)
    np.testing.assert_allclose(np.array(found.means)[:, :2], twin.means_, atol=0.01)
    np.testing.assert_allclose(np.array(found.covariance)[:2, :2], twin.covariance_, rtol=5e-3)
    np.testing.assert_allclose(
        found.log_probabilities(x[:50, :3]), twin.predict_log_proba(x[:50, :2]), rtol=0.02, atol=0.01
    )
    assert np.mean(np.array(found.predict(x[:, :3])) == twin.predict(x[:, :2])) > 0.999
    assert found.features == ("x0", "x1", "x2") and found.classes == ("x3", "x4", "x5")
    logs = np.array(found.log_probabilities(x[:50, :3]))
    expected = logs - np.log1p(-np.minimum(np.exp(logs), 1 - 1e-12))
    some = expected < 20
    np.testing.assert_allclose(np.array(found.log_odds(x[:50, :3]))[some], expected[some], rtol=1e-5, atol=1e-6)


def slow(made: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frequencies, class means and within-class covariance of the live features before the floor: plain NumPy."""
    covariance, mean, scale = np.array(made.covariance), np.array(made.mean), np.array(made.scale)
    second, first = made.measured["second_moment"], made.measured["mean"]
    m, s = np.array(first.value), np.array(first.std)
    p = mean[3:] - (mean[3:].sum() - 1) / 3
    p = np.maximum(p, max(s[3] * 0.5, 1 / N))
    p = p / p.sum()
    means, between, bias = [], np.zeros((2, 2)), np.zeros(2)
    for c in range(3):
        share = covariance[:2, 3 + c] - covariance[:2, 3:].mean(axis=1)
        means.append(mean[:2] + share / p[c])
        between += np.outer(share, share) / p[c]
        for j in range(2):
            variances = []
            for k in range(3, 6):
                a, b = (max(m[i] ** 2 - s[i] ** 2, 0) for i in (j, k))
                var = second.std[j, k] ** 2 + a * s[k] ** 2 + b * s[j] ** 2 + s[j] ** 2 * s[k] ** 2
                variances.append(var * scale[j] ** 2 * scale[k] ** 2)
            # Var(e_c - mean of all e)
            weights = np.where(np.arange(3) == c, 2 / 3, -1 / 3) ** 2
            bias[j] += np.sum(weights * variances) / p[c]
    return p, np.array(means), covariance[:2, :2] - between + np.diag(bias)


@pytest.mark.parametrize("rho", [1.0, 0.01])
def test_each_part_of_a_noisy_release(rho: float) -> None:
    made = release(rho)
    found = discriminant(made, [3, 4, 5], floor=1e-6)
    p, means, within = slow(made)
    np.testing.assert_allclose(found.frequencies, p, rtol=1e-9)
    np.testing.assert_allclose(np.array(found.means)[:, :2], means, rtol=1e-8)
    values, vectors = np.linalg.eigh(within)
    np.testing.assert_allclose(
        np.array(found.covariance)[:2, :2], (vectors * np.maximum(values, 1e-6)) @ vectors.T, rtol=1e-7
    )
    w = np.linalg.solve(np.array(found.covariance)[:2, :2], means.T).T
    score = rows(40)[:, :2] @ w.T - 0.5 * np.sum(w * means, axis=1) + np.log(p)
    expected = score - score[:, :1]
    logs = np.array(found.log_probabilities(rows(40)[:, :3]))
    np.testing.assert_allclose(logs - logs[:, :1], expected, rtol=1e-6, atol=1e-6)


def test_the_bias_of_the_between_class_part_is_given_back() -> None:
    """The mean over 200 releases of the within-class variance is within 4 standard errors of the rows' own."""
    x, kind = rows(), kinds()
    own = sum(np.cov(x[kind == c, :2].T, ddof=0) * np.mean(kind == c) for c in range(3))
    fit = jax.jit(lambda made: discriminant(made, [3, 4, 5], floor=1e-9).covariance)

    @jax.jit
    def raw(key: Any) -> Any:
        return gaussian(key, x, ZCDP(0.02), BOX, config=GaussianConfig(psd="none"))

    found = np.array([np.diag(fit(raw(jax.random.key(i))))[:2] for i in range(200)])
    off = (found.mean(0) - np.diag(own)) / (found.std(0) / np.sqrt(200))
    assert np.all(np.abs(off) < 4.0), off


def test_a_binary_column_and_the_rest() -> None:
    two = discriminant(release(1.0), ["x3"], rest="others", features=[0, 1])
    x, kind = rows(), kinds()
    assert two.classes == ("x3", "others") and two.features == ("x0", "x1")
    np.testing.assert_allclose(two.frequencies, [np.mean(kind == 0), np.mean(kind > 0)], atol=0.02)
    expected = [x[kind == 0, :2].mean(0), x[kind > 0, :2].mean(0)]
    np.testing.assert_allclose(two.means, expected, atol=0.6)
    assert np.mean((np.array(two.predict(x[:, :2])) == 0) == (kind == 0)) > 0.85


def test_noise_larger_than_the_signal_and_absent_classes() -> None:
    for rho in (1e-3, 1e-6):
        found = discriminant(release(rho), [3, 4, 5])
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))
        assert np.all(np.array(found.frequencies) > 0) and np.isclose(np.sum(found.frequencies), 1.0)
        assert np.linalg.eigvalsh(np.array(found.covariance)[:2, :2])[0] > 0
    x = rows()
    x[:, 3:] = np.eye(3)[np.minimum(kinds(), 1)]  # no row of the last class
    absent = discriminant(released(jax.random.key(0), x, 1.0), [3, 4, 5])
    noise = float(np.array(release(1.0).measured["mean"].std)[3]) * 0.5
    assert noise / 1.1 < float(absent.frequencies[2]) < 4 * noise
    assert np.all(np.isfinite(absent.log_odds(x[:10, :3])))
    assert np.mean(np.array(absent.predict(x[:, :3])) == 2) < 0.02


def test_estimate_makes_the_indicators() -> None:
    pandas = pytest.importorskip("pandas")
    names = np.array(["a", "b", "c"])[kinds()]
    table = pandas.DataFrame({"x": rows()[:, 0], "y": rows()[:, 1], "kind": names})
    made = estimate(table, bounds={"x": (-5, 5), "y": (0, 60)}, categories={"kind": ["a", "b", "c"]}, rho=1.0, key=3)
    found = discriminant(made, classes=["kind=a", "kind=b", "kind=c"])
    assert found.features == ("x", "y")
    assert np.mean(np.array(found.predict(rows()[:, :2])) == kinds()) > 0.85


def test_batches() -> None:
    batch = jax.vmap(lambda key: released(key, rows(), 0.5))(jax.random.split(jax.random.key(3), 2))
    together = discriminant(batch, [3, 4, 5])
    for i in range(2):
        alone = discriminant(jax.tree.map(lambda leaf, i=i: leaf[i], batch), [3, 4, 5])
        for mine, single in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
            np.testing.assert_allclose(mine[i], single, rtol=1e-7)
    assert together.predict(rows(7)[:, :3]).shape == (2, 7)


def test_singular_and_invalid() -> None:
    made = release(1.0)
    flat = np.array(made.covariance)
    flat[:2, :2], flat[:2, 3:], flat[3:, :2] = 1.0, 0.0, 0.0
    zero = {"second_moment": Measured(flat, 0.0 * flat), "mean": Measured(made.measured["mean"].value, np.zeros(6))}
    singular = dataclasses.replace(made, covariance=flat, measured=zero)
    with pytest.raises(ValueError, match="the within-class covariance is singular"):
        discriminant(singular, [3, 4, 5], floor=None)
    assert np.all(np.isfinite(discriminant(singular, [3, 4, 5], floor=0.1).coefficients))
    broken = discriminant(released(jax.random.key(0), rows(), -1.0), [3, 4, 5])
    assert np.all(np.isnan(broken.coefficients))
    one = laplace(jax.random.key(0), rows()[:1, [0, 3]], PureDP(0.1), Bounds.box([-5.0, 0.0], [5.0, 1.0]))
    assert np.all(np.isfinite(discriminant(one, [1], rest="none").coefficients))


def test_wrong_arguments_raise() -> None:
    made = release()
    for classes in ([3], [], [3, 3]):
        with pytest.raises(ValueError, match="classes must be two or more different columns, or one with rest="):
            discriminant(made, classes)
    with pytest.raises(ValueError, match="classes must be a list of indicator columns, got 'x3'"):
        discriminant(made, "x3")
    with pytest.raises(ValueError, match="no column 'x9'"):
        discriminant(made, ["x3", "x9"])
    with pytest.raises(ValueError, match="features must be different columns beside the classes"):
        discriminant(made, [3, 4, 5], features=[3])
    for center in ("pairs", "zero"):
        other = gaussian(jax.random.key(0), rows(), ZCDP(5.0), BOX, config=GaussianConfig(center=center))
        with pytest.raises(ValueError, match="has no mean, and class frequencies are means"):
            discriminant(other, [3, 4, 5])
    with pytest.raises(ValueError, match=r"rows must be \(n, 3\), the features alone"):
        discriminant(made, [3, 4, 5]).predict(rows())
    bounds = Bounds.spectrum(0.1, 10.0, mean_radius=10.0)
    with pytest.raises(ValueError, match="coinpress_mean releases a mean and no covariance"):
        discriminant(coinpress_mean(jax.random.key(0), rows(), ZCDP(0.5), bounds), [3, 4, 5])
