"""Audits of the moment mechanisms on worst-case neighbours: below the claim as they are, above it once faulty.

Alarm rate: each audit's bound holds with confidence 1 - 1e-5, so all of them together falsely alarm with probability
below 3e-4; seeds are fixed. Rows are worst cases: sign flips in a box, orthogonal or opposite unit vectors in a ball.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxdpcov import (
    ZCDP,
    Bounds,
    DiagonalConfig,
    GaussianConfig,
    LaplaceConfig,
    PureDP,
    audit,
    diagonal,
    gaussian,
    laplace,
)
from jaxdpcov.data import clip
from jaxdpcov.mechanisms import _steps
from jaxdpcov.privacy import accounting, sensitivity

D, DRAWS, DELTA, CONFIDENCE = 4, 20_000, 0.05, 1 - 1e-5


class Pair(NamedTuple):
    """Two neighbouring data sets."""

    rows: np.ndarray
    neighbour: np.ndarray


def _first(row, other, n: int = 2) -> Pair:
    rest = np.zeros((n - 1, D))
    return Pair(np.vstack([row, rest]), np.vstack([other, rest]))


ONES, FLIPPED = np.ones(D), np.array([1.0, 1.0, -1.0, -1.0])
E1, E2 = np.eye(D)[:2]
PAIRS = {
    "sign flips": _first(ONES, FLIPPED),
    "opposite rows": _first(ONES, -ONES),
    "a corner and the middle": _first(ONES, 0 * ONES),
    "orthogonal": _first(E1, E2),
    "opposite": _first(E1, -E1),
    "a row removed": Pair(np.vstack([ONES, np.zeros((2, D))]), np.zeros((2, D))),
    # The partner stays; in the ball, rows at right angles to it from both sides: 2 in the Frobenius norm.
    "partner in the box": Pair(np.vstack([ONES, -ONES]), np.vstack([ONES, -FLIPPED])),
    "partner in the ball": Pair(np.vstack([E1, -E1]), np.vstack([E1, E1])),
}
BALL, BOX = Bounds.l2(1.0), Bounds.box(-1.0, 1.0)
ZERO = {"center": "zero", "psd": "none"}
MEAN = {"mean_share": 0.5, "psd": "none"}
PAIRED = {"center": "pairs", "psd": "none"}
COUNTED = {"relation": "add_remove", "n_share": 0.3, "mean_share": 0.3, "psd": "none"}

TRIED = [
    (gaussian, GaussianConfig, ZCDP(0.5), BALL, ZERO, "orthogonal", 0.5),
    (gaussian, GaussianConfig, ZCDP(0.5), BALL, MEAN, "opposite", 0.2),
    (gaussian, GaussianConfig, ZCDP(0.5), BALL, PAIRED, "partner in the ball", 0.5),
    (gaussian, GaussianConfig, ZCDP(0.5), BALL, ZERO | {"noise": "sgw"}, "orthogonal", 0.3),
    (gaussian, GaussianConfig, ZCDP(0.5), BOX, ZERO, "sign flips", 0.4),
    (gaussian, GaussianConfig, ZCDP(0.5), BOX, {"mean_share": 0.2}, "a corner and the middle", 0.2),
    (gaussian, GaussianConfig, ZCDP(0.5), BOX, PAIRED, "partner in the box", 0.3),
    (gaussian, GaussianConfig, ZCDP(0.5), BOX, COUNTED, "a row removed", 0.3),
    (laplace, LaplaceConfig, PureDP(3.0), BALL, ZERO, "orthogonal", 0.1),
    (laplace, LaplaceConfig, PureDP(3.0), BOX, COUNTED, "a row removed", 0.1),
    (diagonal, DiagonalConfig, ZCDP(0.5), BOX, {"center": "zero", "psd": "none"}, "a corner and the middle", 0.5),
    (diagonal, DiagonalConfig, PureDP(3.0), BALL, MEAN, "orthogonal", 0.1),
]


def claim(budget) -> float:
    """The epsilon at DELTA that the budget stands for."""
    return accounting.epsilon_of_rho(budget.rho, DELTA) if isinstance(budget, ZCDP) else budget.epsilon


def attack(mechanism, kind, budget, bounds, settings, pair: str, *, draws: int = DRAWS, seed: int = 0) -> float:
    return audit.audit(
        jax.random.key(seed), mechanism, *PAIRS[pair], budget, bounds, config=kind(**settings),
        draws=draws, delta=DELTA if isinstance(budget, ZCDP) else 0.0, confidence=CONFIDENCE,
    ).epsilon_lower  # fmt: skip


def _name(case) -> str:
    mechanism, _, budget, bounds, settings, pair, _ = case
    domain = "ball" if bounds is BALL else "box"
    return f"{mechanism.__name__}-{type(budget).__name__}-{domain}-{pair}-{settings.get('noise', '')}"


@pytest.mark.parametrize("case", TRIED, ids=_name)
def test_the_claim_holds_on_worst_cases(case) -> None:
    *arguments, power = case
    found = attack(*arguments)
    assert found <= claim(arguments[2])
    # The attack is not blind: it finds a good part of what a Gaussian at this budget gives away.
    exact = accounting.gaussian_epsilon(np.sqrt(2 * 0.5), DELTA) if isinstance(arguments[2], ZCDP) else 3.0
    assert found >= power * exact


@pytest.fixture
def planted(monkeypatch) -> Iterator[pytest.MonkeyPatch]:
    """Faults in the package's own code; programs compiled before and with them are dropped."""
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    jax.clear_caches()


