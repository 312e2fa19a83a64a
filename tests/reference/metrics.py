"""Slow forms of `jaxdpcov.metrics`, one pair of matrices at a time, from the definitions with explicit inverses."""

import itertools
from typing import Any

import mpmath
import numpy as np
import scipy.linalg
import scipy.special
from scipy import integrate, optimize, stats


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


def chi_square(e: np.ndarray, s: np.ndarray, me: np.ndarray | float = 0.0, ms: np.ndarray | float = 0.0) -> float:
    """Integral p^2/q - 1 by completing the square with precisions: p^2/q is a Gaussian of precision 2 S^-1 - E^-1."""
    shift = np.zeros(len(s)) + me - ms
    p, q = np.linalg.inv(s), np.linalg.inv(e)
    both = 2 * p - q
    if np.linalg.eigvalsh(both)[0] <= 0:
        return np.inf
    # -x' P x + (x - shift)' Q (x - shift)/2, from its maximum on.
    exponent = 0.5 * shift @ (q + q @ np.linalg.inv(both) @ q) @ shift
    return float(np.linalg.det(p) / np.sqrt(np.linalg.det(q) * np.linalg.det(both)) * np.exp(exponent) - 1)


def chi_square_by_integration(e: float, s: float, me: float, ms: float) -> float:
    truth, estimate = stats.norm(ms, np.sqrt(s)), stats.norm(me, np.sqrt(e))
    return integrate.quad(lambda x: np.exp(2 * truth.logpdf(x) - estimate.logpdf(x)), -60, 60, limit=500)[0] - 1


def variation_by_integration(e: float, s: float, me: float, ms: float) -> float:
    """Half the integral of |p - q| on the line, cut where p - q changes its sign on a fine grid."""
    truth, estimate = stats.norm(ms, np.sqrt(s)), stats.norm(me, np.sqrt(e))
    far = 15 * np.sqrt(max(e, s))
    grid = np.linspace(min(me, ms) - far, max(me, ms) + far, 20_001)
    sign = np.sign(truth.logpdf(grid) - estimate.logpdf(grid))
    gap = lambda x: truth.pdf(x) - estimate.pdf(x)  # noqa: E731
    cuts = [grid[0], grid[-1]] + [optimize.brentq(gap, grid[i], grid[i + 1]) for i in np.flatnonzero(np.diff(sign))]
    cuts = np.sort(np.concatenate([cuts, [me, ms]]))
    return 0.5 * sum(abs(integrate.quad(gap, *ends, epsabs=1e-13)[0]) for ends in zip(cuts, cuts[1:]))


def variation_in_the_plane(e: np.ndarray, s: np.ndarray, me: np.ndarray, ms: np.ndarray) -> float:
    """Half the sum of |p - q| over a grid of 10 standard deviations, right to about 1e-4."""
    span = 10 * np.sqrt(max(np.diag(e).max(), np.diag(s).max())) + np.abs([me, ms]).max()
    axis, step = np.linspace(-span, span, 1201, retstep=True)
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    p, q = stats.multivariate_normal(ms, s).pdf(points), stats.multivariate_normal(me, e).pdf(points)
    return float(0.5 * np.abs(p - q).sum() * step**2)


def variation_by_draws(
    seed: int, e: np.ndarray, s: np.ndarray, me: np.ndarray, ms: np.ndarray, draws: int
) -> tuple[float, float]:
    """E_p (1 - q/p)_+ from draws of p alone, and its standard error."""
    x = np.random.default_rng(seed).multivariate_normal(ms, s, size=draws)
    p, q = stats.multivariate_normal(ms, s).logpdf(x), stats.multivariate_normal(me, e).logpdf(x)
    values = np.maximum(1 - np.exp(q - p), 0.0)
    return float(values.mean()), float(values.std() / np.sqrt(draws))


@mpmath.workdps(60)
def line(log_ratio: Any, shift: Any) -> mpmath.mpf:
    """TV(N(0, 1), N(shift, e^log_ratio)) from the crossings of the densities and four distribution functions."""
    log_ratio, shift = mpmath.mpf(log_ratio), mpmath.mpf(shift)
    if log_ratio == 0:
        return mpmath.erf(abs(shift) / (2 * mpmath.sqrt(2)))
    v = mpmath.exp(log_ratio)
    a, b, c = 1 - 1 / v, shift / v, -(shift**2 / v + log_ratio)
    root = mpmath.sqrt(b * b - a * c)
    p, q = (
        mpmath.ncdf((max(ends) - m) / sd) - mpmath.ncdf((min(ends) - m) / sd)
        for ends in [((-b - root) / a, (-b + root) / a)]
        for m, sd in [(0, 1), (shift, mpmath.sqrt(v))]
    )
    return abs(p - q)


