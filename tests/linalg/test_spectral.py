"""Spectral functions and their derivatives, against slow NumPy, 60 digits and central differences."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import linalg
from tests.reference import linalg as reference
from tests.reference.matrices import central, positive, symmetric

FLOOR, EXPONENT = 0.3, 1.7
#: name -> (function of the matrix, scalar function): all spectral functions, with the arguments that tests use.
SPECTRAL = {
    "psd": (linalg.psd_project, lambda x: max(x, 0.0)),
    "psd-floor": (functools.partial(linalg.psd_project, floor=FLOOR), lambda x: max(x, FLOOR)),
    "psd-both": (functools.partial(linalg.psd_project, floor=FLOOR, ceiling=1.0), lambda x: min(max(x, FLOOR), 1.0)),
    "sqrtm": (linalg.sqrtm, lambda x: max(x, 0.0) ** 0.5),
    "inv_sqrtm": (functools.partial(linalg.inv_sqrtm, floor=FLOOR), lambda x: max(x, FLOOR) ** -0.5),
    "powm": (functools.partial(linalg.powm, exponent=EXPONENT, floor=FLOOR), lambda x: max(x, FLOOR) ** EXPONENT),
    "logm": (functools.partial(linalg.logm, floor=FLOOR), lambda x: np.log(max(x, FLOOR))),
    "exp": (functools.partial(linalg.spectral_map, function=jnp.exp), np.exp),
}
POINTS = {
    "identity": np.eye(3),
    "tied": np.diag([4.0, 1.0, 1.0]),
    "mixed": np.diag([1.0, 1.0, -1.0]),
    "gap": np.diag([1.0, 1.0 + 1e-7, -1.0]),
    "across": np.diag([1.0, 3e-7, -1e-7]),
    "zero": np.zeros((3, 3)),
    "rank one": np.diag([1.0, 0.0, 0.0]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECTRAL)
def test_values_agree_with_the_definition_and_are_symmetric(name, dtype):
    f, scalar = SPECTRAL[name]
    a = symmetric(5, 5, 3, dtype=dtype)
    out = f(a)
    assert out.dtype == dtype and out.shape == a.shape
    assert np.array_equal(out, out.mT)
    expected = np.stack([reference.spectral(x.astype(np.float64), scalar) for x in a])
    np.testing.assert_allclose(out, expected, atol=(2e-5 if dtype == np.float32 else 1e-13))


def test_one_column():
    for x in (-2.0, 0.7):
        np.testing.assert_allclose([f([[x]])[0, 0] for f, _ in SPECTRAL.values()], [f(x) for _, f in SPECTRAL.values()])


@pytest.mark.parametrize("name", SPECTRAL)
def test_jit_and_vmap_change_nothing_and_only_the_symmetric_part_counts(name):
    f = SPECTRAL[name][0]
    a, skew = jnp.asarray(symmetric(2, 4, 2, 3)), np.triu(np.ones((4, 4)), 1)
    loop = np.stack([[f(x) for x in row] for row in a])
    for other in (f(a), f(a + jnp.asarray(np.broadcast_to(skew - skew.T, a.shape))), jax.jit(jax.vmap(f))(a)):
        np.testing.assert_allclose(other, loop, atol=1e-14)


def test_psd_project_is_the_frobenius_nearest():
    """No PSD matrix of a random search, nor any on the segment to one, is nearer."""
    a = symmetric(3, 4)
    best = np.linalg.norm(linalg.psd_project(a) - a)
    for seed in range(200):
        other = positive(seed, 4)
        for t in (1e-4, 1e-2, 1.0):
            trial = (1 - t) * np.asarray(linalg.psd_project(a)) + t * other
            assert np.linalg.norm(trial - a) >= best - 1e-12


def test_psd_project_returns_what_already_obeys_to_the_last_bit():
    a = positive(4, 5, 2)
    assert np.array_equal(linalg.psd_project(a), linalg.symmetrize(a))
    assert np.array_equal(linalg.psd_project(a, floor=1e-3, ceiling=100.0), linalg.symmetrize(a))
    mixed = np.stack([a[0], symmetric(4, 5)])
    assert np.array_equal(linalg.psd_project(mixed)[0], linalg.symmetrize(a[0]))


def test_psd_project_floor_makes_cholesky_succeed():
    """Scenario: a noisy covariance with eigenvalue -0.3."""
    q = np.linalg.qr(symmetric(5, 4))[0]
    a = (q * [-0.3, 0.5, 1.0, 2.0]) @ q.T
    assert not linalg.try_cholesky(a)[1]
    assert np.linalg.eigvalsh(linalg.psd_project(a))[0] > -1e-15
    fixed = linalg.psd_project(a, floor=0.01)
    assert linalg.try_cholesky(fixed)[1]
    np.testing.assert_allclose(np.linalg.eigvalsh(fixed), [0.01, 0.5, 1.0, 2.0], rtol=1e-12)


def test_one_floor_for_each_matrix():
    a, floors = symmetric(6, 3, 4), np.array([0.0, 0.1, 1.0, 5.0])
    out = linalg.psd_project(a, floor=floors)
    for x, y, floor in zip(a, out, floors):
        np.testing.assert_allclose(y, linalg.psd_project(x, floor=floor), atol=1e-14)
    with pytest.raises(ValueError, match=r"floor must be one number, or one per matrix of the batch \(4,\)"):
        linalg.psd_project(a, floor=np.zeros(3))


def test_ceiling_wins_over_floor():
    np.testing.assert_allclose(linalg.psd_project(np.diag([5.0, 0.0]), floor=2.0, ceiling=1.0), np.eye(2))


def test_one_eigh_and_no_svd():
    a = jnp.asarray(symmetric(7, 4))
    for name, (f, _) in SPECTRAL.items():
        text = str(jax.make_jaxpr(f)(a))
        assert text.count("= eigh[") == 1, name
        assert "svd" not in text
        # Forward derivatives reuse the decomposition of the value.
        text = str(jax.make_jaxpr(lambda x, e, f=f: jax.jvp(f, (x,), (e,)))(a, a))
        assert text.count("= eigh[") == 1, name


def test_nan_does_not_hang_or_vanish():
    assert np.isnan(linalg.powm(np.full((2, 2), np.nan), 0.0)).all()
    assert np.isnan(linalg.top_projector(np.full((2, 2), np.nan), 1)).all()
    for a in (np.full((150, 150), np.nan), np.where(np.eye(150), np.nan, 0.0), np.full((150, 150), np.inf)):
        start = time.perf_counter()
        assert np.isnan(linalg.psd_project(a)).all()
        assert time.perf_counter() - start < 10.0  # 0.1 s as a rule


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_scales(scale):
    """No tie test, square or determinant under- or overflows."""
    a = positive(9, 4)
    a[0] = a[:, 0] = 0.0
    np.testing.assert_allclose(linalg.psd_project(-a * scale, floor=0.5 * scale) / scale, 0.5 * np.eye(4), atol=1e-14)
    np.testing.assert_allclose(linalg.sqrtm(a * scale) / np.sqrt(scale), linalg.sqrtm(a), atol=1e-14)
    root = linalg.inv_sqrtm(a * scale, floor=0.1 * scale)
    np.testing.assert_allclose(root * np.sqrt(scale), linalg.inv_sqrtm(a, floor=0.1), atol=1e-13)
    np.testing.assert_allclose(linalg.top_projector(a * scale, 2), linalg.top_projector(a, 2), atol=1e-13)
    e = symmetric(10, 4)
    for f in (linalg.psd_project, linalg.sqrtm, lambda x: linalg.inv_sqrtm(x, floor=0.1 * jnp.max(jnp.abs(x)))):
        for point in (np.diag([4.0, 1.0, 1.0, -1.0]), positive(9, 4)):
            one = jax.jvp(f, (jnp.asarray(point),), (jnp.asarray(e),))
            other = jax.jvp(f, (jnp.asarray(point * scale),), (jnp.asarray(e * scale),))
            power = float(np.linalg.norm(other[0]) / np.linalg.norm(one[0]))
            np.testing.assert_allclose(other[1] / power, one[1], atol=1e-12)


@pytest.mark.parametrize("mode", ["eager", "jit", "vmap"])
def test_gradient_of_a_psd_projection_at_ties(mode):
    """Scenario 5: finite, and the central difference in every direction of one entry."""
    slope_of = jax.grad(lambda m: jnp.sum(linalg.psd_project(m)))
    if mode == "jit":
        slope_of = jax.jit(slope_of)
    points = jnp.asarray(np.stack(list(POINTS.values())))
    slopes = jax.vmap(slope_of)(points) if mode == "vmap" else [slope_of(x) for x in points]
    basis = np.eye(9).reshape(9, 3, 3)
    for (name, point), slope in zip(POINTS.items(), slopes):
        assert np.isfinite(slope).all()
        if name == "identity":
            assert np.array_equal(slope, np.ones((3, 3)))
        expected = central(linalg.psd_project, point, basis, 1e-9).sum(axis=(-2, -1)).reshape(3, 3)
        np.testing.assert_allclose(slope, expected, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", SPECTRAL)
def test_derivatives_agree_with_central_differences(name):
    """Forward and reverse, under jit and vmap, at a random and at a tied matrix."""
    f = SPECTRAL[name][0]
    e, weights = symmetric(12, 5), jnp.asarray(np.random.default_rng(13).normal(size=(5, 5)))
    a = np.stack([symmetric(11, 5) + (3.0 * np.eye(5) if name == "sqrtm" else 0.0), np.diag([3.0, 2.0, 2.0, 0.5, 0.5])])

    def both(x):
        return jax.jvp(f, (x,), (jnp.asarray(e),))[1], jax.grad(lambda y: jnp.sum(f(y) * weights))(x)

    forward, reverse = jax.jit(jax.vmap(both))(jnp.asarray(a))
    expected = central(f, a, e, 1e-6)
    np.testing.assert_allclose(forward, expected, atol=2e-8)
    np.testing.assert_allclose(
        np.sum(np.asarray(reverse) * e, axis=(-2, -1)), np.sum(np.asarray(weights) * expected, axis=(-2, -1)), atol=1e-7
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECTRAL)
def test_gradients_are_finite_everywhere_and_a_bad_entry_gives_nan(name, dtype):
    f = SPECTRAL[name][0]
    bad = np.stack([np.eye(3)] * 3)
    bad[0, 1, 2], bad[1, 0, 0], bad[2, 2, 1] = np.nan, np.inf, -np.inf
    points = jnp.asarray(np.concatenate([bad, np.stack(list(POINTS.values()))]), dtype)
    value, slope = jax.jit(lambda a: (f(a), jax.grad(lambda x: jnp.sum(f(x)))(a)))(points)
    assert slope.dtype == dtype
    assert np.isnan(value[:3]).all() and np.isfinite(value[3:]).all() and np.isfinite(slope[3:]).all()


def test_a_matrix_whose_norm_is_the_ceiling_lies_on_it():
    for a, floor in (([[1.5]], 0.0), ([[1.5, 0.0], [0.0, 0.0]], -1.0)):
        slopes = jax.grad(lambda a, high: linalg.psd_project(a, floor, high)[0, 0], (0, 1))(jnp.array(a), 1.5)  # noqa: B023
        assert (float(slopes[0][0, 0]), float(slopes[1])) == (0.5, 0.5)


def test_derivatives_in_floor_ceiling_and_exponent():
    a = jnp.asarray(symmetric(14, 6) * 2)
    w = jnp.asarray(symmetric(15, 6))
    cases = {
        "floor": (lambda t: jnp.sum(w * linalg.psd_project(a, floor=t, ceiling=2.0)), 0.3),
        "ceiling": (lambda t: jnp.sum(w * linalg.psd_project(a, floor=0.3, ceiling=t)), 1.5),
        "inv floor": (lambda t: jnp.sum(w * linalg.inv_sqrtm(a, t)), 0.3),
        "exponent": (lambda t: jnp.sum(w * linalg.powm(a, t, 0.3)), 0.7),
        "parameter": (lambda t: jnp.sum(w * linalg.spectral_map(a, _soft, t)), 0.7),
        "log floor": (lambda t: jnp.sum(w * linalg.logm(a, t)), 0.4),
    }
    for name, (f, at) in cases.items():
        value, reverse, forward = jax.jit(jax.vmap(lambda t, f=f: (f(t), jax.grad(f)(t), jax.jacfwd(f)(t))))(
            jnp.array([at - 1e-6, at, at + 1e-6])
        )
        expected = (value[2] - value[0]) / 2e-6
        assert abs(expected) > 1e-2, name
        np.testing.assert_allclose(reverse[1], expected, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(forward[1], expected, rtol=1e-6, err_msg=name)
    kink = jax.grad(lambda t: jnp.trace(linalg.psd_project(jnp.diag(jnp.array([2.0, 1.0, 0.0])), floor=t)))(1.0)
    assert kink == 1.5  # half of the eigenvalue on the floor, all of the one below it


def _soft(x, width):
    return 0.5 * (x + jnp.sqrt(x * x + width))


@pytest.mark.parametrize("gap", [0.0, 1e-16, 1e-13, 1e-10, 1e-8, 1e-7, 1e-5, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("scale", [1e-100, 1e-3, 1.0, 1e100])
def test_divided_differences_to_full_precision(gap, scale):
    """The (1, 2) entry of the derivative at diag(x, y) in the direction E_12 + E_21 is f[x, y]."""
    x, y = scale, scale * (1.0 + gap)
    e = jnp.array([[0.0, 1.0], [1.0, 0.0]])

    def slope(f):
        return float(jax.jvp(f, (jnp.diag(jnp.array([x, y])),), (e,))[1][0, 1])

    for exponent in (0.5, -0.5, -1.0, 2.0, 0.3):
        expected = reference.divided_difference("power", x, y, exponent)
        np.testing.assert_allclose(slope(lambda a, p=exponent: linalg.powm(a, p)), expected, rtol=1e-13)
    np.testing.assert_allclose(slope(linalg.logm), reference.divided_difference("log", x, y), rtol=1e-13)
    if scale == 1.0 and gap <= 1.0:
        exact = reference.divided_difference("exp", x, y)
        np.testing.assert_allclose(slope(lambda a: linalg.spectral_map(a, jnp.exp)), exact, rtol=2e-8)


def test_second_derivatives_where_eigenvalues_are_apart():
    a, e = jnp.asarray(np.diag([1.0, 2.0, 4.0]) + 0.1 * symmetric(16, 3)), symmetric(17, 3)

    def slope(x):
        return jax.jvp(linalg.sqrtm, (x,), (jnp.asarray(e),))[1]

    second = jax.jvp(slope, (a,), (jnp.asarray(e),))[1]
    np.testing.assert_allclose(second, central(slope, np.asarray(a), e, 1e-5), atol=1e-8)


def test_top_projector():
    a, e = symmetric(18, 6), symmetric(19, 6)
    values, vectors = np.linalg.eigh(a)
    for k in (1, 3, 6):
        np.testing.assert_allclose(linalg.top_projector(a, k), vectors[:, -k:] @ vectors[:, -k:].T, atol=1e-14)
    f = functools.partial(linalg.top_projector, k=2)
    slope = jax.jvp(f, (jnp.asarray(a),), (jnp.asarray(e),))[1]
    np.testing.assert_allclose(slope, central(f, a, e, 1e-6), atol=1e-8)
    assert np.isfinite(jax.grad(lambda x: f(x)[0, 1])(jnp.eye(4))).all()
    for k in (0, 7):
        with pytest.raises(ValueError, match="k must satisfy"):
            linalg.top_projector(a, k)


@pytest.mark.x64_off
def test_x64_off():
    for f, _ in SPECTRAL.values():
        assert f(positive(25, 3)).dtype == jnp.float32  # float64 NumPy in
