"""Eigenvectors and eigenvalues measured apart: `separate`, and the clipped mechanisms at a given radius."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _ball
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.privacy.budget import ZCDP, PureDP
from jaxdpcov.release import Release


@record()
class SeparateConfig(_ball.BallConfig):
    """Choices of `separate`; the fields are those of `BallConfig`.

    >>> from jaxdpcov import SeparateConfig
    >>> SeparateConfig(constants="paper").spectrum
    0.5
    """


@record()
class ClippedConfig(_ball.BallConfig):
    """A public radius at which rows are clipped, beside the fields of `BallConfig`.

    radius: l2 norm about the public centre, > 0: in data units under l2 bounds; under a box in its half-widths (the
    norm of z), at most sqrt(d), since columns may have different units. One beyond the bounds clips nothing more.
    """

    radius: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is None:
            raise ValueError(f"radius must be given, as in {type(self).__name__}(radius=0.5)")
        _checks.positive("radius", self.radius)


@record()
class ClippedGaussianConfig(ClippedConfig):
    """Choices of `clipped_gaussian`; the fields are those of `ClippedConfig`.

    >>> from jaxdpcov import ClippedGaussianConfig
    >>> ClippedGaussianConfig(radius=0.5, psd="project").radius
    0.5
    """


@record()
class ClippedSeparateConfig(ClippedConfig):
    """Choices of `clipped_separate`; the fields are those of `ClippedConfig`."""


@mechanism(config=SeparateConfig, budgets=(ZCDP, PureDP), bounds=(L2Bounds, BoxBounds))
def separate(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: SeparateConfig) -> Release:
    """Private covariance from noisy eigenvectors and separately measured eigenvalues.

    Formal guarantee: rho-zCDP under `ZCDP` or `ApproxDP` (Gaussian noise), epsilon-DP under `PureDP` (Laplace noise),
    for the stated relation. The second moment of rows in the unit ball and its sorted eigenvalues are two statistics:
    both have l2 sensitivity sqrt(2)/n (Hoffman and Wielandt), the eigenvalues l1 sensitivity 2/n. The mean, with
    center="private", is a third. Proofs: docs/guarantees.md.

    The error grows like d^(1/4) sqrt(trace) where that of `gaussian` grows like d: better where the second moment is
    small or of low rank against the noise, worse by up to sqrt(2) where it is not.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. Clipped to `bounds` here; a row that is not finite becomes the
            public centre.
        budget: `ZCDP(rho)`, `ApproxDP(epsilon, delta)` (converted on the host) or `PureDP(epsilon)`.
        bounds: `Bounds.l2(radius, center)`, or `Bounds.box(lower, upper)`, which is put into the unit ball by
            z / sqrt(d) with d the columns that are not constant.
        config: `SeparateConfig`.

    Returns:
        `Release` with covariance (d, d), PSD unless psd="none", and mean (d,), None unless center="private", both in
        data units. `measured` holds the noisy "second_moment" and "eigenvalues" (ascending; of constant columns first),
        in frame units x = center + scale u.

    Raises:
        TypeError, ValueError: for public arguments only, never for what rows hold. Traced arguments that are invalid
        give NaN and a status instead.

    References:
        Dong, Liang, Yi 2022 (arXiv 2205.14324), algorithm SeparateCov; Hoffman, Wielandt 1953.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, separate
    >>> rows = 0.1 * jax.random.normal(jax.random.key(1), (1000, 3))
    >>> separate(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.l2(1.0)).covariance.shape
    (3, 3)
    """
    return _ball.release("separate", key, rows, budget, bounds, config)


@mechanism(config=ClippedGaussianConfig, budgets=(ZCDP, PureDP), bounds=(L2Bounds, BoxBounds))
def clipped_gaussian(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: ClippedGaussianConfig) -> Release:
    """Private covariance of rows clipped at a public radius, with noise on the second moment.

    Formal guarantee: as `separate`, for the second moment (and mean) of the clipped rows alone: Frobenius sensitivity
    sqrt(2) radius^2/n; under `PureDP` the l1 sensitivity of the triangle, as in `laplace`, times radius^2.

    Args, Returns, Raises: as `separate`; config: `ClippedGaussianConfig(radius=...)`, required. Clipping costs a bias
    of at most the mean of max(0, |x|^2 - radius^2).

    References: Dong, Liang, Yi 2022, algorithm ClipGauss.

    >>> import jax
    >>> from jaxdpcov import Bounds, ClippedGaussianConfig, ZCDP, clipped_gaussian
    >>> rows = 0.1 * jax.random.normal(jax.random.key(1), (1000, 3))
    >>> config = ClippedGaussianConfig(radius=0.25)
    >>> clipped_gaussian(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.l2(1.0), config=config).covariance.shape
    (3, 3)
    """
    return _ball.release("clipped_gaussian", key, rows, budget, bounds, config, _within(rows, bounds, config))


@mechanism(config=ClippedSeparateConfig, budgets=(ZCDP, PureDP), bounds=(L2Bounds, BoxBounds))
def clipped_separate(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: ClippedSeparateConfig) -> Release:
    """Private covariance of rows clipped at a public radius, eigenvectors and eigenvalues measured apart.

    Formal guarantee: as `separate`, of the clipped rows: l2 sensitivities sqrt(2) radius^2/n, and l1 sensitivity
    2 radius^2/n of the eigenvalues.

    Args, Returns, Raises: as `separate`; config: `ClippedSeparateConfig(radius=...)`, required.

    References: Dong, Liang, Yi 2022, algorithm ClipSeparate.

    >>> import jax
    >>> from jaxdpcov import Bounds, ClippedSeparateConfig, ZCDP, clipped_separate
    >>> rows = 0.1 * jax.random.normal(jax.random.key(1), (1000, 3))
    >>> config = ClippedSeparateConfig(radius=0.25)
    >>> clipped_separate(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.l2(1.0), config=config).covariance.shape
    (3, 3)
    """
    return _ball.release("clipped_separate", key, rows, budget, bounds, config, _within(rows, bounds, config))


def _within(rows: Rows, bounds: Any, config: ClippedConfig) -> jax.Array:
    """The radius in units of the ball, at most 1."""
    if isinstance(bounds, L2Bounds):
        whole = jnp.asarray(bounds.radius, rows.dtype)
    else:
        live = jnp.broadcast_to(jnp.asarray(bounds.upper > bounds.lower), (rows.d,))
        whole = jnp.sqrt(jnp.maximum(jnp.sum(live, dtype=rows.dtype), 1.0))
    return jnp.minimum(config.radius / whole, 1.0)
