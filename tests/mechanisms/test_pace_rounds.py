"""The rounds of `pace` one by one: the law of the choice, the noise of what is measured, and budgets in every path."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, Bounds, PaceConfig
from jaxdpcov.data import clip
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms.pace import common, rounds, state, step
from tests.reference import pace as reference

ALARM, N = 1e-6, 50
BOX = Bounds.box(-1.0, 1.0)
WRONG = (2 / 3, 3 / 2)


#: (relation, center) -> sensitivities of a diagonal and of another entry, and of the diagonal together over sqrt(d).
KINDS = {("replace", "zero"): (1.0, 2.0), ("replace", "pairs"): (2.0, 2.0), ("add_remove", "zero"): (1.0, 1.0)}


def second(d: int) -> np.ndarray:
    """A sum of squares with entries of several sizes, a few sensitivities apart."""
    matrix = 20.0 * np.eye(d)
    for j in range(d):
        for k in range(j):
            matrix[j, k] = matrix[k, j] = 3.0 * (j - 2 * k)
    return matrix


def start(key: Any, config: PaceConfig, rho: Any, d: int, dtype: Any = np.float64) -> Any:
    """The state before the first round."""
    frame = clip.frame(BOX, d, np.dtype(dtype))
    sums = _steps.Sums(jnp.asarray(second(d), dtype), jnp.zeros(d, dtype))
    n, budget = jnp.asarray(float(N), dtype), ZCDP(rho)
    opened, centre = common.begin("pace", key, sums, n, frame, budget, config, rounds.valid(config))
    return rounds._start(opened, sums.second, centre, frame, budget, config)


def in_arrays(config: PaceConfig, dtype: Any = np.float64) -> PaceConfig:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), config)


def fits(counts: np.ndarray, law: np.ndarray) -> bool:
    """Pearson's chi-square test; cells that expect less than five draws are put together."""
    expected = law * counts.sum()
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    return bool(scipy.stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue > ALARM)


def scale_fits(draws: np.ndarray, std: Any) -> bool:
    low, high = scipy.stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], draws.size)
    return bool(low < np.sum((draws / std) ** 2) < high)


@pytest.mark.parametrize(("kind", "each"), [*zip(KINDS, (1, 2, 1))])
def test_the_first_round(kind: tuple[str, str], each: int) -> None:
    """20,000 draws: choices follow the exponential mechanism and values have their noise; 2/3 and 3/2 do not fit."""
    d, lanes, rho = 3, 20_000, 8.0
    own, other = KINDS[kind]
    config = in_arrays(PaceConfig(relation=kind[0], center=kind[1], entries_per_round=each))
    opened, private, known, log = start(jax.random.key(0), config, jnp.asarray(rho), d)
    cost, count = rho * (0.95 if kind[0] == "add_remove" else 1.0), float(private.count)

    @jax.jit
    @jax.vmap
    def run(key: Any) -> Any:
        _, after, chosen = step.choose_and_measure(key, private, known, log, config)
        return chosen, after.value[0]

    chosen, value = (np.asarray(x) for x in run(jax.random.split(jax.random.key(1), lanes)))
    i, j = np.triu_indices(d)
    scores = np.abs(np.asarray(private.second) - count * np.asarray(known.covariance))[i, j]
    spend = 0.8 * cost * each / (4 * d)
    epsilon = math.sqrt(8 * 0.5 * spend / each)

    def law(factor: float) -> np.ndarray:
        p = reference.law_of_choice(scores, factor * epsilon, other)
        if each == 1:
            return p
        both = [[0.0 if a == b else p[a] * p[b] / (1 - p[a]) for b in range(len(p))] for a in range(len(p))]
        return np.ravel(both)

    index = chosen[:, 0] if each == 1 else chosen[:, 0] * len(i) + chosen[:, 1]
    counts = np.bincount(index, minlength=len(law(1.0)))
    assert fits(counts, law(1.0))
    assert not any(fits(counts, law(wrong)) for wrong in WRONG)

    bounds = np.where(i == j, own, other)[chosen]
    std = np.sqrt(np.sum(bounds**2, axis=1) / (2 * 0.5 * spend))[:, None]
    noise = value * count - np.asarray(private.second)[i, j][chosen]
    for at in (True, False):  # on the diagonal and beside it
        part = (i == j)[chosen] == at
        draws = (noise / std)[part]
        assert scale_fits(draws, 1.0) and not any(scale_fits(draws, wrong) for wrong in WRONG)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_the_diagonal(kind: tuple[str, str]) -> None:
    d, lanes, rho = 4, 1000, 0.7
    config = in_arrays(PaceConfig(relation=kind[0], center=kind[1]))

    @jax.jit
    @jax.vmap
    def run(key: Any) -> Any:
        opened, private, *_ = start(key, config, jnp.asarray(rho), d)
        return opened.measured["diagonal"], private.count

    diagonal, count = run(jax.random.split(jax.random.key(2), lanes))
    cost, own = rho * (0.95 if kind[0] == "add_remove" else 1.0), KINDS[kind][0]
    count = np.asarray(count)[:, None]
    std = own * math.sqrt(d) / math.sqrt(2 * 0.2 * cost)
    np.testing.assert_allclose(np.asarray(diagonal.std) * count, std, rtol=1e-9)
    noise = np.asarray(diagonal.value) * count - 20.0
    assert scale_fits(noise, std) and not any(scale_fits(noise, wrong * std) for wrong in WRONG)


