"""Private intervals: against a slow histogram, where they must hold all rows, and where nothing can be found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, ApproxDP, Bounds, PureDP, RangeConfig, Rows, estimate, private_range, status
from jaxdpcov.mechanisms import _range
from jaxdpcov.privacy import ledger

STD = np.array([20.0, 4.0])
BOX = Bounds.box([0.0, 0.0], [2000.0, 300.0])
CONFIG = RangeConfig(std=STD)


def rows(n: int = 1500, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 2)) * [10.0, 4.0] + [170.0, 91.0]


def heaviest(x: np.ndarray, center: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Slowly: the centre of the bin of width std about center + k std that holds the most rows."""
    found = []
    for values, c, s in zip(x.T, center, std):
        bins = [round((v - c) / s) for v in values]
        best = max(sorted(set(bins)), key=bins.count)
        found.append(c + s * best)
    return np.array(found)


@pytest.mark.parametrize("budget", [ZCDP(1e9), PureDP(1e9), ApproxDP(1e9, 1e-6)])
def test_without_noise_it_is_the_heaviest_bin(budget: object) -> None:
    x = rows()
    center = np.array([1000.0, 150.0])
    release = private_range(jax.random.key(0), x, budget, BOX, config=CONFIG)
    np.testing.assert_allclose(release.mean, heaviest(x, center, STD), rtol=1e-12)
    reach = STD * (1.5 + scipy.stats.norm.isf(0.5 * (0.05 / 3) / (1500 * 2)))
    np.testing.assert_allclose(release.extra["lower"], np.maximum(release.mean - reach, 0.0), rtol=1e-9)
    np.testing.assert_allclose(release.extra["upper"], release.mean + reach, rtol=1e-9)
    assert int(release.status) == 0
    spectrum = Bounds.spectrum(np.diag(STD**2), 1.0, mean_center=center, mean_radius=3000.0)
    same = private_range(jax.random.key(0), x, budget, spectrum)
    np.testing.assert_allclose(same.mean, release.mean, rtol=1e-12)
    assert same.extra["lower"][0] < 0.0 or release.extra["lower"][0] > 0.0  # no public end cuts it


def test_a_search_in_stages_ends_in_the_same_bin(monkeypatch: pytest.MonkeyPatch) -> None:
    x = rows()
    whole = private_range(jax.random.key(0), x, ZCDP(1e9), BOX, config=CONFIG)
    monkeypatch.setattr(_range, "MOST", 8)
    monkeypatch.setattr(_range, "RATIO", 4)
    staged = private_range(jax.random.key(0), x, ZCDP(1e9), BOX, config=CONFIG)
    assert staged.config.bins == (4, 7, 7)
    assert np.all(np.abs(staged.mean - x.mean(0)) <= 1.5 * STD)
    assert np.all(np.abs(staged.mean - whole.mean) <= STD)
    assert len(ledger.entries(staged.ledger)) == 3


def test_intervals_hold_every_row() -> None:
    """beta = 0.05 for the interval to miss a row of 1,000 or the histogram its bin: more than 20 of 200 has
    probability 1e-3 at most; the seeds are fixed."""
    n, lanes = 1000, 200
    x = jax.random.normal(jax.random.key(3), (lanes, n, 1)) * 2.0 + jax.random.uniform(
        jax.random.key(4), (lanes, 1, 1), minval=-90.0, maxval=90.0
    )
    bounds = Bounds.spectrum(4.0, 4.0, mean_radius=100.0)
    run = jax.jit(jax.vmap(lambda key, x: private_range(key, x, ZCDP(0.02), bounds).extra))
    found = run(jax.random.split(jax.random.key(5), lanes), x)
    missed = jnp.any((x < found["lower"][:, None]) | (x > found["upper"][:, None]), axis=(1, 2))
    assert int(jnp.sum(missed)) <= 20
    assert float(jnp.max(found["upper"] - found["lower"])) < 2 * 2.0 * 7.0


