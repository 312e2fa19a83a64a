"""The Gaussian, Laplace and diagonal mechanisms: what their options do, against plain NumPy and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    ApproxDP,
    Bounds,
    DiagonalConfig,
    GaussianConfig,
    LaplaceConfig,
    PureDP,
    Rows,
    diagonal,
    gaussian,
    laplace,
    linalg,
    status,
)
from jaxdpcov.privacy import accounting, ledger
from tests import contract_cases as cases
from tests.reference import moments as reference
from tests.reference import separate

PLENTY = ZCDP(1e12)
BOX = Bounds.box(np.array([-1.0, 0.0, 2.0]), np.array([1.0, 5.0, 2.5]))


def rows(n: int = 12, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def key(i: int = 0):
    return jax.random.key(100 + i)


# Centring.


@pytest.mark.parametrize("bounds", [Bounds.l2(1.5, np.array([0.2, 0.0, -0.1])), BOX], ids=["l2", "box"])
def test_pairs_are_one_of_all_pairings_and_a_stream_pairs_neighbours(bounds) -> None:
    """Six rows have fifteen pairings: the noise-free release is that of one of them; keys change which."""
    x, plain = np.array([0.0, 2.5, 2.25]) + 0.2 * rows(6), cases.as_reference(bounds)
    if plain[0] == "l2":
        x = rows(6)
    limits = [reference.moments(x, plain, "pairs", pairs=p)[0] for p in reference.pairings(tuple(range(6)))]
    assert len(limits) == 15
    config = GaussianConfig(center="pairs", psd="none")
    chosen = set()
    for i in range(8):
        release = gaussian(key(i), x, PLENTY, bounds, config=config)
        errors = [np.linalg.norm(np.asarray(release.covariance) - limit) for limit in limits]
        assert min(errors) < 1e-4 and sorted(errors)[1] > 1e-3
        chosen.add(int(np.argmin(errors)))
        assert release.mean is None and "mean" not in release.measured and int(release.n) == 6
    assert len(chosen) > 2
    stream = Rows.chunked(lambda: iter([x[:1], x[1:5], x[5:]]), d=3, block_rows=2)
    release = gaussian(key(), stream, PLENTY, bounds, config=config)
    np.testing.assert_allclose(release.covariance, reference.moments(x, plain, "pairs")[0], atol=1e-4)


def test_pairs_of_an_odd_number_of_rows_divide_by_the_number_of_pairs() -> None:
    x = np.tile([[1.0, 0.0], [-1.0, 0.0]], (3, 1))[:5]
    stream = Rows.chunked(lambda: iter([x]), d=2, block_rows=2)
    release = gaussian(key(), stream, PLENTY, Bounds.l2(1.0), config=GaussianConfig(center="pairs", psd="none"))
    np.testing.assert_allclose(release.covariance, [[2.0, 0.0], [0.0, 0.0]], atol=1e-5)


def test_pairs_need_two_rows() -> None:
    """One row: NaN and a status from the public n, in both homes; nothing raises, nothing divides by zero."""
    config = GaussianConfig(center="pairs")
    for one in (np.ones((1, 2)), Rows.chunked(lambda: iter([np.ones((1, 2))]), d=2, block_rows=2)):
        release = gaussian(key(), one, ZCDP(0.5), Bounds.l2(1.0), config=config)
        assert np.all(np.isnan(release.covariance)) and int(release.status) == status.INVALID_BOUNDS


def test_pairs_under_add_remove_are_refused() -> None:
    for kind in (GaussianConfig, LaplaceConfig, DiagonalConfig):
        with pytest.raises(ValueError, match="center='pairs' needs relation='replace'"):
            kind(center="pairs", relation="add_remove")


def test_a_covariance_is_about_the_mean_and_a_second_moment_about_the_centre() -> None:
    """Normalised by n, unlike pandas and numpy.cov, which divide by n - 1."""
    x = 0.1 * rows(50) + 0.4
    private = gaussian(key(), x, PLENTY, Bounds.l2(3.0, 0.1), config=GaussianConfig(psd="none"))
    np.testing.assert_allclose(private.covariance, np.cov(x.T, bias=True), atol=1e-5)
    np.testing.assert_allclose(private.mean, x.mean(0), atol=1e-5)
    zero = gaussian(key(), x, PLENTY, Bounds.l2(3.0, 0.1), config=GaussianConfig(center="zero", psd="none"))
    np.testing.assert_allclose(zero.covariance, (x - 0.1).T @ (x - 0.1) / 50, atol=1e-5)
    assert zero.mean is None


@pytest.mark.parametrize("relation", ["replace", "add_remove"])
@pytest.mark.parametrize("bounds", [Bounds.l2(1.0), Bounds.box(-1.0, 1.0)], ids=["l2", "box"])
@pytest.mark.parametrize("name", ["gaussian", "laplace", "diagonal", "diagonal-laplace"])
def test_the_default_share_of_the_mean_minimises_the_predicted_error(name, bounds, relation) -> None:
    """Against a search over a grid of shares, from public numbers alone."""
    function, pure = {"laplace": laplace, "gaussian": gaussian}.get(name, diagonal), name.endswith("laplace")
    config = {laplace: LaplaceConfig, gaussian: GaussianConfig, diagonal: DiagonalConfig}[function](relation=relation)
    domain = "box" if hasattr(bounds, "lower") else "ball"
    shape = reference.Shape(domain, 3, "private", relation, "goe", pure, name.startswith("diagonal"))
    shares = np.linspace(0.01, 0.9, 179)

    @jax.jit
    def chosen(cost, n):  # only what the share needs is compiled
        budget = cases.with_amount(PureDP(1.0) if pure else ZCDP(1.0), cost)
        release = function(key(), Rows.array(jnp.zeros((40, 3)), n=n), budget, bounds, config=config)
        return release.diagnostics["mean_share"], release.n

    for cost, n in ((0.05, 40.0), (1.0, 40.0), (1.0, 4000.0)):
        share, noisy = (float(number) for number in chosen(cost, n))
        error = lambda at, cost=cost, noisy=noisy: reference.predicted_error(shape, cost, noisy, at)  # noqa: E731
        assert error(share) <= min(map(error, shares)) * (1 + 1e-4)
        assert relation == "add_remove" or noisy == n


# Columns that are constant, and bounds.


def test_constant_columns_are_known_and_cost_nothing() -> None:
    """lower = upper: no noise, no division by zero, not counted in d: the others' noise is that of fewer columns."""
    x = rows()
    wide = Bounds.box(np.array([-1.0, 7.0, -2.0]), np.array([1.0, 7.0, 2.0]))
    narrow = Bounds.box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]))
    for config in (GaussianConfig(psd="floor"), GaussianConfig(relation="add_remove")):
        full = gaussian(key(), x, ZCDP(0.5), wide, config=config)
        part = gaussian(key(), x[:, [0, 2]], ZCDP(0.5), narrow, config=config)
        assert not np.any(np.asarray(full.covariance)[1]) and float(full.mean[1]) == 7.0
        keep = np.ix_([0, 2], [0, 2])
        if config.relation == "replace":
            np.testing.assert_allclose(
                np.asarray(full.measured["second_moment"].std)[keep], part.measured["second_moment"].std, rtol=1e-12
            )
            np.testing.assert_allclose(
                np.asarray(full.measured["mean"].std)[[0, 2]], part.measured["mean"].std, rtol=1e-12
            )
        for entry, other in zip(ledger.entries(full.ledger), ledger.entries(part.ledger)):
            assert float(entry.sensitivity) == pytest.approx(float(other.sensitivity), rel=1e-12)
    # A row that leaves the constant is pulled back; NaN in it moves the whole row.
    still = gaussian(key(), x * [1, 1e9, 1], ZCDP(0.5), wide, config=config)
    np.testing.assert_array_equal(still.covariance, full.covariance)


