"""Intervals from the known noise: their terms, coverage by simulation, inverses, edges at a false-discovery rate."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    GaussianConfig,
    LaplaceConfig,
    PaceConfig,
    PureDP,
    auto,
    coinpress_covariance,
    diagonal,
    emcov,
    gaussian,
    laplace,
    pace,
    product_mean,
)
from jaxdpcov.apps import _noise, intervals, inverses
from jaxdpcov.apps.intervals import covariance_interval, mean_interval, variance_interval
from jaxdpcov.apps.inverses import edges, partial_correlation_interval, precision_interval

LOWER, UPPER = np.array([-1.0, 0.0, 3.0, -2.0]), np.array([1.0, 4.0, 3.0, 2.0])
BOX, N = Bounds.box(LOWER, UPPER), 400
LIVE = np.array([0, 1, 3])


def rows(n: int = N, seed: int = 0) -> np.ndarray:
    """Rows far from the middle of their bounds, so that the mean's noise counts; one column is constant."""
    a, b, c = np.random.default_rng(seed).uniform(0.0, 1.0, (3, n))
    return np.column_stack([0.5 + 0.5 * a, 3.0 * np.maximum(a, b), np.full(n, 3.0), 1.0 + 0.9 * c])


def normal_rows(key: Any, n: int, weight: Any = 0.6) -> Any:
    """Rows of a chain 0 - 1 - 3 that no bound clips: covariance below."""
    z = 0.1 * jax.random.normal(key, (n, 3))
    a = z[:, 0]
    b = weight * a + z[:, 1]
    c = weight * b + z[:, 2]
    return jnp.stack([a, 2.0 + b, jnp.full(n, 3.0), c], axis=1)


MIX = 0.1 * np.array([[1.0, 0.0, 0.0], [0.6, 1.0, 0.0], [0.36, 0.6, 1.0]])
CHAIN = MIX @ MIX.T


def in_all(block: np.ndarray) -> np.ndarray:
    full = np.zeros((4, 4))
    full[np.ix_(LIVE, LIVE)] = block
    return full


def fraction(found: Any, truth: Any) -> np.ndarray:
    """Of a batch of intervals, how many hold the truth."""
    return np.mean((np.array(found.lower) <= truth) & (truth <= np.array(found.upper)), axis=0)


def near(inside: np.ndarray, level: float, count: int) -> None:
    """Each within 4.5 standard errors of the level (false alarm below 1e-5 each), their mean within a hundredth."""
    error = np.sqrt(level * (1 - level) / count)
    assert np.all(np.abs(inside - level) < 4.5 * error), inside
    assert abs(np.mean(inside) - level) < max(0.01, 4.5 * error / np.sqrt(inside.size)), inside


def batch(mechanism: Any, budget: Any, x: Any, count: int = 2000, bounds: Any = BOX, **config: Any) -> Any:
    kind = {gaussian: GaussianConfig, laplace: LaplaceConfig}[mechanism](psd="none", **config)
    keys = jax.random.split(jax.random.key(7), count)
    return jax.jit(jax.vmap(lambda key: mechanism(key, x, budget, bounds, config=kind)))(keys)


UPPER_PART = np.triu_indices(3)


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
@pytest.mark.parametrize("mechanism", [gaussian, laplace])
def test_coverage_of_the_rows_own_values(mechanism: Any, relation: str) -> None:
    x = rows()
    budget = ZCDP(0.5) if mechanism is gaussian else PureDP(8.0)
    made = batch(mechanism, budget, x, relation=relation)
    own = np.cov(x.T, ddof=0)
    inside = fraction(covariance_interval(made), own)
    near(inside[np.ix_(LIVE, LIVE)][UPPER_PART], 0.95, 2000)
    np.testing.assert_array_equal(inside[2], 1.0)  # constant: exact
    near(fraction(mean_interval(made), x.mean(0))[LIVE], 0.95, 2000)
    near(fraction(variance_interval(made, 0.8), np.diag(own))[LIVE], 0.8, 2000)
    # Scales of 2/3 and 3/2 would be seen.
    found = covariance_interval(made)
    for factor in (2 / 3, 3 / 2):
        half = factor * (np.array(found.upper) - np.array(found.estimate))
        hits = np.mean(np.abs(np.array(found.estimate) - own) <= half, axis=0)[np.ix_(LIVE, LIVE)][UPPER_PART]
        with pytest.raises(AssertionError):
            near(hits, 0.95, 2000)


