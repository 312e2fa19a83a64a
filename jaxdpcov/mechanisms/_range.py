"""The range finder of Karwa and Vadhan: a noisy histogram of each mapped column, and the bin that holds its mean.

Bins have the width of a standard deviation. The heaviest of them lies within one and a half of it from the mean of a
(near) normal column, wherever in a wide public interval that is.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import status
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._mapped import mapped
from jaxdpcov.privacy import noise, sensitivity
from jaxdpcov.privacy.budget import split

#: Most bins on either side of 0 in the first search, and the ratio of widths from one search to the next: a wider
#: interval is searched in several stages, each within three bins of the one before.
MOST, RATIO = 2048, 1024
#: How far the centre of the heaviest bin is from the mean, in bins.
OFFSET = 1.5
#: The bin of the mean holds at least 0.3413 of a normal law of standard deviation 1 bin (the worst place is an end), a
#: bin that starts a full width beyond it at most 0.1587 (an end bin, with all that lies beyond). The difference is what
#: two bins together may be off.
GAP = 0.3413 - 0.1587


class Found(NamedTuple):
    """point: (d,) centres of the heaviest bins, mapped units. entries: of the ledger. bits: status."""

    point: Any
    entries: tuple[Any, ...]
    bits: Any


def choose_bins(reach: float) -> tuple[int, ...]:
    """Half-numbers of bins by stage, where means lie within `reach` standard deviations of 0.

    >>> from jaxdpcov.mechanisms._range import choose_bins
    >>> choose_bins(1000.0), choose_bins(1e6)
    ((1000,), (977, 1537))
    """
    if not reach < 1e100:
        raise ValueError(f"a range of {reach:.2g} standard deviations on either side is too wide to search: narrow it")
    stages = 1 if reach <= MOST else 1 + math.ceil(math.log(reach / MOST) / math.log(RATIO))
    first = max(1, math.ceil(reach / RATIO ** (stages - 1)))
    return (first, *[math.ceil(OFFSET * RATIO) + 1] * (stages - 1))


def check_bins(bins: Any) -> tuple[int, ...] | None:
    """`bins` of a config as a tuple, or one line that says what it must be."""
    if bins is None:
        return None
    whole = isinstance(bins, (tuple, list)) and all(isinstance(h, (int, np.integer)) and h >= 1 for h in bins)
    if not whole or not bins or len(bins) > 64 or max(bins) > 2**20:
        raise ValueError(f"bins must be a tuple of whole numbers from 1 to {2**20}, or None; got {bins!r}")
    return tuple(int(h) for h in bins)


def find(
    key: jax.Array,
    rows: Rows,
    center: jax.Array,
    a: jax.Array,
    cost: jax.Array,
    b: jax.Array,
    bins: tuple[int, ...],
    *,
    columns: Any = None,
    pure: bool = False,
) -> Found:
    """Points within 1.5 of the means of a (x - center), whose columns have standard deviations of at most 1.

    `columns`: how many of them there are, where a is 0 for the others; all of them unless given.
    One histogram by stage, all columns in one query; the stages share the cost. Rows beyond the bins count in the last.
    """
    n = jnp.asarray(rows.count(), rows.dtype)
    keys, costs, point = _plan(key, cost, a, len(bins), rows.d)
    entries: list[Any] = []
    bits = jnp.asarray(status.OK)
    for s, half in enumerate(bins):
        width = jnp.asarray(float(RATIO) ** (len(bins) - 1 - s), rows.dtype)
        grid = jnp.arange(-half, half + 1, dtype=rows.dtype)
        what = f"histograms, stage {s + 1} of {len(bins)}"
        counts = rows.reduce(_histogram, center, a, point, width, grid)
        point, entry, found = _heaviest(
            keys[s], counts, point, width, grid, n, costs[s], b, rows.d if columns is None else columns, pure, what
        )
        entries.append(entry)
        bits |= found
    return Found(point, tuple(entries), bits)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _plan(key: jax.Array, cost: jax.Array, a: jax.Array, stages: int, d: int) -> Any:
    return jax.random.split(key, stages), split(cost, (1.0 / stages,) * stages), jnp.zeros(d, a.dtype)


def _histogram(
    x: jax.Array,
    weights: Any,
    center: jax.Array,
    a: jax.Array,
    point: jax.Array,
    width: jax.Array,
    grid: jax.Array,
) -> jax.Array:
    """(d, bins) weights of rows by the bin nearest to each coordinate, bins centred at point + width * grid."""
    steps = jnp.clip(jnp.round((mapped(x, center, a) - point[None, :]) / width), grid[0], grid[-1])
    at = (jnp.where(jnp.isfinite(steps), steps, 0.0) - grid[0]).astype(jnp.int32)
    added = jnp.ones_like(x) if weights is None else jnp.broadcast_to(weights[:, None], x.shape)
    columns = jnp.broadcast_to(jnp.arange(x.shape[1])[None, :], x.shape)
    return jnp.zeros((x.shape[1], grid.shape[0]), x.dtype).at[columns, at].add(added)


@functools.partial(jax.jit, static_argnames=("pure", "what"))
def _heaviest(
    key: jax.Array,
    counts: jax.Array,
    point: jax.Array,
    width: jax.Array,
    grid: jax.Array,
    n: jax.Array,
    cost: jax.Array,
    b: jax.Array,
    columns: Any,
    pure: bool,
    what: str,
) -> tuple[jax.Array, Any, jax.Array]:
    """Noise on the histograms, the centre of the heaviest bin of each, and whether n is large enough to trust it."""
    d, slack = counts.shape[0], jnp.asarray(sensitivity.slack(counts.dtype), counts.dtype)
    draws = jnp.log(counts.size / b)
    if pure:
        bound = sensitivity.histogram_l1("replace", columns) * slack
        noisy, entry = noise.laplace(key, counts, sensitivity=bound, epsilon=cost, what=what)
        tail = entry.scale * draws
    else:
        bound = sensitivity.histogram_l2("replace", columns) * slack
        noisy, entry = noise.gaussian(key, counts, sensitivity=bound, rho=cost, what=what)
        tail = entry.scale * jnp.sqrt(2.0 * draws)
    # A NaN scale spoils every count, and argmax would still name a bin.
    found = point + width * jnp.where(jnp.isnan(entry.scale), jnp.nan, grid[jnp.argmax(noisy.value, axis=1)])
    sample = 2.0 * jnp.sqrt(jnp.log(2.0 * d / b) / (2.0 * n))  # Dvoretzky, Kiefer, Wolfowitz, Massart: an interval
    enough = 2.0 * (tail / n + sample) <= GAP
    return found, entry, jnp.where(enough, status.OK, status.TOO_FEW_ROWS)
