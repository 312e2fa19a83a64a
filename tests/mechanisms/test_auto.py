"""`auto`: the private test that decides, both branches from both loops, and its ledger."""

import functools
import importlib
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, AutoConfig, Bounds, Rows, SSPSelectConfig, auto, ssp_select, status
from jaxdpcov.data import clip
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms.pace import common
from jaxdpcov.privacy import ledger
from tests import contract_cases as cases

D, N = 12, 400  # fewer columns than `auto` would test, were it not told to below: small programs
BOX = Bounds.box(-1.0, 1.0)

#: (seed, correlated columns, rho): most cells where one branch is sure, one in doubt.
LANES = [
    (0, 0, 0.05), (1, 12, 0.5), (2, 2, 0.02), (3, 12, 1e-3), (4, 2, 20.0), (5, 12, 1e6), (6, 5, 0.02), (7, 0, 0.03)
]  # fmt: skip


module = importlib.import_module("jaxdpcov.mechanisms.auto")


@pytest.fixture(scope="module", autouse=True)
def _few(fresh_programs: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", 2)
        yield


def rows(seed: int, together: int, d: int = D) -> np.ndarray:
    """Near the corners of the box, as 0/1 columns are; the first so many share a factor; a mean off the centre."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, d))
    x[:, :together] = math.sqrt(0.2) * x[:, :together] + math.sqrt(0.8) * rng.normal(size=(N, 1))
    return np.sign(x + 0.3) * rng.uniform(0.9, 1.02, size=(N, d))


def clipped(x: np.ndarray, release: Any) -> np.ndarray:
    """Rows in the box, in half-widths of it, clipped at the radius of a release."""
    z, radius = np.clip(x, -1.0, 1.0), float(release.extra["radius"])
    return z * np.minimum(1.0, radius / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300))


@functools.cache
def traced() -> Any:
    run = jax.jit(jax.vmap(lambda key, x, rho: auto(key, x, ZCDP(rho), BOX)))
    keys = jax.vmap(jax.random.key)(jnp.arange(len(LANES)))
    return run(keys, jnp.stack([rows(*lane[:2]) for lane in LANES]), jnp.asarray([rho for *_, rho in LANES]))


@functools.cache
def followed() -> list[Any]:
    return [auto(jax.random.key(i), rows(seed, k), ZCDP(rho), BOX) for i, (seed, k, rho) in enumerate(LANES)]


def test_both_loops_and_both_branches_give_one_answer() -> None:
    lanes = traced()
    dense = [bool(release.diagnostics["all_entries"]) for release in followed()]
    assert any(dense) and not all(dense)
    for i, release in enumerate(followed()):
        lane = cases.lane(lanes, i)
        assert bool(lane.diagnostics["all_entries"]) == dense[i]
        assert cases.paths(lane).keys() == cases.paths(release).keys()
        np.testing.assert_array_equal(lane.extra["measured_in_round"], release.extra["measured_in_round"])
        covariance = np.asarray(release.covariance)
        # The reconstructions of all entries stop at a relative gap of 1e-14, and a gap is the square of an error.
        close = 1e-7 if dense[i] else 1e-9
        np.testing.assert_allclose(lane.covariance, covariance, rtol=close, atol=close * covariance.max())
        for node, other in zip(jax.tree.leaves(lane.ledger), jax.tree.leaves(release.ledger)):
            np.testing.assert_allclose(node, other, rtol=1e-10)
        assert int(lane.status) == int(release.status) == status.OK


def test_costs_add_up_to_the_budget_in_either_branch() -> None:
    budgets = np.array([rho for *_, rho in LANES])
    lanes = traced()
    for spent in (np.asarray(lanes.spent.rho), np.asarray(ledger.total(lanes.ledger, "rho"))):
        assert np.all(spent <= budgets) and np.all(spent >= budgets * (1 - 1e-12))
    for rho, release in zip(budgets, followed()):
        exact = sum(float(entry.cost) for entry in ledger.entries(release.ledger))
        assert rho * (1 - 1e-12) <= exact <= rho * (1 + 1e-15) and float(release.spent.rho) <= rho
        names = [entry.what for entry in ledger.entries(release.ledger)]
        assert names[:5] == [
            "sum of |u|^2", "radius", "sum of w",
            "norm of the off-diagonal of sum of w w^T", "top eigenvalue of the off-diagonal of sum of w w^T",
        ]  # fmt: skip
        dense = bool(release.diagnostics["all_entries"])
        assert (names[5:] == ["sum of w w^T"]) == dense and ("diagonal of sum of z z^T" in names) != dense


def test_the_decision_is_what_two_noisy_numbers_say() -> None:
    """And what the other branch would have released is absent: zeros, and rounds that did not take place."""
    for (_, _, rho), release in zip(LANES, followed()):
        cost = 0.85 * rho * (1 - float(release.diagnostics["mean_share"]))
        norm, top = (release.measured[f"off_diagonal_{name}"] for name in ("norm", "top"))
        square = float(release.extra["radius"]) ** 2
        for each, moved in ((norm, square), (top, math.sqrt(2) * square)):
            assert float(each.std) == pytest.approx(moved / math.sqrt(2 * 0.03 * cost) / N, rel=1e-9)
        level = square / math.sqrt(2 * 0.94 * cost) / N
        dense = norm.value > module._NORM * level * math.sqrt(
            D * (D - 1) / 2
        ) or top.value > module._TOP * level * math.sqrt(D)
        dense = dense or square <= 2 * math.sqrt(D)  # d entries of sensitivity 2, or all at sqrt(2) square / sqrt(2)
        assert bool(dense) == bool(release.diagnostics["all_entries"])
        chosen, weights = np.asarray(release.extra["measured_in_round"]), np.asarray(release.diagnostics["weights"])
        mask = np.asarray(release.extra["measured_mask"])
        if dense:
            assert np.all(chosen == -1) and int(release.diagnostics["rounds"]) == 0
            assert weights.sum() == pytest.approx(1.0) and mask.all()
        else:
            assert np.sum(chosen[:, 0, 0] >= 0) == int(release.diagnostics["rounds"]) > 0
            assert not weights.any() and mask.sum() < D * D


def test_the_two_numbers_are_those_of_the_clipped_rows() -> None:
    """About the noisy mean, which is released, at a budget that leaves little noise."""
    (i,) = (i for i, lane in enumerate(LANES) if lane[2] == 1e6)
    release, (seed, together, _) = followed()[i], LANES[i]
    z, m = clipped(rows(seed, together), release), np.asarray(release.measured["mean"].value)
    trace = release.measured["trace"]
    whole = np.mean(np.sum(np.clip(rows(seed, together), -1, 1) ** 2, axis=1))
    assert float(trace.value) == pytest.approx(whole, abs=6 * float(trace.std)) and float(trace.std) < 0.01
    assert float(trace.std) == pytest.approx(D / N / math.sqrt(2 * 0.05 * 1e6))
    beside = z.T @ z / N - np.outer(m, m)
    np.fill_diagonal(beside, 0.0)
    for name, expected in (
        ("norm", np.linalg.norm(beside[np.triu_indices(D, 1)])),
        ("top", np.linalg.eigvalsh(beside)[-1]),
    ):
        number = release.measured[f"off_diagonal_{name}"]
        assert float(number.value) == pytest.approx(expected, abs=6 * float(number.std))
        assert 6 * float(number.std) < 0.01 * expected


def test_without_noise_it_is_the_covariance_of_the_clipped_rows() -> None:
    for i, (seed, together, rho) in enumerate(LANES):
        if rho < 20.0:
            continue
        found = np.asarray(followed()[i].covariance)
        z = clipped(rows(seed, together), followed()[i])
        std = D / N / math.sqrt(2 * 0.7 * rho)
        np.testing.assert_allclose(found, np.cov(z.T, bias=True), atol=6 * std)


def test_covariances_are_positive_definite_with_their_inverse() -> None:
    for release in followed():
        covariance, precision = np.asarray(release.covariance), np.asarray(release.extra["precision"])
        values = np.linalg.eigvalsh(covariance)
        assert values[0] > 0
        np.testing.assert_allclose(covariance @ precision, np.eye(D), atol=1e-8 * values[-1] / values[0])


@pytest.mark.parametrize("center", ["zero", "pairs"])
def test_the_noise_of_the_test_is_what_it_says(center: str) -> None:
    """Two-sided chi-square over 3,000 draws, false alarms at 1e-6; 2/3 and 3/2 of the noise are rejected."""
    d, n, rho, lanes, radius = 5, 50, 0.8, 3000, 0.5
    count = n // 2 if center == "pairs" else n
    w = rows(0, 3, d)[:count] / np.sqrt(d)
    frame, ball = (of(BOX, d, np.float64) for of in (clip.frame, clip.ball_frame))
    config = jax.tree.map(jnp.asarray, AutoConfig(center=center))
    square = radius**2 * d * (2 if center == "pairs" else 1)
    exact = w.T @ w

    def one(key: jax.Array) -> Any:
        opened = _steps.begin("auto", key, jnp.asarray(float(n)), ball, ZCDP(rho), config, jnp.asarray(True))
        second = jnp.asarray(exact)
        seen = module.Clipped(second, radius, square, common.centre_of(None, second), frame, ball)
        opened, dense = module._test(opened, seen, ZCDP(rho), config)
        return opened.measured, opened.cost, dense

    found, left, _ = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), lanes))
    np.testing.assert_allclose(left, 0.94 * rho, rtol=1e-12)
    beside = exact - np.diag(np.diag(exact))
    numbers = {"norm": (np.linalg.norm(beside) / math.sqrt(2), 1.0), "top": (np.linalg.eigvalsh(beside)[-1], 2**0.5)}
    low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], lanes)
    noises = []
    for name, (value, bound) in numbers.items():
        noise = np.asarray(found[f"off_diagonal_{name}"].value) * count / square - value
        std = bound / math.sqrt(2 * 0.03 * rho)
        assert low < np.sum((noise / std) ** 2) < high
        for wrong in (2 / 3, 3 / 2):
            assert not low < np.sum((wrong * noise / std) ** 2) < high
        noises.append(noise)
    assert abs(np.corrcoef(noises)[0, 1]) < 0.1  # draws of their own, five standard errors


def test_few_columns_and_l2_bounds_take_all_entries() -> None:
    """No test is paid for: under a box, under l2 bounds about a centre, and from a table that holds the same sums."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", D + 1)
        for bounds in (BOX, Bounds.l2(3.0, np.full(D, 0.1))):
            key = jax.random.key(0)
            release = auto(key, rows(0, 0), ZCDP(1e-3), bounds)
            assert bool(release.diagnostics["all_entries"]) and "off_diagonal_norm" not in release.measured
            names = [entry.what for entry in ledger.entries(release.ledger)]
            assert names == ["sum of |u|^2", "radius", "sum of w", "sum of w w^T"]
            assert 1e-3 * (1 - 1e-12) <= float(release.spent.rho) <= 1e-3
            table = Rows.array(rows(0, 0)).level_moments(bounds)
            again = auto(jax.random.clone(key), table, ZCDP(1e-3), bounds)
            np.testing.assert_allclose(again.covariance, release.covariance, rtol=1e-8, atol=1e-8)


