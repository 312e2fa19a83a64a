"""Total variation of Gaussians: bounds against integrals and 60 digits, draws against both; the edges; gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import metrics
from jaxdpcov.metrics._line import line
from tests.reference import metrics as reference
from tests.reference.matrices import central, positive, symmetric

bounds = jax.jit(metrics.total_variation_bounds)
variation = jax.jit(metrics.total_variation, static_argnames="draws")

#: (variance and mean of the estimate, of the truth) on the line.
LINE = [(2.0, 1.0, 0.0, 0.0), (0.3, 1.0, 0.5, -0.2), (1.0, 4.0, 3.0, 0.0), (1.0, 1.0, 0.1, 0.0), (9.0, 1.0, 9.0, 0.0)]


def on_the_line(cases):
    e, s, me, ms = np.array(cases).T
    return e[:, None, None], s[:, None, None], me[:, None], ms[:, None]


def pairs(seed: int, d: int, size: float, moved: float):
    """Eight pairs of a truth and an estimate at about `size` from it, means `moved` apart."""
    s, rng = positive(seed, d, 8), np.random.default_rng(seed)
    root = np.linalg.cholesky(s)
    e = root @ (np.eye(d) + size * symmetric(seed + 1, d, 8)) @ root.swapaxes(-1, -2)
    e = np.where(np.linalg.eigvalsh(e)[:, :1, None] > 0, e, s + size * np.eye(d))
    ms = rng.normal(size=(8, d))
    return e, s, ms + moved * (root @ rng.normal(size=(8, d, 1)))[..., 0], ms


def test_bounds_are_exact_in_one_column():
    lower, upper = bounds(*on_the_line(LINE))
    np.testing.assert_allclose(lower, [reference.variation_by_integration(*case) for case in LINE], rtol=1e-10)
    np.testing.assert_array_equal(lower, upper)


@pytest.mark.parametrize("log_ratio", [0.0, 1e-13, -1e-6, 0.7, -3.0, 35.0])
def test_the_distance_on_the_line_has_all_digits(log_ratio):
    shifts = [0.0, 1e-14, -1e-7, 0.01, 1.0, -5.0, 300.0]
    out = line(jnp.full(7, log_ratio), jnp.array(shifts))
    np.testing.assert_allclose(out, [float(reference.line(log_ratio, x)) for x in shifts], rtol=2e-15)
    for argument in (0, 1):  # both of them move, and their slopes at the kink are 0
        slope = jax.grad(lambda *x: jnp.sum(line(*x)), argument)(jnp.full(7, log_ratio), jnp.array(shifts))
        h = [0.0, 0.0]
        h[argument] = 1e-6
        expected = [
            float(reference.line(log_ratio + h[0], x + h[1]) - reference.line(log_ratio - h[0], x - h[1])) / 2e-6
            for x in shifts
        ]
        near_the_kink = np.abs(shifts) + abs(log_ratio) < 1e-5
        np.testing.assert_allclose(
            np.where(near_the_kink, 0.0, slope), np.where(near_the_kink, 0.0, expected), 1e-7, 1e-9
        )
    assert slope[0] == 0 or log_ratio != 0


def test_bounds_are_those_of_the_docstring_to_all_digits():
    """Against 60 digits where each formula is the one that counts, and as the two come together."""
    truth, where = [2.0, 1.0, 0.5], [0.3, -1.0, 0.0]
    directions = [
        ((1.0, 0.5, 0.25), (0.0, 0.0, 0.0)),
        ((1.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
        ((0.1, 0.0, -0.1), (1.0, 0.0, 0.0)),
        ((1.0, -0.5, 0.3), (0.1, -0.5, 0.2)),
        ((0.0, 0.0, 0.0), (1.0, 2.0, 3.0)),
    ]
    for near in (1e-12, 1e-6, 0.01, 0.9, 40.0):
        e = [[s * (1 + t * near if t > 0 else 1 / (1 - t * near)) for s, t in zip(truth, ts)] for ts, _ in directions]
        me = [[m + near * t for m, t in zip(where, ts)] for _, ts in directions]
        out = bounds(np.stack([np.diag(x) for x in e]), np.diag(truth), np.array(me), np.broadcast_to(where, (6, 3)))
        expected = [reference.variation_bounds_of_diagonals(x, truth, m, where) for x, m in zip(e, me)]
        np.testing.assert_allclose(np.transpose(out), expected, rtol=2e-15 / near + 1e-13, err_msg=f"{near}")


@pytest.mark.parametrize("size, moved", [(0.05, 0.0), (0.3, 0.3), (1.0, 0.0), (0.5, 2.0)])
def test_bounds_hold_in_the_plane(size, moved):
    arguments = pairs(31, 2, size, moved)
    lower, upper = bounds(*arguments)
    exact = np.array([reference.variation_in_the_plane(*case) for case in zip(*arguments)])
    assert (lower <= exact + 1e-4).all() and (exact <= upper + 1e-4).all()
    assert (upper < 2.5 * lower).all()  # in two columns they are near each other, however near the two


@pytest.mark.parametrize("size, moved", [(0.02, 0.02), (0.1, 0.0), (0.1, 1.0), (0.4, 0.3)])
def test_bounds_hold_in_eight_columns_and_beat_the_plain_ones(size, moved):
    e, s, me, ms = pairs(33, 8, size, moved)
    lower, upper = (np.asarray(x) for x in bounds(e, s, me, ms))
    for k in range(8):
        case = e[k], s[k], me[k], ms[k]
        exact, error = reference.variation_by_draws(k, *case, draws=20_000)
        assert lower[k] <= exact + 5 * error and exact - 5 * error <= upper[k]  # 64 times 6e-7: a false alarm of 4e-5
        kl = min(reference.kl(*case), reference.kl(s[k], e[k], ms[k], me[k]))
        hellinger = reference.hellinger(*case)
        apart = np.sqrt((me[k] - ms[k]) @ np.linalg.solve(s[k], me[k] - ms[k]))
        devroye = 1.5 * reference.mahalanobis(e[k], s[k]) + apart / np.sqrt(2 * np.pi)
        plain = min(1, devroye, np.sqrt(kl / 2), np.sqrt(1 - np.exp(-kl)), hellinger * np.sqrt(2 - hellinger**2))
        assert upper[k] <= plain * (1 + 1e-12)
        assert lower[k] >= max(hellinger**2, 0.01 * min(1, reference.mahalanobis(e[k], s[k]))) * (1 - 1e-9)


def test_the_frobenius_norm_counts_where_many_columns_differ_a_little():
    lower, upper = bounds(np.eye(640) * (1 + 1e-5), np.eye(640))
    np.testing.assert_allclose(lower, 0.01 * 1e-5 * np.sqrt(640), rtol=1e-9)
    assert upper < 40 * lower


def test_equal_covariances_are_exact_and_bounds_do_not_depend_on_coordinates():
    s, rng = positive(35, 4), np.random.default_rng(35)
    shift, t = rng.normal(size=4), symmetric(36, 4) + 3 * np.eye(4)
    lower, upper = bounds(s, s, shift, np.zeros(4))
    expected = reference.line(0.0, np.sqrt(shift @ np.linalg.solve(s, shift)))
    np.testing.assert_allclose([lower, upper], float(expected), rtol=1e-13)
    e = positive(37, 4)
    np.testing.assert_allclose(
        bounds(t @ e @ t.T, t @ s @ t.T, t @ shift, np.zeros(4)), bounds(e, s, shift, np.zeros(4)), rtol=1e-9
    )
    np.testing.assert_allclose(bounds(s, e, np.zeros(4), shift), bounds(e, s, shift, np.zeros(4)), rtol=1e-12)


def test_bounds_gradients():
    e, s, move = positive(38, 4), positive(39, 4), symmetric(40, 4)
    me, ms = np.random.default_rng(41).normal(size=(2, 4)) * 0.3
    both = jax.jit(jax.jacrev(lambda *x: jnp.stack(metrics.total_variation_bounds(*x)), argnums=(0, 1, 2, 3)))
    slopes = both(*(jnp.asarray(x) for x in (e, s, me, ms)))
    f = lambda *x: jnp.stack(bounds(*x))  # noqa: E731
    for slope, moved, expected in [
        (slopes[0], move, central(lambda x: f(x, s, me, ms), e, move, 1e-6)),
        (slopes[1], move, central(lambda x: f(e, x, me, ms), s, move, 1e-6)),
        (slopes[2], move[0], central(lambda x: f(e, s, x, ms), me, move[0], 1e-6)),
        (slopes[3], move[0], central(lambda x: f(e, s, me, x), ms, move[0], 1e-6)),
    ]:
        out = np.sum(np.asarray(slope) * moved, axis=tuple(range(1, slope.ndim)))
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-9)
    # Where the two agree, with and without ties of eigenvalues; 0 there. Then no covariance, or NaN.
    for same in (s, np.eye(4)):
        assert all((np.abs(slope) < 1e-12).all() for slope in both(same, same, ms, ms))
    singular, indefinite = np.diag([1.0, 1.0, 1.0, 0.0]), np.diag([1.0, 1.0, 1.0, -1.0])
    for first, second, worst in [(singular, s, (1, 1)), (s, indefinite, (1, 1)), (singular, indefinite, (0, 1))]:
        assert tuple(float(x) for x in bounds(first, second, me, ms)) == worst
        assert all((slope == 0).all() for slope in both(first, second, me, ms))
    broken = s.copy()
    broken[0, 1] = np.nan
    assert np.isnan(bounds(broken, s, me, ms)).all() and np.isnan(bounds(s, s, me * np.nan, ms)).all()


def test_bounds_of_variances_beyond_rounding():
    """Ratios that floating point cannot tell from others: a bound stays a bound, to the root of rounding."""
    for ratio in (1e13, 1e16, 1e40):
        for e, s in [(np.diag([ratio, 1.0]), np.eye(2)), (np.eye(2), np.diag([1.0, ratio]))]:
            lower, upper = bounds(e, s, np.zeros(2), np.zeros(2))
            exact = float(reference.line(np.log(ratio), 0))
            assert 0.999 < lower <= exact + 1e-8 and exact - 1e-8 <= upper <= 1
    lower, upper = bounds(np.eye(2), np.eye(2), np.array([1e200, 0.0]), np.zeros(2))
    assert lower == upper == 1


def test_draws_agree_with_integrals_and_their_error_is_right():
    """Five cases at 5 standard errors (3e-6), and 400 repetitions whose spread has a standard deviation of 3.6%."""
    exact = np.array([reference.variation_by_integration(*case) for case in LINE])
    arguments = on_the_line(LINE)
    keys = jax.random.split(jax.random.key(42), 400)
    many = jax.jit(jax.vmap(lambda key: metrics.total_variation(key, *arguments, draws=100)))
    distance, error = many(keys)
    assert distance.shape == error.shape == (400, 5) and (error <= 0.5 / np.sqrt(100)).all()
    np.testing.assert_array_less(np.abs(distance.mean(axis=0) - exact), 5 * distance.std(axis=0) / 20)
    np.testing.assert_allclose(distance.std(axis=0), np.sqrt((error**2).mean(axis=0)), rtol=0.18)
    # Near each other, the relative error stays what it is.
    near, error = variation(jax.random.key(43), [[1.0]], [[1 + 1e-9]], draws=10_000)
    assert abs(near - float(reference.line(np.log1p(1e-9), 0))) < 5 * error < 0.06 * near


def test_draws_lie_within_the_bounds_and_batches_are_independent():
    arguments = pairs(44, 5, 0.4, 0.5)
    lower, upper = bounds(*arguments)
    distance, error = variation(jax.random.key(45), *arguments)
    assert (lower - 5 * error <= distance).all() and (distance <= upper + 5 * error).all()
    alike = [np.broadcast_to(x[0], x.shape) for x in arguments]
    assert len(set(np.asarray(variation(jax.random.key(46), *alike)[0]).tolist())) == 8
    swapped = variation(jax.random.key(47), *(arguments[k] for k in (1, 0, 3, 2)))
    assert (np.abs(swapped[0] - distance) < 5 * np.hypot(swapped[1], error)).all()


def test_gradients_of_the_draws_are_unbiased():
    """Against the exact slopes on the line, at 5 standard errors of 200 repetitions: a false alarm in 10^6."""
    slopes = jax.jit(
        jax.vmap(
            jax.grad(lambda key, *x: metrics.total_variation(key, *x, draws=400)[0], argnums=(1, 3)),
            in_axes=(0, None, None, None, None),
        )
    )
    case = [jnp.asarray(x[0]) for x in on_the_line(LINE[1:2])]
    out = slopes(jax.random.split(jax.random.key(48), 200), *case)
    for slope, k in zip(out, (0, 2)):
        h = np.eye(4)[k] * 1e-5
        ends = [reference.variation_by_integration(*(np.array(LINE[1]) + sign * h)) for sign in (1, -1)]
        slope = slope.reshape(-1)
        assert abs(slope.mean() - (ends[0] - ends[1]) / 2e-5) < 5 * slope.std() / np.sqrt(200) < 0.1
    assert all(
        (x == 0).all()
        for x in slopes(jax.random.split(jax.random.key(49), 200), *case[:1], *case[:1], *case[2:3], *case[2:3])
    )


def test_draws_at_the_edges():
    s, key = positive(50, 3), jax.random.key(51)
    assert variation(key, s, s) == (0, 0)
    for bad in (np.diag([1.0, 1.0, 0.0]), np.diag([1.0, 1.0, -1.0])):
        assert variation(jax.random.clone(key), bad, s) == (1, 0) == variation(jax.random.clone(key), s, bad)
    assert np.isnan(variation(jax.random.clone(key), s * np.nan, s)).all()
    far = variation(jax.random.clone(key), s, s, np.full(3, 1e160), np.zeros(3))
    assert far == (1, 0)
    for draws in (3, 10.0, True):
        with pytest.raises(ValueError, match="draws must be a whole number >= 4"):
            metrics.total_variation(key, s, s, draws=draws)
    with pytest.raises(ValueError, match="both, or neither"):
        metrics.total_variation(key, s, s, np.zeros(3))


@pytest.mark.x64_off
def test_x64_off():
    e, s, me, ms = (x.astype(np.float32) for x in pairs(52, 3, 0.3, 0.3))
    out = metrics.total_variation_bounds(e, s, me, ms)
    with jax.enable_x64(True):
        expected = bounds(*(x.astype(np.float64) for x in (e, s, me, ms)))
    assert out[0].dtype == out[1].dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-4)
    distance, error = metrics.total_variation(jax.random.key(53), e, s, me, ms, draws=1000)
    assert distance.dtype == jnp.float32 and (np.abs(distance - np.mean(expected, axis=0)) < 0.1).all()
    np.testing.assert_allclose(
        line(jnp.float32(-1e-4), jnp.float32(1e-3)), float(reference.line(-1e-4, 1e-3)), rtol=1e-5
    )
