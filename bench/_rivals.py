"""What a user could run instead: plain NumPy loops from the formulas, and diffprivlib and opendp where they have it.

All on the host, in float64, for rows (n, d) in the l2 ball of radius 1 about 0 and the replace-one relation. The NumPy
forms do once what all repetitions share, as a careful user would. A library that is missing or does not import is told
with a line that says so.
"""

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Loop = Callable[[np.random.Generator], np.ndarray]  # one release: a private covariance (d, d)

_PER_OCTAVE, _LEVELS, _BIAS_WEIGHT = 4, 320, 0.3


class Missing(Exception):
    """A rival that cannot run here; the message is the line to print."""


def _clip(x: np.ndarray, radius: float = 1.0) -> np.ndarray:
    return x * np.minimum(1.0, radius / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300))


def _std(sensitivity: float, rho: float) -> float:
    return sensitivity / math.sqrt(2.0 * rho)


def _symmetric(rng: np.random.Generator, d: int, std: float) -> np.ndarray:
    """Noise of std `std` on the diagonal and std/sqrt(2) beside it."""
    w = rng.normal(size=(d, d))
    return 0.5 * std * (w + w.T)


def _denoised(values: np.ndarray, off: float) -> np.ndarray:
    """Eigenvalues moved to what their eigenvectors deserve: x_i - 2 off^2 sum_j t_ij / (t_ij^2 + 2 off^2), t gaps."""
    gaps = values[:, None] - values[None, :]
    return values - 2.0 * off**2 * np.sum(gaps / (gaps**2 + 2.0 * off**2), axis=1)


def _isotonic(values: np.ndarray) -> np.ndarray:
    pools: list[list[float]] = []
    for value in values:
        pools.append([float(value), 1.0])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, m), (b, k) = pools[-2:]
            pools[-2:] = [[(a * m + b * k) / (m + k), m + k]]
    return np.array([mean for mean, size in pools for _ in range(int(size))])


def _clipped_eigenvalues(matrix: np.ndarray, ceiling: float, off: float | None = None) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    if off is not None:
        values = _denoised(values, off)
    return (vectors * np.clip(values, 0.0, ceiling)) @ vectors.T


def gaussian(x: np.ndarray, rho: float, mean_share: float) -> Loop:
    """`gaussian` in NumPy: noise on the mean and on the second moment, negative eigenvalues to 0."""
    (n, d), x = x.shape, _clip(x)
    second, mean = x.T @ x / n, x.mean(axis=0)
    first_std = _std(2.0 / n, mean_share * rho)
    std = _std(math.sqrt(2.0) / n, (1.0 - mean_share) * rho)

    def one(rng: np.random.Generator) -> np.ndarray:
        m = mean + rng.normal(scale=first_std, size=d)
        raw = second + _symmetric(rng, d, std) - np.outer(m, m) + first_std**2 * np.eye(d)
        return _clipped_eigenvalues(raw, 1.0)

    return one


def _separate_form(
    rng: np.random.Generator, second: np.ndarray, exact: np.ndarray, rho: float, n: int, square: float
) -> np.ndarray:
    """Eigenvectors of a noisy second moment, eigenvalues measured apart with a fifth of the budget."""
    unit = math.sqrt(2.0) * square / n
    noisy = second + _symmetric(rng, len(second), _std(unit, 0.8 * rho))
    values = _isotonic(exact + rng.normal(scale=_std(unit, 0.2 * rho), size=len(exact)))
    vectors = np.linalg.eigh(noisy)[1]
    return (vectors * np.clip(values, 0.0, square)) @ vectors.T