def test_half_of_the_noise_is_caught(planted) -> None:
    right = sensitivity.second_moment
    halved = lambda *a, **k: (t := right(*a, **k))._replace(l2=0.5 * t.l2)  # noqa: E731
    planted.setattr(sensitivity, "second_moment", halved)
    assert attack(gaussian, GaussianConfig, ZCDP(0.5), BOX, ZERO, "sign flips") > claim(ZCDP(0.5))
    assert attack(gaussian, GaussianConfig, ZCDP(0.5), BALL, ZERO, "orthogonal") > claim(ZCDP(0.5))


def test_a_third_of_the_laplace_noise_is_caught(planted) -> None:
    planted.setattr(_steps.noise, "laplace", _scaled(_steps.noise.laplace, 0.3))
    # One mean, d = 4: opposite corners of the box use the whole l1 sensitivity.
    settings = {"mean_share": 0.9, "psd": "none"}
    found = attack(diagonal, DiagonalConfig, PureDP(3.0), BOX, settings, "opposite rows")
    assert found > 3.0


def _scaled(function, factor):
    def call(key, value, *, sensitivity, **rest):
        return function(key, value, sensitivity=factor * sensitivity, **rest)

    return call


def test_skipped_clipping_is_caught(planted) -> None:
    """Rows far outside the bounds: harmless as it is, plain to see once the row map forgets to clip."""
    planted.setitem(PAIRS, "far outside", _first(30.0 * ONES, -30.0 * FLIPPED))
    case = (gaussian, GaussianConfig, ZCDP(0.5), BOX, ZERO, "far outside")
    assert attack(*case, draws=1000) <= claim(ZCDP(0.5))
    jax.clear_caches()
    planted.setattr(clip.Frame, "rows", lambda self, x: (x - self.center[None, :]) / self.scale[None, :])
    assert attack(*case, draws=1000) > claim(ZCDP(0.5))


def test_too_little_noise_on_the_diagonal_alone_is_caught(planted) -> None:
    """The diagonal of the weighted box noise has 0.63 of the std of the rest at d = 4; 0.15 of that is caught."""
    right = sensitivity.second_moment
    planted.setattr(sensitivity, "second_moment", lambda *a, **k: (t := right(*a, **k))._replace(diag=0.15 * t.diag))
    assert attack(gaussian, GaussianConfig, ZCDP(0.5), BOX, ZERO, "a corner and the middle") > claim(ZCDP(0.5))


def test_a_mean_for_nothing_is_caught(planted) -> None:
    """Both statistics at the whole budget: what forgetting to compose would be."""
    planted.setattr(_steps, "split", lambda total, shares: tuple(total for _ in shares))
    found = attack(
        gaussian, GaussianConfig, ZCDP(0.5), BOX, {"mean_share": 0.5, "psd": "none"}, "a corner and the middle"
    )
    exact = accounting.gaussian_epsilon(1.0, DELTA)
    assert found > 0.6 * exact
    planted.undo()
    jax.clear_caches()
    honest = attack(
        gaussian, GaussianConfig, ZCDP(0.5), BOX, {"mean_share": 0.5, "psd": "none"}, "a corner and the middle"
    )
    assert honest < found - 0.3  # at half of the budget each, these neighbours give much less away
