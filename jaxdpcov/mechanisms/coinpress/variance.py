"""CoinPress for one variance: rounds that shrink an interval around it, under zCDP or pure DP."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import status
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _constants as constants
from jaxdpcov.mechanisms import _mapped as measure
from jaxdpcov.mechanisms._prior import Prior, cost, prior, released, settled, spread
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.mechanisms.coinpress import config as choices
from jaxdpcov.mechanisms.coinpress import rounds as counts
from jaxdpcov.mechanisms.coinpress.config import CoinPressConfig
from jaxdpcov.privacy import noise
from jaxdpcov.privacy.budget import ZCDP, PureDP, split
from jaxdpcov.release import Release

_NAME = "coinpress_variance_1d"


def _settle(rows: Rows, budget: Any, bounds: SpectrumBounds, config: CoinPressConfig) -> CoinPressConfig:
    choices.one_column(rows, _NAME)
    n, pure = rows.count(), isinstance(budget, PureDP)

    def choose() -> int:
        units = choices.units(n, config)
        return counts.variance_rounds(units, spread(bounds), cost(budget), config.constants, choices.beta(config), pure)

    return settled(choices.by_split(config), "rounds", choose, n=n, upper=bounds.upper, lower=bounds.lower)


@functools.partial(jax.jit, static_argnames="rounds")
def _plan(key: jax.Array, n: jax.Array, budget: jax.Array, about: Prior, config: CoinPressConfig, rounds: int) -> Any:
    noise_key, pair_key = jax.random.split(key)
    units = jnp.maximum(jnp.floor(n / 2.0) if config.center == "pairs" else n, 1.0)
    betas = constants.betas(jnp.asarray(config.beta, n.dtype), rounds)
    # In units of the lower bound the variance is in [1, upper]. Bounds that are none make every answer NaN.
    ends = jnp.ones((), n.dtype), jnp.where(about.valid, about.upper, jnp.nan)
    return units, split(budget, choices.given(config)), betas, ends, jax.random.split(noise_key, rounds), pair_key


@jax.jit
def _clip(n: jax.Array, b: jax.Array, high: jax.Array, config: CoinPressConfig) -> jax.Array:
    return constants.variance_clip(config.constants, n, b) * jnp.sqrt(high)


@functools.partial(jax.jit, static_argnames="pure")
def _narrow(
    low: jax.Array,
    high: jax.Array,
    answer: measure.Answer,
    n: jax.Array,
    b: jax.Array,
    config: CoinPressConfig,
    pure: bool,
) -> tuple[jax.Array, jax.Array]:
    """The new interval, inside the old one: an end that its tail says nothing of, for lack of rows, stays.

    The upper end, from which the next clipping radius comes, is made from z or the public lower bound 1, whichever is
    larger (as Z is projected in many columns): while the noise is far above the variance no draw of it, however low,
    leaves the truth outside. Nor does the lower end, where one draw was high, keep the upper one up. "paper" does both.
    """
    z = answer.value[0, 0]
    printed = config.constants == "paper"
    tail, below, above = constants.variance_ends(config.constants, n, b, answer.scale, pure)
    reach = (z if printed else jnp.maximum(z, 1.0)) + tail
    top = jnp.where(below > 0.0, reach / jnp.where(below > 0.0, below, 1.0), high)
    top = jnp.clip(top, low if printed else 1.0, high)
    return jnp.minimum(jnp.clip((z - tail) / above, low, high), top), top


@functools.partial(jax.jit, static_argnames="pure")
def _finish(
    last: measure.Answer,
    low: jax.Array,
    high: jax.Array,
    n: jax.Array,
    b: jax.Array,
    about: Prior,
    config: CoinPressConfig,
    pure: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The estimate within the bounds and the interval, data units, and whether rounds had an upper end."""
    _, below, _ = constants.variance_ends(config.constants, n, b, last.scale, pure)
    bits = jnp.where(below > 0.0, status.OK, status.TOO_FEW_ROWS)
    estimate = jnp.clip(last.value, 1.0, about.upper)
    return estimate * about.least, jnp.stack([low, high]) * about.least, bits


@mechanism(config=CoinPressConfig, budgets=(ZCDP, PureDP), bounds=(SpectrumBounds,), settle=_settle)
def coinpress_variance_1d(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: CoinPressConfig) -> Release:
    """Private variance of one column from a wide prior interval, under zCDP (Gaussian noise) or pure DP (Laplace).

    Formal guarantee: rho-zCDP, or epsilon-DP by basic composition; replace-one with public n. Each round clips values
    to a public radius g and adds noise to the mean of their squares at sensitivity g^2/n. Under constants="theory" the
    variance is in extra["interval"] with probability 1 - beta over Gaussian rows and noise.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, 1) array in data units, or `Rows`. A value that is not finite becomes the public centre.
        budget: `ZCDP(rho)`, `ApproxDP(epsilon, delta)` (converted on the host) or `PureDP(epsilon)`.
        bounds: `Bounds.spectrum(lower, upper)`: the variance is in [lower, upper], data units squared.
        config: `CoinPressConfig`; `noise` and `psd` have no effect. Its default center="pairs" needs no mean.

    Returns:
        `Release` with covariance (1, 1) in data units, within the bounds, and no mean. `extra` has "interval" (2,) in
        data units; `diagnostics` has the rounds' "clip_radius" in units of sqrt(lower).

    Edge cases: with n <= 4 log(2/beta) or so a round learns no upper end, and the status says so. A range too wide for
        n and the budget leaves an estimate of little but noise; `measured` states how much.

    References: Biswas, Dong, Kamath, Ullman 2020 (arXiv 2006.06618), algorithm UVVRec.

    >>> import jax
    >>> from jaxdpcov import Bounds, PureDP, coinpress_variance_1d
    >>> rows = 3.0 * jax.random.normal(jax.random.key(1), (20_000, 1))
    >>> release = coinpress_variance_1d(jax.random.key(0), rows, PureDP(1.0), Bounds.spectrum(0.01, 1e6))
    >>> release.covariance.shape, float(release.spent.epsilon) <= 1.0
    ((1, 1), True)
    """
    assert config.rounds is not None
    pure, paired = isinstance(budget, PureDP), config.center == "pairs"
    n = jnp.asarray(rows.count(), rows.dtype)
    about = prior(bounds, n, rows.d, least_n=2 if paired else 1)
    amount = budget.epsilon if pure else budget.rho
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    key = fold(key, _NAME, n)
    units, costs, betas, (low, high), noise_keys, pair_key = _plan(key, n, amount, about, config, config.rounds)
    a = about.white
    answers: list[measure.Answer] = []
    for s in range(config.rounds):
        answer = measure.second_moment(
            noise_keys[s],
            rows,
            # One pairing for all rounds: the same fold each time, which is also computed once.
            jax.random.fold_in(pair_key, 0) if paired else None,
            about.center,
            a,
            measure.Query(units, _clip(units, betas[s], high, config), costs[s]),
            kind=config.noise,
            pure=pure,
            what=f"sum of z^2, round {s + 1} of {config.rounds}",
        )
        answers.append(answer)
        low, high = _narrow(low, high, answer, units, betas[s], config, pure)
    last = answers[-1]
    covariance, interval, bits = _finish(last, low, high, units, betas[-1], about, config, pure)
    return released(
        _NAME,
        about,
        n,
        budget,
        bounds,
        config,
        bits,
        tuple(answer.entry for answer in answers),
        covariance=covariance,
        measured={"second_moment": noise.Measured(last.value, last.std)},
        diagnostics={"clip_radius": jnp.stack([answer.radius for answer in answers])},
        extra={"interval": interval},
    )
