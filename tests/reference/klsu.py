"""Slow plain-NumPy preconditioning of Kamath, Li, Singhal and Ullman 2019 (arXiv 1805.00216), row by row.

In the paper's own units: I <= Sigma <= kappa I, a map A with I <= A Sigma A^T <= kappa I after every round, balls of
squared radius kappa gamma^2. Noise comes in as arguments, so that the same draws can go through both forms; costs are
zCDP. What the tails are is tested with them: a `Law` brings those that are proven.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.reference.coinpress import chi_tail, clipped


class Law(NamedTuple):
    """Constants of a round. eta(b), upsilon(b): proven tails of |g| and of the noise; None: typical sizes."""

    kind: str = "goe"
    eta: Callable[[float], float] | None = None
    upsilon: Callable[[float], float] | None = None

    @property
    def proven(self) -> bool:
        return self.eta is not None


class Round(NamedTuple):
    """a, kappa: after it. answer: the noisy second moment, noise of std `scale`, of rows that had the map `used`."""

    a: np.ndarray
    kappa: float
    answer: np.ndarray
    scale: float
    used: np.ndarray


class Estimate(NamedTuple):
    """rounds; then as in a `Round`, and what that gives: the covariance, and a matrix that covers Sigma."""

    rounds: list[Round]
    used: np.ndarray
    kappa: float
    answer: np.ndarray
    scale: float
    covariance: np.ndarray
    cover: np.ndarray


def costs(rho: float, rounds: int, share: float) -> list[float]:
    """What the rounds and the estimate spend of rho."""
    return [share * rho / rounds] * rounds + [(1.0 - share) * rho] if rounds else [rho]


def pairs(rows: np.ndarray) -> np.ndarray:
    """Differences of neighbours over sqrt(2)."""
    return np.array([(rows[2 * i] - rows[2 * i + 1]) / math.sqrt(2.0) for i in range(len(rows) // 2)])


def radius(n: int, d: int, b: float, law: Law) -> float:
    """gamma, of rows of covariance at most I: all n of them but for probability b, or nine in ten."""
    return law.eta(b / n) if law.eta else chi_tail(d, 0.1)


def accuracy(n: int, d: int, b: float, scale: float, law: Law) -> float:
    """eps: |Z - Sigma| <= eps kappa. A sample of n has singular values in sqrt(n) (1 +- delta) but for b/2."""
    if law.upsilon:
        delta = math.sqrt(d / n) + math.sqrt(2.0 * math.log(2.0 / (b / 2.0)) / n)
        return (1.0 + delta) ** 2 - 1.0 + scale * law.upsilon(b / 2.0)
    edge = 1.0 if d == 1 else math.sqrt(2.0 * d) * (1.0 if law.kind == "goe" else math.sqrt(2.0))
    return (1.0 + math.sqrt(d / n)) ** 2 - 1.0 + edge * scale


def loss(eps: float, kappa: float, proven: bool) -> float | None:
    """h, by which a halving can shorten the directions that it leaves; None where nothing is promised."""
    m = (0.5 - eps) * kappa - 1.0
    if m <= 3.0:
        return None
    if not proven:
        return 0.0
    delta = 2.0 * eps * kappa / m
    h = 0.75 * delta * delta / (1.0 - 3.0 / m)
    return h if h < 1.0 else None


def second_moment(
    rows: np.ndarray, a: np.ndarray, kappa: float, gamma: float, rho: float, draw: np.ndarray, drop: bool
) -> tuple[np.ndarray, float]:
    """NaivePCE before the projection, and the std of its noise on the diagonal."""
    n, d = rows.shape
    reach = math.sqrt(kappa) * gamma
    scale = (math.sqrt(2.0) if d > 1 else 1.0) * reach**2 / n / math.sqrt(2.0 * rho)
    z = scale * draw
    for row in rows:
        y = a @ row
        if not drop:
            y = clipped(y, reach)
        elif np.linalg.norm(y) > reach:
            continue
        z = z + np.outer(y, y) / n
    return z, scale


def halved(z: np.ndarray, threshold: float) -> np.ndarray:
    """Pi_V/2 + Pi_V', V the eigenvectors of z with eigenvalues of at least the threshold."""
    p = np.eye(len(z))
    for value, v in zip(*(part.T for part in np.linalg.eigh(z))):
        if value >= threshold:
            p -= 0.5 * np.outer(v, v)
    return p


