"""`ssp_select`: each reconstruction against its formula, the scores, the noise, and what they are worth."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdpcov import ZCDP, Bounds, Rows, SSPSelectConfig, gaussian, ssp_select, status
from jaxdpcov.mechanisms.pace import estimators, select
from jaxdpcov.privacy import ledger, noise
from tests.reference import maxent as reference

pytestmark = pytest.mark.usefixtures("fresh_programs")

D, T = 5, 0.7
LOWER, UPPER = np.array([-3.0, -2.0, 0.0, -4.0, -1.0]), np.array([3.0, 4.0, 2.0, 4.0, 1.5])
LIVE = np.array([True, True, False, True, True])


def measured(seed: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """A noisy matrix with entries of every size against the noise, and its stds, which differ."""
    rng = np.random.default_rng(seed)
    truth = np.array([1.0, 0.5, 1.0, 0.3, 0.8])
    truth = np.diag(truth) + np.where(np.eye(D) > 0, 0.0, 0.25 * np.outer(np.sqrt(truth), np.sqrt(truth)))
    truth[0, 1] = truth[1, 0] = 0.6
    std = scale * (1.0 + rng.random((D, D)))
    std = 0.5 * (std + std.T)
    draws = np.triu(rng.normal(size=(D, D)))
    return truth + std * (draws + np.triu(draws, 1).T), std


def masked(matrix: np.ndarray, fill: float = 0.0) -> np.ndarray:
    return np.where(LIVE[:, None] & LIVE[None, :], matrix, fill)


@functools.cache
def made(seed: int, scale: float) -> tuple[np.ndarray, float]:
    y, std = measured(seed, scale)
    found, gap = _reconstructions(masked(y), masked(std))
    return np.asarray(found), float(gap)


@jax.jit
def _reconstructions(y: Any, std: Any) -> Any:
    return estimators.reconstructions(estimators.Noisy(y, std, jnp.asarray(LIVE)), T)


CELLS = [(0, 0.05), (1, 0.3), (2, 2.0)]


def solved(y: np.ndarray, lam: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The maximum-entropy covariance of the live columns, padded with zeros."""
    on = np.ix_(LIVE, LIVE)
    covariance = np.zeros((D, D))
    covariance[on] = reference.solve(y[on], lam[on], mask[on], T)[0]
    return covariance


@pytest.mark.parametrize("cell", CELLS)
def test_maximum_entropy_of_all_of_those_above_the_noise_and_of_none(cell: tuple[int, float]) -> None:
    (y, std), (found, gap) = measured(*cell), made(*cell)
    lam, eye = 1 / std**2, np.eye(D, dtype=bool)
    masks = {"full": np.ones((D, D), bool), "diagonal": eye}
    masks |= {f"above {c:g}": eye | (np.abs(y) > c * std) for c in (2.0, 2.5, 3.0)}
    for name, mask in masks.items():
        expected = solved(y, lam, mask)
        np.testing.assert_allclose(found[estimators.NAMES.index(name)], expected, atol=1e-6 * expected.max())
    alone = masked(np.diag(reference.isolated(np.diag(y), np.diag(lam), T)))
    np.testing.assert_allclose(found[estimators.NAMES.index("diagonal")], alone, rtol=1e-12)
    assert 0 <= gap < 1e-8 * D


@pytest.mark.parametrize("cell", CELLS)
def test_shrunk(cell: tuple[int, float]) -> None:
    """One more observation of each correlation, 0 with variance tau^2, tau^2 the mean excess of squares."""
    (y, std), (found, _) = measured(*cell), made(*cell)
    lam, variance = 1 / std**2, reference.isolated(np.diag(y), 1 / np.diag(std) ** 2, T)
    pairs = [(j, k) for j in range(D) for k in range(j) if LIVE[j] and LIVE[k]]
    excess = [(y[e] ** 2 - std[e] ** 2) / (variance[e[0]] * variance[e[1]]) for e in pairs]
    tau = max(float(np.mean(excess)), 1e-8)
    new_y, new_lam = y.copy(), lam.copy()
    for j, k in pairs:
        prior = 1 / (tau * variance[j] * variance[k])
        new_lam[j, k] = new_lam[k, j] = lam[j, k] + prior
        new_y[j, k] = new_y[k, j] = y[j, k] * lam[j, k] / (lam[j, k] + prior)
    expected = solved(new_y, new_lam, np.ones((D, D), bool))
    np.testing.assert_allclose(found[estimators.NAMES.index("shrunk")], expected, atol=1e-6 * expected.max())