def test_a_single_laplace_variable_has_its_exact_quantile() -> None:
    made = laplace(jax.random.key(0), rows(), PureDP(2.0), BOX, config=LaplaceConfig(center="zero", psd="none"))
    for level in (0.5, 0.95, 0.999):
        found = covariance_interval(made, level)
        std = np.array(made.measured["second_moment"].std) * np.outer(made.scale, made.scale)
        half = -np.log1p(-level) * std / 2**0.5
        np.testing.assert_allclose(found.upper - found.lower, 2 * half, rtol=1e-5, atol=1e-12)
        assert not np.any(np.isnan(found.lower))


def test_sums_of_laplace_and_normal_variables_have_their_quantiles() -> None:
    """Against 2 10^6 draws: the quantile of 2.5% has a relative error of about 0.2% there."""
    rng = np.random.default_rng(0)
    for stds, sigma in (((1.0, 0.5, 0.2, 0.0), 0.0), ((1.0, 1.0, 1.0, 1.0), 0.0), ((1.0, 0.3, 0.0, 0.0), 0.8)):
        total = sigma * rng.normal(size=2_000_000)
        for std in stds:
            total += rng.laplace(size=2_000_000) * std / 2**0.5
        found = intervals._laplace_quantile(jnp.array([stds]), jnp.array([sigma]), jnp.array(0.025))
        assert np.isclose(float(found[0]), np.quantile(np.abs(total), 0.95), rtol=0.01), (stds, sigma)


def test_the_variance_of_each_entry_is_what_draws_show() -> None:
    """Entry by entry, the std over 2,000 releases is the mean of those stated, within 7% (4.4 standard errors)."""
    made = batch(gaussian, ZCDP(0.05), rows(), relation="add_remove")
    found = covariance_interval(made)
    seen = np.std(np.array(found.estimate), axis=0)[np.ix_(LIVE, LIVE)]
    stated = np.sqrt(np.mean(np.array(found.std) ** 2, axis=0))[np.ix_(LIVE, LIVE)]
    np.testing.assert_allclose(seen, stated, rtol=0.07)
    parts = [np.sqrt(np.mean(np.array(part) ** 2)) for part in _noise.lanes(_parts, made)]
    assert min(parts) > 0.0


def _parts(release: Any) -> Any:
    return _noise.statistics(release, "this").parts()


def test_coverage_of_the_population() -> None:
    """Fresh Gaussian rows for each release: means, covariances, and of pairs, whose own value nobody knows."""

    def one(key: Any, center: str) -> Any:
        first, second = jax.random.split(key)
        config = GaussianConfig(center=center, psd="none")
        return gaussian(first, normal_rows(second, N), ZCDP(2000.0), BOX, config=config)

    keys = jax.random.split(jax.random.key(1), 2000)
    made = jax.jit(jax.vmap(lambda key: one(key, "private")))(keys)
    inside = fraction(covariance_interval(made, population=True), in_all(CHAIN))
    near(inside[np.ix_(LIVE, LIVE)][UPPER_PART], 0.95, 2000)
    near(fraction(mean_interval(made, population=True), np.array([0.0, 2.0, 3.0, 0.0]))[LIVE], 0.95, 2000)
    assert np.max(fraction(covariance_interval(made), in_all(CHAIN))[np.ix_(LIVE, LIVE)]) < 0.93
    near(fraction(precision_interval(made, population=True), in_all(np.linalg.inv(CHAIN)))[
        np.ix_(LIVE, LIVE)][UPPER_PART], 0.95, 1000)  # fmt: skip
    pairs = jax.jit(jax.vmap(lambda key: one(key, "pairs")))(jax.random.split(jax.random.key(2), 2000))
    inside = fraction(covariance_interval(pairs, population=True), in_all(CHAIN))
    near(inside[np.ix_(LIVE, LIVE)][UPPER_PART], 0.95, 2000)


