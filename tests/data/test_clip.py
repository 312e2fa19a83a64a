"""Clipping: never past the bound, once is enough, and rows that are not finite or near the ends of the floats."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, gaussian, status
from jaxdpcov.data.clip import clip, clip_l2, frame
from jaxdpcov.privacy import sensitivity
from tests.reference import moments as reference

ROWS = 200_000
DTYPES = [np.float32, np.float64]


def norms(x: np.ndarray) -> np.ndarray:
    """Row norms in more digits than either dtype has, without overflow."""
    wide = np.asarray(x, np.longdouble)
    return np.sqrt(np.sum(wide * wide, axis=-1))


def rows_near(radius: float, n: int, d: int, dtype, seed: int = 0) -> np.ndarray:
    """Random rows: most of them within a few roundings of the sphere, some far inside and far outside."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[: n // 8] *= rng.random((n // 8, d)) < 0.1  # sparse rows
    x[:, 0] += 1e-3
    x *= (radius / np.linalg.norm(x, axis=1))[:, None]
    eps = np.finfo(dtype).eps
    stretch = 1.0 + rng.integers(-40, 41, n) * eps * rng.choice([0.25, 1.0, d], n)
    far = rng.random(n) < 0.2
    stretch[far] = 10.0 ** rng.uniform(-6, 6, far.sum())
    return (x * stretch[:, None]).astype(dtype)


@functools.cache
def compiled(dtype, optimised: bool):
    return jax.jit(clip_l2, compiler_options=None if optimised else {"xla_backend_optimization_level": 0})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 2, 50, 500])
def test_l2_never_overshoots_and_is_idempotent(d: int, dtype) -> None:
    """200,000 rows in all: 1, 2 and 50 columns in full, 500 in a tenth with the same number of entries as 50."""
    n = ROWS if d < 500 else ROWS // 10
    radius = np.asarray(1.7, dtype)
    x = rows_near(float(radius), n, d, dtype)
    once = np.asarray(compiled(dtype, True)(x, radius))
    exact, size = norms(once), norms(x)
    moved = np.any(once != x, axis=1)
    # A row that was scaled is inside by exact arithmetic; one that stayed was inside by its computed norm, whose
    # rounding the sensitivities' slack covers (twice: norms enter as squares).
    assert np.all(exact[moved] <= radius)
    assert np.all(exact <= radius * (1 + (sensitivity.slack(dtype) - 1) / 2))
    assert np.all(exact[moved] >= radius * (1 - (12 + d) * np.finfo(dtype).eps))
    assert moved[size > radius * (1 + (8 + d) * np.finfo(dtype).eps)].all()
    assert not moved[size < radius * (1 - (8 + d) * np.finfo(dtype).eps)].any()
    # Directions stay.
    np.testing.assert_allclose(once / exact[:, None], x / size[:, None], atol=8 * np.finfo(dtype).eps)
    for optimised in (True, False):  # another program rounds the norm in another order
        twice = np.asarray(compiled(dtype, optimised)(once, radius))
        assert np.array_equal(twice, once) if optimised else np.mean(np.any(twice != once, axis=1)) < 0.2


def test_plain_clipping_overshoots() -> None:
    """What the margin is for: without it tens of thousands of these rows end outside, or move when clipped again."""
    x = rows_near(1.7, ROWS, 2, np.float32)

    def plain(x):
        norm = np.sqrt(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float32))
        return x * np.minimum(np.float32(1), np.float32(1.7) / norm)

    once = plain(x)
    assert np.sum(norms(once) > np.float32(1.7)) > 10_000
    assert np.sum(np.any(plain(once) != once, axis=1)) > 1_000


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_near_the_ends_of_the_floats(dtype) -> None:
    """The inverse of a huge number is subnormal, and a flushed one once made the norm come out too small."""
    top, tiny = np.finfo(dtype).max, np.finfo(dtype).tiny
    values = np.concatenate([
        top * 2.0 ** -np.arange(0, 12), np.sqrt(top) * 2.0 ** np.arange(-4, 5), tiny * 2.0 ** np.arange(-20, 12),
    ]).astype(dtype)  # fmt: skip
    for d in (1, 4, 64):
        spread = np.repeat(values[:, None], d, axis=1)
        spike = np.zeros_like(spread)
        spike[:, -1] = values
        for radius in (1e-3, 1.0, 1e3, 1e30):
            if radius > top:
                continue
            for x in (spread, spike, -spread):
                with np.errstate(under="ignore"):
                    out = np.asarray(compiled(dtype, True)(x, np.asarray(radius, dtype)))
                assert np.all(np.isfinite(out))
                assert np.all(norms(out) <= np.asarray(radius, dtype) * (1 + 1e-6))
                assert np.all(np.sign(out) * np.sign(x) >= 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [2, 3, 4, 8, 50])
