"""Chi-square divergence of Gaussians: against its definition and integrals, near 0 and at the edge of finiteness."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdpcov import metrics
from tests.reference import metrics as reference
from tests.reference.matrices import central, positive, symmetric

chi_square = jax.jit(metrics.chi_square)


def case(seed: int, d: int, *batch: int):
    """A truth, and an estimate whose variance is more than half of it in each direction; means apart."""
    s, rng = positive(seed, d, *batch), np.random.default_rng(seed)
    e = 0.55 * s + 0.5 * positive(seed + 1, d, *batch)
    return e, s, *(0.3 * rng.normal(size=(2, *batch, d)))


def test_agrees_with_the_definition_batched_and_jitted():
    e, s, me, ms = case(1, 4, 3)
    expected = [reference.chi_square(*x) for x in zip(e, s, me, ms)]
    assert min(expected) > 0.01
    for out in (metrics.chi_square(e, s, me, ms), jax.jit(jax.vmap(chi_square))(e, s, me, ms)):
        np.testing.assert_allclose(out, expected, rtol=1e-11)
    np.testing.assert_allclose(chi_square(e, s), [reference.chi_square(*x) for x in zip(e, s)], rtol=1e-11)
    np.testing.assert_allclose(chi_square(e, s, me, me), chi_square(e, s), rtol=1e-13)
    assert (metrics.kl(e, s, me, ms) <= np.log1p(expected)).all()
    single = metrics.chi_square(*(x.astype(np.float32) for x in (e, s, me, ms)))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected, rtol=1e-3)


@pytest.mark.parametrize("line", [(2.0, 1.0, 0.0, 0.0), (0.6, 1.0, 0.5, -0.2), (1.0, 1.5, 0.7, 0.0)])
def test_one_column_against_integrals(line):
    e, s, me, ms = line
    out = metrics.chi_square([[e]], [[s]], [me], [ms])
    np.testing.assert_allclose(out, reference.chi_square_by_integration(*line), rtol=1e-9)


@pytest.mark.parametrize("near", [1e-12, 1e-9, 1e-6, 1e-3, 0.9, 1e3])
def test_relative_precision_near_the_truth(near):
    s, shift = [2.0, 1.0, 0.5], [near, 0.0, -2 * near]
    e = [x * (1 + near * t) for x, t in zip(s, (1.0, 0.5, -0.25 if near < 1 else 0.25))]
    with mpmath.workdps(60):
        ratio = [mpmath.mpf(y) / x for x, y in zip(e, s)]
        far = mpmath.fsum(mpmath.mpf(t) ** 2 / (2 * mpmath.mpf(x) - y) for t, x, y in zip(shift, e, s))
        alone = 1 / mpmath.sqrt(mpmath.fprod(k * (2 - k) for k in ratio))
        expected = float(alone - 1), float(alone * mpmath.exp(far) - 1 if far < 700 else mpmath.inf)
    zero = np.zeros(3)
    out = chi_square(np.diag(e), np.diag(s), zero, zero), chi_square(np.diag(e), np.diag(s), np.array(shift), zero)
    np.testing.assert_allclose(out, expected, rtol=1e-15 / near + 1e-13)


def test_it_is_finite_where_twice_the_estimate_exceeds_the_truth():
    """inf with gradient 0 beyond the edge, in any direction, where a matrix is no covariance, and beyond the floats."""
    s = jnp.asarray(positive(5, 3))
    values, vectors = np.linalg.eigh(s)
    both = jax.jit(jax.value_and_grad(metrics.chi_square, argnums=(0, 1, 2, 3)))
    zero, far = jnp.zeros(3), jnp.full(3, 1e3)
    for k in range(3):
        weak = (vectors * np.where(np.arange(3) == k, 0.501, 1.0)) * values
        value, slopes = both(weak @ vectors.T, s, zero, zero)
        np.testing.assert_allclose(value, 1 / np.sqrt((1 / 0.501) * (2 - 1 / 0.501)) - 1, rtol=1e-9)
        assert all(np.isfinite(slope).all() for slope in slopes)
        weak = (vectors * np.where(np.arange(3) == k, 0.499, 1.0)) * values
        value, slopes = both(weak @ vectors.T, s, zero, zero)
        assert value == np.inf and all((slope == 0).all() for slope in slopes)
    singular, indefinite = jnp.diag(jnp.array([9.0, 9.0, 0.0])), jnp.diag(jnp.array([9.0, 9.0, -1.0]))
    for e, t in [(singular, s), (s, singular), (indefinite, s), (9 * s, indefinite), (s, 3 * s), (0.5 * s, s)]:
        value, slopes = both(e, t, zero, zero)
        assert value == np.inf and all((slope == 0).all() for slope in slopes)
    value, slopes = both(s, s, far, zero)
    assert value == np.inf and all((slope == 0).all() for slope in slopes)
    assert np.isnan(chi_square(s.at[0, 1].set(jnp.nan), s)) and np.isnan(chi_square(s, s, zero * jnp.nan, zero))
    with pytest.raises(ValueError, match="both, or neither"):
        metrics.chi_square(s, s, zero)


def test_gradients_and_units():
    e, s, me, ms = case(7, 3)
    move, t = symmetric(8, 3), symmetric(9, 3) + 3 * np.eye(3)
    slopes = jax.jit(jax.grad(metrics.chi_square, argnums=(0, 1, 2, 3)))
    out = slopes(*(jnp.asarray(x) for x in (e, s, me, ms)))
    np.testing.assert_allclose(np.sum(out[0] * move), central(lambda x: chi_square(x, s, me, ms), e, move, 1e-6), 1e-6)
    np.testing.assert_allclose(np.sum(out[1] * move), central(lambda x: chi_square(e, x, me, ms), s, move, 1e-6), 1e-6)
    expected = central(lambda x: chi_square(e, s, x, ms), me, move[0], 1e-6)
    np.testing.assert_allclose(np.sum(out[2] * move[0]), expected, rtol=1e-6)
    np.testing.assert_allclose(out[3], -out[2], rtol=1e-12)
    assert chi_square(s, s, ms, ms) == 0 and all((np.abs(x) < 1e-12).all() for x in slopes(s, s, ms, ms))
    np.testing.assert_allclose(
        chi_square(t @ e @ t.T, t @ s @ t.T, t @ me, t @ ms), chi_square(e, s, me, ms), rtol=1e-10
    )
    np.testing.assert_allclose(
        chi_square(1e150 * e, 1e150 * s, 1e75 * me, 1e75 * ms), chi_square(e, s, me, ms), rtol=1e-11
    )
