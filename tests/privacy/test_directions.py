"""The sphere's exponential mechanism draws from the exact Bingham law, and its ledger adds up.

Moment tests allow 4.5 standard errors two-sided: a false alarm below 1e-5 a comparison, about 1e-4 for the file.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

from jaxdpcov.privacy import ledger
from jaxdpcov.privacy.directions import bingham, exponential_directions

DRAWS = 100_000


def second_moments(values: list[float], seed: int, draws: int = DRAWS) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error of u_j^2 over many draws."""
    weights = jnp.asarray(values)

    @jax.jit
    def run(keys: jax.Array) -> jax.Array:
        return jax.lax.map(lambda key: bingham(key, weights, jnp.ones(len(values), bool)) ** 2, keys, batch_size=10_000)

    squares = np.asarray(run(jax.random.split(jax.random.key(seed), draws)))
    return squares.mean(0), squares.std(0) / draws**0.5


def exact_circle(values: list[float]) -> float:
    """E[u_1^2] on the circle by quadrature."""
    density = lambda t: np.exp(values[0] * np.cos(t) ** 2 + values[1] * np.sin(t) ** 2)  # noqa: E731
    weighted = integrate.quad(lambda t: density(t) * np.cos(t) ** 2, 0, 2 * np.pi, limit=400)[0]
    return weighted / integrate.quad(density, 0, 2 * np.pi, limit=400)[0]


@pytest.mark.parametrize("values", [[5.0, 1.0], [2.5, 0.5], [0.0, 0.0], [30.0, 0.0]])
def test_circle(values: list[float]) -> None:
    mean, error = second_moments(values, seed=1)
    assert abs(mean[0] - exact_circle(values)) <= 4.5 * error[0]


def test_published_check_values() -> None:
    """C = diag(10, 2) at epsilon 1: 0.84889 at the constant 1/2, 0.72319 at the published 1/4."""
    assert exact_circle([5.0, 1.0]) == pytest.approx(0.84889, abs=5e-6)
    assert exact_circle([2.5, 0.5]) == pytest.approx(0.72319, abs=5e-6)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_confluent_hypergeometric_normaliser(d: int) -> None:
    """With values (a, 0, ..., 0) the normaliser is 1F1(1/2; d/2; a), and E[u_1^2] its logarithmic derivative."""
    a = 4.0
    expected = special.hyp1f1(1.5, d / 2 + 1, a) / special.hyp1f1(0.5, d / 2, a) / d
    mean, error = second_moments([a] + [0.0] * (d - 1), seed=2)
    assert abs(mean[0] - expected) <= 4.5 * error[0]
    assert np.all(np.abs(mean[1:] - (1 - expected) / (d - 1)) <= 4.5 * error[1:])


@pytest.mark.parametrize("values", [[3.0, 1.0, 0.0], [2.0, 1.5, 1.0, 0.5, 0.0]])
def test_against_plain_rejection_from_the_uniform_law(values: list[float]) -> None:
    """Slow and simple: uniform directions, accepted with probability exp(u^T C u - max)."""
    rng = np.random.default_rng(3)
    u = rng.normal(size=(1_500_000, len(values)))
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    scores = u**2 @ np.array(values)
    kept = u[np.log(rng.random(len(u))) <= scores - max(values)] ** 2
    mean, error = second_moments(values, seed=4)
    spread = np.hypot(error, kept.std(0) / len(kept) ** 0.5)
    assert np.all(np.abs(mean - kept.mean(0)) <= 4.5 * spread)


def test_fourth_moment_on_the_circle() -> None:
    """A wrong exponent of u^T Omega u can leave the mean nearly right; the fourth moment sees it too."""
    values = jnp.array([3.0, 0.0])
    draw = jax.jit(jax.vmap(lambda key: bingham(key, values, jnp.ones(2, bool))[0] ** 4))
    fourth = np.asarray(draw(jax.random.split(jax.random.key(5), DRAWS)))
    density = lambda t: np.exp(3.0 * np.cos(t) ** 2)  # noqa: E731
    exact = integrate.quad(lambda t: density(t) * np.cos(t) ** 4, 0, 2 * np.pi)[0]
    exact /= integrate.quad(density, 0, 2 * np.pi)[0]
    assert abs(fourth.mean() - exact) <= 4.5 * fourth.std() / DRAWS**0.5


def test_inactive_coordinates_stay_zero() -> None:
    u = bingham(jax.random.key(0), jnp.array([9.0, 1.0, 0.0]), jnp.array([False, True, True]))
    assert u[0] == 0.0
    assert float(jnp.linalg.norm(u)) == pytest.approx(1.0)


