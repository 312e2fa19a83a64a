"""What the known noise of a release says about its matrix: shrinkage of off-diagonals, and a floor for eigenvalues."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov.linalg.matrix import Array, symmetrize


def shrink_to_diagonal(cov: Any, noise_std: Any) -> tuple[Array, Array]:
    """Shrink the off-diagonals toward 0 by a James-Stein weight: estimated share of noise in their energy.

    With x the off-diagonals j < k and s their known noise stds, weight = min(1, c / sum x^2), where
    c = max(0, sum s^2 - 2 max s^2), and the result is x (1 - weight). sum x^2 estimates signal + noise energy; the
    2 max s^2 is the price of estimating the weight from the same numbers. By Stein's lemma the expected squared error
    of x (1 - c / sum x^2) less that of x is at most c (c - 2 (sum s^2 - 2 max s^2)) E[1 / sum x^2] under independent
    Gaussian noise: negative whatever the signal, smallest at this c, and smaller still with the weight capped at 1.

    Args:
        cov: noisy matrix (..., d, d), as it left the noise mechanism: shrink before any PSD step, in the units in which
            the noise is of one size (z units of a box release), because one weight serves all entries.
        noise_std: std of the noise on each entry, units of `cov`: a number, or broadcastable to (..., d, d); its
            diagonal is not used. Of entries (j, k) and (k, j) the mean variance counts.

    Returns:
        (matrix, weight): matrix (..., d, d) with the diagonal of `cov` untouched; weight (...) in [0, 1].

    Edge cases:
        No noise: weight 0 and the symmetric part of `cov` to the last bit. d <= 2 has at most one off-diagonal, and two
        equal noise variances are needed to pay for the weight: weight 0 there.
        A PSD matrix stays PSD. NaN in `cov` or in `noise_std` gives NaN.

    References: James and Stein 1961; Stein 1981; Ledoit and Wolf 2004 (the same idea for sampling noise).

    >>> import jax.numpy as jnp
    >>> from jaxdpcov import linalg
    >>> cov = jnp.eye(3) + 0.1
    >>> matrix, weight = linalg.shrink_to_diagonal(cov, noise_std=0.1)
    >>> round(float(weight), 4), [round(float(x), 4) for x in matrix[0]]
    (0.3333, [1.1, 0.0667, 0.0667])
    """
    cov = symmetrize(cov)
    std = jnp.asarray(noise_std).astype(cov.dtype)
    std = jnp.broadcast_to(std, np.broadcast_shapes(std.shape, cov.shape))
    return _shrink(jnp.broadcast_to(cov, std.shape), std)


@jax.jit
def _shrink(cov: Array, std: Array) -> tuple[Array, Array]:
    d = cov.shape[-1]
    off = jnp.broadcast_to(~np.eye(d, dtype=bool), cov.shape)
    x, s = jnp.where(off, cov, 0.0), jnp.where(off, std, 0.0)
    # Squares of numbers of order one, whatever the units; the scale cancels from the weight.
    top = jnp.maximum(jnp.max(jnp.abs(x), axis=(-2, -1)), jnp.max(jnp.abs(s), axis=(-2, -1)))[..., None, None]
    top = jax.lax.stop_gradient(jnp.where(top > 0, top, 1.0))
    energy, variance = 0.5 * _sum((x / top) ** 2), 0.5 * _mean_transpose((s / top) ** 2)
    noise = jnp.maximum(_sum(variance) - 4.0 * jnp.max(variance, axis=(-2, -1)), 0.0)
    ratio = jnp.where(energy > noise, noise / jnp.where(energy > 0, energy, 1.0), jnp.where(noise > 0, 1.0, 0.0))
    weight = jnp.where(jnp.all(jnp.isfinite(cov), axis=(-2, -1)) & ~jnp.isnan(noise), ratio, jnp.nan)
    kept = (1.0 - weight)[..., None, None]
    return jnp.where(off | jnp.isnan(kept), cov * kept, cov), weight


def _sum(x: Array) -> Array:
    return jnp.sum(x, axis=(-2, -1))


def _mean_transpose(x: Array) -> Array:
    return 0.5 * x + 0.5 * x.mT


def noise_floor(noise_std: Any, dim: int, fraction: float = 0.25) -> Array:
    """A floor for eigenvalues from the noise level: a fraction of the edge of the noise matrix's own spectrum.

    The largest |eigenvalue| of symmetric noise with entry stds s is about 2 max_j sqrt(sum_k s_jk^2) (Wigner 1958;
    Bandeira and van Handel 2016): eigenvalues of the signal below that cannot be told from 0. A floor at the whole edge
    overstates them, one near 0 ruins the inverse. A quarter was the compromise over identity, low-rank and decaying
    spectra in simulation (d = 10 and 40): no cost in Frobenius error, and a loss of the inverse near the best.

    Args:
        noise_std: std of the noise on each entry: a number, or broadcastable to (..., dim, dim).
        dim: number of columns d.
        fraction: part of the edge.

    Returns:
        The floor (...), units of `noise_std`; hand it to `psd_project`.

    >>> from jaxdpcov import linalg
    >>> float(linalg.noise_floor(0.5, dim=4))
    0.5
    """
    std = jnp.asarray(noise_std)
    if not jnp.issubdtype(std.dtype, jnp.floating):
        std = std.astype(jnp.asarray(0.0).dtype)
    std = jnp.broadcast_to(std, np.broadcast_shapes(std.shape, (dim, dim)))
    top = jnp.max(jnp.abs(std), axis=(-2, -1))
    safe = jnp.where(top > 0, top, 1.0)
    row = jnp.max(jnp.sum((std / safe[..., None, None]) ** 2, axis=-1), axis=-1)
    return jnp.where(top == 0, 0.0, 2.0 * fraction * safe * jnp.sqrt(jnp.where(top == 0, 1.0, row)))
