"""Derivatives of the solution: against finite differences, the explicit derivation, each other, forward and reverse."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import maxent
from tests.maxent import cases
from tests.reference import maxent as reference

METHODS = ("dual", "cholesky")
#: Too ill-conditioned for the Cholesky method by conjugate gradients; see test_random.py.
HARD = 173


def direction(number: int, lam: np.ndarray, t: float) -> tuple[np.ndarray, np.ndarray, float]:
    """A random change of (y, lam, t): of each y by its noise, of lam and t by their own size."""
    g = np.random.default_rng((9, number))
    d = len(lam)
    dy = cases.mirrored(g.normal(size=(d, d))) / np.sqrt(lam)
    return dy, lam * cases.mirrored(g.normal(size=(d, d))), t * g.normal()


@partial(jax.jit, static_argnames="method")
def solve(y: Any, lam: Any, mask: Any, t: Any, init: Any, method: str) -> maxent.MaxentResult:
    return maxent.fit(y, lam, mask, t=t, method=method, init=init, config=maxent.MaxentConfig(tol=1e-22))


@partial(jax.jit, static_argnames="method")
def push(y: Any, lam: Any, mask: Any, t: Any, init: Any, change: Any, method: str) -> maxent.MaxentResult:
    return jax.jvp(lambda *at: solve(at[0], at[1], mask, at[2], init, method), (y, lam, t), change)[1]


@partial(jax.jit, static_argnames="method")
def pull(y: Any, lam: Any, mask: Any, t: Any, left: Any, method: str) -> Any:
    return jax.grad(lambda *at: jnp.sum(solve(at[0], at[1], mask, at[2], None, method).covariance * left), (0, 1, 2))(
        y, lam, t
    )


def relative(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(np.asarray(b)).max())


def compare(numbers: Iterable[int], differences: Iterable[int]) -> None:
    """Both methods' tangents agree to 1e-7 on `numbers`, and equal differences of solutions to 1e-6 on some."""
    differences = set(differences)
    for number in numbers:
        if number == HARD:
            continue
        case = cases.make(0, number)
        y, lam, mask = cases.padded(case)
        t = jnp.asarray(case.t)
        dy, dlam, dt = direction(number, lam, case.t)
        init = solve(y, lam, mask, t, None, "dual").precision
        change = (jnp.asarray(dy), jnp.asarray(dlam), jnp.asarray(dt))
        moved, other = (push(y, lam, mask, t, init, change, method) for method in METHODS)
        assert relative(other.covariance, moved.covariance) <= 1e-7, (number, case.kind)
        assert relative(other.precision, moved.precision) <= 1e-7, (number, case.kind)
        if number not in differences:
            continue

        def at(h: float) -> np.ndarray:
            new = solve(y + h * dy, lam + h * dlam, mask, t + h * dt, init, "dual")  # noqa: B023
            return np.asarray(new.covariance)

        h = 1e-3  # a fourth-order formula: its own error is about 1e-10
        difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        assert relative(difference, moved.covariance) <= 1e-6, (number, case.kind)


def test_methods_agree_and_equal_finite_differences() -> None:
    numbers = [n for n in range(266) if cases.make(0, n).d <= 22][:200:3]
    compare(numbers, numbers[::3])


@pytest.mark.nightly
def test_finite_differences_on_every_instance() -> None:
    compare(range(266), range(266))


@pytest.mark.parametrize("method", METHODS)
def test_equals_the_explicit_derivation(method: str) -> None:
    """Forward mode equals the reference's |E| x |E| system, reverse mode is its transpose."""
    for number in [n for n in range(60) if cases.make(1, n).d <= 8][:15]:
        case = cases.make(1, number)
        d = case.d
        inside = (slice(d), slice(d))
        y, lam, mask = cases.padded(case)
        dy, dlam, dt = direction(number, lam, case.t)
        found = solve(y, lam, mask, jnp.asarray(case.t), None, "dual")
        w, k = np.asarray(found.covariance)[inside], np.asarray(found.precision)[inside]
        dw, dk = reference.tangent(w, k, case.y, case.lam, case.mask, case.t, dy[inside], dlam[inside], dt)
        change = (jnp.asarray(dy), jnp.asarray(dlam), jnp.asarray(dt))
        moved = push(y, lam, mask, jnp.asarray(case.t), None, change, method)
        assert relative(moved.covariance[inside], dw) <= 1e-7, (number, case.kind)
        assert relative(moved.precision[inside], dk) <= 1e-7, (number, case.kind)

        left = cases.mirrored(np.random.default_rng(number).normal(size=y.shape))
        gy, glam, gt = pull(y, lam, mask, jnp.asarray(case.t), left, method)
        for g in (gy, glam):
            assert np.all(np.isfinite(g)) and not np.asarray(g)[~mask].any(), "off the mask the gradient is zero"
        parts = [np.sum(np.asarray(g)[inside] * c[inside]) for g, c in ((gy, dy), (glam, dlam))]
        through = sum(parts) + float(gt) * dt
        size = sum(map(abs, parts)) + abs(float(gt) * dt)
        assert abs(through - np.sum(left[inside] * dw)) <= 1e-7 * size, (number, case.kind)


