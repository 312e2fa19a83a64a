"""Slow plain-NumPy forms of what the moment mechanisms compute, and of the noise stated in docs/guarantees.md.

Nothing here comes from the package: bounds are ("l2", radius, center) or ("box", lower, upper) in data units.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """What a release of moments is: everything public that its noise depends on."""

    domain: str  # "ball" | "box"
    d: int
    center: str = "private"
    relation: str = "replace"
    noise: str = "goe"
    pure: bool = False
    diagonal: bool = False


def frame(bounds: tuple, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale: x = centre + scale z."""
    if bounds[0] == "l2":
        center = np.zeros(d) if bounds[2] is None else np.broadcast_to(bounds[2], (d,))
        return np.array(center, float), np.full(d, float(bounds[1]))
    lower, upper = (np.broadcast_to(end, (d,)).astype(float) for end in bounds[1:])
    return (lower + upper) / 2, (upper - lower) / 2


def clip(x: np.ndarray, bounds: tuple) -> np.ndarray:
    """Rows clipped to the bounds one by one; a row that is not finite becomes the centre."""
    center, scale = frame(bounds, x.shape[1])
    out = []
    for row in np.asarray(x, np.float64):
        if not np.all(np.isfinite(row)):
            row = center
        elif bounds[0] == "l2":
            largest = np.max(np.abs(row - center), initial=0.0)
            norm = largest * np.linalg.norm((row - center) / largest) if largest > 0 else 0.0
            row = row if norm <= scale[0] else center + (row - center) * (scale[0] / norm)
        else:
            row = np.minimum(np.maximum(row, center - scale), center + scale)
        out.append(row)
    return np.array(out)


