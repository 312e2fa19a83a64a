"""CoinPress: prior matrices, pairs, and the choices of the PSD step."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    CoinPressConfig,
    Rows,
    coinpress_mean,
    status,
)
from tests.mechanisms.coinpress_cases import (
    SIGMA,
    covariance,
    fix_keys,
    gaussian_rows,
    key,
)


@pytest.fixture
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    jax.clear_caches()
    fix_keys(monkeypatch)
    yield
    jax.clear_caches()


def test_a_matrix_lower_bound_is_whitened(fixed_keys: None) -> None:
    prior = SIGMA / 3.0 + np.eye(3)
    values, vectors = np.linalg.eigh(prior)
    root, inverse = (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
    x = gaussian_rows() + 5.0
    for more in ({}, {"constants": "theory", "psd": "floor"}):
        config = CoinPressConfig(rounds=2, center="zero", **more)
        found = covariance(x, 2.0, config, bounds=Bounds.spectrum(prior, 40.0))
        white = covariance(x @ inverse, 2.0, config, bounds=Bounds.spectrum(1.0, 40.0))
        np.testing.assert_allclose(found.covariance, root @ white.covariance @ root, rtol=1e-9, atol=1e-9 * 400)
        np.testing.assert_allclose(found.extra["ellipsoid"], root @ white.extra["ellipsoid"] @ root, rtol=1e-8)
    assert np.linalg.eigvalsh(inverse @ found.covariance @ inverse)[0] >= 1 - 1e-9


def test_a_known_covariance_whitens_the_mean(fixed_keys: None) -> None:
    values, vectors = np.linalg.eigh(SIGMA)
    inverse = (vectors / np.sqrt(values)) @ vectors.T
    x, config = gaussian_rows() + 5.0, CoinPressConfig(rounds=2)
    found = coinpress_mean(key(), x, ZCDP(0.5), Bounds.spectrum(SIGMA, 1.0, mean_radius=50.0), config=config)
    radius = 50.0 / np.sqrt(values[0])
    white = coinpress_mean(key(), x @ inverse, ZCDP(0.5), Bounds.spectrum(1.0, 1.0, mean_radius=radius), config=config)
    np.testing.assert_allclose(inverse @ found.mean, white.mean, rtol=1e-9)
    std = np.asarray(found.measured["mean"].std * found.scale)
    np.testing.assert_allclose(std, np.sqrt(np.diag(SIGMA)) * white.measured["mean"].std, rtol=1e-9)


def test_pairs_do_not_see_the_mean(fixed_keys: None) -> None:
    x, config = gaussian_rows(), CoinPressConfig(rounds=2)
    here, there = covariance(x, 2.0, config), covariance(x + 1e6, 2.0, config)
    np.testing.assert_allclose(here.covariance, there.covariance, rtol=1e-6, atol=1e-6 * 400)
    rows = Rows.array(x, weights=np.ones(len(x)), n=len(x))
    with pytest.raises(ValueError, match="unweighted rows"):
        covariance(rows, 2.0, config)
    zero = CoinPressConfig(rounds=2, center="zero")
    np.testing.assert_allclose(
        covariance(rows, 2.0, zero).covariance, covariance(x, 2.0, zero).covariance, rtol=1e-12, atol=1e-9
    )


def test_psd_choices(fixed_keys: None) -> None:
    x = gaussian_rows(60)
    made = {
        psd: covariance(x, 0.01, CoinPressConfig(rounds=1, center="zero", psd=psd))
        for psd in ("project", "floor", "none")
    }
    smallest = {psd: float(np.linalg.eigvalsh(release.covariance)[0]) for psd, release in made.items()}
    assert smallest["none"] < -1.0 and abs(smallest["project"]) < 1e-9 and smallest["floor"] >= 1 - 1e-9
    assert all(int(release.status) & status.NOT_PSD for release in made.values())
    home = made["none"].measured["second_moment"].value * (made["none"].scale[0] ** 2)
    np.testing.assert_allclose(made["none"].covariance, home, rtol=1e-12)
