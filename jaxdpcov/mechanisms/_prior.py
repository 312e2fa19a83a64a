"""Public prior knowledge on the population: Bounds.spectrum as a whitened frame, and what it decides on the host."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import linalg, status
from jaxdpcov._records import record
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.privacy import ledger
from jaxdpcov.privacy.budget import PureDP
from jaxdpcov.release import Release


@record()
class Prior:
    """A0 <= Sigma <= upper A0 and ||mu - center|| <= radius.

    center: (d,) data units. white, color: A0^{-1/2} and A0^{1/2}, (d, d) symmetric. upper: K, without units, >= 1.
    scale: (d,) sqrt of A0's diagonal, the units in which a release states what was measured.
    least: the smallest eigenvalue of A0. radius: data units, 1 where the bounds say nothing of the mean.
    valid: False when a traced bound is no bound, or n too small for the statistic to exist.
    """

    center: Any
    white: Any
    color: Any
    upper: Any
    scale: Any
    least: Any
    radius: Any
    valid: Any


@functools.partial(jax.jit, static_argnames=("d", "least_n"))
def prior(bounds: SpectrumBounds, n: jax.Array, d: int, *, least_n: int = 1) -> Prior:
    """The prior of `Bounds.spectrum` for n rows of d columns, in the dtype of n; a number `lower` is A0 = lower I."""
    dtype = n.dtype
    lower, upper = jnp.asarray(bounds.lower, dtype), jnp.asarray(bounds.upper, dtype)
    eye = jnp.eye(d, dtype=dtype)
    center = jnp.zeros(d, dtype)
    if bounds.mean_center is not None:
        center = jnp.broadcast_to(jnp.asarray(bounds.mean_center, dtype), (d,))
    radius = jnp.ones((), dtype) if bounds.mean_radius is None else jnp.asarray(bounds.mean_radius, dtype)
    if lower.ndim == 0:
        ratio, least, definite = upper / lower, lower, lower > 0
        white, color, scale = eye / jnp.sqrt(lower), eye * jnp.sqrt(lower), jnp.full(d, jnp.sqrt(lower))
    else:
        _, definite = linalg.try_cholesky(lower)
        safe = jnp.where(definite, lower, eye)
        # One after the other: two batched `eigh` at a time can block each other for good on a CPU.
        ratio, color = upper, linalg.sqrtm(safe)
        factor, _ = linalg.try_cholesky(color)
        white = linalg.symmetrize(jax.scipy.linalg.cho_solve((factor, True), eye))
        scale = jnp.sqrt(jnp.diagonal(safe))
        least = jnp.linalg.eigvalsh(linalg.after(color, white), symmetrize_input=False)[0] ** 2
    valid = definite & (ratio >= 1.0) & jnp.isfinite(ratio) & jnp.isfinite(least) & jnp.all(jnp.isfinite(center))
    valid &= jnp.isfinite(radius) & (radius > 0.0) & (n >= least_n)
    return Prior(center, white, color, ratio, scale, least, radius, valid)


@jax.jit
def public_bits(about: Prior, budget: Any) -> jax.Array:
    """Status of the public numbers."""
    bits = jnp.where(about.valid, status.OK, status.INVALID_BOUNDS)
    return bits | jnp.where((budget > 0.0) & jnp.isfinite(budget), status.OK, status.INVALID_BUDGET)


def released(
    name: str,
    about: Prior,
    n: Any,
    budget: Any,
    bounds: SpectrumBounds,
    config: Any,
    bits: Any,
    entries: tuple[Any, ...],
    *,
    measured: dict[str, Any],
    diagnostics: dict[str, Any],
    extra: dict[str, Any],
    covariance: Any = None,
    mean: Any = None,
) -> Release:
    """A release under `Bounds.spectrum` of what was measured one after the other: it has spent what `entries` say."""
    pure, tree = isinstance(budget, PureDP), ledger.Seq(entries)
    total = jnp.asarray(ledger.total(tree, "epsilon" if pure else "rho"), about.upper.dtype)
    return Release(
        covariance=covariance,
        mean=mean,
        measured=measured,
        center=about.center,
        scale=about.scale,
        n=n,
        bounds=bounds,
        status=bits | public_bits(about, budget.epsilon if pure else budget.rho),
        spent=jax.tree_util.tree_map(lambda _: total, budget),  # 0 where nothing was asked, which no budget may be
        ledger=tree,
        config=config,
        diagnostics=diagnostics,
        extra=extra,
        mechanism=name,
        relation=config.relation,
    )


def spread(bounds: SpectrumBounds) -> float:
    """K = upper / lower on the host, of concrete bounds."""
    upper = float(np.asarray(bounds.upper))
    return upper if np.ndim(bounds.lower) else upper / float(np.asarray(bounds.lower))


def least_eigenvalue(bounds: SpectrumBounds) -> float:
    """The smallest eigenvalue of A0 on the host, of concrete bounds."""
    return float(np.linalg.eigvalsh(np.atleast_2d(np.asarray(bounds.lower, np.float64)))[0])


def number(value: Any) -> float | None:
    """A public number on the host, None where it is traced."""
    return None if isinstance(value, jax.core.Tracer) else float(np.max(np.asarray(value, np.float64)))


def cost(budget: Any) -> float | None:
    """The number in a budget on the host, None where it is traced."""
    return number(budget.epsilon if isinstance(budget, PureDP) else budget.rho)


def settled(config: Any, field: str, choose: Callable[[], Any], **known: Any) -> Any:
    """The config with a structural choice made: as given, or choose() where the public numbers it needs are `known`."""
    if getattr(config, field) is not None:
        return config
    for name, value in known.items():
        if number(value) is None:
            raise TypeError(
                f"{field}=None is chosen by {name}, which is traced here: give "
                f"config={type(config).__name__}({field}=...)"
            )
    return dataclasses.replace(config, **{field: choose()})
