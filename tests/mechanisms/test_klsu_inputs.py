"""Preconditioning at its edges: what is settled on the host, too few rows, odd rows and bounds, wrong arguments."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    ApproxDP,
    Bounds,
    KLSUConfig,
    PureDP,
    Rows,
    learn_gaussian,
    load,
    naive_pce,
    pgce,
    ppc,
    private_mean,
    status,
    weak_ppc,
)
from jaxdpcov.mechanisms import _range
from jaxdpcov.mechanisms.klsu import config as settings
from jaxdpcov.privacy import ledger
from tests.mechanisms.coinpress_cases import gaussian_rows, key
from tests.mechanisms.klsu_cases import MECHANISMS, assert_sound, law, leaves
from tests.reference import klsu as reference

FEW, MISSED = status.TOO_FEW_ROWS, "too few rows for the accuracy theorem of this method"
NARROW = Bounds.spectrum(1.0, 12.0, mean_radius=30.0)


def counted(n: float, d: int = 3) -> Rows:
    """A few rows that stand for n."""
    return Rows.array(jnp.zeros((2, d)), n=n)


def chosen(n: float, rho: float, condition: float, share: float = 1.0, **given: Any) -> int:
    config = settings.settle_rounds(
        counted(n), share, ZCDP(rho), Bounds.spectrum(0.5, 0.5 * condition), KLSUConfig(**given)
    )
    assert config.rounds is not None
    return config.rounds


# The number of rounds.


def _kappas(n: int, rho: float, condition: float, rounds: int, config: KLSUConfig) -> float:
    """What that many rounds promise, by the slow form."""
    d, laws = 3, law(3, config)
    m, b = n // 2 if config.center == "pairs" else n, float(config.beta) / (2.0 * (rounds + 1))
    kappa, gamma = condition, reference.radius(m, d, b, laws)
    eps = reference.accuracy(m, d, b, 2**0.5 * gamma**2 / m / np.sqrt(2.0 * rho / rounds), laws)
    for _ in range(rounds):
        h = reference.loss(eps, kappa, laws.proven)
        following = kappa if h is None else kappa * (0.5 + eps) / (1.0 - h)
        kappa = min(kappa, following)
    return kappa


@pytest.mark.parametrize(
    ("constants", "center", "kind"),
    [("practical", "pairs", "goe"), ("theory", "zero", "sgw"), ("theory", "pairs", "goe")],
)
def test_the_default_rounds_are_the_fewest_that_promise_kappa_final(constants: str, center: str, kind: str) -> None:
    config = KLSUConfig(constants=constants, center=center, noise=kind)
    for condition in (13.0, 1e3, 1e6):
        most = int(np.ceil(np.log(condition / 12.0) / np.log(1.0 / 0.7)))
        for n in (500, 30_000, 10**8):
            t = chosen(n, 2.0, condition, constants=constants, center=center, noise=kind)
            assert t <= most
            promised = [_kappas(n, 2.0, condition, s, config) for s in range(1, most + 1)]
            enough = [s for s, kappa in enumerate(promised, 1) if kappa <= 12.0]
            best = min([condition, *promised])
            assert t == (enough[0] if enough else (0 if best == condition else promised.index(best) + 1))
        assert enough  # at the largest n
    assert chosen(10**8, 2.0, 1e6, share=0.5, constants=constants) >= chosen(10**8, 2.0, 1e6, constants=constants)


def test_the_default_rounds_change_where_the_promise_does() -> None:
    """To one row: the smallest n at which one round is enough, by the slow form."""
    config = KLSUConfig(constants="theory", center="zero")
    few, enough = 500, 10**7
    while enough - few > 1:
        n = (few + enough) // 2
        few, enough = (few, n) if _kappas(n, 2.0, 20.0, 1, config) <= 12.0 else (n, enough)
    assert chosen(enough, 2.0, 20.0, constants="theory", center="zero") == 1
    assert chosen(few, 2.0, 20.0, constants="theory", center="zero") == 2


def test_no_rounds_where_the_bounds_are_narrow_and_more_under_a_traced_budget() -> None:
    for condition in (1.0, 2.0, 12.0):
        assert chosen(10**6, 1.0, condition) == 0
    assert settings.published_rounds(12.1, 12.0) == 1 and settings.published_rounds(1e300, 12.0) == settings.MAX_ROUNDS
    for condition in (10.0, 20.0, 1e6):
        published = max(0, int(np.ceil(np.log(condition / 12.0) / np.log(1.0 / 0.7))))
        assert settings.published_rounds(condition, 12.0) == published

        def kappas(rho: Any, condition: float = condition) -> Any:
            bounds = Bounds.spectrum(1.0, condition)
            return ppc(key(), gaussian_rows(), ZCDP(rho), bounds).diagnostics["kappa"]

        assert jax.eval_shape(kappas, jnp.asarray(0.5)).shape == (published,)


def test_the_default_is_what_it_chooses() -> None:
    """Rounds, bins and shares: None and its choice are one release, to the last bit."""
    bounds = Bounds.spectrum(1.0, 500.0, mean_radius=1000.0)
    x = gaussian_rows(2000)
    made = learn_gaussian(key(), x, ZCDP(2.0), bounds)
    assert made.config.rounds > 2 and made.config.bins == (1000,)
    again = learn_gaussian(key(), x, ZCDP(2.0), bounds, config=made.config)
    for a, b in zip(leaves(made), leaves(again)):
        np.testing.assert_array_equal(a, b)


def test_public_numbers_choose_the_same_inside_a_trace() -> None:
    """Where rows and key alone are traced, as in a study, the numbers that choose are concrete still."""
    x, bounds = gaussian_rows(2000), Bounds.spectrum(1.0, 500.0)
    outside = ppc(key(), x, ZCDP(2.0), bounds)
    inside = jax.eval_shape(lambda k, x: ppc(k, x, ZCDP(2.0), bounds), key(), x)
    assert inside.config.rounds == outside.config.rounds > 2


def test_traced_bounds_need_rounds_and_bins() -> None:
    x = gaussian_rows()

    def run(config: KLSUConfig, mechanism: Any) -> Any:
        call = lambda up: mechanism(key(), x, ZCDP(1.0), Bounds.spectrum(1.0, up, mean_radius=up), config=config)  # noqa: E731
        return jax.eval_shape(call, jnp.asarray(9.0))

    for mechanism in (ppc, pgce, private_mean, learn_gaussian):
        with pytest.raises(TypeError, match=r"rounds=None is chosen by upper, .*KLSUConfig\(rounds="):
            run(KLSUConfig(), mechanism)
    for mechanism in (private_mean, learn_gaussian):
        with pytest.raises(TypeError, match=r"bins=None is chosen by mean_radius, .*KLSUConfig\(bins="):
            run(KLSUConfig(rounds=1), mechanism)
        assert run(KLSUConfig(rounds=1, bins=(3,)), mechanism).mean.shape == (3,)
    assert run(KLSUConfig(), naive_pce).covariance.shape == run(KLSUConfig(), weak_ppc).covariance.shape == (3, 3)


def test_bins() -> None:
    """They reach every mean that the bounds allow, and a stage covers three bins of the one before."""
    for reach in (1e-12, 0.6, 1.0, 37.2, 2048.0, 2049.0, 1e6, 1e9, 1e30):
        bins = _range.choose_bins(reach)
        widths = [1024.0 ** (len(bins) - 1 - s) for s in range(len(bins))]
        assert (bins[0] + 0.5) * widths[0] >= reach and max(bins) <= 2048
        for half, wide, width in zip(bins[1:], widths, widths[1:]):
            assert (half + 0.5) * width >= 1.5 * wide
    assert len(_range.choose_bins(1e6)) == 2 and len(_range.choose_bins(2048.0)) == 1


# Budget.


def test_narrow_bounds_spend_nothing_on_preconditioning() -> None:
    x = gaussian_rows(400) / 20.0
    made = ppc(key(), x, ZCDP(0.5), NARROW)
    assert made.config.rounds == 0 and ledger.entries(made.ledger) == () and float(made.spent.rho) == 0.0
    assert made.covariance is None and made.mean is None and int(made.status) == status.OK and made.measured == {}
    np.testing.assert_allclose(made.extra["preconditioner"], np.eye(3), rtol=1e-12)
    np.testing.assert_allclose(made.extra["ellipsoid"], 12.0 * np.eye(3), rtol=1e-12)
    assert float(made.extra["kappa"]) == 12.0 and made.diagnostics["kappa"].shape == (0,)
    assert "ppc" in str(made) and made.to_dict()["covariance"] is None
    made = pgce(key(), x, ZCDP(0.5), NARROW)
    (entry,) = ledger.entries(made.ledger)
    assert entry.what == "sum of z z^T, after preconditioning" and float(entry.cost) == 0.5
    made = private_mean(key(), x, ZCDP(0.5), NARROW)
    np.testing.assert_allclose([float(entry.cost) for entry in ledger.entries(made.ledger)], [0.125, 0.375])


@pytest.mark.parametrize("name", MECHANISMS)
def test_wrong_budgets_and_bounds_raise(name: str) -> None:
    x = gaussian_rows(20)
    with pytest.raises(TypeError, match="no pure-DP budget buys"):
        MECHANISMS[name](key(), x, PureDP(1.0), NARROW)
    with pytest.raises(TypeError, match="needs Bounds.spectrum"):
        MECHANISMS[name](key(), x, ZCDP(1.0), Bounds.l2(1.0))
    if name in ("private_mean", "learn_gaussian"):
        with pytest.raises(ValueError, match=f"{name} needs mean_radius"):
            MECHANISMS[name](key(), x, ZCDP(1.0), Bounds.spectrum(1.0, 2.0))
        with pytest.raises(ValueError, match="center='pairs'"):
            MECHANISMS[name](key(), x, ZCDP(1.0), NARROW, config=KLSUConfig(center="zero"))


def test_wrong_settings_raise_and_name_the_field() -> None:
    for rounds in (-1, 65, 2.0, True, "2"):
        with pytest.raises(ValueError, match="rounds must be a whole number from 0 to 64"):
            KLSUConfig(rounds=rounds)
    for field in ("constants", "noise", "psd", "center", "long_rows"):
        with pytest.raises(ValueError, match=f"{field} must be one of"):
            KLSUConfig(**{field: "other"})
    for field in ("precondition_share", "mean_share", "range_share", "beta"):
        for wrong in (0.0, 1.0, -0.5, np.nan):
            with pytest.raises(ValueError, match=field):
                KLSUConfig(**{field: wrong})
    for wrong in (8.0, 0.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="kappa_final"):
            KLSUConfig(kappa_final=wrong)
    for bins in ((), (0,), 3, (2.5,), (2**20 + 1,), (1,) * 65, "12"):
        with pytest.raises(ValueError, match="bins must be a tuple"):
            KLSUConfig(bins=bins)
    with pytest.raises(ValueError, match="relation must be 'replace'"):
        KLSUConfig(relation="add_remove")
    assert KLSUConfig(rounds=np.int64(3), bins=[np.int64(2), 5]).bins == (2, 5)


# Too few rows: a status and a finite answer.


def test_too_few_rows_show_in_the_status() -> None:
    x = gaussian_rows(40)
    wide = Bounds.spectrum(1.0, 1e6, mean_radius=1e5)
    theory = KLSUConfig(constants="theory")
    for name, mechanism in MECHANISMS.items():
        made = mechanism(key(), x, ZCDP(0.01), wide, config=theory)
        assert_sound(made)
        assert int(made.status) & FEW and MISSED in str(made), name
    made = ppc(key(), x, ZCDP(0.01), wide, config=theory)
    assert made.config.rounds == 0 and float(made.spent.rho) == 0.0 and float(made.extra["kappa"]) == 1e6
    # Given rounds, each of which changes nothing.
    made = ppc(key(), x, ZCDP(0.01), wide, config=dataclasses.replace(theory, rounds=3))
    assert int(made.status) & FEW and list(made.diagnostics["kappa"]) == [1e6] * 3
    np.testing.assert_allclose(made.extra["preconditioner"], np.eye(3), rtol=1e-12)


def test_enough_rows_show_no_status() -> None:
    """The theorem's own regime, in one column, to keep n small; and histograms that can be trusted."""
    x = 3.0 * np.random.default_rng(0).normal(size=(60_000, 1)) + 400.0
    bounds = Bounds.spectrum(0.1, 1000.0, mean_radius=1000.0)
    made = learn_gaussian(key(), x, ZCDP(20.0), bounds, config=KLSUConfig(constants="theory"))
    assert int(made.status) == status.OK and float(made.extra["kappa"]) <= 12.0
    assert float(made.mean[0]) == pytest.approx(400.0, abs=0.1)
    assert float(made.covariance[0, 0]) == pytest.approx(9.0, rel=0.05)
    # 300 rows cannot tell the heaviest of 2,001 bins with probability 1 - b, whatever the budget.
    few = _range.find(key(), Rows.array(x[:300]), jnp.zeros(1), jnp.eye(1), *jnp.asarray([1e9, 0.01]), (1000,))
    enough = _range.find(key(), Rows.array(x), jnp.zeros(1), jnp.eye(1) / 3.0, *jnp.asarray([1e9, 0.01]), (1000,))
    noisy = _range.find(key(), Rows.array(x), jnp.zeros(1), jnp.eye(1) / 3.0, *jnp.asarray([1e-9, 0.01]), (1000,))
    assert [int(found.bits) for found in (few, enough, noisy)] == [FEW, status.OK, FEW]
    assert abs(float(enough.point[0]) - 400.0 / 3.0) <= _range.OFFSET


