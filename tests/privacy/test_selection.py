"""Selections have exactly the laws that their privacy proofs are about. Fixed seeds, stated false-alarm rates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from jaxdpcov.privacy import ledger, selection

SCORES = np.array([0.0, 1.0, 3.0, 2.5, -4.0])
N = 100_000


def _draws(select, seed=0, n=N):
    """Indices of n draws of `select(key)`, one key each."""
    keys = jax.random.split(jax.random.key(seed), n)
    return np.asarray(jax.jit(jax.vmap(lambda key: select(key)[0]))(keys))


def _softmax(weights):
    odds = np.exp(weights - np.max(weights))
    return odds / odds.sum()


def _pvalue(indices, probabilities):
    counts = np.bincount(indices, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    seen = probabilities > 0
    return scipy.stats.chisquare(counts[seen], probabilities[seen] * counts.sum()).pvalue


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential_law(dtype):
    """Probabilities exp(epsilon q / (2 sensitivity)): chi-square at 1e5 draws, false alarm 1e-5."""
    scores = jnp.asarray(SCORES, dtype)
    draws = _draws(lambda key: selection.exponential(key, scores, sensitivity=2.0, epsilon=1.5, what="m"))
    assert _pvalue(draws, _softmax(SCORES * 1.5 / 4.0)) > 1e-5
    assert draws.dtype == np.int32
    for wrong in (0.7, 1.4, 2.0):  # the same test sees a wrong epsilon, or a forgotten factor of two
        assert _pvalue(draws, _softmax(wrong * SCORES * 1.5 / 4.0)) < 1e-5


def test_exponential_masks():
    """A masked candidate and one of score -inf or NaN are never drawn, and the law of the others is unchanged."""
    scores = jnp.asarray([0.0, 900.0, 1.0, -jnp.inf, 2.0, jnp.nan])
    mask = jnp.asarray([True, False, True, True, True, True])
    draws = _draws(lambda key: selection.exponential(key, scores, sensitivity=1.0, epsilon=1.0, mask=mask, what="m"))
    expected = np.zeros(6)
    expected[[0, 2, 4]] = _softmax(np.array([0.0, 0.5, 1.0]))
    assert _pvalue(draws, expected) > 1e-5


def test_exponential_edge_cases():
    def pick(scores, **numbers):
        arguments = {"sensitivity": 1.0, "epsilon": 1.0, "what": "m", **numbers}
        return selection.exponential(jax.random.key(3), jnp.asarray(scores), **arguments)[0].item()

    assert pick([1.0, 2.0], mask=jnp.zeros(2, bool)) == 0
    assert pick([-np.inf, -np.inf]) == 0
    assert pick([7.0]) == 0
    assert pick([1, 2, 900, 4]) == 2  # whole numbers
    assert pick([1.0, 3.0, 3.0, 2.0], sensitivity=0.0) == 1  # public scores: the first best
    assert pick([1e300, -1e300, 1e300], mask=jnp.asarray([False, True, False])) == 1


BAD = [{"epsilon": e} for e in (0.0, -1.0, np.nan, np.inf)] + [{"rho": r} for r in (0.0, -1.0, np.nan, np.inf)]
BAD += [{"epsilon": 1.0, "sensitivity": s} for s in (-1.0, np.nan, np.inf)] + [
    {"epsilon": 1e300, "sensitivity": 1e-300}
]


@pytest.mark.parametrize("traced", [False, True])
def test_invalid_numbers_select_without_a_look_at_the_scores(traced):
    mask = jnp.asarray([False, True, True, True])
    scores = [jnp.asarray(s) for s in ([9.0, 1.0, 5.0, 2.0], [0.0, -3.0, 800.0, 900.0])]
    for numbers in BAD:
        wrap = jnp.asarray if traced else float
        arguments = {"sensitivity": wrap(1.0), "what": "m"} | {name: wrap(x) for name, x in numbers.items()}
        for values in scores:
            key = jax.random.key(0)
            assert selection.exponential(key, values, mask=mask, **arguments)[0] == 1, numbers
            key = jax.random.key(0)
            assert selection.exponential_top_k(key, values, 2, mask=mask, **arguments)[0].tolist() == [1, 2], numbers
            key = jax.random.key(0)
            assert selection.above_threshold(key, values, threshold=-1e6, **arguments)[0] == 4, numbers


def test_top_k_law():
    """The ordered k-tuple is a draw without replacement at epsilon / k each: chi-square, false alarm 1e-5."""
    k, epsilon, sensitivity = 3, 4.5, 1.0
    draws = _draws(
        lambda key: selection.exponential_top_k(
            key, jnp.asarray(SCORES), k, sensitivity=sensitivity, epsilon=epsilon, what="m"
        )
    )
    weights = np.exp(SCORES * (epsilon / k) / (2 * sensitivity))
    outcomes = list(itertools.permutations(range(5), k))
    probabilities = []
    for outcome in outcomes:
        left, p = weights.sum(), 1.0
        for j in outcome:
            p, left = p * weights[j] / left, left - weights[j]
        probabilities.append(p)
    index = {outcome: i for i, outcome in enumerate(outcomes)}
    found = np.array([index[tuple(row)] for row in draws.tolist()])
    probabilities = np.array(probabilities)
    common = probabilities * N > 5  # rare outcomes go into one cell
    relabel = np.where(common, np.cumsum(common) - 1, common.sum())
    cells = np.append(probabilities[common], probabilities[~common].sum())
    assert _pvalue(relabel[found], cells) > 1e-5
    first = _softmax(SCORES * epsilon / (2 * sensitivity))  # the whole epsilon for one draw: rejected
    assert _pvalue(draws[:, 0], first) < 1e-5


def test_top_k_prices():
    """k entries, each a fraction: the float sum of their costs is the budget and each zCDP price epsilon_i^2 / 8."""
    for k in (1, 2, 3, 5):
        for numbers in ({"epsilon": 0.7}, {"rho": 0.1}):
            _, node = selection.exponential_top_k(
                jax.random.key(0), jnp.asarray(SCORES), k, sensitivity=1.0, what="edges", **numbers
            )
            (unit, budget) = next(iter(numbers.items()))
            total = 0.0
            for entry in node.children:
                assert (entry.kind, entry.unit, entry.what, entry.sensitivity) == ("exponential", unit, "edges", 1.0)
                assert entry.cost == pytest.approx(budget / k, rel=1e-12)
                price = entry.scale if unit == "epsilon" else entry.scale**2 / 8
                assert price == pytest.approx(budget / k, rel=1e-12) and price <= entry.cost * (1 + 1e-15)
                total += entry.cost
            other, price = ("rho", budget**2 / (8 * k)) if unit == "epsilon" else ("epsilon", np.sqrt(8 * k * budget))
            assert ledger.total(node, unit) == total and ledger.total(node, other) == pytest.approx(price, rel=1e-12)
            assert len(node.children) == k and total <= budget and total == pytest.approx(budget, rel=1e-14)


def test_top_k_masks_come_last_and_k_is_checked():
    mask = jnp.asarray([False, True, False, True, False])
    indices, _ = selection.exponential_top_k(
        jax.random.key(1), jnp.asarray(SCORES), 4, sensitivity=1.0, epsilon=1.0, mask=mask, what="m"
    )
    assert set(indices.tolist()[:2]) == {1, 3} and indices.tolist()[2:] == [0, 2]
    for k in (0, 6, -1, 2.0, True, "2"):
        with pytest.raises(ValueError, match="k must be a whole number"):
            selection.exponential_top_k(
                jax.random.key(1), jnp.asarray(SCORES), k, sensitivity=1.0, epsilon=1.0, what=""
            )


def _above_law(queries, threshold, epsilon, sensitivity):
    """P(first crossing is j), j = 0..m, by integration over the noisy threshold."""
    low, high = (
        scipy.stats.laplace(scale=2 * sensitivity / epsilon),
        scipy.stats.laplace(scale=4 * sensitivity / epsilon),
    )
    probabilities = []
    for j in range(len(queries) + 1):

        def density(t, j=j):
            below = np.prod([high.cdf(t - q) for q in queries[:j]])
            hit = high.sf(t - queries[j]) if j < len(queries) else 1.0
            return low.pdf(t - threshold) * below * hit

        kinks = sorted({threshold, *queries[: j + 1]})
        reach = 60 * sensitivity / epsilon
        probabilities.append(scipy.integrate.quad(density, min(kinks) - reach, max(kinks) + reach, points=kinks)[0])
    return np.array(probabilities)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_above_threshold_law(dtype):
    """First crossing against numerical integration: chi-square at 1e5 draws, false alarm 1e-5."""
    queries, threshold, epsilon, sensitivity = np.array([-3.0, 2.0, -1.0, 4.0]), 1.0, 2.0, 1.5
    expected = _above_law(queries, threshold, epsilon, sensitivity)
    assert expected.sum() == pytest.approx(1.0, abs=1e-6)
    numbers = {"threshold": threshold, "sensitivity": sensitivity, "epsilon": epsilon, "what": "m"}
    draws = _draws(lambda key: selection.above_threshold(key, jnp.asarray(queries, dtype), **numbers))
    assert _pvalue(draws, expected) > 1e-5
    for wrong in (0.7, 1.4):
        assert _pvalue(draws, _above_law(queries, threshold, wrong * epsilon, sensitivity)) < 1e-5


def test_the_law_of_above_threshold_is_private():
    """The integrated law itself, for neighbours as bad as allowed: no outcome's odds move by more than e^epsilon."""
    epsilon, worst = 1.0, 0.0
    rng = np.random.default_rng(0)
    for _ in range(8):
        queries = rng.normal(0, 3, 3)
        ones = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))[rng.integers(8)]
        ratio = np.log(_above_law(queries, 0.0, epsilon, 1.0) / _above_law(queries + ones, 0.0, epsilon, 1.0))
        worst = max(worst, np.abs(ratio).max())
    assert 0.4 * epsilon < worst < epsilon + 1e-6


