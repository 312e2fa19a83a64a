"""Product distributions: mechanism = slow reference, rounds, errors against one Gaussian mechanism, degenerate rows."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, ProductConfig, Rows, estimate, learn_product, product_mean, status
from jaxdpcov.mechanisms.product import theory
from jaxdpcov.privacy import ledger, noise, selection
from tests.reference import product as reference

KEY = jax.random.key(31)
UNIT = Bounds.box(0.0, 1.0)
THEORY = ProductConfig(constants="theory")


def key() -> jax.Array:
    return jax.random.clone(KEY)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No noise in sums, and none in the choice of the radius."""
    monkeypatch.setattr(noise, "standard_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    monkeypatch.setattr(selection, "standard_gumbel", lambda key, shape, dtype: jnp.zeros(shape, dtype))
    jax.clear_caches()
    yield
    jax.clear_caches()


def rows_of(p: Any, n: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((n, len(p))) < p).astype(float)


D = 12
POPULATIONS = {
    "sparse": np.full(D, 1 / D),
    "balanced": np.full(D, 0.5),
    "mixed": np.where(np.arange(D) % 2, 0.5, 1 / D),
    "near one": np.linspace(0.8, 1.0, D),
    "both ends": np.linspace(0.0, 1.0, D),
}


@pytest.mark.parametrize("mechanism", [product_mean, learn_product])
def test_practical_is_the_reference_without_noise(silent: None, mechanism: Any) -> None:
    """Weights, radius, both measurements and their noise; budgets at which radii truncate and at which none does."""
    truncated = 0
    for name, p in POPULATIONS.items():
        x = rows_of(p, 60)
        for rho in (0.5, 1e-3, 1e10):
            found = mechanism(key(), x, ZCDP(rho), UNIT)
            expected = reference.practical(x, rho, 0.2, 0.04, mechanism is learn_product)
            truncated += expected.radii[0] < np.linalg.norm(expected.weights)
            z = found.measured["mean"]
            np.testing.assert_array_equal(found.extra["flipped"], expected.flipped, err_msg=name)
            np.testing.assert_allclose(found.extra["weights"], expected.weights, rtol=1e-9, err_msg=name)
            assert float(found.extra["radius"]) == pytest.approx(expected.radii[0], rel=1e-9), name
            np.testing.assert_allclose(0.5 + 0.5 * z.value, expected.mean, rtol=1e-9, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(0.5 * z.std, expected.std, rtol=1e-9, err_msg=name)
            look, radius, last = ledger.entries(found.ledger)
            assert [float(e.sensitivity) for e in (look, last)] == pytest.approx(expected.sensitivities, rel=1e-9)
            assert radius.kind == "exponential"
            assert float(radius.sensitivity) == pytest.approx(0.5 * expected.most, rel=1e-9)
    assert 3 <= truncated < 15  # the comparison has seen both


def test_theory_is_the_reference_without_noise(silent: None) -> None:
    """A stream deals rows out in turn, so that the reference knows the blocks; R = 3 rounds in 12 columns."""
    count = reference.rounds(D)
    assert count == theory.rounds(D) == 3
    for name, p in POPULATIONS.items():
        n = 50 * (count + 1) + 3
        x = rows_of(p, n)
        rows = Rows.chunked(lambda x=x: iter([x]), d=D, n=n, block_rows=256)
        found = product_mean(key(), rows, ZCDP(0.5), UNIT, config=THEORY)
        blocks = [x[: n // 4 * 4][r :: count + 1] for r in range(count + 1)]
        expected = reference.theory(blocks, 0.5, 0.1, 0.05)
        z = found.measured["mean"]
        np.testing.assert_array_equal(found.extra["final_round"], expected.final, err_msg=name)
        np.testing.assert_array_equal(found.extra["flipped"], expected.flipped, err_msg=name)
        np.testing.assert_array_equal(found.extra["columns_left"], expected.sizes, err_msg=name)
        np.testing.assert_allclose(found.extra["radius"], expected.radii, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(found.extra["error"], expected.error, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(0.5 + 0.5 * z.value, expected.mean, rtol=1e-9, atol=1e-12, err_msg=name)
        np.testing.assert_allclose(0.5 * z.std, expected.std, rtol=1e-9, err_msg=name)
        assert isinstance(found.ledger, ledger.Par)
        entries = ledger.entries(found.ledger)
        assert [float(e.sensitivity) for e in entries] == pytest.approx(expected.sensitivities, rel=1e-9)
        assert all(float(e.cost) == 0.5 for e in entries) and float(found.spent.rho) == 0.5
        assert bool(int(found.status) & status.TOO_FEW_ROWS) != expected.right


@pytest.mark.parametrize("d", [10, 100, 1000])
def test_rounds_are_right_at_any_size(d: int) -> None:
    """Rows that are the means themselves, at a huge budget: the partition is that of the means, and so are the answers.

    A column is final in the first round r with (3/8) 2^-r <= p (of 1 - u where p > 13/16), while 2^-r |S_r| >= 1.
    """
    half = np.arange(d) < d // 2
    p = np.stack([np.full(d, 1 / d), np.full(d, 0.5), np.where(half, 1 / d, 0.5), np.where(half, 1 / d, 1 - 1 / d)])
    blocks = theory.rounds(d) + 1
    x = np.broadcast_to(p[:, None, :], (4, 4 * blocks, d))
    keys = jax.random.split(key(), 4)
    run = jax.jit(jax.vmap(lambda k, rows: product_mean(k, rows, ZCDP(1e14), UNIT, config=THEORY)))
    found = run(keys, jnp.asarray(x))
    np.testing.assert_allclose(found.mean, p, atol=1e-5)  # the noise has a std of 6e-7 at most
    for i in range(4):
        expected = reference.theory([np.asarray(x[i, :4])] * blocks, 1e14, 0.1, 0.05)
        np.testing.assert_array_equal(found.extra["final_round"][i], expected.final)
        np.testing.assert_array_equal(found.extra["columns_left"][i], expected.sizes)
        np.testing.assert_array_equal(found.extra["flipped"][i], p[i] > 13 / 16)
    final = np.asarray(found.extra["final_round"])
    assert np.all(final[1] == 1) and np.all(final[2][~half] == 1)  # balanced columns at once
    assert np.all(final[0] >= theory.rounds(d) - 1)  # a mean of 1/d goes through all rounds, or all but one


def test_theory_covers_and_its_partition_is_right() -> None:
    """Where the status is 0: final columns have means in [u/4, u], all errors hold, and the distance is bounded.

    The theorem lets one release in 20 fail; none of 30 does (the bounds are far from tight).
    """
    n, lanes = 42_000, 30
    p = np.array([0.5, 0.35, 0.2, 0.05, 0.02, 0.001, 0.97, 0.6])
    config = ProductConfig(constants="theory", alpha=0.5)
    one = functools.partial(learn_product, budget=ZCDP(2.0), bounds=UNIT, config=config)
    found = jax.jit(jax.vmap(lambda k, x: one(k, x)))(
        jax.random.split(key(), lanes), jnp.asarray(np.stack([rows_of(p, n, seed) for seed in range(lanes)]))
    )
    assert np.all(found.status == status.OK)
    u = 0.5 + 0.5 * np.asarray(found.measured["mean"].value)
    assert np.all(np.abs(u - p) <= found.extra["error"])
    small = np.where(found.extra["flipped"], 1 - p, p)
    final = np.asarray(found.extra["final_round"])
    stopped = final == final.max(axis=1, keepdims=True)  # the last measurement: no lower end
    level = 0.5**final
    sides = np.where(found.extra["flipped"] | (final > 1), small, np.minimum(p, 1 - p))
    assert np.all((sides >= level / 4) | stopped) and np.all(sides <= level * np.where(stopped, 2, 1))
    q = np.asarray(found.mean)
    distance = np.sqrt(0.5 * np.sum((p - q) ** 2 / (q * (1 - q)), axis=1))
    assert np.all(distance <= found.extra["total_variation"]) and np.all(found.extra["total_variation"] < 0.5)


def test_truncation_fades_whatever_the_rows() -> None:
    """One row in 50 holds all that there is: no product. With many rows nothing that matters is taken away."""
    d, rho = 20, 0.5
    rng = np.random.default_rng(6)
    run = jax.jit(lambda k, x: product_mean(k, x, ZCDP(rho), UNIT).mean)
    x = ((rng.random((50_000, 1)) < 0.02) & (rng.random((50_000, d)) < 0.5)).astype(float)
    ours = [np.linalg.norm(run(jax.random.key(i), x) - x.mean(0)) for i in range(10)]
    theirs = [np.linalg.norm(one_gaussian(x, rho, rng) - x.mean(0)) for _ in range(10)]
    assert np.mean(ours) < 1.5 * np.mean(theirs)


def one_gaussian(x: np.ndarray, rho: float, rng: np.random.Generator) -> np.ndarray:
    """The Gaussian mechanism on the mean of rows in [0, 1]^d: sensitivity sqrt(d)/n."""
    n, d = x.shape
    return np.clip(x.mean(0) + np.sqrt(d / (2 * rho)) / n * rng.normal(size=d), 0.0, 1.0)


def test_practical_beats_one_gaussian_where_means_are_small() -> None:
    """d = 200, n = 2000: less than 0.6 of the error on sparse means, near neither end no more than 1.1 of it."""
    d, n, rho = 200, 2000, 0.5
    run = jax.jit(lambda k, x: product_mean(k, x, ZCDP(rho), UNIT).mean)
    rng, keys = np.random.default_rng(4), [jax.random.key(i) for i in range(20)]
    ratios = {}
    for name, p in {"sparse": np.full(d, 1 / d), "flipped": np.full(d, 1 - 1 / d), "balanced": np.full(d, 0.5)}.items():
        ours, theirs = [], []
        for i in range(20):
            x = rows_of(p, n, i)
            ours.append(np.linalg.norm(run(jax.random.clone(keys[i]), x) - p))
            theirs.append(np.linalg.norm(one_gaussian(x, rho, rng) - p))
        ratios[name] = np.mean(ours) / np.mean(theirs)
    assert ratios["sparse"] < 0.6 and ratios["flipped"] < 0.6 and 0.9 < ratios["balanced"] < 1.1, ratios


DEGENERATE = {
    "all zero": np.zeros((9, 3)),
    "all one": np.ones((9, 3)),
    "all equal": np.full((9, 3), 0.3),
    "half": np.full((9, 3), 0.5),
    "ends": np.tile([0.0, 1.0, 0.0], (9, 1)),
    "not finite": np.full((9, 3), np.nan),
    "huge": np.tile([1e300, -1e300, np.inf], (9, 1)),
}


@pytest.mark.parametrize("constants", ["practical", "theory"])
@pytest.mark.parametrize("mechanism", [product_mean, learn_product])
def test_degenerate_rows(mechanism: Any, constants: str) -> None:
    """Means at 0 and 1, ties, no numbers at all; right at a huge budget, in range at a tiny one, in both precisions."""
    for dtype in (np.float64, np.float32):
        for name, x in DEGENERATE.items():
            with np.errstate(over="ignore"):
                x = x.astype(dtype)
            for rho in (1e12, 0.5, 1e-8):
                found = mechanism(key(), x, ZCDP(rho), UNIT, config=ProductConfig(constants=constants))
                mean = np.asarray(found.mean)
                assert mean.dtype == dtype and np.all(np.isfinite(mean)), name
                assert np.all((mean >= 0) & (mean <= 1)), name
                if mechanism is learn_product:
                    least = np.asarray(found.extra["floor"])
                    assert np.all(least > 0) and np.all((mean >= least) & (mean <= 1 - least)), name
                    assert np.all((mean > 0) & (mean < 1))
                if rho == 1e12:
                    finite = np.isfinite(x).all(1, keepdims=True)
                    expected = np.where(finite, np.clip(x, 0, 1), 0.5).mean(0)
                    np.testing.assert_allclose(mean, expected, atol=0.06 if mechanism is learn_product else 1e-4)
                else:
                    assert rho > 1e-3 or int(found.status) & status.TOO_FEW_ROWS


@pytest.mark.parametrize("constants", ["practical", "theory"])
def test_the_smallest_data(constants: str) -> None:
    """One column; one row, of which no round gets any: a status and a finite answer."""
    config = ProductConfig(constants=constants)
    for n, d in ((1, 1), (1, 3), (5000, 1)):
        found = product_mean(key(), np.full((n, d), 0.25), ZCDP(0.5), UNIT, config=config)
        assert np.all(np.isfinite(found.mean)) and found.mean.shape == (d,)
        assert (int(found.status) == status.TOO_FEW_ROWS) == (n == 1)
        if n > 1:
            assert abs(found.mean[0] - 0.25) < 0.01
            assert constants == "practical" or found.extra["columns_left"].tolist() == [1, 1]


@pytest.mark.parametrize("constants", ["practical", "theory"])
def test_units_constant_columns_and_bounds(constants: str) -> None:
    """Means in data units; a constant column is known, has no noise, and does not count."""
    bounds = Bounds.box(np.array([-2.0, 7.0, 10.0]), np.array([2.0, 7.0, 30.0]))
    x = np.tile([1.0, 9.0, 15.0], (4000, 1))
    config = ProductConfig(constants=constants)
    found = product_mean(key(), x, ZCDP(1e10), bounds, config=config)
    np.testing.assert_allclose(found.mean, [1.0, 7.0, 15.0], atol=1e-3)
    assert float(found.mean[1]) == 7.0 and float(found.measured["mean"].std[1]) == 0.0
    first = ledger.entries(found.ledger)[0]
    assert float(first.sensitivity) == pytest.approx(2**0.5)
    all_constant = product_mean(key(), x, ZCDP(0.5), Bounds.box(7.0, 7.0), config=config)
    assert all_constant.mean.tolist() == [7.0, 7.0, 7.0]


def test_arguments_are_checked() -> None:
    x = np.zeros((20, 2))
    for bad in ({"relation": "add_remove"}, {"constants": "paper"}, {"alpha": 0.0}, {"beta": 1.0}, {"look_share": 1.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            ProductConfig(**bad)
    for bounds in (Bounds.box(0.0, 2.0), Bounds.box(-1.0, 1.0), Bounds.box(np.zeros(2), np.array([1.0, 0.5]))):
        with pytest.raises(ValueError, match=r"Bounds\.box\(0\.0, 1\.0\)"):
            learn_product(key(), x, ZCDP(0.5), bounds)
    traced = jax.jit(lambda upper: learn_product(key(), x, ZCDP(0.5), Bounds.box(0.0, upper)))
    assert np.all(np.isfinite(traced(1.0).mean))
    wrong = traced(2.0)
    assert np.all(np.isnan(wrong.mean)) and int(wrong.status) & status.INVALID_BOUNDS
    persons = Rows.array(x, np.full(20, 0.5), 10)
    assert np.all(np.isfinite(product_mean(key(), persons, ZCDP(0.5), UNIT).mean))
    with pytest.raises(ValueError, match="constants='practical'"):
        product_mean(key(), persons, ZCDP(0.5), UNIT, config=THEORY)


def test_estimate_reads_a_file_into_memory_for_blocks(tmp_path: Any) -> None:
    """Of a file sorted by a column, blocks dealt out in turn would be as good; those of a permutation do not ask."""
    x = np.sort(rows_of(np.array([0.3, 0.02, 0.02]), 4000), axis=0)
    path = tmp_path / "sorted.csv"
    path.write_text("a,b,c\n" + "\n".join(",".join(f"{each:g}" for each in row) for row in x))
    for constants in ("practical", "theory"):
        found = estimate(path, bounds=UNIT, rho=1e6, method="product_mean", constants=constants, key=1)
        np.testing.assert_allclose(found.mean, x.mean(0), atol=1e-3 if constants == "practical" else 0.04)
        again = estimate(x, bounds=UNIT, rho=1e6, method="product_mean", constants=constants, key=1)
        np.testing.assert_allclose(found.mean, again.mean, rtol=1e-9)
