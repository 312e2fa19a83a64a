"""Metrics against slow references, closed forms and integrals; equal, singular and indefinite matrices; gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import metrics
from tests.reference import metrics as reference
from tests.reference.matrices import central, positive, symmetric

TOP = functools.partial(metrics.subspace_distance, k=2)
EAGER = {
    "frobenius": (metrics.frobenius, reference.frobenius),
    "spectral": (metrics.spectral, reference.spectral),
    "mahalanobis": (metrics.mahalanobis, reference.mahalanobis),
    "stein": (metrics.stein, reference.stein),
    "kl": (metrics.kl, reference.kl),
    "hellinger": (metrics.hellinger, reference.hellinger),
    "bures_wasserstein": (metrics.bures_wasserstein, reference.bures_wasserstein),
    "subspace_distance": (TOP, functools.partial(reference.subspace_distance, k=2)),
}
WITH_MEANS = ("kl", "hellinger", "bures_wasserstein")
ALL = {name: (jax.jit(f), slow) for name, (f, slow) in EAGER.items()}
#: What a metric says when the estimate is not positive definite.
WORST = {"stein": np.inf, "kl": np.inf, "hellinger": 1.0}


@pytest.mark.parametrize("name", ALL)
def test_agrees_with_the_definition_batched_and_jitted(name):
    f, slow = EAGER[name]
    e, s = positive(1, 5, 2, 3), positive(2, 5, 2, 3)
    expected = np.array([[slow(x, y) for x, y in zip(*rows)] for rows in zip(e, s)])
    for out in (f(e, s), jax.jit(f)(e, s), jax.jit(jax.vmap(f))(e, s)):
        assert out.shape == (2, 3)
        np.testing.assert_allclose(out, expected, rtol=1e-12)
    # Leading axes broadcast, and only the symmetric part counts.
    skew = np.triu(np.ones((5, 5)), 1)
    np.testing.assert_allclose(f(e + skew - skew.T, s[0, 0]), f(e, np.broadcast_to(s[0, 0], e.shape)), rtol=1e-12)
    single = f(e.astype(np.float32), s.astype(np.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, expected, rtol=2e-4)
    assert f(e.astype(np.float32), s).dtype == jnp.float64


@pytest.mark.parametrize("name", ALL)
def test_distance_laws(name):
    """0 at the truth itself, with finite gradients (0 where there is no gap to divide by); d = 1."""
    f = ALL[name][0]
    s = jnp.concatenate([positive(3, 4, 2), np.eye(4)[None]])
    value, slopes = jax.jit(jax.vmap(jax.value_and_grad(f, argnums=(0, 1))))(s, s)
    assert all(np.isfinite(slope).all() for slope in slopes) and (abs(value) < 1e-14).all()
    if name != "subspace_distance":
        assert all((np.abs(slope) < 1e-12).all() for slope in slopes)
        assert f(s[:, :1, :1], 2 * s[:, :1, :1]).shape == (3,)


@pytest.mark.parametrize("name", ALL)
def test_gradients_agree_with_central_differences(name):
    f = ALL[name][0]
    e, s, move = positive(4, 4), positive(5, 4), symmetric(6, 4)
    slopes = jax.jit(jax.grad(f, argnums=(0, 1)))(jnp.asarray(e), jnp.asarray(s))
    np.testing.assert_allclose(np.sum(slopes[0] * move), central(lambda x: f(x, s), e, move, 1e-6), rtol=1e-6)
    np.testing.assert_allclose(np.sum(slopes[1] * move), central(lambda x: f(e, x), s, move, 1e-6), rtol=1e-6)
    forward = jax.jvp(lambda x: f(x, jnp.asarray(s)), (jnp.asarray(e),), (jnp.asarray(move),))[1]
    np.testing.assert_allclose(forward, np.sum(slopes[0] * move), rtol=1e-10)


@pytest.mark.parametrize("near", [1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3])
def test_relative_precision_near_the_truth(near):
    """Against 60 digits on diagonals, and on the same in a rotated basis where the rotation costs about d eps."""
    s = [2.0, 1.0, 0.5]
    e = [x * (1 + near * t) for x, t in zip(s, (1.0, 0.5, 0.25))]
    for name, expected in reference.of_diagonals(e, s).items():
        out = float(ALL[name][0](np.diag(e), np.diag(s)))
        np.testing.assert_allclose(out, expected, rtol=1e-15 / near + 1e-13, err_msg=name)
    if near >= 1e-6:
        q = np.linalg.qr(symmetric(7, 3))[0]
        for name, expected in reference.of_diagonals(e, s).items():
            out = float(ALL[name][0]((q * e) @ q.T, (q * s) @ q.T))
            np.testing.assert_allclose(out, expected, rtol=1e-14 / near + 1e-12, err_msg=name)


@pytest.mark.parametrize("name", ["mahalanobis", "stein", "kl", "hellinger"])
def test_affine_invariance_also_of_units(name):
    f = ALL[name][0]
    e, s, t = positive(8, 4), positive(9, 4), symmetric(10, 4) + 3 * np.eye(4)
    np.testing.assert_allclose(f(t @ e @ t.T, t @ s @ t.T), f(e, s), rtol=1e-10)
    for scale in (1e-150, 1e150):
        np.testing.assert_allclose(f(scale * e, scale * s), f(e, s), rtol=1e-12)
    units = np.diag([1e-6, 1.0, 1e3, 1e6])
    np.testing.assert_allclose(f(units @ e @ units, units @ s @ units), f(e, s), rtol=1e-10)


@pytest.mark.parametrize("name", ["frobenius", "spectral", "bures_wasserstein", "subspace_distance"])
def test_homogeneity_at_extreme_scales(name):
    f, power = ALL[name][0], {"bures_wasserstein": 0.5, "subspace_distance": 0.0}.get(name, 1.0)
    e, s = positive(8, 4), positive(9, 4)
    for scale in (1e-150, 1e150):
        np.testing.assert_allclose(f(scale * e, scale * s), scale**power * f(e, s), rtol=1e-12)
        assert np.isfinite(jax.grad(f)(jnp.asarray(scale * e), jnp.asarray(scale * s))).all()


@pytest.mark.parametrize("name", WITH_MEANS)
def test_means(name):
    f, slow = ALL[name]
    e, s = positive(11, 3, 2), positive(12, 3, 2)
    rng = np.random.default_rng(13)
    me, ms = rng.normal(size=(2, 3)), rng.normal(size=3)
    out = jax.jit(f)(e, s, me, ms)
    np.testing.assert_allclose(out, [slow(x, y, m, ms) for x, y, m in zip(e, s, me)], rtol=1e-12)
    np.testing.assert_allclose(f(e, s, me, me), f(e, s), rtol=1e-14)
    assert (out > f(e, s)).all()
    slope = jax.jit(jax.grad(lambda m: jnp.sum(f(e, s, m, jnp.asarray(ms)))))
    assert np.isfinite(slope(jnp.asarray(np.stack([ms, ms])))).all()
    move = rng.normal(size=(2, 3))
    expected = central(lambda m: jnp.sum(f(e, s, m, ms)), me, move, 1e-6)
    np.testing.assert_allclose(np.sum(slope(jnp.asarray(me)) * move), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="both, or neither"):
        f(e, s, me)


@pytest.mark.parametrize("case", [(2.0, 1.0, 0.0, 0.0), (0.3, 1.0, 0.5, -0.2), (1.0, 4.0, 3.0, 0.0)])
def test_one_column_against_integrals(case):
    e, s, me, ms = case
    arguments = ([[e]], [[s]], [me], [ms])
    np.testing.assert_allclose(metrics.kl(*arguments), reference.kl_by_integration(*case), rtol=1e-9)
    np.testing.assert_allclose(metrics.hellinger(*arguments), reference.hellinger_by_integration(*case), rtol=1e-9)
    expected = np.hypot(np.sqrt(e) - np.sqrt(s), me - ms)  # quantile coupling
    np.testing.assert_allclose(metrics.bures_wasserstein(*arguments), expected, rtol=1e-13)


def test_symmetric_ones_are_symmetric_and_kl_is_half_of_stein():
    e, s = positive(14, 4), positive(15, 4)
    for name in ("frobenius", "spectral", "hellinger", "bures_wasserstein", "subspace_distance"):
        np.testing.assert_allclose(ALL[name][0](e, s), ALL[name][0](s, e), rtol=1e-12)
    np.testing.assert_allclose(metrics.kl(e, s), 0.5 * metrics.stein(e, s), rtol=1e-15)
    assert abs(metrics.kl(e, s) - metrics.kl(s, e)) > 0.1


@pytest.mark.parametrize("name", ALL)
def test_indefinite_singular_and_bad_estimates(name):
    """A person's noisy covariance: NaN from NaN only, finite gradients, the worst value where it is no covariance."""
    f, s = ALL[name][0], jnp.asarray(positive(16, 4))
    indefinite, singular = jnp.diag(jnp.array([2.0, 1.0, 0.5, -0.3])), jnp.diag(jnp.array([2.0, 1.0, 0.5, 0.0]))
    very = jnp.diag(jnp.array([2.0, 1.0, 0.5, -50.0]))
    both = jax.vmap(jax.value_and_grad(f, argnums=(0, 1)), in_axes=(0, None))
    value, slopes = jax.jit(both)(jnp.stack([indefinite, singular, very]), s)
    assert all(np.isfinite(slope).all() for slope in slopes)
    if name in WORST:
        assert (value == WORST[name]).all()
        assert all((slope == 0).all() for slope in slopes)
    else:
        assert np.isfinite(value).all() and (value > 0).all()
    for bad in (np.nan, np.inf):
        broken = s.at[0, 1].set(bad)
        assert np.isnan(f(broken, s)) and np.isnan(f(s, broken))
    assert np.isfinite(f(jnp.stack([s.at[0, 1].set(np.nan), indefinite]), s)[1]) or name in WORST


