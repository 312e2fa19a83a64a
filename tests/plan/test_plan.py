"""`plan`: closed forms against simulation, ranking, inverse search, reasons, and what is refused."""

import json
import math
from typing import Any

import jax
import numpy as np
import pytest

import jaxdpcov
from jaxdpcov import ZCDP, ApproxDP, Bounds, PureDP, gaussian, plan, sim
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.mechanisms._registry import MECHANISMS
from jaxdpcov.plan import closed, reference, simulate

BOX, BALL, D = Bounds.box(-1.0, 1.0), Bounds.l2(2.0), 3
#: Few mechanisms with short programs; one population whose rows the bounds hold.
TWO = ["gaussian", "diagonal"]
INSIDE = sim.make("ar1", D, correlation=0.5, scale=0.1, mean=[0.2, 0.0, -0.3])


RHO = ZCDP(0.1)


def planned(n: int = 500, budget: Any = RHO, bounds: Any = BOX, **given: Any) -> jaxdpcov.Plan:
    return plan(n, D, bounds, budget, **({"assumed": INSIDE, "methods": TWO} | given))


@pytest.mark.parametrize(
    ("name", "budget", "bounds"),
    [
        ("gaussian", ZCDP(0.02), Bounds.box([-1.0, -2.0, -4.0], [1.0, 2.0, 4.0])),
        ("gaussian", ZCDP(0.02), BALL),
        ("laplace", PureDP(0.5), BALL),
        ("laplace", PureDP(0.5), Bounds.box([-1.0, -2.0, -4.0], [1.0, 2.0, 4.0])),
        ("diagonal", ZCDP(0.02), Bounds.box([-1.0, -2.0, 1.0], [1.0, 2.0, 1.0])),
        ("diagonal", PureDP(0.5), BALL),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_closed_forms(name: str, budget: Any, bounds: Any) -> None:
    """Mean squares of 3,000 releases without a PSD step, in every metric: 5 standard errors, a few per cent."""
    mechanism, n = MECHANISMS[name], 40
    config = mechanism.config(psd="none")
    boxed = isinstance(bounds, BoxBounds)
    constant = boxed and bounds.lower[2] == bounds.upper[2]
    # Far off the centre, so that the noise of the mean counts.
    mean = np.array([0.9, -1.8, 1.0 if constant else 3.6]) if boxed else np.array([1.2, -1.2, 0.9])
    population = sim.normal(1e-8 * np.diag([1.0, 1.0, 0.0 if constant else 1.0]), mean)
    rows = np.broadcast_to(mean, (n, D))

    @jax.jit
    def made(keys: jax.Array) -> Any:
        def one(key: jax.Array) -> Any:
            release = mechanism.function(key, rows, budget, bounds, config=config)
            return release.covariance, release.mean

        return jax.lax.map(one, keys, batch_size=100)

    covariances, means = map(np.asarray, made(jax.random.split(jax.random.key(1), 3000)))
    scale = simulate.units(bounds, D)
    for metric in ("frobenius", "scaled", "relative", "mean"):
        found = closed.noise(mechanism, n, D, budget, bounds, config, population, metric)
        by_hand = {
            "frobenius": np.sum(np.square(covariances), axis=(1, 2)),
            "scaled": np.sum(np.square(covariances / np.outer(scale, scale)), axis=(1, 2)),
            "relative": np.sum(np.square(covariances), axis=(1, 2)) / np.sum(population.covariance**2),
            "mean": np.sum(np.square(means - mean), axis=1),
        }[metric]
        assert found is not None
        assert abs(by_hand.mean() - found**2) < 5 * by_hand.std() / math.sqrt(3000), metric
    assert closed.noise(mechanism, n, D, budget, bounds, config, population, "spectral") is None


def test_the_plan_ranks_and_says_what_it_did() -> None:
    found = planned(20_000)
    assert found.best == "gaussian" and [each.method for each in found.forecasts] == ["gaussian", "diagonal"]
    assert found["gaussian"].how == "simulation" and found["gaussian"].failures == 0
    # Nothing is cut and no eigenvalue is near 0: the closed form, within 5 bands.
    noise = found["gaussian"].noise
    assert noise is not None and abs(found["gaussian"].error - noise) < 5 * found["gaussian"].band
    exact = math.sqrt((np.trace(INSIDE.covariance) ** 2 + np.sum(INSIDE.covariance**2)) / 20_000)
    assert 0.7 * exact < found.sampling < 1.3 * exact
    assert found.rows == simulate.ROWS and found.unit == "rho"
    assert "population of law 'normal'" in str(found) and "no data were looked at" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["best"] == "gaussian"
    again = planned(20_000, seed=1)
    assert again["gaussian"].error != found["gaussian"].error == planned(20_000)["gaussian"].error
    with pytest.raises(KeyError, match="laplace"):
        found["laplace"]


def test_fewer_rows_stand_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same forecast at 3,000 rows, drawn all or 500 of them, within 5 joint bands."""
    all_rows = planned(3000)
    monkeypatch.setattr(simulate, "ROWS", 500)
    few = planned(3000)
    assert (all_rows.rows, few.rows) == (3000, 500)
    for name in TWO:
        gap, band = abs(few[name].error - all_rows[name].error), math.hypot(few[name].band, all_rows[name].band)
        assert gap < 5 * band + 0.05 * all_rows[name].error
    assert abs(few.sampling / all_rows.sampling - 1) < 0.3


def test_a_target() -> None:
    found = planned(methods=["gaussian"], target=0.01)["gaussian"]
    assert found.budget is not None and found.n is not None and found.limit is None
    assert planned(budget=ZCDP(found.budget), methods=["gaussian"])["gaussian"].error <= 0.01 * (1 + 1e-9)
    assert planned(budget=ZCDP(found.budget / 1.25), methods=["gaussian"])["gaussian"].error > 0.01 * 0.95
    np.testing.assert_allclose(found.n, 500 * math.sqrt(found.budget / 0.1), rtol=1e-2)
    more = planned(found.n, methods=["gaussian"])["gaussian"]
    assert 0.8 * 0.01 < more.error < 1.2 * 0.01
    # Each budget has noise of its own: 64 repetitions leave a band of 7% about an error, 16 one of 14%.
    laplace: dict[str, Any] = {"methods": ["laplace"], "repetitions": 64}
    pure = planned(budget=PureDP(1.0), target=0.05, **laplace)
    assert pure.unit == "epsilon" and "epsilon for target" in str(pure)
    wanted = pure["laplace"].budget
    assert wanted is not None and 0.8 < planned(budget=PureDP(wanted), **laplace)["laplace"].error / 0.05 <= 1


def test_targets_out_of_reach() -> None:
    """No budget brings the entries back that `diagonal` leaves out; a large target needs less than was tried."""
    found = planned(target=1e-5, methods=["diagonal"])
    each = found["diagonal"]
    assert each.budget is None and each.n is None and each.limit is not None
    assert "1e+07-zCDP" in each.limit and "n = 5000000 " in each.limit and each.limit in str(found)
    easy = planned(target=1e6, methods=["diagonal"])["diagonal"]
    assert easy.budget is not None and easy.limit is not None and "less than" in easy.limit


def test_reasons() -> None:
    excluded = planned(methods=["laplace", "coinpress_mean", "product_mean", "clipped_separate", "pace"], bounds=BALL)
    assert excluded.best is None and "no mechanism has a forecast" in str(excluded)
    assert excluded.excluded == {
        "laplace": "is pure DP: needs PureDP(epsilon)",
        "coinpress_mean": "needs Bounds.spectrum(...)",
        "product_mean": "needs Bounds.box(lower, upper)",
        "clipped_separate": "radius must be given, as in ClippedSeparateConfig(radius=0.5)",
        "pace": "needs Bounds.box(lower, upper)",
    }
    pure = planned(budget=PureDP(1.0), methods=["gaussian"]).excluded["gaussian"]
    assert "no pure-DP budget buys" in pure
    no_covariance = planned(methods=["product_mean"]).excluded["product_mean"]
    assert no_covariance == "releases no covariance; metric='mean' compares means"
    assert "Bounds.box(0.0, 1.0)" in planned(methods=["learn_product"], metric="mean").excluded["learn_product"]
    spectrum = Bounds.spectrum(1.0, 2.0)
    assert "relation" in planned(bounds=spectrum, methods=["ppc"], relation="add_remove").excluded["ppc"]


def test_every_mechanism_has_a_forecast_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the whole registry, whatever the bounds; what is slow is not simulated unasked."""
    monkeypatch.setattr(simulate, "seconds", lambda *_: math.inf)
    for bounds in (BOX, BALL, Bounds.spectrum(0.1, 10.0, mean_radius=3.0)):
        for budget in (ZCDP(1.0), PureDP(1.0), ApproxDP(1.0, 1e-6)):
            found = plan(100, D, bounds, budget)
            assert {each.method for each in found.forecasts} | set(found.excluded) == set(MECHANISMS)
            assert all(each.how == "closed form" for each in found.forecasts)
            assert found.assumed.startswith("reference for a ")
    assert "takes minutes: name it in methods" in found.excluded["pgce"]


def test_many_columns_are_not_simulated_unasked() -> None:
    d, n = 600, 10_000
    found = plan(n, d, BOX, ZCDP(1.0), target=10.0)
    assert {each.how for each in found.forecasts} == {"closed form"} and math.isnan(found.sampling)
    assert "adaptive" in found.excluded
    # By hand: W of std d/sqrt(2 rho)/n off the diagonal, at the whole budget, of which the mean takes some.
    alone = d / math.sqrt(2.0) * math.sqrt(d * (d - 1) + d * 2 / (d + 1)) / n
    assert alone < found["gaussian"].error < 1.2 * alone
    budget = found["gaussian"].budget
    assert budget is not None and abs(budget / (found["gaussian"].error / 10.0) ** 2 - 1) < 0.05


def test_assumptions() -> None:
    rows = np.random.default_rng(0).normal(0.0, 0.1, (200, D))
    by_rows = planned(assumed=sim.from_rows(rows, public=True))
    assert by_rows.assumed == "public rows"
    release = gaussian(jax.random.key(0), rows, ZCDP(10.0), BOX)
    assert "release by gaussian" in planned(assumed=release).assumed
    for raw in (rows, rows.tolist(), "rows.csv", jax.numpy.asarray(rows)):
        with pytest.raises(TypeError, match=r"from_rows\(rows, public=True\)"):
            planned(assumed=raw)
    with pytest.raises(ValueError, match="has 4 columns, not d = 3"):
        planned(assumed=sim.make("identity", 4))


def test_references_fit_their_bounds() -> None:
    for bounds in (
        Bounds.box([0.0, 5.0, 1.0], [1.0, 9.0, 1.0]),
        Bounds.l2(3.0, [1.0, 2.0, 3.0]),
        Bounds.spectrum(0.5, 8.0, mean_center=[1.0, 1.0, 1.0], mean_radius=2.0),
        Bounds.spectrum(np.diag([1.0, 2.0, 3.0]), 4.0),
    ):
        found, what = reference(D, bounds)
        values = np.linalg.eigvalsh(found.covariance)
        assert what.startswith("reference for a ") and found.d == D
        if isinstance(bounds, BoxBounds):
            np.testing.assert_allclose(found.mean, [0.5, 7.0, 1.0])
            np.testing.assert_allclose(np.diagonal(found.covariance), [0.125**2, 0.5**2, 0.0], atol=1e-15)
        elif isinstance(bounds, L2Bounds):
            np.testing.assert_allclose([np.trace(found.covariance), *found.mean], [2.25, 1.0, 2.0, 3.0])
        elif np.ndim(bounds.lower) == 0:
            np.testing.assert_allclose(values[[0, -1]], [0.5, 8.0])
            np.testing.assert_allclose(np.linalg.norm(found.mean - 1.0), 1.0)
        else:
            relative = np.linalg.eigvals(np.linalg.solve(np.asarray(bounds.lower), found.covariance)).real
            np.testing.assert_allclose(np.sort(relative), [1.0, 2.0, 4.0])


def test_one_row_and_one_column() -> None:
    found = plan(1, 1, BOX, ZCDP(1.0), methods=["gaussian"])
    assert math.isfinite(found["gaussian"].error)
    assert plan(1, 1, Bounds.l2(1.0), PureDP(1.0), methods=["laplace"]).best == "laplace"


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "n = 0": ({"n": 0}, ValueError, "n must be a whole number, at least 1, got 0"),
    "n": ({"n": 1.5}, ValueError, "n must be a whole number"),
    "n beyond floats": ({"n": 10**400}, ValueError, "n must be at most 10000"),
    "n is nan": ({"n": float("nan")}, ValueError, "n must be a whole number"),
    "bounds": ({"bounds": (0, 1)}, TypeError, "bounds must be Bounds.box"),
    "bounds of another d": ({"bounds": Bounds.box([0.0, 0.0], 1.0)}, ValueError, "each of the d = 3 columns"),
    "a constant": ({"bounds": Bounds.box(1.0, 1.0)}, ValueError, "nothing to plan"),
    "a center of another d": ({"bounds": Bounds.l2(1.0, [0.0] * 4)}, ValueError, "each of the d = 3 columns"),
    "budget": ({"budget": 0.5}, TypeError, "budget must be ZCDP"),
    "budgets": ({"budget": ZCDP(np.ones(2))}, ValueError, "one budget"),
    "target": ({"target": float("nan")}, ValueError, "target must be finite and > 0"),
    "no target": ({"target": 0.0}, ValueError, "target must be finite and > 0"),
    "method": ({"methods": ["gausian"]}, ValueError, "did you mean 'gaussian'"),
    "methods as text": ({"methods": "gaussian"}, TypeError, "a list of names"),
    "no method": ({"methods": []}, ValueError, "at least one"),
    "metric": ({"metric": "l2"}, ValueError, "metric must be one of"),
    "relation": ({"relation": "swap"}, ValueError, "relation must be one of"),
    "repetitions": ({"repetitions": 1}, ValueError, "repetitions must be"),
    "seed": ({"seed": -1}, ValueError, "seed must be"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refusals(case: str) -> None:
    given, kind, message = WRONG[case]
    with pytest.raises(kind, match=message) as caught:
        planned(**given)
    assert "\n" not in str(caught.value)


def test_the_setting_of_jax_stays() -> None:
    with jax.enable_x64(False):
        assert planned()["gaussian"].error == planned()["gaussian"].error
        assert jax.numpy.ones(1).dtype == np.float32
