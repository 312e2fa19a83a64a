"""Private principal components: the eigenvectors of the release, projection and back, batches, bad cases, plots."""

import jax
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, coinpress_covariance, coinpress_mean, gaussian, metrics, plots
from jaxdpcov.apps.pca import pca

STD = np.array([3.0, 0.5, 1.5, 1.0])
MEAN = np.array([1.0, -2.0, 0.5, 0.0])
BOUNDS = Bounds.l2(12.0)


def rows(n: int = 4000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(9).normal(size=(4, 4)))[0]
    return (rng.normal(size=(n, 4)) * STD) @ turn.T + MEAN


def release(rho: float = 0.5, seed: int = 0, **config):
    return gaussian(jax.random.key(seed), rows(), ZCDP(rho), BOUNDS, config=GaussianConfig(**config))


@pytest.mark.parametrize("correlation", [False, True])
def test_components_are_eigenvectors_of_the_release(correlation: bool) -> None:
    found = release()
    matrix = np.asarray(found.correlation if correlation else found.covariance)
    values, vectors = np.linalg.eigh(matrix)
    result = pca(found, 3, correlation=correlation)
    assert result.components.shape == (3, 4)
    np.testing.assert_allclose(result.components @ result.components.T, np.eye(3), atol=1e-12)
    for i in range(3):
        ours, theirs = np.asarray(result.components[i]), vectors[:, -1 - i]
        np.testing.assert_allclose(ours * np.sign(ours @ theirs), theirs, atol=1e-10)
        assert ours[np.argmax(np.abs(ours))] > 0
    np.testing.assert_allclose(result.explained_variance, values[::-1][:3], rtol=1e-12)
    np.testing.assert_allclose(result.explained_variance_ratio, values[::-1][:3] / values.sum(), rtol=1e-12)
    np.testing.assert_allclose(result.projector(), vectors[:, 1:] @ vectors[:, 1:].T, atol=1e-10)


@pytest.mark.parametrize("correlation", [False, True])
def test_transform_and_back(correlation: bool) -> None:
    found, x = release(), rows(50, seed=1)
    every = pca(found, correlation=correlation)
    np.testing.assert_allclose(every.inverse_transform(every.transform(x)), x, atol=1e-10)
    some = pca(found, 2, correlation=correlation)
    coordinates = some.transform(x)
    assert coordinates.shape == (50, 2)
    np.testing.assert_allclose(coordinates, every.transform(x)[:, :2], atol=1e-12)
    np.testing.assert_allclose(some.transform(np.asarray(found.mean)[None]), np.zeros((1, 2)), atol=1e-12)
    # The leading components keep more of the rows than the last ones would.
    kept = np.linalg.norm(np.asarray(some.inverse_transform(coordinates)) - x)
    last = every.components[2:]
    other = (x - np.asarray(every.center)) / np.asarray(every.scale) @ np.asarray(last.T)
    assert kept < np.linalg.norm((other @ np.asarray(last)) * np.asarray(every.scale) + np.asarray(every.center) - x)


def test_the_subspace_comes_near_the_truth_with_the_budget() -> None:
    truth = np.cov(rows().T, ddof=0)
    far, near = (float(metrics.subspace_distance(release(rho).covariance, truth, 2)) for rho in (1e-4, 1e4))
    assert near < 1e-3 < 0.3 < far


def test_a_release_without_a_mean_is_centred_at_the_public_centre() -> None:
    bounds = Bounds.l2(12.0, MEAN)
    found = gaussian(jax.random.key(0), rows(), ZCDP(0.5), bounds, config=GaussianConfig(center="pairs"))
    assert found.mean is None
    np.testing.assert_array_equal(pca(found).center, MEAN)


def test_batches_and_jit() -> None:
    keys = jax.random.split(jax.random.key(3), 4)
    batch = jax.vmap(lambda key: gaussian(key, rows(), ZCDP(0.5), BOUNDS))(keys)
    together = jax.jit(lambda r: pca(r, 2))(batch)
    inside = jax.vmap(lambda r: pca(r, 2))(batch)
    for i in range(4):
        single = pca(jax.tree.map(lambda leaf, i=i: leaf[i], batch), 2)
        for mine, other, alone in zip(jax.tree.leaves(together), jax.tree.leaves(inside), jax.tree.leaves(single)):
            np.testing.assert_allclose(mine[i], alone, atol=1e-11)
            np.testing.assert_allclose(other[i], alone, atol=1e-11)
    x = rows(10)
    np.testing.assert_allclose(together.transform(x)[1], pca(jax.tree.map(lambda leaf: leaf[1], batch), 2).transform(x))
    assert together.inverse_transform(together.transform(x)).shape == (4, 10, 4)