def test_short_rows_are_released_far_better_than_by_ssp_select() -> None:
    """In a box of ten standard deviations: the noise goes with the square of the radius, a fifth of the box's here."""
    x = np.random.default_rng(3).normal(size=(N, D))
    truth, errors = np.cov(x.T, bias=True), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", D + 1)
        for method in (auto, ssp_select):
            found = [
                method(key, x, ZCDP(0.05), Bounds.box(-10.0, 10.0)) for key in jax.random.split(jax.random.key(1), 8)
            ]
            errors.append(np.mean([np.linalg.norm(each.covariance - truth) for each in found]))
    assert errors[0] < 0.5 * errors[1]


def test_choices_reach_the_branches_and_wrong_ones_raise() -> None:
    config = AutoConfig(center="pairs", t=0.5, loop="traced")
    assert config.pace().center == config.select().center == "pairs" and config.pace().loop == "traced"
    assert config.pace().t == config.select().t == 0.5 and config.select().copies == SSPSelectConfig().copies
    assert config.law() == AutoConfig(center="pairs", t=0.5)
    ball = config.adaptive()
    assert (ball.center, ball.trace_share, ball.radius_share) == ("pairs", 0.05, 0.1) and ball.psd == "denoise"
    for wrong in (
        {"norm_share": 0.0},
        {"top_share": 1.0},
        {"trace_share": 0.0},
        {"radius_share": 1.0},
        {"t": -1.0},
        {"center": "mean"},
        {"loop": "host"},
    ):
        (name,) = wrong
        with pytest.raises(ValueError, match=name):
            AutoConfig(**wrong)
    with pytest.raises(ValueError, match="norm_share \\+ top_share"):
        AutoConfig(norm_share=0.6, top_share=0.4)
