"""Public numbers of a round under `Bounds.spectrum`: clipping radii, how far a noisy statistic can be from the truth.

Each holds with the stated probability under "theory" and "paper" (docs/guarantees.md has the sums); "practical" takes
those of the experiments of Biswas, Dong, Kamath and Ullman (2020). Privacy rests on none of them.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxdpcov.privacy import tails

#: Failure probabilities that the practical constants put into the tails, in place of a union over rows.
PRACTICAL_COVARIANCE, PRACTICAL_MEAN = 0.1, 0.01
#: The Laplace noise of a mean has no published choice. One draw beyond its tail loses the mean for good, so the tail
#: takes this part of each round's b: all rounds together lose it with probability at most beta/20.
PRACTICAL_DRAW = 0.1


def betas(beta: Array, rounds: int) -> tuple[Array, ...]:
    """Each round's failure probability: half of beta in all, a quarter each for the last and all the others."""
    return (*[beta / (4.0 * max(rounds - 1, 1))] * (rounds - 1), beta / 4.0)


class Inflation(NamedTuple):
    """The upper bound factor (Z + shift I) on the covariance of mapped rows; `usable` False where n is too small."""

    factor: Any
    shift: Any
    usable: Any


def covariance_clip(constants: str, n: Array, d: int, b: Array) -> Array:
    """gamma: clipping radius of rows whose covariance is at most I."""
    if constants == "practical":
        return tails.eta(d, jnp.full_like(b, PRACTICAL_COVARIANCE), constants="paper")
    return tails.eta(d, b / n, constants="proven" if constants == "theory" else "paper")


def covariance_inflation(constants: str, noise: str, n: Array, d: int, b: Array, scale: Array) -> Inflation:
    """From the noisy second moment Z of mapped rows to an upper bound on their covariance; `scale` is the noise's.

    theory: the smallest eigenvalue of a Wishart matrix over n is at least (1 - delta)^2, so the covariance is at most
    (second moment)/(1 - delta)^2, and Z is at least the second moment less nu.
    """
    root, always = jnp.sqrt(d / n), jnp.ones_like(n, bool)
    if constants == "practical":
        return Inflation(jnp.ones_like(n), root + 0.5 * root**2, always)
    delta = root + jnp.sqrt(2.0 * jnp.log(2.0 / b) / n)
    if constants == "paper":
        nu = scale * tails.upsilon(d, b, noise="sgw", constants="paper")
        return Inflation(jnp.ones_like(n), 2.0 * delta + delta**2 + nu, always)
    keep = jnp.where(delta < 1.0, 1.0 - delta, jnp.ones_like(n)) ** 2
    # A few roundings, so that an eigenvalue of exactly 0 without noise stays invertible.
    rounding = 8.0 * d * float(jnp.finfo(n.dtype).eps)
    return Inflation(1.0 / keep, scale * tails.upsilon(d, b, noise=noise) + rounding, delta < 1.0)


def mean_clip(constants: str, n: Array, d: int, b: Array, radius: Array) -> Array:
    """Clipping radius about a point at most `radius` from the mean, rows of covariance at most I."""
    if constants == "practical":
        gamma = tails.eta(d, jnp.full_like(b, PRACTICAL_MEAN), constants="paper")
        # |x - c|^2 = |mu - c|^2 + 2 <mu - c, g> + |g|^2, and the middle term is beyond 6 |mu - c| in one row of 700.
        return jnp.minimum(jnp.sqrt(radius**2 + 6.0 * radius + gamma**2), radius + gamma)
    if d == 1 and constants == "paper":
        return radius + jnp.sqrt(2.0 * jnp.log(2.0 * n / b))
    return radius + tails.eta(d, b / n, constants="proven" if constants == "theory" else "paper")


def mean_radius(constants: str, n: Array, d: int, b: Array, scale: Array, pure: bool) -> Array:
    """How far the noisy mean is from the mean; `scale` is the noise's std, or its Laplace scale (one column)."""
    practical = constants == "practical"
    share = jnp.full_like(b, PRACTICAL_MEAN) if practical else b
    if pure:
        draw = PRACTICAL_DRAW * b if practical else 0.5 * b
        return tails.eta(1, share / 2.0) / jnp.sqrt(n) + scale * jnp.log(1.0 / draw)
    if d == 1 and constants == "paper":
        return jnp.sqrt(2.0 * (1.0 / n + scale**2) * jnp.log(2.0 / share))
    return jnp.sqrt(1.0 / n + scale**2) * tails.eta(d, share, constants="proven" if constants == "theory" else "paper")


def variance_clip(constants: str, n: Array, b: Array) -> Array:
    """Clipping radius of values whose variance is at most 1."""
    if constants == "practical":
        return tails.eta(1, jnp.full_like(b, PRACTICAL_MEAN), constants="paper")
    return tails.eta(1, b / n, constants="proven" if constants == "theory" else "paper")


def variance_ends(constants: str, n: Array, b: Array, scale: Array, pure: bool) -> tuple[Array, Array, Array]:
    """(tail, below, above): the variance is in [(z - tail)/above, (z + tail)/below]; no upper end where below <= 0."""
    share = jnp.full_like(b, PRACTICAL_MEAN) if constants == "practical" else b
    # Under "theory" the noise and the sample share b; the paper gives b to each.
    share = share if constants == "paper" else 0.5 * share
    q = jnp.log(2.0 / share) / n
    if pure:
        tail = scale * jnp.log(1.0 / share)
    else:
        tail = scale * (jnp.sqrt(2.0 * jnp.log(2.0 / share)) if constants == "paper" else tails.eta(1, share))
    return tail, 1.0 - 2.0 * jnp.sqrt(q), 1.0 + 2.0 * jnp.sqrt(q) + 2.0 * q
