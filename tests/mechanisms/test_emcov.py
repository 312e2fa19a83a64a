"""emcov: the law of its directions, the scale of its eigenvalue noise, its ledger, and an audit.

Moment tests allow 4.5 standard errors two-sided, a false alarm below 1e-5 each; they also reject the wrong law.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, EMCovConfig, PureDP, emcov
from jaxdpcov.audit import audit
from jaxdpcov.privacy import ledger, sensitivity

BALL = Bounds.l2(1.0)
ZERO = EMCovConfig(center="zero")
#: sum z z^T = diag(10, 2), the check of Kent, Ganeiber and Mardia's sampler.
TEN_AND_TWO = np.array([[1.0, 0.0]] * 10 + [[0.0, 1.0]] * 2)


def draws(budget, config, field, count=40_000, x=TEN_AND_TWO, bounds=BALL) -> np.ndarray:
    def one(key: jax.Array) -> jax.Array:
        return field(emcov(key, jnp.asarray(x), budget, bounds, config=config))

    run = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=5_000))
    return np.asarray(run(jax.random.split(jax.random.key(0), count)))


def first_direction(release) -> jax.Array:
    return release.extra["eigenvectors"][0, 0] ** 2


def test_the_direction_has_the_law_of_the_derived_exponent() -> None:
    """epsilon = 2 leaves 1 for the one draw: E[v_1^2] = 0.84889, and at the published exponent 0.72319."""
    for constants, right, wrong in (("tuned", 0.84889, 0.72319), ("paper", 0.72319, 0.84889)):
        squares = draws(PureDP(2.0), EMCovConfig(center="zero", constants=constants), first_direction)
        error = squares.std() / len(squares) ** 0.5
        assert abs(squares.mean() - right) <= 4.5 * error
        assert abs(squares.mean() - wrong) > 20 * error


def test_zcdp_draws_are_dearer_in_epsilon() -> None:
    """rho = 1/4 leaves rho/2 for one draw: epsilon_1 = sqrt(8/8) = 1, the same law."""
    squares = draws(ZCDP(0.25), ZERO, first_direction)
    assert abs(squares.mean() - 0.84889) <= 4.5 * squares.std() / len(squares) ** 0.5


def test_adding_a_row_needs_half_the_sensitivity() -> None:
    """Under add/remove the exponent at epsilon_1 is that of 2 epsilon_1 under replace-one."""
    config = EMCovConfig(center="zero", relation="add_remove", n_share=0.5)
    squares = draws(PureDP(2.0), config, first_direction)  # 1 for n, 1/2 for the draw: the exponent of 1
    assert abs(squares.mean() - 0.84889) <= 4.5 * squares.std() / len(squares) ** 0.5


@pytest.mark.parametrize(("budget", "std"), [(PureDP(2.0), 2**0.5 * 2.0), (ZCDP(2.0), 1.0)])
def test_eigenvalue_noise(budget, std: float) -> None:
    """Laplace of scale 2/(epsilon/2), or Gaussian of std sqrt(2)/sqrt(2 rho/2), over n."""
    noisy = draws(budget, ZERO, lambda release: release.measured["eigenvalues"].value, 20_000)
    exact = np.array([2.0, 10.0]) / 12
    assert np.allclose(noisy.mean(0), exact, atol=5 * std / 12 / 20_000**0.5)
    ratio = noisy.std(0) * 12 / std
    assert np.all((ratio > 0.95) & (ratio < 1.05))  # std of a std over 20,000 draws is below 1.2%


def test_ledger() -> None:
    release = emcov(jax.random.key(0), np.eye(4), PureDP(1.0), BALL)
    kinds = [entry.kind for entry in ledger.entries(release.ledger)]
    assert kinds == ["laplace", "laplace"] + ["exponential"] * 3
    assert float(release.spent.epsilon) == pytest.approx(1.0, rel=1e-12) and float(release.spent.epsilon) <= 1.0


def test_constant_columns_are_known() -> None:
    box = Bounds.box(np.array([0.0, 3.0, -1.0]), np.array([1.0, 3.0, 1.0]))
    x = np.random.default_rng(0).uniform(size=(50, 3))
    release = emcov(jax.random.key(0), x, ZCDP(1.0), box)
    assert np.all(release.covariance[1] == 0) and release.mean[1] == 3.0
    assert np.allclose(release.extra["eigenvectors"][1, :2], 0.0, atol=1e-12)


@pytest.mark.parametrize("x", [np.zeros((4, 2)), np.ones((1, 1)), np.full((4, 2), 1e300)])
def test_degenerate_rows(x: np.ndarray) -> None:
    release = emcov(jax.random.key(0), x, PureDP(1.0), BALL)
    assert np.all(np.isfinite(release.covariance)) and np.all(np.linalg.eigvalsh(release.covariance) >= -1e-12)


def test_audit_stays_below_the_claim_and_sees_a_planted_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows along one axis against one row turned to the other; a sensitivity of 1/16 is told apart."""
    x = jnp.asarray(TEN_AND_TWO[:3])
    neighbour = x.at[0].set(jnp.array([0.0, 1.0]))

    def found(seed: int) -> float:
        jax.clear_caches()
        key = jax.random.key(seed)
        return audit(key, emcov, x, neighbour, PureDP(1.0), BALL, config=ZERO, draws=20_000, delta=0.0).epsilon_lower

    assert found(0) <= 1.0
    monkeypatch.setattr(sensitivity, "direction", lambda: 1.0 / 16)
    assert found(1) > 1.0
    monkeypatch.undo()
    jax.clear_caches()
