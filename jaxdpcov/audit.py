"""Empirical privacy audit: a lower confidence bound on epsilon from many runs on two neighbouring data sets.

An audit can refute a privacy claim, never prove one: the bound says how well one attack told two data sets apart.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.release import Release


class AuditResult(NamedTuple):
    """What an audit found.

    epsilon_lower: with the stated confidence, no (epsilon, delta) guarantee below this holds. delta: as given.
    draws: runs on each data set. confidence: one-sided, over both directions of the attack.
    """

    epsilon_lower: float
    delta: float
    draws: int
    confidence: float


def audit(
    key: jax.Array,
    mechanism: Callable[..., Release],
    rows: Any,
    neighbour: Any,
    budget: Any,
    bounds: Any,
    *,
    config: Any = None,
    draws: int = 10_000,
    delta: float = 1e-5,
    confidence: float = 0.99,
    batch_size: int = 1_000,
) -> AuditResult:
    """Attack a mechanism on two neighbouring data sets and bound its epsilon at `delta` from below.

    All runs are one compiled batch. The attack is the linear test that best separates all numbers of the release
    (which of them are finite included), learned on half of the runs (direction, threshold and side); the other half
    bounds its error rates by Clopper-Pearson.

    Args:
        key: PRNG key of the audit.
        mechanism: a mechanism of this package, or any traceable function with its signature.
        rows, neighbour: (n, d) arrays, neighbours under the mechanism's relation.
        budget, bounds, config: passed to the mechanism.
        draws: runs on each data set, at least 8. delta: in [0, 1). confidence: of the bound, in (0, 1).
        batch_size: runs held in memory at a time.

    Returns:
        `AuditResult`; `epsilon_lower` is 0 when the attack found nothing.

    References:
        Jagielski, Ullman, Oprea 2020 (auditing by attack with Clopper-Pearson bounds).

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov import Bounds, ZCDP, audit, gaussian
    >>> rows = jnp.zeros((8, 1)); neighbour = rows.at[0].set(1.0)
    >>> found = audit.audit(jax.random.key(0), gaussian, rows, neighbour, ZCDP(0.5), Bounds.l2(1.0), draws=400)
    >>> 0.0 <= found.epsilon_lower < 5.9  # rho = 0.5 is (5.26, 1e-5)-DP
    True
    """
    if draws < 8:
        raise ValueError(f"draws must be at least 8, got {draws}")
    _checks.between("delta", delta, 0.0, 1.0, open_ends=False)
    _checks.between("confidence", confidence, 0.0, 1.0)
    call = functools.partial(mechanism, budget=budget, bounds=bounds, config=config)
    run = _runner(call, max(2, min(batch_size, draws)))
    with_row, without = (
        np.asarray(run(jax.random.split(each, draws), jnp.asarray(data)))
        for each, data in zip(jax.random.split(key), (rows, neighbour))
    )
    return AuditResult(epsilon_lower(with_row, without, delta, confidence), delta, draws, confidence)


def _runner(call: Callable[..., Release], batch_size: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A compiled function from keys (draws,) and rows to all numbers that the releases contain, (draws, m)."""

    @jax.jit
    def run(lanes: jax.Array, data: jax.Array) -> jax.Array:
        def one(lane: jax.Array) -> jax.Array:
            # Every leaf: what should be public may leak as well as what should be noisy.
            leaves = [jnp.ravel(jnp.asarray(leaf)) for leaf in jax.tree_util.tree_leaves(call(lane, data))]
            return jnp.concatenate([leaf.astype(data.dtype) for leaf in leaves])

        return jax.lax.map(one, lanes, batch_size=batch_size)

    return run


def epsilon_lower(with_row: np.ndarray, without: np.ndarray, delta: float, confidence: float) -> float:
    """Lower confidence bound on epsilon at `delta` from outputs (draws, m) on each of two neighbouring data sets."""
    both = [_finite(np.asarray(runs, np.float64)) for runs in (with_row, without)]
    train, test = ([runs[half] for runs in both] for half in (np.s_[::2], np.s_[1::2]))
    direction = _direction(*train)
    train_scores, test_scores = ([runs @ direction for runs in half] for half in (train, test))
    found = 0.0
    for sign, (first, second) in ((1.0, (0, 1)), (-1.0, (1, 0))):
        # Both directions of the attack: outputs of either data set may be the likelier ones on one side.
        hits, alarms = sign * train_scores[first], sign * train_scores[second]
        threshold = _threshold(hits, alarms, delta)
        hits, alarms = sign * test_scores[first], sign * test_scores[second]
        # Two directions and two rates each share the error of the bound.
        error = (1.0 - confidence) / 4.0
        hit_rate, alarm_rate = _rates(np.sum(hits > threshold), np.sum(alarms > threshold), len(hits), error)
        if hit_rate > delta:
            found = max(found, float(np.log((hit_rate - delta) / alarm_rate)))
    return found


def _finite(runs: np.ndarray) -> np.ndarray:
    """Outputs (draws, m) with 0 for what is not finite, and beside them (draws, m) flags that say where."""
    missing = ~np.isfinite(runs)
    return np.concatenate([np.where(missing, 0.0, runs), missing], axis=1)


def _direction(with_row: np.ndarray, without: np.ndarray) -> np.ndarray:
    """Fisher's linear discriminant with a small ridge; coordinates that never move are left out."""
    difference = with_row.mean(0) - without.mean(0)
    pooled = np.concatenate([with_row - with_row.mean(0), without - without.mean(0)])
    scale = pooled.std(0)
    safe = np.where(scale > 0, scale, 1.0)
    correlation = np.atleast_2d((pooled / safe).T @ (pooled / safe)) / len(pooled)
    direction = np.linalg.solve(correlation + 1e-6 * np.eye(len(scale)), difference / safe) / safe
    # A coordinate without noise that differs between the two data sets gives everything away.
    exact = (scale == 0) & (difference != 0)
    return np.where(exact, np.sign(difference), 0.0) if exact.any() else direction


def _threshold(hits: np.ndarray, alarms: np.ndarray, delta: float) -> float:
    """The threshold with the largest bound on the runs that it is chosen on."""
    candidates = np.quantile(np.concatenate([hits, alarms]), np.linspace(0.0, 1.0, 401))
    hit_counts = np.array([np.sum(hits > t) for t in candidates])
    alarm_counts = np.array([np.sum(alarms > t) for t in candidates])
    low, high = _rates(hit_counts, alarm_counts, len(hits), 0.05)
    return float(candidates[np.argmax(np.maximum(low - delta, 1e-12) / high)])


def _rates(hits: Any, alarms: Any, draws: int, error: float) -> tuple[Any, Any]:
    """Clopper-Pearson: the hit rate from below and the alarm rate from above, each wrong with probability `error`."""
    from scipy.stats import beta

    low = np.where(np.asarray(hits) > 0, beta.ppf(error, np.maximum(hits, 1), draws - np.asarray(hits) + 1), 0.0)
    high = np.where(np.asarray(alarms) < draws, beta.ppf(1.0 - error, np.asarray(alarms) + 1, draws - alarms), 1.0)
    return low, np.where(np.isnan(high), 1.0, high)
