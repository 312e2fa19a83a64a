"""Preconditioning and what is built on it against the slow form, draw by draw; pairs, prior matrices, long rows."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    KLSUConfig,
    Rows,
    learn_gaussian,
    naive_pce,
    pgce,
    ppc,
    private_mean,
    status,
    weak_ppc,
)
from jaxdpcov.mechanisms import _range
from jaxdpcov.privacy import ledger
from tests.mechanisms.coinpress_cases import (
    SIGMA,
    TURN,
    draws,
    fix_draws,
    fix_keys,
    gaussian_rows,
    key,
    symmetric_draws,
)
from tests.mechanisms.klsu_cases import law
from tests.reference import klsu as reference

D, LOWER, UPPER = 3, 0.5, 1000.0
BOUNDS = Bounds.spectrum(LOWER, UPPER, mean_center=np.array([1.0, 0.0, -2.0]), mean_radius=40.0)
CENTER = np.asarray(BOUNDS.mean_center)
#: At the first noise and clipping show in every number; at the second nothing but rounding is left of noise.
RHOS = (50.0, 1e12)


@pytest.fixture(scope="module", autouse=True)
def _fixed_draws(fresh_programs: None) -> Iterator[None]:
    """The same noise in both forms, whatever the public numbers."""
    with pytest.MonkeyPatch.context() as patch:
        fix_draws(patch)
        fix_keys(patch)
        yield


@functools.cache
def _rows(n: int) -> np.ndarray:
    x = gaussian_rows(n)
    x[::50] *= 40.0
    x.flags.writeable = False
    return x


def rows(config: KLSUConfig) -> np.ndarray:
    """Gaussian rows, some of them far beyond every radius; as many as the proven constants need."""
    return _rows(1000 if config.constants == "practical" else 20_000)


def stream(x: np.ndarray) -> Rows:
    """Rows whose pairs are neighbours."""
    return Rows.chunked(lambda: iter([x[:300], x[300:]]), d=x.shape[1], n=len(x))


def close(found: Any, expected: Any, rtol: float = 1e-8) -> None:
    expected = np.asarray(expected)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max(initial=0.0))


def units(x: np.ndarray, config: KLSUConfig) -> np.ndarray:
    """Rows as the slow form has them: about the public centre or as pairs, in units of the lower bound."""
    y = (x - CENTER[: x.shape[1]]) / np.sqrt(LOWER)
    return reference.pairs(y) if config.center == "pairs" else y


def failure(config: KLSUConfig, rounds: int, more: int = 0) -> float:
    return float(config.beta) / (2.0 * (rounds + 1 + more))


PRECONDITIONERS = {
    "typical": (ppc, {"rounds": 6}),
    "proven, sgw, drop": (ppc, {"rounds": 3, "constants": "theory", "noise": "sgw", "long_rows": "drop", "beta": 0.2}),
    "one round": (weak_ppc, {}),
}


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_a_preconditioner_is_the_slow_form(name: str) -> None:
    mechanism, settings = PRECONDITIONERS[name]
    config = KLSUConfig(center="zero", psd="project", **settings)
    x, t = rows(config) + CENTER, config.rounds or 1
    for rho in RHOS:
        made = mechanism(key(), x, ZCDP(rho), BOUNDS, config=config)
        found = reference.precondition(
            units(x, config),
            UPPER / LOWER,
            [rho / t] * t,
            [symmetric_draws(D, config.noise)] * t,
            failure(config, t),
            law(D, config),
            drop=config.long_rows == "drop",
        )
        close(made.diagnostics["kappa"], [each.kappa for each in found])
        close(made.extra["kappa"], found[-1].kappa)
        close(made.extra["preconditioner"] * np.sqrt(LOWER), found[-1].a)
        close(made.extra["ellipsoid"], LOWER * reference.back(found[-1].a, found[-1].kappa * np.eye(D)))
        close(made.covariance, LOWER * reference.back(found[-1].used, reference.floored(found[-1].answer, 0.0)))
        assert [each.kappa for each in found] == sorted((each.kappa for each in found), reverse=True)
        assert found[-1].kappa < 0.65**t * UPPER / LOWER  # and all rounds were used


ESTIMATES = {
    "typical": (pgce, {"rounds": 5, "center": "zero", "precondition_share": 0.3}),
    "proven": (pgce, {"rounds": 3, "center": "zero", "constants": "theory", "psd": "project"}),
    "no rounds": (pgce, {"rounds": 0, "center": "zero", "constants": "theory", "noise": "sgw", "long_rows": "drop"}),
    "naive": (naive_pce, {"center": "zero", "psd": "none", "rounds": 7}),
    "naive, pairs, drop": (naive_pce, {"long_rows": "drop"}),
    "pairs": (pgce, {"rounds": 4, "long_rows": "drop", "noise": "sgw", "psd": "none"}),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_a_covariance_is_the_slow_form(name: str) -> None:
    mechanism, settings = ESTIMATES[name]
    config = KLSUConfig(**settings)
    t = 0 if mechanism is naive_pce else config.rounds or 0
    x = rows(config) + CENTER
    for rho in RHOS:
        given = stream(x) if config.center == "pairs" else x
        made = mechanism(key(), given, ZCDP(rho), BOUNDS, config=config)
        found = reference.pgce(
            units(x, config),
            UPPER / LOWER,
            reference.costs(rho, t, float(config.precondition_share)),
            [symmetric_draws(D, config.noise)] * (t + 1),
            failure(config, t),
            law(D, config),
            drop=config.long_rows == "drop",
        )
        covariance = found.covariance
        if config.psd == "none":
            covariance = reference.back(found.used, found.answer)
        elif config.psd == "floor":
            covariance = reference.floored(covariance, 1.0)
        close(made.covariance, LOWER * covariance)
        close(made.extra["ellipsoid"], LOWER * found.cover, 1e-7)
        close(made.extra["kappa"], found.kappa)
        close(made.measured["second_moment"].value, reference.back(found.used, found.answer))
        gamma = reference.radius(len(units(x, config)), D, failure(config, t), law(D, config))
        close(made.diagnostics["clip_radius"], [gamma] * (t + 1))
        assert found.kappa <= 0.9**t * UPPER / LOWER  # and all rounds were used


def test_one_column_is_the_slow_form() -> None:
    """Sensitivity gamma^2/n in one column, sqrt(2) gamma^2/n beyond."""
    config = KLSUConfig(rounds=3, center="zero", psd="project")
    x = rows(config)[:, 1:2]
    bounds = Bounds.spectrum(LOWER, UPPER)
    made = pgce(key(), x, ZCDP(0.5), bounds, config=config)
    found = reference.pgce(
        x / np.sqrt(LOWER),
        UPPER / LOWER,
        reference.costs(0.5, 3, 0.5),
        [symmetric_draws(1, "goe")] * 4,
        failure(config, 3),
        law(1, config),
    )
    close(made.covariance, LOWER * found.covariance)
    close(made.extra["preconditioner"] * np.sqrt(LOWER), found.used)


def _mean(x: np.ndarray, a: np.ndarray, kappa: float, costs: tuple[float, float], b: float, config: KLSUConfig) -> Any:
    """The mean in data units by the slow form, its clipping radius and its own, in units of the map a/sqrt(kappa)."""
    z = (x - CENTER) @ a.T / np.sqrt(kappa)
    stages = config.bins or ()
    point = reference.heaviest(
        z, stages, 1024.0, [costs[0] / len(stages)] * len(stages), [draws((D, 2 * half + 1)) for half in stages]
    )
    point, reach, radius = reference.located(z, point, costs[1], draws((D,)), b, law(D, config))
    return CENTER + np.linalg.solve(a, point) * np.sqrt(kappa), reach, radius


def _mean_steps(config: KLSUConfig) -> int:
    """Of 2 b each: b for the noise of each stage, the histograms' sample, the ball and the noise of the mean."""
    return math.ceil((len(config.bins or ()) + 3) / 2)