def precondition(
    rows: np.ndarray,
    kappa: float,
    rhos: Sequence[float],
    noise: Sequence[np.ndarray],
    b: float,
    law: Law,
    drop: bool = False,
) -> list[Round]:
    """PPC: rounds of WeakPPC; one that cannot promise a smaller kappa changes nothing."""
    n, d = rows.shape
    a, rounds = np.eye(d), []
    for rho, draw in zip(rhos, noise):
        z, scale = second_moment(rows, a, kappa, radius(n, d, b, law), rho, draw, drop)
        eps, used = accuracy(n, d, b, scale / kappa, law), a
        h = loss(eps, kappa, law.proven)
        if h is not None and (0.5 + eps) / (1.0 - h) < 1.0:
            a = halved(z, kappa / 2.0) @ a / math.sqrt(1.0 - h)
            kappa = kappa * (0.5 + eps) / (1.0 - h)
        rounds.append(Round(a, kappa, z, scale, used))
    return rounds


def pgce(
    rows: np.ndarray,
    kappa: float,
    rhos: Sequence[float],
    noise: Sequence[np.ndarray],
    b: float,
    law: Law,
    drop: bool = False,
) -> Estimate:
    """PGCE: all but the last cost go to the rounds. Covariance A^{-1} M A^{-T} with M projected to PSD."""
    n, d = rows.shape
    rounds = precondition(rows, kappa, rhos[:-1], noise[:-1], b, law, drop)
    a, kappa = (rounds[-1].a, rounds[-1].kappa) if rounds else (np.eye(d), kappa)
    z, scale = second_moment(rows, a, kappa, radius(n, d, b, law), rhos[-1], noise[-1], drop)
    return Estimate(rounds, a, kappa, z, scale, back(a, floored(z, 0.0)), cover(z, a, kappa, scale, n, b, law))


def mapped_cover(found: Estimate, n: int, b: float, law: Law) -> np.ndarray:
    """The cover in units of the last map."""
    return found.used @ found.cover @ found.used.T


def cover(z: np.ndarray, a: np.ndarray, kappa: float, scale: float, n: int, b: float, law: Law) -> np.ndarray:
    """A matrix that is at least Sigma (but for probability 2 b under proven tails), never larger than kappa I is."""
    d = len(z)
    if not law.upsilon:
        return back(a, floored(z, 0.0) + kappa * (math.sqrt(d / n) + d / n / 2.0) * np.eye(d))
    delta = math.sqrt(d / n) + math.sqrt(2.0 * math.log(2.0 / b) / n)
    above = (floored(z, 0.0) + scale * law.upsilon(b) * np.eye(d)) / (1.0 - delta) ** 2 if delta < 1.0 else None
    known = kappa * np.eye(d)
    return back(a, known if above is None or np.linalg.det(above) >= np.linalg.det(known) else above)


def floored(z: np.ndarray, floor: float) -> np.ndarray:
    """Eigenvalues below the floor become the floor."""
    return sum(max(value, floor) * np.outer(v, v) for value, v in zip(*(part.T for part in np.linalg.eigh(z))))


def back(a: np.ndarray, z: np.ndarray) -> np.ndarray:
    inverse = np.linalg.inv(a)
    return inverse @ z @ inverse.T


def heaviest(
    rows: np.ndarray, bins: Sequence[int], ratio: float, rhos: Sequence[float], noise: Sequence[np.ndarray]
) -> np.ndarray:
    """Centres of the heaviest bins by column and stage; noise[s] is standard normal (d, 2 bins[s] + 1)."""
    n, d = rows.shape
    point = np.zeros(d)
    for s, (half, rho, draw) in enumerate(zip(bins, rhos, noise)):
        width = ratio ** (len(bins) - 1 - s)
        counts = math.sqrt(2.0 * d) / math.sqrt(2.0 * rho) * draw
        for i in range(n):
            for j in range(d):
                bin_ = math.floor((rows[i, j] - point[j]) / width + 0.5)
                counts[j, min(max(bin_, -half), half) + half] += 1.0
        point = point + width * np.array([int(np.argmax(counts[j])) - half for j in range(d)])
    return point


def located(
    rows: np.ndarray, point: np.ndarray, rho: float, draw: np.ndarray, b: float, law: Law
) -> tuple[np.ndarray, float, float]:
    """Noisy mean of rows of covariance at most I, clipped about a point near their mean; its clip and radius."""
    n, d = rows.shape
    if law.eta:
        reach, tail = 1.5 * math.sqrt(d) + law.eta(b / n), law.eta(b)
    else:
        tail, off = chi_tail(d, 0.01), 0.5 * math.sqrt(d)
        reach = min(math.sqrt(off**2 + 6.0 * off + tail**2), off + tail)
    std = 2.0 * reach / n / math.sqrt(2.0 * rho)
    total = np.zeros(d)
    for row in rows:
        total += clipped(row - point, reach)
    return point + total / n + std * draw, reach, math.sqrt(1.0 / n + std**2) * tail
