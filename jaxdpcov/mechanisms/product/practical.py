"""Two questions to all rows: a first look at every mean, then rows weighted by it and truncated at a private radius."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import status
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms.product import measure
from jaxdpcov.mechanisms.product.config import Known, ProductConfig
from jaxdpcov.mechanisms.product.result import Result
from jaxdpcov.privacy import ledger
from jaxdpcov.privacy.budget import split

#: Radii to the octave.
_PER_OCTAVE = 8
#: The mass that truncation takes away, weighed against the noise that it saves; fitted, see docs/results/product.md.
_LOST_WEIGHT = 0.5
#: The noise of the choice in units of the least loss expected. It grows with the most that one row counts, which this
#: settles, and which matters where a few rows hold all the mass, as in no product of many columns.
_CHANCE = 0.3
#: A first look as rough as this cannot tell a mean of 0 from one of 1/2.
_ROUGH = 0.125


class Plan(NamedTuple):
    """What the first look settles: the question that follows, and the choice of its radius."""

    shape: Any
    choice: Any


def fit(key: jax.Array, rows: Rows, budget: Any, about: Known, config: ProductConfig, relative: bool) -> Result:
    """Means, the errors of small ones weighed as they count in total variation where `relative`."""
    key_look, key_radius, key_last, costs, everything, radius = _start(key, budget, about, config)
    look = measure.mean(key_look, rows, None, about, everything, radius, costs[0], what="sum of u, first look")
    plan = _plan(look, about, costs, relative)
    radius, choice = measure.radius(key_radius, rows, about, plan.shape, plan.choice, costs[1])
    last = measure.mean(key_last, rows, None, about, plan.shape, radius, costs[2], what="weighted sum of truncated u")
    tree = ledger.Seq((look.entry, choice, last.entry))
    return _join(look, last, plan, radius, tree)


@jax.jit
def _start(key: jax.Array, budget: Any, about: Known, config: ProductConfig) -> Any:
    rest = 1.0 - config.look_share
    shares = (config.look_share, rest * config.radius_share, rest * (1.0 - config.radius_share))
    everything = measure.Shape(jnp.zeros_like(about.live), about.live.astype(about.n.dtype))
    # No row is longer, so that the first look truncates none.
    return *jax.random.split(key, 3), split(budget.rho, shares), everything, measure.reach(everything.weights)


@functools.partial(jax.jit, static_argnames="relative")
def _plan(look: measure.Answer, about: Known, costs: Any, relative: bool) -> Plan:
    """Weights that minimise the predicted noise, and what each radius would cost.

    With a row y = a u of norm at most B the noise of column j has variance B^2 / (n a_j)^2 / rho, and B^2 is about
    sum_k a_k^2 p_k. The weighted sum of variances with factors v is least at a_j^2 = sqrt(v_j / p_j).
    """
    value, std = look.value, look.std
    flipped = value > 0.5
    small = jnp.where(flipped, 1.0 - value, value)
    # Positive where the look is below its noise, the look itself far above; a mean below one row in two n is 0 here.
    p = 0.5 * (small + jnp.sqrt(small * small + 4.0 * std * std))
    p = jnp.clip(p, 0.5 / about.n, 0.5)
    v = 1.0 / (p * (1.0 - p)) if relative else jnp.ones_like(p)
    weights = jnp.where(about.live, jnp.sqrt(jnp.sqrt(v / p)), 0.0)
    most = jnp.max(weights)
    weights = weights / jnp.where(most > 0.0, most, 1.0)  # not 0/0 where all columns are constant

    longest = measure.reach(weights)
    octaves = 0.5 * math.ceil(math.log2(max(p.shape[0], 2))) + 1.0
    steps = jnp.arange(int(_PER_OCTAVE * octaves), dtype=p.dtype) / _PER_OCTAVE
    # From 1/sqrt(2) of the longest row on, sqrt(2) radius is no smaller than what no truncation at all allows.
    radii = jnp.where(steps > 0.0, longest * 2.0 ** (-0.5 - steps), longest)
    live = jnp.where(about.live, v, 0.0)
    spread = jnp.sqrt(jnp.sum(live / jnp.where(about.live, weights, 1.0) ** 2) / (2.0 * costs[2]))
    # All means shrink by the share lost: its error is that share times the norm of the means, as far as it is seen.
    size = jnp.sum(live * (small * small - std * std))
    seen = jnp.sqrt(2.0 * jnp.sum((live * std * std) ** 2))
    unit = spread / jnp.sqrt(jnp.maximum(size, seen))
    square = weights * weights
    mass = jnp.maximum(jnp.sum(square * small), jnp.sqrt(jnp.sum((square * std) ** 2)))
    mass = jnp.where(mass > 0.0, mass, 1.0)
    # The square of the norm of rows of 0 and 1 has the mean `mass`: a radius half as large again will do.
    least = jnp.minimum(1.5 * jnp.sqrt(2.0 * mass), longest) * unit
    weight = jnp.asarray(_LOST_WEIGHT, p.dtype)
    most = _CHANCE * least * jnp.sqrt(8.0 * costs[1]) / (2.0 * weight)
    most = jnp.maximum(jnp.minimum(most, longest * longest / mass), 1.0)
    loss = jnp.minimum(math.sqrt(2.0) * radii, longest) * unit
    return Plan(measure.Shape(flipped, weights), measure.Choice(radii, loss, mass, most, weight))


@jax.jit
def _join(look: measure.Answer, last: measure.Answer, plan: Plan, radius: jax.Array, tree: Any) -> Result:
    """Both measurements, averaged by their noise: none of the budget of the first look is lost."""
    asked = (look.std != 0.0) & (last.std != 0.0)
    share = jnp.where(asked, last.std**2 / jnp.where(asked, look.std**2 + last.std**2, 1.0), 0.5)
    value = share * look.value + (1.0 - share) * last.value
    std = jnp.sqrt(share) * look.std
    rough = jnp.max(look.std) > _ROUGH
    extra = {"flipped": plan.shape.flipped, "weights": plan.shape.weights, "radius": radius}
    return Result(value, jnp.where(asked, std, 0.0), jnp.where(rough, status.TOO_FEW_ROWS, status.OK), tree, extra)
