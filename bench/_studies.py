"""What `against` times of the package itself: single releases, and many in one program that keeps metrics only.

Rows are normal and mostly short against the l2 bound of 1; a repetition's metric is the Frobenius error against the
covariance of the clipped rows.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxdpcov as dp

RHO, EPSILON = 0.5, 1.0
BALL, BOX = dp.Bounds.l2(1.0), dp.Bounds.box(-1.0, 1.0)
SPECTRUM = dp.Bounds.spectrum(1e-4, 1.0, mean_radius=1.0)
#: Repetitions that one step of the program takes together; studies choose at least 2.
BATCH = 20
#: Mechanisms of many releases, and whether a table of level moments stands in for their rows.
MANY = {"gaussian": False, "separate": True, "adaptive": True}


class Compiled(NamedTuple):
    """A program, and the seconds that tracing and compiling it took."""

    run: Callable[[], Any]
    seconds: float


def sample(n: int, d: int) -> jax.Array:
    """(n, d) normal rows of root mean square norm 0.25 with a spectrum that falls like 1/k, about a mean of 0."""
    scale = 1.0 / jnp.sqrt(jnp.arange(1.0, d + 1.0))
    scale = 0.25 * scale / jnp.linalg.norm(scale)
    return jax.block_until_ready(scale * jax.random.normal(jax.random.key(1), (n, d)))


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Covariance and second moment of the clipped rows, the truths that errors are taken against."""
    w = x * jnp.minimum(1.0, 1.0 / jnp.linalg.norm(x, axis=1, keepdims=True))
    second, mean = jnp.matmul(w.T, w, precision="highest") / len(w), jnp.mean(w, axis=0)
    return second - mean[:, None] * mean[None, :], second


def compile(program: Callable[..., Any], *arguments: Any) -> Compiled:
    """`program` compiled for these arguments."""
    start = time.perf_counter()
    compiled = jax.jit(program).lower(*arguments).compile()
    return Compiled(lambda: compiled(*arguments), time.perf_counter() - start)


def settings(name: str) -> tuple[Any, Any, Any]:
    """(budget, bounds, config) with which a mechanism of `_floors.NEEDS` is timed."""
    budget = dp.PureDP(EPSILON) if name in ("laplace", "emcov") else dp.ZCDP(RHO)
    config = {
        "clipped_gaussian": lambda: dp.ClippedGaussianConfig(radius=0.5),
        "clipped_separate": lambda: dp.ClippedSeparateConfig(radius=0.5),
        "coinpress_covariance": lambda: dp.CoinPressConfig(rounds=3),
        "coinpress_mean": lambda: dp.CoinPressConfig(rounds=1),
    }.get(name, lambda: None)()
    if name.startswith(("coinpress", "naive")):
        return budget, SPECTRUM, config
    return budget, dp.Bounds.box(0.0, 1.0) if name == "product_mean" else BALL, config


def one(name: str, x: jax.Array) -> Compiled:
    """One release of a mechanism: what it says of the population, compiled for rows x."""
    mechanism, (budget, bounds, config) = getattr(dp, name), settings(name)

    def program(key: jax.Array, rows: jax.Array) -> Any:
        made = mechanism(key, rows, budget, bounds, config=config)
        return [part for part in (made.covariance, made.mean) if part is not None]

    return compile(program, jax.random.key(0), x)


def home(name: str, x: jax.Array) -> dp.Rows:
    """What the releases of a study read: the rows, or their table of level moments where one serves."""
    rows = dp.Rows.array(x)
    return rows.level_moments(BALL) if MANY[name] else rows


def many(name: str, x: jax.Array, repetitions: int, *, seed: int = 0, config: Any = None) -> Compiled:
    """Frobenius errors (repetitions,) of releases of rows x, the covariances themselves not kept."""
    truth, mechanism = moments(x)[0], getattr(dp, name)

    def program(keys: jax.Array, rows: Any, truth: jax.Array) -> jax.Array:
        def error(key: jax.Array) -> jax.Array:
            found = mechanism(key, rows, dp.ZCDP(RHO), BALL, config=config).covariance
            return jnp.sqrt(jnp.sum((found - truth) ** 2))

        if repetitions == 1:
            return error(keys[0])[None]
        return jax.lax.map(error, keys, batch_size=min(BATCH, repetitions))

    return compile(program, jax.random.split(jax.random.key(seed), repetitions), home(name, x), truth)


def mean_share(name: str, x: jax.Array) -> float:
    """The share of the budget that a release of these rows spends on the mean: a function of public numbers."""
    made = getattr(dp, name)(jax.random.key(0), x, dp.ZCDP(RHO), BALL)
    return float(made.diagnostics["mean_share"])
