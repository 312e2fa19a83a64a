"""The rounds of PACE: what is measured before the first, the loop, and the reconstruction after the last."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import _checks, maxent
from jaxdpcov.data import clip
from jaxdpcov.maxent.problem import isolated
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms.pace import host, traced
from jaxdpcov.mechanisms.pace.common import Centre, Found
from jaxdpcov.mechanisms.pace.config import PaceConfig
from jaxdpcov.mechanisms.pace.state import (
    Known,
    Log,
    Private,
    Schedule,
    add,
    empty_log,
    entries,
    joint,
    pairs,
    quantum,
    tangent,
    whole,
)
from jaxdpcov.privacy import sensitivity


def valid(config: PaceConfig) -> jax.Array:
    """Whether the numbers of the config that nothing else looks at make sense (they may be traced)."""
    shares = ((share > 0) & (share < 1) for share in (config.diagonal_share, config.selection_share))
    return (config.growth >= 1.0) & (config.t > 0) & (config.t < jnp.inf) & functools.reduce(operator.and_, shares)


def run(
    opened: _steps.Opened, second: jax.Array, centre: Centre, frame: clip.Frame, budget: Any, config: PaceConfig
) -> tuple[_steps.Opened, Found]:
    """All rounds with what is left of the budget; `second` is the exact sum z z^T."""
    opened, private, start, log = _start(opened, second, centre, frame, budget, config)
    # Decisions and draws have no derivative; those of their consequences are put back at the end.
    schedule = Schedule(config.selection_share, config.growth)
    fixed = jax.lax.stop_gradient((private, start, log, schedule))
    follow: Any = traced.follow
    if config.loop == "auto" and not _checks.is_traced(opened.key, fixed):
        follow = host.follow
    known, log = follow(opened.key, *fixed)
    return _end(opened, private, start, known, log, schedule)


@jax.jit
def _start(
    opened: _steps.Opened, second: jax.Array, centre: Centre, frame: clip.Frame, budget: Any, config: PaceConfig
) -> tuple[_steps.Opened, Private, Known, Log]:
    """The diagonal, and the state before the first round."""
    scales = _steps.Scales(frame, budget, config, opened.slack, diagonal=True)
    key_diagonal, key = jax.random.split(opened.key)
    d, live, cost = frame.center.shape[0], frame.live, opened.cost
    each = min(config.entries_per_round, d * (d + 1) // 2)
    most = max(1, -(-config.rounds_per_column * d // each))

    unit = quantum(cost)
    diagonal_cost = whole(jnp.where(scales.d > 1, config.diagonal_share, 1.0) * cost, unit)
    noisy, entry = scales.second(key_diagonal, jnp.diagonal(second), diagonal_cost)
    diagonal = _steps.divide(noisy, opened.count, live)
    opened = opened._replace(key=key).add((entry,), {"diagonal": diagonal})

    paired, relation = config.center == "pairs", config.relation
    private = Private(
        second=second,
        count=opened.count,
        own=sensitivity.box_entry(relation, diagonal=True, paired=paired) * opened.slack,
        other=sensitivity.box_entry(relation, diagonal=False, paired=paired) * opened.slack,
        offset=centre.offset,
        spread=centre.spread,
        live=live,
        t=config.t,
    )
    weight = jnp.where(live, 1.0 / jnp.where(live, diagonal.std, 1.0) ** 2, 0.0)
    left = whole(cost, unit) - diagonal_cost
    rate = whole(left * each / (config.rounds_per_column * jnp.maximum(scales.d, 1.0)), each * unit)
    known = Known(
        weight=jnp.diag(weight),
        weighted=jnp.diag(weight * jnp.where(live, diagonal.value, 0.0)),
        covariance=jnp.zeros_like(second),
        precision=jnp.zeros_like(second),
        left=left,
        rate=jnp.maximum(rate, unit),
        grown=jnp.zeros((), second.dtype),
        quantum=unit,
        round=jnp.zeros((), jnp.int32),
    )
    # With the diagonal alone measured, the maximum-entropy covariance has a closed form.
    y, lam = (jnp.diagonal(x) for x in known.measurements(private))
    precision = isolated(y, 2.0 * config.t * lam)
    variance, precision = (jnp.diag(jnp.where(live, a, 0.0)) for a in (1.0 / precision, precision))
    known = known._replace(covariance=variance, precision=precision)
    return opened, private, known, empty_log(most, each, second.dtype)


@jax.jit
def _end(
    opened: _steps.Opened, private: Private, start: Known, known: Known, log: Log, schedule: Schedule
) -> tuple[_steps.Opened, Found]:
    """The last reconstruction, to rounding, from all that the rounds measured."""
    known = _with_derivatives(private, start, known, log, schedule)
    y, lam = known.measurements(private)
    # Beyond the tolerance that is asked for, so that neither path nor start shows in the answer.
    solver = maxent.MaxentConfig(tol=1e-24 if jnp.finfo(y.dtype).bits == 64 else 1e-8, max_steps=60)
    solved = maxent.fit(y, lam, known.mask, t=private.t, init=known.precision, config=solver)
    happened = log.measure > 0
    i, j = pairs(y.shape[0])
    chosen = jnp.stack([jnp.asarray(i)[log.pair], jnp.asarray(j)[log.pair]], axis=-1)
    opened = opened.add(
        entries(log, private),
        {},
        {"rounds": jnp.sum(happened)},
        {"measured_in_round": jnp.where(happened[:, None, None], chosen, -1)},
    )
    found = Found(solved.covariance, solved.precision, y, jnp.where(known.mask, lam, 0.0), solved.gap)
    return opened, found


def _measuring(start: Known, log: Log, schedule: Schedule) -> jax.Array:
    """(T,), what measuring cost in each round, up to the rounding of costs: with the derivatives that `log` lacks."""
    last = jnp.sum(log.measure > 0) - 1
    at = jnp.arange(log.measure.shape[0])
    before = jnp.where(at < last, start.rate * schedule.growth**log.grown, 0.0)
    return (1.0 - schedule.selection_share) * jnp.where(at == last, start.left - jnp.sum(before), before)


def _with_derivatives(private: Private, start: Known, known: Known, log: Log, schedule: Schedule) -> Known:
    """What was measured in all rounds, as a differentiable function of rows and budget, choices and draws held fixed.

    Every correction is exactly zero: no value changes, and none leaves by another door than the noise.
    """
    d = private.second.shape[0]
    i, j = pairs(d)
    at = jnp.asarray(i)[log.pair], jnp.asarray(j)[log.pair]
    happened = (log.measure > 0)[:, None] & private.live[at[0]] & private.live[at[1]]
    cost = jnp.where(log.measure > 0, log.measure + tangent(_measuring(start, log, schedule)), 1.0)
    std = (joint(log.pair, private) / (jnp.sqrt(2.0 * cost) * private.count))[:, None]
    exact, std_then = private.second[at] / private.count, jnp.where(happened, log.std, 1.0)
    draw = jnp.where(happened, (log.value - exact) / std_then, 0.0)
    value = log.value + tangent(exact) + tangent(std) * jax.lax.stop_gradient(draw)
    gain = jnp.where(happened, 1.0 / (std_then * std_then) + tangent(1.0 / (std * std)), 0.0)
    return known._replace(
        weight=add(start.weight, at, gain),
        weighted=add(start.weighted, at, gain * value),
        precision=jax.lax.stop_gradient(known.precision),
    )
