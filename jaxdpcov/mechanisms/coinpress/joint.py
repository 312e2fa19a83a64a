"""CoinPress for a Gaussian: covariance by pairs, then the mean of rows whitened by what that found."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import status
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._prior import Prior, cost, number, prior, released
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.mechanisms.coinpress import config as choices
from jaxdpcov.mechanisms.coinpress import covariance, mean
from jaxdpcov.mechanisms.coinpress.config import CoinPressConfig
from jaxdpcov.privacy.budget import ZCDP, split
from jaxdpcov.release import Release

_NAME = "coinpress_gaussian"


def _settle(rows: Rows, budget: Any, bounds: SpectrumBounds, config: CoinPressConfig) -> CoinPressConfig:
    if config.center != "pairs":
        raise ValueError(f"{_NAME} measures the mean and needs center='pairs', got {config.center!r}")
    rho, share = cost(budget), number(_mean_share(rows.d, config))
    first, second = (None, None) if rho is None or share is None else (rho * share, rho * (1.0 - share))
    config = mean.settle(rows, first, False, bounds, config, field="mean_rounds", name=_NAME)
    return covariance.settle(rows, second, bounds, config)


def _mean_share(d: int, config: CoinPressConfig) -> Any:
    """The mean's share of the budget: the minimiser of m/share + c/(1 - share), the predicted divergence.

    With gamma^2 about d, the divergence of the fitted Gaussian from its noise is half of d (2 gamma/n)^2/(2 rho) for
    the mean, and a quarter of (d(d+1)/2) (2 gamma^2/n)^2/rho for the covariance from n/2 pairs: m = d^2 and
    c = d^3 (d+1)/2, but for a common factor.
    """
    if config.mean_share is not None:
        return config.mean_share
    return 1.0 / (1.0 + (0.5 * d * (d + 1)) ** 0.5)


@mechanism(config=CoinPressConfig, budgets=(ZCDP,), bounds=(SpectrumBounds,), settle=_settle)
def coinpress_gaussian(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: CoinPressConfig) -> Release:
    """Private mean and covariance of (near) Gaussian rows from one budget, from wide prior ranges of both.

    Formal guarantee: rho-zCDP, replace-one with public n: `coinpress_covariance` on differences of paired rows with a
    share of rho, then `coinpress_mean` with the rest, on rows mapped by the last A of the covariance's rounds, which
    is a released value. Under constants="theory" each confidence set fails with probability at most beta/2.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. A row that is not finite becomes the public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.spectrum(lower, upper, mean_center=c, mean_radius=R)`, as in the two parts.
        config: `CoinPressConfig`; `split` is that of the covariance, `mean_rounds` and `mean_share` those of the mean.

    Returns:
        `Release` with covariance (d, d) and mean (d,) in data units; `measured` has "covariance" and "mean";
        `extra` has the covariance's "ellipsoid" and the mean's "radius" in its units:
        (m - mu)^T ellipsoid^{-1} (m - mu) <= radius^2, and "second_moments" (rounds, d, d), the noisy answers.
        `diagnostics`: "clip_radius" and "mean_clip_radius" by round.

    References: Biswas, Dong, Kamath, Ullman 2020 (arXiv 2006.06618), section 3.3.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, coinpress_gaussian
    >>> rows = 30.0 + jax.random.normal(jax.random.key(1), (5000, 3))
    >>> bounds = Bounds.spectrum(0.1, 1000.0, mean_radius=1000.0)
    >>> release = coinpress_gaussian(jax.random.key(0), rows, ZCDP(rho=0.5), bounds)
    >>> release.mean.round(0).tolist(), len(release.ledger.children)
    ([30.0, 30.0, 30.0], 8)
    """
    assert config.rounds is not None and config.mean_rounds is not None
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d, least_n=2)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    mean_key, covariance_key, (mean_rho, covariance_rho), radius, halved = _plan(key, n, budget.rho, about, config)
    fitted = covariance.fit(covariance_key, rows, covariance_rho, about, halved)
    ball = mean.fit(
        mean_key,
        rows,
        ZCDP(mean_rho),
        about.center,
        fitted.a,
        radius,
        halved,
        choices.shares(config.mean_rounds),
    )
    found = fitted.estimate(about, config)
    located, measured = mean.home(ball, about, fitted.cover)
    return released(
        _NAME,
        about,
        n,
        budget,
        bounds,
        config,
        found.bits | jnp.where(ball.radius >= radius, status.TOO_FEW_ROWS, status.OK),
        tuple(answer.entry for answer in (*fitted.answers, *ball.answers)),
        covariance=found.covariance,
        mean=located,
        measured={"covariance": found.measured, "mean": measured},
        diagnostics={
            "clip_radius": jnp.stack([answer.radius for answer in fitted.answers]),
            "mean_clip_radius": jnp.stack([answer.radius for answer in ball.answers]),
        },
        extra={
            "ellipsoid": found.ellipsoid,
            "second_moments": jnp.stack([answer.value for answer in fitted.answers]),
            "radius": ball.radius,
        },
    )


@jax.jit
def _plan(key: jax.Array, n: jax.Array, rho: jax.Array, about: Prior, config: CoinPressConfig) -> Any:
    """Keys, parts of the budget, the mean's radius after the map, and the config with half of beta for each part."""
    mean_key, covariance_key = jax.random.split(fold(key, _NAME, n))
    share = _mean_share(about.center.shape[0], config)
    # A Sigma A^T <= I and Sigma >= A0 make ||A v|| at most |v| / sqrt(least eigenvalue of A0).
    radius = jnp.where(about.valid, about.radius / jnp.sqrt(about.least), jnp.nan)
    halved = dataclasses.replace(config, beta=0.5 * config.beta)
    return mean_key, covariance_key, split(rho, (share, 1.0 - share)), radius, halved
