"""Rows at the edges: ties, one direction, nothing at all, norms at powers of two, beyond the radius; few columns.

Right at a huge budget, finite and in range at a tiny one.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, AdaptiveConfig, Bounds, EMCovConfig, adaptive, emcov
from tests.reference import separate as ball

N, RADIUS = 12, 0.7  # no power of two


def data(d: int) -> dict[str, np.ndarray]:
    """By name (N, d); norms are in units of the radius before it is multiplied in."""
    direction, axes = np.full(d, d**-0.5), np.eye(d)[np.arange(N) % d]
    signs = np.where(np.arange(N) < N // 2, 1.0, -1.0)[:, None]
    found = {
        "all zero": np.zeros((N, d)),
        "identity": axes * signs,
        "rank one": np.outer(np.linspace(-1.0, 1.0, N), direction),
        "beyond the radius": np.outer(np.linspace(-5.0, 5.0, N), direction),
        "powers of two": axes * 2.0 ** -(np.arange(N)[:, None] // 2),
        "tiny": np.full((N, d), 2.0**-70),
        "not finite": np.where(np.arange(N)[:, None] < 3, np.nan, 0.5 * axes),
    }
    return {name: RADIUS * x for name, x in found.items()}


CASES = {
    "adaptive": (adaptive, AdaptiveConfig(center="zero")),
    "adaptive, paper": (adaptive, AdaptiveConfig(center="zero", constants="paper", noise="sgw", psd="project")),
    "emcov": (emcov, EMCovConfig(center="zero")),
}


@functools.cache
def compiled(name: str) -> Any:
    mechanism, config = CASES[name]

    @jax.jit
    def run(key: jax.Array, x: Any, rho: Any, radius: Any) -> Any:
        return mechanism(key, x, ZCDP(rho), Bounds.l2(radius), config=config)

    return run


@pytest.mark.parametrize(
    "name, d", [(name, d) for name in CASES for d in (1, 2) if (name, d) != ("adaptive, paper", 1)]
)
def test_edges(name: str, d: int) -> None:
    run = compiled(name)
    for what, x in data(d).items():
        u = ball.unit_rows(x, ("l2", RADIUS, None))
        for rho in (1e14, 1e-6):
            release = run(jax.random.key(3), jnp.asarray(x), rho, RADIUS)
            covariance = np.asarray(release.covariance)
            values = np.linalg.eigvalsh(covariance)
            assert values[0] >= -1e-12 and values[-1] <= RADIUS**2 * (1 + 1e-9), (what, rho)
            if rho > 1:
                w = u
                if "radius" in release.extra:
                    at = float(release.extra["radius"]) / RADIUS
                    assert 4 * np.log2(at) == pytest.approx(round(4 * np.log2(at)), abs=1e-12) and at <= 1, what
                    w = at * ball.clipped(u, at)
                np.testing.assert_allclose(covariance, RADIUS**2 * w.T @ w / N, atol=1e-4, err_msg=what)
                # What little is clipped is not seen: the rows as they are are released, those beyond at the radius.
                np.testing.assert_allclose(w.T @ w, u.T @ u, atol=1e-4, err_msg=what)
