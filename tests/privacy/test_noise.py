"""The draws' whole law and tails, and what the noise functions promise on every input.

Statistical tests have fixed seeds; each states the rate at which it would fail by chance at a random seed.
"""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxdpcov import _checks
from jaxdpcov.privacy import _draws, noise

DTYPES = [np.float32, np.float64]
DRAWS = {
    "normal": (noise.standard_normal, scipy.stats.norm),
    "laplace": (noise.standard_laplace, scipy.stats.laplace),
    "gumbel": (noise.standard_gumbel, scipy.stats.gumbel_r),
}


def _call(kind, key, value, **changes):
    """One call of the noise function `kind` with valid arguments, changed by `changes`."""
    budget = {"rho": 0.5} if "gaussian" in kind else {"epsilon": 1.0}
    return getattr(noise, kind)(key, value, **{"sensitivity": 1.0, **budget, "what": "test", **changes})


KINDS = {"gaussian": (5,), "laplace": (5,), "symmetric_gaussian": (4, 4), "symmetric_laplace": (4, 4)}


def _value(kind, dtype=np.float64):
    shape = KINDS[kind]
    value = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    return jnp.asarray(value + value.T if len(shape) == 2 else value)


def _budget(kind):
    return "rho" if "gaussian" in kind else "epsilon"


# --- the draws ---------------------------------------------------------------------------------------------


def _moment(law, power):
    if law == "laplace":  # closed form: scipy's quadrature gives up
        return 0.0 if power % 2 else float(math.factorial(power))
    return DRAWS[law][1].moment(power)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", DRAWS)
def test_whole_law(law, dtype):
    """Kolmogorov-Smirnov and four moments at 1e6 draws; false alarms: 1e-4 and 5 standard errors (2e-6)."""
    draw, truth = DRAWS[law]
    x = np.asarray(draw(jax.random.key(11), (1000, 1000), dtype), np.float64).ravel()
    assert np.isfinite(x).all()
    assert scipy.stats.kstest(x, truth.cdf).pvalue > 1e-4
    for power in (1, 2, 3, 4):
        error = np.sqrt((_moment(law, 2 * power) - _moment(law, power) ** 2) / x.size)
        assert abs(np.mean(x**power) - _moment(law, power)) < 5 * error
    for planted in (1.05 * x[::4], x[::4] + 0.03):  # the same test sees a small fault in fewer draws
        assert scipy.stats.kstest(planted, truth.cdf).pvalue < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_are_independent(dtype):
    """No correlation with neighbours in a row or column, nor of squares and signs; false alarm 8 x 6e-7 (5 sd)."""
    x = np.asarray(noise.standard_normal(jax.random.key(12), (1000, 1000), dtype), np.float64)
    squares, signs = (x**2 - 1) / np.sqrt(2), np.sign(x)
    for one, other in [
        (x[1:], x[:-1]), (x[:, 1:], x[:, :-1]), (squares[1:], squares[:-1]), (squares[:, 1:], squares[:, :-1]),
        (signs[1:], signs[:-1]), (signs[:, 1:], signs[:, :-1]), (signs, squares), (x, x.T * ~np.eye(1000, dtype=bool)),
    ]:  # fmt: skip
        repeats = 2 if one is x else 1  # each pair of a matrix and its transpose is there twice
        assert abs(np.mean(one * other)) < 5 * np.sqrt(repeats / one.size)


