"""Means of product distributions in plain NumPy, row by row: the two forms of `product_mean` without noise.

Rows u are in [0, 1]^d. Nothing of the package is used.
"""

import math
from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    """What a form finds without noise, and the noise that it would have had.

    mean, std: (d,). flipped: (d,). radii, sensitivities: one for each sum over rows. most: a row's
    largest part in the choice of a radius. final, sizes, error: rounds only.
    """

    mean: np.ndarray
    std: np.ndarray
    flipped: np.ndarray
    radii: list[float]
    sensitivities: list[float]
    weights: np.ndarray | None = None
    most: float = 0.0
    final: np.ndarray | None = None
    sizes: list[int] | None = None
    error: np.ndarray | None = None
    right: bool = True


def truncated_sum(u: np.ndarray, flipped: np.ndarray, weights: np.ndarray, radius: float) -> np.ndarray:
    """sum over rows of y = weights (u or 1 - u), scaled down to norm `radius` where longer."""
    total = np.zeros(u.shape[1])
    for row in u:
        y = [a * (1 - each if flip else each) for each, flip, a in zip(row, flipped, weights)]
        norm = math.sqrt(sum(each * each for each in y))
        total += np.array(y) * (min(1.0, radius / norm) if norm > 0 else 1.0)
    return total


def sensitivity(radius: float, weights: np.ndarray) -> float:
    return min(math.sqrt(2) * radius, math.sqrt(sum(a * a for a in weights)))


def practical(u: np.ndarray, rho: float, look_share: float, radius_share: float, relative: bool) -> Found:
    """A first look at all rows; then rows weighted by it, at the radius of least predicted loss."""
    n, d = u.shape
    shares = look_share, (1 - look_share) * radius_share, (1 - look_share) * (1 - radius_share)
    look = truncated_sum(u, np.zeros(d, bool), np.ones(d), math.sqrt(d)) / n
    std = math.sqrt(d) / math.sqrt(2 * rho * shares[0]) / n
    flipped = look > 0.5
    small, weights, factors = [], [], []
    for mean, flip in zip(look, flipped):
        small.append(1 - mean if flip else mean)
        p = (small[-1] + math.sqrt(small[-1] ** 2 + 4 * std**2)) / 2
        p = min(max(p, 0.5 / n), 0.5)
        factors.append(1 / (p * (1 - p)) if relative else 1.0)
        weights.append((factors[-1] / p) ** 0.25)
    a = np.array(weights) / max(weights)
    longest = math.sqrt(sum(each * each for each in a))
    noise = math.sqrt(sum(v / each**2 for v, each in zip(factors, a)) / (2 * rho * shares[2]))
    size = sum(v * (mean**2 - std**2) for v, mean in zip(factors, small))
    seen = math.sqrt(2 * sum((v * std**2) ** 2 for v in factors))
    expected = sum(w**2 * mean for w, mean in zip(a, small))
    expected = max(expected, math.sqrt(sum((w**2 * std) ** 2 for w in a)))
    epsilon = math.sqrt(8 * rho * shares[1])
    least = min(1.5 * math.sqrt(2 * expected), longest) * noise / math.sqrt(max(size, seen))
    most = max(1.0, min(0.3 * least * epsilon, longest**2 / expected))
    apart = 2 * 0.5 * most / epsilon  # what the choice can tell apart
    best, chosen, longest_loss = math.inf, 0.0, 0.0
    for k in range(4 * math.ceil(math.log2(max(d, 2))) + 8):
        radius = longest if k == 0 else longest * 2.0 ** (-0.5 - k / 8)
        lost = 0.0
        for row in u:
            entries = [1 - each if f else each for each, f in zip(row, flipped)]
            norm = math.sqrt(sum((w * each) ** 2 for w, each in zip(a, entries)))
            mass = sum(w**2 * each for w, each in zip(a, entries))
            lost += min(mass / expected, most) * max(0.0, 1 - radius / norm) if norm > 0 else 0.0
        predicted = sensitivity(radius, a) * noise / math.sqrt(max(size, seen))
        longest_loss = predicted if k == 0 else longest_loss
        if 0.5 * lost + predicted < best and (k == 0 or longest_loss - predicted >= apart):
            best, chosen = 0.5 * lost + predicted, radius
    last = truncated_sum(u, flipped, a, chosen) / n / a
    last = np.where(flipped, 1 - last, last)
    last_std = sensitivity(chosen, a) / math.sqrt(2 * rho * shares[2]) / n / a
    mean = (look / std**2 + last / last_std**2) / (1 / std**2 + 1 / last_std**2)
    stds = 1 / np.sqrt(1 / std**2 + 1 / last_std**2)
    return Found(mean, stds, flipped, [chosen], [math.sqrt(d), sensitivity(chosen, a)], weights=a, most=most)


def rounds(d: int) -> int:
    return max(1, math.ceil(math.log2(d / 2)))


def theory(blocks: list[np.ndarray], rho: float, alpha: float, beta: float) -> Found:
    """PPDE of Kamath, Li, Singhal, Ullman (2019), noise at the right sensitivity; leftover blocks are averaged."""
    m, d = blocks[0].shape
    count = rounds(d)
    assert len(blocks) == count + 1
    log = math.log(8 * d * (count + 1) / beta)
    left, flipped, u, tau, r = set(range(d)), np.zeros(d, bool), 0.5, 3 / 16, 0
    mean, stds, error, final = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d, int)
    radii, sizes, sensitivities, right = [], [], [], True

    def ask(block: np.ndarray, radius: float) -> tuple[np.ndarray, float]:
        on = np.array([1.0 if j in left else 0.0 for j in range(d)])
        radii.append(radius)
        sizes.append(len(left))
        sensitivities.append(sensitivity(radius, on if left else np.ones(1)))
        answer = truncated_sum(block, flipped, on, radius) / m
        return np.where(flipped, 1 - answer, answer), sensitivities[-1] / math.sqrt(2 * rho) / m

    def bound(u: float, m: int, std: float) -> float:
        return math.sqrt(2 * u * log / m) + log / (3 * m) + std * math.sqrt(2 * log)

    while r < count and u * len(left) >= 1:
        answer, std = ask(blocks[r], math.sqrt(6 * u * len(left) * math.log(m * count / (alpha * beta))))
        right = right and bound(u, m, std) <= u / 8
        going = set()
        for j in left:
            small = 1 - answer[j] if flipped[j] else answer[j]
            if r == 0 and small > 1 - tau:
                going.add(j)
            elif small < tau:
                going.add(j)
            else:
                mean[j], stds[j], error[j], final[j] = answer[j], std, bound(u, m, std), r + 1
        if r == 0:
            flipped = np.array([j in going and answer[j] > 0.5 for j in range(d)])
        left, u, tau, r = going, u / 2, tau / 2, r + 1
    rest = [ask(block, math.sqrt(6 * math.log(m / (alpha * beta)))) for block in blocks[r:]]
    for j in left:
        std = rest[0][1] / math.sqrt(len(rest))
        mean[j], stds[j], final[j] = np.mean([answer[j] for answer, _ in rest]), std, r + 1
        error[j] = bound(u, m * len(rest), std)
    return Found(mean, stds, flipped, radii, sensitivities, final=final, sizes=sizes, error=error, right=right)
