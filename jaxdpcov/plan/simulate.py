"""Errors of a mechanism on rows of an assumed population: all repetitions in one compiled program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import metrics
from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.mechanisms._registry import MECHANISMS
from jaxdpcov.privacy.budget import ZCDP, PureDP
from jaxdpcov.sim.populations import Population

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


def measure(metric: str, covariance: Any, mean: Any, true_covariance: Array, true_mean: Array, scale: Array) -> Array:
    """The error of a covariance or mean in that metric."""
    if metric == "mean":
        return jnp.linalg.norm(mean - true_mean)
    if metric == "scaled":
        both = scale[:, None] * scale[None, :]
        return metrics.frobenius(covariance / both, true_covariance / both)
    if metric == "relative":
        return metrics.frobenius(covariance, true_covariance) / jnp.linalg.norm(true_covariance)
    if metric == "mahalanobis":
        return metrics.mahalanobis(covariance, true_covariance, floor=1e-9)
    return (metrics.frobenius if metric == "frobenius" else metrics.spectral)(covariance, true_covariance)


@functools.partial(jax.jit, static_argnames=("name", "n", "metric"))
def errors(
    name: str, key: Array, repetitions: Array, population: Population, budget: Any, bounds: Any, config: Any,
    scale: Array, n: int, metric: str,
) -> Array:  # fmt: skip
    """(R,) errors against the moments of the very rows, for the R numbers in `repetitions`.

    A repetition's rows depend on `key` and its number alone, so that mechanisms are compared on the same ones. A
    budget or another population of the same law compiles nothing again.
    """

    def one(number: Array) -> Array:
        rows, noise_key = draw(key, number, population, n)
        release = MECHANISMS[name].function(noise_key, rows, budget, bounds, config=config)
        return measure(metric, release.covariance, release.mean, *moments(rows), scale)

    batch = None if name in BRANCHING else min(BATCH, repetitions.shape[0])
    return jax.lax.map(one, repetitions, batch_size=batch)


@functools.partial(jax.jit, static_argnames=("n", "metric"))
def sampling(
    key: Array, repetitions: Array, population: Population, scale: Array, n: int, metric: str
) -> Array:  # fmt: skip
    """(R,) errors of the rows' own moments about the population's: no privacy has a part in them."""

    def one(number: Array) -> Array:
        covariance, mean = moments(draw(key, number, population, n)[0])
        dtype = covariance.dtype
        true = jnp.asarray(population.covariance, dtype), jnp.asarray(population.mean, dtype)
        return measure(metric, covariance, mean, *true, scale)

    return jax.lax.map(one, repetitions, batch_size=min(BATCH, repetitions.shape[0]))


def draw(key: Array, number: Array, population: Population, n: int) -> tuple[Array, Array]:
    """The rows of one repetition, and a key for its noise."""
    row_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
    return population.sample(row_key, n), noise_key


def moments(rows: Array) -> tuple[Array, Array]:
    """Covariance (over n) and mean."""
    mean = jnp.mean(rows, axis=0)
    centred = rows - mean[None, :]
    return jnp.matmul(centred.T, centred, precision="highest") / rows.shape[0], mean
