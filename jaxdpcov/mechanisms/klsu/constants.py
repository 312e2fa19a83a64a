"""Public numbers of a preconditioning round: how near the noisy second moment is, and what kappa that promises.

In a round rows are mapped so that I/kappa <= M <= I, M their covariance. docs/guarantees.md has the sums.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from jaxdpcov.mechanisms import _constants
from jaxdpcov.privacy import sensitivity, tails


def accuracy(constants: str, noise: str, n: Array, d: int, b: Array, scale: Array) -> Array:
    """eps with |Z - M| <= eps in spectral norm, but for probability b under "theory"; `scale` is the noise's std.

    theory: singular values of a Gaussian matrix within sqrt(n) (1 +- delta), and the noise's proven tail, b/2 each.
    practical: the edges of the Marchenko-Pastur law and of the noise's spectrum.
    """
    if constants == "theory":
        delta = jnp.sqrt(d / n) + jnp.sqrt(2.0 * jnp.log(4.0 / b) / n)
        return 2.0 * delta + delta**2 + scale * tails.upsilon(d, 0.5 * b, noise=noise)
    root = jnp.sqrt(d / n)
    edge = 1.0 if d == 1 else ((2.0 * d) ** 0.5 if noise == "goe" else 2.0 * d**0.5)
    return 2.0 * root + root**2 + edge * scale


def relative_accuracy(constants: str, noise: str, n: Array, d: int, rho: Array, b: Array) -> Array:
    """`accuracy` of a round that spends rho, before it is run."""
    radius = _constants.covariance_clip(constants, jnp.full_like(b, n), d, b)
    l2 = sensitivity.second_moment("ball", "replace", d, noise, width=d).l2
    return accuracy(constants, noise, n, d, b, l2 * radius**2 / (n * jnp.sqrt(2.0 * rho)))


def next_kappa(constants: str, eps: Any, kappa: Any) -> tuple[Any, Any]:
    """(kappa after a round of accuracy eps, whether the round promises anything).

    V: eigenvectors of Z with eigenvalue at least 1/2. P = Pi_V/2 + Pi_V' gives (1 - h)/kappa <= P M P <= 1/2 + eps with
    m = (1/2 - eps) kappa - 1 > 3, delta = 2 eps kappa/m, h = (3/4) delta^2/(1 - 3/m). practical: h = 0, since the short
    directions lose that much in the worst case only.
    """
    m = (0.5 - eps) * kappa - 1.0
    safe = jnp.where(m > 3.0, m, 4.0)
    h = 0.75 * (2.0 * eps * kappa / safe) ** 2 / (1.0 - 3.0 / safe) if constants == "theory" else jnp.zeros_like(m)
    following = kappa * (0.5 + eps) / jnp.where(h < 1.0, 1.0 - h, 1.0)
    return following, (m > 3.0) & (h < 1.0) & (following < kappa)