@pytest.mark.parametrize("cell", CELLS)
def test_mixture(cell: tuple[int, float]) -> None:
    """Posterior moments of each correlation under a mixture of normals about 0, fitted by a loop over pairs."""
    (y, std), (found, _) = measured(*cell), made(*cell)
    variance = reference.isolated(np.diag(y), 1 / np.diag(std) ** 2, T)
    sizes = [1e-8] + [10 ** (-4 + 4 * k / 13) for k in range(14)]
    pairs = [(j, k) for j in range(D) for k in range(j) if LIVE[j] and LIVE[k]]
    unit = {(j, k): math.sqrt(variance[j] * variance[k]) for j, k in pairs}
    weights = np.full(len(sizes), 1 / len(sizes))

    def shares(e: tuple[int, int], weights: np.ndarray) -> np.ndarray:
        density = [scipy.stats.norm.pdf(y[e] / unit[e], 0, math.sqrt(s + (std[e] / unit[e]) ** 2)) for s in sizes]
        return weights * density / np.sum(weights * density)

    for _ in range(100):
        total = 1e-3 + sum(shares(e, weights) for e in pairs)
        total[0] += 1.0
        weights = total / total.sum()
    new_y, new_lam = y.copy(), 1 / std**2
    for e in pairs:
        error, mean, second = (std[e] / unit[e]) ** 2, 0.0, 0.0
        for share, size in zip(shares(e, weights), sizes):
            kept = size / (size + error)
            mean += share * kept * y[e] / unit[e]
            second += share * (kept * error + (kept * y[e] / unit[e]) ** 2)
        spread = max(second - mean**2, 1e-10)
        for at in (e, e[::-1]):
            new_y[at], new_lam[at] = mean * unit[e], 1 / (spread * unit[e] ** 2)
    expected = solved(new_y, new_lam, np.ones((D, D), bool))
    np.testing.assert_allclose(found[estimators.NAMES.index("mixture")], expected, atol=1e-6 * expected.max())


@pytest.mark.parametrize("cell", CELLS)
def test_every_reconstruction_is_positive_definite_and_the_spectral_ones_keep_the_variances(
    cell: tuple[int, float],
) -> None:
    (y, std), (found, _) = measured(*cell), made(*cell)
    variance = masked(np.diag(reference.isolated(np.diag(y), 1 / np.diag(std) ** 2, T)))
    assert len(found) == len(estimators.NAMES)
    for name, matrix in zip(estimators.NAMES, found):
        assert np.linalg.eigvalsh(matrix[np.ix_(LIVE, LIVE)])[0] > 0, name
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        assert not matrix[~LIVE].any() and not matrix[:, ~LIVE].any()
        if name.startswith("spectral"):
            np.testing.assert_allclose(np.diag(matrix), np.diag(variance), rtol=1e-9)


@pytest.mark.parametrize("cell", CELLS)
def test_weights_follow_the_scores(cell: tuple[int, float]) -> None:
    """Fission by a loop: y + a w is reconstructed, y - w/a scores it, in units of the noise; and the average."""
    y, std = measured(*cell)
    key, copies, a = jax.random.key(cell[0]), 3, 0.7
    draws = np.asarray(noise.standard_normal(jax.random.clone(key), (copies, D, D), jnp.float64))
    scores = np.zeros(len(estimators.NAMES))
    for draw in draws:
        w = std * (np.triu(draw) + np.triu(draw, 1).T)
        train, held_out = y + a * w, y - w / a
        candidates, _ = _reconstructions(masked(train), masked(std * math.sqrt(1 + a**2)))
        for i, matrix in enumerate(np.asarray(candidates)):
            for j in range(D):
                for k in range(j + 1):
                    if LIVE[j] and LIVE[k]:
                        miss = (matrix[j, k] - held_out[j, k]) / std[j, k]
                        scores[i] += miss**2 / (1 + a**-2) / copies
    found = _average(key, masked(y), masked(std))
    expected = np.exp(-(scores - scores.min()) / 8.0)
    expected /= expected.sum()
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    assert float(np.sum(found.weights)) == pytest.approx(1.0, abs=1e-12)
    covariance = sum(weight * each for weight, each in zip(np.asarray(found.weights), made(*cell)[0]))
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-6 * covariance.max())


@jax.jit
def _average(key: Any, y: Any, std: Any) -> Any:
    return estimators.average(key, estimators.Noisy(y, std, jnp.asarray(LIVE)), T, 3, False)


