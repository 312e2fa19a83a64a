"""The mean of mapped rows: a private interval for each coordinate, then one noisy mean of rows clipped about it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _constants, _mapped, _prior, _range
from jaxdpcov.mechanisms._prior import Prior
from jaxdpcov.mechanisms.klsu.config import KLSUConfig
from jaxdpcov.privacy import noise
from jaxdpcov.privacy.budget import split

#: Distance of the centre of the heaviest bin from the mean in standard deviations, as it is mostly: a bin's mean is
#: uniform within it, and now and then the neighbour is heavier.
TYPICAL_OFFSET = 0.5


class Located(NamedTuple):
    """The mean in units of a map: point (d,), radius () of a ball around it that holds the mean, the rest as it was."""

    point: Any
    radius: Any
    answer: _mapped.Answer
    entries: tuple[Any, ...]
    bits: Any


def failures(config: KLSUConfig) -> int:
    """The mean fails with at most this times 2 b: b for each stage, the histograms' sample, the ball and the noise."""
    assert config.bins is not None
    return (len(config.bins) + 4) // 2


def fit(key: jax.Array, rows: Rows, rho: Any, about: Prior, a: jax.Array, b: Any, config: KLSUConfig) -> Located:
    """The mean of a (x - center), of covariance at most I; it fails with probability 2 b `failures` at most."""
    assert config.bins is not None
    keys, (first, last) = _plan(key, rho, config)
    found = _range.find(keys[0], rows, about.center, a, first, b, config.bins)
    n = jnp.asarray(rows.count(), rows.dtype)
    query = _mapped.Query(n, _radius(n, b, about, config, rows.d), last)
    answer = _mapped.mean(keys[1], rows, about.center, a, found.point, query, what="sum of z, about the intervals")
    point, radius = _finish(found.point, answer, n, b, config)
    return Located(point, radius, answer, (*found.entries, answer.entry), found.bits)


@jax.jit
def _plan(key: jax.Array, rho: jax.Array, config: KLSUConfig) -> Any:
    return jax.random.split(key), split(rho, (config.range_share, 1.0 - config.range_share))


@functools.partial(jax.jit, static_argnames="d")
def _radius(n: jax.Array, b: jax.Array, about: Prior, config: KLSUConfig, d: int) -> jax.Array:
    """Of a ball about the bins' centres that holds most rows: all of them but for probability b under "theory"."""
    offset = (_range.OFFSET if config.constants == "theory" else TYPICAL_OFFSET) * d**0.5
    radius = _constants.mean_clip(config.constants, n, d, b, jnp.full_like(n, offset))
    return jnp.where(about.valid, radius, jnp.nan)


@jax.jit
def _finish(point: jax.Array, answer: _mapped.Answer, n: jax.Array, b: jax.Array, config: KLSUConfig) -> Any:
    radius = _constants.mean_radius(config.constants, n, point.shape[0], b, answer.scale, pure=False)
    return point + answer.value, radius


@jax.jit
def home(found: Located, about: Prior, back: jax.Array) -> tuple[jax.Array, noise.Measured]:
    """The mean in data units, and what was measured in units of the prior's scale."""
    shift = jnp.matmul(back, found.point, precision="highest")
    std = jnp.linalg.norm(back, axis=1) * found.answer.std
    return about.center + shift, noise.Measured(shift / about.scale, std / about.scale)


def settle_bins(bounds: Any, config: KLSUConfig) -> KLSUConfig:
    """The config with the bins that hold every mean which the bounds allow."""
    if bounds.mean_radius is None:
        raise ValueError("the mean needs mean_radius: Bounds.spectrum(lower, upper, mean_center=..., mean_radius=...)")

    def choose() -> tuple[int, ...]:
        radius = _prior.number(bounds.mean_radius)
        assert radius is not None
        # a Sigma a^T <= I and Sigma >= A0 make |a v| at most |v| / sqrt(least eigenvalue of A0).
        return _range.choose_bins(radius / _prior.least_eigenvalue(bounds) ** 0.5)

    return _prior.settled(config, "bins", choose, lower=bounds.lower, mean_radius=bounds.mean_radius)