def separate(x: np.ndarray, rho: float, mean_share: float) -> Loop:
    """`separate` in NumPy (Dong, Liang and Yi 2022, with a fifth of the budget for eigenvalues, put in order)."""
    (n, d), x = x.shape, _clip(x)
    second, mean = x.T @ x / n, x.mean(axis=0)
    exact, first_std = np.linalg.eigvalsh(second), _std(2.0 / n, mean_share * rho)

    def one(rng: np.random.Generator) -> np.ndarray:
        m = mean + rng.normal(scale=first_std, size=d)
        raw = _separate_form(rng, second, exact, (1.0 - mean_share) * rho, n, 1.0)
        return _clipped_eigenvalues(raw - np.outer(m, m) + first_std**2 * np.eye(d), 1.0)

    return one


def adaptive(x: np.ndarray, rho: float, mean_share: float) -> Loop:
    """`adaptive` in NumPy: noisy trace, exponential mechanism over radii, the form with the smaller predicted error.

    Moments of rows clipped at a radius are kept once they were computed.
    """
    (n, d), x = x.shape, _clip(x)
    norms = np.linalg.norm(x, axis=1)
    radii = 2.0 ** (-np.arange(_LEVELS) / _PER_OCTAVE)
    ordered = np.sort(norms)[::-1]
    beyond = np.searchsorted(-ordered, -radii, side="left")
    clipped = np.concatenate([[0.0], np.cumsum(ordered**2)])[beyond] - beyond * radii**2
    total = float(np.sum(norms**2))
    estimate = 0.75 * rho
    cost = (1.0 - mean_share) * estimate
    eighth = 0.125 * rho
    whole, matrix, spectrum = (_std(math.sqrt(2.0), c) for c in (cost, 0.8 * cost, 0.2 * cost))
    off = math.sqrt(0.5)
    plain = whole * math.sqrt(d + 0.5 * d * (d - 1)) * radii**2
    sensitivity = 0.5 * _BIAS_WEIGHT
    # A radius whose whole noise is below what the choice can tell apart is not on offer.
    offered = np.concatenate([[np.inf], plain[:-1]]) > 0.25 * sensitivity / math.sqrt(2.0 * eighth)

    @functools.cache
    def moments(level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        w = _clip(x, radii[level])
        second = w.T @ w / n
        return second, w.mean(axis=0), np.linalg.eigvalsh(second)

    def predicted(trace: float) -> tuple[np.ndarray, np.ndarray]:
        mass, reach = np.minimum(trace, n * radii**2), 2.0 * math.sqrt(d) * off
        vectors = 0.24 * np.sqrt(mass * radii**2 * matrix * reach)
        denoised = 0.2 * np.sqrt(mass * radii**2 * whole * reach) + 0.5 * math.sqrt(2.0 * d) * off * whole * radii**2
        return np.minimum(plain, denoised), vectors + 0.5 * math.sqrt(d) * spectrum * radii**2

    def one(rng: np.random.Generator) -> np.ndarray:
        trace = total + _std(1.0, eighth) * (rng.normal() + math.sqrt(2.0 * math.log(8.0 / 0.1)))
        both = predicted(min(max(trace, 0.0), n))
        score = 0.5 * _BIAS_WEIGHT * (total - 2.0 * clipped) - np.minimum(*both)
        noisy = math.sqrt(2.0 * eighth) * score / sensitivity + rng.gumbel(size=_LEVELS)
        level = int(np.argmax(np.where(offered, noisy, -np.inf)))
        second, mean, exact = moments(level)
        square = radii[level] ** 2
        first_std = _std(2.0 * radii[level] / n, mean_share * estimate)
        m = mean + rng.normal(scale=first_std, size=d)
        left = -np.outer(m, m) + first_std**2 * np.eye(d)
        if both[1][level] < both[0][level]:
            return _clipped_eigenvalues(_separate_form(rng, second, exact, cost, n, square) + left, square)
        std = _std(math.sqrt(2.0) * square / n, cost)
        return _clipped_eigenvalues(second + _symmetric(rng, d, std) + left, square, off * std)

    return one


LOOPS = {"gaussian": gaussian, "separate": separate, "adaptive": adaptive}


def run_loop(one: Loop, truth: np.ndarray, repetitions: int, seed: int = 0) -> np.ndarray:
    """Frobenius errors (repetitions,) of a loop of releases."""
    rng = np.random.default_rng(seed)
    return np.array([np.linalg.norm(one(rng) - truth) for _ in range(repetitions)])


def library(name: str) -> Any:
    """A rival's module, or `Missing` with what to do."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(
            f"{name.split('.')[0]} skipped: {type(error).__name__} ({error}); pip install 'jaxdpcov[bench]' installs it"
        ) from None


def diffprivlib_covariance(x: np.ndarray, epsilon: float) -> Loop:
    """diffprivlib's eigenvalues and eigenvectors of the second moment under pure DP: the counterpart of `emcov`."""
    utils = library("diffprivlib.models.utils")
    x = _clip(x)

    def one(rng: np.random.Generator) -> np.ndarray:
        values, vectors = utils.covariance_eig(x, epsilon=epsilon, norm=1.0, random_state=int(rng.integers(2**31)))
        return (vectors * values) @ vectors.T / len(x)

    return one


def diffprivlib_variances(x: np.ndarray, epsilon: float) -> Loop:
    """diffprivlib's variances of columns under pure DP: the counterpart of `diagonal` in a box."""
    tools = library("diffprivlib.tools")

    def one(rng: np.random.Generator) -> np.ndarray:
        return np.diag(tools.var(x, epsilon=epsilon, bounds=(-1.0, 1.0), axis=0, random_state=int(rng.integers(2**31))))

    return one


def opendp_gaussian(x: np.ndarray, rho: float) -> Loop:
    """opendp's Gaussian mechanism on the second moment as a vector: the counterpart of `gaussian` with center="zero".

    Off-diagonal entries count sqrt(2), so that the l2 norm of the vector is the Frobenius norm of the matrix.
    """
    dp = library("opendp.prelude")
    dp.enable_features("contrib")
    (n, d), x = x.shape, _clip(x)
    at = np.triu_indices(d)
    weights = np.where(at[0] == at[1], 1.0, math.sqrt(2.0))
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(weights)), dp.l2_distance(T=float)
    measure = dp.m.make_gaussian(*space, scale=_std(math.sqrt(2.0) / n, rho))
    second = x.T @ x / n

    def one(rng: np.random.Generator) -> np.ndarray:  # draws from the operating system: the generator has no part in it
        noisy = np.zeros((d, d))
        noisy[at] = np.asarray(measure((second[at] * weights).tolist())) / weights
        return _clipped_eigenvalues(noisy + np.triu(noisy, 1).T, 1.0)

    return one