#: Two settings of each kind of choice, in one and in three columns.
SETTINGS = {
    "one column": KLSUConfig(rounds=2, bins=(5,), psd="project", noise="sgw"),
    "three columns": KLSUConfig(rounds=3, bins=(1, 4), constants="theory", long_rows="drop"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_degenerate_inputs_give_finite_answers(name: str) -> None:
    """kappa = 1 and 1e12, R tiny and huge, units from 1e-12 to 1e12; equal rows, lines, rows beyond all numbers."""
    d, config = 1 if name == "one column" else 3, SETTINGS[name]
    x = gaussian_rows(40)[:, :d]
    line = np.outer(x[:, 0], [3.0, -1.0, 2.0][:d])
    outlier = x.copy()
    outlier[0], outlier[1], outlier[2] = 1e300, np.nan, -np.inf
    hard = (x, np.zeros_like(x), np.full_like(x, 7.0), line, np.sign(x), outlier, 1e200 * x)

    @jax.jit
    def program(x: Any, rho: Any, lower: Any, upper: Any, radius: Any) -> Any:
        bounds = Bounds.spectrum(lower, upper, mean_radius=radius)
        return learn_gaussian(key(), x, ZCDP(rho), bounds, config=config)

    for rows in hard:
        for rho in (1e-8, 0.5, 1e9):
            for ends in ((1.0, 1.0, 1.0), (1e-6, 1e6, 1e-12), (1e-24, 1e-12, 1e9), (1e12, 1e18, 1e-9)):
                made = program(rows, rho, *ends)
                assert_sound(made)
                matrix = np.asarray(made.covariance)
                assert np.array_equal(matrix, matrix.T)
                assert np.linalg.eigvalsh(matrix)[0] >= -1e-13 * np.abs(matrix).max()
                assert d == 1 or int(made.status) & FEW  # 20 pairs in three columns, by the proven constants


def test_a_tiny_and_a_huge_radius_of_the_mean() -> None:
    """R tiny: three bins. R = 1e12: five stages, and the mean is found all the same."""
    x = gaussian_rows(4000) / 20.0
    made = private_mean(key(), x, ZCDP(5.0), Bounds.spectrum(0.001, 2.0, mean_radius=1e-9))
    assert_sound(made)
    assert made.config.bins == (1,) and np.abs(made.mean).max() < 0.2
    far = np.array([6e11, -7e11, 10.0])
    made = private_mean(key(), x + far, ZCDP(50.0), Bounds.spectrum(0.001, 2.0, mean_radius=1e12))
    assert len(made.config.bins) == 5 and np.abs(np.asarray(made.mean) - far).max() < 0.2
    assert np.isfinite(float(made.extra["radius"])) and len(ledger.entries(made.ledger)) == made.config.rounds + 6


def test_invalid_traced_bounds_fail_closed() -> None:
    x = gaussian_rows(40)

    @jax.jit
    def release(lower: Any, upper: Any, radius: Any) -> Any:
        bounds = Bounds.spectrum(lower, upper, mean_radius=radius)
        return learn_gaussian(key(), x, ZCDP(0.5), bounds, config=KLSUConfig(rounds=1, bins=(3,)))

    assert_sound(release(1.0, 2.0, 3.0))
    for lower, upper, radius in (
        (2.0, 1.0, 1.0),
        (-1.0, 1.0, 1.0),
        (0.0, 1.0, 1.0),
        (1.0, np.inf, 1.0),
        (1.0, 2.0, 0.0),
    ):
        made = release(lower, upper, radius)
        assert int(made.status) & status.INVALID_BOUNDS
        values = leaves((made.covariance, made.mean, [each.value for each in made.measured.values()]))
        assert all(np.all(np.isnan(leaf)) for leaf in values)


def test_print_save_and_load(tmp_path: Any) -> None:
    config = KLSUConfig(rounds=2, bins=(40,))
    bounds = Bounds.spectrum(1.0, 500.0, mean_radius=30.0)
    for name in ("ppc", "private_mean", "learn_gaussian"):
        made = MECHANISMS[name](key(), gaussian_rows(), ApproxDP(1.0, 1e-6), bounds, config=config)
        assert float(made.spent.rho) == pytest.approx(0.024356, rel=1e-4)
        assert name in str(made) and "preconditioning round 2 of 2" in str(made)
        made.save(tmp_path / "release.npz")
        for a, b in zip(leaves(made), leaves(load(tmp_path / "release.npz"))):
            np.testing.assert_array_equal(a, b)
    assert made.distribution.mean.shape == (3,)
