"""Slow forms of `jaxdpcov.metrics`, one pair of matrices at a time, from the definitions with explicit inverses."""

import mpmath
import numpy as np
import scipy.linalg
from scipy import integrate, stats


def frobenius(e: np.ndarray, s: np.ndarray) -> float:
    return float(np.sqrt(sum(x**2 for x in (e - s).ravel())))


def spectral(e: np.ndarray, s: np.ndarray) -> float:
    return float(np.linalg.norm(e - s, 2))


def mahalanobis(e: np.ndarray, s: np.ndarray) -> float:
    root = np.linalg.inv(scipy.linalg.sqrtm(s)).real
    return float(np.linalg.norm(root @ e @ root - np.eye(len(s))))


def stein(e: np.ndarray, s: np.ndarray) -> float:
    product = np.linalg.inv(e) @ s
    return float(np.trace(product) - np.log(np.linalg.det(product)) - len(s))


def kl(e: np.ndarray, s: np.ndarray, me: np.ndarray | float = 0.0, ms: np.ndarray | float = 0.0) -> float:
    shift = np.zeros(len(s)) + me - ms
    return 0.5 * stein(e, s) + 0.5 * float(shift @ np.linalg.inv(e) @ shift)


def hellinger(e: np.ndarray, s: np.ndarray, me: np.ndarray | float = 0.0, ms: np.ndarray | float = 0.0) -> float:
    shift, middle = np.zeros(len(s)) + me - ms, (e + s) / 2
    affinity = (np.linalg.det(e) * np.linalg.det(s)) ** 0.25 / np.sqrt(np.linalg.det(middle))
    return float(np.sqrt(1 - affinity * np.exp(-shift @ np.linalg.inv(middle) @ shift / 8)))


def bures_wasserstein(
    e: np.ndarray, s: np.ndarray, me: np.ndarray | float = 0.0, ms: np.ndarray | float = 0.0
) -> float:
    values, vectors = np.linalg.eigh(s)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ e @ root), 0.0)).sum()
    squared = np.trace(e + s) - 2 * cross
    return float(np.sqrt(squared + np.sum((np.zeros(len(s)) + me - ms) ** 2)))


def subspace_distance(e: np.ndarray, s: np.ndarray, k: int) -> float:
    angles = scipy.linalg.subspace_angles(np.linalg.eigh(e)[1][:, -k:], np.linalg.eigh(s)[1][:, -k:])
    return float(np.linalg.norm(np.sin(angles)))


def kl_by_integration(e: float, s: float, me: float, ms: float) -> float:
    """KL(N(ms, s) || N(me, e)) of two normal laws on the line, from the densities."""
    truth, estimate = stats.norm(ms, np.sqrt(s)), stats.norm(me, np.sqrt(e))
    span = ms - 12 * np.sqrt(s), ms + 12 * np.sqrt(s)
    return integrate.quad(lambda x: truth.pdf(x) * (truth.logpdf(x) - estimate.logpdf(x)), *span, limit=200)[0]


def hellinger_by_integration(e: float, s: float, me: float, ms: float) -> float:
    truth, estimate = stats.norm(ms, np.sqrt(s)), stats.norm(me, np.sqrt(e))
    far = 12 * np.sqrt(max(e, s))
    span = min(me, ms) - far, max(me, ms) + far
    return np.sqrt(1 - integrate.quad(lambda x: np.sqrt(truth.pdf(x) * estimate.pdf(x)), *span, limit=200)[0])


def of_diagonals(e: list[float], s: list[float]) -> dict[str, float]:
    """All metrics of two diagonal covariances with 60 digits: where doubles would cancel."""
    with mpmath.workdps(60):
        pairs = [(mpmath.mpf(x), mpmath.mpf(y)) for x, y in zip(e, s)]
        loss = mpmath.fsum(y / x - 1 - mpmath.log(y / x) for x, y in pairs)
        affinity = mpmath.fprod(mpmath.sqrt(2 * mpmath.sqrt(x * y) / (x + y)) for x, y in pairs)
        out = {
            "frobenius": mpmath.sqrt(mpmath.fsum((x - y) ** 2 for x, y in pairs)),
            "spectral": max(abs(x - y) for x, y in pairs),
            "mahalanobis": mpmath.sqrt(mpmath.fsum((x / y - 1) ** 2 for x, y in pairs)),
            "stein": loss,
            "kl": loss / 2,
            "hellinger": mpmath.sqrt(1 - affinity),
            "bures_wasserstein": mpmath.sqrt(mpmath.fsum((mpmath.sqrt(x) - mpmath.sqrt(y)) ** 2 for x, y in pairs)),
        }
        return {name: float(value) for name, value in out.items()}