def test_the_second_draw_lives_in_the_complement() -> None:
    """d = 3: given the first direction, the second follows the Bingham law of the matrix on the complement."""
    matrix = jnp.diag(jnp.array([8.0, 4.0, 0.0]))

    @jax.jit
    @jax.vmap
    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        basis, _ = exponential_directions(key, matrix, sensitivity=1.0, epsilon=4.0, what="axes")
        first, second = basis[:, 0], basis[:, 1]
        # Eigenvalues on the complement of `first`, and the square of `second` along the larger one.
        projector = jnp.eye(3) - jnp.outer(first, first)
        values, vectors = jnp.linalg.eigh(projector @ matrix @ projector - 100.0 * jnp.outer(first, first))
        return values[2] - values[1], (vectors[:, 2] @ second) ** 2

    gaps, squares = (np.asarray(out) for out in run(jax.random.split(jax.random.key(6), 20_000)))
    # On the circle E[u^2] = (1 + I_1(k)/I_0(k))/2 with k half the gap of the exponents; epsilon_i = 2, so k = gap/2.
    expected = 0.5 * (1 + special.i1e(gaps / 2) / special.i0e(gaps / 2))
    error = squares - expected
    assert abs(error.mean()) <= 4.5 * error.std() / len(error) ** 0.5


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("budget", [{"epsilon": 1.0}, {"rho": 0.3}])
def test_basis_and_ledger(d: int, budget: dict[str, float]) -> None:
    matrix = jnp.diag(jnp.arange(float(d)) * 1e6)
    draw = jax.jit(lambda key: exponential_directions(key, matrix, sensitivity=1.0, **budget, what="axes"))
    basis, tree = draw(jax.random.key(0))
    assert np.allclose(basis.T @ basis, np.eye(d), atol=1e-9)
    assert len(ledger.entries(tree)) == d - 1
    (unit, total), *_ = budget.items()
    spent = float(ledger.total(tree, unit))
    assert spent <= total and (d == 1 or spent == pytest.approx(total, rel=1e-12))


def test_rho_price_of_epsilon() -> None:
    """Each draw at epsilon_i costs epsilon_i^2 / 8 in rho, in both ways of paying."""
    draw = jax.jit(lambda key, **budget: exponential_directions(key, jnp.eye(4), sensitivity=1.0, what="x", **budget))
    _, in_rho = draw(jax.random.key(0), rho=0.3)
    each = [float(entry.scale) for entry in ledger.entries(in_rho)]
    assert sum(e**2 / 8 for e in each) == pytest.approx(0.3)
    _, in_epsilon = draw(jax.random.key(1), epsilon=0.9)
    assert float(ledger.total(in_epsilon, "rho")) == pytest.approx(3 * 0.3**2 / 8)


def test_invalid_budgets_fail_closed_and_end() -> None:
    run = jax.jit(lambda key, rho: exponential_directions(key, jnp.eye(3), sensitivity=1.0, what="x", rho=rho)[0])
    for seed, rho in enumerate((np.nan, -1.0, 0.0, np.inf)):
        assert np.all(np.isnan(run(jax.random.key(seed), rho)))


def test_rank_deficient_huge_and_tied() -> None:
    run = jax.jit(lambda key, matrix: exponential_directions(key, matrix, sensitivity=1.0, rho=0.5, what="x")[0])
    for seed, matrix in enumerate((jnp.zeros((3, 3)), 1e8 * jnp.eye(3), jnp.diag(jnp.array([1e8, 0.0, 0.0])))):
        basis = run(jax.random.key(seed), matrix)
        assert np.allclose(basis.T @ basis, np.eye(3), atol=1e-9)


def test_vmap_equals_loop() -> None:
    keys = jax.random.split(jax.random.key(2), 5)
    matrix = jnp.diag(jnp.arange(4.0))
    run = jax.jit(lambda key: exponential_directions(key, matrix, sensitivity=1.0, rho=0.5, what="x")[0])
    looped = np.stack([run(key) for key in keys])
    assert np.allclose(jax.jit(jax.vmap(run))(jax.random.clone(keys)), looped, atol=1e-10)


def test_score_sensitivity_is_one() -> None:
    """u^T (z z^T - y y^T) u is within [-1, 1] for rows of the unit ball, and reaches both ends."""
    rng = np.random.default_rng(7)
    z, y, u = (p / np.linalg.norm(p, axis=1, keepdims=True) for p in rng.normal(size=(3, 100_000, 3)))
    change = np.sum(u * z, 1) ** 2 - np.sum(u * y, 1) ** 2
    assert np.abs(change).max() <= 1.0
    assert change.max() > 0.98 and change.min() < -0.98
