"""PGCE, and the releases of a covariance or of a preconditioner that come from it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import linalg
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _mapped
from jaxdpcov.mechanisms._ellipsoid import Estimate, home, shrink
from jaxdpcov.mechanisms._prior import Prior, prior, released
from jaxdpcov.mechanisms._registry import fold
from jaxdpcov.mechanisms.klsu import precondition
from jaxdpcov.mechanisms.klsu.config import KLSUConfig
from jaxdpcov.mechanisms.klsu.precondition import Conditioned
from jaxdpcov.privacy.budget import split
from jaxdpcov.release import Release


class Fitted(NamedTuple):
    """A covariance after preconditioning.

    conditioned: the rounds. answer: the last noisy second moment, in units of conditioned.a. projected: to PSD.
    a, back: a map, and its inverse, under which the covariance is at most I, by a matrix that covers it. bits: status.
    """

    conditioned: Conditioned
    answer: _mapped.Answer
    projected: Any
    a: Any
    back: Any
    bits: Any

    def estimate(self, about: Prior, config: KLSUConfig) -> Estimate:
        """The covariance in data units."""
        found = home(self.conditioned.back, self.answer, self.projected, self.back, about, config)
        return found._replace(bits=found.bits | self.bits)


def fit(key: jax.Array, rows: Rows, rho: Any, about: Prior, b: Any, config: KLSUConfig, *, aim: bool) -> Fitted:
    """PGCE: preconditioning at its share of rho, then one noisy second moment of the mapped rows."""
    keys, (first, last) = _plan(key, rho, config)
    pairs = keys[2] if config.center == "pairs" else None
    conditioned = precondition.run(keys[0], pairs, rows, first, about, b, config, aim=aim)
    n = precondition.terms(rows, config)
    answer = precondition.measure(
        keys[1], pairs, rows, about, conditioned.a, n, last, b, config, "sum of z z^T, after preconditioning"
    )
    projected, z = _project(answer.value, conditioned.a)
    a, back, bits = shrink(conditioned.a, conditioned.back, z, answer.scale, n, b, config)
    return Fitted(conditioned, answer, projected, a, back, conditioned.bits | bits)


@jax.jit
def _plan(key: jax.Array, rho: jax.Array, config: KLSUConfig) -> Any:
    """Keys (of the rounds, of the estimate, of the pairing), and the parts of rho."""
    parts: Any = (rho, rho)  # without rounds all of it is the estimate's
    if config.rounds:
        parts = split(rho, (config.precondition_share, 1.0 - config.precondition_share))
    return jax.random.split(key, 3), parts


@jax.jit
def _project(z: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Z projected, and Z for whoever factors it next: two `eigh` at once over a batch can block each other on a CPU."""
    projected = linalg.psd_project(linalg.after(z, a))
    return projected, linalg.after(z, projected)


@functools.partial(jax.jit, static_argnames="more")
def failure(about: Prior, config: KLSUConfig, more: int = 0) -> jax.Array:
    """b: a round and the estimate fail with probability 2 b each, and each step `more` with 2 b; together beta."""
    assert config.rounds is not None
    return jnp.asarray(config.beta, about.upper.dtype) / (2.0 * (config.rounds + 1 + more))


def covariance(name: str, key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """The release of `naive_pce` (no rounds) and `pgce`."""
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    fitted = fit(fold(key, name, n), rows, budget.rho, about, failure(about, config), config, aim=name == "pgce")
    found = fitted.estimate(about, config)
    return _release(name, fitted.answer, found, fitted.conditioned, about, n, budget, bounds, config)


def preconditioner(name: str, key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """The release of `weak_ppc` (one round) and `ppc`."""
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d)
    noise_key, pair_key = jax.random.split(fold(key, name, n))
    pairs = pair_key if config.center == "pairs" else None
    b = failure(about, config)
    found = precondition.run(noise_key, pairs, rows, budget.rho, about, b, config, aim=name == "ppc")
    estimate = None
    if config.rounds:
        projected, _ = _project(found.last.value, found.a)
        cover = linalg.after(found.back, projected)  # which `home` takes to be behind all that is factored before it
        estimate = home(found.used, found.last, projected, cover, about, config)
        estimate = estimate._replace(bits=estimate.bits | found.bits)
    return _release(name, None, estimate, found, about, n, budget, bounds, config)


def _release(
    name: str,
    answer: _mapped.Answer | None,
    found: Estimate | None,
    conditioned: Conditioned,
    about: Prior,
    n: jax.Array,
    budget: Any,
    bounds: Any,
    config: KLSUConfig,
) -> Release:
    """What all of these releases hold; `found` is None where nothing was measured, `answer` where no estimate was."""
    return released(
        name,
        about,
        n,
        budget,
        bounds,
        config,
        conditioned.bits if found is None else conditioned.bits | found.bits,
        conditioned.entries if answer is None else (*conditioned.entries, answer.entry),
        covariance=None if found is None else found.covariance,
        measured={} if found is None else {"second_moment": found.measured},
        diagnostics=diagnostics(conditioned, answer),
        extra=extra(found, conditioned),
    )


def diagnostics(conditioned: Conditioned, answer: _mapped.Answer | None) -> dict[str, Any]:
    """Clipping radii of the noisy second moments, and kappa by round."""
    radii = [] if conditioned.answers is None else [conditioned.answers.radius]
    radii += [] if answer is None else [jnp.atleast_1d(answer.radius)]
    found = jnp.concatenate(radii) if radii else jnp.zeros_like(conditioned.kappas)
    return {"clip_radius": found, "kappa": conditioned.kappas}


@jax.jit
def extra(found: Estimate | None, conditioned: Conditioned) -> dict[str, Any]:
    """The preconditioner A with I <= A Sigma A^T <= kappa I, in data units, and the covering matrix of Sigma."""
    cover = jnp.matmul(conditioned.back, conditioned.back.T, precision="highest")
    return {
        "preconditioner": jnp.sqrt(conditioned.kappa) * conditioned.a,
        "kappa": conditioned.kappa,
        "ellipsoid": linalg.symmetrize(cover) if found is None else found.ellipsoid,
    }
