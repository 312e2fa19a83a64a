"""CoinPress for the mean: rounds that shrink a ball around it, for any number of columns and for one."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import status
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _constants as constants
from jaxdpcov.mechanisms import _mapped as measure
from jaxdpcov.mechanisms._prior import Prior, cost, least_eigenvalue, number, prior, released, settled
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.mechanisms.coinpress import config as choices
from jaxdpcov.mechanisms.coinpress import rounds as counts
from jaxdpcov.mechanisms.coinpress.config import CoinPressConfig
from jaxdpcov.privacy import noise
from jaxdpcov.privacy.budget import ZCDP, PureDP, split
from jaxdpcov.release import Release


class Ball(NamedTuple):
    """What the rounds leave behind, in mapped units.

    point: (d,) the last noisy mean. radius: () how far the mean is from it. answers: by round.
    """

    point: Any
    radius: Any
    answers: tuple[measure.Answer, ...]


def fit(
    key: jax.Array,
    rows: Rows,
    budget: Any,
    center: jax.Array,
    a: jax.Array,
    radius: jax.Array,
    config: CoinPressConfig,
    given: tuple[Any, ...],
) -> Ball:
    """Run a round for each share in `given`: A (x - center) has covariance at most I and a mean of at most `radius`."""
    pure, rounds = isinstance(budget, PureDP), len(given)
    n = jnp.asarray(rows.count(), rows.dtype)
    keys, costs, betas, point = _plan(key, n, budget.epsilon if pure else budget.rho, given, config, rows.d)
    answers: list[measure.Answer] = []
    for s in range(rounds):
        answer = measure.mean(
            keys[s],
            rows,
            center,
            a,
            point,
            measure.Query(n, _clip(n, betas[s], radius, config, rows.d), costs[s]),
            pure=pure,
            what=f"sum of z, round {s + 1} of {rounds}",
        )
        answers.append(answer)
        point, radius = _move(point, radius, answer, n, betas[s], config, pure, s == rounds - 1)
    return Ball(point, radius, tuple(answers))


@functools.partial(jax.jit, static_argnames="d")
def _plan(key: jax.Array, n: jax.Array, budget: jax.Array, given: Any, config: CoinPressConfig, d: int) -> Any:
    betas = constants.betas(jnp.asarray(config.beta, n.dtype), len(given))
    return jax.random.split(key, len(given)), split(budget, given), betas, jnp.zeros(d, n.dtype)


@functools.partial(jax.jit, static_argnames="d")
def _clip(n: jax.Array, b: jax.Array, radius: jax.Array, config: CoinPressConfig, d: int) -> jax.Array:
    return constants.mean_clip(config.constants, n, d, b, radius)


@functools.partial(jax.jit, static_argnames=("pure", "last"))
def _move(
    point: jax.Array,
    radius: jax.Array,
    answer: measure.Answer,
    n: jax.Array,
    b: jax.Array,
    config: CoinPressConfig,
    pure: bool,
    last: bool,
) -> tuple[jax.Array, jax.Array]:
    """The new point and radius; before the last, a round that would not shrink the (public) radius is not taken."""
    found = constants.mean_radius(config.constants, n, point.shape[0], b, answer.scale, pure)
    moved = point + answer.value
    if last:
        return moved, found
    take = ~(found >= radius)  # NaN passes on
    return jnp.where(take, moved, point), jnp.where(take, found, radius)


def settle(
    rows: Rows,
    budget: float | None,
    pure: bool,
    bounds: SpectrumBounds,
    config: CoinPressConfig,
    *,
    field: str = "rounds",
    name: str,
) -> CoinPressConfig:
    """The config with its number of rounds for the mean, in `field`.

    "rounds": about rows of covariance at most upper A0. "mean_rounds": about rows mapped by a covariance not yet
    known, whose standard deviations are at least those of A0.
    """
    if bounds.mean_radius is None:
        raise ValueError(f"{name} needs mean_radius: Bounds.spectrum(lower, upper, mean_center=..., mean_radius=...)")

    known = {"n": rows.count(), "upper": bounds.upper, "lower": bounds.lower, "mean_radius": bounds.mean_radius}

    def choose() -> int:
        n, radius, upper = (number(known[name]) for name in ("n", "mean_radius", "upper"))
        assert n is not None and radius is not None and upper is not None
        least = least_eigenvalue(bounds)
        if field == "rounds":
            least = upper if jnp.ndim(bounds.lower) == 0 else upper * least
        return counts.mean_rounds(n, rows.d, radius / least**0.5, budget, config.constants, choices.beta(config), pure)

    return settled(choices.by_split(config) if field == "rounds" else config, field, choose, **known)


@functools.partial(jax.jit, static_argnames="number")
def _whitening(about: Prior, number: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The map (upper A0)^{-1/2}, its inverse, and the radius of the mean after it; numbers where A0 is a number."""
    std = jnp.sqrt(about.upper) * jnp.sqrt(about.least)
    # A radius that is no number makes every answer NaN.
    radius = jnp.where(about.valid, about.radius / std, jnp.nan)
    if number:
        return 1.0 / std, std, radius
    return about.white / jnp.sqrt(about.upper), about.color * jnp.sqrt(about.upper), radius


