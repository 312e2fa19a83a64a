"""Slow plain-NumPy forms of the mechanisms in the unit ball: rows, clipped sums, noise scales, and eigenvalue pairing.

Nothing here comes from the package: bounds are ("l2", radius, center) or ("box", lower, upper) in data units.
"""

import math
from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """What the noise of a release in the unit ball depends on; all of it public."""

    d: int
    relation: str = "replace"
    paired: bool = False
    noise: str = "goe"
    pure: bool = False


def unit_rows(x: np.ndarray, bounds: tuple) -> np.ndarray:
    """Rows in the unit ball: (clip(x) - centre)/r under l2 bounds, z/sqrt(live columns) under a box."""
    out = []
    for row in np.asarray(x, np.float64):
        if bounds[0] == "l2":
            center = np.zeros(len(row)) if bounds[2] is None else np.broadcast_to(bounds[2], row.shape)
            u = (row - center) / bounds[1] if np.all(np.isfinite(row)) else np.zeros(len(row))
            largest = np.max(np.abs(u), initial=0.0)
            norm = largest * np.linalg.norm(u / largest) if largest > 0 else 0.0
            out.append(u / max(norm, 1.0))
        else:
            lower, upper = (np.broadcast_to(end, row.shape).astype(float) for end in bounds[1:])
            live = upper > lower
            half = np.where(live, (upper - lower) / 2, 1.0)
            if not np.all(np.isfinite(row)):
                row = (lower + upper) / 2
            z = (np.clip(row, lower, upper) - (lower + upper) / 2) / half
            out.append(z / math.sqrt(max(live.sum(), 1)))
    return np.array(out)


def paired_rows(u: np.ndarray, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Half differences of paired rows: in the unit ball, and with half the covariance of a row as second moment."""
    return np.array([(u[i] - u[j]) / 2 for i, j in pairs])


def clipped(u: np.ndarray, radius: float) -> np.ndarray:
    """Rows clipped to `radius`, in units of it."""
    norms = [np.linalg.norm(row) for row in u]
    return np.array([row / radius if norm <= radius else row / norm for row, norm in zip(u, norms)])


def second_moment(w: np.ndarray) -> np.ndarray:
    """sum w w^T, one row at a time."""
    total = np.zeros((w.shape[1], w.shape[1]))
    for row in w:
        total += np.outer(row, row)
    return total


def sensitivities(shape: Shape, radius: float = 1.0) -> dict[str, float]:
    """Of sums over rows clipped at `radius` and divided by it; l2 norms, or l1 norms where pure."""
    if shape.d == 1 or shape.relation == "add_remove":
        frobenius = 1.0
    elif shape.paired:
        frobenius = min(math.sqrt(2.0), 1.0 / radius**2)
    else:
        frobenius = math.sqrt(2.0)
    change = 1.0 if shape.relation == "add_remove" else 2.0
    if not shape.pure:
        return {"second": frobenius, "spectrum": frobenius, "first": change, "trace": 1.0, "n": 1.0}
    d = shape.d
    if shape.relation == "add_remove":
        second, spectrum = (d + 1) / 2, 1.0
    elif d == 1:
        second, spectrum = 1.0, 1.0
    else:
        second = min((d * frobenius + 2) / 2, math.sqrt(d * d + 3 * d) / 2 * frobenius)
        spectrum = math.sqrt(2.0) * frobenius
    return {"second": second, "spectrum": spectrum, "first": change * math.sqrt(d), "trace": 1.0, "n": 1.0}


def std(shape: Shape, what: str, cost: float, radius: float = 1.0) -> np.ndarray:
    """Standard deviation of the noise on a sum, entry by entry for "second"."""
    bound = sensitivities(shape, radius)[what]
    if shape.pure:
        scale = math.sqrt(2.0) * bound / cost
        return np.full((shape.d, shape.d), scale) if what == "second" else np.array(scale)
    scale = bound / math.sqrt(2.0 * cost)
    if what != "second":
        return np.array(scale)
    off = scale * (math.sqrt(0.5) if shape.noise == "goe" else 1.0)
    return off + (scale - off) * np.eye(shape.d)


def off(shape: Shape, cost: float, radius: float = 1.0) -> float:
    """Standard deviation of the noise beside the diagonal of the second moment (a number at d = 1 too)."""
    bound = sensitivities(shape, radius)["second"]
    if shape.pure:
        return math.sqrt(2.0) * bound / cost
    return bound / math.sqrt(2.0 * cost) * (math.sqrt(0.5) if shape.noise == "goe" else 1.0)


def isotonic(values: np.ndarray) -> np.ndarray:
    """The nearest non-decreasing sequence, by pooling adjacent violators."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([float(value), 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, m), (b, k) = pools[-2:]
            pools[-2:] = [[(a * m + b * k) / (m + k), m + k]]
    return np.array([mean for mean, size in pools for _ in range(int(size))])


def rotation_invariant(values: np.ndarray, off: float) -> np.ndarray:
    """Eigenvalues shrunk for noise of std `off` beside the diagonal: x_i - 2 off^2 sum_j t / (t^2 + 2 off^2)."""
    out = []
    for x in values:
        pull = sum((x - y) / ((x - y) ** 2 + 2 * off**2) for y in values)
        out.append(x - 2 * off**2 * pull)
    return np.array(out)


def pair_up(noisy: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
    """Eigenvectors of `noisy` with `spectrum`, k-th largest with k-th largest."""
    values, vectors = np.linalg.eigh(noisy)
    total = np.zeros_like(noisy)
    for i, j in zip(np.argsort(values), np.argsort(spectrum, kind="stable")):
        total += spectrum[j] * np.outer(vectors[:, i], vectors[:, i])
    return total


def separate(noisy: np.ndarray, spectrum: np.ndarray, ceiling: float, *, tuned: bool) -> np.ndarray:
    """Covariance of the separate form from its two noisy statistics (mean normalisation); `spectrum` ascending."""
    if tuned:
        spectrum = isotonic(spectrum)
        return pair_up(noisy, np.clip(spectrum, 0.0, ceiling))
    values, vectors = np.linalg.eigh(noisy)
    kept = np.clip(spectrum, 0.0, ceiling)  # position in the exact order stays with its own noise
    return sum(kept[k] * np.outer(vectors[:, k], vectors[:, k]) for k in range(len(kept)))


def gaussian(noisy: np.ndarray, off: float, ceiling: float, psd: str) -> np.ndarray:
    """Covariance of the Gaussian form from its noisy second moment (mean normalisation)."""
    if psd == "none":
        return noisy
    values, vectors = np.linalg.eigh(noisy)
    if psd == "denoise":
        values = rotation_invariant(values, off)
    return (vectors * np.clip(values, 0.0, ceiling)) @ vectors.T