def _tail_draws(dtype, zero_bits, size=40_000):
    """(sign, halvings, fraction) of draws whose first `zero_bits` bits are zero, the others random.

    Rows of one entry: the extra words of different rows are independent.
    """
    own = 41 if dtype == np.float32 else 44
    rng = np.random.default_rng(zero_bits)
    words = rng.integers(0, 2**32, (3, size, 1), dtype=np.uint32)
    by_row = rng.integers(0, 2**32, (4, size, 1), dtype=np.uint32)
    words[0] = 0
    words[1] &= ~np.uint32(2 ** (own - 32) - 1)
    by_row[: (zero_bits - own) // 32] = 0
    first, second, third = (jnp.asarray(word) for word in words)
    third = None if dtype == np.float32 else third
    return _draws._assemble(
        first, second, third, jnp.asarray(by_row), jnp.zeros((4, 1, 1), jnp.uint32), np.dtype(dtype)
    )


@pytest.mark.parametrize("extra", [0, 32, 64, 96])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tail_mass_far_beyond_an_ordinary_sampler(dtype, extra):
    """Given z zero bits the tail probability is uniform on (0, 2^-z): from 7.1 to 14.6 sd. False alarm 16 x 1e-4."""
    own = 41 if dtype == np.float32 else 44
    sign, halvings, fraction = _tail_draws(dtype, own + extra)
    minus_log, p = _draws._distance(halvings, fraction)
    z = np.asarray(_draws.normal_quantile(minus_log, p), np.float64)
    z = z.ravel()
    share = np.exp(scipy.special.log_ndtr(-z) + np.log(2.0) * (1 + own + extra))
    assert z.min() > {0: 7.0, 32: 9.7, 64: 11.8, 96: 13.5}[extra]
    assert scipy.stats.kstest(share, "uniform").pvalue > 1e-4
    assert scipy.stats.kstest(0.98 * share, "uniform").pvalue < 1e-4
    # Laplace: 2 p = P(|x| > t) = e^-t, on the same bits.
    far = np.asarray(halvings * np.log(2.0).astype(dtype) - jnp.log(fraction), np.float64).ravel()
    assert scipy.stats.kstest(np.exp(np.log(2.0) * (own + extra) - far), "uniform").pvalue > 1e-4
    assert np.mean(np.asarray(sign)) == pytest.approx(0, abs=5 / 200)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reach(dtype):
    """All bits zero: the last draw is finite and beyond 14 (normal) and 110 (Laplace and Gumbel)."""
    top = [jnp.zeros((1, 1), jnp.uint32)] * 2
    third = None if dtype == np.float32 else top[0]
    extra = jnp.zeros((4, 1, 1), jnp.uint32)
    _, halvings, fraction = _draws._assemble(*top, third, extra, extra, np.dtype(dtype))
    assert halvings.item() == (169 if dtype == np.float32 else 172)
    minus_log, p = _draws._distance(halvings, fraction)
    assert 15.0 < _draws.normal_quantile(minus_log, p).item() < 15.3
    assert minus_log.item() > 110
    assert np.isfinite(-jnp.log(-jnp.log1p(-p) / p).item())


@pytest.mark.parametrize("dtype", DTYPES)
def test_halvings_are_geometric(dtype):
    """Chi-square of the exponent's law over 16 cells at 1e6 draws; false alarm 1e-4."""
    sign, halvings, fraction = _draws._nearer_end(jax.random.key(5), 1000, 1000, np.dtype(dtype))
    counts = np.bincount(np.minimum(np.asarray(halvings, int).ravel(), 15), minlength=16)
    expected = 1e6 * np.append(0.5 ** np.arange(1, 16), 0.5**15)
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-4
    assert scipy.stats.kstest(np.asarray(fraction, float).ravel(), scipy.stats.uniform(0.5, 0.5).cdf).pvalue > 1e-4
    assert 0.5 < float(fraction.min()) and float(fraction.max()) < 1.0
    assert abs(float(sign.mean())) < 5e-3


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-6), (np.float64, 1e-13)])
def test_quantile_against_mpmath(dtype, tolerance):
    """P(N > z) = p inverted from log p, relative error out to 16 standard deviations (float32 p underflows at 13)."""
    grid = np.concatenate([np.geomspace(1e-3, 1.0, 40), np.linspace(1.0, 16.0, 200)])
    with mpmath.workdps(60):
        tails = [mpmath.erfc(mpmath.mpf(float(z)) / mpmath.sqrt(2)) / 2 for z in grid]
        minus_log = jnp.asarray([float(-mpmath.log(p)) for p in tails], dtype)
        p = jnp.asarray([max(float(p), 2.0**-101) for p in tails], dtype)
    got = np.asarray(_draws.normal_quantile(minus_log, p), np.float64)
    near_zero = np.finfo(dtype).eps * np.sqrt(2 * np.pi)  # p is a float near 1/2: z has its absolute error there
    assert np.all(np.abs(got - grid) < tolerance * grid + near_zero)


