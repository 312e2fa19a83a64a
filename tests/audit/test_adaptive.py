"""Attacks on neighbouring data sets: no bound on epsilon above the claim, and one above it for planted faults."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    AdaptiveConfig,
    Bounds,
    ClippedGaussianConfig,
    PureDP,
    Rows,
    SeparateConfig,
    adaptive,
    audit,
    clipped_gaussian,
    separate,
)
from jaxdpcov.mechanisms import _ball
from jaxdpcov.mechanisms import adaptive as module
from jaxdpcov.privacy import selection
from jaxdpcov.privacy.accounting import epsilon_of_rho
from tests.reference.attack import weaken

RHO, EPSILON, DELTA = 1.0, 1.5, 1e-3

#: Neighbours at which statistics move as far as they can: eigenvectors apart, and a row that comes from nothing.
AXES = (np.array([[1.0, 0.0], [0.0, 0.5], [0.0, 0.5]]), np.array([[0.0, 1.0], [0.0, 0.5], [0.0, 0.5]]))
FROM_ZERO = (np.concatenate([np.zeros((1, 2)), np.zeros((2, 2))]), np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))

#: A replaced row moves one eigenvalue up and another down; one more long row tips the scale between two radii.
SPECTRUM = (np.eye(2)[[0, 0, 0, 1, 0]], np.eye(2)[[0, 0, 0, 1, 1]])
TIED = (np.eye(2)[[0] * 19] * (np.arange(19) > 0)[:, None], np.eye(2)[[0] * 19])

CASES = {
    "separate": (separate, SeparateConfig(center="zero"), AXES),
    "separate, spectrum": (separate, SeparateConfig(center="zero"), SPECTRUM),
    "clipped_gaussian": (clipped_gaussian, ClippedGaussianConfig(radius=0.5, center="zero"), AXES),
    "adaptive": (adaptive, AdaptiveConfig(center="zero"), FROM_ZERO),
    "adaptive, tied": (adaptive, AdaptiveConfig(center="zero", psd="none"), TIED),
    "adaptive, paper": (adaptive, AdaptiveConfig(center="zero", constants="paper"), FROM_ZERO),
}


def found(mechanism: Any, config: Any, pair: Any, budget: Any, draws: int = 20_000) -> float:
    """Lower bound on epsilon at delta (0 for a pure budget) by the best linear attack on all that is released."""
    core = mechanism.__wrapped__
    config = jax.tree_util.tree_map(jnp.asarray, config)

    def call(key: Any, rows: Any, budget: Any, bounds: Any, config: Any) -> Any:
        return core(key, Rows.array(rows), budget, bounds, config)

    delta = 0.0 if isinstance(budget, PureDP) else DELTA
    result = audit.audit(
        jax.random.key(11), call, *pair, budget, Bounds.l2(1.0), config=config, draws=draws, delta=delta,
        confidence=0.9999,
    )  # fmt: skip
    return result.epsilon_lower


@pytest.mark.parametrize("pure", [False, True], ids=["rho", "epsilon"])
@pytest.mark.parametrize("name", CASES)
def test_no_attack_beats_the_claim(name: str, pure: bool) -> None:
    """False alarms at 1e-4 for each; the attack itself has power, as the bound is not near 0."""
    claim = EPSILON if pure else epsilon_of_rho(RHO, DELTA)
    # Under a pure budget 8,000 draws have too little power: one of six keys has a bound of 0, at 20,000 none below 0.2.
    lower = found(*CASES[name], *((PureDP(EPSILON), 20_000) if pure else (ZCDP(RHO), 8_000)))
    assert lower <= claim
    assert lower > 0.05 * claim


def take(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `adaptive` take this form whatever it predicts, which is post-processing, and trace anew."""
    finish = module._finish.__wrapped__

    def forced(*arguments: Any) -> Any:
        return finish(*arguments[:-1], jnp.full_like(arguments[-1], form == "separate"))

    monkeypatch.setattr(module, "_finish", forced)
    monkeypatch.setattr(module, "_choose", module._choose.__wrapped__)


@pytest.mark.parametrize("constants", ["tuned", "paper"])
@pytest.mark.parametrize("form", ["gaussian", "separate"])
def test_neither_form_of_adaptive_beats_the_claim(form: str, constants: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a replaced row turns the spectrum; and a small part of the noise on what the form releases is caught."""
    take(form, monkeypatch)
    config = AdaptiveConfig(center="zero", constants=constants)
    lower = found(adaptive, config, SPECTRUM, PureDP(EPSILON))
    assert 0.05 * EPSILON < lower <= EPSILON
    door, what = {
        "gaussian": ("symmetric_laplace", "sum of w w^T"),
        "separate": ("laplace", "eigenvalues of sum of w w^T"),
    }[form]
    weaken(monkeypatch, door, what, 0.01)
    assert found(adaptive, config, SPECTRUM, PureDP(EPSILON)) > EPSILON


FAULTS = {
    "matrix": (CASES["separate"], "symmetric_laplace", "sum of w w^T"),
    "eigenvalues": (CASES["separate, spectrum"], "laplace", "eigenvalues of sum of w w^T"),
    "trace": (CASES["adaptive"], "laplace", "sum of |u|^2"),
    "clipped matrix": (CASES["clipped_gaussian"], "symmetric_laplace", "sum of w w^T"),
}


@pytest.mark.parametrize("fault", [*FAULTS, "radius", "radius, paper"])
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small part of the noise on one statistic: the attack refutes the claim for the whole release."""
    monkeypatch.setattr(_ball, "_fixed", _ball._fixed.__wrapped__)  # trace anew, and keep nothing of the fault
    for name in ("_choose", "_finish"):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)
    if fault.startswith("radius"):
        case = CASES["adaptive, tied" if fault == "radius" else "adaptive, paper"]
        draw = "standard_laplace" if fault.endswith("paper") else "standard_gumbel"
        whole = getattr(selection, draw)
        monkeypatch.setattr(selection, draw, lambda *arguments: 0.01 * whole(*arguments))
    else:
        case, door, what = FAULTS[fault]
        weaken(monkeypatch, door, what, 0.04)
    lower = found(*case, PureDP(EPSILON))
    assert lower > EPSILON
