"""What the two ways of measuring means hand to the release, and the floor that keeps probabilities off 0 and 1."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Result(NamedTuple):
    """Means (d,) in u as they left the noise, the noise's std by column, status bits, ledger and extra arrays."""

    value: Any
    std: Any
    bits: Any
    ledger: Any
    extra: dict[str, Any]


def floor(std: jax.Array, n: jax.Array) -> jax.Array:
    """(d,) the least probability released: 1.5 standard deviations of the noise, or one row in 2 n; at most 1/2.

    A column of mean p costs (p - q)^2/(q(1 - q)) in the bound on the total variation distance. With q at a floor f
    above p that is below f/(1 - f), with q drawn toward 0 by noise of standard deviation s about s^2/q: f of the size
    of s balances the two. 1.5 is fitted (docs/results/product.md).
    """
    least = jnp.maximum(jnp.maximum(1.5 * std, 0.5 / n), jnp.finfo(std.dtype).eps)
    return jnp.where(jnp.isnan(least), jnp.nan, jnp.minimum(least, 0.5))
