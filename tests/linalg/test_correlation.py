"""Correlation matrices: the definition, degenerate columns, and the nearest one against alternating projections."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import linalg
from tests.reference import linalg as reference
from tests.reference.matrices import central, positive, symmetric


def test_correlation_agrees_with_the_definition():
    a = positive(30, 6, 3)
    a[1] = symmetric(31, 6)  # indefinite, some variances negative
    a[2, 3] = a[2, :, 3] = 0.0  # a constant column
    out = np.asarray(jax.jit(linalg.correlation)(a))
    np.testing.assert_allclose(out, np.stack([reference.correlation(x) for x in a]), atol=1e-15)
    assert np.array_equal(out, out.swapaxes(-1, -2))
    assert (np.diagonal(out, axis1=-2, axis2=-1) == 1).all() and (np.abs(out) <= 1).all()
    assert np.array_equal(out[2, 3], np.eye(6)[3])
    slope = jax.grad(lambda x: jnp.sum(linalg.correlation(x) ** 2))(jnp.asarray(a))
    assert np.isfinite(slope).all()


@hypothesis.given(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=6), st.integers(-140, 140))
@hypothesis.settings(max_examples=60)
def test_correlation_is_a_correlation_matrix_whatever_comes(triangle, power):
    a = np.zeros((3, 3))
    a[np.triu_indices(3)] = triangle
    out = np.asarray(linalg.correlation((a + a.T) * 10.0**power))
    assert (np.diagonal(out) == 1).all() and (np.abs(out) <= 1).all() and np.array_equal(out, out.T)


def test_nearest_correlation_of_highams_example():
    out, residual = linalg.nearest_correlation([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    expected = [[1.0, 0.7607, 0.1573], [0.7607, 1.0, 0.7607], [0.1573, 0.7607, 1.0]]  # Higham 2002, section 4
    np.testing.assert_allclose(out, expected, atol=5e-5)
    assert residual < 1e-14


@pytest.mark.parametrize("size", [0.05, 0.3, 1.0])
def test_nearest_correlation_agrees_with_alternating_projections(size):
    a = np.stack([np.eye(8) + size * symmetric(seed, 8) for seed in (32, 33)])
    out, residual = linalg.nearest_correlation(a)
    assert (residual < 1e-13).all()
    np.testing.assert_allclose(out, np.stack([reference.nearest_correlation(x) for x in a]), atol=1e-9)
    assert (np.diagonal(out, axis1=-2, axis2=-1) == 1).all()
    assert np.linalg.eigvalsh(out).min() > -1e-14
    again = jax.vmap(linalg.nearest_correlation)(a)[0]
    np.testing.assert_allclose(again, out, atol=1e-12)


def test_nearest_correlation_keeps_a_correlation_matrix_and_has_gradients():
    fixed = linalg.correlation(positive(34, 5))
    np.testing.assert_allclose(linalg.nearest_correlation(fixed)[0], fixed, atol=1e-14)
    a, e = np.eye(5) + symmetric(35, 5), symmetric(36, 5)

    @jax.jit
    def f(x):
        return jnp.sum(linalg.nearest_correlation(x)[0] ** 3)

    expected, slope = central(f, a, e, 1e-5), jax.jit(jax.grad(f))
    tangent = jax.jit(lambda *change: jax.jvp(f, change[:1], change[1:])[1])(jnp.asarray(a), jnp.asarray(e))
    np.testing.assert_allclose(tangent, expected, rtol=1e-7)
    np.testing.assert_allclose(np.sum(slope(jnp.asarray(a)) * e), expected, rtol=1e-7)
    assert np.isfinite(slope(jnp.eye(5))).all() and np.isfinite(slope(jnp.zeros((5, 5)))).all()


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_scales(scale):
    a = positive(9, 4)
    np.testing.assert_allclose(linalg.correlation(a * scale), linalg.correlation(a), atol=1e-14)


def test_a_bad_entry_gives_nan():
    a = symmetric(38, 4, 4)
    a[0, 1, 2], a[1, 0, 0], a[2, 3, 1] = np.nan, np.inf, -np.inf
    matrix, residual = linalg.nearest_correlation(a)
    assert np.isnan(matrix[:3]).all() and np.isnan(residual[:3]).all() and np.isfinite(matrix[3]).all()
    out = linalg.correlation(a)
    assert np.isnan(out[:3]).all() and np.isfinite(out[3]).all()


@pytest.mark.x64_off
def test_x64_off():
    matrix, residual = linalg.nearest_correlation(symmetric(37, 4))
    assert matrix.dtype == jnp.float32 and residual < 1e-5
    assert np.linalg.eigvalsh(matrix)[0] > -1e-6
    assert linalg.correlation(symmetric(37, 4)).dtype == jnp.float32
