"""`pace`: a replay in plain NumPy, both loops, what is recovered, and what every release promises."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, PaceConfig, pace, status
from jaxdpcov.mechanisms.pace import common, host
from jaxdpcov.privacy import ledger
from tests import contract_cases as cases
from tests.reference import maxent
from tests.reference import pace as reference

pytestmark = pytest.mark.usefixtures("fresh_programs")

D, N = 6, 400
LOWER, UPPER = np.array([-3.0, -2.0, 0.0, -4.0, -1.0, -3.0]), np.array([3.0, 4.0, 2.0, 4.0, 1.5, 3.0])
BOX = Bounds.box(LOWER, UPPER)

#: Static choices, each of which costs two compilations; all other numbers are arguments.
SETTINGS = {
    "private": {},
    "pairs": {"center": "pairs", "entries_per_round": 3},
    "add_remove": {"relation": "add_remove", "center": "zero"},
}


def rows(seed: int) -> np.ndarray:
    """Two pairs of columns that go together, off centre, a few rows beyond the bounds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    x[:, 1] += 1.5 * x[:, 0]
    x[:, 4] = 0.6 * x[:, 3] + 0.3 * x[:, 4]
    return x * np.array([1.0, 0.6, 0.5, 1.2, 0.5, 1.0]) + np.array([0.3, 0.5, 1.0, 0.0, 0.2, -0.5])


def config(name: str, **more: Any) -> PaceConfig:
    return PaceConfig(**(SETTINGS[name] | more))


def settings(name: str) -> list[tuple[int, float, PaceConfig, Any]]:
    """(seed, rho, config, bounds) of several runs: budgets over six orders, three growths, constant columns."""
    constant = Bounds.box(LOWER, np.where(np.arange(D) % 3 == 1, LOWER, UPPER))
    alone = Bounds.box(LOWER, np.where(np.arange(D) == 2, UPPER, LOWER))
    couple = Bounds.box(LOWER, np.where((np.arange(D) == 3) | (np.arange(D) == 4), UPPER, LOWER))
    return [
        (0, 0.5, config(name), BOX),
        (1, 1e-3, config(name, growth=4.0), BOX),
        (2, 0.05, config(name, growth=1.0, t=0.5), BOX),
        (3, 500.0, config(name, diagonal_share=0.4), BOX),
        (4, 0.5, config(name, selection_share=0.2), constant),
        (5, 0.5, config(name, growth=50.0), BOX),
        (6, 0.5, config(name), alone),
        (7, 0.5, config(name, growth=2.0), couple),
    ]


@functools.cache
def traced(name: str) -> Any:
    """All runs as lanes of one program."""

    def one(key: Any, x: Any, rho: Any, config: PaceConfig, bounds: Any) -> Any:
        return pace(key, x, ZCDP(rho), bounds, config=config)

    runs = settings(name)
    lanes = cases.stack(*(cases.in_arrays((rho, config, bounds)) for _, rho, config, bounds in runs))
    keys = jax.vmap(jax.random.key)(jnp.arange(len(runs)))
    return jax.jit(jax.vmap(one))(keys, jnp.stack([rows(seed) for seed, *_ in runs]), *lanes)


@functools.cache
def followed(name: str) -> list[tuple[Any, Any]]:
    """Each run from the host: its release, and the log of its rounds."""
    logs: list[Any] = []
    follow = host.follow

    def watch(*arguments: Any) -> Any:
        found = follow(*arguments)
        logs.append(found[1])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "follow", watch)
        releases = [
            pace(jax.random.key(i), rows(seed), ZCDP(rho), bounds, config=config)
            for i, (seed, rho, config, bounds) in enumerate(settings(name))
        ]
    return list(zip(releases, logs))