def opendp_pca(x: np.ndarray, epsilon: float) -> Loop:
    """opendp's private PCA about 0 under pure DP, put together to a second moment: the counterpart of `emcov`."""
    dp = library("opendp.prelude")
    library("randomgen")
    dp.enable_features("contrib", "idealized-numerics")
    n, d = x.shape
    domain = dp.numpy.array2_domain(norm=1.0, p=2, origin=0.0, size=n, num_columns=d, T=float, nan=False)
    measure = dp.sklearn.decomposition.make_private_pca(domain, dp.symmetric_distance(), unit_epsilon=epsilon)
    x = _clip(x, 1.0 - 1e-12)

    def one(rng: np.random.Generator) -> np.ndarray:
        found = measure(x)
        return (found.Vt.T * found.S**2) @ found.Vt / n

    return one


def graphical_lasso() -> Callable[[np.ndarray], np.ndarray]:
    """scikit-learn's graphical lasso on a noisy positive definite covariance: post-processing, no further cost.

    The penalty is a tenth of the mean variance, the best of a grid by factors of two, found with the truth at hand.
    """
    covariance = library("sklearn.covariance")

    def fit(noisy: np.ndarray) -> np.ndarray:
        return covariance.graphical_lasso(noisy, alpha=0.1 * float(np.mean(np.diag(noisy))))[0]

    return fit
