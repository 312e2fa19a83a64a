"""CoinPress at odd inputs: extreme bounds and rows, float32, traced invalid numbers, streams, wrong arguments."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    ApproxDP,
    Bounds,
    CoinPressConfig,
    PureDP,
    Rows,
    coinpress_covariance,
    coinpress_gaussian,
    coinpress_mean,
    coinpress_mean_1d,
    coinpress_variance_1d,
    load,
    status,
)
from tests.mechanisms.coinpress_cases import gaussian_rows, key

FIXED = CoinPressConfig(rounds=2, mean_rounds=2, center="zero")
PAIRS = CoinPressConfig(rounds=2, mean_rounds=2)
#: name -> (mechanism, columns, config)
ALL: dict[str, tuple[Callable[..., Any], int, CoinPressConfig]] = {
    "mean": (coinpress_mean, 3, FIXED),
    "covariance": (coinpress_covariance, 3, FIXED),
    "gaussian": (coinpress_gaussian, 3, PAIRS),
    "mean_1d": (coinpress_mean_1d, 1, FIXED),
    "variance_1d": (coinpress_variance_1d, 1, FIXED),
}
EACH = pytest.mark.parametrize("name", ALL)
BOUNDS = Bounds.spectrum(1.0, 500.0, mean_radius=30.0)


def run(name: str, x: Any = None, budget: Any = None, bounds: Any = BOUNDS, config: Any = None, i: int = 0) -> Any:
    mechanism, d, default = ALL[name]
    x = gaussian_rows()[:, :d] if x is None else x
    return mechanism(key(i), x, ZCDP(0.5) if budget is None else budget, bounds, config=config or default)


def leaves(release: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(release)]


def sound(release: Any) -> None:
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves(release))
    if release.covariance is not None:
        matrix = np.asarray(release.covariance, float)
        assert np.array_equal(matrix, matrix.T)
        values = np.linalg.eigvalsh(matrix)
        assert values[0] >= -64 * np.finfo(release.covariance.dtype).eps * max(values[-1], -values[0])


@pytest.mark.parametrize(("dtype", "t"), [(np.float32, 4), (np.float64, 1)])
def test_extreme_bounds(dtype: Any, t: int) -> None:
    """K = 1, K = 1e12, units from 1e-12 to 1e12; n < d."""
    x = gaussian_rows(50).astype(dtype)
    config = CoinPressConfig(rounds=t, mean_rounds=t)
    program = jax.jit(
        lambda lower, upper: coinpress_gaussian(
            key(), x, ZCDP(0.5), Bounds.spectrum(lower, upper, mean_radius=100.0), config=config
        )
    )
    for ends in ((1.0, 1.0), (1e-6, 1e6), (1e-24, 1e-12), (1e12, 1e18)):
        sound(program(*np.asarray(ends, dtype)))
    wide = np.random.default_rng(0).normal(size=(5, 20)).astype(dtype)
    config = CoinPressConfig(rounds=t, center="zero")
    sound(coinpress_covariance(key(), wide, ZCDP(0.5), Bounds.spectrum(0.1, 1e4), config=config))


@pytest.mark.parametrize(
    ("dtype", "constants", "t"),
    [(np.float32, "practical", 8), (np.float32, "theory", 5), (np.float32, "paper", 5), (np.float64, "practical", 5)],
)
def test_rank_deficient_rows(dtype: Any, constants: str, t: int) -> None:
    """Rows on a line, in one point, and of fewer values than columns, with and without noise to speak of."""
    line = np.outer(np.random.default_rng(0).normal(size=60), [3.0, -1.0, 2.0]).astype(dtype)
    config = CoinPressConfig(rounds=t, mean_rounds=2, constants=constants)
    program = jax.jit(lambda x, rho: coinpress_gaussian(key(), x, ZCDP(rho), BOUNDS, config=config))
    for x in (line, np.zeros_like(line), np.full_like(line, 7.0), line[:1].repeat(60, 0), np.sign(line)):
        for rho in (0.01, 1e9):
            sound(program(x, np.asarray(rho, dtype)))


@pytest.mark.parametrize("name", ["covariance", "gaussian", "mean"])
def test_a_round_is_one_pass_over_the_rows(name: str) -> None:
    """The product and the Gram matrix share it. Rows have no public bound here, so no round can do without."""
    passes = 0

    def blocks() -> Any:
        nonlocal passes
        passes += 1
        return iter([gaussian_rows()])

    mechanism, d, _ = ALL[name]
    config = CoinPressConfig(rounds=3, mean_rounds=2)
    mechanism(key(), Rows.chunked(blocks, d=d, n=400), ZCDP(0.5), BOUNDS, config=config)
    assert passes == (5 if name == "gaussian" else 3)


@pytest.mark.x64_off
def test_float32_is_accurate_to_its_digits() -> None:
    """Without noise to speak of, five rounds over a range of 1e6 leave the sample's second moment."""
    x = gaussian_rows(2000).astype(np.float32)
    config = CoinPressConfig(rounds=6, center="zero", constants="theory")
    found = coinpress_covariance(key(), x, ZCDP(1e9), Bounds.spectrum(1e-2, 1e4), config=config)
    assert found.covariance.dtype == np.float32
    exact = x.astype(float).T @ x / len(x)
    np.testing.assert_allclose(found.covariance, exact, atol=2e-3 * np.abs(exact).max())
    np.testing.assert_allclose(np.linalg.inv(found.covariance), np.linalg.inv(exact), rtol=0.05, atol=0.02)
    bounds = Bounds.spectrum(1.0, 500.0, mean_center=np.full(3, 1e4), mean_radius=50.0)
    mean = coinpress_mean(key(), x + np.float32(1e4), ZCDP(1e9), bounds, config=CoinPressConfig(rounds=3))
    np.testing.assert_allclose(mean.mean, x.mean(0) + 1e4, atol=0.02)


