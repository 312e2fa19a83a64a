"""CoinPress for the covariance: rounds that shrink a covering ellipsoid, and the estimate from the last of them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import linalg
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _constants as constants
from jaxdpcov.mechanisms import _mapped as measure
from jaxdpcov.mechanisms import _prior
from jaxdpcov.mechanisms._ellipsoid import Estimate, home, shrink
from jaxdpcov.mechanisms._prior import Prior, prior, released, spread
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.mechanisms.coinpress import config as choices
from jaxdpcov.mechanisms.coinpress import rounds as counts
from jaxdpcov.mechanisms.coinpress.config import CoinPressConfig
from jaxdpcov.privacy.budget import ZCDP, split
from jaxdpcov.release import Release


class Plan(NamedTuple):
    """The public numbers of all rounds, fixed before the first: `n` counts rows or pairs; the rest is one by round."""

    n: Any
    costs: tuple[Any, ...]
    betas: tuple[Any, ...]
    clips: tuple[Any, ...]
    noise_keys: Any
    pair_key: Any


class Fitted(NamedTuple):
    """What the rounds leave behind.

    back: inverse of the last round's map A. answers: the noisy second moments by round, in mapped units.
    projected: the last of them projected to PSD.
    cover: (d, d) with cover cover^T the covering matrix of Sigma after the last round. a: its inverse.
    bits: status.
    """

    back: Any
    answers: tuple[measure.Answer, ...]
    projected: Any
    cover: Any
    a: Any
    bits: Any

    def estimate(self, about: Prior, config: CoinPressConfig) -> Estimate:
        """The covariance from the last round, in data units."""
        found = home(self.back, self.answers[-1], self.projected, self.cover, about, config)
        return found._replace(bits=found.bits | self.bits)


def settle(rows: Rows, rho: float | None, bounds: SpectrumBounds, config: CoinPressConfig) -> CoinPressConfig:
    """The config with its number of rounds."""
    n = rows.count()

    def choose() -> int:
        about = choices.units(n, config), rows.d, spread(bounds), rho
        return counts.covariance_rounds(*about, config.constants, config.noise, choices.beta(config))

    return _prior.settled(choices.by_split(config), "rounds", choose, n=n, upper=bounds.upper, lower=bounds.lower)


def fit(key: jax.Array, rows: Rows, rho: Any, about: Prior, config: CoinPressConfig) -> Fitted:
    """Run the rounds. Everything here but `measure.second_moment` works on public and released numbers."""
    assert config.rounds is not None
    plan = _plan(key, jnp.asarray(rows.count(), rows.dtype), rho, about, config, rows.d)
    a, back = _start(about)
    answers: list[measure.Answer] = []
    for s in range(config.rounds):
        answer = measure.second_moment(
            plan.noise_keys[s],
            rows,
            # One pairing for all rounds: the same fold each time, which is also computed once.
            jax.random.fold_in(plan.pair_key, 0) if config.center == "pairs" else None,
            about.center,
            a,
            measure.Query(plan.n, plan.clips[s], plan.costs[s]),
            kind=config.noise,
            what=f"sum of z z^T, round {s + 1} of {config.rounds}",
        )
        answers.append(answer)
        # One `eigh` waits for the other: two at a time over a batch can block each other for good on a CPU.
        z = answer.value if s < config.rounds - 1 else linalg.psd_project(answer.value)
        last, (a, back, bits) = back, shrink(a, back, z, answer.scale, plan.n, plan.betas[s], config)
    return Fitted(last, tuple(answers), z, back, a, bits)


@functools.partial(jax.jit, static_argnames="d")
def _plan(key: jax.Array, n: jax.Array, rho: Any, about: Prior, config: CoinPressConfig, d: int) -> Plan:
    rounds = config.rounds
    assert rounds is not None
    noise_key, pair_key = jax.random.split(key)
    units = jnp.maximum(jnp.floor(n / 2.0) if config.center == "pairs" else n, 1.0)
    betas = constants.betas(jnp.asarray(config.beta, n.dtype), rounds)
    clips = [constants.covariance_clip(config.constants, units, d, b) for b in betas]
    return Plan(
        units,
        split(rho, choices.given(config)),
        betas,
        # A radius that is no number makes every statistic NaN, and its noise stays.
        tuple(jnp.where(about.valid, clip, jnp.nan) for clip in clips),
        jax.random.split(noise_key, rounds),
        pair_key,
    )


@jax.jit
def _start(about: Prior) -> tuple[jax.Array, jax.Array]:
    """A = (upper A0)^{-1/2} and its inverse: in A x the covariance is at most I."""
    root = jnp.sqrt(about.upper)
    return about.white / root, about.color * root


@mechanism(
    config=CoinPressConfig,
    budgets=(ZCDP,),
    bounds=(SpectrumBounds,),
    settle=lambda rows, budget, bounds, config: settle(rows, _prior.cost(budget), bounds, config),
)
def coinpress_covariance(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: CoinPressConfig) -> Release:
    """Private covariance of (near) Gaussian rows from a wide prior range of it, by rounds that narrow the range.

    Formal guarantee: rho-zCDP, replace-one with public n. Each round maps rows by a matrix A made from earlier noisy
    answers, clips them to a public radius gamma and adds Gaussian noise to (1/n) sum w w^T at Frobenius sensitivity
    sqrt(2) gamma^2/n (gamma^2/n in one column); the rounds' costs add up to rho. It holds for any rows: that they are
    Gaussian and within `bounds` matters for accuracy only. Under constants="theory" the ellipsoid
    extra["ellipsoid"] is at least Sigma with probability 1 - beta over Gaussian rows and noise.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. A row that is not finite becomes the public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.spectrum(lower, upper)`: lower I <= Sigma <= upper I in squared data units, or with a matrix
            A0 as `lower`, A0 <= Sigma <= upper A0. A factor of a million between them costs a few rounds.
        config: `CoinPressConfig`. Its default center="pairs" needs no mean; center="zero" uses all n rows, about the
            public `mean_center`.

    Returns:
        `Release` with covariance (d, d) in data units and no mean. `extra` has "ellipsoid" (d, d), the covering matrix,
        and "second_moments" (rounds, d, d), the noisy answers in the units of each round; `diagnostics` has their
        "clip_radius".

    Edge cases: one round, one column, upper = lower, n < d and singular data give finite results (pairs need n >= 2);
        the status says when n is too small for a round to narrow anything. Heavy tails bias the estimate down, by
        clipping.

    References: Biswas, Dong, Kamath, Ullman 2020 (arXiv 2006.06618), algorithm MVCRec; noise as in docs/guarantees.md.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, coinpress_covariance
    >>> rows = jax.random.normal(jax.random.key(1), (5000, 3))
    >>> release = coinpress_covariance(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.spectrum(0.1, 1000.0))
    >>> release.covariance.shape, release.config.rounds > 1
    ((3, 3), True)
    """
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d, least_n=2 if config.center == "pairs" else 1)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    fitted = fit(fold(key, "coinpress_covariance", n), rows, budget.rho, about, config)
    found = fitted.estimate(about, config)
    return released(
        "coinpress_covariance",
        about,
        n,
        budget,
        bounds,
        config,
        found.bits,
        tuple(answer.entry for answer in fitted.answers),
        covariance=found.covariance,
        measured={"second_moment": found.measured},
        diagnostics={"clip_radius": jnp.stack([answer.radius for answer in fitted.answers])},
        extra={
            "ellipsoid": found.ellipsoid,
            "second_moments": jnp.stack([answer.value for answer in fitted.answers]),
        },
    )
