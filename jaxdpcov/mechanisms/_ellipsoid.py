"""Post-processing of noisy second moments of mapped rows: the next map, from a matrix that covers, and the way back.

Nothing here has access to rows. Every number is public or was released.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import linalg, status
from jaxdpcov.mechanisms import _constants as constants
from jaxdpcov.mechanisms._mapped import Answer
from jaxdpcov.mechanisms._prior import Prior
from jaxdpcov.privacy import noise

#: The part of the noise's spectral edge that positive eigenvalues add to a projected matrix, by simulation.
EDGE = 0.3


@jax.jit
def shrink(
    a: jax.Array, back: jax.Array, z: jax.Array, scale: jax.Array, n: jax.Array, b: jax.Array, config: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next map and its inverse, both by products, from U = factor (Z projected to PSD + shift I)."""
    d = a.shape[0]
    factor, shift, usable = constants.covariance_inflation(config.constants, config.noise, n, d, b, scale)
    # Eigenvalues of Z below 0 end at the shift: the projection and the power are one function of the spectrum.
    half = linalg.powm(z + shift * jnp.eye(d, dtype=a.dtype), 0.5, floor=shift)
    # U^{-1/2} A by a solve: its condition is the square root of U's, and a second `eigh` would cost ten times more.
    lower, definite = linalg.try_cholesky(half)
    root = jnp.sqrt(factor)
    next_a = jnp.where(definite, jax.scipy.linalg.cho_solve((lower, True), a) / root, jnp.nan)
    next_back = jnp.matmul(back, half, precision="highest") * root
    edge = (2.0 * d) ** 0.5 if config.noise == "goe" else 2.0 * d**0.5
    stuck = ~usable | (factor * (shift + EDGE * edge * scale) >= 1.0)
    bits = jnp.where(stuck, status.TOO_FEW_ROWS, status.OK)
    if config.constants == "theory":
        # Both sets hold the truth; the one of smaller volume is kept. det(half)^4 factor^d is the ratio of squares.
        volume = 4.0 * jnp.sum(jnp.log(jnp.diagonal(lower))) + d * jnp.log(factor)
        take = (usable & definite & (volume < 0.0)) | jnp.isnan(z[0, 0])
        next_a, next_back = jnp.where(take, next_a, a), jnp.where(take, next_back, back)
    return next_a, next_back, bits


class Estimate(NamedTuple):
    """A covariance in data units, what was measured in units of the prior's scale, the covering matrix, status bits."""

    covariance: Any
    measured: noise.Measured
    ellipsoid: Any
    bits: Any


@jax.jit
def home(back: jax.Array, last: Answer, projected: jax.Array, cover: jax.Array, about: Prior, config: Any) -> Estimate:
    """The way back, A^{-1} Z A^{-T}, with the map that was used for the last Z; `projected` is Z projected to PSD."""
    d = back.shape[0]

    def unmapped(z: jax.Array) -> jax.Array:
        return linalg.symmetrize(jnp.matmul(jnp.matmul(back, z, precision="highest"), back.T, precision="highest"))

    size = jnp.max(jnp.abs(jnp.diagonal(last.value)))
    tolerance = 1e-6 * size + jnp.finfo(size.dtype).tiny
    # The last round's `eigh` led to the cover.
    raised = linalg.after(last.value + tolerance * jnp.eye(d, dtype=size.dtype), cover)
    _, definite = linalg.try_cholesky(raised)
    covariance = unmapped(last.value if config.psd == "none" else projected)
    if config.psd == "floor":
        inner = jnp.matmul(jnp.matmul(about.white, covariance, precision="highest"), about.white, precision="highest")
        inner = linalg.psd_project(linalg.after(inner, definite), floor=1.0)
        covariance = linalg.symmetrize(
            jnp.matmul(jnp.matmul(about.color, inner, precision="highest"), about.color, precision="highest")
        )
    units = about.scale[:, None] * about.scale[None, :]
    measured = noise.Measured(unmapped(last.value) / units, mapped_std(back, last.scale, config.noise) / units)
    ellipsoid = jnp.matmul(cover, cover.T, precision="highest")
    bits = jnp.where(definite, status.OK, status.NOT_PSD)
    return Estimate(covariance, measured, linalg.symmetrize(ellipsoid), bits)


def mapped_std(back: jax.Array, scale: jax.Array, kind: str) -> jax.Array:
    """Std of each entry of B W B^T, W symmetric noise of std `scale` on the diagonal, B = `back`.

    With P = B B^T its variance is scale^2 (P_ii P_jj + P_ij^2)/2 for "goe"; twice that less
    scale^2 sum_k B_ik^2 B_jk^2 for "sgw". By rows of length 1, so that nothing overflows.
    """
    length = jnp.linalg.norm(back, axis=1)
    unit = back / length[:, None]
    inner = jnp.matmul(unit, unit.T, precision="highest")
    variance = 1.0 + inner**2
    if kind == "goe":
        variance = 0.5 * variance
    else:
        variance = variance - jnp.matmul(unit**2, (unit**2).T, precision="highest")
    return scale * length[:, None] * length[None, :] * jnp.sqrt(variance)