def test_singular_truth():
    singular = np.diag([2.0, 1.0, 0.0])
    e = positive(17, 3)
    assert metrics.mahalanobis(e, singular) == metrics.stein(e, singular) == metrics.kl(e, singular) == np.inf
    assert metrics.hellinger(e, singular) == 1
    assert np.isfinite(metrics.bures_wasserstein(e, singular))
    np.testing.assert_allclose(
        metrics.bures_wasserstein(e, singular), reference.bures_wasserstein(e, singular + 0.0), rtol=1e-7
    )
    assert metrics.bures_wasserstein(singular, singular) == 0
    assert np.isfinite(jax.grad(metrics.bures_wasserstein)(jnp.asarray(singular), jnp.asarray(singular))).all()
    # A rank-deficient pair, computed another way: sqrt(1) * 2 sin(half the angle) for two rank-one projectors.
    angle = 0.3
    v, w = np.array([1.0, 0.0, 0.0]), np.array([np.cos(angle), np.sin(angle), 0.0])
    expected = np.sqrt(2 - 2 * np.cos(angle))
    np.testing.assert_allclose(metrics.bures_wasserstein(np.outer(v, v), np.outer(w, w)), expected, rtol=1e-7)


def test_mahalanobis_floor():
    truth, e = np.diag([4.0, 1.0, 0.0]), symmetric(18, 3)
    root = np.diag([0.5, 1.0, (0.01 * 4.0) ** -0.5])
    out = metrics.mahalanobis(e, truth, floor=0.01)
    np.testing.assert_allclose(out, np.linalg.norm(root @ (e - truth) @ root), rtol=1e-12)
    assert metrics.mahalanobis(truth, truth, floor=0.01) == 0
    s = positive(19, 3)
    assert metrics.mahalanobis(e, s, floor=1e-9) == metrics.mahalanobis(e, s)
    slopes = jax.grad(lambda x, y, t: metrics.mahalanobis(x, y, floor=t), argnums=(0, 1, 2))(
        jnp.asarray(e), jnp.asarray(truth), 0.01
    )
    assert all(np.isfinite(slope).all() for slope in slopes)
    expected = central(lambda t: metrics.mahalanobis(e, truth, floor=t), 0.01, 1.0, 1e-6)
    np.testing.assert_allclose(slopes[2], expected, rtol=1e-6)
    assert np.isfinite(jax.vmap(lambda y: metrics.mahalanobis(e, y, floor=0.1))(np.stack([truth, s]))).all()


