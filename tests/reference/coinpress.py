"""Slow plain-NumPy CoinPress from the text of Biswas, Dong, Kamath and Ullman 2020 (arXiv 2006.06618), row by row.

Noise comes in as arguments, so that the same draws can go through both forms. Costs are zCDP (Gaussian noise).
`published_covariance` emulates what the code published with the paper computes where it differs from its text: rows
are mapped by the transpose of A, the way back is A^{-1} Z A^{-1}, and the projection to PSD gives |Z|.
"""

import math
from collections.abc import Sequence

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


def wigner_tail(d: int, b: float, noise: str) -> float:
    """upsilon with P(||W||_2 > upsilon) <= b, unit variance on the diagonal."""
    x = math.log(2.0 / b)
    return math.sqrt(2.0 * d) + math.sqrt(2.0 * x) if noise == "goe" else 2.0 * math.sqrt(d) + 2.0 * math.sqrt(x)


def covariance(
    rows: np.ndarray,
    upper: float,
    rhos: Sequence[float],
    noise: Sequence[np.ndarray],
    *,
    constants: str = "practical",
    kind: str = "goe",
    beta: float = 0.05,
    order: str = "right",
) -> tuple[np.ndarray, np.ndarray]:
    """MVCRec, I <= Sigma <= upper I, mean zero: noise[s] symmetric (d, d) with unit variance on the diagonal.

    order="right" maps rows by A x and goes back by A^{-1} Z A^{-T}; "rows" takes X A for X A^T, "back" takes
    A^{-1} Z A^{-1} for the way back. Returns the estimate and the last covering matrix A^{-1} A^{-T}.
    """
    n, d = rows.shape
    a = np.eye(d) / math.sqrt(upper)
    estimate = np.eye(d)
    for rho, b, draw in zip(rhos, betas(beta, len(rhos)), noise):
        gamma = chi_tail(d, b / n if constants == "theory" else 0.1)
        sensitivity = (math.sqrt(2.0) if d > 1 else 1.0) * gamma**2 / n
        scale = sensitivity / math.sqrt(2.0 * rho)
        z = scale * draw
        for row in rows:
            w = clipped((a.T if order == "rows" else a) @ row, gamma)
            z = z + np.outer(w, w) / n
        values, vectors = np.linalg.eigh(z)
        z = (vectors * np.maximum(values, 0.0)) @ vectors.T
        root = math.sqrt(d / n)
        if constants == "theory":
            delta = root + math.sqrt(2.0 * math.log(2.0 / b) / n)
            inflate = 2.0 * delta + delta**2 + scale * wigner_tail(d, b, kind)
        else:
            inflate = (2.0 * root + root**2) / 2.0
        inverse = np.linalg.inv(a)
        estimate = inverse @ z @ (inverse if order == "back" else inverse.T)
        values, vectors = np.linalg.eigh(z + inflate * np.eye(d))
        a = (vectors / np.sqrt(values)) @ vectors.T @ a
    return estimate, np.linalg.inv(a) @ np.linalg.inv(a).T


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
