"""Populations: drawn moments against the exact ones, seeds, shared programs, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, diagonal, gaussian, product_mean
from jaxdpcov.sim import DATA_SETS, POPULATIONS, data_set, from_release, from_rows, make, normal, populations

D, DRAWN = 4, 100_000
SETTINGS = {
    "ar1": {"correlation": -0.6},
    "spiked": {"spikes": 2},
    "student_t": {"freedom": 9.0, "base": "ar1", "correlation": 0.7},
    "low_trace": {"trace": 0.1},
    "zipf_norms": {"octaves": 3},
    "sparse_ggm": {"edges": 3},
}
MOVED = {"scale": 3.0, "mean": [1.0, -2.0, 0.0, 5.0]}


def check_moments(population):
    """Mean and second moment about the exact mean within 5.5 standard errors: an alarm in 10^5 of such tests."""
    rows = np.asarray(population.sample(jax.random.key(1), DRAWN))
    assert rows.shape == (DRAWN, population.d) and rows.dtype == np.float64
    centred = rows - np.asarray(population.mean)
    products = centred[:, :, None] * centred[:, None, :]
    error = np.abs(products.mean(axis=0) - population.covariance)
    assert (error <= 5.5 * products.std(axis=0) / np.sqrt(DRAWN) + 1e-12).all()
    assert (np.abs(centred.mean(axis=0)) <= 5.5 * rows.std(axis=0) / np.sqrt(DRAWN) + 1e-12).all()
    second = population.covariance + np.outer(population.mean, population.mean)
    np.testing.assert_allclose(population.second_moment, second, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", POPULATIONS)
def test_drawn_moments_are_the_exact_ones(name):
    check_moments(make(name, D, **SETTINGS.get(name, {}), **MOVED))


def test_structure():
    assert make("ar1", 3, correlation=0.5).covariance.tolist() == [[1, 0.5, 0.25], [0.5, 1, 0.5], [0.25, 0.5, 1]]
    values = {name: np.linalg.eigvalsh(make(name, 6, **SETTINGS.get(name, {})).covariance) for name in POPULATIONS}
    np.testing.assert_allclose(values["spiked"], [1, 1, 1, 1, 11, 11], rtol=1e-12)
    np.testing.assert_allclose(values["log_uniform"], np.geomspace(0.01, 1.0, 6), rtol=1e-10)
    np.testing.assert_allclose(values["low_trace"][-1] / values["low_trace"][0], 6.0, rtol=1e-10)
    np.testing.assert_allclose(values["low_trace"].sum(), 0.1, rtol=1e-10)
    precision = np.linalg.inv(make("sparse_ggm", 6, edges=3).covariance)
    assert (np.abs(np.triu(precision, 1)) > 1e-10).sum() == 3
    np.testing.assert_allclose(np.diagonal(make("sparse_ggm", 6).covariance), 1.0, rtol=1e-12)
    rows = np.asarray(make("zipf_norms", 6, octaves=3).sample(jax.random.key(2), 20_000))
    norms, counts = np.unique(np.linalg.norm(rows, axis=1).round(12), return_counts=True)
    assert norms.tolist() == [0.25, 0.5, 1.0]
    weights = np.array([1.0, 1 / 8, 1 / 27]) / (1 + 1 / 8 + 1 / 27)  # 5 standard errors
    assert (np.abs(counts / 20_000 - weights) < 5 * np.sqrt(weights * (1 - weights) / 20_000)).all()


def test_shares_of_a_direction():
    """Of two, l_1 has sqrt(l_1)/(sqrt(l_1) + sqrt(l_2)); whatever the values, shares add up to 1."""
    for first, second in ((1.0, 4.0), (1e-10, 1.0), (3.0, 3e20)):
        share = populations.direction_shares([first, second])
        expected = np.sqrt([first, second]) / (np.sqrt(first) + np.sqrt(second))
        np.testing.assert_allclose(share, expected, rtol=1e-10)
    wide = populations.direction_shares(np.geomspace(1e-12, 1.0, 300))
    np.testing.assert_allclose(wide.sum(), 1.0, rtol=1e-12)
    assert populations.direction_shares([2.0]).round(12) == 1.0


@pytest.mark.parametrize("name", ["spiked", "log_uniform", "low_trace", "mixture", "sparse_ggm", "zipf_norms"])
def test_seeds_reproduce(name):
    first, again, other = (make(name, 5, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.covariance, again.covariance)
    assert not np.allclose(first.covariance, other.covariance)


def test_one_law_shares_programs():
    traced = []

    @jax.jit
    def draw(population, keys):
        traced.append(population.law)
        return jax.vmap(lambda key: population.sample(key, 8))(keys)

    keys = jax.random.split(jax.random.key(3), 2)
    rows = draw(make("ar1", 3), keys)
    other = draw(make("log_uniform", 3, seed=5, scale=2.0), jax.random.clone(keys))
    draw(normal(np.eye(3), mean=4.0), jax.random.clone(keys))
    assert traced == ["normal"]
    assert rows.shape == (2, 8, 3) and not np.allclose(rows[0], rows[1]) and not np.allclose(rows, other)
    alone = make("ar1", 3).sample(jax.random.clone(keys)[1], 8)
    np.testing.assert_allclose(rows[1], alone, rtol=1e-12)


@pytest.mark.x64_off
def test_float32_where_jax_is():
    for name in ("mixture", "student_t", "zipf_norms", "product"):
        assert make(name, 2).sample(jax.random.key(0), 4).dtype == jnp.float32


def test_public_rows_are_resampled():
    rows = np.random.default_rng(0).gamma(2.0, size=(50, 3))
    population = from_rows(rows, public=True)
    np.testing.assert_allclose(population.covariance, np.cov(rows.T, ddof=0), rtol=1e-12)
    check_moments(population)
    drawn = np.asarray(population.sample(jax.random.key(4), 200))
    assert (np.abs(drawn[:, None] - rows[None]).max(axis=2).min(axis=1) == 0).all()
    for marked in (False, None, 1, "yes"):
        with pytest.raises(ValueError, match="public=True"):
            from_rows(rows, public=marked)
    with pytest.raises(ValueError, match="public=True"):
        from_rows(rows)
    with pytest.raises(ValueError, match="finite"):
        from_rows([[1.0, np.nan]], public=True)
    with pytest.raises(ValueError, match="shape"):
        from_rows(np.zeros(3), public=True)


def test_a_release_makes_a_population():
    rows = np.random.default_rng(0).uniform(size=(500, 3))
    release = gaussian(jax.random.key(0), rows, ZCDP(10.0), Bounds.box(0.0, 1.0))
    population = from_release(release)
    np.testing.assert_allclose(population.covariance, release.covariance, rtol=1e-9, atol=1e-12)
    assert np.array_equal(population.mean, release.mean)
    noisy = diagonal(jax.random.key(1), rows[:2], ZCDP(1e-3), Bounds.box(0.0, 1.0))
    assert np.linalg.eigvalsh(from_release(noisy).covariance)[0] >= -1e-9
    with pytest.raises(ValueError, match="no covariance"):
        from_release(product_mean(jax.random.key(0), rows, ZCDP(1.0), Bounds.box(0.0, 1.0)))
    with pytest.raises(TypeError, match="must be a Release"):
        from_release(rows)


def test_data_sets():
    shapes = {"iris": (150, 4), "wine": (178, 13), "breast_cancer": (569, 30), "diabetes": (442, 10)}
    for name in DATA_SETS:
        rows, columns = data_set(name)
        assert rows.shape == shapes.get(name, rows.shape) and len(columns) == rows.shape[1] and np.abs(rows).max() <= 1
    raw, _ = data_set("iris", "none")
    assert raw[0].tolist() == [5.1, 3.5, 1.4, 0.2]
    powers, _ = data_set("iris", "powers_of_two")
    assert powers[0].tolist() == [5.1 / 8, 3.5 / 8, 1.4 / 8, 0.2 / 4]
    assert make("iris").d == 4 and make("iris", prepare="none").mean[0] == raw[:, 0].mean()


REFUSED = {
    "a name": (("arl", 3), {}, "did you mean 'ar1'"),
    "a setting": (("ar1", 3), {"corelation": 0.5}, "did you mean 'correlation'"),
    "a setting of the base": (("student_t", 3), {"base": "ar1", "corelation": 0.5}, "did you mean 'correlation'"),
    "a base": (("student_t", 3), {"base": "mixture"}, "base must be a normal population"),
    "no d": (("ar1",), {}, "needs d"),
    "d": (("ar1", 0), {}, "d must be a whole number"),
    "d of a set": (("iris", 3), {}, "4 columns"),
    "a correlation": (("ar1", 3), {"correlation": 1.0}, "correlation must"),
    "tails": (("student_t", 3), {"freedom": 2.0}, "freedom must"),
    "spikes": (("spiked", 2), {"spikes": 3}, "at most d"),
    "edges": (("sparse_ggm", 3), {"edges": 4}, "at most"),
    "a scale": (("ar1", 3), {"scale": np.nan}, "scale must be finite"),
    "a mean": (("ar1", 3), {"mean": [1.0, 2.0]}, "mean must"),
    "a preparation": (("iris",), {"prepare": "scaled"}, "prepare must be one of"),
    "a setting of a set": (("iris",), {"scale": 2.0}, "no setting 'scale'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    arguments, settings, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make(*arguments, **settings)


def test_more_refusals():
    with pytest.raises(TypeError, match="correlation must be a number"):
        make("ar1", 3, correlation="high")
    with pytest.raises(ValueError, match="positive semidefinite"):
        normal([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ValueError, match="data set must be one of"):
        data_set("irises")
    with pytest.raises(ValueError, match="n must be at least 1"):
        make("identity", 2).sample(jax.random.key(0), 0)


@pytest.mark.parametrize("name", POPULATIONS)
def test_one_column(name):
    population = make(name, 1)
    assert np.isfinite(population.sample(jax.random.key(0), 3)).all() and population.covariance.shape == (1, 1)
