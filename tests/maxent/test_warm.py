"""Warm starts: the pair of columns of a new edge solved alone, and a mask that grows inside a compiled loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import maxent, status
from jaxdpcov.maxent.entering import entered
from jaxdpcov.maxent.problem import Problem, inverse, make, weights
from tests.maxent.cases import mirrored
from tests.reference import maxent as reference

D = 6


def problem(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(y, lam, mask, mask without one edge), that edge many standard deviations off what the others make of it."""
    g = np.random.default_rng(seed)
    a = g.normal(size=(D, 2 * D))
    lam = mirrored(10 ** g.uniform(2, 4, (D, D)))
    y = a @ a.T / (2 * D) + mirrored(g.normal(size=(D, D))) / np.sqrt(lam)
    mask = mirrored(g.random((D, D)) < 0.4) | np.eye(D, dtype=bool)
    mask[1, 4] = mask[4, 1] = True
    y[1, 4] = y[4, 1] = 0.8 * np.sqrt(y[1, 1] * y[4, 4])
    before = mask.copy()
    before[1, 4] = before[4, 1] = False
    return y, lam, mask, before


def assembled(y: np.ndarray, lam: np.ndarray, mask: np.ndarray) -> Problem:
    on = jnp.asarray(mask)
    return make(jnp.where(on, y, 0.0), weights(jnp.asarray(lam), 1.0, on), on)


def test_the_pair_of_a_new_edge_is_solved_alone() -> None:
    """The dual is at its minimum in the 2 x 2 block of that edge, all else is as it was, and W is still the inverse."""
    step = jax.jit(entered)
    block = np.ix_([1, 4], [1, 4])
    for seed in range(5):
        y, lam, mask, before = problem(seed)
        start = np.asarray(maxent.fit(y, lam, before, init=np.zeros((D, D))).precision)
        k, x = map(np.asarray, step(assembled(y, lam, mask), start, jnp.linalg.inv(start)))
        changed = k - start
        changed[block] = 0.0
        assert not changed.any()
        np.testing.assert_allclose(x, np.linalg.inv(k), rtol=0, atol=1e-10 * np.abs(x).max())
        best = reference.dual_objective(k, y, lam, mask, 1.0)
        assert best < reference.dual_objective(start, y, lam, mask, 1.0) - 0.1
        for e in ((1, 1), (1, 4), (4, 4)):
            for h in (-1e-3, 1e-3):
                other = k.copy()
                other[e] *= 1 + h
                other[e[::-1]] = other[e]
                assert reference.dual_objective(other, y, lam, mask, 1.0) > best


def test_a_start_without_a_new_edge_is_kept() -> None:
    """No edge makes up half of the gap: nothing changes, whatever else is off."""
    y, lam, mask, _ = problem(0)
    own = np.diag(1 / np.diag(y))
    for k in (own, np.asarray(maxent.fit(y, lam, mask, init=np.zeros((D, D))).precision)):
        y_off = y + np.where(np.eye(D, dtype=bool), 10.0, 0.0)
        x = inverse(jnp.linalg.cholesky(k))
        new, w = entered(assembled(y_off, lam, mask), jnp.asarray(k), x)
        assert np.array_equal(new, k)
        np.testing.assert_allclose(w, x, rtol=1e-14)


@pytest.mark.parametrize("max_edges", [None, 15])
def test_a_mask_that_grows_inside_a_compiled_loop(max_edges: int | None) -> None:
    """scan over new edges, vmap over measurements, mask and start traced: every round equals a cold solve."""
    y, lam, mask, _ = problem(1)
    order = np.argwhere(np.triu(mask, 1))
    ys = jnp.stack([jnp.asarray(y), jnp.asarray(y + mirrored(np.random.default_rng(0).normal(size=y.shape)) * 0.02)])
    config = maxent.MaxentConfig(preconditioner="diagonal", max_edges=max_edges)

    def rounds(y: jax.Array) -> Any:
        def one(carry: Any, edge: jax.Array) -> Any:
            mask, precision = carry
            mask = mask.at[edge[0], edge[1]].set(True).at[edge[1], edge[0]].set(True)
            found = maxent.fit(y, lam, mask, init=precision, config=config)
            return (mask, found.precision), (found.covariance, found.steps, found.status)

        start = (jnp.eye(D, dtype=bool), jnp.diag(1 / jnp.diagonal(y)))
        return jax.lax.scan(one, start, jnp.asarray(order))[1]

    covariances, steps, states = jax.jit(jax.vmap(rounds))(ys)
    assert (np.asarray(states) == status.OK).all() and int(np.max(steps)) <= 12
    for lane, one in enumerate(ys):
        now = np.eye(D, dtype=bool)
        for number, (j, k) in enumerate(order):
            now[j, k] = now[k, j] = True
            cold = maxent.fit(one, lam, now, config=maxent.MaxentConfig(preconditioner="diagonal", tol=1e-14))
            # A gap of 1e-8 for each column is within sqrt(6e-8) standard deviations of each measurement.
            off = np.abs(covariances[lane, number] - cold.covariance) * np.sqrt(lam)
            assert off[now].max() <= 3e-4, (lane, number)