def test_all_columns_constant() -> None:
    for mechanism, budget in ((gaussian, ZCDP(0.5)), (laplace, PureDP(1.0)), (diagonal, ZCDP(0.5))):
        release = mechanism(key(), rows(4, 2), budget, Bounds.box(3.0, 3.0))
        assert not np.any(release.covariance) and np.array_equal(release.mean, [3.0, 3.0])


def test_a_singular_data_set_gives_a_zero_covariance_and_finite_attributes() -> None:
    release = gaussian(key(), np.zeros((3, 2)), PLENTY, Bounds.l2(1.0), config=GaussianConfig(center="zero"))
    np.testing.assert_allclose(release.covariance, 0.0, atol=1e-5)
    assert np.all(np.isfinite(release.std)) and np.all(np.isfinite(release.correlation))
    assert np.array_equal(np.diagonal(release.correlation), [1.0, 1.0])


def test_scalar_bounds_are_vectors_of_one_number() -> None:
    """One number and a vector of it say the same, and numbers and arrays of them draw the same noise."""
    plain = gaussian(key(), rows(), ZCDP(0.5), Bounds.box(-1.0, 2.0))
    arrays = gaussian(key(), rows(), ZCDP(np.float64(0.5)), Bounds.box(jnp.asarray(-1.0), np.asarray(2.0)))
    np.testing.assert_array_equal(plain.covariance, arrays.covariance)
    whole = gaussian(key(), rows(), ZCDP(1), Bounds.box(-1, 2))
    np.testing.assert_array_equal(
        whole.covariance, gaussian(key(), rows(), ZCDP(1.0), Bounds.box(-1.0, 2.0)).covariance
    )
    np.testing.assert_allclose(
        gaussian(key(), rows(), PLENTY, Bounds.box(np.full(3, -1.0), 2.0)).covariance,
        gaussian(key(), rows(), PLENTY, Bounds.box(-1.0, np.full(3, 2.0))).covariance,
        atol=1e-4,
    )


