"""The default number of rounds: the fewest whose predicted error is near the best, from concrete public numbers.

A prediction guides a choice and guarantees nothing. It takes the truth to be where the bounds leave most to find out:
the covariance at the lower bound, the mean at the edge of its ball. The tails are those that the rounds will use.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxdpcov.mechanisms import _constants as public
from jaxdpcov.mechanisms._ellipsoid import EDGE
from jaxdpcov.privacy import sensitivity

#: Rounds tried; a round costs a pass over the rows, so the fewest within TOLERANCE of the best are taken.
TRIED, TOLERANCE = 16, 1.02
#: Budgets that stand in for one that cannot be looked at.
STAND_IN = tuple(10.0 ** (0.25 * k) for k in range(-8, 5))

#: (loose state, cost of the round, its failure probability) -> (next state, predicted error if this round is the last).
Step = Callable[[Array, Array, Array], tuple[Array, Array]]


def fewest(step: Step, start: float, beta: float, cost: float | None) -> int:
    """The fewest rounds near the least predicted error, or near the least regret over the stand-ins without a cost."""
    costs = np.asarray(STAND_IN if cost is None else (cost,))
    with jax.ensure_compile_time_eval():  # inside a caller's trace too: every number here is concrete
        errors = np.asarray(_errors(step, start, beta, costs), np.float64)
    regret = np.max(errors / np.min(errors, axis=0), axis=1)
    return int(np.argmax(regret <= TOLERANCE * np.min(regret))) + 1


def _errors(step: Step, start: float, beta: float, costs: np.ndarray) -> Array:
    """Predicted errors (TRIED, len(costs)) of 1, 2, ... rounds at the default split, all advanced together."""
    total = np.broadcast_to(np.arange(1, TRIED + 1)[:, None], (TRIED, len(costs)))
    before = np.maximum(total - 1, 1)
    state, error = jnp.full(total.shape, start), jnp.zeros(total.shape)
    for s in range(TRIED):
        last = total == s + 1
        share = np.where(last, np.where(total == 1, 1.0, 0.75), 0.25 / before)
        b = np.where(last, beta / 4.0, beta / (4.0 * before))
        following, found = step(state, jnp.asarray(share * costs), jnp.asarray(b))
        error = jnp.where(last, found, error)
        state = jnp.minimum(state, jnp.where(jnp.isnan(following), state, following))
    return error


@functools.lru_cache(maxsize=256)
def covariance_rounds(
    n: float, d: int, upper: float, rho: float | None, constants: str, noise: str, beta: float
) -> int:
    """Rounds for a covariance with I <= Sigma <= upper I from n rows of mean zero."""
    shape = sensitivity.second_moment("ball", "replace", d, noise, width=d)
    entries = d * shape.diag**2 + d * (d - 1) * shape.off**2
    edge = 2.0 * shape.off * d**0.5 if d > 1 else 1.0

    def step(loose: Array, cost: Array, b: Array) -> tuple[Array, Array]:
        """State: how far the covering matrix is above Sigma. Error: Frobenius norm relative to Sigma."""
        rows = jnp.full_like(b, n)
        scale = shape.l2 * public.covariance_clip(constants, rows, d, b) ** 2 / (n * jnp.sqrt(2.0 * cost))
        error = jnp.sqrt(d * (d + 1) / n + entries * (loose * scale) ** 2)
        found = public.covariance_inflation(constants, noise, rows, d, b, scale)
        following = found.factor * (1.0 + (found.shift + EDGE * edge * scale) * loose)
        return jnp.where(found.usable, following, loose), error

    if constants == "paper" and d == 1:
        return 1  # the paper's tail has no value in one column; the rounds raise and say so
    return fewest(step, upper, beta, rho)


@functools.lru_cache(maxsize=256)
def mean_rounds(n: float, d: int, radius: float, cost: float | None, constants: str, beta: float, pure: bool) -> int:
    """Rounds for a mean within `radius` standard deviations of the public centre."""

    def step(reach: Array, each: Array, b: Array) -> tuple[Array, Array]:
        """State: radius of the ball. Error: root mean square l2 norm, in standard deviations."""
        rows = jnp.full_like(b, n)
        spread = 2.0 * public.mean_clip(constants, rows, d, b, reach) / n
        scale = spread / each if pure else spread / jnp.sqrt(2.0 * each)
        variance = 2.0 * scale**2 if pure else scale**2
        return public.mean_radius(constants, rows, d, b, scale, pure), jnp.sqrt(d * (1.0 / n + variance))

    return fewest(step, radius, beta, cost)


@functools.lru_cache(maxsize=256)
def variance_rounds(n: float, upper: float, cost: float | None, constants: str, beta: float, pure: bool) -> int:
    """Rounds for a variance in [1, upper] from n values of mean zero."""

    def step(top: Array, each: Array, b: Array) -> tuple[Array, Array]:
        """State: upper end of the interval. Error: root mean square, relative to a variance of 1."""
        rows = jnp.full_like(b, n)
        cap = top * public.variance_clip(constants, rows, b) ** 2 / n
        scale = cap / each if pure else cap / jnp.sqrt(2.0 * each)
        tail, below, _ = public.variance_ends(constants, rows, b, scale, pure)
        return jnp.where(below > 0.0, (1.0 + tail) / below, top), jnp.sqrt(2.0 / n + (2.0 if pure else 1.0) * scale**2)

    return fewest(step, upper, beta, cost)
