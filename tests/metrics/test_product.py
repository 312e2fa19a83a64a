"""Product distributions over {0,1}^d: divergence and bound against all outcomes, 60 digits, and means of 0 and 1."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdpcov import metrics
from jaxdpcov.metrics._steps import excess
from tests.reference import metrics as reference
from tests.reference.matrices import central

bound = jax.jit(metrics.product_total_variation_bound)
kl = jax.jit(metrics.product_kl)
slopes_of = {f: jax.jit(jax.value_and_grad(f, argnums=(0, 1))) for f in (bound, kl)}
PLAIN = ("sum", "coupling", "forward", "backward", "chi square", "hellinger")


def means(seed: int, size: float, d: int = 6):
    """Twelve pairs of means at about `size` from each other, within (0, 1)."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.01, 0.99, size=(12, d))
    return np.clip(p + size * rng.normal(size=p.shape), 0.001, 0.999), p


@pytest.mark.parametrize("size", [0.003, 0.05, 0.3, 1.0])
def test_against_all_outcomes(size):
    q, p = means(1, size)
    exact = np.array([reference.product_variation(*x) for x in zip(q, p)])
    out = bound(q, p)
    assert (exact <= out * (1 + 1e-12)).all() and (out <= np.minimum(1, 4 * exact)).all()
    np.testing.assert_allclose(kl(q, p), [reference.product_kl(*x) for x in zip(q, p)], rtol=1e-9)
    every = [reference.product_bounds(*x) for x in zip(q, p)]
    np.testing.assert_allclose(out, [min(1, *(x[name] for name in PLAIN)) for x in every], rtol=1e-12)
    np.testing.assert_allclose(out, bound(p, q), rtol=1e-14)
    single = bound(q.astype(np.float32), p.astype(np.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, out, rtol=2e-5 / min(size, 0.1))


def test_ten_columns_and_one():
    q, p = means(2, 0.05, d=10)
    exact = np.array([reference.product_variation(*x) for x in zip(q, p)])
    assert (exact <= bound(q, p)).all()
    np.testing.assert_allclose(bound(q[:, :1], p[:, :1]), np.abs(q - p)[:, 0], rtol=1e-14)


def test_each_formula_counts_somewhere():
    """One pair for each of the four that the bound is made of, and all digits as the two come together."""
    won = {}
    for q, p in [
        ([0.5, 0.003, 0.5], [0.9, 0.001, 0.5]),
        ([0.45, 0.46, 0.47, 0.45] * 8, [0.5] * 32),
        ([0.02, 0.01] * 15, [0.03, 0.015] * 15),
        ([0.03, 0.015] * 15, [0.02, 0.01] * 15),
    ]:
        every = reference.product_bounds(q, p)
        name = min(PLAIN, key=every.get)
        won[name] = every[name]
        np.testing.assert_allclose(metrics.product_total_variation_bound(q, p), every[name], rtol=1e-12)
    assert set(won) == {"coupling", "forward", "backward", "hellinger"}
    for near in (1e-14, 1e-9, 1e-4):
        p = np.array([0.3, 0.5, 0.9, 1e-3] * 5)
        q = p * (1 + near)
        every = reference.product_bounds(q.tolist(), p.tolist())
        np.testing.assert_allclose(bound(q, p), min(every[name] for name in PLAIN), rtol=1e-13)
        np.testing.assert_allclose(kl(q, p), every["kl"], rtol=1e-13)


def test_means_of_zero_and_one():
    """No NaN: 0 where both agree, exact where brute force is; gradients finite, and 0 where the two agree."""
    p = np.array([0.0, 1.0, 0.3, 0.5])
    both, loss = slopes_of[bound], slopes_of[kl]
    for q in (
        [0.0, 1.0, 0.3, 0.5],
        [0.1, 0.9, 0.3, 0.5],
        [0.0, 1.0, 0.0, 1.0],
        [1.0, 1.0, 0.3, 0.5],
        [1e-300, 1.0, 0.2, 0.5],
    ):
        q = np.array(q)
        for first, second in ((q, p), (p, q)):
            exact = reference.product_variation(first, second)
            value, slopes = both(jnp.asarray(first), jnp.asarray(second))
            assert exact - 1e-15 <= value <= 1 and all(np.isfinite(slope).all() for slope in slopes)
            value, slopes = loss(jnp.asarray(first), jnp.asarray(second))
            np.testing.assert_allclose(value, reference.product_kl(first, second), rtol=1e-12)
            assert all(np.isfinite(slope).all() for slope in slopes)
    for f in (both, loss):
        value, slopes = f(jnp.asarray(p), jnp.asarray(p))
        assert value == 0 and all((slope == 0).all() for slope in slopes if f is both)
    assert bound(np.array([1.0, 0.5]), np.array([0.0, 0.5])) == 1


def test_what_is_no_mean():
    p = np.array([0.5, 0.5])
    for q in ([1.1, 0.5], [0.5, -1e-9]):
        for f, worst in ((kl, np.inf), (bound, 1.0)):
            value, slopes = slopes_of[f](jnp.array(q), jnp.asarray(p))
            assert value == worst and all((slope == 0).all() for slope in slopes)
    for bad in (np.nan, np.inf):
        assert np.isnan(bound(np.array([0.5, bad]), p)) and np.isnan(kl(p, np.array([0.5, bad])))
    with pytest.raises(ValueError, match=r"one size, got shapes \(2,\) and \(3,\)"):
        metrics.product_kl(p, np.full(3, 0.5))
    with pytest.raises(ValueError, match="truth must be a mean"):
        metrics.product_kl(p, 0.5)
    assert metrics.product_kl([0, 1], [0, 1]) == 0
    assert kl(np.full((4, 1, 2), 0.5), np.full((3, 2), 0.25)).shape == (4, 3)


@pytest.mark.parametrize("size", [0.01, 0.3])
@pytest.mark.parametrize("f", slopes_of, ids=["bound", "kl"])
def test_gradients(f, size):
    q, p = (x[0] for x in means(5, size))
    move = np.random.default_rng(6).normal(size=6) * 1e-3
    slopes = slopes_of[f](jnp.asarray(q), jnp.asarray(p))[1]
    np.testing.assert_allclose(np.sum(slopes[0] * move), central(lambda x: f(x, p), q, move, 1e-3), rtol=1e-5)
    np.testing.assert_allclose(np.sum(slopes[1] * move), central(lambda x: f(q, x), p, move, 1e-3), rtol=1e-5)


def test_x_less_its_logarithm_has_all_digits():
    x = np.concatenate([s * np.logspace(-15, -0.001, 60) for s in (1, -1)] + [[0.25, -0.25, 0.2499, -0.2499, 1e3]])
    with mpmath.workdps(60):
        expected = [float(mpmath.mpf(t) - mpmath.log1p(mpmath.mpf(t))) for t in x]
    np.testing.assert_allclose(excess(jnp.asarray(x)), expected, rtol=4e-15)
