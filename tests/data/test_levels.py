"""Level masses and clipped moments against loops over rows; tables of level moments against the passes they replace."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, Rows, adaptive, emcov, gaussian, separate, status
from jaxdpcov.data import clip, levels
from tests.reference import adaptive as reference
from tests.reference import separate as ball

BOX = Bounds.box(np.array([-1.0, 2.0, 0.0]), np.array([3.0, 2.0, 0.5]))
L2 = Bounds.l2(1.7)
MOVED = Bounds.l2(1.7, np.array([0.1, -0.2, 0.3]))


def rows(n: int = 40, seed: int = 0) -> np.ndarray:
    """Norms over many octaves, some at exact powers of two, zero rows, rows beyond the bound and not finite."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    x *= (2.0 ** rng.uniform(-12, 2, size=n) / np.linalg.norm(x, axis=1))[:, None]
    x[:4] = [[0.5, 0, 0], [0, -0.25, 0], [0, 0, 1.0], [2.0**-9, 0, 0]]
    x[4:6] = 0.0
    x[6], x[7] = np.nan, np.inf
    return x


def as_reference(bounds) -> tuple:
    return ("box", bounds.lower, bounds.upper) if bounds is BOX else ("l2", bounds.radius, bounds.center)


@pytest.mark.parametrize("bounds", [L2, MOVED, BOX], ids=["l2", "moved", "box"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_the_ball(bounds, dtype: type) -> None:
    frame = clip.ball_frame(bounds, 3, dtype)
    x = rows().astype(dtype)
    u = np.asarray(frame.rows(jnp.asarray(x)))
    np.testing.assert_allclose(u, ball.unit_rows(x, as_reference(bounds)), atol=16 * np.finfo(dtype).eps)
    assert np.max(np.linalg.norm(u.astype(float), axis=1)) <= 1 + 4 * np.finfo(dtype).eps
    assert frame.domain == "ball" and u.dtype == dtype
    back = np.asarray(frame.center) + np.asarray(frame.scale) * u  # data units, clipped
    np.testing.assert_allclose(back, frame.clip(jnp.asarray(x)), atol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("bounds", [Bounds.l2(1.0), BOX], ids=["l2", "box"])
def test_masses_are_counted_row_by_row(bounds) -> None:
    x, weights = rows(), np.random.default_rng(1).uniform(size=40)
    frame = clip.ball_frame(bounds, 3, np.float64)
    norms = np.minimum(np.linalg.norm(np.asarray(frame.rows(jnp.asarray(x))), axis=1), 1.0)
    for given in (None, jnp.asarray(weights)):
        found = levels.masses(jnp.asarray(x), given, frame)
        counted = np.ones(40) if given is None else weights
        assert found.beyond.shape == found.mass.shape == (320,)
        for i in range(320):
            longer = norms > 2.0 ** (-i / 4)
            assert float(found.beyond[i]) == pytest.approx(np.sum(counted[longer]), rel=1e-12)
            assert float(found.mass[i]) == pytest.approx(np.sum((counted * norms**2)[longer]), rel=1e-12)
        assert float(found.total) == pytest.approx(np.sum(counted * norms**2), rel=1e-12)


def test_a_norm_at_a_power_of_two_is_not_beyond_it() -> None:
    x = jnp.asarray([[2.0**-k, 0.0] for k in range(79)])
    found = levels.masses(x, None, clip.ball_frame(Bounds.l2(1.0), 2, np.float64))
    assert found.beyond[::4].tolist() == [float(i) for i in range(80)]
    assert found.beyond[1::4].tolist() == [float(i) for i in range(1, 80)] + [79.0]
    for k, norm in enumerate(2.0 ** -np.arange(79.0)):
        assert reference.level(norm) == -k - 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_of_a_radius_is_inside_it_and_its_neighbour_in_floats_is_not(dtype: type) -> None:
    """At every level, in masses and in the count of rows by level: the same radii, to the last bit."""
    radii = np.asarray(levels.radii(dtype))[:-1]
    frame = clip.ball_frame(Bounds.l2(1.0), 2, dtype)
    assert radii.dtype == dtype and np.all(radii[::4] == 2.0 ** -np.arange(len(radii) // 4 + 1.0))
    np.testing.assert_allclose(radii, 2.0 ** (-np.arange(len(radii)) / 4), rtol=2 * np.finfo(dtype).eps)
    near = np.concatenate([np.nextafter(radii, dtype(0)), radii, np.nextafter(radii, dtype(2))])
    x = jnp.stack([jnp.asarray(near), jnp.zeros(len(near), dtype)], axis=1)
    norms = np.minimum(np.asarray(clip.row_norms(frame.rows(x))), 1)
    ends = np.asarray(levels.radii(dtype))
    longer = np.sum(norms[:, None] > ends[None, :], axis=0)
    assert np.sum(np.isin(norms, ends)) > len(radii) / 2  # else hardly a norm is at a radius, where it matters
    np.testing.assert_array_equal(levels.masses(x, None, frame).beyond, longer)
    by_level = np.asarray(levels.rows_by_level(x, None, frame))
    np.testing.assert_array_equal(np.cumsum(by_level)[:-1], longer[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bounds", [Bounds.l2(1.0), BOX], ids=["l2", "box"])
def test_moments_at_every_level(bounds, dtype: type) -> None:
    x = rows().astype(dtype)
    frame = clip.ball_frame(bounds, 3, dtype)
    u = np.asarray(frame.rows(jnp.asarray(x)), float)
    for level in (0, 1, 2, 7, 20, 121):
        found = levels.moments_at_level(jnp.asarray(x), None, frame, jnp.asarray(level))
        w = ball.clipped(u, 2.0 ** (-level / 4))
        np.testing.assert_allclose(found.second, ball.second_moment(w), rtol=0, atol=2000 * np.finfo(dtype).eps)
        np.testing.assert_allclose(found.first, w.sum(0), rtol=0, atol=400 * np.finfo(dtype).eps)
        again = levels.moments_at_radius(jnp.asarray(x), None, frame, levels.radius(level, dtype))
        assert all(np.array_equal(a, b) for a, b in zip(found, again))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_table_answers_as_the_rows_do(dtype: type, weighted: bool) -> None:
    x = rows().astype(dtype)
    weights = np.random.default_rng(2).uniform(size=40).astype(dtype) if weighted else None
    home = Rows.array(x, weights, 30 if weighted else None)
    table = home.level_moments(L2)
    assert table.d == 3 and table.dtype == dtype and float(table.count()) == (30 if weighted else 40)
    assert 40 < table.moments.first.shape[0] < 80  # the levels in use, and one more
    frame = clip.ball_frame(L2, 3, dtype)
    for left, right in zip(table.reduce(levels.masses, frame), home.reduce(levels.masses, frame)):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    for level in (0, 1, 3, 4, 18, 37, 53, 160, levels.count(dtype) - 2):
        found, plain = (of.reduce(levels.moments_at_level, frame, jnp.asarray(level)) for of in (table, home))
        spectrum = np.linalg.eigvalsh(np.asarray(plain.second, np.float64))
        pairs = (found.second, plain.second), (found.first, plain.first), (found.spectrum, spectrum)
        for left, right in pairs:
            np.testing.assert_allclose(left, right, rtol=0, atol=100 * np.finfo(dtype).eps * np.max(np.abs(right)))


def test_a_table_of_rows_that_are_all_zero_or_tiny() -> None:
    frame = clip.ball_frame(Bounds.l2(1.0), 2, np.float64)
    for x in (np.zeros((3, 2)), np.full((3, 2), 1e-40), np.full((3, 2), 1e-160)):
        table = Rows.array(x).level_moments(Bounds.l2(1.0))
        for level in (0, 313, 318):
            pair = [of.reduce(levels.moments_at_level, frame, jnp.asarray(level)) for of in (table, Rows.array(x))]
            np.testing.assert_allclose(*(part.second for part in pair), rtol=1e-12, atol=1e-300)


def test_a_table_of_a_stream() -> None:
    x = rows()
    stream = Rows.chunked(lambda: iter(np.array_split(x, 3)), d=3, block_rows=8)
    left, right = (home.level_moments(L2) for home in (stream, Rows.array(x)))
    for a, b in zip(jax.tree_util.tree_leaves(left), jax.tree_util.tree_leaves(right)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_releases_from_a_table_are_those_from_the_rows() -> None:
    x, lanes = 0.1 * rows()[8:], jax.random.split(jax.random.key(3), 3)
    table = Rows.array(x).level_moments(L2)
    for mechanism in (adaptive, separate):
        one = lambda key, m=mechanism: m(key, table, ZCDP(20.0), L2).covariance  # noqa: E731
        batch = jax.jit(jax.vmap(one))(jax.random.clone(lanes))
        for i, one in enumerate(batch):
            single = mechanism(jax.random.clone(lanes)[i], x, ZCDP(20.0), L2).covariance
            np.testing.assert_allclose(one, single, rtol=1e-9, atol=1e-12)


def test_what_a_table_refuses() -> None:
    x = jnp.asarray(rows())
    table = Rows.array(x).level_moments(L2)
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="serves `separate`, `adaptive`, `auto` and `emcov` only"):
        gaussian(key, table, ZCDP(1.0), L2)
    with pytest.raises(ValueError, match="made for other bounds"):
        separate(key, table, ZCDP(1.0), Bounds.l2(1.8))
    with pytest.raises(ValueError, match="holds no pairs"):
        separate(key, table, ZCDP(1.0), L2, config=separate_pairs())
    with pytest.raises(TypeError, match="outside jit"):
        jax.jit(lambda y: Rows.array(y).level_moments(L2).count())(x)


@pytest.mark.parametrize("mechanism", [separate, adaptive, emcov])
def test_a_table_for_other_bounds_that_are_traced_fails_closed(mechanism: Any) -> None:
    """All of it NaN, the spectrum and the trace too, and a status that says that bounds are to blame."""
    table = Rows.array(rows()).level_moments(L2)

    @jax.jit
    def inside(radius: Any) -> Any:
        return mechanism(jax.random.key(0), table, ZCDP(1.0), Bounds.l2(radius))

    right, wrong = inside(1.7), inside(1.8)
    assert np.all(np.isfinite(right.covariance)) and not int(right.status) & status.INVALID_BOUNDS
    assert int(wrong.status) & status.INVALID_BOUNDS
    void = [wrong.covariance, wrong.mean, *(each.value for each in wrong.measured.values())]
    assert all(np.all(np.isnan(each)) for each in void)


def separate_pairs():
    from jaxdpcov import SeparateConfig

    return SeparateConfig(center="pairs")