@pytest.mark.parametrize("law, dtype", [("normal", np.float32), ("normal", np.float64), ("gumbel", np.float32)])
def test_draws_under_vmap_and_jit(law, dtype):
    draw = DRAWS[law][0]
    keys = jax.random.split(jax.random.key(3), 7)
    batched = jax.jit(jax.vmap(lambda key: draw(key, (3, 5), dtype)))(keys)
    looped = jnp.stack([draw(key, (3, 5), dtype) for key in keys])
    np.testing.assert_allclose(batched, looped, rtol=8 * np.finfo(dtype).eps)
    assert batched.dtype == dtype and len(np.unique(np.asarray(batched))) == batched.size


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_shapes(shape):
    assert jax.eval_shape(lambda key: noise.standard_normal(key, shape), jax.random.key(0)).shape == shape
    assert np.isfinite(noise.standard_normal(jax.random.key(0), shape)).all()


def test_float32_draws_do_not_depend_on_x64():
    with_x64 = noise.standard_normal(jax.random.key(1), (50,), np.float32)
    with jax.enable_x64(False):
        without = noise.standard_normal(jax.random.key(1), (50,))
        with pytest.raises(TypeError, match="jax_enable_x64"):
            noise.standard_normal(jax.random.key(1), (50,), np.float64)
    np.testing.assert_array_equal(with_x64, without)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.int32, np.complex64])
def test_other_types_are_refused(dtype):
    with pytest.raises(TypeError, match="float32 or float64"):
        noise.standard_normal(jax.random.key(0), (2,), dtype)


def test_legacy_key():
    legacy = noise.standard_normal(jax.random.PRNGKey(4), (3,))
    np.testing.assert_array_equal(legacy, noise.standard_normal(jax.random.key(4), (3,)))
    with pytest.raises(TypeError, match="key must be"):
        noise.standard_normal(4, (3,))


# --- the noise functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_entry_and_std(kind, dtype):
    value = _value(kind, dtype)
    measured, entry = _call(kind, jax.random.key(0), value, sensitivity=3.0, **{_budget(kind): 2.0})
    scale = 1.5  # 3 / sqrt(2 * 2) and 3 / 2
    std = scale if "gaussian" in kind else scale * 2**0.5
    expected = np.full(value.shape, std)
    if kind == "symmetric_gaussian":
        expected = np.where(np.eye(4, dtype=bool), std, std / 2**0.5)
    np.testing.assert_allclose(measured.std, expected, rtol=1e-6)
    assert measured.value.dtype == measured.std.dtype == dtype and measured.value.shape == value.shape
    assert (entry.what, entry.kind, entry.unit) == ("test", kind.removeprefix("symmetric_"), _budget(kind))
    assert (entry.sensitivity, entry.cost) == (3.0, 2.0)
    assert entry.scale == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize("kind", ["symmetric_gaussian", "symmetric_laplace"])
@pytest.mark.parametrize("d", [1, 17])
def test_symmetric_to_the_last_bit(kind, d):
    skewed = jax.random.normal(jax.random.key(8), (d, d))  # not symmetric: the symmetric part is released
    release = jax.jit(lambda budget: _call(kind, jax.random.key(1), skewed, **{_budget(kind): budget})[0].value)
    out, huge = np.asarray(release(1.0)), release(1e14)
    np.testing.assert_array_equal(out, out.T)
    np.testing.assert_allclose(huge, 0.5 * (skewed + skewed.T), atol=1e-5)