@EACH
def test_budget_to_infinity_is_the_sample_statistic(name: str) -> None:
    """With ample room for clipping and no noise the answer is the moment of the rows about the public centre."""
    mechanism, d, _ = ALL[name]
    x = gaussian_rows(500)[:, :d] + 3.0
    config = CoinPressConfig(rounds=1, mean_rounds=1, constants="theory", center="pairs" if d == 3 else "zero")
    if name == "covariance":
        config = CoinPressConfig(rounds=1, constants="theory", center="zero")
    bounds = Bounds.spectrum(1e-9 if d == 1 else 1.0, 2000.0, mean_center=np.full(d, 3.0), mean_radius=30.0)
    found = mechanism(key(), x, ZCDP(1e14), bounds, config=config)
    if found.mean is not None:
        np.testing.assert_allclose(found.mean, x.mean(0), atol=1e-5)
    if found.covariance is not None and name != "gaussian":
        np.testing.assert_allclose(found.covariance, (x - 3.0).T @ (x - 3.0) / 500, atol=1e-3)


@EACH
def test_the_rows_are_untouched_and_a_second_call_is_the_same(name: str) -> None:
    x = gaussian_rows()[:, : ALL[name][1]].copy()
    x[3], x[5] = np.nan, 1e9
    before = x.copy()
    first = run(name, x)
    np.testing.assert_array_equal(x, before)
    for a, b in zip(leaves(first), leaves(run(name, x))):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(leaves(run(name, x, i=1).measured), leaves(first.measured)):
        assert not np.array_equal(a, b) or np.all(a > 0)  # another key, other values; the stds stay
    with_public = x.copy()
    with_public[3] = 0.0
    for a, b in zip(leaves(first), leaves(run(name, with_public))):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)  # a row that is not finite is the public centre


@pytest.mark.parametrize("name", ["covariance", "mean_1d", "variance_1d"])
def test_invalid_traced_bounds_fail_closed(name: str) -> None:
    mechanism, d, config = ALL[name]
    x = gaussian_rows(40)[:, :d]

    @jax.jit
    def release(lower: Any, upper: Any) -> Any:
        bounds = Bounds.spectrum(lower, upper, mean_radius=upper)
        return mechanism(key(), x, ZCDP(0.5), bounds, config=config)

    sound(release(1.0, 2.0))
    for lower, upper in ((2.0, 1.0), (-1.0, 1.0), (0.0, 1.0), (np.nan, 1.0), (1.0, np.nan), (1.0, np.inf)):
        made = release(lower, upper)
        assert int(made.status) & status.INVALID_BOUNDS
        values = leaves((made.covariance, made.mean, [each.value for each in made.measured.values()]))
        assert all(np.all(np.isnan(leaf)) for leaf in values)


