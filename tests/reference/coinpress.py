"""Slow plain-NumPy CoinPress from the text of Biswas, Dong, Kamath and Ullman 2020 (arXiv 2006.06618), row by row.

Noise comes in as arguments, so that the same draws can go through both forms. Costs are zCDP (Gaussian noise).
`published_covariance` emulates what the code published with the paper computes where it differs from its text: rows
are mapped by the transpose of A, the way back is A^{-1} Z A^{-1}, and the projection to PSD gives |Z|.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np


def chi_tail(d: int, b: float) -> float:
    """gamma with P(||g|| > gamma) <= b for g ~ N(0, I_d) (Laurent and Massart 2000)."""
    x = math.log(1.0 / b)
    return math.sqrt(d + 2.0 * math.sqrt(d * x) + 2.0 * x)


def betas(beta: float, rounds: int) -> list[float]:
    """The failure probability of each round."""
    return [beta / (4.0 * max(rounds - 1, 1))] * (rounds - 1) + [beta / 4.0]


def clipped(row: np.ndarray, radius: float) -> np.ndarray:
    norm = float(np.linalg.norm(row))
    return row if norm <= radius else row * (radius / norm)


def mean(
    rows: np.ndarray, center: np.ndarray, radius: float, rhos: Sequence[float], beta: float, noise: Sequence[np.ndarray]
) -> tuple[np.ndarray, float]:
    """MVMRec with identity covariance: noise[s] is standard normal (d,). Returns the last centre and radius."""
    n, d = rows.shape
    for rho, b, draw in zip(rhos, betas(beta, len(rhos)), noise):
        gamma = chi_tail(d, b / n)
        std = 2.0 * (radius + gamma) / n / math.sqrt(2.0 * rho)
        total = np.zeros(d)
        for row in rows:
            total += clipped(row - center, radius + gamma)
        center = center + total / n + std * draw
        radius = math.sqrt(1.0 / n + std**2) * chi_tail(d, b)
    return center, radius


def practical_mean(
    rows: np.ndarray, center: np.ndarray, radius: float, rhos: Sequence[float], noise: Sequence[np.ndarray]
) -> np.ndarray:
    """The mean with the constants of the paper's experiments: tails at 0.01, clipping at sqrt(r^2 + 6r + gamma^2)."""
    n, d = rows.shape
    gamma = chi_tail(d, 0.01)
    for rho, draw in zip(rhos, noise):
        reach = min(math.sqrt(radius**2 + 6.0 * radius + gamma**2), radius + gamma)
        std = 2.0 * reach / n / math.sqrt(2.0 * rho)
        center = center + sum(clipped(row - center, reach) for row in rows) / n + std * draw
        radius = math.sqrt(1.0 / n + std**2) * gamma
    return center


Bound = Callable[[float, float], tuple[float, float]]


def practical_gamma(n: int, d: int) -> Callable[[float], float]:
    """gamma(b) of the paper's experiments."""
    return lambda b: chi_tail(d, 0.1)


def practical_bound(n: int, d: int) -> Bound:
    """(factor, shift)(b, noise scale) of the paper's experiments, U = factor (Z + shift I)."""
    return lambda b, scale: (1.0, (2.0 * math.sqrt(d / n) + d / n) / 2.0)


def theory_bound(n: int, d: int, upsilon: Callable[[float], float]) -> Bound:
    """The smallest eigenvalue of a Wishart matrix is at least (1 - delta)^2 n, the noise at most scale upsilon."""

    def bound(b: float, scale: float) -> tuple[float, float]:
        delta = math.sqrt(d / n) + math.sqrt(2.0 * math.log(2.0 / b) / n)
        return 1.0 / (1.0 - delta) ** 2, scale * upsilon(b)

    return bound


def paper_bound(n: int, d: int, upsilon: Callable[[float], float]) -> Bound:
    """The paper's: Z + (eta + nu) I."""

    def bound(b: float, scale: float) -> tuple[float, float]:
        delta = math.sqrt(d / n) + math.sqrt(2.0 * math.log(2.0 / b) / n)
        return 1.0, 2.0 * delta + delta**2 + scale * upsilon(b)

    return bound


