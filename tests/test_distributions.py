"""Distributions: densities against scipy, draws by their moments, what has no density, and those of releases."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxdpcov
from jaxdpcov import ZCDP, Bounds, gaussian, metrics
from jaxdpcov.distributions import Gaussian, Product
from tests.reference.matrices import central, positive, symmetric
from tests.reference.metrics import outcomes

S, M = positive(1, 3), np.array([1.0, -2.0, 0.5])
X = np.random.default_rng(2).uniform(size=(50, 3))
BOX = Bounds.box(0.0, 1.0)


def test_gaussian_log_density_of_all_shapes():
    x = np.random.default_rng(3).normal(size=(4, 2, 3))
    expected = stats.multivariate_normal(M, S).logpdf(x)
    law = Gaussian(M, S)
    np.testing.assert_allclose(jax.jit(Gaussian.log_density)(law, x), expected, rtol=1e-12)
    np.testing.assert_allclose(law.log_density(x[0, 0]), expected[0, 0], rtol=1e-12)
    skew = np.triu(np.ones((3, 3)), 1)
    np.testing.assert_allclose(Gaussian(M, S + skew - skew.T).log_density(x), expected, rtol=1e-12)
    # A batch of laws, of means alone, or of matrices alone, against points with axes of their own.
    many, moved = positive(4, 3, 2), M + np.arange(2)[:, None]
    expected = np.stack([stats.multivariate_normal(moved[k], many[k]).logpdf(x[:, k]) for k in range(2)], axis=1)
    np.testing.assert_allclose(Gaussian(moved, many).log_density(x), expected, rtol=1e-12)
    vmapped = jax.vmap(Gaussian.log_density, in_axes=(0, 1), out_axes=1)(Gaussian(moved, many), x)
    np.testing.assert_allclose(vmapped, expected, rtol=1e-12)
    assert Gaussian(moved, S).log_density(x[0, 0]).shape == Gaussian(M, many).log_density(x[0, 0]).shape == (2,)
    assert law.log_density(np.zeros((0, 3))).shape == (0,) and law.d == 3
    assert Gaussian(M, S).log_density(x.astype(np.float32)).dtype == jnp.float64


def test_gaussian_gradients():
    law, move = Gaussian(jnp.asarray(M), jnp.asarray(S)), symmetric(5, 3)
    slope = jax.jit(jax.grad(Gaussian.log_density))(law, jnp.zeros(3))
    np.testing.assert_allclose(slope.mean, np.linalg.solve(S, -M), rtol=1e-10)
    expected = central(lambda s: Gaussian(M, s).log_density(np.zeros(3)), S, move, 1e-6)
    np.testing.assert_allclose(np.sum(slope.covariance * move), expected, rtol=1e-6)
    for covariance in (S, np.zeros((3, 3)), np.diag([1.0, 0.0, -1.0])):  # draws move with the parameters
        slope = jax.grad(lambda law: jnp.sum(law.sample(jax.random.key(6))))(Gaussian(jnp.zeros(3), covariance))
        assert np.isfinite(slope.covariance).all() and (slope.mean == 1).all()


@pytest.mark.parametrize("values", [[1.0, 2.0, 0.0], [1.0, 2.0, -0.5], [0.0, 0.0, 0.0]])
def test_a_gaussian_without_density(values):
    """-inf and no NaN, gradient 0; draws in the range of the PSD part, with its covariance (400 draws, 5 errors)."""
    turn = np.linalg.qr(symmetric(7, 3))[0]
    covariance = jnp.diag(jnp.array(values))
    law = Gaussian(jnp.asarray(M), covariance)
    value, slope = jax.jit(jax.value_and_grad(Gaussian.log_density))(law, jnp.zeros(3))
    assert value == -np.inf and all((x == 0).all() for x in jax.tree.leaves(slope))
    drawn = np.asarray(Gaussian(turn @ M, turn @ covariance @ turn.T).sample(jax.random.key(8), (400,))) @ turn - M
    np.testing.assert_allclose(drawn[:, 2], 0.0, atol=1e-7)
    spread = np.maximum(values, 0.0)
    assert (np.abs(np.mean(drawn**2, axis=0) - spread) <= 5 * spread * np.sqrt(2 / 400) + 1e-12).all()
    pair = Gaussian(jnp.stack([M, M]), jnp.stack([covariance, S]))
    np.testing.assert_allclose(pair.log_density(M), [-np.inf, stats.multivariate_normal(M, S).logpdf(M)])


def test_gaussian_draws():
    """Squared distances of 4000 draws are chi-square with 3 degrees: Kolmogorov-Smirnov at level 1e-6; and moments."""
    sample = jax.jit(Gaussian.sample, static_argnames="shape")
    x = sample(Gaussian(M, S), jax.random.key(9), shape=(2000, 2))
    assert x.shape == (2000, 2, 3) and x.dtype == jnp.float64
    x = np.asarray(x).reshape(-1, 3)
    far = np.einsum("ni,ij,nj->n", x - M, np.linalg.inv(S), x - M)
    assert stats.kstest(far, stats.chi2(3).cdf).pvalue > 1e-6
    assert metrics.mahalanobis(np.cov(x.T), S) < 0.15  # about sqrt(12/4000) = 0.055
    assert (np.abs(x.mean(axis=0) - M) < 5 * np.sqrt(np.diag(S) / 4000)).all()
    many = Gaussian(np.stack([M, M]), np.stack([S, S]))
    drawn = many.sample(jax.random.key(10), (5,))
    assert drawn.shape == (5, 2, 3) and not (drawn[:, 0] == drawn[:, 1]).any()
    assert (
        many.sample(jax.random.key(11)).shape
        == (2, 3)
        == Gaussian(M, np.stack([S, S])).sample(jax.random.key(12)).shape
    )
    assert Gaussian(M, S).sample(jax.random.key(13), (0,)).shape == (0, 3)
    assert np.isnan(Gaussian(M, S * np.nan).sample(jax.random.key(14))).all()
    assert np.isnan(Gaussian(M, S * np.nan).log_density(M)) and np.isnan(Gaussian(M * np.nan, S).log_density(M))


def test_product():
    mean = np.array([0.2, 0.7, 0.5, 0.9])
    law = Product(mean)
    bits = np.stack(np.meshgrid(*[[0, 1]] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    for x in (bits, bits.astype(bool), bits.astype(np.float32)):
        np.testing.assert_allclose(np.exp(jax.jit(Product.log_density)(law, x)), outcomes(mean), rtol=1e-12)
    slope = jax.grad(Product.log_density)(Product(jnp.asarray(mean)), bits[5]).mean
    np.testing.assert_allclose(slope, np.where(bits[5] == 1, 1 / mean, -1 / (1 - mean)), rtol=1e-12)
    drawn = law.sample(jax.random.key(15), (1000, 2))
    assert drawn.shape == (1000, 2, 4) and set(np.unique(drawn)) == {0.0, 1.0} and law.d == 4
    error = np.sqrt(mean * (1 - mean) / 2000)
    assert (np.abs(drawn.mean(axis=(0, 1)) - mean) < 5 * error).all()  # a false alarm of 2e-6
    many = Product(np.stack([mean, 1 - mean]))
    assert many.log_density(bits[:, None]).shape == (16, 2) == jax.vmap(many.log_density)(bits).shape
    assert many.sample(jax.random.key(16), (3,)).shape == (3, 2, 4)


def test_product_at_the_ends():
    """Means of 0 and 1: impossible outcomes have log mass -inf, nothing is NaN, and draws keep to them."""
    law = Product(jnp.array([0.0, 1.0, 0.5]))
    x = jnp.array([[0, 1, 1], [1, 1, 1], [0, 0, 0]])
    value, slope = jax.vmap(jax.value_and_grad(Product.log_density), in_axes=(None, 0))(law, x)
    np.testing.assert_allclose(value, [np.log(0.5), -np.inf, -np.inf])
    np.testing.assert_allclose(slope.mean, [[-1, 1, 2], [0, 0, 0], [0, 0, 0]])
    assert law.log_density([0.5, 1.0, 1.0]) == Product([1.2, 0.5]).log_density([1, 1]) == -np.inf
    drawn = law.sample(jax.random.key(17), (200,))
    assert (drawn[:, 0] == 0).all() and (drawn[:, 1] == 1).all()
    assert np.isnan(Product([np.nan, 0.5]).log_density([1, 1])) and np.isnan(law.log_density([np.nan, 1, 1]))
    np.testing.assert_array_equal(Product([np.nan, 1.0]).sample(jax.random.key(18)), [np.nan, 1.0])


def test_arguments():
    with pytest.raises(ValueError, match=r"got shapes \(2,\) and \(3, 3\)"):
        Gaussian(np.zeros(2), S)
    with pytest.raises(ValueError, match=r"got shapes \(\) and \(1, 1\)"):
        Gaussian(0.0, np.eye(1))
    with pytest.raises(ValueError, match=r"mean must be \(..., d\), got shape \(\)"):
        Product(0.5)
    assert jaxdpcov.distributions.Gaussian is Gaussian
    assert len(jax.tree.leaves(Gaussian([0.0, 1.0], [[1.0, 0.0], [0.0, 1.0]]))) == 2


def release():
    return gaussian(jax.random.key(19), X, ZCDP(10.0), BOX)


def test_the_distribution_of_a_release():
    one = release()
    law = one.distribution
    assert isinstance(law, Gaussian) and law.mean is one.mean and law.covariance is one.covariance
    inside = jax.jit(lambda release, key: release.distribution.sample(key, (7,)))
    np.testing.assert_allclose(inside(one, jax.random.key(20)), law.sample(jax.random.key(20), (7,)), rtol=1e-12)
    many = jax.vmap(lambda key: gaussian(key, X, ZCDP(10.0), BOX))(jax.random.split(jax.random.key(21), 4))
    assert many.distribution.log_density(X[:, None]).shape == (50, 4)
    np.testing.assert_allclose(
        jax.vmap(lambda release: release.distribution.log_density(X))(many), many.distribution.log_density(X[:, None]).T
    )
    with pytest.raises(ValueError, match=r"of gaussian has no mean: with a known one, use .*Gaussian\(mean"):
        _ = dataclasses.replace(one, mean=None).distribution


def test_the_distribution_of_a_mean_alone():
    """A product distribution under the unit box, clipped; an error elsewhere, NaN where the bounds cannot be seen."""
    one = dataclasses.replace(release(), covariance=None, mean=jnp.array([-0.1, 0.4, 1.2]))
    np.testing.assert_array_equal(one.distribution.mean, [0.0, 0.4, 1.0])
    columns = dataclasses.replace(one, bounds=Bounds.box(np.zeros(3), np.ones(3)))
    assert isinstance(columns.distribution, Product)
    mean_of = jax.jit(lambda release: release.distribution.mean)
    np.testing.assert_array_equal(mean_of(one), [0.0, 0.4, 1.0])
    wide = dataclasses.replace(one, bounds=Bounds.box(np.zeros(3), np.array([1.0, 1.0, 2.0])))
    assert np.isnan(mean_of(wide)).all()
    for bounds in (wide.bounds, Bounds.l2(1.0), Bounds.box(-1.0, 1.0)):
        with pytest.raises(ValueError, match=r"no covariance: a mean alone .* under Bounds.box\(0, 1\) only"):
            _ = dataclasses.replace(one, bounds=bounds).distribution


@pytest.mark.x64_off
def test_x64_off():
    law = Gaussian(M, S)  # float64 from NumPy, as `estimate` returns
    value = law.log_density(X)
    assert value.dtype == law.sample(jax.random.key(22)).dtype == jnp.float32
    np.testing.assert_allclose(value, stats.multivariate_normal(M, S).logpdf(X), rtol=1e-4)
    assert Product([0.5, 0.25]).sample(jax.random.key(23)).dtype == jnp.float32
