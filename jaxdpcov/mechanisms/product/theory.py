"""The rounds of Kamath, Li, Singhal and Ullman (2019) on disjoint blocks of rows, each at the whole budget.

Round r has the columns S_r, of means at most u_r = 2^-r (flipped where they are near 1). Those with a noisy mean below
tau_r = (3/8) u_r go on; the others are final. All sets are masks, and what stops the rounds has noise in it.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import status
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms.product import measure
from jaxdpcov.mechanisms.product.config import Known, ProductConfig
from jaxdpcov.mechanisms.product.result import Result, floor
from jaxdpcov.privacy import ledger


class State(NamedTuple):
    """What the rounds so far have left; arrays by column unless said.

    on: still to be settled. flipped: 1 - u is asked. value, std, error: of final columns; `error` holds for all with
    probability 1 - beta. final: the round in which a column became final, 0 for none.
    active: () rounds still run. u: () bound on the means left. total, asked: sum and number of last measurements.
    right: () the partition so far is right with probability 1 - beta.
    """

    on: Any
    flipped: Any
    value: Any
    std: Any
    error: Any
    final: Any
    active: Any
    u: Any
    total: Any
    last_std: Any
    asked: Any
    rounds: Any
    right: Any


def rounds(d: int) -> int:
    """The number of rounds before the last measurement, from the number of columns."""
    return max(1, math.ceil(math.log2(d / 2)))


def fit(key: jax.Array, rows: Rows, budget: Any, about: Known, config: ProductConfig, relative: bool) -> Result:
    """Means by rounds; with `relative` also a bound on the total variation distance, compared with alpha."""
    count = rounds(rows.d)
    key_blocks, keys, state = _start(key, about, count)
    answers, radii, sizes = [], [], []
    for r in range(count + 1):
        going, radius, shape = _ask(state, about, config, jnp.asarray(r < count), count)
        block = measure.Block(jax.random.clone(key_blocks), r, count + 1)  # the one permutation of all rounds
        answer = measure.mean(
            keys[r], rows, block, about, shape, radius, budget.rho, what=f"sum of truncated u, round {r + 1}"
        )
        answers.append(answer)
        radii.append(radius)
        sizes.append(jnp.sum(state.on))
        state = _move(state, answer, about, config, going, jnp.asarray(r == 0), count)
    tree = ledger.Par(tuple(answer.entry for answer in answers))
    return _close(state, about, config, tree, tuple(radii), tuple(sizes), count, relative)


@functools.partial(jax.jit, static_argnames="count")
def _start(key: jax.Array, about: Known, count: int) -> Any:
    zero = jnp.zeros(about.live.shape, about.n.dtype)
    key_blocks, key = jax.random.split(key)
    state = State(
        on=about.live,
        flipped=jnp.zeros_like(about.live),
        value=zero,
        std=zero,
        error=zero,
        final=jnp.zeros(zero.shape, jnp.int32),
        active=jnp.asarray(True),
        u=jnp.full((), 0.5, zero.dtype),
        total=zero,
        last_std=zero,
        asked=jnp.zeros((), zero.dtype),
        rounds=jnp.zeros((), jnp.int32),
        right=jnp.asarray(True),
    )
    return key_blocks, jax.random.split(key, count + 1), state


@functools.partial(jax.jit, static_argnames="count")
def _ask(state: State, about: Known, config: ProductConfig, more: jax.Array, count: int) -> Any:
    """Whether a round takes place, and its question; where none does, the last measurement of what is left."""
    dtype = about.n.dtype
    left = state.u * jnp.sum(state.on, dtype=dtype)
    going = state.active & more & (left >= 1.0)
    likely = measure.block_size(about.n, count + 1) / (config.alpha * config.beta)
    square = jnp.where(going, left * jnp.log(likely * count), jnp.log(likely))
    return going, jnp.sqrt(6.0 * square), measure.Shape(state.flipped, state.on.astype(dtype))


@functools.partial(jax.jit, static_argnames="count")
def _move(
    state: State,
    answer: measure.Answer,
    about: Known,
    config: ProductConfig,
    going: jax.Array,
    first: jax.Array,
    count: int,
) -> State:
    """The partition after a round, or the sum of last measurements after one more of these."""
    log, m = _log(about, config, count), measure.block_size(about.n, count + 1)
    small = jnp.where(state.flipped, 1.0 - answer.value, answer.value)
    threshold = 0.375 * state.u
    turned = state.on & first & (small > 1.0 - threshold)
    on = state.on & ((small < threshold) | turned)
    done = going & state.on & ~on
    error = _error(state.u, m, answer.std, log)
    # Within u/8 of its mean p a column that goes on has p <= u/2, and one that is final has p >= u/4.
    right = state.right & (~going | jnp.all(~state.on | (error <= 0.125 * state.u)))
    final = jnp.where(done, state.rounds + 1, state.final)
    last = ~going
    return State(
        on=jnp.where(going, on, state.on),
        flipped=state.flipped | (turned & going),
        value=jnp.where(done, answer.value, state.value),
        std=jnp.where(done, answer.std, state.std),
        error=jnp.where(done, error, state.error),
        final=final,
        active=going,
        u=jnp.where(going, 0.5 * state.u, state.u),
        total=state.total + jnp.where(last, answer.value, 0.0),
        last_std=jnp.where(last, answer.std, state.last_std),
        asked=state.asked + last.astype(state.asked.dtype),
        rounds=state.rounds + going.astype(jnp.int32),
        right=right,
    )


def _log(about: Known, config: ProductConfig, count: int) -> jax.Array:
    """The L of docs/guarantees.md: each error of one column in one block fails with probability at most e^-L."""
    return jnp.log(8.0 * about.live.shape[0] * (count + 1) / jnp.asarray(config.beta, about.n.dtype))


def _error(u: jax.Array, m: jax.Array, std: jax.Array, log: jax.Array) -> jax.Array:
    """How far a noisy mean over m rows is from a mean of at most u: Bernstein's bound, and the tail of the noise."""
    return jnp.sqrt(2.0 * u * log / m) + log / (3.0 * m) + std * jnp.sqrt(2.0 * log)


