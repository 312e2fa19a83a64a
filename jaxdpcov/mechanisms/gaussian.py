"""Noise on the moments themselves: the Gaussian mechanism, its Laplace twin, and the diagonal alone."""

from typing import Any

import jax

from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.privacy.budget import ZCDP, PureDP
from jaxdpcov.release import Release


@record()
class GaussianConfig(_steps.MomentsConfig):
    """Choices of `gaussian`; the fields are those of `MomentsConfig`.

    >>> from jaxdpcov import GaussianConfig
    >>> GaussianConfig(center="zero").psd
    'project'
    """


@record()
class LaplaceConfig(_steps.MomentsConfig):
    """Choices of `laplace`; the fields are those of `MomentsConfig` (`noise` has no effect)."""


@record()
class DiagonalConfig(_steps.MomentsConfig):
    """Choices of `diagonal`; the fields are those of `MomentsConfig` (`noise` and `shrink` have no effect)."""


@mechanism(config=GaussianConfig, budgets=(ZCDP,), bounds=(L2Bounds, BoxBounds))
def gaussian(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: GaussianConfig) -> Release:
    """Private covariance and mean by the Gaussian mechanism on the clipped second moment (and mean).

    Formal guarantee: rho-zCDP for the stated relation (replace-one with public n by default). Under l2 bounds the
    second moment has Frobenius sensitivity sqrt(2) r^2/n, and the noise is i.i.d. on its isometric vector form
    (std s on the diagonal, s/sqrt(2) off it, s = sqrt(2) r^2 / (n sqrt(2 rho))). Under a box the upper triangle in
    z-units has std d/(n sqrt(2 rho)) off the diagonal and sqrt(2/(d+1)) of that on it. The mean is a second
    Gaussian mechanism, at l2 sensitivity 2r/n or 2 sqrt(d)/n. Proofs: docs/guarantees.md.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. Clipped to `bounds` here; a row that is not finite becomes the
            public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.l2(radius, center)` or `Bounds.box(lower, upper)`, public. lower = upper marks a constant
            column, which gets no noise.
        config: `GaussianConfig`.

    Returns:
        `Release` with covariance (d, d) and mean (d,) in data units; the mean is None unless center="private".

    Raises:
        TypeError, ValueError: for public arguments only (shapes, bounds, budget, config), never for what rows hold.
        Traced arguments that are invalid give NaN and a status instead.

    References:
        Dwork, Talwar, Thakurta, Zhang 2014 (Analyze Gauss); Bun, Steinke 2016, Proposition 1.6.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> rows = jax.random.uniform(jax.random.key(1), (1000, 3))
    >>> release = gaussian(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.box(0.0, 1.0))
    >>> release.covariance.shape, release.mean.shape
    ((3, 3), (3,))
    """
    return _steps.moments("gaussian", key, rows, budget, bounds, config)


@mechanism(config=LaplaceConfig, budgets=(PureDP,), bounds=(L2Bounds, BoxBounds))
def laplace(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: LaplaceConfig) -> Release:
    """Private covariance and mean under pure epsilon-DP: Laplace noise on the clipped second moment (and mean).

    Formal guarantee: epsilon-DP for the stated relation. The upper triangle of the second moment has l1 sensitivity
    min(d/sqrt(2) + 1, sqrt((d^2+3d)/2)) r^2/n under l2 bounds (r^2/n at d = 1) and d(d+1)/2 / n in z under a box.

    Args, Returns, Raises: as `gaussian`, with `PureDP(epsilon)` as the budget.

    References: Dwork, McSherry, Nissim, Smith 2006; the sensitivities are derived in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, PureDP, laplace
    >>> rows = jax.random.uniform(jax.random.key(1), (1000, 3))
    >>> laplace(jax.random.key(0), rows, PureDP(epsilon=1.0), Bounds.l2(2.0)).covariance.shape
    (3, 3)
    """
    return _steps.moments("laplace", key, rows, budget, bounds, config)


@mechanism(config=DiagonalConfig, budgets=(ZCDP, PureDP), bounds=(L2Bounds, BoxBounds))
def diagonal(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: DiagonalConfig) -> Release:
    """Private variances alone: the covariance released is diagonal, and so is what was measured.

    Formal guarantee: rho-zCDP (Gaussian noise) or epsilon-DP (Laplace noise), as the budget says. The diagonal of the
    second moment has l2 sensitivity sqrt(2) r^2/n under l2 bounds and sqrt(d)/n in z under a box; its l1
    sensitivity is 2 r^2/n and d/n.

    Args, Returns, Raises: as `gaussian`. Off-diagonal entries of the result are exactly 0 and say nothing of the rows.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, diagonal
    >>> rows = jax.random.uniform(jax.random.key(1), (1000, 3))
    >>> diagonal(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.box(0.0, 1.0)).std.shape
    (3,)
    """
    return _steps.moments("diagonal", key, rows, budget, bounds, config, diagonal=True)
