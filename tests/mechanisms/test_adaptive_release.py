"""`adaptive`: ledger, noise of either form, what is released, and edges."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, AdaptiveConfig, Bounds, GaussianConfig, PureDP, Rows, adaptive, gaussian
from jaxdpcov.data import clip, levels
from jaxdpcov.mechanisms import _ball, _steps
from jaxdpcov.privacy import ledger
from tests.reference import separate as ball

N, D = 240, 30


def rows() -> np.ndarray:
    """Most rows short, a few long."""
    rng = np.random.default_rng(0)
    norms = np.concatenate([np.full(12, 1.0), np.full(20, 0.5), np.full(8, 0.3), np.full(200, 0.125)])
    x = rng.normal(size=(N, D))
    return x / np.linalg.norm(x, axis=1, keepdims=True) * norms[:, None]


def test_the_ledger_is_an_eighth_an_eighth_and_the_rest() -> None:
    x = rows()
    release = adaptive(jax.random.key(0), x, ZCDP(0.4), Bounds.l2(1.0))
    entries = ledger.entries(release.ledger)
    assert [entry.what for entry in entries[:3]] == ["sum of |u|^2", "radius", "sum of w"] and len(entries) == 4
    costs = [float(entry.cost) for entry in entries]
    assert costs[:2] == [0.05, 0.05] and sum(costs[2:]) == pytest.approx(0.3, rel=1e-12) and sum(costs) <= 0.4
    assert costs[2] == pytest.approx(0.3 * float(release.diagnostics["mean_share"]), rel=1e-9)
    config = AdaptiveConfig(constants="paper", center="pairs")
    release = adaptive(jax.random.key(0), x, PureDP(0.4), Bounds.l2(1.0), config=config)
    entries = ledger.entries(release.ledger)
    assert [entry.kind for entry in entries] == ["laplace", "above_threshold", "laplace"]
    costs = [float(entry.cost) for entry in entries]
    assert costs[:2] == [0.05, 0.05] and costs[2] == pytest.approx(0.3, rel=1e-12) and sum(costs) <= 0.4


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("pure", [False, True], ids=["rho", "epsilon"])
def test_noise_of_either_form(separate: bool, pure: bool) -> None:
    """At a radius and a form that are given, the matrix has the noise of the form, and one ledger entry says both."""
    config, budget = AdaptiveConfig(center="zero", constants="paper"), PureDP(0.6) if pure else ZCDP(0.3)
    frame = clip.ball_frame(Bounds.l2(1.0), D, np.float64)
    sums = levels.Moments(jnp.zeros((D, D)), jnp.zeros(D))
    choice = _ball.Choice(jnp.asarray(0.25), "either", jnp.asarray(separate))

    def one(key: jax.Array) -> Any:
        opened = _steps.begin("adaptive", key, jnp.asarray(float(N)), frame, budget, config, jnp.asarray(True))
        release = _ball.finish("adaptive", opened, sums, frame, budget, Bounds.l2(1.0), config, choice)
        return release.measured["second_moment"], release.ledger

    found, tree = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 40))
    cost = 0.6 if pure else 0.3
    shape = ball.Shape(D, pure=pure)
    std = ball.std(shape, "second", cost * (0.5 if separate else 1.0), 0.25) * 0.25**2 / N
    np.testing.assert_allclose(found.std[0], std, rtol=1e-9)
    upper = np.triu_indices(D)
    scaled = np.asarray(found.value / found.std)[:, *upper]
    energy = np.sum(np.abs(scaled)) * np.sqrt(2) if pure else np.sum(scaled**2)
    law = scipy.stats.gamma(scaled.size) if pure else scipy.stats.chi2(scaled.size)
    assert law.ppf(5e-7) < energy < law.ppf(1 - 5e-7)
    assert not law.ppf(5e-7) < energy * (0.7 if pure else 0.49) < law.ppf(1 - 5e-7)
    (entry,) = ledger.entries(tree)
    spent = entry.sensitivity / entry.scale if pure else (entry.sensitivity / entry.scale) ** 2 / 2
    np.testing.assert_allclose(spent, cost, rtol=1e-9)


def test_eigenvalues_of_the_separate_form_have_their_noise() -> None:
    """Rank one, so far above all noise that order and range leave the top eigenvalue alone."""
    config, budget, lanes = AdaptiveConfig(center="zero", psd="none"), ZCDP(0.3), 4000
    frame = clip.ball_frame(Bounds.l2(1.0), D, np.float64)
    sums = levels.Moments(jnp.zeros((D, D)).at[0, 0].set(0.5 * N), jnp.zeros(D))

    def one(key: jax.Array) -> Any:
        opened = _steps.begin("adaptive", key, jnp.asarray(float(N)), frame, budget, config, jnp.asarray(True))
        choice = _ball.Choice(jnp.asarray(1.0), "either", jnp.asarray(True))
        release = _ball.finish("adaptive", opened, sums, frame, budget, Bounds.l2(1.0), config, choice)
        return jnp.linalg.eigvalsh(release.covariance)[-1]

    top = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), lanes))) * N - 0.5 * N
    std = float(ball.std(ball.Shape(D), "spectrum", 0.2 * 0.3))
    low, high = scipy.stats.chi2(lanes).ppf([5e-7, 1 - 5e-7])
    assert low < np.sum((top / std) ** 2) < high
    assert not low < np.sum((0.5 * top / std) ** 2) < high


def test_the_covariance_is_that_of_rows_clipped_at_the_released_radius() -> None:
    x = rows() + 0.02
    for bounds in (Bounds.l2(2.5), Bounds.box(-0.8, 0.8)):
        release = adaptive(jax.random.key(1), x, ZCDP(1e10), bounds)
        plain = ("l2", 2.5, None) if not hasattr(bounds, "lower") else ("box", -0.8, 0.8)
        u = ball.unit_rows(x, plain)
        radius = float(release.extra["radius"]) / (2.5 if plain[0] == "l2" else np.sqrt(D))
        assert 4 * np.log2(radius) == pytest.approx(round(4 * np.log2(radius)), abs=1e-12) and radius <= 1
        w = radius * ball.clipped(u, radius)
        expected = np.cov(w.T, bias=True) * np.outer(release.scale, release.scale)
        np.testing.assert_allclose(release.covariance, expected, atol=1e-4 * np.max(expected))
        np.testing.assert_allclose(release.mean, release.center + release.scale * w.mean(0), atol=1e-4)


def test_short_rows_are_released_far_better_than_by_gaussian() -> None:
    x, truth = 0.125 * rows(), rows().T @ rows() / N / 64
    errors = []
    for mechanism, config in ((adaptive, AdaptiveConfig(center="zero")), (gaussian, GaussianConfig(center="zero"))):
        one = lambda key, m=mechanism, c=config: m(key, x, ZCDP(1.0), Bounds.l2(1.0), config=c).covariance  # noqa: E731
        found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), 10))
        errors.append(np.mean([np.linalg.norm(each - truth) for each in np.asarray(found)]))
    assert errors[0] < 0.1 * errors[1]


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_units_do_not_matter(factor: float) -> None:
    """c X under radius c r gives c^2 times the release, bit for bit where c is a power of two (key not folded)."""
    config = jax.tree_util.tree_map(jnp.asarray, AdaptiveConfig())
    core, key = adaptive.__wrapped__, jax.random.key(2)  # type: ignore[attr-defined]
    one = core(jax.random.clone(key), Rows.array(rows()), ZCDP(0.5), Bounds.l2(0.7), config)
    other = core(jax.random.clone(key), Rows.array(factor * rows()), ZCDP(0.5), Bounds.l2(0.7 * factor), config)
    assert float(other.extra["radius"]) == pytest.approx(factor * float(one.extra["radius"]), rel=1e-12)
    if factor == 0.25:
        assert np.array_equal(other.covariance, factor**2 * one.covariance)
    np.testing.assert_allclose(other.covariance, factor**2 * one.covariance, rtol=1e-9, atol=1e-15)


def test_a_stream_is_read_twice() -> None:
    passes = []

    def blocks() -> Any:
        passes.append(1)
        return iter(np.array_split(rows(), 4))

    stream = Rows.chunked(blocks, d=D, block_rows=64)
    release = adaptive(jax.random.key(0), stream, ZCDP(0.5), Bounds.l2(1.0))
    assert len(passes) == 2 and float(release.n) == N
    same = adaptive(jax.random.key(0), rows(), ZCDP(0.5), Bounds.l2(1.0))
    np.testing.assert_allclose(release.covariance, same.covariance, rtol=1e-9, atol=1e-15)


def test_gradients_are_finite() -> None:
    def total(rho: Any, radius: Any, x: Any) -> Any:
        release = adaptive(jax.random.key(0), x, ZCDP(rho), Bounds.l2(radius))
        return jnp.sum(release.covariance * jnp.arange(9.0).reshape(3, 3))

    gradient = jax.jit(jax.grad(total, (0, 1, 2)))
    for x in (rows()[:20, :3], np.zeros((20, 3)), np.tile(np.eye(3), (7, 1))[:20]):
        assert all(np.all(np.isfinite(each)) for each in gradient(0.5, 1.0, jnp.asarray(x)))


def test_wrong_choices_raise_and_name_it() -> None:
    for field in ("beta", "trace_share", "radius_share"):
        with pytest.raises(ValueError, match=field):
            AdaptiveConfig(**{field: 0.0})
    with pytest.raises(ValueError, match="trace_share \\+ radius_share"):
        AdaptiveConfig(trace_share=0.6, radius_share=0.4)
    with pytest.raises(ValueError, match='constants="paper" needs d >= 2'):
        adaptive(
            jax.random.key(0), np.ones((9, 1)), ZCDP(1.0), Bounds.l2(1.0), config=AdaptiveConfig(constants="paper")
        )