def test_columns_that_stay_cost_nothing() -> None:
    x = rows()
    one = RangeConfig(std=np.array([np.inf, 4.0]))
    release = private_range(jax.random.key(0), x, ZCDP(0.1), BOX, config=one)
    assert (release.extra["lower"][0], release.extra["upper"][0]) == (0.0, 2000.0)
    assert release.extra["upper"][1] < 200.0
    (entry,) = ledger.entries(release.ledger)
    assert float(entry.sensitivity) == pytest.approx(2**0.5)
    (both,) = ledger.entries(private_range(jax.random.key(0), x, ZCDP(0.1), BOX, config=CONFIG).ledger)
    assert float(both.sensitivity) == pytest.approx(2.0)
    (pure,) = ledger.entries(private_range(jax.random.key(0), x, PureDP(0.1), BOX, config=CONFIG).ledger)
    assert float(pure.sensitivity) == pytest.approx(4.0)


@pytest.mark.parametrize("budget", [ZCDP(0.01), PureDP(0.1), ApproxDP(0.1, 1e-9)])
@pytest.mark.parametrize(
    "x", [np.full((1, 2), 50.0), np.full((3, 2), np.nan), np.zeros((6, 2)), np.full((6, 2), 1e300)]
)
def test_too_few_rows_show_in_the_status(budget: object, x: np.ndarray) -> None:
    release = private_range(jax.random.key(0), x, budget, BOX, config=CONFIG)
    assert int(release.status) & status.TOO_FEW_ROWS
    for end in (release.mean, release.extra["lower"], release.extra["upper"]):
        assert np.all(np.isfinite(end)) and np.all(end >= 0.0) and np.all(end <= 2000.0)
    if isinstance(budget, ApproxDP):
        np.testing.assert_array_equal(release.extra["upper"], [2000.0, 300.0])


def test_no_prior_range_of_the_mean() -> None:
    x, bounds = rows() + 1e12, Bounds.spectrum(1.0, 400.0)
    release = private_range(jax.random.key(0), x, ApproxDP(1.0, 1e-6), bounds)
    assert np.all(np.abs(release.mean - x.mean(0)) <= 30.0)
    assert "delta" in str(release) and isinstance(release.spent, ApproxDP)
    few = private_range(jax.random.key(0), x[:4], ApproxDP(1.0, 1e-6), bounds)
    assert np.all(np.isinf(few.extra["upper"])) and np.all(np.isfinite(few.mean))
    with pytest.raises(ValueError, match="mean_radius"):
        private_range(jax.random.key(0), x, ZCDP(1.0), bounds)


def test_arguments() -> None:
    x = rows(5)
    with pytest.raises(ValueError, match="needs std= with Bounds.box"):
        private_range(jax.random.key(0), x, ZCDP(1.0), BOX)
    with pytest.raises(ValueError, match="goes with Bounds.box"):
        private_range(jax.random.key(0), x, ZCDP(1.0), Bounds.spectrum(1.0, 2.0, mean_radius=3.0), config=CONFIG)
    with pytest.raises(ValueError, match="each of the 2 columns"):
        private_range(jax.random.key(0), x, ZCDP(1.0), BOX, config=RangeConfig(std=np.ones(3)))
    for wrong in ({"std": 0.0}, {"std": np.nan}, {"beta": 0.0}, {"relation": "add_remove"}, {"bins": (0,)}):
        with pytest.raises(ValueError):
            RangeConfig(**{"std": 1.0, **wrong})
    with pytest.raises(ValueError, match="too wide to search"):
        private_range(jax.random.key(0), x, ZCDP(1.0), BOX, config=RangeConfig(std=1e-300))
    with pytest.raises(TypeError, match="upper, which is traced"):
        jax.jit(lambda u: private_range(jax.random.key(0), x, ZCDP(1.0), Bounds.box(0.0, u), config=CONFIG).mean)(9.0)
    with pytest.raises(TypeError, match="in memory"):
        stream = Rows.chunked(lambda: iter([x]), d=2)
        private_range(jax.random.key(0), stream, ApproxDP(1.0, 1e-6), BOX, config=CONFIG)


