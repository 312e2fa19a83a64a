"""Reconstructions of a covariance from noisy measurements of all its entries, and their average by data fission.

All of it is post-processing: nothing here sees rows. Each reconstruction is right for another kind of matrix; which
ones fit is told by fission (Leiner, Duan, Wasserman, Ramdas 2023): with w a fresh copy of the noise in y, y + a w and
y - w / a are independent, so the reconstruction from the one is scored by the other without bias.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import linalg, maxent
from jaxdpcov.linalg import eigenvalues
from jaxdpcov.maxent.problem import isolated
from jaxdpcov.privacy import noise

#: Reconstructions by name, in the order of `reconstructions`. The two spectral ones keep the measured variances.
NAMES = (
    "full", "shrunk", "mixture", "above 2", "above 2.5", "above 3", "diagonal", "spectral", "spectral in z", "denoised"
)  # fmt: skip
#: Entries below so many noise standard deviations are left to maximum entropy.
_CUTS = (2.0, 2.5, 3.0)
#: Sizes of correlations that a mixture may have, as variances; the first stands for none.
_SIZES = (1e-8, *(10.0 ** (-4.0 + 4.0 * k / 13) for k in range(14)))
#: Noise added for a score: a in y + a w. Exponential weights fall by e for so many times the variance of a score's
#: entry.
_FISSION, _TEMPERATURE = 0.7, 8.0


class Noisy(NamedTuple):
    """Measured covariances y (d, d), the stds of their noise (d, d), and which columns are not constant (d,)."""

    y: Any
    std: Any
    live: Any


class Averaged(NamedTuple):
    """The averaged covariance, the weights of the reconstructions, and their largest gap."""

    covariance: Any
    weights: Any
    gap: Any


def average(key: jax.Array, noisy: Noisy, t: Any, copies: int, best: bool) -> Averaged:
    """The average of all reconstructions of y with exponential weights in their fission scores; the best if `best`.

    Exponential weights as of Leung and Barron (2006): at temperature 4 sigma^2 they are never worse than the best
    reconstruction by more than that times the logarithm of how many there are, for independent scores.
    """
    draws = noise.standard_normal(key, (copies, *noisy.y.shape), noisy.y.dtype)
    upper = jnp.triu(draws)
    draws = noisy.std[None] * (upper + jnp.swapaxes(jnp.triu(draws, 1), -1, -2))
    train = noisy._replace(std=noisy.std * math.sqrt(1.0 + _FISSION**2))
    # The reconstruction that is released and those for the scores at once: one program, one compilation.
    ys = jnp.concatenate([noisy.y[None], noisy.y[None] + _FISSION * draws])
    stds = jnp.concatenate([noisy.std[None], jnp.broadcast_to(train.std[None], draws.shape)])
    made, gaps = jax.lax.map(lambda one: reconstructions(Noisy(one[0], one[1], noisy.live), t), (ys, stds))

    held_out = noisy.y[None] - draws / _FISSION
    on = noisy.live[:, None] & noisy.live[None, :]
    # In units of the noise of what is held out: the squared error as the noise sees it, each entry counted once.
    unit = jnp.where(on, noisy.std, 1.0)[None, None]
    miss = jnp.where(jnp.triu(on)[None, None], (made[1:] - held_out[:, None]) / unit, 0.0)
    score = jnp.mean(jnp.sum(miss * miss, axis=(-2, -1)), axis=0) / (1.0 + _FISSION**-2)
    # A reconstruction that failed, as some do in float32, is left out; where all did, the weights are NaN.
    score = jnp.where(jnp.all(jnp.isfinite(made), axis=(0, 2, 3)), score, jnp.inf)
    score = score - jnp.min(score)
    weights = (score == 0).astype(score.dtype) if best else jnp.exp(-score / _TEMPERATURE)
    weights = weights / jnp.sum(weights)
    weighed = weights[:, None, None]
    covariance = jnp.sum(jnp.where(weighed == 0, 0.0, weighed * made[0]), axis=0)
    return Averaged(covariance, weights, gaps[0])


def reconstructions(noisy: Noisy, t: Any) -> tuple[jax.Array, jax.Array]:
    """(10, d, d) reconstructions, and the largest duality gap behind them."""
    d, live = noisy.y.shape[0], noisy.live
    on = live[:, None] & live[None, :]
    eye = jnp.eye(d, dtype=bool)
    std = jnp.where(on, noisy.std, 1.0)
    y, lam = jnp.where(on, noisy.y, 0.0), 1.0 / (std * std)
    variance = 1.0 / isolated(jnp.diagonal(y), 2.0 * t * jnp.diagonal(lam))
    units = jnp.where(on, jnp.sqrt(variance[:, None] * variance[None, :]), 1.0)

    shrunk_y, shrunk_lam = shrunk(y, lam, units, on & ~eye)
    mixed_y, mixed_lam = mixture(y, lam, units, on & ~eye)
    # So tight that an error of the solver is nothing beside one of the noise, in derivatives too.
    tol = 1e-14 if jnp.finfo(y.dtype).bits == 64 else None
    dense, sparse = (maxent.MaxentConfig(tol=tol, preconditioner=which) for which in ("eigen", "diagonal"))
    ys, lams = jnp.stack([y, shrunk_y, mixed_y]), jnp.stack([lam, shrunk_lam, mixed_lam])
    # One at a time: batched factorisations of two programs at once can block each other for good on a CPU.
    whole = jax.lax.map(lambda one: maxent.fit(one[0], one[1], on, t=t, config=dense), (ys, lams))
    cuts = jnp.asarray(_CUTS, y.dtype)
    masks = on[None] & ((jnp.abs(y)[None] > cuts[:, None, None] * std[None]) | eye[None])
    parts = jax.lax.map(lambda mask: maxent.fit(y, lam, mask, t=t, config=sparse), masks)

    diagonal = jnp.diag(jnp.where(live, variance, 0.0))
    mean_std, unit_std = (_root_mean_square(a, on & ~eye) for a in (std, std / units))
    correlation = jnp.where(eye, jnp.where(live, 1.0, 0.0), y / units)
    first = spectral(linalg.after(correlation, whole.covariance), unit_std, live)
    denoised = jnp.where(on, spectral(linalg.after(y, first), mean_std, live), 0.0)
    both = [_with_variances(a, variance, live) for a in (first, denoised)]
    made = jnp.concatenate([whole.covariance, parts.covariance, jnp.stack([diagonal, *both, denoised])])
    return made, jnp.maximum(jnp.max(whole.gap), jnp.max(parts.gap))


def shrunk(y: jax.Array, lam: jax.Array, units: jax.Array, off: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Measurements combined with a prior N(0, tau^2) on each correlation, tau^2 by moments."""
    tau = _mean((y * y - 1.0 / lam) / (units * units), off)
    prior = 1.0 / (jnp.maximum(tau, _SIZES[0]) * units * units)
    total = jnp.where(off, lam + prior, lam)
    return jnp.where(off, y * lam / total, y), total