def test_mahalanobis_is_the_square_root_form_for_indefinite_estimates_too():
    e, s = symmetric(20, 5), positive(21, 5)
    np.testing.assert_allclose(metrics.mahalanobis(e, s), reference.mahalanobis(e, s), rtol=1e-11)


def test_subspace_distance_of_known_angles():
    for angle in (0.0, 1e-12, 1e-6, 0.3, np.pi / 2):
        c, s = np.cos(angle), np.sin(angle)
        turn = np.array([[c, 0, -s, 0], [0, 1, 0, 0], [s, 0, c, 0], [0, 0, 0, 1]])
        base = np.diag([4.0, 3.0, 2.0, 1.0])
        out = metrics.subspace_distance(turn @ base @ turn.T, base, k=2)
        np.testing.assert_allclose(out, np.sin(angle), atol=2e-15, rtol=1e-12)
    assert metrics.subspace_distance(base, base, k=4) == 0
    np.testing.assert_allclose(metrics.subspace_distance(-base, base, k=2), np.sqrt(2))
    with pytest.raises(ValueError, match="k must satisfy 1 <= k <= d = 4, got 5"):
        metrics.subspace_distance(base, base, k=5)


def test_correlation_error():
    e, s = positive(22, 4), positive(23, 4)
    units = np.diag([1e-3, 1.0, 10.0, 1e3])
    out = metrics.correlation_error(e, s)
    sd = [np.sqrt(np.diag(x)) for x in (e, s)]
    expected = np.linalg.norm(e / np.outer(sd[0], sd[0]) - s / np.outer(sd[1], sd[1]))
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    np.testing.assert_allclose(metrics.correlation_error(units @ e @ units, s), out, rtol=1e-12)
    assert np.isfinite(jax.grad(metrics.correlation_error)(jnp.asarray(s), jnp.asarray(s))).all()


def test_spectral_subgradient_where_all_eigenvalues_tie():
    s = jnp.eye(3)
    slope = jax.grad(metrics.spectral)(2.0 * s, s)
    np.testing.assert_allclose(slope, np.eye(3) / 3, atol=1e-12)
    assert np.isfinite(jax.jit(jax.grad(metrics.spectral))(s, s)).all()


def test_arguments():
    with pytest.raises(ValueError, match=r"estimate and truth must have one size, got shapes \(2, 2\) and \(3, 3\)"):
        metrics.stein(np.eye(2), np.eye(3))
    with pytest.raises(ValueError, match="square matrix"):
        metrics.frobenius(np.zeros((2, 3)), np.zeros((2, 3)))


@pytest.mark.x64_off
def test_x64_off():
    e, s = positive(24, 4), positive(25, 4)
    for name, (f, slow) in EAGER.items():
        out = jax.jit(f)(e, s)
        assert out.dtype == jnp.float32
        np.testing.assert_allclose(out, slow(e, s), rtol=1e-4, err_msg=name)
