"""Random symmetric matrices and central differences, shared by the tests of linear algebra and metrics."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np


def symmetric(seed: int, d: int, *batch: int, dtype: Any = np.float64) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=(*batch, d, d))
    return ((a + a.swapaxes(-1, -2)) / 2).astype(dtype)


def positive(seed: int, d: int, *batch: int, dtype: Any = np.float64) -> np.ndarray:
    """Wishart matrices with 2d degrees of freedom."""
    a = np.random.default_rng(seed).normal(size=(*batch, d, 2 * d))
    return (a @ a.swapaxes(-1, -2) / (2 * d)).astype(dtype)


def noisy(seed: int, cov: np.ndarray, std: np.ndarray, draws: int) -> np.ndarray:
    """`draws` copies of `cov` with independent noise of the given std on the triangle, mirrored."""
    noise = np.triu(np.random.default_rng(seed).normal(size=(draws, *cov.shape)) * std)
    return cov + noise + np.triu(noise, 1).swapaxes(-1, -2)


def central(f: Callable[[Any], Any], a: np.ndarray, e: np.ndarray, h: float) -> np.ndarray:
    """(f(a + h e) - f(a - h e)) / 2h."""
    return (np.asarray(f(jnp.asarray(a + h * e))) - np.asarray(f(jnp.asarray(a - h * e)))) / (2 * h)