def test_the_noise_edge_separates_noise_from_signal() -> None:
    """The largest eigenvalue of a release of zeros is noise: near the edge, below it in most runs, at any scale."""
    zeros = np.zeros((4000, 4))
    config = GaussianConfig(center="zero", psd="none")
    tops, edges = [], []
    for i in range(40):
        found = pca(gaussian(jax.random.key(i), zeros, ZCDP(0.5), BOUNDS, config=config))
        tops.append(float(found.explained_variance[0]))
        edges.append(float(found.noise_edge))
    assert len(set(edges)) == 1  # public
    assert 0.4 * edges[0] < np.mean(tops) < edges[0]
    assert np.sum(np.array(tops) > edges[0]) <= 8
    correlation = pca(release(), correlation=True)
    scale = np.asarray(correlation.scale)
    assert np.isclose(correlation.noise_edge, pca(release()).noise_edge / scale.min() ** 2, rtol=0.8)
    assert float(correlation.noise_edge) > 0


def test_coinpress_covariance_gives_components_and_an_edge() -> None:
    bounds = Bounds.spectrum(0.1, 100.0)
    found = pca(coinpress_covariance(jax.random.key(5), rows(), ZCDP(5.0), bounds), 1)
    assert float(found.noise_edge) > 0
    top = np.linalg.eigh(np.cov(rows().T))[1][:, -1]
    assert abs(float(found.components[0] @ top)) > 0.99


def test_indefinite_and_invalid_releases() -> None:
    noise_alone = gaussian(jax.random.key(1), rows(), ZCDP(1e-6), BOUNDS, config=GaussianConfig(psd="none"))
    result = pca(noise_alone)
    assert np.linalg.eigvalsh(noise_alone.covariance)[0] < 0
    assert np.all(np.asarray(result.explained_variance) >= 0) and np.isclose(result.explained_variance_ratio.sum(), 1)
    for leaf in jax.tree.leaves(pca(noise_alone, correlation=True)):
        assert np.all(np.isfinite(leaf))
    broken = jax.jit(lambda rho: gaussian(jax.random.key(1), rows(), ZCDP(rho), BOUNDS))(-1.0)
    assert np.all(np.isnan(pca(broken).components)) and np.all(np.isnan(pca(broken).explained_variance))


def test_wrong_arguments_raise() -> None:
    for k in (0, 5, 1.0, True, "2"):
        with pytest.raises(ValueError, match=r"1 <= k <= d = 4"):
            pca(release(), k)
    mean = coinpress_mean(jax.random.key(0), rows(), ZCDP(0.5), Bounds.spectrum(0.1, 10.0, mean_radius=10.0))
    with pytest.raises(ValueError, match="coinpress_mean releases a mean and no covariance"):
        pca(mean)


def test_plots() -> None:
    found = pca(release())
    ax = plots.scree(found)
    assert len(ax.patches) == 4 and len(ax.lines) == 1
    np.testing.assert_allclose([bar.get_height() for bar in ax.patches], found.explained_variance)
    assert all(tick == round(tick) for tick in ax.get_xticks())
    x = rows(30)
    points = plots.projection(found, x, labels=np.arange(30) % 3)
    assert sum(len(drawn.get_offsets()) for drawn in points.collections) == 30
    np.testing.assert_allclose(points.collections[0].get_offsets(), found.transform(x)[::3, :2])
    assert plots.projection(found, x, ax=points) is points
    with pytest.raises(ValueError, match="two components"):
        plots.projection(pca(release(), 1), x)
    batch = jax.vmap(lambda key: gaussian(key, rows(), ZCDP(0.5), BOUNDS))(jax.random.split(jax.random.key(0), 2))
    with pytest.raises(ValueError, match="batch"):
        plots.scree(pca(batch))