@jax.jit
def home(ball: Ball, about: Prior, back: jax.Array) -> tuple[jax.Array, noise.Measured]:
    """The mean in data units, and what was measured in units of the prior's scale."""
    last = ball.answers[-1]
    if back.ndim == 0:
        shift, std = back * ball.point, back * last.std
    else:
        shift = jnp.matmul(back, ball.point, precision="highest")
        std = jnp.linalg.norm(back, axis=1) * last.std
    return about.center + shift, noise.Measured(shift / about.scale, std / about.scale)


def _mean(name: str, key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: CoinPressConfig) -> Release:
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d)
    a, back, radius = _whitening(about, jnp.ndim(bounds.lower) == 0)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    ball = fit(fold(key, name, n), rows, budget, about.center, a, radius, config, choices.given(config))
    mean, measured = home(ball, about, back)
    return released(
        name,
        about,
        n,
        budget,
        bounds,
        config,
        jnp.where(ball.radius >= radius, status.TOO_FEW_ROWS, status.OK),
        tuple(answer.entry for answer in ball.answers),
        mean=mean,
        measured={"mean": measured},
        diagnostics={"clip_radius": jnp.stack([answer.radius for answer in ball.answers])},
        extra={"radius": ball.radius},
    )


def _settle(rows: Rows, budget: Any, bounds: SpectrumBounds, config: CoinPressConfig) -> CoinPressConfig:
    return settle(rows, cost(budget), False, bounds, config, name="coinpress_mean")


@mechanism(config=CoinPressConfig, budgets=(ZCDP,), bounds=(SpectrumBounds,), settle=_settle)
def coinpress_mean(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: CoinPressConfig) -> Release:
    """Private mean of (near) Gaussian rows from a wide prior ball around it, by rounds that shrink the ball.

    Formal guarantee: rho-zCDP, replace-one with public n. Each round clips rows to a ball about the last noisy mean,
    of public radius r, and adds Gaussian noise to their mean at l2 sensitivity 2 r/n; the rounds' costs add up to rho.
    It holds for any rows: that they are Gaussian and within `bounds` matters for accuracy only. Under
    constants="theory" the mean is within extra["radius"] with probability 1 - beta over Gaussian rows and noise.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. A row that is not finite becomes the public centre.
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.spectrum(lower, upper, mean_center=c, mean_radius=R)`: covariance at most upper I, or upper A0
            for a matrix A0 as `lower`; ||mu - c|| <= R, data units. A known covariance S is
            `Bounds.spectrum(S, 1.0, ...)`: rows are whitened by it.
        config: `CoinPressConfig`; `noise`, `psd` and `center` have no effect.

    Returns:
        `Release` with mean (d,) in data units and no covariance. `extra` has "radius", how far the mean is from it in
        whitened units (standard deviations at the upper bound); `diagnostics` has the rounds' "clip_radius" in those.

    Edge cases: a round that could not shrink the ball spends its share and changes nothing; the status says so of all
        rounds together.

    References: Biswas, Dong, Kamath, Ullman 2020 (arXiv 2006.06618), algorithm MVMRec.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, coinpress_mean
    >>> rows = 30.0 + jax.random.normal(jax.random.key(1), (5000, 3))
    >>> bounds = Bounds.spectrum(1.0, 1.0, mean_radius=1000.0)
    >>> release = coinpress_mean(jax.random.key(0), rows, ZCDP(rho=0.5), bounds)
    >>> release.mean.round(0).tolist(), release.config.rounds
    ([30.0, 30.0, 30.0], 2)
    """
    return _mean("coinpress_mean", key, rows, budget, bounds, config)


def _settle_1d(rows: Rows, budget: Any, bounds: SpectrumBounds, config: CoinPressConfig) -> CoinPressConfig:
    choices.one_column(rows, "coinpress_mean_1d")
    pure = isinstance(budget, PureDP)
    return settle(rows, cost(budget), pure, bounds, config, name="coinpress_mean_1d")


@mechanism(config=CoinPressConfig, budgets=(ZCDP, PureDP), bounds=(SpectrumBounds,), settle=_settle_1d)
def coinpress_mean_1d(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: CoinPressConfig) -> Release:
    """Private mean of one column, under zCDP (Gaussian noise) or pure epsilon-DP (Laplace noise).

    Formal guarantee: as `coinpress_mean`; rho-zCDP, or epsilon-DP by basic composition of Laplace noise at the same
    sensitivity 2 r/n. Under constants="theory" the interval mean +- extra["radius"] sqrt(v) holds the mean with
    probability 1 - beta over Gaussian rows and noise, where v is the largest variance of the bounds: `upper`, times
    `lower` where that is a matrix.

    Args, Returns: as `coinpress_mean`, rows (n, 1); `PureDP(epsilon)` too. Variance at most v, data units squared; the
        mean in mean_center +- mean_radius.

    References: Biswas, Dong, Kamath, Ullman 2020 (arXiv 2006.06618), algorithm UVMRec.

    >>> import jax
    >>> from jaxdpcov import Bounds, PureDP, coinpress_mean_1d
    >>> rows = 30.0 + jax.random.normal(jax.random.key(1), (5000, 1))
    >>> bounds = Bounds.spectrum(1.0, 1.0, mean_radius=1000.0)
    >>> coinpress_mean_1d(jax.random.key(0), rows, PureDP(1.0), bounds).mean.round(0).tolist()
    [30.0]
    """
    return _mean("coinpress_mean_1d", key, rows, budget, bounds, config)
