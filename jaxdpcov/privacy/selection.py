"""Private selection: exponential mechanism, its top-k form, AboveThreshold, stable bins; all noise drawn at once."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxdpcov import _checks
from jaxdpcov.privacy._draws import standard_gumbel, standard_laplace
from jaxdpcov.privacy.ledger import Approx, Entry, Seq
from jaxdpcov.privacy.noise import calibrate


def exponential(
    key: Any,
    scores: Any,
    *,
    sensitivity: Any,
    epsilon: Any = None,
    rho: Any = None,
    mask: Any = None,
    what: str,
) -> tuple[Array, Entry]:
    """The exponential mechanism: candidate j with probability proportional to exp(epsilon score_j / (2 sensitivity)).

    **Formal guarantee.** epsilon-DP (McSherry and Talwar 2007) and, by its bounded range, (epsilon^2/8)-zCDP (Cesar
    and Rogers 2021), where each score changes by at most `sensitivity` between neighbours and the candidates and
    their mask are public. The draw is argmax_j (score_j + (2 sensitivity / epsilon) Gumbel_j), which has that law.

    Args:
        key: one PRNG key, used up.
        scores: (m,) scores, higher is better, float32 or float64; -inf marks a candidate that is never chosen.
        sensitivity: bound on the change of one score, one number >= 0, units of the scores.
        epsilon: pure-DP budget, one number > 0. Give this or `rho`.
        rho: zCDP budget, one number > 0: epsilon is sqrt(8 rho), and the ledger says rho to the last bit.
        mask: (m,) booleans, public: False is never chosen.
        what: name of the selection in the ledger.

    Returns:
        `(index, Entry)`, the index an int32 number.

    Edge cases:
        No candidate left: index 0, a wrong answer that depends on nothing private. Sensitivity 0 (public scores): the
        first best candidate. An invalid budget or sensitivity: the first candidate left, whatever the scores; a
        NaN score counts as -inf (scores with NaN have no sensitivity: make them finite before they come here).

    References:
        McSherry, Talwar (2007); Cesar, Rogers (2021), arXiv 2004.07223.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import selection
    >>> index, entry = selection.exponential(
    ...     jax.random.key(0), jnp.array([0.0, 500.0, 2.0]), sensitivity=1.0, epsilon=1.0, what="best column")
    >>> int(index), entry.unit, entry.cost
    (1, 'epsilon', 1.0)
    """
    values, allowed = _candidates(scores, mask)
    unit, cost, spent = _budget(epsilon, rho, price=8.0)
    noisy = _noisy_scores(key, values, allowed, calibrate(sensitivity, spent, values.dtype))
    return jnp.argmax(noisy).astype(jnp.int32), Entry(what, "exponential", unit, sensitivity, spent, cost)


def exponential_top_k(
    key: Any,
    scores: Any,
    k: int,
    *,
    sensitivity: Any,
    epsilon: Any = None,
    rho: Any = None,
    mask: Any = None,
    what: str,
) -> tuple[Array, Seq]:
    """k different candidates, best first: k exponential mechanisms at epsilon / k, each on the candidates left.

    **Formal guarantee.** One Gumbel draw for each candidate at scale 2 k sensitivity / epsilon and the k largest
    noisy scores have the joint law of drawing k times without replacement (Durfee and Rogers 2019, Lemma 4.2), so
    this is the adaptive composition of k exponential mechanisms at epsilon / k: epsilon-DP, and k (epsilon/k)^2 / 8
    = (epsilon^2 / (8 k))-zCDP. Under a zCDP budget each draw takes rho / k at epsilon_i = sqrt(8 rho / k), which is
    the far larger total epsilon = sqrt(8 k rho).

    Args:
        key: one PRNG key, used up.
        scores: (m,) scores as in `exponential`.
        k: number of candidates to choose, 1 <= k <= m, static.
        sensitivity: bound on the change of one score, one number >= 0.
        epsilon: pure-DP budget of all k draws together. Give this or `rho`.
        rho: zCDP budget of all k draws together.
        mask: (m,) booleans, public: False is never chosen while another is left.
        what: name of the selection in the ledger.

    Returns:
        `(indices, Seq)`: (k,) int32 indices in the order of the draws, and one ledger entry for each draw.

    Edge cases:
        Fewer than k candidates left: the masked ones follow in the order of their index. Otherwise as `exponential`;
        an invalid budget gives the first k candidates left.

    References:
        Durfee, Rogers (2019), arXiv 1905.04273; Cesar, Rogers (2021), arXiv 2004.07223.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import selection
    >>> indices, _ = selection.exponential_top_k(
    ...     jax.random.key(0), jnp.array([0.0, 900.0, 2.0, 500.0]), 2, sensitivity=1.0, rho=0.5, what="edges")
    >>> indices.tolist()
    [1, 3]
    """
    values, allowed = _candidates(scores, mask)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= values.shape[0]:
        raise ValueError(f"k must be a whole number with 1 <= k <= {values.shape[0]}, got {k!r}")
    unit, cost, _ = _budget(epsilon, rho, price=8.0)
    costs = _shares(cost, int(k))
    _, _, each = _budget(*((costs[-1], None) if rho is None else (None, costs[-1])), price=8.0)  # the smallest share
    noisy = _noisy_scores(key, values, allowed, calibrate(sensitivity, each, values.dtype))
    indices = jnp.argmax(noisy)[None] if k == 1 else jax.lax.top_k(noisy, int(k))[1]
    entries = tuple(Entry(what, "exponential", unit, sensitivity, each, share) for share in costs)
    return indices.astype(jnp.int32), Seq(entries)


def above_threshold(
    key: Any,
    queries: Any,
    *,
    threshold: Any,
    epsilon: Any = None,
    rho: Any = None,
    sensitivity: Any = 1.0,
    what: str,
) -> tuple[Array, Entry]:
    """AboveThreshold: the first query found at or above the threshold, both under Laplace noise.

    **Formal guarantee.** epsilon-DP whatever the number of queries (Dwork and Roth 2014, Theorem 3.23): noise of
    scale 2 sensitivity / epsilon on the threshold and 4 sensitivity / epsilon on each query, where each query
    changes by at most `sensitivity` between neighbours. Only the index is released. As zCDP: epsilon^2 / 2. Drawing
    all the noise at once and taking the first crossing has the law of the sequential form, in fixed time.

    Args:
        key: one PRNG key, used up.
        queries: (m,) exact answers, float32 or float64; -inf never crosses.
        threshold: public threshold, one number in the units of the queries.
        epsilon: pure-DP budget, one number > 0. Give this or `rho`.
        rho: zCDP budget, one number > 0: epsilon is sqrt(2 rho), and the ledger says rho to the last bit.
        sensitivity: bound on the change of one query, one number >= 0.
        what: name of the selection in the ledger.

    Returns:
        `(index, Entry)`: int32 index of the first crossing, m if there is none.

    Edge cases:
        An invalid budget or sensitivity, or a NaN threshold: m, whatever the queries. Sensitivity 0: no noise. A NaN
        query never crosses.

    References:
        Dwork, Roth (2014), Algorithm 1; Lyu, Su, Li (2017), arXiv 1603.01699.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import selection
    >>> index, _ = selection.above_threshold(
    ...     jax.random.key(0), jnp.array([-900.0, -800.0, 900.0]), threshold=0.0, epsilon=1.0, what="level")
    >>> int(index)
    2
    """
    values, _ = _candidates(queries, None, name="queries")
    if np.ndim(threshold) != 0:
        raise ValueError(f"threshold must be a single number, got shape {np.shape(threshold)}")
    unit, cost, spent = _budget(epsilon, rho, price=2.0)
    scale = calibrate(sensitivity, spent, values.dtype)
    draws = standard_laplace(key, (values.shape[0] + 1,), values.dtype)
    noisy_threshold = jnp.asarray(threshold).astype(values.dtype) + 2.0 * scale * draws[0]
    crossed = values + 4.0 * scale * draws[1:] >= noisy_threshold  # false where either side is NaN
    index = jnp.where(jnp.any(crossed), jnp.argmax(crossed), values.shape[0])
    return index.astype(jnp.int32), Entry(what, "above_threshold", unit, sensitivity, spent, cost)


def stable_argmax(key: Any, counts: Any, *, epsilon: Any, delta: Any, what: str) -> tuple[Array, Approx]:
    """The heaviest bin of each histogram among bins that nobody could list beforehand: those that hold a row.

    **Formal guarantee.** (epsilon, delta)-DP, replace-one, with one row in one bin of each of k histograms: noise of
    Laplace scale s = 2 k/epsilon on the counts of bins in use, and none below 1 + s log(k/delta) is looked at. Per
    histogram, at epsilon/k and delta/k: a replaced row moves two counts by 1. A bin that it empties or opens held one
    row, and passes the threshold with probability exp(-log(k/delta))/2 <= delta/k; else the outputs have the laws of
    counts that differ by 1 twice. docs/guarantees.md has the rest. There is no zCDP or pure-DP price.

    Args:
        key: one PRNG key, used up.
        counts: (m, k) whole numbers, one histogram in each column; 0 marks a bin not in use.
        epsilon, delta: the budget of all k together.
        what: name of the selection in the ledger.

    Returns:
        `(index, Approx)`: (k,) int32 row numbers, m where no bin passed.

    Edge cases: an invalid budget gives m everywhere.

    References: Korolova, Kenthapadi, Mishra, Ntoulas 2009; Karwa, Vadhan 2018 (arXiv 1711.03908), Lemma 2.3.

    >>> import jax, jax.numpy as jnp
    >>> from jaxdpcov.privacy import selection
    >>> counts = jnp.array([[1], [0], [900], [3]])
    >>> index, _ = selection.stable_argmax(jax.random.key(0), counts, epsilon=1.0, delta=1e-6, what="bin")
    >>> index.tolist()
    [2]
    """
    whole = jnp.asarray(counts)
    if whole.ndim != 2 or not jnp.issubdtype(whole.dtype, jnp.integer):
        raise ValueError(f"counts must be (m, k) whole numbers, got {whole.dtype} of shape {whole.shape}")
    m, k = whole.shape
    exact = whole.astype(jnp.result_type(float))
    scale = calibrate(2.0 * k, epsilon, exact.dtype)
    share = jnp.asarray(delta, exact.dtype) / k
    threshold = jnp.where((share > 0) & (share < 1), 1.0 - scale * jnp.log(share), jnp.nan)
    noisy = exact + scale * standard_laplace(key, exact.shape, exact.dtype)
    noisy = jnp.where((whole > 0) & (noisy >= threshold), noisy, -jnp.inf)  # false where a number is NaN
    index = jnp.where(jnp.any(noisy > -jnp.inf, axis=0), jnp.argmax(noisy, axis=0), m)
    entry = Entry(what, "stability", "epsilon", 2.0 * k, scale, epsilon)
    return index.astype(jnp.int32), Approx(entry, delta)


def _candidates(scores: Any, mask: Any, name: str = "scores") -> tuple[Array, Array]:
    """Scores as a float vector, and the candidates that may be chosen."""
    values = jnp.asarray(scores)
    if values.ndim != 1 or values.shape[0] < 1:
        raise ValueError(f"{name} must be a vector with at least one entry, got shape {values.shape}")
    if not jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(jnp.result_type(float))
    allowed = values > -jnp.inf  # false for NaN too
    if mask is not None:
        given = jnp.asarray(mask)
        if given.shape != values.shape or given.dtype != jnp.bool_:
            raise ValueError(f"mask must be {values.shape} booleans, got {given.dtype} of shape {given.shape}")
        allowed = allowed & given
    return values, allowed


def _budget(epsilon: Any, rho: Any, *, price: float) -> tuple[str, Any, Any]:
    """Unit and cost of a selection, and its epsilon, at a zCDP price of epsilon^2 / price."""
    if (epsilon is None) == (rho is None):
        raise TypeError("give exactly one of epsilon and rho")
    if rho is None:
        _checks.concrete("epsilon", epsilon)
        return "epsilon", epsilon, epsilon
    seen = _checks.concrete("rho", rho)
    if seen is None or isinstance(rho, jax.Array):
        return "rho", rho, jnp.sqrt(rho * price)
    return "rho", rho, math.sqrt(float(seen) * price) if seen >= 0 else math.nan


def _shares(cost: Any, k: int) -> list[Any]:
    """k equal parts, the last less a few roundings, so that in floating point they never add up to more than `cost`.

    Not `budget.split`, which raises for an invalid number: here it must come out as NaN or be refused by `calibrate`.
    """
    if k == 1:
        return [cost]
    eps = float(jnp.finfo(cost.dtype if isinstance(cost, jax.Array) else np.float64).eps)
    spent = sum([cost / k] * (k - 2), start=cost / k)
    return [cost / k] * (k - 1) + [cost - spent - cost * (2.0 * k * eps)]


def _noisy_scores(key: Any, values: Array, allowed: Array, scale: Array) -> Array:
    """values + 2 scale Gumbel, -inf where not allowed, counted from the best score, where floats are finest.

    A NaN scale must not let the scores decide, so it leaves one value for all that are allowed. With no candidate
    allowed all are -inf, and argmax takes the first.
    """
    best = jnp.max(jnp.where(allowed, values, -jnp.inf))
    draws = standard_gumbel(key, values.shape, values.dtype)
    noisy = jnp.where(allowed, values, best) - best + 2.0 * scale * draws
    noisy = jnp.where(jnp.isnan(scale), jnp.zeros_like(noisy), noisy)
    return jnp.where(allowed, noisy, -jnp.inf)
