"""Rounds of private preconditioning: each halves the directions that a noisy second moment finds long."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import linalg, status
from jaxdpcov.data.rows import ArrayRows, Rows
from jaxdpcov.mechanisms import _constants, _mapped
from jaxdpcov.mechanisms._prior import Prior
from jaxdpcov.mechanisms.klsu import constants
from jaxdpcov.mechanisms.klsu.config import KLSUConfig
from jaxdpcov.privacy.budget import split


class Conditioned(NamedTuple):
    """What the rounds leave behind: I/kappa <= a Sigma a^T <= I.

    a, back: (d, d), the last map and its inverse. kappa: (). used: the inverse of the map of the last answer.
    answers: stacked by round, in the units of each round's map. kappas: (rounds,), after each. bits: status.
    """

    a: Any
    back: Any
    kappa: Any
    used: Any
    bits: Any
    answers: Any
    kappas: Any

    @property
    def last(self) -> _mapped.Answer:
        """The answer of the last round."""
        return self._at(-1)

    @property
    def entries(self) -> tuple[Any, ...]:
        """Of the ledger, one for each round."""
        total = self.kappas.shape[0]
        named = [f"sum of z z^T, preconditioning round {t + 1} of {total}" for t in range(total)]
        return tuple(dataclasses.replace(self._at(t).entry, what=what) for t, what in enumerate(named))

    def _at(self, t: int) -> _mapped.Answer:
        return jax.tree_util.tree_map(lambda leaf: leaf[t], self.answers)


def run(
    key: jax.Array,
    pairs: jax.Array | None,
    rows: Rows,
    rho: Any,
    about: Prior,
    b: Any,
    config: KLSUConfig,
    *,
    aim: bool,
) -> Conditioned:
    """All rounds at equal parts of rho; each fails with probability 2 b under "theory".

    With `aim` the status says so where they do not bring kappa to config.kappa_final.
    """
    assert config.rounds is not None
    total = config.rounds
    n = terms(rows, config)

    def one(state: tuple[jax.Array, ...], given: tuple[jax.Array, jax.Array]) -> Any:
        # Folded here: keys as rows of the scan's input would be taken for used ones by JAX's check under vmap.
        answer = measure(jax.random.fold_in(key, given[0]), pairs, rows, about, state[0], n, given[1], b, config, "")
        state = _step(state, answer, n, b, config)
        return state, (answer, state[2])

    state, (answers, kappas) = _repeat(one, rows, _start(about), _plan(rho, total), total)
    a, back, kappa, used, bits = state
    missed = status.TOO_FEW_ROWS if aim else status.OK
    bits = bits | jnp.where(kappa <= config.kappa_final, status.OK, missed).astype(bits.dtype)
    return Conditioned(a, back, kappa, used, bits, answers, kappas)


def _repeat(one: Any, rows: Rows, state: Any, given: Any, total: int) -> Any:
    """`jax.lax.scan` of the rounds where rows are an array, and the same on the host where they are a stream."""
    if isinstance(rows, ArrayRows) or total == 0:
        return jax.lax.scan(one, state, given) if total else (state, (None, jnp.zeros(0, rows.dtype)))
    found = []
    for t in range(total):
        state, out = one(state, jax.tree_util.tree_map(lambda leaf, t=t: leaf[t], given))
        found.append(out)
    return state, jax.tree_util.tree_map(lambda *leaves: jnp.stack(leaves), *found)


def measure(
    key: jax.Array,
    pairs: jax.Array | None,
    rows: Rows,
    about: Prior,
    a: jax.Array,
    n: jax.Array,
    cost: jax.Array,
    b: jax.Array,
    config: KLSUConfig,
    what: str,
) -> _mapped.Answer:
    """NaivePCE: the noisy second moment of rows of covariance at most I, at a radius that holds most of them."""
    return _mapped.second_moment(
        key,
        rows,
        # One pairing for all rounds: the same fold each time, which is also computed once.
        None if pairs is None else jax.random.fold_in(pairs, 0),
        about.center,
        a,
        _mapped.Query(n, _radius(n, b, about, config, rows.d), cost),
        kind=config.noise,
        long_rows=config.long_rows,
        what=what,
    )


@functools.partial(jax.jit, static_argnames="rounds")
def _plan(rho: jax.Array, rounds: int) -> Any:
    """The number and the part of rho of each round."""
    if not rounds:
        return ()
    return jnp.arange(rounds), jnp.stack(split(rho, (1.0 / rounds,) * rounds))


@jax.jit
def _start(about: Prior) -> tuple[jax.Array, ...]:
    """The first map (upper A0)^{-1/2}, its inverse, kappa, that inverse again, status; NaN of bounds that are none."""
    root = jnp.sqrt(about.upper)
    known = jnp.where(about.valid, jnp.ones_like(root), jnp.nan)
    back = about.color * root * known
    return about.white / root * known, back, about.upper * known, back, jnp.asarray(status.OK, jnp.int32)


def terms(rows: Rows, config: KLSUConfig) -> jax.Array:
    """Terms of a second moment: rows or pairs."""
    n = jnp.asarray(rows.count(), rows.dtype)
    return jnp.maximum(jnp.floor(n / 2.0) if config.center == "pairs" else n, 1.0)


@functools.partial(jax.jit, static_argnames="d")
def _radius(n: jax.Array, b: jax.Array, about: Prior, config: KLSUConfig, d: int) -> jax.Array:
    return jnp.where(about.valid, _constants.covariance_clip(config.constants, n, d, b), jnp.nan)


@jax.jit
def _step(
    state: tuple[jax.Array, ...], answer: _mapped.Answer, n: jax.Array, b: jax.Array, config: KLSUConfig
) -> tuple[jax.Array, ...]:
    """WeakPPC: the next map, its inverse and kappa. Z is not projected: no eigenvalue below 0 is at least 1/2."""
    a, back, kappa, _, bits = state
    d = a.shape[0]
    eps = constants.accuracy(config.constants, config.noise, n, d, b, answer.scale)
    following, usable = constants.next_kappa(config.constants, eps, kappa)
    long = linalg.spectral_map(answer.value, _at_least, 0.5)
    root, eye = jnp.sqrt(0.5 + eps), jnp.eye(d, dtype=a.dtype)
    next_a = jnp.matmul((eye - 0.5 * long) / root, a, precision="highest")
    next_back = jnp.matmul(back, (eye + long) * root, precision="highest")
    take = usable | jnp.isnan(kappa)
    bits = bits | jnp.where(take, status.OK, status.TOO_FEW_ROWS).astype(bits.dtype)
    following = jnp.where(take, following, kappa)
    return jnp.where(take, next_a, a), jnp.where(take, next_back, back), following, back, bits


def _at_least(x: jax.Array, threshold: jax.Array) -> jax.Array:
    return (x >= threshold).astype(x.dtype)