def test_the_false_discovery_rate_of_edges() -> None:
    """Over 250 releases each of a chain and of independent columns, at a level of 0.2.

    Of independent columns every edge is false: the rate is the chance of any, and has a standard error of 0.025.
    Without control over the three pairs it would be about 0.49.
    """

    @jax.jit
    @jax.vmap
    def program(key: Any, weight: Any) -> Any:
        first, second = jax.random.split(key)
        rows = normal_rows(second, N, weight)
        return gaussian(first, rows, ZCDP(2000.0), BOX, config=GaussianConfig(psd="none"))

    count = 250
    for weight in (0.6, 0.0):
        keys = jax.random.split(jax.random.key(4), count)
        made = jax.tree.map(np.asarray, program(keys, np.full(count, weight)))
        found = [edges(jax.tree.map(lambda leaf, i=i: leaf[i], made), 0.2) for i in range(count)]
        null = [{"x0", "x3"}] if weight else [{"x0", "x1"}, {"x0", "x3"}, {"x1", "x3"}]
        false = [np.mean([{e.first, e.second} in null for e in each]) if each else 0.0 for each in found]
        assert np.mean(false) < (0.2 / 3 if weight else 0.2) + 0.1
        assert not weight or np.mean([len(each) for each in found]) > 1.9  # both true ones are found


def test_inverses_against_the_noise_alone() -> None:
    x = np.asarray(normal_rows(jax.random.key(5), 4000))
    own = np.cov(x.T, ddof=0)[np.ix_(LIVE, LIVE)]
    inverse = np.linalg.inv(own)
    partial = -inverse / np.sqrt(np.outer(np.diag(inverse), np.diag(inverse)))
    np.fill_diagonal(partial, 1.0)
    made = batch(gaussian, ZCDP(50.0), x, 1500)
    near(fraction(precision_interval(made), in_all(inverse))[np.ix_(LIVE, LIVE)][UPPER_PART], 0.95, 1500)
    found = partial_correlation_interval(made)
    off = np.triu_indices(3, 1)
    near(fraction(found, in_all(partial))[np.ix_(LIVE, LIVE)][off], 0.95, 1500)
    np.testing.assert_array_equal(np.array(found.lower)[:, range(4), range(4)], 1.0)
    assert np.all(np.abs(np.array(found.upper)) <= 1.0)


@cache
def release(rho: float = 5.0, **config: Any) -> Any:
    return gaussian(jax.random.key(0), rows(), ZCDP(rho), BOX, config=GaussianConfig(**config))


def test_propagation_is_the_numerical_derivative() -> None:
    made = _noise.statistics(release(relation="add_remove"), "this")
    live = jnp.asarray(UPPER > LOWER)

    def function(second: np.ndarray, mean: np.ndarray) -> np.ndarray:
        c = second - np.outer(mean, mean) + np.diag(np.array(made.mean.std) ** 2)
        return np.linalg.inv((c * np.array(made.units))[np.ix_(LIVE, LIVE)])

    second, mean, n = np.array(made.second.value), np.array(made.mean.value), float(made.n)
    total, h = np.zeros((3, 3)), 1e-6
    for j in LIVE:
        for k in LIVE[LIVE >= j]:
            step = np.zeros((4, 4))
            step[j, k] = step[k, j] = h
            slope = (function(second + step, mean) - function(second - step, mean)) / (2 * h)
            total += (slope * np.array(made.second.std)[j, k]) ** 2
        step = h * np.eye(4)[j]
        slope = (function(second, mean + step) - function(second, mean - step)) / (2 * h)
        total += (slope * np.array(made.mean.std)[j]) ** 2
    slope = (function(second / (1 + h), mean / (1 + h)) - function(second / (1 - h), mean / (1 - h))) / (2 * h)
    total += (slope * float(made.count.std) / n) ** 2
    ours = _noise.propagate(lambda c: inverses._precision(c, live), made)
    np.testing.assert_allclose(np.array(ours)[np.ix_(LIVE, LIVE)], np.sqrt(total), rtol=1e-5)


