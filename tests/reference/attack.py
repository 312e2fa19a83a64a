"""Attacks: a local search for the largest change of a statistic over a few rows, and too little noise, planted."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdpcov.privacy import noise


def weaken(monkeypatch: pytest.MonkeyPatch, door: str, what: str, share: float) -> None:
    """Plant a fault: `noise.<door>` adds only a share of its noise to the statistic called `what`."""
    sound = getattr(noise, door)

    def less(key: Any, value: Any, **arguments: Any) -> Any:
        noisy, entry = sound(key, value, **arguments)
        kept = share if arguments["what"] == what else 1.0
        return noise.Measured(value + kept * (noisy.value - value), noisy.std), entry

    monkeypatch.setattr(noise, door, less)


def project(points: np.ndarray, domain: str) -> np.ndarray:
    """Points (..., d) moved into the unit ball or the box [-1, 1]^d."""
    if domain == "box":
        return np.clip(points, -1.0, 1.0)
    return points / np.maximum(np.linalg.norm(points, axis=-1, keepdims=True), 1.0)


def largest(
    change: Callable[[np.ndarray], np.ndarray], domain: str, d: int, count: int, *, steps: int = 300, seed: int = 0
) -> float:
    """The largest of `change` (m, count, d) -> (m,) found from random points, axes, sign flips and zeros."""
    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=(1500, count, d)) * 1.5, rng.choice([-1.0, 0.0, 1.0], size=(1500, count, d))]
    points = project(np.concatenate(drawn), domain)
    values = change(points)
    best = np.argsort(-values)[:60]
    points, values, step = points[best], values[best], 0.5
    for _ in range(steps):
        moved = project(points + step * rng.normal(size=points.shape) * (rng.random(points.shape) < 0.5), domain)
        found = change(moved)
        better = found > values
        points[better], values[better] = moved[better], found[better]
        step = max(0.98 * step, 1e-4)
    return float(values.max())