MEANS = {
    "typical": {"rounds": 5, "bins": (60,), "range_share": 0.4, "precondition_share": 0.6},
    "proven, two stages": {"rounds": 2, "bins": (1, 30), "constants": "theory", "beta": 0.2},
    "no rounds": {"rounds": 0, "bins": (80,), "long_rows": "drop"},
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_the_slow_form(name: str) -> None:
    config = KLSUConfig(**MEANS[name])
    x, t = rows(config) + np.array([20.0, -11.0, 4.0]), config.rounds or 0
    for rho in RHOS:
        made = private_mean(key(), stream(x), ZCDP(rho), BOUNDS, config=config)
        share, b = float(config.precondition_share) if t else 0.0, failure(config, t, _mean_steps(config))
        noises, drop = [symmetric_draws(D, "goe")] * t, config.long_rows == "drop"
        found = reference.precondition(
            units(x, config), UPPER / LOWER, [share * rho / max(t, 1)] * t, noises, b, law(D, config), drop
        )
        a, kappa = (found[-1].a, found[-1].kappa) if found else (np.eye(D), UPPER / LOWER)
        rest, part = (1.0 - share) * rho, float(config.range_share)
        mean, reach, radius = _mean(x, a / np.sqrt(LOWER), kappa, (part * rest, (1 - part) * rest), b, config)
        close(made.mean, mean)
        close(made.extra["radius"], radius)
        close(made.diagnostics["mean_clip_radius"], reach)
        close(made.diagnostics["kappa"], [each.kappa for each in found])
        close(made.extra["ellipsoid"], LOWER * reference.back(a, kappa * np.eye(D)))
        assert made.covariance is None and kappa <= 0.9**t * UPPER / LOWER


@pytest.mark.parametrize("constants", ["practical", "theory"])
def test_a_gaussian_is_the_slow_form(constants: str) -> None:
    given = 0.3 if constants == "theory" else None
    config = KLSUConfig(rounds=3, bins=(200,), constants=constants, psd="project", mean_share=given)
    x = rows(config) + np.array([20.0, -11.0, 4.0])
    for rho in RHOS:
        made = learn_gaussian(key(), stream(x), ZCDP(rho), BOUNDS, config=config)
        share = given or 1.0 / (1.0 + 6.0**0.5)
        b, laws = failure(config, 3, _mean_steps(config)), law(D, config)
        costs = reference.costs((1.0 - share) * rho, 3, 0.5)
        found = reference.pgce(units(x, config), UPPER / LOWER, costs, [symmetric_draws(D, "goe")] * 4, b, laws)
        close(made.covariance, LOWER * found.covariance)
        close(made.extra["ellipsoid"], LOWER * found.cover, 1e-7)
        assert found.kappa < 0.9**3 * UPPER / LOWER
        # The histograms see the rotation too: the next map is the inverse root of the cover, in units of the last one.
        values, vectors = np.linalg.eigh(reference.mapped_cover(found, len(x) // 2, b, laws))
        a = (vectors / np.sqrt(values)) @ vectors.T @ found.used / np.sqrt(LOWER)
        mean, reach, radius = _mean(x, a, 1.0, (0.25 * share * rho, 0.75 * share * rho), b, config)
        close(made.mean, mean, 1e-6)
        close(made.extra["radius"], radius)
        close(made.diagnostics["mean_clip_radius"], reach)


def test_the_range_finder_in_stages_is_the_slow_form_and_finds_far_means() -> None:
    """A mean 1.5e6 standard deviations away in three stages, and rows beyond all bins in the end bins."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(500, 2)) + np.array([1.5e6, -3e6])
    bins = (1, 1537, 1537)
    args = np.zeros(2), np.eye(2), np.asarray(2.0), np.asarray(0.05), bins
    found = jax.jit(lambda x: _range.find(key(), Rows.array(x), *args))(x)
    noises = [draws((2, 2 * half + 1)) for half in bins]
    close(found.point, reference.heaviest(x, bins, 1024.0, [2.0 / 3.0] * 3, noises), 1e-12)
    assert abs(found.point[0] - 1.5e6) <= _range.OFFSET
    assert abs(found.point[1]) <= 1.5 * 1024**2 + 2 * 1537 * 1024  # out of reach, and no farther than the bins


def test_long_rows_are_dropped_or_clipped_and_others_are_the_same() -> None:
    def run(how: str, x: np.ndarray) -> Any:
        config = KLSUConfig(center="zero", long_rows=how, psd="none")
        return naive_pce(key(), x, ZCDP(1e12), Bounds.spectrum(1.0, 1.0), config=config).covariance

    x = np.random.default_rng(0).normal(size=(50, 3))
    short = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    close(run("clip", short), run("drop", short), 1e-12)
    longer = short.copy()
    longer[0] = 1e3 * np.eye(3)[0]
    gamma = reference.radius(50, 3, 0.0, reference.Law())
    away = np.zeros((3, 3))
    away[0, 0] = gamma**2 / 50
    close(run("clip", longer) - run("drop", longer), away, 1e-6)
    longer[0] = 0.0
    close(run("drop", longer), longer.T @ longer / 50, 1e-5)


def test_a_matrix_lower_bound_is_whitened() -> None:
    prior = SIGMA / 3.0 + np.eye(3)
    values, vectors = np.linalg.eigh(prior)
    root, inverse = (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
    x = gaussian_rows() + 5.0
    config = KLSUConfig(rounds=2, bins=(60,))
    found = learn_gaussian(key(), x, ZCDP(9.0), Bounds.spectrum(prior, 40.0, mean_radius=60.0), config=config)
    white = learn_gaussian(key(), x @ inverse, ZCDP(9.0), Bounds.spectrum(1.0, 40.0, mean_radius=60.0), config=config)
    close(found.covariance, root @ white.covariance @ root)
    close(found.mean, root @ white.mean)
    close(found.extra["ellipsoid"], root @ white.extra["ellipsoid"] @ root)
    close(found.extra["preconditioner"], white.extra["preconditioner"] @ inverse)
    std = np.sqrt(np.diag(prior))
    close(found.measured["mean"].value * std, root @ white.measured["mean"].value)
    assert np.linalg.eigvalsh(inverse @ found.covariance @ inverse)[0] >= 1 - 1e-9


def test_pairs_do_not_see_the_mean() -> None:
    x, config = gaussian_rows(), KLSUConfig(rounds=2)
    here, there = (pgce(key(), y, ZCDP(2.0), Bounds.spectrum(LOWER, UPPER), config=config) for y in (x, x + 1e6))
    close(here.covariance, there.covariance, 1e-6)
    with pytest.raises(ValueError, match="unweighted rows"):
        pgce(key(), Rows.array(x, weights=np.ones(len(x)), n=len(x)), ZCDP(2.0), BOUNDS, config=config)


def test_the_ledger_of_the_whole() -> None:
    """Names, shares and sensitivities: seven rounds that rho does not divide by, two stages, and within rho."""
    config = KLSUConfig(rounds=7, bins=(1, 30), mean_share=0.3, precondition_share=0.7, range_share=0.1)
    made = learn_gaussian(key(), gaussian_rows(), ZCDP(0.37), BOUNDS, config=config)
    entries = ledger.entries(made.ledger)
    assert [entry.what for entry in entries] == [
        *(f"sum of z z^T, preconditioning round {t} of 7" for t in range(1, 8)),
        "sum of z z^T, after preconditioning",
        "histograms, stage 1 of 2",
        "histograms, stage 2 of 2",
        "sum of z, about the intervals",
    ]
    costs = [0.37 * 0.7 * 0.7 / 7] * 7 + [0.37 * 0.7 * 0.3] + [0.37 * 0.3 * 0.1 / 2] * 2 + [0.37 * 0.3 * 0.9]
    close([float(entry.cost) for entry in entries], costs, 1e-12)
    sizes = [2**0.5] * 8 + [6**0.5] * 2 + [2.0]
    close([float(entry.sensitivity) for entry in entries], sizes, 1e-9)
    assert 0.37 * (1 - 1e-12) <= float(made.spent.rho) <= 0.37
    assert "preconditioning round 7 of 7" in str(made) and int(made.status) & status.TOO_FEW_ROWS


@pytest.mark.x64_off
def test_float32_is_accurate_to_its_digits() -> None:
    """Without noise to speak of, rounds over a range of 1e6 leave the sample's moments."""
    x = (gaussian_rows(2000) + 300.0).astype(np.float32)
    bounds = Bounds.spectrum(1e-2, 1e4, mean_center=np.full(3, 250.0), mean_radius=300.0)
    config = KLSUConfig(rounds=24)
    made = learn_gaussian(key(), x, ZCDP(1e9), bounds, config=config)
    assert made.covariance.dtype == np.float32 and made.mean.dtype == np.float32
    assert float(made.extra["kappa"]) <= 12.0
    turned = TURN.T @ np.asarray(made.covariance, float) @ TURN / np.sqrt(np.outer([1, 20, 400], [1, 20, 400]))
    np.testing.assert_allclose(turned, np.eye(3), atol=0.15)  # a sample of 1,000 pairs
    np.testing.assert_allclose(made.mean, x.mean(0), atol=0.02)


def test_gradients_through_rounds_are_central_differences() -> None:
    """What the contract's few rows do not try: rounds that change the map, directions on both sides of the cut."""
    x = gaussian_rows(300)

    def value(at: Any) -> Any:
        rho, lower, upper, shift, share = at
        config = KLSUConfig(rounds=3, center="zero", precondition_share=share)
        made = pgce(key(), x + shift, ZCDP(rho), Bounds.spectrum(lower, upper), config=config)
        return (made.covariance * np.arange(9.0).reshape(3, 3)).sum() + made.extra["kappa"], made.extra["kappa"]

    start = tuple(np.asarray(number) for number in (50.0, 0.8, 700.0, 0.3, 0.4))
    both = jax.jit(jax.value_and_grad(value, has_aux=True))
    (_, kappa), slopes = both(start)
    assert kappa < 0.5 * 700.0 / 0.8
    for i, slope in enumerate(slopes):
        step = 1e-5 * start[i]
        high, low = (float(both((*start[:i], at, *start[i + 1 :]))[0][0]) for at in (start[i] + step, start[i] - step))
        assert float(slope) == pytest.approx((high - low) / float(2 * step), rel=1e-4) and slope != 0.0
