"""`adaptive`: queries, predictions and the law of the choice against plain NumPy, noise scales, and edges."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, AdaptiveConfig, Bounds, PureDP
from jaxdpcov.data import clip, levels
from jaxdpcov.mechanisms import _ball
from jaxdpcov.mechanisms import adaptive as module
from jaxdpcov.privacy import noise, selection, sensitivity
from tests.reference import adaptive as reference
from tests.reference import separate as ball

N, D, SEEN = 240, 30, 10
WEIGHT = module._BIAS_WEIGHT


def rows() -> np.ndarray:
    """Most rows short, a few long, norms on and off powers of two."""
    rng = np.random.default_rng(0)
    norms = np.concatenate([np.full(12, 1.0), np.full(20, 0.5), np.full(8, 0.3), np.full(200, 0.125)])
    x = rng.normal(size=(N, D))
    return x / np.linalg.norm(x, axis=1, keepdims=True) * norms[:, None]


def norms_of(x: np.ndarray) -> np.ndarray:
    u = clip.ball_frame(Bounds.l2(1.0), x.shape[1], np.float64).rows(jnp.asarray(x))
    return np.minimum(np.asarray(clip.row_norms(u)), 1.0)


def settings(config: AdaptiveConfig, budget: Any) -> tuple[Any, ...]:
    """Frame, masses and scales of `rows()` under l2 bounds of radius 1."""
    frame = clip.ball_frame(Bounds.l2(1.0), D, np.float64)
    masses = levels.masses(jnp.asarray(rows()), None, frame)
    return frame, masses, _ball.Scales(frame, budget, config, jnp.asarray(1.0))


def shape_of(config: AdaptiveConfig, budget: Any, d: int = D) -> ball.Shape:
    paired = config.center == "pairs"
    return ball.Shape(d, config.relation, paired, config.noise, isinstance(budget, PureDP))


# Queries and their sensitivities.


def test_queries_are_the_sums_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    config, seen = AdaptiveConfig(center="zero"), {}
    _, masses, scales = settings(config, ZCDP(1.0))
    radii, zero = levels.radii(np.float64), jnp.zeros(320)
    for name in ("above_threshold", "exponential"):
        sound = getattr(selection, name)

        def listen(key: Any, queries: Any, *, name: str = name, sound: Any = sound, **arguments: Any) -> Any:
            seen[name] = (np.asarray(queries), float(arguments["sensitivity"]))
            return sound(key, queries, **arguments)

        monkeypatch.setattr(selection, name, listen)
    for pick in (module._above_threshold, module._exponential):
        pick(jax.random.key(0), masses, radii, zero, scales, 1.0, zero)
    norms = norms_of(rows())
    assert (seen["above_threshold"][1], seen["exponential"][1]) == (1.0, 0.5 * WEIGHT)
    assert len(seen["above_threshold"][0]) == 80 and len(seen["exponential"][0]) == 320
    for i in range(4 * SEEN):
        radius = 2.0 ** (-i / 4)
        clipped, kept = reference.clipped_mass(norms, radius), reference.kept_mass(norms, radius)
        if i % 4 == 0:
            upper = reference.upper_bias(norms, -i // 4)
            assert float(seen["above_threshold"][0][i // 4]) == pytest.approx(upper, rel=1e-9, abs=1e-9)
            assert upper >= clipped - 1e-12
        assert float(module._clipped_mass(masses, radii)[i]) == pytest.approx(clipped, rel=1e-9, abs=1e-9)
        assert float(seen["exponential"][0][i]) == pytest.approx(0.5 * WEIGHT * (kept - clipped), rel=1e-9)


def contributions(norm: float, i: int) -> dict[str, float]:
    """What one row adds to the queries at the radius of level i; to that of the paper's form, at whole octaves."""
    one, radius = np.array([norm]), 2.0 ** (-i / 4)
    clipped, kept = reference.clipped_mass(one, radius), reference.kept_mass(one, radius)
    added = {"clipped": clipped, "score": 0.5 * WEIGHT * (kept - clipped)}
    return added | ({} if i % 4 else {"upper": reference.upper_bias(one, -i // 4)})


def test_no_row_moves_a_query_by_more_than_declared() -> None:
    """A grid of norms, with the radii of all levels and their neighbours in floats, for both relations."""
    powers = 2.0 ** (-np.arange(32) / 4)
    grid = np.concatenate([np.linspace(0, 1, 101), powers, np.nextafter(powers, 0), np.nextafter(powers[1:], 1)])
    declared = {"upper": sensitivity.level_query(), "clipped": sensitivity.level_query()}
    declared["score"] = sensitivity.radius_score(WEIGHT)
    largest = dict.fromkeys(declared, 0.0)
    for i in range(28):
        added = [contributions(norm, i) for norm in grid]
        for name in added[0]:
            values, bound = np.array([each[name] for each in added]), declared[name]
            change = max(values.max() - values.min(), np.abs(values).max())
            assert change <= bound + 1e-12, (name, i)
            largest[name] = max(largest[name], change)
        if i % 4 == 0:
            assert np.ptp([each["upper"] for each in added]) == pytest.approx(1 - 4.0 ** -(i // 4))
    for name, bound in declared.items():
        assert largest[name] >= 0.99 * bound, name
    assert sensitivity.squared_norm() == 1.0


def test_a_row_past_the_bound_by_rounding_counts_as_the_bound() -> None:
    """Else it would fall a level up and count 4: the planted fault is a norm of 1 + 1e-7."""
    assert reference.level(1.0) == -1
    frame = clip.ball_frame(Bounds.l2(1.0), 2, np.float32)
    x = jnp.asarray([[0.70710677, 0.70710685], [1.0000001, 0.0], [5.0, 5.0]], np.float32)
    masses = levels.masses(x, None, frame)
    assert float(masses.beyond[0]) == 0.0 and float(masses.beyond[1]) == float(masses.beyond[4]) == 3.0
    assert float(masses.total) <= 3.0


# Predictions.


@pytest.mark.parametrize("budget", [ZCDP(0.4), PureDP(0.8)], ids=["rho", "epsilon"])
@pytest.mark.parametrize("psd", ["denoise", "project"])
def test_tuned_predictions(budget: Any, psd: str) -> None:
    config = AdaptiveConfig(center="zero", psd=psd)
    _, _, scales = settings(config, budget)
    radii = levels.radii(np.float64)
    found = module._predict(jnp.asarray(12.0), jnp.asarray(float(N)), scales, 0.3, config, radii)
    for i in range(SEEN):
        expected = reference.predict_tuned(shape_of(config, budget), 2.0 ** (-i / 4), 12.0, N, 0.3, 0.2, psd)
        assert float(found.gaussian[i]) == pytest.approx(expected.gaussian, rel=1e-9)
        assert float(found.separate[i]) == pytest.approx(expected.separate, rel=1e-9)


@pytest.mark.parametrize("kind", ["goe", "sgw"])
def test_predictions_of_the_paper(kind: str) -> None:
    config = AdaptiveConfig(center="zero", constants="paper", noise=kind)
    _, _, scales = settings(config, ZCDP(1.0))
    found = module._predict(jnp.asarray(12.0), jnp.asarray(float(N)), scales, 0.3, config, levels.radii(np.float64))
    for i in range(SEEN):
        expected = reference.predict_paper(shape_of(config, ZCDP(1.0)), 2.0 ** (-i / 4), 12.0, 0.3, 0.5, 0.1)
        assert float(found.gaussian[i]) == pytest.approx(expected.gaussian, rel=1e-9)
        assert float(found.separate[i]) == pytest.approx(expected.separate, rel=1e-9)


def test_the_prediction_is_that_of_the_paper_in_its_own_letters() -> None:
    """Noise(X, tau) as published, for a mean over n: at unit radius and below."""
    n, trace, rho, d = 500, 0.04, 0.3, 20
    eta, upsilon, omega = reference.paper_tails(d, 0.1 / 8, "sgw")
    for radius in (1.0, 0.25):
        found = reference.predict_paper(ball.Shape(d, noise="sgw"), radius, n * trace, rho, 0.5, 0.1)
        assert found.gaussian / n == pytest.approx(radius**2 * omega / (np.sqrt(rho) * n))
        turned = radius * 2**1.25 * np.sqrt(trace * upsilon) / (np.sqrt(n) * rho**0.25)
        assert found.separate / n == pytest.approx(turned + radius**2 * np.sqrt(2) * eta / (np.sqrt(rho) * n))


# The choice: its law, and its noise.

LANES = 1500


def choices(config: AdaptiveConfig, budget: Any) -> tuple[np.ndarray, ...]:
    """Levels, upper bounds on sum |u|^2, noisy sums of |u|^2, and forms, over lanes of keys."""
    frame, masses, _ = settings(config, budget)
    config = jax.tree_util.tree_map(jnp.asarray, config)

    def one(key: jax.Array) -> Any:
        opened, level, separate = module._choose.__wrapped__(key, masses, jnp.asarray(float(N)), frame, budget, config)
        return level, opened.extra["trace"] * N, opened.measured["trace"].value * N, separate

    found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), LANES))
    return tuple(np.asarray(each) for each in found)


def law_is_right(config: AdaptiveConfig, budget: Any) -> dict[str, bool]:
    """Chi-square tests of the levels given each lane's noisy trace, and of the trace; false alarms at 1e-6 each."""
    level, upper, trace, separate = choices(config, budget)
    pure = isinstance(budget, PureDP)
    cost = budget.epsilon if pure else budget.rho
    shape, norms = shape_of(config, budget), norms_of(rows())
    std = float(ball.std(shape, "trace", cost / 8))
    total, law = np.sum(norms**2), scipy.stats.gamma(LANES) if pure else scipy.stats.chi2(LANES)
    scaled = (trace - total) / std
    energy = np.sum(np.abs(scaled)) * np.sqrt(2) if pure else np.sum(scaled**2)
    right = {"trace": bool(law.ppf(5e-7) < energy < law.ppf(1 - 5e-7))}
    margin = np.log(4 / 0.1) * std / np.sqrt(2) if pure else np.sqrt(2 * np.log(8 / 0.1)) * std
    np.testing.assert_allclose(upper, np.clip(trace + margin, 0, N), rtol=1e-9)

    paper, rng = config.constants == "paper", np.random.default_rng(1)
    share = 0.5 if paper else 0.2
    epsilon = cost / 8 if pure else np.sqrt((2 if paper else 8) * cost / 8)
    most = SEEN if paper else 4 * SEEN  # the paper's form takes whole octaves, four levels each
    if paper:
        assert not np.any(level % 4)
        level = level // 4
    radii = 2.0 ** (-np.arange(most + 1.0) / (1 if paper else 4))
    clipped = np.array([reference.clipped_mass(norms, r) for r in radii])
    bias = np.array([reference.upper_bias(norms, -i) for i in range(SEEN + 1)]) if paper else None
    plain = [r**2 * np.linalg.norm(ball.std(shape, "second", 0.75 * cost, r)) for r in radii]
    allowed = np.array([np.inf, *plain[:-1]]) > 0.25 * WEIGHT / epsilon
    expected = np.zeros(most + 1)
    for lane in range(LANES):
        if paper:
            pair = [reference.predict_paper(shape, r, upper[lane], 0.75 * cost, share, 0.1) for r in radii]
        else:
            pair = [reference.predict_tuned(shape, r, upper[lane], N, 0.75 * cost, share, config.psd) for r in radii]
        here = pair[min(level[lane], most)]
        if level[lane] <= most:
            assert separate[lane] == (here.separate < here.gaussian)
        least = np.array([min(each) for each in pair])
        if paper:
            for _ in range(4):
                expected[reference.choose_paper(rng, bias, least, epsilon)] += 0.25
        else:
            expected += reference.law_tuned(clipped, least, allowed, epsilon, WEIGHT)
    seen = np.bincount(np.minimum(level, most), minlength=most + 1)
    rare = expected < 25
    expected, seen = (np.append(each[~rare], each[rare].sum()) for each in (expected, seen))
    assert len(expected) >= 4, "the law sits on too few levels to be tested"
    # Simulated expectations have a variance of a quarter of the counts' own.
    statistic = np.sum((seen - expected) ** 2 / (np.maximum(expected, 5.0) * (1.25 if paper else 1.0)))
    right["radius"] = bool(statistic < scipy.stats.chi2(len(expected) - 1).ppf(1 - 1e-6))
    return right


CHOICES = {
    "tuned": (AdaptiveConfig(center="zero"), ZCDP(0.02)),
    "tuned, pure": (AdaptiveConfig(center="zero", psd="none"), PureDP(0.6)),
    "paper": (AdaptiveConfig(center="zero", constants="paper", noise="sgw"), ZCDP(0.3)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_law_of_the_choice(name: str) -> None:
    right = law_is_right(*CHOICES[name])
    assert all(right.values()), right


@pytest.mark.parametrize("what", ["trace", "trace, pure", "scores", "queries"])
def test_a_halved_noise_of_the_choice_is_caught(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: half of one noise. Each test above fails on its own, and on that alone."""
    name = {"trace": "tuned", "trace, pure": "tuned, pure", "scores": "tuned"}.get(what, "paper")
    if what.startswith("trace"):
        sound = noise.laplace if what.endswith("pure") else noise.gaussian

        def halved(key: Any, value: Any, **arguments: Any) -> Any:
            found, entry = sound(key, value, **arguments)
            return noise.Measured(0.5 * (found.value + value), found.std), entry

        monkeypatch.setattr(noise, sound.__name__, halved)
    elif what == "scores":
        gumbel = selection.standard_gumbel
        monkeypatch.setattr(selection, "standard_gumbel", lambda *a: 0.5 * gumbel(*a))
    else:
        _halve_laplace(monkeypatch, "queries")
    right = law_is_right(*CHOICES[name])
    caught = "trace" if what.startswith("trace") else "radius"
    assert [name for name, good in right.items() if not good] == [caught]


def _halve_laplace(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Half of AboveThreshold's noise on the threshold, its first draw, or on the queries."""
    laplace = selection.standard_laplace

    def halved(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        first = jnp.arange(shape[0]) == 0
        return jnp.where(first if what == "threshold" else ~first, 0.5, 1.0) * laplace(key, shape, dtype)

    monkeypatch.setattr(selection, "standard_laplace", halved)


@pytest.mark.parametrize("what", [None, "threshold", "queries"])
def test_a_halved_noise_of_above_threshold_is_caught(what: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query t below the threshold: Lap(b) + Lap(2b) exceeds t with probability (4 e^(-t/2b) - e^(-t/b)) / 6."""
    if what is not None:
        _halve_laplace(monkeypatch, what)
    lanes, epsilon, t = 40_000, 0.5, 6.0
    one = lambda key: selection.above_threshold(key, jnp.array([-t]), threshold=0.0, epsilon=epsilon, what="t")[0]  # noqa: E731
    crossed = int(np.sum(np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), lanes))) == 0))
    b = 2 / epsilon
    law = (4 * np.exp(-t / (2 * b)) - np.exp(-t / b)) / 6
    assert (scipy.stats.binomtest(crossed, lanes, law).pvalue > 1e-6) == (what is None)