def test_best_takes_the_reconstruction_with_the_least_score() -> None:
    """With one that scores best by construction: the truth itself among nonsense."""

    def averaged(noisy: Any, best: bool) -> Any:
        return jax.jit(lambda key: estimators.average(key, noisy, 1.0, 3, best))(jax.random.key(0))

    truth = np.eye(D) + 0.4
    std = np.full((D, D), 0.05)

    def fake(noisy: Any, t: Any) -> Any:
        return jnp.stack([jnp.asarray(3.0 * truth), jnp.asarray(truth), jnp.asarray(np.eye(D))]), jnp.zeros(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "reconstructions", fake)
        noisy = estimators.Noisy(jnp.asarray(truth), jnp.asarray(std), jnp.ones(D, bool))
        for best in (True, False):
            found = averaged(noisy, best)
            np.testing.assert_allclose(found.weights, [0.0, 1.0, 0.0], atol=0.0 if best else 1e-9)
            np.testing.assert_allclose(found.covariance, truth, rtol=1e-9)

    def broken(noisy: Any, t: Any) -> Any:
        return jnp.stack([jnp.asarray(truth), jnp.full((D, D), jnp.nan), jnp.asarray(2 * truth)]), jnp.zeros(())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "reconstructions", broken)
        found = averaged(noisy, False)
        np.testing.assert_allclose(found.covariance, truth, rtol=1e-6)  # what failed is left out


# -- noise -------------------------------------------------------------------------------------------------------------


def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reconstruction, which is post-processing and slow to compile: the copies' draws stand in for the weights."""

    def average(key: Any, noisy: Any, t: Any, copies: int, best: bool) -> Any:
        draws = noise.standard_normal(key, (copies, *noisy.y.shape), noisy.y.dtype)
        return estimators.Averaged(jnp.diag(noisy.live.astype(noisy.y.dtype)), draws, jnp.zeros((), noisy.y.dtype))

    monkeypatch.setattr(estimators, "average", average)
    monkeypatch.setattr(select, "_finish", select._finish.__wrapped__)


@pytest.mark.parametrize(
    "choices",
    [{"center": "zero"}, {"center": "pairs", "noise": "sgw"}, {"center": "zero", "relation": "add_remove"}],
    ids=["replace", "pairs, sgw", "add_remove"],
)
def test_noise_of_the_triangle_and_of_the_copies(choices: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-sided chi-square at 1e-6; 2/3 and 3/2 of the noise are rejected; the copies' noise is another."""
    bare(monkeypatch)
    lanes, rho, n = 400, 0.8, 60
    # All rows at one corner: pairs differ by nothing, and sums are whole numbers.
    z = np.ones(D)
    x = jnp.asarray(np.tile(np.asarray(UPPER), (n, 1)))
    config = jax.tree.map(jnp.asarray, SSPSelectConfig(**choices))
    core = ssp_select.__wrapped__

    def one(key: Any) -> Any:
        release = core(key, Rows.array(x), ZCDP(jnp.asarray(rho)), Bounds.box(LOWER, UPPER), config)
        return release.measured["second_moment"], release.diagnostics["weights"], release.n, release.extra

    moment, draws, count, extra = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), lanes))
    cost = rho * (0.95 if "relation" in choices else 1.0)
    exact, sums = n * np.outer(z, z), np.asarray(count)[:, None, None]
    if choices["center"] == "pairs":
        exact, sums = 0.0 * exact, np.full((lanes, 1, 1), n / 2)
    s = 1 / math.sqrt(2 * cost)
    on, off = {
        "replace": (s * D * math.sqrt(2 / (D + 1)), s * D),
        "pairs": (2 * math.sqrt(2) * D * s,) * 2,
        "add_remove": (s * math.sqrt(D * (D + 1) / 2),) * 2,
    }[choices.get("relation", "pairs" if choices["center"] == "pairs" else "replace")]
    error = np.asarray(moment.value) * sums - exact
    upper = np.triu_indices(D, 1)
    for part, std, claimed in (
        (np.diagonal(error, axis1=1, axis2=2), on, np.diagonal(moment.std * sums, axis1=1, axis2=2)),
        (error[:, *upper], off, np.asarray(moment.std * sums)[:, *upper]),
    ):
        np.testing.assert_allclose(claimed, std, rtol=1e-9)
        low, high = scipy.stats.chi2.ppf([5e-7, 1 - 5e-7], part.size)
        energy = np.sum((part / std) ** 2)
        assert low < energy < high
        for wrong in (2 / 3, 3 / 2):
            assert not low < wrong**2 * energy < high
    np.testing.assert_allclose(extra["measurement_precision"] * np.asarray(moment.std) ** 2, 1.0, rtol=1e-9)
    np.testing.assert_allclose(extra["measurements"], moment.value, rtol=1e-12)
    scaled = (error / np.where(np.eye(D) > 0, on, off))[:, *np.triu_indices(D)].ravel()
    for copy in range(3):
        other = np.asarray(draws)[:, copy][:, *np.triu_indices(D)].ravel()
        assert abs(np.corrcoef(scaled, other)[0, 1]) < 5 / math.sqrt(scaled.size)