def test_above_threshold_edge_cases():
    def first(queries, **numbers):
        arguments = {"threshold": 0.0, "epsilon": 1.0, "what": "m", **numbers}
        return selection.above_threshold(jax.random.key(2), jnp.asarray(queries), **arguments)[0].item()

    assert first([-900.0, -900.0]) == 2
    assert first([-np.inf, np.nan, 900.0]) == 2
    assert first([-1.0, 0.0, 5.0], sensitivity=0.0) == 1  # public queries, ties cross
    assert first([900.0], threshold=np.nan) == 1
    assert first([-900, 900]) == 1
    with pytest.raises(ValueError, match="threshold must be a single number"):
        first([1.0], threshold=jnp.zeros(2))


def test_entries():
    key, scores = jax.random.key, jnp.asarray(SCORES)
    _, entry = selection.exponential(key(0), scores, sensitivity=1.0, epsilon=0.5, what="m")
    assert (entry.kind, entry.unit, entry.scale, entry.cost) == ("exponential", "epsilon", 0.5, 0.5)
    _, entry = selection.exponential(key(0), scores, sensitivity=1.0, rho=0.5, what="m")
    assert (entry.kind, entry.unit, entry.scale, entry.cost) == ("exponential", "rho", 2.0, 0.5)
    _, entry = selection.above_threshold(key(0), scores, threshold=0.0, rho=0.5, what="m")
    assert (entry.kind, entry.unit, entry.scale, entry.cost) == ("above_threshold", "rho", 1.0, 0.5)
    assert entry.sensitivity == 1.0 and ledger.total(entry, "epsilon") == 1.0 and ledger.total(entry, "rho") == 0.5