@functools.partial(jax.jit, static_argnames=("count", "relative"))
def _close(
    state: State,
    about: Known,
    config: ProductConfig,
    tree: Any,
    radii: Any,
    sizes: Any,
    count: int,
    relative: bool,
) -> Result:
    """Blocks that no round needed all made the last measurement: their average."""
    log, m = _log(about, config, count), measure.block_size(about.n, count + 1)
    last_std = state.last_std / jnp.sqrt(state.asked)
    failed = jnp.isnan(about.slack) | jnp.isnan(last_std)
    value = jnp.where(state.on | failed, state.total / state.asked, state.value)
    std = jnp.where(state.on | failed, last_std, state.std)
    error = jnp.where(state.on | failed, _error(state.u, m * state.asked, last_std, log), state.error)
    right = state.right & (about.n >= count + 1.0) & (config.alpha * config.beta <= 0.125)
    extra = {
        "final_round": jnp.where(state.on, state.rounds + 1, state.final),
        "flipped": state.flipped,
        "radius": jnp.stack(radii),
        "columns_left": jnp.stack(sizes).astype(jnp.int32),
        "error": error,
    }
    if relative:
        least = floor(std, about.n)
        q = jnp.clip(value, least, 1.0 - least)
        # Moving q to the floor f leaves it within max(error, f): p is in [0, 1].
        apart = jnp.maximum(error, least)
        square = apart * apart / (q * (1.0 - q))
        whole = jnp.sqrt(0.5 * jnp.sum(square))
        # Distances of independent parts add up: the columns measured last may be nearer one by one.
        parts = jnp.sqrt(0.5 * jnp.sum(jnp.where(state.on, 0.0, square))) + jnp.sum(jnp.where(state.on, apart, 0.0))
        distance = jnp.minimum(whole, parts)
        extra["total_variation"] = jnp.minimum(distance, 1.0)
        right &= distance <= config.alpha
    return Result(value, std, jnp.where(right, status.OK, status.TOO_FEW_ROWS), tree, extra)
