"""Two-sided tests of the noise in releases, in data units: the documented scale is accepted, others are rejected.

Sums of squares of normal noise are held to the exact chi-square law at an alarm rate of 1e-6, standard deviations of
single entries to five standard errors (6e-7). Each check must also reject 0.7, 1.4, 2/3 and 3/2 times the noise.
Seeds are fixed. The formulas are those of `tests/reference/moments.py`, which uses nothing of the package.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import (
    ZCDP,
    Bounds,
    DiagonalConfig,
    GaussianConfig,
    LaplaceConfig,
    PureDP,
    diagonal,
    gaussian,
    laplace,
)
from jaxdpcov.mechanisms import _steps
from jaxdpcov.privacy import sensitivity
from tests.reference import moments as reference

LANES, D = 4000, 3
WRONG = (0.7, 1.4, 2 / 3, 3 / 2)
BOUNDS = {"ball": ("l2", 2.5, [0.5, 0.0, -1.0]), "box": ("box", [-1.0, 0.0, 2.0], [1.0, 5.0, 2.5])}
X = np.array([[0.2, 1.0, 2.2], [-0.5, 3.0, 2.4], [0.9, 0.5, 2.1], [0.0, 2.0, 2.3]])
SHARE = 0.35


class Setting(NamedTuple):
    mechanism: str
    domain: str
    center: str = "private"
    relation: str = "replace"
    noise: str = "goe"
    pure: bool = False

    @property
    def shape(self) -> reference.Shape:
        return reference.Shape(
            self.domain, D, self.center, self.relation, self.noise, self.pure, self.mechanism == "diagonal"
        )

    @property
    def budget(self) -> float:
        return 2.0 if self.pure else 0.8

    def __str__(self) -> str:
        kind = "laplace" if self.pure else self.noise
        return "-".join((self.mechanism, self.domain, self.center, self.relation, kind))


KINDS = {
    "gaussian": (gaussian, GaussianConfig),
    "laplace": (laplace, LaplaceConfig),
    "diagonal": (diagonal, DiagonalConfig),
}


def _settings() -> list[Setting]:
    """Every domain, relation, centre and noise once or more; the full product for the default mechanism."""
    found = []
    for domain in BOUNDS:
        for center, relation in (("private", "replace"), ("zero", "add_remove"), ("pairs", "replace")):
            found.append(Setting("gaussian", domain, center, relation, "goe"))
        found.append(Setting("gaussian", domain, "zero", "replace", "sgw"))
        found.append(Setting("gaussian", domain, "private", "add_remove", "goe"))
        found.append(Setting("gaussian", domain, "pairs", "replace", "sgw"))
        for center, relation in (("private", "replace"), ("zero", "add_remove"), ("pairs", "replace")):
            found.append(Setting("laplace", domain, center, relation, pure=True))
        for pure in (False, True):
            found.append(Setting("diagonal", domain, "private", "replace", pure=pure))
            found.append(Setting("diagonal", domain, "pairs", "replace", pure=pure))
        found.append(Setting("diagonal", domain, "zero", "add_remove", pure=domain == "ball"))
    return found


SETTINGS = _settings()


class Noise(NamedTuple):
    """Noise of many releases of the same rows, as sums (times n): each (LANES, entries), and its documented std."""

    second: np.ndarray
    second_std: np.ndarray
    first: np.ndarray | None
    first_std: np.ndarray | None
    count: np.ndarray | None
    count_std: float
    covariance: np.ndarray  # (LANES, D, D), as released


def rows_of(setting: Setting) -> np.ndarray:
    """Four rows; two with pairs, so that there is one pairing; 200 where a noisy count must stay above its floor."""
    if setting.center == "pairs":
        return X[:2]
    return np.tile(X, (50, 1)) if setting.relation == "add_remove" else X


def draw(setting: Setting, seed: int = 0, lanes: int = LANES) -> dict[str, np.ndarray]:
    """Releases by key, in data units: covariance about the known centre, mean, n."""
    function, kind = KINDS[setting.mechanism]
    config = kind(
        center=setting.center, relation=setting.relation, noise=setting.noise, psd="none",
        mean_share=SHARE if setting.center == "private" else None,
    )  # fmt: skip
    plain = BOUNDS[setting.domain]
    bounds = Bounds.l2(plain[1], np.array(plain[2])) if plain[0] == "l2" else Bounds.box(*map(np.array, plain[1:]))
    budget = PureDP(setting.budget) if setting.pure else ZCDP(setting.budget)
    x = rows_of(setting)

    def one(key):
        release = function(key, jnp.asarray(x), budget, bounds, config=config)
        second = release.measured["second_moment"].value
        nothing = jnp.zeros(D)
        return {
            "covariance": release.covariance,
            "second": second if second.ndim == 2 else jnp.diag(second),
            "mean": nothing if release.mean is None else release.mean,
            "n": release.n,
        }

    keys = jax.random.split(jax.random.key(seed), lanes)
    return {name: np.asarray(value) for name, value in jax.jit(jax.vmap(one))(keys).items()}


@functools.cache
def noise_of(setting: Setting) -> Noise:
    """Take the exact answer away; what is left is noise."""
    found, plain, x = draw(setting), BOUNDS[setting.domain], rows_of(setting)
    scale = reference.frame(plain, D)[1]
    units = np.outer(scale, scale)
    about, _ = reference.moments(x, plain, "pairs" if setting.center == "pairs" else "zero")
    clipped, center = reference.clip(x, plain), reference.frame(plain, D)[0]
    stds = reference.stds(setting.shape, setting.budget, SHARE)
    m = len(x) // 2 if setting.center == "pairs" else len(x)
    n = found["n"] if setting.relation == "add_remove" else np.full(len(found["n"]), float(m))
    if setting.center == "zero" or setting.center == "pairs":
        second = found["covariance"] * n[:, None, None] - about * m * (np.eye(D) if setting.shape.diagonal else 1.0)
    else:  # the mean's square is in the covariance: the second moment alone is under test here
        second = found["second"] * units * n[:, None, None] - about * m * (np.eye(D) if setting.shape.diagonal else 1.0)
    on = np.arange(D)
    if setting.shape.diagonal:
        assert not np.any(found["covariance"][:, ~np.eye(D, dtype=bool)])
        second, second_std = second[:, on, on], stds["second"] * scale**2
    else:
        assert np.array_equal(found["covariance"], np.swapaxes(found["covariance"], 1, 2))
        upper = np.triu_indices(D)
        second, second_std = second[:, upper[0], upper[1]], (stds["second"] * units)[upper]
    first = first_std = count = None
    if setting.center == "private":
        first = (found["mean"] - center) * n[:, None] - (clipped - center).sum(0)
        first_std = stds["first"] * scale
    if setting.relation == "add_remove":
        count = found["n"] - m
    return Noise(second, second_std, first, first_std, count, float(stds["n"]), found["covariance"])


def scale_is(draws: np.ndarray, std: np.ndarray, pure: bool) -> bool:
    """Is the noise of each column that of the documented std, and are all of them together?"""
    unit = draws / std
    n, m = unit.shape
    if pure:  # |x| / b is exponential
        total = 2 * np.sqrt(2.0) * np.sum(np.abs(unit))
        low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], 2 * n * m)
    else:
        total = np.sum(unit**2)
        low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], n * m)
    # Standard error of a std: sqrt((kurtosis - 1) / (4 n)).
    error = 5 * np.sqrt((5.0 if pure else 2.0) / (4 * n))
    return bool(low < total < high and np.all(np.abs(np.sqrt(np.mean(unit**2, 0)) - 1) < error))


def accepted_alone(draws: np.ndarray, std: np.ndarray, pure: bool) -> bool:
    return scale_is(draws, std, pure) and not any(scale_is(factor * draws, std, pure) for factor in WRONG)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_noise_is_of_the_documented_scale(setting: Setting) -> None:
    found = noise_of(setting)
    assert accepted_alone(found.second, found.second_std, setting.pure)
    entries = [found.second]
    if found.first is not None:
        assert accepted_alone(found.first, found.first_std, setting.pure)
        entries.append(found.first)
    if found.count is not None:
        assert accepted_alone(found.count[:, None], np.array([found.count_std]), setting.pure)
    # No entry borrows another's noise: mean and covariance, diagonal and the rest.
    together = np.concatenate(entries, axis=1)
    correlation = np.corrcoef(together.T)
    assert np.max(np.abs(correlation - np.eye(len(correlation)))) < 5.5 / np.sqrt(LANES)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.center == "private" and s.relation == "replace"], ids=str)
def test_squaring_a_noisy_mean_leaves_no_bias(setting: Setting) -> None:
    """The mean over keys of the covariance is the truth; without the correction it would be off by far."""
    found, plain = noise_of(setting), BOUNDS[setting.domain]
    truth, mean = reference.moments(X, plain, "private")
    scale = reference.frame(plain, D)[1]
    stds = reference.stds(setting.shape, setting.budget, SHARE)
    second, first = stds["second"] / len(X), stds["first"] / len(X)
    variance = reference.covariance_variance(
        setting.shape, second, first, (mean - reference.frame(plain, D)[0]) / scale
    )
    if setting.shape.diagonal:
        truth, error = np.diag(truth), np.sqrt(variance / LANES) * scale**2
        average, spread = (f(found.covariance[:, np.arange(D), np.arange(D)], axis=0) for f in (np.mean, np.std))
        diagonal, bias = error, first**2 * scale**2
    else:
        error = np.sqrt(variance / LANES) * np.outer(scale, scale)
        average, spread = np.mean(found.covariance, axis=0), np.std(found.covariance, axis=0)
        diagonal, bias = np.diag(error), first**2 * scale**2
    assert np.all(np.abs(average - truth) < 5 * error)
    assert np.all(bias > 10 * diagonal)  # the planted fault, the correction forgotten, would be seen
    if not setting.pure:  # the spread is the predicted one too, noise in the square of the mean included
        np.testing.assert_allclose(spread / (error * np.sqrt(LANES)), 1.0, atol=0.08)


MATRIX = [("goe", "l2", 40 * 41 / 2), ("sgw", "l2", 40.0**2), ("goe", "box", None)]


@pytest.mark.parametrize(("noise", "domain", "energy"), MATRIX, ids=[f"{n}-{d}" for n, d, _ in MATRIX])
def test_energies_at_forty_columns(noise: str, domain: str, energy: float | None) -> None:
    """2,000 releases at d = 40: s^2 d(d+1)/2 for GOE, s^2 d^2 for SGW, and the two stds of box noise, within 2%."""
    d, n, rho, lanes = 40, 5, 0.3, 2000
    bounds = Bounds.l2(2.0) if domain == "l2" else Bounds.box(-2.0, 2.0)
    config = GaussianConfig(center="zero", psd="none", noise=noise)

    def one(key):
        return gaussian(key, jnp.zeros((n, d)), ZCDP(rho), bounds, config=config).covariance

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), lanes)))
    s = np.sqrt(2) * 4.0 / n / np.sqrt(2 * rho)  # Frobenius sensitivity sqrt(2) r^2 / n
    on = found[:, np.arange(d), np.arange(d)]
    rows, columns = np.triu_indices(d, 1)
    beside = found[:, rows, columns]
    if domain == "box":
        off = d * 4.0 / n / np.sqrt(2 * rho)
        expected = (off * np.sqrt(2 / (d + 1)), off)
    else:
        expected = (s, s * (np.sqrt(0.5) if noise == "goe" else 1.0))
        mean_energy = np.mean(np.sum(found**2, axis=(1, 2)))
        assert mean_energy == pytest.approx(s**2 * energy, rel=0.02)
        for factor in WRONG:
            assert factor**2 * mean_energy != pytest.approx(s**2 * energy, rel=0.02)
    for part, std in zip((on, beside), expected):
        assert np.std(part) == pytest.approx(std, rel=0.02)
        assert accepted_alone(part.reshape(-1, 1), np.array([std]), False)


def test_documented_variances_at_one_row() -> None:
    """zeros(1, 3): exactly symmetric, on and off the diagonal the documented variances, no noise drawn twice."""
    config = GaussianConfig(center="zero", psd="none")

    def one(key):
        return gaussian(key, jnp.zeros((1, 3)), ZCDP(0.5), Bounds.l2(1.0), config=config).covariance

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), LANES)))
    assert np.array_equal(found, np.swapaxes(found, 1, 2))
    upper = np.triu_indices(3)
    std = np.where(upper[0] == upper[1], np.sqrt(2), 1.0)
    assert accepted_alone(found[:, upper[0], upper[1]], std, False)


@pytest.mark.parametrize("factor", WRONG)
def test_a_wrong_sensitivity_in_the_code_is_rejected(factor: float, monkeypatch) -> None:
    """The fault planted in the package, not in the draws: the whole test would see it."""
    setting = Setting("gaussian", "ball", "zero")
    right = sensitivity.second_moment
    monkeypatch.setattr(sensitivity, "second_moment", lambda *a, **k: (t := right(*a, **k))._replace(l2=factor * t.l2))
    jax.clear_caches()
    try:
        found = draw(setting, lanes=500)
    finally:
        monkeypatch.undo()
        jax.clear_caches()
    plain = BOUNDS["ball"]
    about, _ = reference.moments(X, plain, "zero")
    upper = np.triu_indices(D)
    stds = (reference.stds(setting.shape, setting.budget)["second"] * 2.5**2)[upper]
    noise = ((found["covariance"] - about) * len(X))[:, upper[0], upper[1]]
    assert not scale_is(noise, stds, False) and scale_is(noise / factor, stds, False)
    assert _steps.sensitivity.second_moment is right


# Bounds at one end of the interval: the declared change is the largest over all pairs of rows.

SWEEP = [(0.0, 3.0), (-3.0, 0.0), (-2.0, 3.0), (-3.0, 2.0), (1.0, 4.0), (-4.0, -1.0), (0.0, 100.0), (-0.5, 0.5)]


@pytest.mark.parametrize(("low", "high"), SWEEP)
def test_scales_fit_a_brute_force_search_over_rows(low: float, high: float) -> None:
    for bounds, ends in (
        (Bounds.box(low, high), (low, high)),
        (Bounds.l2((high - low) / 2, (low + high) / 2), (low, high)),
    ):
        release = _at(bounds)
        change = reference.grid_change(*ends)  # of (x - middle)^2, one row of n = 4
        measured = release.measured["second_moment"]
        std = float(np.asarray(measured.std).ravel()[0]) * float(release.scale[0]) ** 2
        assert std == pytest.approx(change / 4 / np.sqrt(2 * 0.5), rel=1e-9)
        mean_std = float(_at(bounds, "private").measured["mean"].std[0] * release.scale[0])
        share = float(_at(bounds, "private").diagnostics["mean_share"])
        assert mean_std == pytest.approx((high - low) / 4 / np.sqrt(2 * 0.5 * share), rel=1e-9)


def _at(bounds, center: str = "zero"):
    config = GaussianConfig(center=center, psd="none")
    return gaussian(jax.random.key(0), np.ones((4, 1)), ZCDP(0.5), bounds, config=config)


def test_no_end_of_an_interval_is_noiseless() -> None:
    """x = 1..50 within (0, 100) at epsilon = 1e-3: noise of the documented scale, not of a range that collapsed."""
    x = np.arange(1.0, 51.0)[:, None]
    release = laplace(jax.random.key(0), x, PureDP(1e-3), Bounds.box(0.0, 100.0), config=LaplaceConfig(psd="none"))
    share = float(release.diagnostics["mean_share"])
    std = float(release.measured["mean"].std[0]) * 50.0
    assert std == pytest.approx(np.sqrt(2) * 100.0 / (1e-3 * share) / 50, rel=1e-9) and std > 1000
    second = float(release.measured["second_moment"].std[0, 0]) * 50.0**2
    assert second == pytest.approx(np.sqrt(2) * 50.0**2 / (1e-3 * (1 - share)) / 50, rel=1e-9)
    assert abs(float(release.mean[0]) - 25.5) > 1.0