BAD = [(1.0, b) for b in (0.0, -1.0, np.nan, np.inf, -np.inf)]  # (sensitivity, budget)
BAD += [(0.0, b) for b in (0.0, -1.0, np.nan, np.inf, -np.inf)]
BAD += [(s, 1.0) for s in (-1.0, np.nan, np.inf, -np.inf)]
TINY = {
    np.float64: [(1e-300, 1e300), (5e-324, 1.0), (1e-310, 1e-20), (1e300, 1e-300), (1.0, 1e-310)],
    np.float32: [(1e-60, 1.0), (1e-40, 1.0), (5e-324, 1.0), (1e-30, 1e30), (1e30, 1e-30), (1.0, 1e-60), (1.0, 1e60)],
}


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_calibrate_fails_closed(dtype, squared):
    """NaN for every invalid pair and for every scale outside the dtype's normal range, host or traced, jit or not.

    1e-60 is 0 in float32 and 1e-40 a subnormal, which compiled code takes for 0: neither is a public constant.
    """
    eager = lambda s, b: noise.calibrate(s, b, np.dtype(dtype), squared=squared)  # noqa: E731
    traced = jax.jit(eager)
    for s, b in BAD + TINY[dtype]:
        results = [eager(s, b), eager(jnp.asarray(s), jnp.asarray(b)), traced(jnp.asarray(s), jnp.asarray(b))]
        with np.errstate(all="ignore"):
            s32, b32 = np.float32(s), np.float32(b)
        if s32 or not s:
            results += [eager(jnp.asarray(s32), jnp.asarray(b32)), traced(jnp.asarray(s32), jnp.asarray(b32))]
        if (s, b) != (1.0, 1e-310):  # in float64: a subnormal budget, either NaN or the enormous scale
            assert np.isnan(results).all(), (s, b, results)
    pairs = jnp.asarray(BAD + TINY[dtype][:2])
    assert np.isnan(jax.vmap(eager)(pairs[:, 0], pairs[:, 1])).all()
    for zero in (0, 0.0, -0.0, np.float64(0), jnp.zeros(()), -jnp.zeros((), np.float32)):
        assert eager(zero, 1.0) == 0.0 and traced(jnp.asarray(zero, float), jnp.asarray(1.0)) == 0.0
    good = eager(3.0, 2.0)
    assert good.dtype == dtype and good == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_fails_closed(kind):
    """An invalid number gives NaN in every entry, also where the sensitivity is zero; one bad lane spoils no other."""
    value, key = _value(kind), jax.random.key(0)
    one = lambda s, b: _call(kind, key, value, **{"sensitivity": s, _budget(kind): b})[0]  # noqa: E731
    pairs = jnp.asarray([*BAD, *TINY[np.float64][:4], (0.0, 1.0), (1.0, 1.0)])
    batch = jax.jit(jax.vmap(one))(pairs[:, 0], pairs[:, 1])
    assert np.isnan(batch.value[:-2]).all() and np.isnan(batch.std[:-2]).all()
    np.testing.assert_array_equal(batch.value[-2], value)
    assert not batch.std[-2].any() and np.isfinite(batch.value[-1]).all() and (batch.std[-1] > 0).all()
    assert np.isnan(_call(kind, jax.random.clone(key), value, **{_budget(kind): -1.0})[0].value).all()


def test_weights_fail_closed():
    value = _value("symmetric_gaussian")
    one = lambda diag, off: _call("symmetric_gaussian", jax.random.key(0), value, diag=diag, off=off)[0]  # noqa: E731
    bad = jnp.asarray([0.0, -1.0, np.nan, np.inf, 1e-310])
    batch = jax.jit(jax.vmap(one))(jnp.append(bad, jnp.ones(5)), jnp.append(jnp.ones(5), bad))
    assert np.isnan(batch.value).all() and np.isnan(batch.std).all()
    assert np.isnan(one(1.0, 0.0).value).all()


