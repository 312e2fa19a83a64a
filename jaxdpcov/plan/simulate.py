"""Errors of a mechanism on rows of an assumed population, as a study of `sim` has them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import metrics
from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.privacy.budget import ZCDP, PureDP
from jaxdpcov.sim import engine, moments
from jaxdpcov.sim.laws import Population

Array = jax.Array

#: What an error can be measured in.
METRICS = ("frobenius", "scaled", "relative", "spectral", "mahalanobis", "mean")
#: Rows drawn for a repetition at most (four a column where there are more columns than a quarter of these), and how
#: many times that under bounds of the population: pairs of rows are a sample themselves, which no budget makes up for.
ROWS, OF_PAIRS = 4096, 4
#: Repetitions of one step of the map. 1 for mechanisms that branch on what was measured: a batch runs all branches.
BATCH, BRANCHING = 4, ("auto", "pace")
#: Seconds that a release of 100 columns takes about, by mechanism, on one core; they grow like d^3.
SECONDS = {"auto": 5.0, "pace": 5.0, "ssp_select": 2.0}


def seconds(name: str, d: int, repetitions: int) -> float:
    """What simulating takes about, on one core and without compilation: for the decision whether to do it unasked."""
    return SECONDS.get(name, 0.1) * (d / 100.0) ** 3 * repetitions


def rows_for(n: int, d: int, bounds: Any) -> int:
    """How many rows are drawn to stand for n."""
    return min(n, max(ROWS * (OF_PAIRS if isinstance(bounds, SpectrumBounds) else 1), 4 * d))


def scaled_budget(budget: ZCDP | PureDP, n: float, drawn: int) -> ZCDP | PureDP:
    """The budget at which `drawn` rows have the noise that n rows have: sums of noise over n stay what they are."""
    if isinstance(budget, PureDP):
        return PureDP(budget.epsilon * (n / drawn))
    return ZCDP(budget.rho * (n / drawn) ** 2)


def units(bounds: Any, d: int) -> np.ndarray:
    """(d,) half-widths of a box, 1 for constant columns; the radius of a ball; 1 under a spectrum."""
    if isinstance(bounds, BoxBounds):
        half = 0.5 * np.asarray(bounds.upper, np.float64) - 0.5 * np.asarray(bounds.lower, np.float64)
        half = np.broadcast_to(half, (d,))
        return np.where(half > 0, half, 1.0)
    return np.full(d, float(bounds.radius)) if isinstance(bounds, L2Bounds) else np.ones(d)


@dataclasses.dataclass(frozen=True)
class _Metric:
    """A metric of a study, with what "scaled" divides columns by; hashable, so that programs are shared."""

    name: str
    units: tuple[float, ...] = ()

    def __call__(self, estimate: Array, truth: moments.Truth) -> Array:
        if self.name == "scaled":
            units = jnp.asarray(self.units, estimate.dtype)
            both = units[:, None] * units[None, :]
            return metrics.frobenius(estimate / both, truth.moment / both)
        return _AS_IN_STUDIES[self.name](estimate, truth)


_AS_IN_STUDIES: dict[str, Callable[[Array, moments.Truth], Array]] = {
    "frobenius": moments.OF_MATRICES["frobenius"],
    "relative": moments.OF_MATRICES["relative_frobenius"],
    "spectral": moments.OF_MATRICES["spectral"],
    "mahalanobis": moments.OF_MATRICES["mahalanobis"],
    "mean": moments.OF_MEANS["l2"],
}


def errors(
    method: str, seed: int, repetitions: int, population: Population, budget: Any, bounds: Any, config: Any,
    rows: int, metric: str, *, truth: str = "sample",
) -> np.ndarray:  # fmt: skip
    """(R,) errors of a mechanism, or of `engine.NOT_PRIVATE`, against the moments of the very rows or the population.

    Repetition i has one key for all mechanisms, which are so compared on the same rows.
    """
    d = population.d
    scale = tuple(units(bounds, d).tolist()) if metric == "scaled" else ()
    moment = "mean" if metric == "mean" else "covariance"
    task = engine.Task(method, rows, ((metric, _Metric(metric, scale)),), moment, truth)
    batch = 1 if method in BRANCHING else min(BATCH, engine.batch_size(rows, d, repetitions))
    known = engine.true_moment(population, task, bounds)
    program = engine.Program(task, population, known, budget, bounds, config, batch)
    keys = engine.keys(engine.check_key(seed), repetitions)
    calls = engine.calls(program, keys, engine.call_size(repetitions, batch), jax.devices())
    return np.concatenate([errors[:, 0] for errors, _, _ in calls])