def psd(matrix: np.ndarray, ceiling: float = math.inf) -> np.ndarray:
    """The nearest PSD matrix, eigenvalues at most `ceiling`."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.clip(values, 0.0, ceiling)) @ vectors.T


def moments(x: np.ndarray, bounds: tuple, center: str, *, pairs: list | None = None) -> tuple:
    """Covariance and mean without noise, normalised by n: about the mean, about the centre, or of paired rows."""
    clipped = clip(x, bounds)
    middle = frame(bounds, x.shape[1])[0]
    if center == "pairs":
        pairs = [(2 * i, 2 * i + 1) for i in range(len(x) // 2)] if pairs is None else pairs
        differences = [(clipped[i] - clipped[j]) / math.sqrt(2) for i, j in pairs]
        return sum(np.outer(y, y) for y in differences) / len(differences), None
    second = sum(np.outer(row - middle, row - middle) for row in clipped) / len(x)
    if center == "zero":
        return second, None
    mean = sum(clipped) / len(x)
    return second - np.outer(mean - middle, mean - middle), mean


def pairings(indices: tuple[int, ...]) -> list[list[tuple[int, int]]]:
    """All ways to pair an even number of rows."""
    if not indices:
        return [[]]
    first, rest = indices[0], indices[1:]
    return [[(first, other), *more] for other in rest for more in pairings(tuple(i for i in rest if i != other))]


def sensitivities(shape: Shape) -> dict[str, float | tuple[float, float, float]]:
    """The table of docs/guarantees.md, written down a second time.

    "n", "first": l2 (l1 where pure) of the count and of sum z. "second": of sum z z^T or its diagonal; for Gaussian
    noise on a matrix (l2, weight of the diagonal, weight beside it).
    """
    d, box, add = shape.d, shape.domain == "box", shape.relation == "add_remove"
    change = 1.0 if add else 2.0
    reach = (d if shape.pure else math.sqrt(d)) if box else (math.sqrt(d) if shape.pure else 1.0)
    twice = 2.0 if shape.center == "pairs" else 1.0
    if shape.diagonal:
        if box:
            second = twice * (d if shape.pure else math.sqrt(d))
        elif shape.center == "pairs":
            second = (2.0 if d == 1 else 1.5 * math.sqrt(3.0)) if shape.pure else 2.0
        else:
            second = 1.0 if add or d == 1 else (2.0 if shape.pure else math.sqrt(2.0))
    elif shape.pure:
        if box:
            second = twice * d * (d + 1) / 2
        elif shape.center == "pairs":
            second = 2.0 if d == 1 else d + 0.75 * math.sqrt(3.0)
        elif add:
            second = (d + 1) / 2
        else:
            second = 1.0 if d == 1 else min(d / math.sqrt(2) + 1, math.sqrt((d * d + 3 * d) / 2))
    elif box:
        if add:
            second = (math.sqrt(d * (d + 1) / 2), 1.0, 1.0)
        elif shape.noise == "goe":
            second = (twice * d, math.sqrt(2 / (d + 1)), 1.0)
        else:
            second = (twice * math.sqrt(2) * d, 1.0, 1.0)
    else:
        frobenius = 2.0 if shape.center == "pairs" else (1.0 if add or d == 1 else math.sqrt(2))
        second = (frobenius, 1.0, math.sqrt(0.5) if shape.noise == "goe" else 1.0)
    return {"n": 1.0, "first": change * reach, "second": second}


def costs(shape: Shape, budget: float, mean_share: float = 0.0, n_share: float = 0.05) -> dict[str, float]:
    """What each query gets of the budget."""
    count = budget * n_share if shape.relation == "add_remove" else 0.0
    first = (budget - count) * mean_share if shape.center == "private" else 0.0
    return {"n": count, "first": first, "second": budget - count - first}


def stds(shape: Shape, budget: float, mean_share: float = 0.0, n_share: float = 0.05) -> dict[str, np.ndarray]:
    """Standard deviations of the noise on the sums in z: "n" (), "first" (d,), "second" (d, d) or (d,)."""
    cost, bound = costs(shape, budget, mean_share, n_share), sensitivities(shape)

    def std(sensitivity: float, spent: float) -> float:
        if spent == 0.0:
            return 0.0
        return math.sqrt(2.0) * sensitivity / spent if shape.pure else sensitivity / math.sqrt(2.0 * spent)

    second, d = bound["second"], shape.d
    if shape.diagonal:
        noise = np.full(d, std(second, cost["second"]))
    elif shape.pure:
        noise = np.full((d, d), std(second, cost["second"]))
    else:
        l2, on, beside = second
        noise = std(l2, cost["second"]) * (beside + (on - beside) * np.eye(d))
    return {"n": np.array(std(bound["n"], cost["n"])), "first": np.full(d, std(bound["first"], cost["first"])),
            "second": noise}  # fmt: skip


def covariance_variance(shape: Shape, second: np.ndarray, first: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Entrywise variance of M~ - m~ m~^T (plus constants), from the stds of M~ and m~ and the exact mean."""
    fourth = 5.0 if shape.pure else 2.0  # Var(w^2) / Var(w)^2 of Laplace and of normal noise
    v = first**2
    if shape.diagonal:
        return second**2 + 4 * mean**2 * v + fourth * v**2
    out = second**2 + np.outer(mean**2, v) + np.outer(v, mean**2) + np.outer(v, v)
    np.fill_diagonal(out, np.diag(second) ** 2 + 4 * mean**2 * v + fourth * v**2)
    return out


def predicted_error(shape: Shape, budget: float, n: int, share: float) -> float:
    """Expected squared Frobenius error of the covariance in z; |mean|^2 is taken as a quarter of its most."""
    noise = stds(shape, budget, share)
    second, v = noise["second"] / n, (noise["first"] / n)[0] ** 2
    typical = 0.25 * (shape.d if shape.domain == "box" else 1.0)
    mean = np.full(shape.d, math.sqrt(typical / shape.d))
    variance = covariance_variance(shape._replace(pure=False), second, np.full(shape.d, math.sqrt(v)), mean)
    return float(np.sum(variance))


def grid_change(lower: float, upper: float, points: int = 401) -> float:
    """Brute force at d = 1: the largest change of (x - middle)^2 over pairs of a grid in [lower, upper]."""
    grid = np.linspace(lower, upper, points)
    squares = (grid - (lower + upper) / 2) ** 2
    return max(abs(a - b) for a, b in itertools.product((squares.min(), squares.max()), repeat=2))