def test_epsilon_and_rho_make_the_same_draw():
    scores = jnp.asarray(SCORES)
    by_rho = _draws(lambda key: selection.exponential(key, scores, sensitivity=1.0, rho=0.5, what="m"), n=1000)
    by_epsilon = _draws(lambda key: selection.exponential(key, scores, sensitivity=1.0, epsilon=2.0, what="m"), n=1000)
    np.testing.assert_array_equal(by_rho, by_epsilon)


def test_arguments_that_raise():
    key, scores = jax.random.key(0), jnp.asarray(SCORES)
    for numbers in ({}, {"epsilon": 1.0, "rho": 1.0}):
        with pytest.raises(TypeError, match="exactly one of epsilon and rho"):
            selection.exponential(key, scores, sensitivity=1.0, what="m", **numbers)
    for name in ("epsilon", "rho"):
        with pytest.raises(TypeError, match=f"{name} must be a number"):
            selection.exponential(key, scores, sensitivity=1.0, what="m", **{name: "abc"})
    for wrong in (jnp.zeros((2, 2)), jnp.zeros(()), jnp.zeros((0,))):
        with pytest.raises(ValueError, match="scores must be a vector"):
            selection.exponential(key, wrong, sensitivity=1.0, epsilon=1.0, what="m")
    with pytest.raises(ValueError, match="queries must be a vector"):
        selection.above_threshold(key, jnp.zeros(()), threshold=0.0, epsilon=1.0, what="m")
    with pytest.raises(ValueError, match="mask must be"):
        selection.exponential(key, scores, sensitivity=1.0, epsilon=1.0, mask=jnp.ones(4, bool), what="m")
    with pytest.raises(TypeError, match="float32 or float64"):
        selection.exponential(key, scores.astype(np.float16), sensitivity=1.0, epsilon=1.0, what="m")


def test_vmap_is_loop_and_numbers_do_not_recompile():
    traces = []

    @jax.jit
    def run(key, scores, budget, threshold):
        traces.append(1)
        keys = jax.random.split(key, 3)
        one, first = selection.exponential(keys[0], scores, sensitivity=1.0, rho=budget, what="a")
        many, rest = selection.exponential_top_k(keys[1], scores, 2, sensitivity=1.0, epsilon=budget, what="b")
        level, last = selection.above_threshold(keys[2], scores, threshold=threshold, epsilon=budget, what="c")
        return one, many, level, (first, rest, last)

    keys = jax.random.split(jax.random.key(0), 6)
    budgets = jnp.asarray([0.1, 1.0, 3.0, -1.0, 10.0, 100.0])
    scores = jax.random.normal(jax.random.key(1), (6, 5)) * 3
    batched = jax.vmap(run, in_axes=(0, 0, 0, None))(jax.random.clone(keys), scores, budgets, 0.5)
    for lane in range(6):
        single = run(keys[lane], scores[lane], budgets[lane], 0.5)
        for ours, theirs in zip(jax.tree.leaves(single), jax.tree.leaves(batched)):
            np.testing.assert_allclose(ours, theirs[lane], rtol=1e-12)
    assert len(traces) == 1


