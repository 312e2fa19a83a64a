"""Slow plain-NumPy form of the adaptive mechanism: levels, clipping bias, predicted errors, and the choice of a radius.

The choice is simulated with NumPy's own generator, so that its law can be compared with the package's.
"""

import math
from typing import NamedTuple

import numpy as np

from tests.reference import separate

ETA_B = 8.0  # a failure probability beta is cut into eighths


class Prediction(NamedTuple):
    """Predicted Frobenius errors of the two forms on the sum over rows."""

    gaussian: float
    separate: float


def level(norm: float) -> int | None:
    """The s with 2^s < norm <= 2^(s+1), at most -1; None for a zero row."""
    if norm == 0.0:
        return None
    s = -1
    while norm <= 2.0**s:
        s -= 1
    return s


def upper_bias(norms: np.ndarray, k: int) -> float:
    """Bound on the clipped mass at 2^k that looks at levels alone: a row of level s >= k counts 4^(s+1) - 4^k."""
    total = 0.0
    for norm in norms:
        s = level(norm)
        if s is not None and s >= k:
            total += 4.0 ** (s + 1) - 4.0**k
    return total


def clipped_mass(norms: np.ndarray, radius: float) -> float:
    """sum of max(0, |x|^2 - radius^2)."""
    return sum(max(0.0, norm**2 - radius**2) for norm in norms)


def kept_mass(norms: np.ndarray, radius: float) -> float:
    """sum of min(|x|^2, radius^2)."""
    return sum(min(norm**2, radius**2) for norm in norms)


def paper_tails(d: int, b: float, noise: str) -> tuple[float, float, float]:
    """eta, upsilon and omega of Dong, Liang and Yi (2022), d >= 2, Gaussian noise with unit scale."""
    x = math.log(2.0 / b)
    eta = math.sqrt(d + 2 * math.sqrt(d * math.log(1 / b)) + 2 * math.log(1 / b))
    theta = min((math.log(d) / d) ** 0.3, 0.5)
    upsilon = (1 + theta) * (2 * math.sqrt(d) + 6 * math.sqrt(math.log(d)) / math.sqrt(math.log(1 + theta)))
    upsilon += math.sqrt(2 * x)
    omega = math.sqrt(d * d + 2 * math.sqrt(d * x) * (1 + math.sqrt(2 * (d - 1))) + 6 * x)
    return eta, upsilon, omega


def predict_paper(
    shape: separate.Shape, radius: float, mass: float, cost: float, share: float, beta: float
) -> Prediction:
    """Noise bounds of the paper at one radius: `mass` is n tr~, `cost` the budget of the estimate (rho)."""
    eta, upsilon, omega = paper_tails(shape.d, beta / ETA_B, shape.noise)
    f = separate.sensitivities(shape, radius)["second"]
    whole, matrix, spectrum = (f / math.sqrt(2 * c) for c in (cost, (1 - share) * cost, share * cost))
    gaussian = radius**2 * whole * omega
    return Prediction(gaussian, 2 * math.sqrt(mass * radius**2 * matrix * upsilon) + radius**2 * spectrum * eta)


def predict_tuned(
    shape: separate.Shape, radius: float, mass: float, n: float, cost: float, share: float, psd: str
) -> Prediction:
    """Expected errors at one radius: root mean square of the noise, and a fitted tenth of the eigenvector bound."""
    d = shape.d

    def bound(off: float) -> float:
        return 2 * math.sqrt(min(mass, n * radius**2) * 2 * math.sqrt(d) * off * radius**2)

    whole = separate.std(shape, "second", cost, radius)
    off, off_matrix = (separate.off(shape, c, radius) for c in (cost, (1 - share) * cost))
    spectrum = float(separate.std(shape, "spectrum", share * cost, radius))
    gaussian = radius**2 * float(np.linalg.norm(whole))
    if psd == "denoise":
        gaussian = min(gaussian, 0.1 * bound(off) + 0.5 * math.sqrt(2 * d) * off * radius**2)
    return Prediction(gaussian, 0.12 * bound(off_matrix) + 0.5 * math.sqrt(d) * spectrum * radius**2)


def choose_paper(rng: np.random.Generator, bias: np.ndarray, noise: np.ndarray, epsilon: float) -> int:
    """AboveThreshold, one query after the other: the t of the radius 2^-t, from bias and noise at 1, 1/2, 1/4, ..."""
    threshold = rng.laplace(scale=2 / epsilon)
    for i in range(len(noise)):
        if bias[i] - noise[i] + rng.laplace(scale=4 / epsilon) >= threshold:
            return max(i - 1, 0)
    return len(noise) - 2


def law_tuned(clipped: np.ndarray, noise: np.ndarray, allowed: np.ndarray, epsilon: float, weight: float) -> np.ndarray:
    """Probabilities of the levels: exp(-epsilon (weight * clipped mass + noise) / weight) among those allowed."""
    log_weight = np.where(allowed, -epsilon * (weight * clipped + noise) / weight, -np.inf)
    p = np.exp(log_weight - log_weight.max())
    return p / p.sum()
