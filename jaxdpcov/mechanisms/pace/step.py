"""One round of PACE without its reconstruction: choose entries, measure them, and set the budget of the next round."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov.mechanisms.pace.state import Known, Log, Private, Schedule, add, joint, pairs, whole
from jaxdpcov.privacy import noise, selection

#: E|N(0, 1)|: an entry that was right already moves by about so many noise standard deviations.
_IDLE = math.sqrt(2.0 / math.pi)


def tolerance(dtype: Any) -> float | None:
    """Of the reconstructions between rounds: so small that whatever loop made them, the next choice is the same."""
    return 1e-14 if jnp.finfo(dtype).bits == 64 else None


def going(known: Known, log: Log) -> jax.Array:
    """Whether there is another round."""
    return (known.left > 0) & (known.round < log.select.shape[0])


def choose_and_measure(
    key: jax.Array, private: Private, known: Known, log: Log, schedule: Schedule
) -> tuple[Known, Log, jax.Array]:
    """The next round's measurements in, and the (k,) entries of `pairs` that were chosen."""
    d, each = private.second.shape[0], log.select.shape[1]
    i, j = pairs(d)
    # Rates are rounded down, in float32 by enough to leave something after the last round there can be.
    last = (known.left < 2.0 * known.rate) | (known.round + 1 == log.select.shape[0])
    spend = jnp.where(last, known.left, known.rate)
    unit = each * known.quantum
    select = whole(schedule.selection_share * spend, unit)
    measure = spend - select
    key_choice, key_value = jax.random.split(jax.random.fold_in(key, known.round))

    # In units of sums, where no private count has to be divided by.
    expected = private.count * (known.covariance + private.offset)
    scores = jnp.abs(private.second - expected)[i, j]
    chosen, choices = selection.exponential_top_k(
        key_choice,
        scores,
        each,
        sensitivity=private.other,
        rho=select,
        mask=private.live[i] & private.live[j],
        what="choice of an entry of sum of z z^T",
    )
    value, entry = noise.gaussian(
        key_value,
        private.second[i, j][chosen],
        sensitivity=joint(chosen, private),
        rho=measure,
        what="chosen entries of sum of z z^T",
    )
    y, std = value.value / private.count, value.std / private.count
    at = jnp.asarray(i)[chosen], jnp.asarray(j)[chosen]
    # Where fewer candidates are left than a round chooses, the rest are entries of constant columns: they say nothing.
    gain = jnp.where(private.live[at[0]] & private.live[at[1]], 1.0 / (std * std), 0.0)
    log = Log(
        pair=log.pair.at[known.round].set(chosen),
        value=log.value.at[known.round].set(y),
        select=log.select.at[known.round].set(select / each),
        epsilon=log.epsilon.at[known.round].set(jnp.stack([choice.scale for choice in choices.children])),
        measure=log.measure.at[known.round].set(measure),
        std=log.std.at[known.round].set(std),
        grown=log.grown.at[known.round].set(known.grown),
    )
    known = known._replace(
        weight=add(known.weight, at, gain),
        weighted=add(known.weighted, at, gain * y),
        left=known.left - spend,
        rate=spend,
        round=known.round + 1,
    )
    return known, log, chosen


def absorb(
    known: Known, log: Log, chosen: jax.Array, covariance: jax.Array, precision: jax.Array, schedule: Schedule
) -> Known:
    """With the new reconstruction; the rounds to come are richer if it says what the old one did, within the noise."""
    i, j = pairs(covariance.shape[0])
    at = jnp.asarray(i)[chosen], jnp.asarray(j)[chosen]
    moved = jnp.mean(jnp.abs(covariance[at] - known.covariance[at]))
    idle = moved <= _IDLE * log.std[known.round - 1, 0]
    rate = jnp.where(idle, whole(schedule.growth * known.rate, known.quantum), known.rate)
    return known._replace(
        covariance=covariance, precision=precision, rate=rate, grown=known.grown + idle.astype(rate.dtype)
    )