# -- releases ----------------------------------------------------------------------------------------------------------


WIDE = 10  # columns in two blocks of five, correlation 0.7, bounds at 4 sd; one program for all that follows


def blocks(seed: int) -> np.ndarray:
    block = np.kron(np.eye(2), np.full((5, 5), 0.7)) + 0.3 * np.eye(WIDE)
    return np.random.default_rng(seed).multivariate_normal(np.full(WIDE, 0.3), block, size=2000)


def released(seed: int, rho: float, live: Any = True, x: Any = None) -> Any:
    """With a private mean; the best reconstruction alone."""
    config, upper = SSPSelectConfig(combine="best"), np.where(np.broadcast_to(live, WIDE), 4.0, -4.0)
    x = blocks(seed) if x is None else x
    return ssp_select(jax.random.key(seed), x, ZCDP(rho), Bounds.box(np.full(WIDE, -4.0), upper), config=config)


SOME = np.arange(WIDE) % 3 != 1


def test_without_noise_it_is_the_covariance_of_the_clipped_rows() -> None:
    for live in (np.ones(WIDE, bool), SOME):
        release = released(0, 1e9, live)
        x = np.clip(blocks(0), -4.0, np.where(live, 4.0, -4.0))
        std = 16.0 * WIDE / 2000 / math.sqrt(2 * 0.5 * 1e9)
        np.testing.assert_allclose(release.covariance, np.cov(x.T, bias=True), atol=8 * std)
        np.testing.assert_allclose(release.mean, x.mean(0), atol=1e-3)
        np.testing.assert_array_equal(release.extra["measured_mask"], np.outer(live, live))


def test_what_every_release_promises() -> None:
    for seed, (rho, live) in enumerate([(1e-6, SOME | True), (0.01, SOME | True), (0.5, SOME), (500.0, SOME | True)]):
        release = released(seed, rho, live)
        on = np.ix_(live, live)
        covariance, precision = np.asarray(release.covariance), np.asarray(release.extra["precision"])
        assert int(release.status) == status.OK and np.array_equal(covariance, covariance.T)
        assert not covariance[~live].any() and not covariance[:, ~live].any()
        values = np.linalg.eigvalsh(covariance[on] / np.outer(release.scale, release.scale)[on])
        assert values[0] > 0
        np.testing.assert_allclose(covariance[on] @ precision[on], np.eye(live.sum()), atol=1e-8)
        assert float(release.diagnostics["smallest_eigenvalue"]) == pytest.approx(values[0], rel=1e-6)
        weights = np.asarray(release.diagnostics["weights"])
        taken = weights[weights > 0]  # several where masks coincide, and with them the reconstructions
        assert np.all(taken == taken[0]) and taken.sum() == pytest.approx(1.0, abs=1e-12)
        exact = sum(float(entry.cost) for entry in ledger.entries(release.ledger))
        assert rho * (1 - 1e-12) <= exact <= rho * (1 + 1e-15) and float(release.spent.rho) <= rho
        # A noisy mean adds its own noise to what is measured.
        mean, moment = release.measured["mean"], release.measured["second_moment"]
        m, v = np.asarray(mean.value), np.asarray(mean.std) ** 2
        y = np.where(np.outer(live, live), np.asarray(moment.value) - np.outer(m, m) + np.diag(v), 0.0)
        np.testing.assert_allclose(release.extra["measurements"], y, rtol=1e-9, atol=1e-9 * np.abs(y).max())
        variance = float(moment.std[0, 2]) ** 2 + m[0] ** 2 * v[2] + m[2] ** 2 * v[0] + v[0] * v[2]
        assert float(release.extra["measurement_precision"][0, 2]) == pytest.approx(1 / variance, rel=1e-9)


@pytest.mark.parametrize(("rho", "ratio"), [(0.01, 0.9), (0.001, 0.55)])
def test_it_is_far_better_than_gaussian_on_a_block_population(rho: float, ratio: float) -> None:
    """Mean Frobenius error over 20 keys: 0.80 and 0.43 times that of `gaussian`, known to a few percent."""
    x = blocks(0)
    truth, errors = np.cov(x.T, bias=True), np.zeros(2)
    for seed in range(20):
        other = gaussian(jax.random.key(seed), x, ZCDP(rho), Bounds.box(np.full(WIDE, -4.0), np.full(WIDE, 4.0)))
        found = released(seed, rho, x=x), other
        errors += [np.linalg.norm(np.asarray(release.covariance) - truth) / 20 for release in found]
    assert errors[0] < ratio * errors[1], errors
