"""Derivatives of releases in budget, bounds, rows and settings: finite everywhere, right at generic points.

Such a derivative is for simulation only and not private. It holds the draws fixed, while another budget would draw
anew; so that differences can be compared with it, the key is not folded in this file.
"""

import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import contract_cases as cases
from tests.contract_cases import EXAMPLES, GAUSSIAN, ONE, Example

KEY = jax.random.key(22)
#: A budget of pure DP enters through the scale of Laplace noise, in the same way in all mechanisms on one floor.
LAPLACE = ("separate-PureDP-l2-default", "coinpress_mean_1d-PureDP-spectrum-default")
TRIED = [e for e in EXAMPLES if e.case.smooth and (e in ONE or e.mechanism.name == "gaussian" or str(e) in LAPLACE)]
GROUPS = ("budget", "bounds", "rows", "config")


@pytest.fixture(scope="module", autouse=True)
def _fixed_draws(fresh_programs: None) -> Iterator[None]:
    """Keys stay as they are, in programs that are compiled anew for this file."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("jaxdpcov.mechanisms.") and hasattr(module, "fold"):
                patch.setattr(module, "fold", lambda key, name, public: key)
        yield


def point(example: Example):
    """(budget, bounds, rows, config): what is differentiated."""
    budget, bounds, config = cases.in_arrays((example.budget, example.bounds(), example.config))
    return budget, bounds, jnp.asarray(example.rows(seed=4)), config


def _make(example: Example):
    rng = np.random.default_rng(1)
    weight, slope = rng.normal(size=(example.d, example.d)), rng.normal(size=example.d)

    def value(at):
        budget, bounds, x, config = at
        release = cases.call(example, jax.random.clone(KEY), x, budget, bounds, config)
        parts = zip((release.covariance, release.mean), (weight, slope))
        return sum(jnp.sum(part * by) for part, by in parts if part is not None)

    return jax.jit(jax.value_and_grad(value))


COMPILED: dict[str, object] = {}


def value_and_gradient(example: Example, at):
    if str(example) not in COMPILED:
        COMPILED[str(example)] = _make(example)
    return COMPILED[str(example)](at)


@pytest.mark.parametrize("example", TRIED, ids=str)
def test_gradients_are_central_differences(example: Example) -> None:
    """Along a random direction in each group of arguments, with eigenvalues on both sides of the projection's kinks."""
    start = point(example)
    _, gradient = value_and_gradient(example, start)
    rng = np.random.default_rng(2)
    for i, group in enumerate(GROUPS):
        leaves, structure = jax.tree_util.tree_flatten(start[i])
        if not leaves:
            continue
        direction = [rng.uniform(0.5, 1.0, leaf.shape) * rng.choice([-1.0, 1.0], leaf.shape) for leaf in leaves]
        size = 1e-6 * max(1.0, *(float(np.max(np.abs(leaf))) for leaf in leaves))

        def at(step, i=i, leaves=leaves, structure=structure, direction=direction):
            moved = [leaf + step * d for leaf, d in zip(leaves, direction)]
            return (*start[:i], jax.tree_util.tree_unflatten(structure, moved), *start[i + 1 :])

        high, low = (float(value_and_gradient(example, at(step))[0]) for step in (size, -size))
        difference = (high - low) / (2 * size)
        slopes = jax.tree_util.tree_leaves(gradient[i])
        found = sum(float(np.sum(np.asarray(g) * d)) for g, d in zip(slopes, direction))
        scale = sum(float(np.sum(np.abs(g * d))) for g, d in zip(slopes, direction))
        assert found == pytest.approx(difference, rel=1e-5, abs=1e-6 * (1 + scale)), group
    moves = [i for i in range(3) if any(np.any(np.asarray(g)) for g in jax.tree_util.tree_leaves(gradient[i]))]
    assert moves == [0, 1, 2]  # nothing is cut off: budget, bounds and rows all move the release


@pytest.mark.parametrize("example", TRIED, ids=str)
def test_gradients_are_finite_at_hard_points(example: Example) -> None:
    budget, bounds, x, config = point(example)
    hard = {
        "zero rows": 0.0 * x,
        "constant rows": jnp.full_like(x, 0.7),
        "rows at the centre": jnp.broadcast_to(_center(example), x.shape),
        "huge rows": 1e200 * x,
        "overflowing rows": x.at[0].set(1.7e308),
        "a row that is not finite": x.at[0, 0].set(jnp.nan).at[1].set(jnp.inf),
    }
    points = {name: (budget, bounds, rows, config) for name, rows in hard.items()}
    for rho in (1e-8, 1e8):
        points[f"rho {rho}"] = (cases.in_arrays(cases.high_budget(example.budget, rho)), bounds, 0.0 * x, config)
    for name, at in points.items():
        value, gradient = value_and_gradient(example, at)
        assert np.isfinite(value), name
        for path, leaf in cases.paths(gradient).items():
            assert np.all(np.isfinite(leaf)), (name, path)


def _center(example: Example):
    bounds = example.bounds()
    center = getattr(bounds, "center", getattr(bounds, "mean_center", None))
    return 0.5 * (bounds.lower + bounds.upper) if center is None else np.asarray(center)


def test_forward_mode_and_lanes_agree_with_reverse_mode() -> None:
    example = GAUSSIAN
    budget, bounds, x, config = point(example)
    keys = jax.random.split(jax.random.clone(KEY), 3)

    def value(rho, key):
        budget_ = cases.with_amount(budget, rho)
        return jnp.sum(cases.call(example, key, x, budget_, bounds, config).covariance ** 2)

    rho = cases.amount(budget)
    lanes = jax.jit(jax.vmap(jax.grad(value), (None, 0)))(rho, keys)
    forward = jax.jit(jax.vmap(jax.jacfwd(value), (None, 0)))(rho, jax.random.clone(keys))
    np.testing.assert_allclose(lanes, forward, rtol=1e-9)
    assert len({round(float(slope), 9) for slope in lanes}) == 3
