"""`pace` from one column to seventy: the smallest sizes, components that are solved alone, and lanes of one program."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.csgraph

from jaxdpcov import ZCDP, Bounds, PaceConfig, pace, status
from jaxdpcov.mechanisms.pace import host
from jaxdpcov.privacy import ledger
from tests import contract_cases as cases
from tests.reference import maxent as reference

BOX = Bounds.box(-4.0, 4.0)


def rows(d: int, seed: int, n: int = 2000) -> np.ndarray:
    """Blocks of five columns that share a factor, correlation 0.9."""
    rng = np.random.default_rng(seed)
    factors = np.repeat(rng.normal(size=(n, -(-d // 5))), 5, axis=1)[:, :d]
    return math.sqrt(0.9) * factors + math.sqrt(0.1) * rng.normal(size=(n, d))


@pytest.mark.parametrize("d", [1, 2])
def test_the_smallest_sizes(d: int) -> None:
    x = rows(d, 0)
    for seed, rho in enumerate((1e-6, 0.3, 1e8)):
        release = pace(jax.random.key(seed), x, ZCDP(rho), BOX, config=PaceConfig(center="zero"))
        exact = sum(float(entry.cost) for entry in ledger.entries(release.ledger))
        assert rho * (1 - 1e-12) <= exact <= rho * (1 + 1e-15) and float(release.spent.rho) <= rho
        assert int(release.status) == status.OK
        z = np.asarray(release.covariance) / 16.0
        assert np.linalg.eigvalsh(z)[0] > 0
        mask, y, lam = (release.extra[m] for m in ("measured_mask", "measurements", "measurement_precision"))
        expected = reference.solve(np.asarray(y), np.asarray(lam), np.asarray(mask), 1.0)[0]
        np.testing.assert_allclose(z, expected, atol=1e-7 * expected.max())
        if rho == 1e8:
            np.testing.assert_allclose(z, np.clip(x, -4, 4).T @ np.clip(x, -4, 4) / len(x) / 16.0, atol=1e-5)
        chosen = np.asarray(release.extra["measured_in_round"])
        if d == 1:  # all the budget on the one variance
            assert len(ledger.entries(release.ledger)) == 1 and np.all(chosen == -1)
            std = 1 / (len(x) * math.sqrt(2 * rho))
            assert float(release.measured["diagonal"].std[0]) == pytest.approx(std, rel=1e-9)
        else:
            assert 1 <= int(release.diagnostics["rounds"]) == np.sum(chosen[:, 0, 0] >= 0) <= 8


def test_components_solved_alone_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy columns in blocks: every round of the host path reconstructs far fewer, and the answer is the same."""
    d, config = 70, PaceConfig(center="zero", rounds_per_column=1)
    sizes = []
    join = host.Graph.join

    def watch(self: host.Graph, edges: Any) -> list[int]:
        sizes.append(len(join(self, edges)))
        return join(self, edges)

    monkeypatch.setattr(host.Graph, "join", watch)
    x, key, rho = jnp.asarray(rows(d, 1)), jax.random.key(5), 40.0
    release = pace(key, x, ZCDP(rho), BOX, config=config)
    whole = jax.jit(lambda key, x: pace(key, x, ZCDP(rho), BOX, config=config))(jax.random.clone(key), x)
    assert len(sizes) == int(release.diagnostics["rounds"]) > 10 and 5 <= max(sizes) <= 16
    np.testing.assert_array_equal(whole.extra["measured_in_round"], release.extra["measured_in_round"])
    covariance = np.asarray(release.covariance)
    np.testing.assert_allclose(whole.covariance, covariance, rtol=1e-9, atol=1e-9 * covariance.max())
    np.testing.assert_allclose(whole.spent.rho, release.spent.rho, rtol=1e-12)
    mask = np.asarray(release.extra["measured_mask"])
    parts, part = scipy.sparse.csgraph.connected_components(mask)
    assert d // 5 - 4 <= parts < d and not covariance[part[:, None] != part[None, :]].any()


@functools.cache
def lanes() -> tuple[list[float], Any]:
    """64 runs at budgets from absurd to plenty, so that their loops are of all lengths."""
    budgets = [10.0 ** (k % 8 - 5) for k in range(64)]
    keys = jax.vmap(jax.random.key)(jnp.arange(64))
    run = jax.jit(jax.vmap(single, in_axes=(0, 0, 0)))
    return budgets, run(keys, jnp.stack([rows(20, k, 200) for k in range(64)]), jnp.asarray(budgets))


def single(key: Any, x: Any, rho: Any) -> Any:
    return pace(key, x, ZCDP(rho), BOX, config=PaceConfig(rounds_per_column=1))


def test_lanes_do_not_change_each_other() -> None:
    budgets, found = lanes()
    assert len(set(np.asarray(found.diagnostics["rounds"]).tolist())) > 4
    alone = jax.jit(single)
    for k in (0, 4, 7, 30, 63):
        one, lane = alone(jax.random.key(k), rows(20, k, 200), jnp.asarray(budgets[k])), cases.lane(found, k)
        np.testing.assert_array_equal(lane.extra["measured_in_round"], one.extra["measured_in_round"])
        covariance = np.asarray(one.covariance)
        np.testing.assert_allclose(lane.covariance, covariance, rtol=1e-9, atol=1e-9 * covariance.max())
        assert int(lane.status) == int(one.status) == status.OK


def test_every_lane_spends_its_budget() -> None:
    budgets, found = lanes()
    total = np.asarray(ledger.total(found.ledger, "rho"))
    assert np.all(total <= budgets) and np.all(total >= np.asarray(budgets) * (1 - 1e-12))
    values = np.linalg.eigvalsh(np.asarray(found.covariance))
    assert np.all(values[:, 0] > 0)
