"""Covariances and preconditioners of Kamath, Li, Singhal and Ullman under the one signature."""

import dataclasses
from typing import Any

import jax

from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.mechanisms.klsu import fit
from jaxdpcov.mechanisms.klsu.config import KLSUConfig, settle_rounds
from jaxdpcov.privacy.budget import ZCDP
from jaxdpcov.release import Release


def _settle_ppc(rows: Rows, budget: Any, bounds: SpectrumBounds, config: KLSUConfig) -> KLSUConfig:
    return settle_rounds(rows, 1.0, budget, bounds, config)


def settle_pgce(rows: Rows, budget: Any, bounds: SpectrumBounds, config: KLSUConfig) -> KLSUConfig:
    """The config with its number of rounds."""
    return settle_rounds(rows, config.precondition_share, budget, bounds, config)


@mechanism(
    config=KLSUConfig,
    budgets=(ZCDP,),
    bounds=(SpectrumBounds,),
    settle=lambda rows, budget, bounds, config: dataclasses.replace(config, rounds=0),
)
def naive_pce(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """Private covariance of (near) Gaussian rows by one noisy second moment at the radius of the largest covariance.

    Formal guarantee: rho-zCDP, replace-one with public n: rows mapped by (upper A0)^{-1/2}, clipped (or dropped) at a
    public radius g, Gaussian noise on (1/m) sum w w^T at Frobenius sensitivity sqrt(2) g^2/m (g^2/m in one column), m
    rows or pairs. It holds for any rows: that they are Gaussian and within `bounds` matters for accuracy only.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. A row that is not finite becomes the public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.spectrum(lower, upper)`: lower I <= Sigma <= upper I in squared data units, or with a matrix
            A0 as `lower`, A0 <= Sigma <= upper A0. The noise grows with upper, so that n must grow with their ratio.
        config: `KLSUConfig`; its `rounds` and what belongs to them have no effect.

    Returns:
        `Release` with covariance (d, d) in data units and no mean. `extra`: "ellipsoid" (d, d), a covering matrix,
        at least Sigma with probability 1 - beta under constants="theory"; "kappa" and "preconditioner" as the bounds
        have them. `diagnostics`: "clip_radius" (1,).

    Edge cases: n < d, one column, upper = lower and singular data give finite results. One row makes no pair: an answer
        of noise alone.

    References: Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), algorithm NaivePCE; noise as in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, naive_pce
    >>> rows = jax.random.normal(jax.random.key(1), (5000, 3))
    >>> naive_pce(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.spectrum(0.5, 2.0)).covariance.shape
    (3, 3)
    """
    return fit.covariance("naive_pce", key, rows, budget, bounds, config)


@mechanism(
    config=KLSUConfig,
    budgets=(ZCDP,),
    bounds=(SpectrumBounds,),
    settle=lambda rows, budget, bounds, config: dataclasses.replace(config, rounds=1),
)
def weak_ppc(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """One round of private preconditioning: a matrix A under which the condition of the covariance is nearly halved.

    Formal guarantee: that of `naive_pce`, whose noisy second moment is all it asks of the rows.

    Args: as `naive_pce`; `rounds` is 1.

    Returns: as `ppc`.

    References: Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), algorithm WeakPPC; constants in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, weak_ppc
    >>> rows = jax.random.normal(jax.random.key(1), (20_000, 3))
    >>> release = weak_ppc(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.spectrum(0.5, 50.0))
    >>> float(release.extra["kappa"]) < 70.0
    True
    """
    return fit.preconditioner("weak_ppc", key, rows, budget, bounds, config)


@mechanism(config=KLSUConfig, budgets=(ZCDP,), bounds=(SpectrumBounds,), settle=_settle_ppc)
def ppc(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """Private preconditioner: a matrix A with I <= A Sigma A^T <= kappa I for a small kappa, from a wide prior range.

    Formal guarantee: rho-zCDP, replace-one with public n: rounds of `weak_ppc` at equal parts of rho, each on rows
    mapped by the matrix before it, which was released. Under constants="theory" I <= A Sigma A^T <= kappa I with
    probability 1 - beta over Gaussian rows and noise, after every round with its own kappa.

    Args: as `naive_pce`, and config.rounds.

    Returns:
        `Release` with `extra`: "preconditioner" A (d, d), which maps data units to units of the smallest variance, not
        symmetric; "kappa" (); "ellipsoid" (d, d), kappa (A^T A)^{-1}, a covering matrix of Sigma. `diagnostics`:
        "kappa" and "clip_radius" by round. As a by-product the covariance (d, d) that the last round's noisy second
        moment gives; `pgce` spends half of the budget on a better one. Without rounds A is that of the bounds, there
        is no covariance, and nothing is spent.

    Edge cases: a round that could not promise a smaller kappa changes nothing, and the status says so.

    References: Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), algorithm PPC; constants in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, ppc
    >>> rows = jax.random.normal(jax.random.key(1), (20_000, 3))
    >>> release = ppc(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.spectrum(0.5, 5000.0))
    >>> float(release.extra["kappa"]) <= 12.0
    True
    """
    return fit.preconditioner("ppc", key, rows, budget, bounds, config)


@mechanism(config=KLSUConfig, budgets=(ZCDP,), bounds=(SpectrumBounds,), settle=settle_pgce)
def pgce(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """Private covariance of (near) Gaussian rows from a wide prior range: preconditioning, then a noisy second moment.

    Formal guarantee: rho-zCDP, replace-one with public n: `ppc` with `precondition_share` of rho, `naive_pce` with the
    rest on rows mapped by its released matrix. It holds for any rows; the bounds matter for accuracy only.

    Args: as `naive_pce`, and config.rounds, .kappa_final and .precondition_share.

    Returns:
        `Release` with covariance (d, d) in data units and no mean. `extra` has "ellipsoid" (d, d), a covering matrix,
        at least Sigma with probability 1 - beta under constants="theory", and "preconditioner" and "kappa" as `ppc`;
        `diagnostics` has "kappa" by round and the "clip_radius" of all noisy second moments.

    Edge cases: as `naive_pce` and `ppc`. Heavy tails bias the estimate down, by clipping.

    References: Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), algorithm PGCE; constants in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, pgce
    >>> rows = jax.random.normal(jax.random.key(1), (20_000, 3))
    >>> release = pgce(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.spectrum(0.1, 1000.0))
    >>> release.covariance.shape, release.config.rounds > 1
    ((3, 3), True)
    """
    return fit.covariance("pgce", key, rows, budget, bounds, config)
