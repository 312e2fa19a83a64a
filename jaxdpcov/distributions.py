"""Distributions as records: the Gaussian of a mean and a covariance, the product distribution over {0,1}^d of a mean.

They are what a private mean and covariance say about a row, in data units: densities and synthetic rows that cost no
further privacy. Fields may have leading axes, as those of a batch of releases, and all runs under jit, vmap and grad.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, linalg
from jaxdpcov._records import record
from jaxdpcov.privacy.noise import standard_normal

Array = jax.Array


@record()
class Gaussian:
    """N(mean, covariance).

    mean: (..., d), data units. covariance: (..., d, d), data units, of which the symmetric part counts; leading axes
    broadcast against those of the mean.

    A covariance that is not positive definite is kept: it can be sampled from, and has no density. Non-finite entries
    give NaN.

    >>> from jaxdpcov.distributions import Gaussian
    >>> law = Gaussian([0.0, 1.0], [[1.0, 0.0], [0.0, 4.0]])
    >>> law.d, round(float(law.log_density([0.0, 3.0])), 4)  # -log(2 pi) - log 2 - 1/2
    (2, -3.031)
    """

    mean: Any
    covariance: Any

    def __post_init__(self) -> None:
        _as_arrays(self, "mean", "covariance")
        mean, covariance = np.shape(self.mean), np.shape(self.covariance)
        if len(covariance) < 2 or covariance[-1] != covariance[-2] or mean[-1:] != covariance[-1:]:
            raise ValueError(
                f"mean and covariance must be (..., d) and (..., d, d), got shapes {mean} and {covariance}"
            )

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(np.shape(self.covariance)[-1])

    def log_density(self, x: Any) -> Array:
        """The log density at x (..., d), in data units: (...), with leading axes those of x against the fields' own.

        -inf everywhere, with gradient 0, where the covariance is not positive definite: such a Gaussian has no density.
        Release with `psd="floor"`, or raise the eigenvalues with `linalg.psd_project`, to have one.
        """
        mean, covariance, x = _floats(self.mean, self.covariance, x)
        lower, ok = linalg.try_cholesky(covariance)
        shape = np.broadcast_shapes(x.shape, mean.shape, covariance.shape[:-1])
        shift = jnp.broadcast_to(x, shape) - jnp.broadcast_to(mean, shape)
        # All points of one matrix are the columns of one solve.
        batch = shape[len(shape) - covariance.ndim + 1 : -1]
        columns = jnp.moveaxis(shift.reshape(-1, *batch, self.d), 0, -1)
        factor = jnp.broadcast_to(lower, (*batch, self.d, self.d))
        solved = jax.lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True)
        squared = jnp.moveaxis(jnp.sum(solved**2, axis=-2), -1, 0).reshape(shape[:-1])
        scale = jnp.sum(jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)), axis=-1) + 0.5 * self.d * math.log(
            2 * math.pi
        )
        value = -0.5 * squared - jnp.broadcast_to(scale, shape[:-1])
        known = jnp.broadcast_to(jnp.all(jnp.isfinite(covariance), axis=(-2, -1)), shape[:-1])
        none = jnp.where(known & ~jnp.isnan(value), -jnp.inf, jnp.nan).astype(value.dtype)
        return jnp.where(jnp.broadcast_to(ok, shape[:-1]), value, none)

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Independent draws (*shape, ..., d), data units, ... being the fields' leading axes.

        mean + R z with R the symmetric root of the covariance's PSD part: a singular covariance gives rows in its
        range, of an indefinite one the negative eigenvalues count as 0, and gradients are finite in both.

        Args:
            key: one PRNG key, used up.
            shape: leading shape of the result, static.
        """
        mean, covariance = _floats(self.mean, self.covariance)
        batch = np.broadcast_shapes(mean.shape[:-1], covariance.shape[:-2])
        root = jnp.broadcast_to(linalg.sqrtm(covariance), (*batch, self.d, self.d))
        z = standard_normal(key, (math.prod(shape), *batch, self.d), covariance.dtype)
        moved = jnp.einsum("n...i,...ij->n...j", z, root, precision="highest")
        drawn = jnp.broadcast_to(mean, (*batch, self.d))[None] + moved
        return drawn.reshape(*shape, *batch, self.d)


@record()
class Product:
    """The product distribution over {0,1}^d: independent columns, column j being 1 with probability mean[j].

    mean: (..., d), probabilities in [0, 1]. An entry outside of them is kept: no outcome has a mass then, and a draw
    takes it for the nearest end. Non-finite entries give NaN.

    >>> from jaxdpcov.distributions import Product
    >>> law = Product([0.5, 1.0])
    >>> law.d, round(float(law.log_density([0, 1])), 4), float(law.log_density([0, 0]))
    (2, -0.6931, -inf)
    """

    mean: Any

    def __post_init__(self) -> None:
        _as_arrays(self, "mean")
        if np.ndim(self.mean) < 1:
            raise ValueError(f"mean must be (..., d), got shape {np.shape(self.mean)}")

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(np.shape(self.mean)[-1])

    def log_density(self, x: Any) -> Array:
        """The log mass of x (..., d): (...), with leading axes those of x against the mean's own.

        -inf for an outcome that is impossible, or no outcome (an entry other than 0 and 1), with gradient 0 there.
        """
        mean, x = _floats(self.mean, x)
        shape = np.broadcast_shapes(x.shape, mean.shape)
        mean, x = jnp.broadcast_to(mean, shape), jnp.broadcast_to(x, shape)
        chance = jnp.where(x == 1, mean, 1.0 - mean)
        possible = ((x == 0) | (x == 1)) & (chance > 0) & (chance <= 1)
        value = jnp.sum(jnp.where(possible, jnp.log(jnp.where(possible, chance, 1.0)), -jnp.inf), axis=-1)
        possible = jnp.all(possible, axis=-1)
        known = jnp.all(jnp.isfinite(mean) & ~jnp.isnan(x), axis=-1)
        return jnp.where(known, jnp.where(possible, value, -jnp.inf), jnp.nan)

    def sample(self, key: Any, shape: tuple[int, ...] = ()) -> Array:
        """Independent draws (*shape, ..., d), 0.0 or 1.0 in the mean's dtype; their gradient is 0.

        Args:
            key: one PRNG key, used up.
            shape: leading shape of the result, static.
        """
        (mean,) = _floats(self.mean)
        mean = jnp.broadcast_to(mean, (*shape, *mean.shape))
        u = jax.random.uniform(_checks.typed_key(key), mean.shape, mean.dtype)
        return jnp.where(jnp.isfinite(mean), (u < mean).astype(mean.dtype), jnp.nan)


def _as_arrays(node: Any, *names: str) -> None:
    """Make arrays of lists, which would else be trees of leaves."""
    for name in names:
        value = getattr(node, name)
        if isinstance(value, (list, tuple)):
            object.__setattr__(node, name, jnp.asarray(value))


def _floats(*values: Any) -> tuple[Array, ...]:
    """All as float arrays of one dtype: the widest among those that are floats, else JAX's default."""
    arrays = [jnp.asarray(value) for value in values]
    dtypes = [array.dtype for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
    dtype = np.result_type(*dtypes) if dtypes else jnp.asarray(0.0).dtype
    return tuple(array.astype(dtype) for array in arrays)