def test_too_much_noise_for_an_inverse() -> None:
    made = release(1e-4, psd="none")
    assert np.all(np.isnan(precision_interval(made).estimate)) and edges(made) == []
    assert np.all(np.isfinite(covariance_interval(made).lower))


def test_edges_are_a_table_and_refuse_batches() -> None:
    found = edges(release(50.0), 0.05, population=False)
    assert [edge[:2] for edge in found] == [("x0", "x1")] and 0 <= found[0].p_value <= found[0].q_value <= 0.05
    assert len(edges(release(50.0), 0.999999, method="by")) >= 1
    with pytest.raises(ValueError, match=r"expected one release, got a batch of shape \(2,\)"):
        edges(batch(gaussian, ZCDP(0.5), rows(), 2))
    with pytest.raises(ValueError, match="level must satisfy 0 < level < 1"):
        edges(release(), 1.0)


def test_what_each_mechanism_measures() -> None:
    x, box = rows()[:, LIVE], Bounds.box(LOWER[LIVE], UPPER[LIVE])
    own = np.cov(x.T, ddof=0)
    alone = covariance_interval(diagonal(jax.random.key(0), x, ZCDP(5.0), box), 0.9999)
    assert np.all(np.diag(alone.contains(own))) and np.all(np.isnan(np.array(alone.lower)[~np.eye(3, dtype=bool)]))
    with pytest.raises(ValueError, match="diagonal measures variances alone"):
        precision_interval(diagonal(jax.random.key(0), x, ZCDP(5.0), box))
    few = pace(jax.random.key(0), x, ZCDP(5.0), box, config=PaceConfig(center="private", rounds_per_column=1))
    found, mask = covariance_interval(few, 0.9999), np.array(few.extra["measured_mask"])
    np.testing.assert_array_equal(np.isfinite(found.lower), mask)
    assert np.all(np.array(found.contains(own))[mask])
    assert not mask.all()
    with pytest.raises(ValueError, match="pace measured chosen entries alone here"):
        edges(few)
    clipped = auto(jax.random.key(0), np.sign(x - np.median(x, axis=0)) + 0.0, ZCDP(5.0), Bounds.box(-1.0, 1.0))
    signs = np.sign(x - np.median(x, axis=0))
    assert np.all(covariance_interval(clipped, 0.9999).contains(np.cov(signs.T, ddof=0)))
    press = coinpress_covariance(jax.random.key(1), x, ZCDP(50.0), Bounds.spectrum(1e-3, 10.0))
    assert np.all(covariance_interval(press, 0.9999, population=True).contains(own))
    with pytest.raises(ValueError, match="not independent between entries"):
        precision_interval(press)
    with pytest.raises(ValueError, match="has no mean of its own"):
        mean_interval(press)
    with pytest.raises(ValueError, match="product_mean truncates rows"):
        mean_interval(product_mean(jax.random.key(0), x, ZCDP(5.0), box))
    with pytest.raises(ValueError, match="emcov measures no entry of the second moment, which an interval needs"):
        covariance_interval(emcov(jax.random.key(0), x, PureDP(5.0), box))


def test_small_and_invalid() -> None:
    one = gaussian(jax.random.key(0), np.ones((1, 1)), ZCDP(0.5), Bounds.box(0.0, 2.0))
    for population in (False, True):
        for function in (covariance_interval, variance_interval, mean_interval):
            found = function(one, population=population)
            assert np.all(np.isfinite(found.lower)) and np.all(np.array(found.lower) < np.array(found.upper))
    assert edges(one) == []
    broken = jax.jit(lambda rho: gaussian(jax.random.key(1), rows(), ZCDP(rho), BOX))(-1.0)
    assert np.all(np.isnan(covariance_interval(broken).lower)) and edges(broken) == []
    made = release(relation="add_remove")
    lost = dataclasses.replace(made, measured=made.measured | {"n": dataclasses.replace(made.measured["n"], value=0.3)})
    assert np.all(np.isinf(np.array(covariance_interval(lost).upper)[np.ix_(LIVE, LIVE)]))
    assert np.all(np.isinf(np.array(mean_interval(lost).upper)[LIVE]))