# Post-processing.


def test_projection_floor_ceiling_and_none() -> None:
    x, bounds, budget = rows(), Bounds.l2(1.0), ZCDP(0.02)
    found = {}
    for psd in ("none", "project", "floor"):
        release = gaussian(key(), x, budget, bounds, config=GaussianConfig(center="zero", psd=psd))
        found[psd] = np.linalg.eigvalsh(release.covariance)
        assert int(release.status) & status.NOT_PSD
        assert found[psd][-1] <= 1.0 + 1e-12 or psd == "none"  # no covariance in the unit ball is larger
    assert found["none"][0] < -0.1 and found["project"][0] >= -1e-12
    release = gaussian(key(), x, ZCDP(20.0), bounds, config=GaussianConfig(center="zero", psd="floor"))
    assert np.linalg.eigvalsh(release.covariance)[0] > 0.01  # invertible, at the noise level
    calm = gaussian(key(), rows(1000), ZCDP(100.0), bounds, config=GaussianConfig(center="zero", psd="none"))
    assert int(calm.status) == status.OK


def test_projection_is_the_nearest_psd_matrix_in_frame_units() -> None:
    """What is released is what NumPy makes of the published noisy statistics: post-processing and nothing else."""
    for bounds in (Bounds.l2(2.0), BOX):
        release = gaussian(key(), rows(), ZCDP(0.5), bounds)
        second, mean = release.measured["second_moment"], release.measured["mean"]
        z = np.asarray(second.value) - np.outer(mean.value, mean.value) + np.diag(np.asarray(mean.std) ** 2)
        z = reference.psd(z, 1.0 if isinstance(bounds, type(Bounds.l2(1.0))) else np.inf)
        scale = np.asarray(release.scale)
        np.testing.assert_allclose(release.covariance, z * np.outer(scale, scale), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(release.mean, release.center + release.scale * mean.value, rtol=1e-12)


def test_denoising_is_the_stated_function_and_errs_less() -> None:
    """Eigenvalues as NumPy makes them of the published statistics; half the error of projection at 30 flat columns."""
    x = np.random.default_rng(0).normal(size=(400, 30)) / 30**0.5
    truth = np.cov(x.T, bias=True)
    box = Bounds.box(np.where(np.arange(30) == 4, 1.0, -1.0), 1.0)
    for bounds in (Bounds.l2(2.0), box):
        live = np.ones(30, bool) if bounds is not box else np.arange(30) != 4
        found = {
            psd: gaussian(key(), x, ZCDP(0.05), bounds, config=GaussianConfig(psd=psd))
            for psd in ("denoise", "project")
        }
        release = found["denoise"]
        second, mean = release.measured["second_moment"], release.measured["mean"]
        z = np.asarray(second.value) - np.outer(mean.value, mean.value) + np.diag(np.asarray(mean.std) ** 2)
        z, scale = z[np.ix_(live, live)], np.asarray(release.scale)[live]
        z = separate.gaussian(z, float(second.std[0, 1]), 1.0 if bounds is not box else np.inf, "denoise")
        here = np.ix_(live, live)
        np.testing.assert_allclose(release.covariance[here], z * np.outer(scale, scale), rtol=1e-9, atol=1e-12)
        assert np.all(np.asarray(release.covariance)[~live] == 0) and int(release.status) & status.NOT_PSD
        errors = {psd: np.linalg.norm(np.asarray(each.covariance)[here] - truth[here]) for psd, each in found.items()}
        assert errors["denoise"] < 0.5 * errors["project"]
    with pytest.raises(ValueError, match="psd='denoise' needs shrink=False"):
        GaussianConfig(psd="denoise", shrink=True)


def test_shrinkage_moves_off_diagonals_toward_zero_by_the_known_noise() -> None:
    x, settings = rows(30, 5), {"center": "zero", "psd": "none"}
    shrunk = gaussian(key(), x, ZCDP(0.05), Bounds.l2(1.0), config=GaussianConfig(shrink=True, **settings))
    measured = shrunk.measured["second_moment"]
    expected, weight = linalg.shrink_to_diagonal(measured.value, measured.std)
    np.testing.assert_allclose(shrunk.covariance, expected, rtol=1e-12)
    assert 0.05 < float(weight) <= 1.0
    assert np.array_equal(np.diagonal(shrunk.covariance), np.diagonal(measured.value))
    clear = gaussian(key(), x, PLENTY, Bounds.l2(1.0), config=GaussianConfig(shrink=True, **settings))
    np.testing.assert_allclose(clear.covariance, reference.moments(x, ("l2", 1.0, None), "zero")[0], atol=1e-4)


def test_shrinkage_helps_where_columns_are_independent() -> None:
    truth = np.eye(8) / 3
    x = np.random.default_rng(0).uniform(-1, 1, (2000, 8))
    errors = {}
    for shrink in (False, True):
        config = GaussianConfig(center="zero", psd="none", shrink=shrink)
        one = lambda k, c=config: gaussian(k, jnp.asarray(x), ZCDP(1e-3), Bounds.box(-1.0, 1.0), config=c).covariance  # noqa: E731
        found = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 50))
        errors[shrink] = float(np.mean(np.linalg.norm(np.asarray(found) - truth, axis=(1, 2))))
    assert errors[True] < 0.8 * errors[False]