def test_a_traced_invalid_budget_gives_nothing() -> None:
    x = rows(50)
    for make in (ZCDP, PureDP):
        release = jax.jit(lambda b, make=make: private_range(jax.random.key(0), x, make(b), BOX, config=CONFIG))(-1.0)
        assert np.all(np.isnan(release.mean)) and np.all(np.isnan(release.extra["lower"]))
        assert int(release.status) & status.INVALID_BUDGET
    release = jax.jit(lambda d: private_range(jax.random.key(0), x, ApproxDP(1.0, d), BOX, config=CONFIG))(0.0)
    assert np.all(np.isnan(release.mean)) and int(release.status) & status.INVALID_BUDGET


WIDE = {"x0": (0, 100_000), "x1": (60, 120)}


@pytest.mark.parametrize(
    "budget", [{"rho": 0.5}, {"epsilon": 2.0, "delta": 1e-6}, {"epsilon": 4.0, "method": "laplace"}]
)
def test_private_bounds_of_estimate(budget: dict) -> None:
    """Bounds that are three hundred times too wide would leave nothing but noise."""
    x = rows(4000)
    release = estimate(x, bounds=WIDE, private_bounds={"x0": 20.0}, private_bounds_share=0.2, key=1, **budget)
    np.testing.assert_allclose(release.std, [10.0, 4.0], rtol=0.5)
    assert release.bounds.upper[0] < 400.0 and release.bounds.upper[1] == 120.0
    unit = "epsilon" if "laplace" in budget.values() else "rho"
    total = float(ledger.total(release.ledger, unit))
    assert total == pytest.approx(getattr(release.spent, unit), rel=1e-12)
    if "delta" not in budget:
        assert total <= budget[unit] and total == pytest.approx(budget[unit], rel=1e-9)
    share = sum(float(e.cost) for e in ledger.entries(release.ledger) if e.what.startswith("histograms"))
    assert share == pytest.approx(0.2 * total, rel=1e-6)
    again = estimate(x, bounds=WIDE, private_bounds={"x0": 21.0}, private_bounds_share=0.2, key=1, **budget)
    assert not np.any(again.covariance == release.covariance)


def test_private_bounds_are_checked() -> None:
    x = rows(50)
    for wrong, match in (
        ({"private_bounds": {"x7": 1.0}}, "none of the columns"),
        ({"private_bounds": {"x0": -1.0}}, "'x0' must be a positive finite number"),
        ({"private_bounds": {"x0": "wide"}}, "'x0' must be a positive finite number"),
        ({"private_bounds": {"x0": np.inf}}, "'x0' must be a positive finite number"),
        ({"private_bounds": {"x0": 1.0}, "relation": "add_remove"}, "replace"),
        ({"private_bounds": {"x0": 1.0}, "bounds": Bounds.l2(1.0)}, "narrows public bounds"),
        ({"private_bounds": {"x0": 1.0}, "private_bounds_share": 1.0}, "private_bounds_share"),
    ):
        with pytest.raises(ValueError, match=match):
            estimate(x, **{"bounds": WIDE, "rho": 1.0, "key": 1, **wrong})
    for none in ({}, 5, ["x0"]):
        with pytest.raises(TypeError, match="private_bounds must be a mapping"):
            estimate(x, bounds=WIDE, rho=1.0, key=1, private_bounds=none)


def test_missing_cells_take_the_centre_that_was_found() -> None:
    """The wide bounds' centre would be clipped onto an end of the interval: std 14 instead of 5, one cell in twenty."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 1)) * 5.0 + 100.0
    x[rng.random(4000) < 0.05] = np.nan
    public = {"rho": 1.0, "private_bounds": {"x0": 10.0}, "missing": "cell", "key": jax.random.key(2)}
    release = estimate(x, bounds={"x0": (0, 10_000)}, **public)
    assert 4.0 < float(release.std[0]) < 6.0
    assert "lower" in str(release) and float(release.extra["lower"][0]) == float(release.bounds.lower[0])
    # Other wide bounds, one interval: the key must not draw the same.
    other = estimate(x, bounds={"x0": (-10_000, 10_000 + 100 * 2)}, **public)
    np.testing.assert_allclose(other.bounds.lower, release.bounds.lower, rtol=1e-9)
    step = np.asarray(other.measured["mean"].value) - np.asarray(release.measured["mean"].value)
    assert np.all(np.abs(step) > 1e-6)
