"""Data sets of published studies, and some of practice, as NumPy arrays of rows in the unit ball."""

import numpy as np


def skewed_rows(seed: int, n: int, d: int, octaves: int, exponent: float = 3.0) -> np.ndarray:
    """Rows of Dong, Liang and Yi (2022): a random linear image of normal rows, with norms of a Zipf law.

    X = G U with G standard normal (n, d) and U uniform (d, d), column means taken away. Norm 2^(k + 1 - octaves) has
    probability proportional to (k + 1)^-exponent, k = 0..octaves-1, so the shortest norm is the commonest; with
    octaves = 1 all rows have norm 1. Rows are in order of their norms.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.uniform(size=(d, d))
    x -= x.mean(axis=0)
    weights = np.arange(1.0, octaves + 1.0) ** -exponent
    ends = np.floor(n * np.cumsum(weights / weights.sum())).astype(int)
    norms = np.ones(n)
    for k, (start, end) in enumerate(zip([0, *ends[:-1]], ends)):
        norms[start:end] = 2.0 ** (k + 1 - octaves)
    return x * (norms / np.linalg.norm(x, axis=1))[:, None]


def spectrum(name: str, d: int) -> np.ndarray:
    """(d,) eigenvalues that add up to 1: "flat", or decaying like k^-1 ("slow") or k^-2 ("fast")."""
    power = {"flat": 0.0, "slow": 1.0, "fast": 2.0}[name]
    values = np.arange(1.0, d + 1.0) ** -power
    return values / values.sum()


def normal_rows(seed: int, n: int, d: int, size: float, decay: str) -> np.ndarray:
    """Normal rows of root mean square norm `size`, those beyond the unit ball clipped to it."""
    x = np.random.default_rng(seed).normal(size=(n, d)) * size * np.sqrt(spectrum(decay, d))
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)


def heavy_rows(seed: int, n: int, d: int, size: float, decay: str, freedom: float = 3.0) -> np.ndarray:
    """Student t rows of scale `size`, those beyond the unit ball clipped to it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * size * np.sqrt(spectrum(decay, d))
    x /= np.sqrt(rng.chisquare(freedom, size=(n, 1)) / freedom)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