def covariance(
    rows: np.ndarray,
    upper: float,
    rhos: Sequence[float],
    noise: Sequence[np.ndarray],
    *,
    gamma: Callable[[float], float] | None = None,
    bound: Bound | None = None,
    shrink_only: bool = False,
    beta: float = 0.05,
    order: str = "right",
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """MVCRec, I <= Sigma <= upper I, mean zero: noise[s] symmetric (d, d) with unit variance on the diagonal.

    order="right" maps rows by A x and goes back by A^{-1} Z A^{-T}; "rows" takes X A for X A^T, "back" takes
    A^{-1} Z A^{-1} for the way back. Returns the estimate, the last covering matrix A^{-1} A^{-T} and the noisy Z.
    """
    n, d = rows.shape
    gamma, bound = gamma or practical_gamma(n, d), bound or practical_bound(n, d)
    a = np.eye(d) / math.sqrt(upper)
    estimate, answers = np.eye(d), []
    for rho, b, draw in zip(rhos, betas(beta, len(rhos)), noise):
        reach = gamma(b)
        scale = (math.sqrt(2.0) if d > 1 else 1.0) * reach**2 / n / math.sqrt(2.0 * rho)
        z = scale * draw
        for row in rows:
            w = clipped((a.T if order == "rows" else a) @ row, reach)
            z = z + np.outer(w, w) / n
        answers.append(z)
        values, vectors = np.linalg.eigh(z)
        values = np.maximum(values, 0.0)
        z = (vectors * values) @ vectors.T
        inverse = np.linalg.inv(a)
        estimate = inverse @ z @ (inverse if order == "back" else inverse.T)
        factor, shift = bound(b, scale)
        values = factor * (values + shift)
        if not shrink_only or np.sum(np.log(values)) < 0.0:
            a = (vectors / np.sqrt(values)) @ vectors.T @ a
    inverse = np.linalg.inv(a)
    return estimate, inverse @ inverse.T, answers


def published_covariance(
    rows: np.ndarray, upper: float, rhos: Sequence[float], noise: Sequence[np.ndarray]
) -> np.ndarray:
    """The covariance as published with the paper: X A, A^{-1} Z A^{-1} and |Z|, at the practical constants."""
    n, d = rows.shape
    gamma = chi_tail(d, 0.1)
    inflate = (2.0 * math.sqrt(d / n) + d / n) / 2.0
    a = np.eye(d) / math.sqrt(upper)
    estimate = np.eye(d)
    for rho, draw in zip(rhos, noise):
        w = rows @ a
        w = w * np.minimum(1.0, gamma / np.linalg.norm(w, axis=1, keepdims=True))
        z = w.T @ w / n + math.sqrt(2.0) * gamma**2 / n / math.sqrt(2.0 * rho) * draw
        values, vectors = np.linalg.eigh(z)
        z = (vectors * np.abs(values)) @ vectors.T
        estimate = np.linalg.inv(a) @ z @ np.linalg.inv(a)
        values, vectors = np.linalg.eigh(z + inflate * np.eye(d))
        a = (vectors / np.sqrt(values)) @ vectors.T @ a
    return estimate


def mean_1d(
    x: np.ndarray, low: float, high: float, rhos: Sequence[float], beta: float, noise: Sequence[float]
) -> tuple[float, float]:
    """UVMRec with unit variance: noise[s] standard normal. Returns the last interval."""
    n = len(x)
    for rho, b, draw in zip(rhos, betas(beta, len(rhos)), noise):
        h = math.sqrt(2.0 * math.log(2.0 * n / b))
        std = (high - low + 2.0 * h) / n / math.sqrt(2.0 * rho)
        z = sum(min(max(value, low - h), high + h) for value in x) / n + std * draw
        w = math.sqrt(2.0 * (1.0 / n + std**2) * math.log(2.0 / b))
        low, high = z - w, z + w
    return low, high


def variance_1d(
    x: np.ndarray, low: float, high: float, rhos: Sequence[float], beta: float, noise: Sequence[float]
) -> tuple[float, tuple[float, float]]:
    """UVVRec, mean zero, variance in [low, high]: noise[s] standard normal. Returns the estimate and the interval."""
    n = len(x)
    first, last, z = low, high, high
    for rho, b, draw in zip(rhos, betas(beta, len(rhos)), noise):
        r = math.log(n / b)
        cap = high * (1.0 + 2.0 * math.sqrt(r) + 2.0 * r)
        std = cap / n / math.sqrt(2.0 * rho)
        z = sum(min(value * value, cap) for value in x) / n + std * draw
        tail = std * math.sqrt(2.0 * math.log(2.0 / b))
        q = math.log(2.0 / b)
        below = 1.0 - 2.0 * math.sqrt(q / n)
        new_high = (z + tail) / below if below > 0 else high
        new_low = (z - tail) / (1.0 + 2.0 * math.sqrt(q / n) + 2.0 * q / n)
        low, high = (min(max(end, low), high) for end in (new_low, new_high))
    return min(max(z, first), last), (low, high)