def _stable_law(counts, epsilon, delta, threshold=None):
    """Probabilities of each bin and of none, by quadrature, from the definition; bins of count 0 are not in use."""
    s = 2.0 / epsilon
    t = 1.0 + s * np.log(1.0 / delta) if threshold is None else threshold
    used = [i for i, c in enumerate(counts) if c > 0]
    law = np.zeros(len(counts) + 1)
    for i in used:

        def density(x, i=i):
            others = [scipy.stats.laplace.cdf(x, counts[j], s) for j in used if j != i]
            return scipy.stats.laplace.pdf(x, counts[i], s) * np.prod(others)

        kinks = sorted({t, *[c for c in counts if c > t]})
        ends = [*kinks, max(max(counts), t) + 60.0 * s]
        law[i] = sum(scipy.integrate.quad(density, a, b, epsabs=1e-12)[0] for a, b in itertools.pairwise(ends))
    law[-1] = np.prod([scipy.stats.laplace.cdf(t, counts[j], s) for j in used]) if used else 1.0
    return law


def test_stable_argmax_law():
    """Two histograms at once, each at half the budget: chi-square at 1e5 draws, false alarm 1e-5 each."""
    counts = np.array([[7, 0], [9, 30], [0, 28], [1, 1]])
    epsilon, delta = 1.0, 0.2
    draws = _draws(
        lambda key: selection.stable_argmax(key, jnp.asarray(counts), epsilon=epsilon, delta=delta, what="bin")
    )
    for k in range(2):
        assert _pvalue(draws[:, k], _stable_law(counts[:, k], epsilon / 2, delta / 2)) > 1e-5
    for wrong in ((epsilon, delta / 2), (epsilon / 2, delta), (epsilon / 4, delta / 2)):
        laws = [_stable_law(counts[:, k], *wrong) for k in range(2)]
        assert min(_pvalue(draws[:, k], law) for k, law in enumerate(laws)) < 1e-5


def _fails_by(one, other, epsilon):
    """The least delta for which two laws are (epsilon, delta)-close."""
    return max(np.sum(np.maximum(a - np.exp(epsilon) * b, 0.0)) for a, b in ((one, other), (other, one)))


def test_stable_argmax_is_private_on_every_small_histogram():
    """Exact laws of all neighbouring histograms of up to four rows in three bins: never beyond delta at epsilon."""
    epsilon, delta = 0.5, 0.05
    laws, worst = {}, {None: 0.0, "low": 0.0}
    histograms = [c for c in itertools.product(range(5), repeat=3) if 1 <= sum(c) <= 4]
    low = 1.0 + 2.0 / epsilon * np.log(0.25 / delta)  # a threshold that one row passes with probability 2 delta
    for counts in histograms:
        for source, target in itertools.permutations(range(3), 2):
            if counts[source] == 0:
                continue
            moved = list(counts)
            moved[source] -= 1
            moved[target] += 1
            for kind, threshold in ((None, None), ("low", low)):
                pair = []
                for each in (counts, tuple(moved)):
                    if (each, kind) not in laws:
                        laws[each, kind] = _stable_law(each, epsilon, delta, threshold)
                    pair.append(laws[each, kind])
                worst[kind] = max(worst[kind], _fails_by(*pair, epsilon))
    assert worst[None] <= delta
    assert worst[None] >= 0.4 * delta  # one row alone passes with probability delta/2
    assert worst["low"] > delta


def test_stable_argmax_without_a_valid_budget_looks_at_nothing():
    counts = jnp.asarray([[500], [3]])
    for numbers in ({"epsilon": 0.0}, {"epsilon": np.nan}, {"delta": 0.0}, {"delta": 1.0}, {"delta": np.nan}):
        arguments = {"epsilon": 1.0, "delta": 1e-6, "what": "m", **numbers}
        index, entry = selection.stable_argmax(jax.random.key(0), counts, **arguments)
        assert index.tolist() == [2]
        with pytest.raises(ValueError, match="no price in rho"):
            ledger.total(entry, "rho")
    with pytest.raises(ValueError, match="whole numbers"):
        selection.stable_argmax(jax.random.key(0), jnp.ones((2, 1)), epsilon=1.0, delta=1e-6, what="m")
