"""Batches of releases on a CPU: of two eigendecompositions in one program, one waits for the other."""

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
    adaptive,
    coinpress_covariance,
    emcov,
)
from tests.reference.programs import independent_eigh

#: Mechanism, config, bounds, and how many steps have an `eigh`.
CASES = {
    "adaptive": (adaptive, AdaptiveConfig(), Bounds.l2(1.0), 3),
    "emcov": (emcov, EMCovConfig(), Bounds.l2(1.0), 4),
    "coinpress": (coinpress_covariance, CoinPressConfig(rounds=2, psd="floor"), Bounds.spectrum(0.01, 1.0), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_no_two_eigh_are_independent(name: str) -> None:
    mechanism, config, bounds, steps = CASES[name]
    x = jnp.asarray(0.3 * np.random.default_rng(0).normal(size=(50, 3)))

    def one(key: jax.Array) -> Any:
        return mechanism(key, x, ZCDP(0.5), bounds, config=config)

    assert independent_eigh(jax.vmap(one), jax.random.split(jax.random.key(0), 3)) == (steps, 0)