@pytest.mark.parametrize(
    ("per_column", "each", "dtype"),
    [(16, 1, np.float64), (5, 4, np.float64), (1, 21, np.float64), (128, 1, np.float32)],
)
def test_costs_add_up_whatever_the_rounds_say(per_column: int, each: int, dtype: Any) -> None:
    """Estimates that move or not by a coin, so that budgets grow at any time; the last round takes all that is left."""
    d, tolerance = 6, 1e-12 if dtype == np.float64 else 2.0**-15
    config = in_arrays(PaceConfig(center="zero", rounds_per_column=per_column, entries_per_round=each), dtype)
    most = max(1, -(-per_column * d // each))

    def one(key: Any, rho: Any, growth: Any, idle: Any) -> Any:
        grown = dataclasses.replace(config, growth=growth)
        key, coins = jax.random.split(key)
        opened, private, known, log = start(key, grown, rho, d, dtype)
        key = jax.random.clone(opened.key)

        def advance(carry: Any) -> Any:
            known, log, chosen = step.choose_and_measure(jax.random.clone(key), private, *carry, grown)
            same = jax.random.bernoulli(jax.random.fold_in(jax.random.clone(coins), known.round), idle)
            far = jnp.where(same, known.covariance, known.covariance + jnp.asarray(1e9, dtype))
            after = step.absorb(known, log, chosen, far, known.precision, grown)
            return after._replace(covariance=known.covariance), log

        known, log = jax.lax.while_loop(lambda carry: step.going(*carry), advance, (known, log))
        (diagonal,) = (entry.cost for entry in opened.entries)
        ledger = [jnp.sum(node.entry.cost) for node in state.entries(log, private)]
        return known, log, diagonal + ledger[0] + ledger[1]

    rho, growth, idle = (
        np.ravel(x).astype(dtype) for x in np.meshgrid([1e-8, 0.1, 1e8], [1.0, 1.5, 4.0, 1e6], [0.0, 0.3, 1.0])
    )
    keys = jax.random.split(jax.random.key(3), len(rho))
    known, log, total = jax.jit(jax.vmap(one))(keys, *map(jnp.asarray, (rho, growth, idle)))
    total, count = np.asarray(total), np.asarray(known.round)
    assert total.dtype == dtype and np.all(total <= rho) and np.all(total >= rho * (1 - tolerance))
    assert np.all(np.asarray(known.left) == 0) and np.all(count >= 1) and np.all(count <= most)
    steady = (growth == 1.0) | (idle == 0.0)
    assert np.all(count[steady] >= (per_column * d) // each)
    if most > 1:
        assert np.all(count[(growth == 1e6) & (idle == 1.0)] <= 2)
        assert len(set(count)) > 2 or most <= 8
    else:
        assert np.all(count == 1)
    measure, select = np.asarray(log.measure), np.asarray(log.select)
    happened = np.arange(most) < count[:, None]
    assert np.all((measure > 0) == happened) and np.all((select > 0) == happened[:, :, None])
    # Halves but for the rounding of costs, of which a round has a hundred units in the worst case in float32.
    rounding = 1e-9 if dtype == np.float64 else 0.05
    np.testing.assert_allclose(np.sum(select, axis=2)[happened], measure[happened], rtol=rounding)
