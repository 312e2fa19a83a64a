"""Two noisy queries on a population of unknown scale: sums over rows that a public or released map brings into a ball.

Each query is one function, which joins the reduction to the noise that fits it. A map is a matrix A (rows become A x)
or a number; it and every centre and radius are public or made from earlier noisy answers.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.privacy import noise, sensitivity


class Query(NamedTuple):
    """The numbers of a query, all public or released.

    n: rows (or pairs) to divide by. radius: clipping radius after the map. cost: rho, or epsilon under `pure`.
    """

    n: Any
    radius: Any
    cost: Any


class Answer(NamedTuple):
    """A noisy mean over rows, in units of mapped rows.

    value, std: the statistic and its noise by entry. scale: the noise's std on the diagonal (Laplace: its scale).
    radius: the clipping radius. entry: the line of the ledger.
    """

    value: Any
    std: Any
    scale: Any
    radius: Any
    entry: Any


def second_moment(
    key: jax.Array,
    rows: Rows,
    pairs: jax.Array | None,
    center: jax.Array,
    a: jax.Array,
    query: Query,
    *,
    kind: str,
    pure: bool = False,
    long_rows: str = "clip",
    what: str,
) -> Answer:
    """(1/n) sum w w^T + noise, w = A (x - center) clipped to query.radius; of pair differences where `pairs` is a key.

    A row is in one pair and its partner stays, so in both forms one replaced row changes one w. With long_rows="drop"
    a longer row counts as 0, which is in the ball too.
    """
    scaled = _divide(a, query.radius)  # the ball of radius query.radius becomes the unit ball
    drop = long_rows == "drop"
    if pairs is None:
        total = rows.reduce(_kept_rows if drop else _second_rows, center, scaled)
    else:
        total = rows.reduce_pairs(_kept_pairs if drop else _second_pairs, pairs, center, scaled)
    return _named(_noisy_second(key, total, query, kind=kind, pure=pure), what)


def mean(
    key: jax.Array,
    rows: Rows,
    center: jax.Array,
    a: jax.Array,
    about: jax.Array,
    query: Query,
    *,
    pure: bool = False,
    what: str,
) -> Answer:
    """(1/n) sum w + noise, w = A (x - center) - about clipped to query.radius, (d,)."""
    total = rows.reduce(_first_rows, center, a, about, query.radius)
    return _named(_noisy_mean(key, total, query, pure=pure), what)


@jax.jit
def _divide(a: jax.Array, radius: jax.Array) -> jax.Array:
    return a / radius


def _second_rows(x: jax.Array, weights: Any, center: jax.Array, a: jax.Array) -> jax.Array:
    return _outer(clip.clip_l2(mapped(x, center, a), 1.0), weights)


def _second_pairs(first: jax.Array, second: jax.Array, valid: Any, center: jax.Array, a: jax.Array) -> jax.Array:
    return _outer(clip.clip_l2(_difference(first, second, center, a), 1.0), valid)


def _kept_rows(x: jax.Array, weights: Any, center: jax.Array, a: jax.Array) -> jax.Array:
    return _outer(_within(mapped(x, center, a)), weights)


def _kept_pairs(first: jax.Array, second: jax.Array, valid: Any, center: jax.Array, a: jax.Array) -> jax.Array:
    return _outer(_within(_difference(first, second, center, a)), valid)


def _difference(first: jax.Array, second: jax.Array, center: jax.Array, a: jax.Array) -> jax.Array:
    # Sanitised before the difference, so that a row that is no row counts as the centre, and after it (overflow).
    difference = _finite(first - center[None, :]) - _finite(second - center[None, :])
    return _times(_finite(difference * 0.5**0.5), a)


def _within(z: jax.Array) -> jax.Array:
    """Rows, 0 in place of one beyond the unit ball; what is left of one that is no number is 0 too."""
    return jnp.where((clip.row_norms(z) <= 1.0)[:, None], clip.clip_l2(z, 1.0), jnp.zeros_like(z))


def _first_rows(
    x: jax.Array, weights: Any, center: jax.Array, a: jax.Array, about: jax.Array, radius: jax.Array
) -> jax.Array:
    z = clip.clip_l2(mapped(x, center, a) - about[None, :], radius) * (1.0 / radius)
    return jnp.sum(z if weights is None else z * weights[:, None], axis=0)


def _finite(x: jax.Array) -> jax.Array:
    """Rows with 0 for each that is not finite; entries whose squares are not come down to where they are.

    Such an entry is beyond any variance in this dtype, and would be clipped; now derivatives stay finite too.
    """
    most = float(jnp.finfo(x.dtype).max) ** 0.5
    finite = jnp.all(jnp.isfinite(x), axis=-1, keepdims=True)
    return jnp.where(finite, jnp.clip(x, -most, most), jnp.zeros_like(x))


def mapped(x: jax.Array, center: jax.Array, a: jax.Array) -> jax.Array:
    """Rows A (x - center), sanitised; A is a matrix, a number, or one number for each column."""
    return _times(_finite(x - center[None, :]), a)


def _times(x: jax.Array, a: jax.Array) -> jax.Array:
    # As X A^T: A is not symmetric from the second round on.
    if a.ndim < 2:
        return x * jnp.broadcast_to(a, (1, x.shape[1]))
    return jnp.matmul(x, a.T, precision="highest")


def _outer(z: jax.Array, weights: Any) -> jax.Array:
    weighted = z if weights is None else z * weights[:, None]
    return jnp.matmul(weighted.T, z, precision="highest")


@functools.partial(jax.jit, static_argnames=("kind", "pure"))
def _noisy_second(key: jax.Array, total: jax.Array, query: Query, *, kind: str, pure: bool) -> Answer:
    """Noise on sum z z^T of rows in the unit ball, then the units of w."""
    d = total.shape[0]
    slack = jnp.asarray(sensitivity.slack(total.dtype), total.dtype)
    if pure:
        l1 = sensitivity.second_moment_l1("ball", "replace", d, width=d)
        found, entry = noise.symmetric_laplace(key, total, sensitivity=l1 * slack, epsilon=query.cost, what="")
    else:
        shape = sensitivity.second_moment("ball", "replace", d, kind, width=d)
        found, entry = noise.symmetric_gaussian(
            key, total, sensitivity=shape.l2 * slack, rho=query.cost, diag=shape.diag, off=shape.off, what=""
        )
    units = query.radius**2 / query.n
    return Answer(found.value * units, found.std * units, entry.scale * units, query.radius, entry)


@functools.partial(jax.jit, static_argnames="pure")
def _noisy_mean(key: jax.Array, total: jax.Array, query: Query, *, pure: bool) -> Answer:
    """Noise on sum z of rows in the unit ball, then the units of w."""
    d = total.shape[0]
    slack = jnp.asarray(sensitivity.slack(total.dtype), total.dtype)
    if pure:
        l1 = sensitivity.mean_l1("ball", "replace", float(d))
        found, entry = noise.laplace(key, total, sensitivity=l1 * slack, epsilon=query.cost, what="")
    else:
        l2 = sensitivity.mean_l2("ball", "replace", float(d))
        found, entry = noise.gaussian(key, total, sensitivity=l2 * slack, rho=query.cost, what="")
    units = query.radius / query.n
    return Answer(found.value * units, found.std * units, entry.scale * units, query.radius, entry)


def _named(answer: Answer, what: str) -> Answer:
    """The answer with the name of its round in the ledger; given here, so that all rounds share one compilation."""
    return answer._replace(entry=dataclasses.replace(answer.entry, what=what))