def mixture(y: jax.Array, lam: jax.Array, units: jax.Array, off: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Posterior means of correlations under a mixture of normals about 0, fitted to them, with their precisions.

    Expectation maximisation for the weights of fixed sizes, with a pseudo-observation of none (Stephens 2017).
    """
    sizes = jnp.asarray(_SIZES, y.dtype)
    value, error, size = (y / units)[None], (1.0 / (lam * units * units))[None], sizes[:, None, None]
    var = error + size
    log_likelihood = -0.5 * (jnp.log(var) + value * value / var)

    def responsibilities(weights: jax.Array) -> jax.Array:
        return jax.nn.softmax(log_likelihood + jnp.log(weights)[:, None, None], axis=0)

    def improve(_: Any, weights: jax.Array) -> jax.Array:
        # Each pair stands twice in the matrix.
        seen = 0.5 * jnp.sum(jnp.where(off[None], responsibilities(weights), 0.0), axis=(1, 2))
        seen = (seen + 1e-3).at[0].add(1.0)
        return seen / jnp.sum(seen)

    weights = jax.lax.fori_loop(0, 100, improve, jnp.full(sizes.shape, 1.0 / len(_SIZES), y.dtype))
    share, kept = responsibilities(weights), size / var
    mean = jnp.sum(share * kept, axis=0) * value[0]
    second = jnp.sum(share * (kept * error + (kept * value) ** 2), axis=0)
    spread = jnp.maximum(second - mean * mean, 1e-2 * _SIZES[0])
    return jnp.where(off, mean * units, y), jnp.where(off, 1.0 / (spread * units * units), lam)


def spectral(a: jax.Array, off: jax.Array, live: jax.Array) -> jax.Array:
    """`a` with its eigenvalues moved to where those of the signal are expected, none below a quarter of the noise."""
    values, vectors = eigenvalues.eigh_masked(a, live)
    moved = jnp.maximum(
        eigenvalues.rotation_invariant(values, off, jnp.arange(values.shape[0]) >= jnp.sum(~live)), 0.25 * off
    )
    return eigenvalues.recompose(vectors, moved)


def _mean(a: jax.Array, where: jax.Array) -> jax.Array:
    """The mean over some entries, 0 over none."""
    return jnp.sum(jnp.where(where, a, 0.0)) / jnp.maximum(jnp.sum(where, dtype=a.dtype), 1.0)


def _root_mean_square(a: jax.Array, where: jax.Array) -> jax.Array:
    square = _mean(a * a, where)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), square)


def _with_variances(a: jax.Array, variance: jax.Array, live: jax.Array) -> jax.Array:
    """The correlations of `a` at the given variances, which are measured far better."""
    own = jnp.where(live, jnp.sqrt(variance / jnp.where(live, jnp.diagonal(a), 1.0)), 0.0)
    return a * (own[:, None] * own[None, :])