def chain(d: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    g = np.random.default_rng(3)
    a = g.normal(size=(d, 3 * d))
    mask = np.abs(np.arange(d)[:, None] - np.arange(d)) <= 1
    return jnp.asarray(a @ a.T / (3 * d)), jnp.asarray(cases.mirrored(10 ** g.uniform(1, 3, (d, d)))), jnp.asarray(mask)


@pytest.mark.parametrize("method", METHODS)
def test_transformations_compose(method: str) -> None:
    """vmap of grad, grad through vmap, and forward against reverse."""
    y, lam, mask = chain(4)

    def loss(y: jax.Array) -> jax.Array:
        found = maxent.fit(y, lam, mask, method=method, config=maxent.MaxentConfig(tol=1e-20))
        return jnp.sum(found.covariance**2) + jnp.sum(jnp.sin(found.precision))

    batch = jnp.stack([y, 1.2 * y])
    slope = jax.jit(jax.grad(loss))
    one_by_one = jnp.stack([slope(row) for row in batch])
    through = jax.jit(jax.grad(lambda b: jnp.sum(jax.vmap(loss)(b))))(batch)
    np.testing.assert_allclose(through, one_by_one, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(loss))(y), one_by_one[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives(method: str) -> None:
    y, lam, mask = chain(4)

    def loss(t: jax.Array) -> jax.Array:
        found = maxent.fit(y, lam, mask, t=t, method=method, config=maxent.MaxentConfig(tol=1e-20))
        return jnp.sum(found.covariance**2) + jnp.sum(jnp.sin(found.precision))

    slope = jax.jit(jax.grad(loss))
    t, h = 2.0, 1e-4
    second = jax.jit(jax.grad(jax.grad(loss)))(t)
    np.testing.assert_allclose(second, (slope(t + h) - slope(t - h)) / (2 * h), rtol=1e-5)


def test_the_batched_mask_too() -> None:
    y, lam, mask = chain(4)
    masks = jnp.stack([mask, jnp.ones_like(mask), jnp.eye(4, dtype=bool)])

    def loss(y: jax.Array, mask: jax.Array) -> jax.Array:
        return jnp.sum(maxent.fit(y, lam, mask, config=maxent.MaxentConfig(tol=1e-20)).covariance ** 3)

    slope = jax.jit(jax.grad(loss))
    batched = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(y, masks)
    for row, one in zip(batched, masks):
        np.testing.assert_allclose(row, slope(y, one), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("config", [{"max_edges": 8}, {"preconditioner": "exact"}, {"preconditioner": "eigen"}])
def test_every_route_gives_the_same_gradient(config: dict[str, Any]) -> None:
    y, lam, mask = chain(6)

    def loss(y: jax.Array, config: maxent.MaxentConfig) -> jax.Array:
        return jnp.sum(maxent.fit(y, lam, mask, config=config).covariance ** 3)

    slope = jax.jit(jax.grad(loss))
    plain = slope(y, maxent.MaxentConfig(tol=1e-20))
    np.testing.assert_allclose(slope(y, maxent.MaxentConfig(tol=1e-20, **config)), plain, rtol=1e-9)


def test_a_derivative_that_does_not_converge_is_nan() -> None:
    y, lam, mask = chain(6)
    lam = lam * 1e4

    def loss(y: jax.Array, init: jax.Array, config: maxent.MaxentConfig) -> jax.Array:
        return jnp.sum(maxent.fit(y, lam, mask, init=init, config=config).covariance)

    init = maxent.fit(y, lam, mask, config=maxent.MaxentConfig(tol=1e-14)).precision
    slope = jax.jit(jax.grad(loss))
    assert jnp.all(jnp.isfinite(slope(y, init, maxent.MaxentConfig())))
    assert jnp.all(jnp.isnan(slope(y, init, maxent.MaxentConfig(max_inner=1))[mask]))


def test_init_and_limits_carry_no_gradient() -> None:
    y, lam, mask = chain(4)

    def loss(init: jax.Array, tol: jax.Array) -> jax.Array:
        return jnp.sum(maxent.fit(y, lam, mask, init=init, config=maxent.MaxentConfig(tol=tol)).covariance)

    start = jnp.linalg.inv(jnp.diag(jnp.diagonal(y)))
    by_init, by_tol = jax.grad(loss, (0, 1))(start, jnp.asarray(1e-9))
    assert not np.asarray(by_init).any() and float(by_tol) == 0.0