def test_diagonal_releases_nothing_beside_the_diagonal() -> None:
    x = rows(200) + rows(200)[:, :1]
    for budget in (ZCDP(0.5), PureDP(1.0)):
        release = diagonal(key(), x, budget, BOX)
        assert not np.any(np.asarray(release.covariance)[~np.eye(3, dtype=bool)])
        assert release.measured["second_moment"].value.shape == (3,)
        kinds = {entry.kind for entry in ledger.entries(release.ledger)}
        assert kinds == ({"gaussian"} if isinstance(budget, ZCDP) else {"laplace"})
    # It pays off: a diagonal measured alone has less noise than one measured with the rest.
    alone = diagonal(key(), x, ZCDP(0.5), Bounds.l2(1.0), config=DiagonalConfig(center="zero"))
    whole = laplace(key(), x, PureDP(1.0), Bounds.l2(1.0), config=LaplaceConfig(center="zero"))
    pure = diagonal(key(), x, PureDP(1.0), Bounds.l2(1.0), config=DiagonalConfig(center="zero"))
    assert float(pure.measured["second_moment"].std[0]) < float(whole.measured["second_moment"].std[0, 0])
    assert float(alone.measured["second_moment"].std[0]) == pytest.approx(np.sqrt(2) / 200, rel=1e-9)


# Budgets and relations.


def test_approximate_dp_is_converted_and_rounded_down() -> None:
    release = gaussian(key(), rows(), ApproxDP(1.0, 1e-6), Bounds.l2(1.0))
    spent = float(release.spent.rho)
    assert spent <= accounting.rho_of_epsilon(1.0, 1e-6)
    assert accounting.epsilon_of_rho(spent, 1e-6) == pytest.approx(1.0, rel=1e-9)
    assert accounting.epsilon_of_rho(spent, 1e-6) <= 1.0
    for mechanism in (laplace,):
        with pytest.raises(TypeError, match="laplace is a pure-DP mechanism: give PureDP"):
            mechanism(key(), rows(), ZCDP(0.5), Bounds.l2(1.0))
    assert float(laplace(key(), rows(), PureDP.from_zcdp(0.5), Bounds.l2(1.0)).spent.epsilon) == pytest.approx(1.0)


