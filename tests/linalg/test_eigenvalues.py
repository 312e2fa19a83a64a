"""Eigenvalues for noisy eigenvectors: against slow forms, at ties, with masked columns, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov.linalg import eigenvalues
from tests.reference import separate as reference


def noisy(d: int, seed: int = 0) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=(d, d))
    return a + a.T


@pytest.mark.parametrize("d", [1, 2, 5, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_isotonic_is_pooling(d: int, dtype: type) -> None:
    rng = np.random.default_rng(d)
    for values in (rng.normal(size=d), np.sort(rng.normal(size=d)), -np.arange(d, dtype=float), np.zeros(d)):
        found = np.asarray(eigenvalues.isotonic(jnp.asarray(values, dtype)))
        np.testing.assert_allclose(found, reference.isotonic(values), rtol=0, atol=8 * d * np.finfo(dtype).eps)
        assert found.dtype == dtype


def test_isotonic_never_moves_away_from_an_ordered_target() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        target = np.sort(rng.normal(size=9))
        given = target + rng.normal(size=9)
        found = np.asarray(eigenvalues.isotonic(jnp.asarray(given)))
        assert np.linalg.norm(found - target) <= np.linalg.norm(given - target) + 1e-12


def test_isotonic_leaves_masked_entries_out() -> None:
    values, mask = jnp.array([9.0, -9.0, 3.0, 1.0, 2.0]), jnp.array([False, False, True, True, True])
    assert eigenvalues.isotonic(values, mask).tolist() == [0.0, 0.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("d", [1, 2, 30])
def test_rotation_invariant_is_the_double_sum(d: int) -> None:
    values = np.linalg.eigvalsh(noisy(d))
    found = eigenvalues.rotation_invariant(jnp.asarray(values), 0.7)
    np.testing.assert_allclose(found, reference.rotation_invariant(values, 0.7), rtol=1e-12)
    masked = eigenvalues.rotation_invariant(
        jnp.concatenate([jnp.zeros(2), jnp.asarray(values)]), 0.7, jnp.arange(d + 2) >= 2
    )
    np.testing.assert_allclose(masked, [0.0, 0.0, *found], rtol=1e-12)
    assert np.array_equal(eigenvalues.rotation_invariant(jnp.asarray(values), 0.0), values)
    assert np.all(np.isnan(eigenvalues.rotation_invariant(jnp.asarray(values), jnp.nan)))


def test_rotation_invariant_halves_the_error_of_projection_where_noise_rules() -> None:
    """Rank 3 in 60 columns: the shrunk spectrum errs by less than 0.6 of the projected one, over 20 draws."""
    d, rng, errors = 60, np.random.default_rng(0), []
    signal = np.diag([80.0, 50.0, 30.0] + [0.0] * (d - 3))
    for _ in range(20):
        g = rng.normal(size=(d, d))
        values, vectors = np.linalg.eigh(signal + (g + g.T) / 2)
        moved = np.asarray(eigenvalues.rotation_invariant(jnp.asarray(values), np.sqrt(0.5)))
        pair = [(vectors * np.maximum(v, 0.0)) @ vectors.T for v in (moved, values)]
        errors.append([np.linalg.norm(each - signal) for each in pair])
    shrunk, projected = np.mean(errors, axis=0)
    assert shrunk < 0.6 * projected


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_masked_columns_come_first(scale: float) -> None:
    a = scale * noisy(6)
    mask = np.array([True, False, True, True, False, True])
    a[~mask] = a[:, ~mask] = 0.0
    values, vectors = eigenvalues.eigh_masked(jnp.asarray(a), jnp.asarray(mask))
    kept = np.linalg.eigvalsh(a[np.ix_(mask, mask)] / scale)
    np.testing.assert_allclose(np.asarray(values) / scale, [0.0, 0.0, *kept], atol=1e-14)
    np.testing.assert_allclose(eigenvalues.recompose(vectors, values), a, atol=1e-14 * scale)
    assert kept[0] < 0 < kept[-1]  # the masked zeros would lie inside the spectrum


def test_not_a_number_shows() -> None:
    values, _ = eigenvalues.eigh_masked(jnp.full((3, 3), jnp.nan), jnp.array([True, True, False]))
    assert np.all(np.isnan(values))


def test_recomposed_is_exactly_symmetric() -> None:
    values, vectors = eigenvalues.eigh_masked(jnp.asarray(noisy(9)))
    made = np.asarray(eigenvalues.recompose(vectors, values))
    assert np.array_equal(made, made.T)


def shrunk(a: jax.Array) -> jax.Array:
    values, vectors = eigenvalues.eigh_masked(a)
    return eigenvalues.recompose(vectors, jnp.clip(eigenvalues.rotation_invariant(values, 0.3), 0.0))


def test_gradients_are_central_differences() -> None:
    a, e, weight = noisy(5, 1), noisy(5, 2), noisy(5, 3)
    one = lambda t: jnp.sum(weight * shrunk(a + t * e))  # noqa: E731
    step = 1e-6
    expected = (one(step) - one(-step)) / (2 * step)
    assert float(jax.grad(one)(0.0)) == pytest.approx(float(expected), rel=1e-6)
    assert float(jax.jvp(one, (0.0,), (1.0,))[1]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("a", [np.zeros((4, 4)), np.eye(4), np.diag([3.0, 1.0, 1.0, 0.0])], ids=["zero", "I", "tie"])
def test_gradients_are_finite_at_ties(a: np.ndarray) -> None:
    found = jax.grad(lambda x: jnp.sum(noisy(4) * shrunk(x)))(jnp.asarray(a))
    assert np.all(np.isfinite(found))
