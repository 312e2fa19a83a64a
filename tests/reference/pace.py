"""Slow plain-NumPy form of PACE: the budget of each round, the noise that it buys, and the estimate that it leaves.

A run is replayed from what was drawn: which entries each round chose and the noisy values that it saw. Everything else
follows, round by round: what the round spent (the rest of the budget where less than two rounds' worth is left, and
in the last round there can be), epsilon = sqrt(8 rho) of the choice, the standard deviation of the values, the
precision-weighted mean of all values of an entry, and the maximum-entropy covariance of all entries together. A round
after which the estimate of its entries moved by no more than sqrt(2/pi) of its noise makes the next rounds richer.
"""

import math
from typing import NamedTuple

import numpy as np

from tests.reference import maxent


class Setting(NamedTuple):
    """Public numbers of a run: n rows (or pairs), sensitivities of a diagonal and of another entry of the sum."""

    d: int
    count: float
    own: float
    other: float
    budget: float  # of the diagonal and all rounds together
    diagonal_share: float
    selection_share: float
    rounds_per_column: int
    each: int  # entries in a round
    growth: float
    t: float


class Mean(NamedTuple):
    """A noisy mean in z and the standard deviations of its noise."""

    value: np.ndarray
    std: np.ndarray


class Round(NamedTuple):
    """What one round did, and the estimate after it."""

    spend: float
    select: float
    measure: float
    epsilon: float
    std: float
    covariance: np.ndarray
    idle: bool


class Run(NamedTuple):
    """All rounds; measured covariances with their precisions, 0 where there are none; and the last estimate."""

    rounds: list[Round]
    y: np.ndarray
    lam: np.ndarray
    covariance: np.ndarray
    precision: np.ndarray


def diagonal_std(setting: Setting) -> float:
    """Of each noisy variance: the l2 sensitivity of d entries together."""
    cost = setting.diagonal_share * setting.budget
    return setting.own * math.sqrt(setting.d) / setting.count / math.sqrt(2 * cost)


def bias(mean: Mean | None, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Expected square of a noisy mean beyond the noise's own variance, and the variance of its entries.

    With m = mu + e, m_j m_k has mean mu_j mu_k (plus v_j where j = k) and variance mu_j^2 v_k + mu_k^2 v_j + v_j v_k
    for j != k, and 4 mu_j^2 v_j + 2 v_j^2 for j = k; m stands for mu.
    """
    offset, spread = np.zeros((d, d)), np.zeros((d, d))
    if mean is None:
        return offset, spread
    for j in range(d):
        for k in range(d):
            m, v = mean.value[[j, k]], mean.std[[j, k]] ** 2
            if j == k:
                offset[j, j] = m[0] ** 2 - v[0]
                spread[j, j] = 4 * m[0] ** 2 * v[0] + 2 * v[0] ** 2
            else:
                offset[j, k] = m[0] * m[1]
                spread[j, k] = m[0] ** 2 * v[1] + m[1] ** 2 * v[0] + v[0] * v[1]
    return offset, spread


def replay(
    setting: Setting, diagonal: np.ndarray, chosen: list[list[tuple[int, int]]], values: list, mean: Mean | None
) -> Run:
    """All rounds of a run from its draws: the noisy variances, and the entries and values of each round."""
    d, each = setting.d, setting.each
    offset, spread = bias(mean, d)
    seen: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for j in range(d):
        seen[j, j] = [(diagonal[j], diagonal_std(setting))]
    left = setting.budget * (1 - setting.diagonal_share)
    most = -(-setting.rounds_per_column * d // each)
    rate = left * each / (setting.rounds_per_column * d)
    covariance, precision, _, _ = estimate(seen, offset, spread, setting.t)
    rounds: list[Round] = []
    while left > 1e-9 * setting.budget and len(rounds) < most:
        spend = left if left < (2 - 1e-9) * rate or len(rounds) == most - 1 else rate
        select = setting.selection_share * spend
        measure = spend - select
        at = chosen[len(rounds)]
        bound = math.sqrt(sum((setting.own if j == k else setting.other) ** 2 for j, k in at))
        std = bound / math.sqrt(2 * measure) / setting.count
        for e, value in zip(at, values[len(rounds)]):
            seen.setdefault(e, []).append((value, std))
        before = covariance
        covariance, precision, _, _ = estimate(seen, offset, spread, setting.t)
        moved = np.mean([abs(covariance[e] - before[e]) for e in at])
        idle = moved <= math.sqrt(2 / math.pi) * std
        rounds.append(Round(spend, select, measure, math.sqrt(8 * select / each), std, covariance, idle))
        left -= spend
        rate = spend * setting.growth if idle else spend
    covariance, precision, y, lam = estimate(seen, offset, spread, setting.t)
    return Run(rounds, y, lam, covariance, precision)


def estimate(seen: dict, offset: np.ndarray, spread: np.ndarray, t: float) -> tuple[np.ndarray, ...]:
    """Maximum-entropy covariance and precision, from the mean of all values of each entry by inverse variance."""
    d = len(offset)
    y, lam, mask = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d), bool)
    for (j, k), values in seen.items():
        weights = [1 / std**2 for _, std in values]
        mean = sum(w * value for w, (value, _) in zip(weights, values)) / sum(weights)
        y[j, k] = y[k, j] = mean - offset[j, k]
        lam[j, k] = lam[k, j] = 1 / (1 / sum(weights) + spread[j, k])
        mask[j, k] = mask[k, j] = True
    covariance, precision = maxent.solve(y, lam, mask, t)
    return covariance, precision, y, lam


def law_of_choice(scores: np.ndarray, epsilon: float, sensitivity: float) -> np.ndarray:
    """The exponential mechanism: probabilities proportional to exp(epsilon score / (2 sensitivity))."""
    logits = epsilon * scores / (2 * sensitivity)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