def test_what_is_released_together_is_accounted_together() -> None:
    """Mean, covariance and count are three entries, and the release spends their sum."""
    config = GaussianConfig(relation="add_remove", mean_share=0.25, n_share=0.2)
    release = gaussian(key(), rows(), ZCDP(1.0), Bounds.l2(1.0), config=config)
    parts = {entry.what: float(entry.cost) for entry in ledger.entries(release.ledger)}
    assert parts == pytest.approx({"number of rows": 0.2, "sum of z": 0.2, "sum of z z^T": 0.6}, rel=1e-12)
    assert float(release.spent.rho) == pytest.approx(1.0, rel=1e-12)


def test_add_remove_hides_the_number_of_rows() -> None:
    """n is noisy, floored at 1, and the same noisy n divides everything."""
    config = GaussianConfig(relation="add_remove", psd="none", center="zero")
    runs = jax.vmap(lambda k: gaussian(k, jnp.zeros((2, 2)), ZCDP(0.01), Bounds.l2(1.0), config=config))(
        jax.random.split(jax.random.key(0), 64)
    )
    n, floored = np.asarray(runs.n), np.asarray(runs.status) & status.COUNT_FLOORED
    assert len(np.unique(n)) > 10 and n.min() == 1.0 and not np.any(n == 2.0)
    noisy = np.asarray(runs.measured["n"].value)
    assert np.array_equal(floored > 0, noisy < 1.0) and np.array_equal(n, np.maximum(noisy, 1.0))
    assert "noisy n" in str(gaussian(key(), rows(), ZCDP(0.5), Bounds.l2(1.0), config=config))


def test_add_remove_needs_no_public_number_of_rows_anywhere() -> None:
    """Two neighbours, one a row longer: every public leaf of the releases is the same."""
    config = GaussianConfig(relation="add_remove", mean_share=0.3)
    x = rows()
    short, full = (gaussian(key(), each, ZCDP(0.5), Bounds.l2(1.0), config=config) for each in (x[:-1], x))
    cases.assert_same(short.ledger, full.ledger, rtol=0.0)
    cases.assert_same(short.diagnostics, full.diagnostics, rtol=0.0)
    assert jax.tree_util.tree_structure(short) == jax.tree_util.tree_structure(full)


def test_weighted_rows_divide_by_persons() -> None:
    """Two rows of one person at half weight are one contribution: the sums are convex, and n counts persons."""
    x = 0.2 * rows(8)
    weights = np.full(8, 0.5)
    release = gaussian(key(), Rows.array(x, weights, 4), PLENTY, Bounds.l2(1.0), config=GaussianConfig(psd="none"))
    np.testing.assert_allclose(release.mean, x.mean(0), atol=1e-5)
    np.testing.assert_allclose(release.covariance, np.cov(x.T, bias=True), atol=1e-5)
    assert float(release.n) == 4


# Config.


@pytest.mark.parametrize("kind", [GaussianConfig, LaplaceConfig, DiagonalConfig])
def test_configs_are_checked(kind) -> None:
    for field, bad in (
        ("relation", "replace_one"), ("center", "mean"), ("noise", "wishart"), ("psd", True), ("shrink", 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{field} must be one of"):
            kind(**{field: bad})
    for field in ("mean_share", "n_share"):
        for bad in (0.0, 1.0, -0.1, float("nan")):
            with pytest.raises(ValueError, match=field):
                kind(**{field: bad})
        with pytest.raises(TypeError, match=field):
            kind(**{field: "half"})


def test_correlations_of_a_release() -> None:
    x = rows(500)
    x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    release = gaussian(key(), x, PLENTY, Bounds.l2(50.0))
    np.testing.assert_allclose(release.correlation, np.corrcoef(x.T), atol=1e-3)
    np.testing.assert_allclose(release.std, x.std(0), atol=1e-3)
