"""Instances whose answer is known: isolated columns, the full GOE-shaped mask, chordal graphs, bridges, components."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import maxent
from tests.maxent.cases import mirrored
from tests.reference import maxent as reference

METHODS = ("dual", "cholesky")
SIZE = 8  # every instance is padded with unmeasured columns to one shape: one compilation


def fit(
    y: Any, lam: Any, mask: Any, t: float, method: str, preconditioner: str = "diagonal"
) -> tuple[np.ndarray, np.ndarray]:
    d = len(y)
    rows = (slice(d), slice(d))
    padded = np.zeros((SIZE, SIZE)), np.ones((SIZE, SIZE)), np.zeros((SIZE, SIZE), bool)
    for whole, part in zip(padded, (y, lam, mask)):
        whole[rows] = part
    config = maxent.MaxentConfig(tol=1e-18, preconditioner=preconditioner)
    found = maxent.fit(*map(jnp.asarray, padded), t=t, method=method, config=config)
    assert float(found.gap) <= 1e-9 * d
    return np.asarray(found.covariance)[rows], np.asarray(found.precision)[rows]


def close(a: np.ndarray, b: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


def wishart(g: np.random.Generator, d: int) -> np.ndarray:
    a = g.normal(size=(d, 2 * d))
    return a @ a.T / (2 * d)


def test_the_reference_gap_is_the_one_of_optimality() -> None:
    """The reference against itself: both of its optimal matrices, its gap and its conditions fit together."""
    g = np.random.default_rng(0)
    y, lam = wishart(g, 4), mirrored(10 ** g.uniform(0, 2, (4, 4)))
    mask = np.abs(np.arange(4)[:, None] - np.arange(4)) != 2
    w, k = reference.solve(y, lam, mask, 1.5)
    assert abs(reference.gap(w, k, y, lam, mask, 1.5)) < 1e-10
    assert np.abs(reference.kkt_residual(w, y, lam, mask, 1.5)).max() < 1e-9
    for other in (1.01 * k, k + 0.01 * np.eye(4)):
        assert reference.gap(w, other, y, lam, mask, 1.5) > 1e-6
    assert reference.gap(1.01 * w, k, y, lam, mask, 1.5) > 1e-6
    close(maxent.objective(jnp.asarray(w), y, lam, mask, 1.5), reference.objective(w, y, lam, mask, 1.5), 1e-14)


@pytest.mark.parametrize("method", METHODS)
def test_equals_the_reference_solver(method: str) -> None:
    g = np.random.default_rng(1)
    for t in (0.1, 1.0, 30.0):
        y, lam = wishart(g, 5), mirrored(10 ** g.uniform(0, 3, (5, 5)))
        mask = mirrored(g.random((5, 5)) < 0.5) | np.eye(5, dtype=bool)
        w, k = reference.solve(y, lam, mask, t)
        ours = fit(y, lam, mask, t, method)
        close(ours[0], w, 1e-8)
        close(ours[1], k, 1e-7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("t", [1e-2, 1.0, 1e4])
def test_isolated_columns(method: str, t: float) -> None:
    y, lam = np.array([3.0, 0.5, 0.0, -0.2, -40.0]), np.array([1.0, 1e4, 10.0, 1e3, 7.0])
    w, k = fit(np.diag(y), np.diag(lam), np.eye(5, dtype=bool), t, method)
    np.testing.assert_allclose(np.diag(w), reference.isolated(y, lam, t), rtol=1e-8)
    np.testing.assert_allclose(np.diag(k), 1 / reference.isolated(y, lam, t), rtol=1e-8)
    assert not (w - np.diag(np.diag(w))).any() and not (k - np.diag(np.diag(k))).any()


@pytest.mark.parametrize(
    ("method", "preconditioner"),
    [("dual", "diagonal"), ("dual", "eigen"), ("dual", "exact"), ("cholesky", "diagonal")],
)
def test_full_mask_of_goe_shape(method: str, preconditioner: str) -> None:
    """lam off the diagonal twice that on it: W has the eigenvectors of y. The weighted box shape has no such form."""
    g = np.random.default_rng(2)
    y = wishart(g, 7) + 0.4 * mirrored(g.normal(size=(7, 7)))
    assert np.linalg.eigvalsh(y)[0] < 0
    diagonal = 20.0
    lam = np.full((7, 7), 2 * diagonal) - diagonal * np.eye(7)
    w, _ = fit(y, lam, np.ones((7, 7), bool), 3.0, method, preconditioner)
    close(w, reference.full_goe(y, diagonal, 3.0), 1e-8)
    wrong = fit(y, np.full((7, 7), diagonal), np.ones((7, 7), bool), 3.0, method)[0]
    assert np.abs(wrong - reference.full_goe(y, diagonal, 3.0)).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_chordal_graph_at_large_t(method: str) -> None:
    """Exact measurements on two overlapping cliques: the precision is that of the junction tree."""
    g = np.random.default_rng(3)
    y, mask = wishart(g, 5), np.zeros((5, 5), bool)
    cliques, separators = ([0, 1, 2], [1, 2, 3], [3, 4]), ([1, 2], [3])
    for clique in cliques:
        mask[np.ix_(clique, clique)] = True
    k = reference.chordal_precision(y, cliques, separators)
    for t in (1e7, 1e9):
        w, found = fit(y, 1.0, mask, t, method)
        close(found, k, 30 / t)
        close(w[mask], y[mask], 30 / t)


@pytest.mark.parametrize("method", METHODS)
def test_bridge_between_components(method: str) -> None:
    """One edge (i, j) between two blocks: across it, covariances are products along the way."""
    g = np.random.default_rng(4)
    a, b, i, j = [0, 1, 2], [3, 4], 2, 3
    y = wishart(g, 5)
    mask = np.zeros((5, 5), bool)
    mask[np.ix_(a, a)] = mask[np.ix_(b, b)] = True
    mask[i, j] = mask[j, i] = True
    w, _ = fit(y, 1.0, mask, 1e8, method)
    across = np.outer(w[a, i], w[j, b]) * y[i, j] / (w[i, i] * w[j, j])
    close(w[np.ix_(a, b)], across, 1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_components_separate(method: str) -> None:
    g = np.random.default_rng(5)
    y, lam = wishart(g, 6), mirrored(10 ** g.uniform(0, 2, (6, 6)))
    group = np.array([0, 1, 0, 1, 1, 0])
    mask = group[:, None] == group[None, :]
    w, k = fit(y, lam, mask, 2.0, method)
    assert np.abs(w[~mask]).max() <= 1e-12 and np.abs(k[~mask]).max() <= 1e-9
    for name in (0, 1):
        at = np.ix_(group == name, group == name)
        close(w[at], fit(y[at], lam[at], mask[at], 2.0, method)[0], 1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_units(method: str) -> None:
    """In other units, y_jk s_j s_k and lam_jk / (s_j s_k)^2, the answer is the same matrix in those units."""
    g = np.random.default_rng(6)
    y, lam = wishart(g, 6), mirrored(10 ** g.uniform(0, 3, (6, 6)))
    mask = mirrored(g.random((6, 6)) < 0.5) | np.eye(6, dtype=bool)
    s = np.array([1e-5, 1.0, 1e5, 3.0, 1e-2, 1e2])
    both = np.outer(s, s)
    w, _ = fit(y, lam, mask, 1.0, method)
    close(fit(y * both, lam / both**2, mask, 1.0, method)[0] / both, w, 1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_t_and_lam_are_one_number(method: str) -> None:
    g = np.random.default_rng(7)
    y, mask = wishart(g, 4), np.ones((4, 4), bool)
    close(fit(y, 3.0, mask, 5.0, method)[0], fit(y, 15.0, mask, 1.0, method)[0], 1e-8)