def test_no_row_among_thousands_passes_nan_on(dtype, d: int) -> None:
    """In the vectorised loops that many rows get, a maximum over a row drops NaN: the row must be 0 all the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100_000 // d, d)).astype(dtype)
    x[rng.random(x.shape) < 0.3 / d] = np.nan
    x[rng.random(x.shape) < 0.1 / d] = np.inf
    broken = ~np.all(np.isfinite(x), axis=1)
    assert 0.2 < np.mean(broken) < 0.5
    for optimised in (True, False):
        out = np.asarray(compiled(dtype, optimised)(x, np.asarray(1.0, dtype)))
        assert np.all(out[broken] == 0.0) and np.all(norms(out) <= 1.0 + 1e-6) and np.all(norms(out[~broken]) > 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_ratios_do_not_overshoot(dtype) -> None:
    """radius / norm below the normal range has few digits left."""
    top = np.finfo(dtype).max
    x = np.full((64, 1), top, dtype) * np.linspace(0.26, 1, 64).astype(dtype)[:, None]
    for radius in np.finfo(dtype).tiny * 2.0 ** np.arange(0, 130, 3):
        out = np.asarray(compiled(dtype, True)(x, np.asarray(radius, dtype)))
        assert np.all(norms(out) <= np.asarray(radius, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_finite_become_the_centre(dtype) -> None:
    x = np.ones((6, 3), dtype)
    x[0, 0], x[1, 1], x[2, 2], x[3], x[4, 0] = np.nan, np.inf, -np.inf, np.nan, 0.25
    for bounds, center in (
        (Bounds.l2(0.5), 0.0),
        (Bounds.l2(0.5, np.array([1.0, 2.0, 3.0])), [1.0, 2.0, 3.0]),
        (Bounds.box(np.array([-1.0, 0.0, 2.0]), np.array([1.0, 1.0, 2.0])), [0.0, 0.5, 2.0]),
    ):
        out = np.asarray(clip(jnp.asarray(x), bounds))
        assert np.array_equal(out[:4], np.broadcast_to(np.asarray(center, dtype), (4, 3)))
        z = np.asarray(frame(bounds, 3, dtype).rows(jnp.asarray(x)))
        assert np.array_equal(z[:4], np.zeros((4, 3))) and np.any(z[4:])


def test_a_difference_that_overflows_is_sanitised() -> None:
    x = jnp.full((2, 2), np.float32(3e38))
    made = frame(Bounds.l2(1.0, -3e38), 2, jnp.float32)
    assert np.array_equal(made.rows(x), np.zeros((2, 2)))


ABOUT = {
    "l2 at zero": (("l2", 1.3, None), Bounds.l2(1.3)),
    "l2 about a centre": (("l2", 1.3, [0.2, -4.0]), Bounds.l2(1.3, np.array([0.2, -4.0]))),
    "box": (("box", [-1.0, 0.5], [0.1, 3.0]), Bounds.box(np.array([-1.0, 0.5]), np.array([0.1, 3.0]))),
    "box of one number": (("box", -0.7, 0.3), Bounds.box(-0.7, 0.3)),
    "constant column": (("box", [-1.0, 0.5], [1.0, 0.5]), Bounds.box(np.array([-1.0, 0.5]), np.array([1.0, 0.5]))),
}


@pytest.mark.parametrize("name", ABOUT)
def test_clipping_and_frame_units_against_numpy(name: str) -> None:
    plain, bounds = ABOUT[name]
    x = np.random.default_rng(3).normal(size=(500, 2)) * [1.0, 4.0]
    x[0], x[1] = np.nan, [1e300, -1e300]
    expected = reference.clip(x, plain)
    clipped = np.asarray(clip(jnp.asarray(x), bounds))
    np.testing.assert_allclose(clipped, expected, rtol=1e-12, atol=1e-13)
    made = frame(bounds, 2, np.float64)
    center, scale = reference.frame(plain, 2)
    np.testing.assert_allclose(made.center, center)
    np.testing.assert_allclose(made.scale, scale)
    assert np.array_equal(made.live, scale > 0) and bool(made.valid)
    z = np.asarray(made.rows(jnp.asarray(x)))
    np.testing.assert_allclose(z, (expected - center) / np.where(scale > 0, scale, 1.0), atol=1e-12)
    assert np.all(np.abs(z) <= 1.0) if plain[0] == "box" else np.all(norms(z) <= 1 + 1e-14)
    # The way back: moments in z give moments in data units.
    np.testing.assert_allclose(made.covariance(jnp.asarray(np.cov(z.T))), np.cov(expected.T), atol=1e-12)
    np.testing.assert_allclose(made.mean(jnp.asarray(z.mean(0))), expected.mean(0), atol=1e-12)
    # Twice is once: bit for bit in a box and about 0.
    again = np.asarray(clip(jnp.asarray(clipped), bounds))
    if plain[0] == "box" or plain[2] is None:
        assert np.array_equal(again, clipped)
    np.testing.assert_allclose(again, clipped, rtol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_box_frame_stays_in_the_box(dtype) -> None:
    """z never leaves [-1, 1] by a rounding, whatever the offset and the width."""
    rng = np.random.default_rng(5)
    low = rng.choice([-1, 1], 40) * 10.0 ** rng.uniform(-3, 6, 40)
    bounds = Bounds.box(low, low + 10.0 ** rng.uniform(-2, 3, 40))
    x = (low + (bounds.upper - low) * rng.uniform(-0.5, 1.5, (20_000, 40))).astype(dtype)
    made = frame(bounds, 40, dtype)
    z = np.asarray(jax.jit(made.rows)(jnp.asarray(x)))
    assert np.all(np.abs(z) <= 1.0) and z.dtype == dtype
    assert np.array_equal(
        np.asarray(clip(clip(jnp.asarray(x), bounds), bounds)), np.asarray(clip(jnp.asarray(x), bounds))
    )


def test_bounds_too_near_for_the_floats() -> None:
    """Ends that round to one number are a constant column; a width that underflows is invalid, never divided by."""
    made = frame(Bounds.box(1e8, 1e8 + 1), 1, jnp.float32)
    z = np.asarray(made.rows(jnp.asarray([[1e8], [1e9], [5.0]], jnp.float32)))
    assert made.valid and not made.live[0] and float(made.scale[0]) == 0.0 and np.all(np.isfinite(z))
    tiny = np.finfo(np.float32).tiny
    for low, high in ((0.0, 2 * tiny), (tiny, 1.5 * tiny)):
        made = frame(Bounds.box(low, high), 1, jnp.float32)
        assert not made.valid and made.live[0]  # so that nothing of it passes for a known constant


def test_invalid_traced_bounds_say_so() -> None:
    """Where nothing can raise, the frame knows; and an inverted column does not pass for a constant one."""
    valid = jax.jit(lambda low, high: frame(Bounds.box(low, high), 2, jnp.float64).valid)
    assert valid(0.0, 1.0) and valid(1.0, 1.0)
    for low, high in ((1.0, 0.0), (np.nan, 1.0), (0.0, np.inf), (-np.inf, np.inf)):
        assert not valid(low, high)
    made = jax.jit(lambda low, high: frame(Bounds.box(low, high), 2, jnp.float64))(np.array([0.0, 1.0]), 0.5)
    assert not made.valid and np.all(made.live)
    ball = jax.jit(lambda radius, center: frame(Bounds.l2(radius, center), 2, jnp.float64).valid)
    assert ball(1.0, 0.0)
    for radius, center in ((0.0, 0.0), (-1.0, 0.0), (np.nan, 0.0), (np.inf, 0.0), (1.0, np.nan), (1.0, np.inf)):
        assert not ball(radius, center)
    with pytest.raises(TypeError, match=r"Bounds\.l2 or Bounds\.box"):
        frame(Bounds.spectrum(1.0, 2.0), 2, jnp.float64)


def test_an_inverted_box_raises_and_names_the_column() -> None:
    with pytest.raises(ValueError, match=r"column 1 has lower = 2, upper = 1"):
        Bounds.box(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    with pytest.raises(ValueError, match="lower must not exceed upper"):
        Bounds.box(1.0, 0.0)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="upper must be finite"):
            Bounds.box(0.0, bad)
        with pytest.raises(ValueError, match="radius must be finite and > 0"):
            Bounds.l2(bad)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match="radius must be finite and > 0"):
            Bounds.l2(bad)
    with pytest.raises(TypeError, match="radius must be a number"):
        Bounds.l2("wide")


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds.l2(1e-308),
        Bounds.l2(1e308),
        Bounds.box(-1e308, 1e308),
        Bounds.box(1e308, 1.7e308),
        Bounds.box(0.0, 4e-308),
    ],
    ids=str,
)
def test_bounds_whose_squares_are_no_normal_floats_are_refused(bounds) -> None:
    """Concrete ones with one line; traced ones give NaN and a status, whatever the rows are."""
    x = jnp.asarray([[0.0, 1.0], [2.0, -1.0]])
    with pytest.raises(ValueError, match="must lie between 1.5e-154 and 1.3e\\+154 in float64"):
        gaussian(jax.random.key(0), x, ZCDP(0.5), bounds)
    run = jax.jit(lambda key, at: gaussian(key, x, ZCDP(0.5), at))
    traced = run(jax.random.key(0), jax.tree_util.tree_map(jnp.asarray, bounds))
    assert int(traced.status) & status.INVALID_BOUNDS
    value = np.asarray(traced.measured["second_moment"].value)
    assert np.all(np.isnan(value) | (value == 0.0))  # a width that is flushed to 0 makes a known column