def test_gradients_of_a_variance_and_of_a_matrix_bound() -> None:
    """What the contract does not try: a variance away from its public ends, and A0 as a matrix, ties included."""
    x = gaussian_rows(400)
    x[0], x[1], x[2] = np.nan, 0.0, 1e300
    cases_ = (
        (coinpress_variance_1d, x[:, :1], Bounds.spectrum(1e-3, 500.0)),
        (coinpress_covariance, x, Bounds.spectrum(np.eye(3), 500.0)),
    )
    for mechanism, rows, bounds in cases_:

        def value(at: Any, mechanism: Any = mechanism) -> Any:
            rho, about, x, beta = at
            config = CoinPressConfig(rounds=2, constants="theory", center="zero", beta=beta)
            return jnp.sum(mechanism(key(), x, ZCDP(rho), about, config=config).covariance)

        slope = jax.jit(jax.grad(value))(jax.tree.map(jnp.asarray, (50.0, bounds, rows, 0.05)))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves(slope))
        assert np.any(slope[2] != 0) and float(slope[0]) != 0


@pytest.mark.parametrize("name", ["mean", "gaussian"])
def test_print_save_and_load(name: str, tmp_path: Any) -> None:
    made = run(name)
    assert f"coinpress_{name}" in str(made) and "round 2 of 2" in str(made)
    made.save(tmp_path / "release.npz")
    for a, b in zip(leaves(made), leaves(load(tmp_path / "release.npz"))):
        np.testing.assert_array_equal(a, b)
    assert made.to_dict()["status"] == status.describe(made.status)
    if made.covariance is None:
        assert made.to_dict()["covariance"] is None and made.d == ALL[name][1]
        for ask in (lambda: made.std, lambda: made.correlation, made.to_pandas):
            with pytest.raises(ValueError, match="a mean and no covariance"):
                ask()


def test_budgets() -> None:
    x = gaussian_rows()
    for name in ("mean", "covariance", "gaussian"):
        with pytest.raises(TypeError, match="no pure-DP budget buys"):
            run(name, budget=PureDP(1.0))
        made = run(name, budget=ApproxDP(1.0, 1e-6))
        assert float(made.spent.rho) == pytest.approx(0.024356, rel=1e-4)
    for name in ("mean_1d", "variance_1d"):
        for budget in (PureDP(1.0), ZCDP(0.5), ApproxDP(1.0, 1e-6)):
            sound(run(name, x[:, :1], budget))


def test_wrong_arguments_raise_and_say_what_to_do() -> None:
    x = gaussian_rows()
    for name in ("mean", "gaussian", "mean_1d"):
        with pytest.raises(ValueError, match="needs mean_radius"):
            run(name, bounds=Bounds.spectrum(1.0, 2.0))
    for name in ("mean_1d", "variance_1d"):
        with pytest.raises(ValueError, match="one column, got 3"):
            run(name, x)
    with pytest.raises(ValueError, match="relation must be 'replace'"):
        CoinPressConfig(relation="add_remove")
    with pytest.raises(ValueError, match="center='pairs'"):
        run("gaussian", config=FIXED)
    for matrix in (-np.eye(3), np.triu(np.ones((3, 3))), np.ones((3, 3))):
        with pytest.raises(ValueError, match="symmetric positive definite"):
            run("covariance", bounds=Bounds.spectrum(matrix, 2.0))
    with pytest.raises(ValueError, match="at least 1 where lower is a matrix"):
        run("covariance", bounds=Bounds.spectrum(np.eye(3), 0.5))
    with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
        run("covariance", bounds=Bounds.spectrum(np.eye(2), 2.0))
    with pytest.raises(TypeError, match="needs Bounds.spectrum"):
        run("covariance", bounds=Bounds.l2(1.0))
    with pytest.raises(TypeError, match="config=CoinPressConfig"):
        run("covariance", config={"rounds": 2})
    with pytest.raises(ValueError, match='constants="paper" needs d >= 2'):
        coinpress_covariance(key(), x[:, :1], ZCDP(1.0), BOUNDS, config=CoinPressConfig(constants="paper"))
    for wrong in ({"rounds": 0}, {"rounds": 2.0}, {"rounds": True}, {"rounds": 33}, {"mean_rounds": -1}):
        with pytest.raises(ValueError, match="whole number from 1 to 32"):
            CoinPressConfig(**wrong)
    for field in ("constants", "noise", "psd", "center"):
        with pytest.raises(ValueError, match=f"{field} must be one of"):
            CoinPressConfig(**{field: "other"})
    for split in ((0.5, 0.6), (), 0.5, (1.5, -0.5)):
        with pytest.raises(ValueError, match="split"):
            CoinPressConfig(split=split)
    with pytest.raises(ValueError, match="each of the 3 rounds, got 2"):
        CoinPressConfig(rounds=3, split=(0.5, 0.5))
    for beta in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="beta"):
            CoinPressConfig(beta=beta)