@pytest.mark.parametrize("name", SETTINGS)
def test_both_loops_give_one_answer(name: str) -> None:
    """Choices and status to the bit, all else to 1e-9, in lanes of one program and one by one."""
    lanes = traced(name)
    for i, (release, _) in enumerate(followed(name)):
        lane = cases.lane(lanes, i)
        np.testing.assert_array_equal(lane.extra["measured_in_round"], release.extra["measured_in_round"])
        assert int(lane.status) == int(release.status)
        covariance = np.asarray(release.covariance)
        np.testing.assert_allclose(lane.covariance, covariance, rtol=1e-9, atol=1e-9 * covariance.max())
        precision = np.asarray(release.extra["precision"])
        np.testing.assert_allclose(lane.extra["precision"], precision, rtol=1e-9, atol=1e-9 * precision.max())
        for node, other in zip(jax.tree.leaves(lane.ledger), jax.tree.leaves(release.ledger)):
            np.testing.assert_allclose(node, other, rtol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_is_what_its_draws_make_of_it(name: str) -> None:
    """Budgets, scales, combined measurements and the estimate, by a replay with another solver."""
    grown = 0
    for (_, rho, chosen, bounds), (release, log) in zip(settings(name), followed(name)):
        live = np.flatnonzero(np.asarray(bounds.upper) > np.asarray(bounds.lower))
        if len(live) < D:
            continue  # the replay has no constant columns
        budget = rho
        if name == "add_remove":
            budget -= chosen.n_share * rho
        mean = None
        if name == "private":
            budget -= chosen.mean_share * rho
            noisy = release.measured["mean"]
            mean = reference.Mean(np.asarray(noisy.value), np.asarray(noisy.std))
        count = float(release.n) if name != "pairs" else N // 2
        own, other = {"private": (1.0, 2.0), "pairs": (2.0, 2.0), "add_remove": (1.0, 1.0)}[name]
        setting = reference.Setting(
            D, count, own, other, budget, chosen.diagonal_share, chosen.selection_share, chosen.rounds_per_column,
            chosen.entries_per_round, chosen.growth, chosen.t,
        )  # fmt: skip
        picked = np.asarray(release.extra["measured_in_round"])
        happened = int(release.diagnostics["rounds"])
        assert np.all(picked[happened:] == -1) and np.all(picked[:happened] >= 0)
        pairs = [[(int(j), int(k)) for j, k in each] for each in picked[:happened]]
        diagonal = release.measured["diagonal"]
        run = reference.replay(setting, np.asarray(diagonal.value), pairs, np.asarray(log.value), mean)
        np.testing.assert_allclose(diagonal.std, reference.diagonal_std(setting), rtol=1e-9)
        assert len(run.rounds) == happened
        choices, measured = (node.entry for node in release.ledger.children[-2:])
        k = chosen.entries_per_round
        for r, expected in enumerate(run.rounds):
            assert float(measured.cost[r]) == pytest.approx(expected.measure, rel=1e-9)
            assert float(np.sum(choices.cost[r * k : (r + 1) * k])) == pytest.approx(expected.select, rel=1e-9)
            np.testing.assert_allclose(choices.scale[r * k : (r + 1) * k], expected.epsilon, rtol=1e-9)
            np.testing.assert_allclose(log.std[r], expected.std, rtol=1e-9)
        assert not np.any(np.asarray(measured.cost)[happened:])
        assert not np.any(np.asarray(choices.cost)[happened * k :])
        grown += sum(each.idle for each in run.rounds)
        np.testing.assert_allclose(release.extra["measurements"], run.y, rtol=1e-9, atol=1e-9 * np.abs(run.y).max())
        np.testing.assert_allclose(release.extra["measurement_precision"], run.lam, rtol=1e-9)
        np.testing.assert_array_equal(release.extra["measured_mask"], run.lam > 0)
        scale = np.outer(release.scale, release.scale)
        np.testing.assert_allclose(
            np.asarray(release.covariance) / scale, run.covariance, atol=1e-7 * run.covariance.max()
        )
        np.testing.assert_allclose(
            np.asarray(release.extra["precision"]) * scale, run.precision, atol=1e-6 * run.precision.max()
        )
    assert grown > 3  # rounds of both kinds have been replayed


@pytest.mark.parametrize("name", SETTINGS)
def test_costs_add_up_to_the_budget(name: str) -> None:
    lanes = traced(name)
    budgets = np.array([rho for _, rho, _, _ in settings(name)])
    for spent in (np.asarray(lanes.spent.rho), np.asarray(ledger.total(lanes.ledger, "rho"))):
        assert np.all(spent <= budgets) and np.all(spent >= budgets * (1 - 1e-12))
    for rho, (release, _) in zip(budgets, followed(name)):
        exact = sum(float(entry.cost) for entry in ledger.entries(release.ledger))
        assert rho * (1 - 1e-12) <= exact <= rho * (1 + 1e-15)
        assert float(release.spent.rho) <= rho


@pytest.mark.parametrize("name", SETTINGS)
def test_what_every_release_promises(name: str) -> None:
    """The inverse, the smallest eigenvalue, the gap and the status; nothing of constant columns."""
    for (_, _, _, bounds), (release, _) in zip(settings(name), followed(name)):
        live = np.asarray(bounds.upper) > np.asarray(bounds.lower)
        on = np.ix_(live, live)
        covariance, precision = np.asarray(release.covariance), np.asarray(release.extra["precision"])
        assert np.array_equal(covariance, covariance.T) and int(release.status) == status.OK
        np.testing.assert_allclose(covariance[on] @ precision[on], np.eye(live.sum()), atol=1e-8)
        values = np.linalg.eigvalsh(covariance[on] / np.outer(release.scale, release.scale)[on])
        assert values[0] > 0
        assert float(release.diagnostics["smallest_eigenvalue"]) == pytest.approx(values[0], rel=1e-6)
        assert float(release.diagnostics["gap"]) <= 1e-8 * live.sum()
        for matrix in (covariance, precision, *(release.extra[m] for m in ("measurements", "measurement_precision"))):
            assert not np.any(np.asarray(matrix)[~live]) and not np.any(np.asarray(matrix)[:, ~live])
        mask = np.asarray(release.extra["measured_mask"])
        assert not mask[~live].any() and mask[live, live].all() and np.array_equal(mask, mask.T)
        chosen = np.asarray(release.extra["measured_in_round"])
        if live.sum() * (live.sum() + 1) // 2 >= chosen.shape[1]:  # else constant columns fill a round up
            assert np.all(live[chosen[chosen >= 0]])
        unmeasured = ~mask & live[:, None] & live[None, :]
        assert np.max(np.abs(precision[unmeasured]), initial=0.0) <= 1e-9 * np.max(precision)


def test_one_column_alone_is_measured_once_with_everything() -> None:
    (i,) = (i for i, (seed, *_) in enumerate(settings("pairs")) if seed == 6)
    release, _ = followed("pairs")[i]
    assert int(release.diagnostics["rounds"]) == 0
    (entry,) = ledger.entries(release.ledger)
    assert float(entry.cost) == pytest.approx(settings("pairs")[i][1], rel=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_without_noise_it_is_the_covariance_of_the_clipped_rows(name: str) -> None:
    release = pace(jax.random.key(9), rows(9), ZCDP(1e10), BOX, config=config(name))
    x = np.clip(rows(9), LOWER, UPPER)
    z = (x - np.asarray(release.center)) / np.asarray(release.scale)
    scale = np.outer(release.scale, release.scale)
    found = np.asarray(release.covariance) / scale
    std = 1 / np.sqrt(np.asarray(release.extra["measurement_precision"])[np.asarray(release.extra["measured_mask"])])
    assert np.asarray(release.extra["measured_mask"]).all() and std.max() < 1e-4
    if name == "pairs":  # another pairing gives another matrix, near the covariance as n/2 pairs are
        expected, tolerance = np.cov(z.T), 6 / np.sqrt(N / 2) * np.var(z, axis=0).max()
    else:
        expected, tolerance = (np.cov(z.T, bias=True) if name == "private" else z.T @ z / N), 6 * std.max()
    np.testing.assert_allclose(found, expected, atol=tolerance)
    if name == "private":
        np.testing.assert_allclose(release.mean, x.mean(0), atol=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_absurd_noise_leaves_a_positive_definite_matrix(name: str) -> None:
    for rho in (1e-6, 1e-9):
        release = pace(jax.random.key(3), rows(3), ZCDP(rho), BOX, config=config(name))
        z = np.asarray(release.covariance) / np.outer(release.scale, release.scale)
        assert np.all(np.isfinite(z)) and np.linalg.eigvalsh(z)[0] > 0
        assert float(release.spent.rho) == pytest.approx(rho, rel=1e-12) and float(release.spent.rho) <= rho


def test_a_solver_that_stops_early_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap and the status are those of the last reconstruction, whatever it returned."""
    close = common.close

    def late(name: str, opened: Any, found: common.Found, *rest: Any) -> Any:
        return close(name, opened, found._replace(gap=found.gap + worse), *rest)

    monkeypatch.setattr(common, "close", late)
    seed, rho, chosen, bounds = settings("private")[0]
    for worse in (1.0, np.nan):
        missed = pace(jax.random.key(0), rows(seed), ZCDP(rho), bounds, config=chosen)
        assert int(missed.status) == status.NOT_CONVERGED
        np.testing.assert_allclose(missed.diagnostics["gap"], worse, atol=1e-9)
        np.testing.assert_array_equal(missed.covariance, followed("private")[0][0].covariance)


def test_constant_columns_hide_no_eigenvalue_however_large() -> None:
    """At a hopeless budget variances come out far above 1: a fixed place for constant columns would be the least."""
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (50, 3))
    box = Bounds.box(np.array([-1.0, 0.0, -1.0]), np.array([1.0, 0.0, 1.0]))
    config = PaceConfig(center="zero", rounds_per_column=1)
    least = []
    for key in range(8):
        release = pace(jax.random.key(key), x, ZCDP(1e-6), box, config=config)
        values = np.linalg.eigvalsh(np.asarray(release.covariance)[np.ix_([0, 2], [0, 2])])
        assert float(release.diagnostics["smallest_eigenvalue"]) == pytest.approx(values[0], rel=1e-6)
        least.append(values[0])
    assert max(least) > 2.0


def test_the_gap_is_a_gap() -> None:
    """Of the released covariance and precision, by the definition of the objective and its dual."""
    for release, _ in followed("pairs")[:4]:
        scale = np.outer(release.scale, release.scale)
        w, k = np.asarray(release.covariance) / scale, np.asarray(release.extra["precision"]) * scale
        y, lam, mask = (
            np.asarray(release.extra[m]) for m in ("measurements", "measurement_precision", "measured_mask")
        )
        gap = maxent.gap(w, k * mask, y, lam, mask, float(release.config.t))
        assert -1e-9 <= gap <= float(release.diagnostics["gap"]) + 1e-9
