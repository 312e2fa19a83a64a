"""Batches on a CPU: of two factorisations in one program, one waits for the other, lest both wait for good."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    AdaptiveConfig,
    Bounds,
    CoinPressConfig,
    EMCovConfig,
    GaussianConfig,
    KLSUConfig,
    adaptive,
    coinpress_covariance,
    emcov,
    gaussian,
    learn_gaussian,
    metrics,
    ppc,
)
from tests.reference.programs import independent_factorisations

BALL = Bounds.l2(1.0)
CASES = {
    "gaussian": (gaussian, GaussianConfig(), BALL),
    "adaptive": (adaptive, AdaptiveConfig(), BALL),
    "emcov": (emcov, EMCovConfig(), BALL),
    "coinpress": (coinpress_covariance, CoinPressConfig(rounds=2, psd="floor"), Bounds.spectrum(0.01, 1.0)),
    "learn_gaussian": (
        learn_gaussian,
        KLSUConfig(rounds=2, bins=(9,)),
        Bounds.spectrum(0.01 * np.eye(3), 90.0, mean_radius=1.0),
    ),
    "ppc": (ppc, KLSUConfig(rounds=2), Bounds.spectrum(0.01, 1.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_two_factorisations_of_a_release_are_independent(name: str) -> None:
    mechanism, config, bounds = CASES[name]
    x = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=(50, 3)))

    def one(key: jax.Array) -> Any:
        return mechanism(key, x, ZCDP(0.5), bounds, config=config)

    steps, free = independent_factorisations(jax.vmap(one), jax.random.split(jax.random.key(0), 3))
    assert steps >= 2 and free == 0


def variation(estimate: Any, truth: Any) -> Any:
    return metrics.total_variation(jax.random.key(0), estimate, truth)


METRICS = [
    metrics.kl,
    metrics.bures_wasserstein,
    metrics.mahalanobis,
    metrics.chi_square,
    metrics.total_variation_bounds,
    variation,
]


@pytest.mark.parametrize("metric", METRICS)
def test_no_two_factorisations_of_a_metric_are_independent(metric: Any) -> None:
    a = jnp.broadcast_to(jnp.eye(3), (4, 3, 3))
    steps, free = independent_factorisations(lambda x: metric(x, 2.0 * x), a)
    assert steps >= 1 and free == 0