@pytest.mark.parametrize("kind", ["symmetric_gaussian", "symmetric_laplace"])
def test_mask(kind):
    value = _value(kind)
    keep = np.array([True, False, True, True])
    inside = keep[:, None] & keep[None, :]
    full = _call(kind, jax.random.key(0), value)[0]
    release = lambda mask: _call(kind, jax.random.key(0), value, mask=mask)[0]  # noqa: E731
    for out in (release(keep), jax.jit(release)(jnp.asarray(keep))):
        np.testing.assert_array_equal(np.asarray(out.value)[~inside], np.asarray(value)[~inside])
        np.testing.assert_allclose(np.asarray(out.value)[inside], np.asarray(full.value)[inside])
        np.testing.assert_array_equal(out.std, np.where(inside, full.std, 0.0))
    spoilt = _call(kind, jax.random.key(0), value, mask=keep, **{_budget(kind): -1.0})[0]
    assert np.isnan(spoilt.value).all() and np.isnan(spoilt.std).all()
    nothing = _call(kind, jax.random.key(0), value, mask=~keep & keep)[0]
    np.testing.assert_array_equal(nothing.value, value)
    for wrong in (keep[:3], keep.astype(float), np.True_):
        with pytest.raises(ValueError, match="mask must be"):
            _call(kind, jax.random.key(0), value, mask=wrong)


@pytest.mark.parametrize("kind, dtype", list(zip(KINDS, [np.float32, np.float64, np.float64, np.float32])))
def test_vmap_and_jit_change_nothing(kind, dtype):
    """Lane by lane and jitted as eagerly, to rounding; every key, value, budget and sensitivity in one compilation."""
    value, traces, rtol = _value(kind, dtype), [], 1e-5 if dtype == np.float32 else 1e-12
    keys, budgets = jax.random.split(jax.random.key(2), 4), jnp.asarray([0.1, 1.0, -1.0, 5.0], dtype)

    def one(key, budget, sensitivity):
        traces.append(1)
        return _call(kind, key, value, **{_budget(kind): budget, "sensitivity": sensitivity})

    batch, entries = jax.jit(jax.vmap(one))(jax.random.clone(keys), budgets, 2.0 * budgets)
    jitted = jax.jit(one)
    for lane, (key, budget) in enumerate(zip(keys, budgets)):
        results = [one(key, budget, 2.0 * budget), jitted(jax.random.clone(key), budget, 2.0 * budget)]
        for measured, entry in results:
            np.testing.assert_allclose(batch.value[lane], measured.value, rtol=rtol)
            np.testing.assert_allclose(batch.std[lane], measured.std, rtol=rtol)
            np.testing.assert_allclose(entries.scale[lane], entry.scale, rtol=rtol)
            np.testing.assert_array_equal(entries.cost[lane], entry.cost)
    assert len(traces) == 1 + 1 + len(keys)  # batched, jitted, and once for each eager call


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    """Exact against the closed form: the noise is scale times a draw that has no tangent."""
    value, cotangent = _value(kind), jax.random.normal(jax.random.key(6), KINDS[kind])

    def total(value, sensitivity, budget):
        measured, _ = _call(kind, jax.random.key(1), value, sensitivity=sensitivity, **{_budget(kind): budget})
        return jnp.sum(measured.value * cotangent)

    noise_part = float(total(value, 2.0, 0.7) - total(value, 0.0, 0.7))
    by_value, by_sensitivity, by_budget = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(value, 2.0, 0.7)
    sided = cotangent if cotangent.ndim == 1 else 0.5 * (cotangent + cotangent.T)
    np.testing.assert_allclose(by_value, sided, rtol=1e-12)
    assert by_sensitivity == pytest.approx(noise_part / 2.0, rel=1e-9)
    assert by_budget == pytest.approx(noise_part * (-0.5 if "gaussian" in kind else -1.0) / 0.7, rel=1e-9)
    at_zero = jax.grad(total, argnums=(0, 1, 2))(value, 0.0, 0.7)
    assert all(np.isfinite(part).all() for part in at_zero)
    assert at_zero[1] == pytest.approx(noise_part / 2.0, rel=1e-9)


