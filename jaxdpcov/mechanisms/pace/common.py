"""What `pace`, `ssp_select` and `auto` share: the way from sums to a question, and from an answer to a release."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import status
from jaxdpcov.data import clip
from jaxdpcov.mechanisms import _steps
from jaxdpcov.privacy import noise
from jaxdpcov.release import Release


class Centre(NamedTuple):
    """What a noisy mean takes off the second moment, (d, d), and the variance that it adds to it; 0 without a mean."""

    mean: noise.Measured | None
    offset: Any
    spread: Any


class Found(NamedTuple):
    """A covariance in z, with its inverse and what it rests on; (d, d) each, 0 in constant columns.

    y: covariances as measured. weight: 1/std^2 of each, 0 where nothing was measured. gap: (), of the reconstruction.
    """

    covariance: Any
    precision: Any
    y: Any
    weight: Any
    gap: Any


@functools.partial(jax.jit, static_argnames="name")
def begin(
    name: str,
    key: jax.Array,
    sums: _steps.Sums,
    n: jax.Array,
    frame: clip.Frame,
    budget: Any,
    config: Any,
    valid: jax.Array,
) -> tuple[_steps.Opened, Centre]:
    """Check public numbers and measure n and the mean where they are private."""
    opened = _steps.begin(name, key, n, frame, budget, config, valid)
    scales = _steps.Scales(frame, budget, config, opened.slack)
    key_mean, key = jax.random.split(opened.key)
    opened, mean = _steps.measure_mean(key_mean, sums.first, scales, opened._replace(key=key), config.mean_share)
    return opened, centre_of(mean, sums.second)


def centre_of(mean: noise.Measured | None, second: jax.Array) -> Centre:
    """The centre that a noisy mean in z makes for a second moment, zeros of whose shape stand for none."""
    if mean is None:
        nothing = jnp.zeros_like(second)
        return Centre(None, nothing, nothing)
    # The square of a noisy mean is too large by its noise variance, and has a variance itself.
    m, v = mean.value, mean.std**2
    spread = (m**2)[:, None] * v[None, :] + v[:, None] * (m**2)[None, :] + v[:, None] * v[None, :]
    spread = jnp.where(jnp.eye(m.shape[0], dtype=bool), 2.0 * spread, spread)
    return Centre(mean, m[:, None] * m[None, :] - jnp.diag(v), spread)


def block(live: jax.Array) -> jax.Array:
    """(d, d), the entries of columns that are not constant."""
    return live[:, None] & live[None, :]


@functools.partial(jax.jit, static_argnames="name")
def close(
    name: str,
    opened: _steps.Opened,
    found: Found,
    centre: Centre,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: Any,
) -> Release:
    """The release of a reconstruction, with what it rests on in `extra`."""
    live, scale = block(frame.live), frame.scale[:, None] * frame.scale[None, :]
    inside = jnp.where(live, found.covariance, 0.0)
    # No eigenvalue is the least that is above a diagonal entry: there the constant columns are out of the way.
    absent = jnp.diag(jnp.where(frame.live, 0.0, jnp.max(jnp.diagonal(inside))))
    each = 1e-8 if jnp.finfo(found.gap.dtype).bits == 64 else 1e-4
    enough = each * jnp.maximum(jnp.sum(frame.live, dtype=found.gap.dtype), 1.0)
    missed = ~(found.gap <= enough)
    opened = opened._replace(bits=opened.bits | jnp.where(missed, status.NOT_CONVERGED, status.OK)).add(
        (),
        {},
        {
            "gap": jnp.maximum(found.gap, enough),  # below that it is rounding
            "smallest_eigenvalue": jnp.linalg.eigvalsh(inside + absent)[0],
        },
        {
            "measured_mask": found.weight > 0,
            "measurements": found.y,
            "measurement_precision": found.weight,
            "precision": jnp.where(live, found.precision / jnp.where(live, scale, 1.0), 0.0),
        },
    )
    return _steps.close(
        name,
        opened,
        frame,
        budget,
        bounds,
        config,
        covariance=found.covariance,
        mean=centre.mean,
        indefinite=jnp.asarray(False),
    )
