"""Distinct values of a map of the rows, and how many rows have each: what a histogram over unbounded bins needs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov.data.rows import ArrayRows, Rows


def tally(rows: Rows, f: Callable[..., Any], *args: Any) -> tuple[jax.Array, jax.Array]:
    """Distinct values of each column of f(rows, *args) with their counts, both (n, k); private.

    Rows of the result where a count is 0 mean nothing; which they are depends on the data, the shape on n alone.

    Args:
        rows: in memory and without weights: a person with several rows could be alone in several bins.
        f: a map from rows (n, d) to finite numbers (n, k).

    Raises: TypeError for rows of another home, ValueError for weighted ones.

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import Rows
    >>> from jaxdpcov.data.tally import tally
    >>> values, counts = tally(Rows.array(jnp.array([[2.0], [1.0], [2.0]])), lambda x: x)
    >>> values.tolist(), counts.tolist()
    ([[1.0], [2.0], [2.0]], [[1], [2], [0]])
    """
    if not isinstance(rows, ArrayRows):
        raise TypeError("a histogram over unbounded bins needs rows in memory: give an array")
    if rows.weighted:
        raise ValueError("a histogram over unbounded bins needs unweighted rows: give one row for each person, or rho=")
    values = jnp.sort(f(rows.values, *args), axis=0)
    n = values.shape[0]
    first = jnp.concatenate([jnp.ones_like(values[:1], bool), values[1:] != values[:-1]])
    at = jnp.broadcast_to(jnp.arange(n)[:, None], values.shape)
    starts = jnp.where(first, at, n)
    # The start of the next run: the smallest start after each place.
    after = jax.lax.cummin(jnp.concatenate([starts[1:], jnp.full_like(starts[:1], n)]), axis=0, reverse=True)
    return values, jnp.where(first, after - at, 0)