def test_gradients_of_the_weights():
    @jax.jit
    def sums(weights):
        numbers = {"sensitivity": 1.0, "rho": 0.5, "diag": weights[0], "off": weights[1], "what": "m"}
        out = noise.symmetric_gaussian(jax.random.key(0), jnp.zeros((3, 3)), **numbers)[0].value
        return jnp.stack([jnp.trace(out), jnp.sum(jnp.triu(out, 1))])

    jacobian = jax.jacfwd(sums)(jnp.asarray([0.3, 0.4]))
    np.testing.assert_allclose(jacobian, np.diag(sums(jnp.ones(2))), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_that_raise(kind):
    key, value = jax.random.key(0), _value(kind)
    with pytest.raises(TypeError, match="sensitivity must be a number"):
        _call(kind, key, value, sensitivity="abc")
    with pytest.raises(TypeError, match=f"{_budget(kind)} must be a number"):
        _call(kind, key, value, **{_budget(kind): None})
    with pytest.raises(ValueError, match="sensitivity must be a single number"):
        _call(kind, key, value, sensitivity=jnp.ones(2))
    with pytest.raises(TypeError, match="float32 or float64"):
        _call(kind, key, value.astype(np.float16))
    with pytest.raises(TypeError, match="key must be"):
        _call(kind, 0, value)
    if len(KINDS[kind]) == 2:
        for wrong in (jnp.zeros(3), jnp.zeros((2, 3)), jnp.zeros((2, 2, 2))):
            with pytest.raises(ValueError, match="matrix must be square"):
                _call(kind, key, wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_become_floats(kind):
    out = _call(kind, jax.random.key(0), np.zeros(KINDS[kind], int))[0].value
    assert out.dtype == np.float64 and np.isfinite(out).all()


@pytest.mark.x64_off
@pytest.mark.parametrize("kind", ["symmetric_gaussian", "laplace"])
def test_x64_off(kind):
    measured, entry = jax.jit(_call, static_argnums=0)(kind, jax.random.key(0), _value(kind, np.float32))
    assert measured.value.dtype == np.float32 and np.isfinite(measured.value).all()
    assert np.isfinite(entry.scale)


def test_the_same_key_gives_the_same_noise_and_another_does_not():
    first, second = (noise.gaussian(jax.random.key(0), jnp.zeros(9), sensitivity=1.0, rho=1.0, what="m") for _ in "ab")
    other = noise.gaussian(jax.random.key(1), jnp.zeros(9), sensitivity=1.0, rho=1.0, what="m")
    np.testing.assert_array_equal(first[0].value, second[0].value)
    assert not np.any(first[0].value == other[0].value)


def test_a_key_serves_once():
    key = jax.random.key(0)
    noise.standard_normal(key, (3,))
    with pytest.raises(jax.errors.KeyReuseError):
        noise.standard_normal(key, (3,))
    assert _checks.typed_key(jax.random.key(0)).shape == ()


def test_draws_are_made_once_whatever_reads_them() -> None:
    """XLA would copy the arithmetic of a draw into each of its consumers, and into every entry of an outer product."""

    def drawn(key: jax.Array) -> jax.Array:
        return noise.standard_normal(key, (8,))

    def read(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        draws = drawn(key)
        matrix = draws[:, None] * draws[None, :] + 8.0 * jnp.eye(8)
        return jnp.linalg.cholesky(matrix), jnp.linalg.eigvalsh(matrix)

    keys = jax.random.split(jax.random.key(0), 4)
    once, often = (
        jax.jit(jax.vmap(f)).lower(keys).compile().as_text().count("count-leading-zeros(") for f in (drawn, read)
    )
    assert once > 0
    assert often == once
