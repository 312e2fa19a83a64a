"""Cholesky that reports failure, isometric vectorisation, and what a matrix argument may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import linalg
from tests.reference import linalg as reference
from tests.reference.matrices import central, positive, symmetric
from tests.reference.programs import independent_factorisations


def test_try_cholesky_reports_failure_without_nan():
    good = positive(20, 4)
    bad = np.stack([good, good - 2 * np.eye(4), np.zeros((4, 4)), np.full((4, 4), np.nan)])
    lower, ok = jax.jit(linalg.try_cholesky)(bad)
    assert ok.tolist() == [True, False, False, False]
    np.testing.assert_allclose(lower[0], np.linalg.cholesky(good), atol=1e-14)
    assert np.array_equal(lower[1:], np.broadcast_to(np.eye(4), (3, 4, 4)))
    assert np.array_equal(lower, np.tril(lower))
    slope = jax.vmap(jax.grad(lambda x: jnp.sum(linalg.try_cholesky(x)[0] ** 3)))(jnp.asarray(bad))
    expected = jax.grad(lambda x: jnp.sum(jnp.linalg.cholesky(x) ** 3))(jnp.asarray(good))
    np.testing.assert_allclose(slope[0], expected, atol=1e-13)
    assert np.array_equal(slope[1:], np.zeros((3, 4, 4)))


def test_try_cholesky_forward_and_second_derivative():
    a, e = jnp.asarray(positive(21, 3)), symmetric(22, 3)

    def slope(x):
        return jax.jvp(lambda y: linalg.try_cholesky(y)[0], (x,), (jnp.asarray(e),))[1]

    np.testing.assert_allclose(
        slope(a), central(lambda y: linalg.try_cholesky(y)[0], np.asarray(a), e, 1e-6), atol=1e-8
    )
    np.testing.assert_allclose(
        jax.jvp(slope, (a,), (jnp.asarray(e),))[1], central(slope, np.asarray(a), e, 1e-6), atol=1e-7
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_svec_is_isometric_and_smat_its_inverse(dtype):
    a, b = symmetric(23, 5, 2, dtype=dtype), symmetric(24, 5, 2, dtype=dtype)
    eps = np.finfo(dtype).eps
    v, w = linalg.svec(a), linalg.svec(b)
    assert v.dtype == dtype and v.shape == (2, 15)
    np.testing.assert_allclose(np.sum(v * w, axis=-1), np.sum(a * b, axis=(-2, -1)), rtol=50 * eps)
    np.testing.assert_allclose(linalg.smat(v), a, rtol=4 * eps)
    np.testing.assert_allclose(v[0], reference.svec(a[0]), rtol=4 * eps)
    assert np.array_equal(linalg.smat(v), linalg.smat(v).mT)
    with pytest.raises(ValueError, match=r"v must have d\(d\+1\)/2 entries"):
        linalg.smat(np.zeros(5))


def test_arguments():
    for wrong in (np.zeros(3), np.zeros((2, 3)), np.zeros((0, 0)), 1.0):
        with pytest.raises(ValueError, match=r"a must be a square matrix \(..., d, d\), got shape"):
            linalg.psd_project(wrong)
    with pytest.raises(TypeError, match="a must be float32 or float64, got complex128"):
        linalg.sqrtm(np.eye(2) + 0j)
    assert linalg.sqrtm(np.eye(2, dtype=int)).dtype == jnp.float64


@pytest.mark.x64_off
def test_x64_off():
    lower, ok = linalg.try_cholesky(positive(26, 3))
    assert lower.dtype == linalg.svec(positive(26, 3)).dtype == jnp.float32 and ok


def test_after_makes_one_eigh_wait_for_the_other():
    """Batched, in the compiled program; without it they are independent, and nothing but the order changes."""
    a, b = jnp.asarray(positive(23, 3)), jnp.asarray(positive(24, 3))

    def values(x, y, order):
        first = jnp.linalg.eigh(x)[0]
        return first, jnp.linalg.eigh(linalg.after(y, first) if order else y)[0]

    batch = jnp.stack([a, b]), jnp.stack([b, a])
    for order in (False, True):
        run = jax.vmap(lambda x, y, order=order: values(x, y, order))
        assert independent_factorisations(run, *batch) == (2, 0 if order else 1)
        np.testing.assert_array_equal(jax.jit(run)(*batch), jax.jit(jax.vmap(lambda x, y: values(x, y, False)))(*batch))


def test_after_hands_on_neither_values_nor_derivatives():
    x = jnp.array([1.5, -2.0], jnp.float32)
    for first in (jnp.array([jnp.nan, jnp.inf]), jnp.array([1e308, 1e308])):
        found = linalg.after(x, first)
        assert found.dtype == jnp.float32 and np.array_equal(found, x)
    slope = jax.grad(lambda y: jnp.sum(linalg.after(y, 3.0 * y) ** 2))(x)
    np.testing.assert_array_equal(slope, 2.0 * x)
