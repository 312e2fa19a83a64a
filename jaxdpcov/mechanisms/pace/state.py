"""What PACE works on: the sums it may question, what is known so far, and what each round did."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.privacy import ledger


class Private(NamedTuple):
    """The exact second moment and the public numbers that go with it.

    second: (d, d), sum z z^T: private, it leaves through `privacy.selection` and `privacy.noise` only.
    count: what sums are divided by. own, other: sensitivity of a diagonal and of any other entry of `second`.
    offset, spread: (d, d), what a noisy mean takes off the second moment, and the variance that it adds; 0 without one.
    live: (d,) columns that are not constant. t: weight of the measurements in the reconstruction.
    """

    second: Any
    count: Any
    own: Any
    other: Any
    offset: Any
    spread: Any
    live: Any
    t: Any


class Schedule(NamedTuple):
    """What a round needs of the config, and no more: programs are compiled for no other choice."""

    selection_share: Any
    growth: Any


class Known(NamedTuple):
    """All that has been released so far. Nothing in it is private.

    weight, weighted: (d, d), sum of 1/std^2 and of y/std^2 over the measurements of each entry of the second moment.
    covariance, precision: (d, d), the reconstruction and its inverse; 0 in constant columns.
    left, rate: budget that is left, and that of a round; both are multiples of `quantum`. grown: how often
        it has grown.
    """

    weight: Any
    weighted: Any
    covariance: Any
    precision: Any
    left: Any
    rate: Any
    grown: Any
    quantum: Any
    round: Any

    @property
    def mask(self) -> jax.Array:
        """(d, d), which entries have been measured, be it for NaN."""
        return self.weight != 0

    def measurements(self, private: Private) -> tuple[jax.Array, jax.Array]:
        """Covariances as measured, and their precisions 1/std^2, (d, d); 0 and 1 where there are none."""
        on = self.mask
        weight = jnp.where(on, self.weight, 1.0)
        y = jnp.where(on, self.weighted / weight - private.offset, 0.0)
        return y, 1.0 / (1.0 / weight + private.spread)


class Log(NamedTuple):
    """What each round did, (T, k) for k entries in a round; a round that did not take place has cost 0.

    pair: index of the entry in `pairs`. value: its noisy mean. select, measure: cost of choosing one entry and of
    measuring all k, the latter (T,). epsilon, std: of each choice, and of each value. grown: (T,), as in `Known`.
    """

    pair: Any
    value: Any
    select: Any
    epsilon: Any
    measure: Any
    std: Any
    grown: Any


def pairs(d: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry on or above the diagonal."""
    return np.triu_indices(d)


def empty_log(rounds: int, each: int, dtype: Any) -> Log:
    zeros = jnp.zeros((rounds, each), dtype)
    return Log(jnp.zeros((rounds, each), jnp.int32), zeros, zeros, zeros, zeros[:, 0], zeros, zeros[:, 0])


def quantum(budget: jax.Array) -> jax.Array:
    """A power of two of which costs are multiples, so that they add up without any rounding, in any order."""
    kind = jnp.finfo(budget.dtype)
    exponent = jnp.frexp(jax.lax.stop_gradient(budget))[1]
    return jnp.ldexp(jnp.ones((), budget.dtype), exponent - (kind.nmant - 6))


def whole(amount: jax.Array, unit: jax.Array) -> jax.Array:
    """`amount` rounded down to a multiple of a power of two, with the derivative of `amount`."""
    return jax.lax.stop_gradient(jnp.floor(amount / unit) * unit) + tangent(amount)


def tangent(x: jax.Array) -> jax.Array:
    """Exactly 0, with the derivative of x."""
    return x - jax.lax.stop_gradient(x)


def add(matrix: jax.Array, at: tuple[jax.Array, jax.Array], amount: jax.Array) -> jax.Array:
    """`amount` added to the entries `at` and to their mirror images."""
    i, j = at
    off = jnp.where(i == j, 0.0, 1.0).astype(amount.dtype)
    return matrix.at[i, j].add(amount).at[j, i].add(off * amount)


def entries(log: Log, private: Private) -> tuple[ledger.Rounds, ledger.Rounds]:
    """The ledger of the rounds: all choices of an entry, and all measurements."""
    bound = jnp.broadcast_to(private.other, log.select.shape)
    numbers = (jnp.ravel(x) for x in (bound, log.epsilon, log.select))
    choice = ledger.Entry("choice of an entry of sum of z z^T", "exponential", "rho", *numbers)
    measured = (joint(log.pair, private), log.std[:, 0] * private.count, log.measure)
    return ledger.Rounds(choice), ledger.Rounds(
        ledger.Entry("chosen entries of sum of z z^T", "gaussian", "rho", *measured)
    )


def joint(pair: jax.Array, private: Private) -> jax.Array:
    """l2 sensitivity of the entries `pair` (..., k) of the second moment, measured together."""
    i, j = pairs(private.second.shape[0])
    each = jnp.where(jnp.asarray(i == j)[pair], private.own, private.other)
    return jnp.sqrt(jnp.sum(each * each, axis=-1))
