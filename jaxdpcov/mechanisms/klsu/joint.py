"""Mean, and mean with covariance, of Kamath, Li, Singhal and Ullman under the one signature."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import linalg
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._prior import Prior, prior, released
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.mechanisms.klsu import fit, mean, precondition
from jaxdpcov.mechanisms.klsu.config import KLSUConfig, settle_rounds
from jaxdpcov.privacy.budget import ZCDP, split
from jaxdpcov.release import Release


def _check(name: str, bounds: SpectrumBounds, config: KLSUConfig) -> None:
    if config.center != "pairs":
        raise ValueError(f"{name} measures the mean and needs center='pairs', got {config.center!r}")
    if bounds.mean_radius is None:
        raise ValueError(f"{name} needs mean_radius: Bounds.spectrum(lower, upper, mean_center=..., mean_radius=...)")


def _settle_mean(rows: Rows, budget: Any, bounds: SpectrumBounds, config: KLSUConfig) -> KLSUConfig:
    _check("private_mean", bounds, config)
    return mean.settle_bins(bounds, settle_rounds(rows, config.precondition_share, budget, bounds, config))


@mechanism(config=KLSUConfig, budgets=(ZCDP,), bounds=(SpectrumBounds,), settle=_settle_mean)
def private_mean(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """Private mean of (near) Gaussian rows from wide prior ranges of mean and covariance, in units of the covariance.

    Formal guarantee: rho-zCDP, replace-one with public n: `ppc` on differences of paired rows with `precondition_share`
    of rho; of the rest `range_share` for one noisy histogram of each mapped column, all together at l2 sensitivity
    sqrt(2 d) of the counts; the remainder for one noisy mean of mapped rows clipped to a ball of public radius r about
    the heaviest bins, at sensitivity 2 r/n. It holds for any rows. Under constants="theory" the mean is in the ball
    that `extra` states with probability 1 - beta over Gaussian rows and noise.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. A row that is not finite becomes the public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.spectrum(lower, upper, mean_center=c, mean_radius=R)`: as in `pgce`, and ||mu - c|| <= R, data
            units. R enters through the number of bins, of which only the logarithm costs accuracy.
        config: `KLSUConfig`.

    Returns:
        `Release` with mean (d,) in data units and no covariance. `extra`: "preconditioner", "kappa" and "ellipsoid" as
        `ppc`; "radius": (m - mu)^T ellipsoid^{-1} (m - mu) <= radius^2. `diagnostics`: "kappa" by round, "clip_radius"
        of the noisy second moments and "mean_clip_radius".

    Edge cases: n too small for the histograms, or for a round, shows in the status; the answer is finite.

    References: Karwa, Vadhan 2018 (arXiv 1711.03908); Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), section 3.3;
        the ball in place of a box of intervals, and all constants, in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, private_mean
    >>> rows = 30.0 + jax.random.normal(jax.random.key(1), (20_000, 3))
    >>> bounds = Bounds.spectrum(0.1, 100.0, mean_radius=1000.0)
    >>> private_mean(jax.random.key(0), rows, ZCDP(rho=0.5), bounds).mean.round(0).tolist()
    [30.0, 30.0, 30.0]
    """
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    keys, (first, last), b = _plan_mean(fold(key, "private_mean", n), budget.rho, about, config)
    found = precondition.run(keys[0], keys[1], rows, first, about, b, config, aim=True)
    located = mean.fit(keys[2], rows, last, about, found.a, b, config)
    center, measured = mean.home(located, about, found.back)
    return released(
        "private_mean",
        about,
        n,
        budget,
        bounds,
        config,
        found.bits | located.bits,
        (*found.entries, *located.entries),
        mean=center,
        measured={"mean": measured},
        diagnostics=fit.diagnostics(found, None) | {"mean_clip_radius": located.answer.radius},
        extra=fit.extra(None, found) | {"radius": located.radius},
    )


@jax.jit
def _plan_mean(key: jax.Array, rho: jax.Array, about: Prior, config: KLSUConfig) -> Any:
    """Keys of the rounds, the pairing and the mean; parts of rho; failure probability of each step."""
    parts: Any = (rho, rho)  # without rounds all of it is the mean's
    if config.rounds:
        parts = split(rho, (config.precondition_share, 1.0 - config.precondition_share))
    return jax.random.split(key, 3), parts, fit.failure(about, config, more=mean.failures(config))


def _mean_share(d: int, config: KLSUConfig) -> Any:
    """The mean's share of the budget: as for CoinPress, the minimiser of m/share + c/(1 - share), m = d^2 and
    c = d^3 (d+1)/2, the predicted divergences of mean and covariance but for a common factor.
    """
    if config.mean_share is not None:
        return config.mean_share
    return 1.0 / (1.0 + (0.5 * d * (d + 1)) ** 0.5)


def _settle_joint(rows: Rows, budget: Any, bounds: SpectrumBounds, config: KLSUConfig) -> KLSUConfig:
    _check("learn_gaussian", bounds, config)
    share = (1.0 - _mean_share(rows.d, config)) * config.precondition_share
    return mean.settle_bins(bounds, settle_rounds(rows, share, budget, bounds, config))


@mechanism(config=KLSUConfig, budgets=(ZCDP,), bounds=(SpectrumBounds,), settle=_settle_joint)
def learn_gaussian(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: KLSUConfig) -> Release:
    """A Gaussian distribution, N(mean, covariance), learned privately from wide prior ranges of both.

    Formal guarantee: rho-zCDP, replace-one with public n: `pgce` on differences of paired rows, then histograms and one
    noisy mean as in `private_mean`, of rows mapped by a matrix that the covariance's release gives and under which
    their covariance is at most I. It holds for any rows; that they are Gaussian and within `bounds` matters for
    accuracy only.

    Args: as `private_mean`; config.mean_share too.

    Returns:
        `Release` with covariance (d, d) and mean (d,) in data units; `release.distribution` is the Gaussian, with a log
        density and samples. `extra`: "preconditioner", "kappa" as `ppc`; "ellipsoid", a covering matrix of Sigma, and
        "radius": (m - mu)^T ellipsoid^{-1} (m - mu) <= radius^2, both with probability 1 - beta under
        constants="theory". `diagnostics`: as `private_mean`.

    Edge cases: as `private_mean` and `pgce`. With psd="project" or "none" the covariance may be singular or indefinite,
        and then there is no density.

    References: Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), Theorem 1.1; constants in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, learn_gaussian
    >>> rows = 30.0 + jax.random.normal(jax.random.key(1), (20_000, 3))
    >>> bounds = Bounds.spectrum(0.1, 100.0, mean_radius=1000.0)
    >>> release = learn_gaussian(jax.random.key(0), rows, ZCDP(rho=0.5), bounds)
    >>> release.mean.round(0).tolist(), release.covariance.shape
    ([30.0, 30.0, 30.0], (3, 3))
    """
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    keys, (first, last), b = _plan_joint(fold(key, "learn_gaussian", n), budget.rho, about, config)
    fitted = fit.fit(keys[0], rows, last, about, b, config, aim=True)
    located = mean.fit(keys[1], rows, first, about, fitted.a, b, config)
    # What the map took to factor comes before what the covariance takes (see `_project`).
    found = fitted._replace(back=linalg.after(fitted.back, fitted.a)).estimate(about, config)
    center, measured = mean.home(located, about, fitted.back)
    return released(
        "learn_gaussian",
        about,
        n,
        budget,
        bounds,
        config,
        found.bits | located.bits,
        (*fitted.conditioned.entries, fitted.answer.entry, *located.entries),
        covariance=found.covariance,
        mean=center,
        measured={"covariance": found.measured, "mean": measured},
        diagnostics=fit.diagnostics(fitted.conditioned, fitted.answer) | {"mean_clip_radius": located.answer.radius},
        extra=fit.extra(found, fitted.conditioned) | {"radius": located.radius},
    )


@jax.jit
def _plan_joint(key: jax.Array, rho: jax.Array, about: Prior, config: KLSUConfig) -> Any:
    """Keys of covariance and mean, their parts of rho, and the failure probability of each step."""
    share = _mean_share(about.center.shape[0], config)
    return (
        jax.random.split(key),
        split(rho, (share, 1.0 - share)),
        fit.failure(about, config, more=mean.failures(config)),
    )
