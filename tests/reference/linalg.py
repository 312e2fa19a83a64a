"""Slow plain-NumPy forms of `jaxdpcov.linalg`, one matrix at a time, from the definitions."""

from collections.abc import Callable

import mpmath
import numpy as np


def spectral(a: np.ndarray, function: Callable[[float], float]) -> np.ndarray:
    """sum_i f(x_i) v_i v_i^T."""
    values, vectors = np.linalg.eigh((a + a.T) / 2)
    return sum(function(x) * np.outer(v, v) for x, v in zip(values, vectors.T))


def divided_difference(name: str, x: float, y: float, exponent: float = 0.5) -> float:
    """(f(x) - f(y))/(x - y) with 60 digits, f'(x) at x = y."""
    functions = {
        "exp": (mpmath.exp, mpmath.exp),
        "log": (mpmath.log, lambda t: 1 / t),
        "power": (lambda t: t ** mpmath.mpf(exponent), lambda t: exponent * t ** (mpmath.mpf(exponent) - 1)),
    }
    function, slope = functions[name]
    with mpmath.workdps(60):
        x, y = mpmath.mpf(x), mpmath.mpf(y)
        return float(slope(x) if x == y else (function(x) - function(y)) / (x - y))


def correlation(cov: np.ndarray) -> np.ndarray:
    d = cov.shape[0]
    out = np.eye(d)
    for j in range(d):
        for k in range(d):
            if j != k and cov[j, j] > 0 and cov[k, k] > 0:
                out[j, k] = np.clip(cov[j, k] / np.sqrt(cov[j, j] * cov[k, k]), -1, 1)
    return out


def nearest_correlation(a: np.ndarray, steps: int = 20_000) -> np.ndarray:
    """Alternating projections with Dykstra's correction on the cone (Higham 2002, algorithm 3.3)."""
    y, correction = (a + a.T) / 2, np.zeros_like(a)
    for _ in range(steps):
        r = y - correction
        x = spectral(r, lambda t: max(t, 0.0))
        correction = x - r
        before = y
        y = x.copy()
        np.fill_diagonal(y, 1.0)
        if np.linalg.norm(y - before) < 1e-14:
            break
    return y


def shrink_to_diagonal(cov: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, float]:
    """The positive-part Stein weight, entry by entry above the diagonal."""
    d = cov.shape[0]
    pairs = [(j, k) for j in range(d) for k in range(j + 1, d)]
    energy = sum(cov[j, k] ** 2 for j, k in pairs)
    noise = max(0.0, sum(std[j, k] ** 2 for j, k in pairs) - 2 * max(std[j, k] ** 2 for j, k in pairs))
    weight = 0.0 if noise == 0 else min(1.0, noise / energy) if energy > 0 else 1.0
    out = cov.copy()
    for j, k in pairs:
        out[j, k] = out[k, j] = (1 - weight) * cov[j, k]
    return out, weight


def svec(a: np.ndarray) -> np.ndarray:
    d = a.shape[0]
    return np.array([a[j, k] * (1.0 if j == k else np.sqrt(2.0)) for j in range(d) for k in range(j, d)])
