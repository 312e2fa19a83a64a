"""What the tests of CoinPress share: a strongly anisotropic Gaussian, short calls, fixed draws and keys."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, coinpress_covariance
from jaxdpcov.privacy import noise

#: Eigenvalues over a factor of 400 in a turned frame: A is far from symmetric from the second round on.
TURN = np.linalg.qr(np.random.default_rng(8).normal(size=(3, 3)))[0]
SIGMA = (TURN * np.array([1.0, 20.0, 400.0])) @ TURN.T


def fix_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard normal draws that depend on the shape alone, so that a slow form sees the same noise."""
    monkeypatch.setattr(noise, "standard_normal", lambda key, shape, dtype: jnp.asarray(draws(shape), dtype))


def fix_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are not folded with the arguments, so that calls with other arguments draw the same noise."""
    for name, module in list(sys.modules.items()):
        if name.startswith("jaxdpcov.mechanisms") and hasattr(module, "fold"):
            monkeypatch.setattr(module, "fold", lambda key, name, public: key)


def draws(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape)


def symmetric_draws(d: int, kind: str) -> np.ndarray:
    upper = np.zeros((d, d))
    upper[np.triu_indices(d)] = draws((d * (d + 1) // 2,))
    whole = upper + np.triu(upper, 1).T
    return np.where(np.eye(d, dtype=bool), whole, whole * (0.5**0.5 if kind == "goe" else 1.0))


def gaussian_rows(n: int = 400, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).multivariate_normal(np.zeros(3), SIGMA, size=n)


def key(i: int = 0) -> jax.Array:
    return jax.random.key(i)


def parts(rho: float, t: int) -> list[float]:
    """The default split."""
    return [rho] if t == 1 else [0.25 * rho / (t - 1)] * (t - 1) + [0.75 * rho]


def relative(estimate: Any) -> float:
    """Frobenius norm of the error relative to SIGMA."""
    root = np.linalg.inv(np.linalg.cholesky(SIGMA))
    return float(np.linalg.norm(root @ np.asarray(estimate) @ root.T - np.eye(3)))


def covariance(x: Any, rho: float, config: Any, i: int = 0, bounds: Any = None) -> Any:
    """A release of `x`; SIGMA lies within the default bounds."""
    return coinpress_covariance(key(i), x, ZCDP(rho), bounds or Bounds.spectrum(1.0, 500.0), config=config)