def variation_bounds_of_diagonals(
    e: list[float], s: list[float], me: list[float], ms: list[float]
) -> tuple[float, float]:
    """Both bounds of d > 1 columns with 60 digits, each formula as it is written in the docstring."""
    with mpmath.workdps(60):
        e, s, me, ms = ([mpmath.mpf(x) for x in xs] for xs in (e, s, me, ms))
        shift = [x - y for x, y in zip(me, ms)]
        under = [mpmath.sqrt(mpmath.fsum(t**2 / v for t, v in zip(shift, vs))) for vs in (e, s)]
        kl_centred = [mpmath.fsum(x / y - 1 - mpmath.log(x / y) for x, y in zip(a, b)) / 2 for a, b in ((s, e), (e, s))]
        kls = [k + d**2 / 2 for k, d in zip(kl_centred, under)]
        centred = mpmath.fprod(mpmath.sqrt(2 * mpmath.sqrt(x * y) / (x + y)) for x, y in zip(e, s))
        affinity = centred * mpmath.exp(-mpmath.fsum(t**2 / (x + y) for t, x, y in zip(shift, e, s)) / 4)
        alone = [line(mpmath.log(x / y), 0) for x, y in zip(e, s)]
        part = min(
            *(mpmath.sqrt(k / 2) for k in kl_centred),
            mpmath.sqrt(1 - centred**2),
            1 - mpmath.fprod(1 - t for t in alone),
        )
        upper = min(
            1,
            *(mpmath.sqrt(k / 2) for k in kls),
            mpmath.sqrt(1 - affinity**2),
            part + mpmath.erf(min(under) / (2 * mpmath.sqrt(2))),
        )
        frobenius = max(mpmath.sqrt(mpmath.fsum((x / y - 1) ** 2 for x, y in zip(*xs))) for xs in ((e, s), (s, e)))
        lower = max(1 - affinity, *alone, min(1, frobenius) / 100)
        if any(shift):
            w = [t / (x + y) for t, x, y in zip(shift, e, s)]
            variances = [mpmath.fsum(t**2 * v for t, v in zip(w, vs)) for vs in (e, s)]
            apart = mpmath.fsum(x * y for x, y in zip(w, shift))
            lower = max(lower, line(mpmath.log(variances[0] / variances[1]), apart / mpmath.sqrt(variances[1])))
        return float(lower), float(upper)


def outcomes(mean: np.ndarray) -> np.ndarray:
    """The probabilities of all 2^d outcomes of a product distribution over {0,1}^d."""
    bits = np.array(list(itertools.product([0, 1], repeat=len(mean))))
    return np.prod(np.where(bits == 1, mean, 1 - mean), axis=1)


def product_kl(q: np.ndarray, p: np.ndarray) -> float:
    return float(scipy.special.rel_entr(outcomes(p), outcomes(q)).sum())


def product_variation(q: np.ndarray, p: np.ndarray) -> float:
    return float(np.abs(outcomes(p) - outcomes(q)).sum() / 2)


def product_bounds(q: list[float], p: list[float]) -> dict[str, float]:
    """The bounds on the total variation of product distributions with 60 digits, means within (0, 1)."""
    with mpmath.workdps(60):
        pairs = [(mpmath.mpf(x), mpmath.mpf(y)) for x, y in zip(q, p)]
        log, sqrt = mpmath.log, mpmath.sqrt
        kl = [
            mpmath.fsum(y * log(y / x) + (1 - y) * log((1 - y) / (1 - x)) for x, y in both)
            for both in (pairs, [(y, x) for x, y in pairs])
        ]
        out = {
            "sum": mpmath.fsum(abs(x - y) for x, y in pairs),
            "coupling": 1 - mpmath.fprod(1 - abs(x - y) for x, y in pairs),
            "forward": sqrt(kl[0] / 2),
            "backward": sqrt(kl[1] / 2),
            "chi square": sqrt(mpmath.fsum((x - y) ** 2 / (x * (1 - x)) for x, y in pairs) / 2),
            "hellinger": sqrt(1 - mpmath.fprod(sqrt(x * y) + sqrt((1 - x) * (1 - y)) for x, y in pairs) ** 2),
        }
        return {name: float(value) for name, value in out.items()} | {"kl": float(kl[0])}
