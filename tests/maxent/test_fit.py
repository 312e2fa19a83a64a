"""What `fit` promises beyond its optimum: statuses, masks, warm starts, transformations, dtypes, messages."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdpcov import maxent, status
from jaxdpcov.maxent import linear
from tests.maxent.cases import make, mirrored, padded

METHODS = ("dual", "cholesky")


def problem(d: int, share: float, seed: int = 0, size: float = 3.0) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """A noisy sparse instance, precisions around 10^size."""
    g = np.random.default_rng((seed, d))
    a = g.normal(size=(d, 2 * d))
    lam = mirrored(10 ** g.uniform(size - 1, size + 1, (d, d)))
    y = a @ a.T / (2 * d) + mirrored(g.normal(size=(d, d))) / np.sqrt(lam)
    mask = mirrored(g.random((d, d)) < share) | np.eye(d, dtype=bool)
    return jnp.asarray(y), jnp.asarray(lam), mask


def close(a: Any, b: Any, rtol: float = 1e-8) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=rtol * float(jnp.abs(jnp.asarray(b)).max()))


TIGHT = maxent.MaxentConfig(tol=1e-18)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("inner", ["newton", "lbfgs"])
def test_stopped_early_is_reported(method: str, inner: str) -> None:
    """However few steps are allowed, status 0 means the gap is met, and else NOT_CONVERGED stands."""
    y, lam, mask = problem(8, 0.4, size=4)
    best = float(maxent.objective(maxent.fit(y, lam, mask, t=100.0, config=TIGHT).covariance, y, lam, mask, 100.0))
    seen = set()
    for steps in (0, 1, 2, 5, 200):
        config = maxent.MaxentConfig(max_steps=steps, inner=inner, max_inner=100 if inner == "lbfgs" else 5000)
        found = maxent.fit(y, lam, mask, t=100.0, method=method, config=config)
        above = float(maxent.objective(found.covariance, y, lam, mask, 100.0)) - best
        assert int(found.steps) <= steps
        assert above <= float(found.gap) + 1e-9, "the gap bounds the error of every iterate"
        assert (int(found.status) == status.OK) == (float(found.gap) <= 1e-8 * 8)
        assert int(found.status) in (status.OK, status.NOT_CONVERGED)
        seen.add(int(found.status))
    assert status.NOT_CONVERGED in seen
    assert status.OK in seen or inner == "lbfgs"


@pytest.mark.parametrize("method", METHODS)
def test_a_stalled_objective_is_no_convergence(method: str) -> None:
    """A target below rounding: the loop ends by itself and says that it did not get there."""
    y, lam, mask = problem(8, 0.5, size=5)
    found = maxent.fit(y, lam, mask, t=1e3, method=method, config=maxent.MaxentConfig(tol=1e-40))
    assert int(found.status) == status.NOT_CONVERGED and int(found.steps) < 100
    assert float(found.gap) < 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_unmeasured_columns_are_left_out(method: str) -> None:
    """mask[j, j] False: the rest as without the column, its own rows zero, whatever stands in them."""
    y, lam, mask = problem(8, 0.5)
    keep = np.array([0, 1, 3, 4, 6, 7])
    mask[2, 2] = mask[5, 5] = False  # their edges stay in the mask
    gone = jnp.zeros((8, 8), bool).at[jnp.array([2, 5])].set(True)
    y, lam = jnp.where(gone | gone.T, jnp.nan, y), jnp.where(gone | gone.T, -1.0, lam)
    found = maxent.fit(y, lam, mask, method=method, config=TIGHT)
    at = np.ix_(keep, keep)
    small = maxent.fit(y[at], lam[at], mask[at], method=method, config=TIGHT)
    close(found.covariance[at], small.covariance)
    close(found.precision[at], small.precision)
    for matrix in (found.covariance, found.precision):
        assert not np.asarray(matrix)[[2, 5]].any() and not np.asarray(matrix)[:, [2, 5]].any()


@pytest.mark.parametrize("method", METHODS)
def test_nothing_measured_and_one_column(method: str) -> None:
    none = maxent.fit(jnp.eye(3), 1.0, np.zeros((3, 3), bool), method=method)
    assert not none.covariance.any() and int(none.status) == status.OK and float(none.gap) == 0.0
    one = maxent.fit(jnp.array([[-2.0]]), 4.0, np.ones((1, 1), bool), method=method, config=TIGHT)
    close(one.covariance, [[(-2 + np.sqrt(4 + 0.5)) / 2]])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", ["y", "lam zero", "lam negative", "lam nan", "lam inf", "t"])
def test_invalid_numbers_fail_closed(method: str, fault: str) -> None:
    """NaN and NOT_CONVERGED, at once, and only in the lane that has the fault."""
    y, lam, mask = problem(8, 0.5)
    bad_y = y.at[1, 1].set(jnp.nan) if fault == "y" else y
    values = {"lam zero": 0.0, "lam negative": -1.0, "lam nan": jnp.nan, "lam inf": jnp.inf}
    bad_lam = lam.at[2, 2].set(values[fault]) if fault in values else lam
    t = jnp.array([1.0, -1.0 if fault == "t" else 1.0])
    fit = jax.jit(jax.vmap(lambda y, lam, t: maxent.fit(y, lam, mask, t=t, method=method)))
    found = fit(jnp.stack([y, bad_y]), jnp.stack([lam, bad_lam]), t)
    assert np.isnan(found.covariance[1]).all() and np.isnan(found.gap[1])
    assert found.status.tolist() == [status.OK, status.NOT_CONVERGED]
    assert int(found.steps[1]) <= 5
    close(found.covariance[0], maxent.fit(y, lam, mask, method=method).covariance)


@pytest.mark.parametrize("method", METHODS)
def test_warm_start(method: str) -> None:
    """One more edge, from the precision without it: the same answer, in fewer steps than cold."""
    y, lam, mask = problem(8, 0.4)
    before = mask.copy()
    row, column = np.argwhere(np.triu(mask, 1))[3]
    before[row, column] = before[column, row] = False
    start = maxent.fit(y, lam, before, method=method, config=TIGHT).precision
    warm = maxent.fit(y, lam, mask, method=method, init=start, config=TIGHT)
    cold = maxent.fit(y, lam, mask, method=method, config=TIGHT)
    close(warm.covariance, cold.covariance)
    if method == "dual":
        quick = maxent.fit(y, lam, mask, method=method, init=start)
        assert int(quick.steps) <= 4 and int(quick.status) == status.OK
    again = maxent.fit(y, lam, mask, method=method, init=cold.precision)
    assert int(again.steps) <= 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["not positive definite", "nan", "zero", "far"])
def test_any_start_gives_the_same_answer(method: str, kind: str) -> None:
    y, lam, mask = problem(8, 0.4)
    cold = maxent.fit(y, lam, mask, method=method, config=TIGHT)
    far = jnp.diag(10.0 ** jnp.arange(-4.0, 4.0))
    inits = {"not positive definite": -far + 1.0, "nan": far * jnp.nan, "zero": 0 * far, "far": far}
    found = maxent.fit(y, lam, mask, method=method, init=inits[kind], config=TIGHT)
    close(found.covariance, cold.covariance)


@pytest.mark.parametrize("method", METHODS)
def test_a_hard_lane_does_not_change_the_others(method: str) -> None:
    """Under vmap over y, lam, t and masks, a lane's bits do not depend on what the other lanes hold."""
    cases = [make(0, n) for n in range(300) if make(0, n).d <= 8]
    hard = make(1, 19)  # five standard deviations below zero at t = 6,700
    easy = [c for c in cases if c.kind in ("feasible", "disconnected", "full")][1:3]

    def stacked(chosen: list[Any]) -> tuple[jax.Array, ...]:
        arrays = zip(*(padded(c) for c in chosen))
        return (*map(jnp.asarray, map(np.stack, arrays)), jnp.array([c.t for c in chosen]))

    fit = jax.jit(jax.vmap(lambda y, lam, mask, t: maxent.fit(y, lam, mask, t=t, method=method)))
    calm, mixed = fit(*stacked([*easy, easy[0]])), fit(*stacked([*easy, hard]))
    assert int(mixed.steps[2]) > int(calm.steps.max())
    for a, b in zip(jax.tree.leaves(calm), jax.tree.leaves(mixed)):
        assert np.array_equal(a[:2], b[:2])
    for lane, case in enumerate([*easy, hard]):
        y, lam, mask = padded(case)
        one = maxent.fit(jnp.asarray(y), jnp.asarray(lam), mask, t=case.t, method=method)
        assert int(one.status) == int(mixed.status[lane]) == status.OK
        close(mixed.covariance[lane], one.covariance, 1e-4)  # each within its gap of the optimum


@pytest.mark.parametrize("method", METHODS)
def test_lanes_go_one_by_one_on_a_cpu_and_in_step_elsewhere(method: str) -> None:
    """No factorisation of a batch on a CPU, so that no lane waits for another; nothing but those on a GPU."""
    y, lam, mask = problem(6, 0.5)
    fit = jax.jit(jax.vmap(lambda y: maxent.fit(y, lam, mask, method=method).covariance))
    traced = fit.trace(jnp.stack([y, 2.0 * y, 3.0 * y]))
    for platform, batched in (("cpu", False), ("cuda", True)):
        calls = re.findall(r"potrf.*", traced.lower(lowering_platforms=(platform,)).as_text())
        assert calls and all(("tensor<3x6x6xf64>" in call) == batched for call in calls)


def test_vmap_of_vmap() -> None:
    y, lam, mask = problem(6, 0.5)
    ys, ts = jnp.stack([y, 2.0 * y, 3.0 * y]), jnp.array([0.5, 2.0])
    one = jax.jit(lambda y, t: maxent.fit(y, lam, mask, t=t, config=TIGHT).covariance)
    found = jax.vmap(jax.vmap(one, (0, None)), (None, 0))(ys, ts)
    close(found, jnp.stack([jnp.stack([one(y, t) for y in ys]) for t in ts]))


def test_no_lane_pays_for_an_eigendecomposition_of_another() -> None:
    """A batched mask never makes both branches of the choice run: the batched program has no eigh."""
    y, lam, mask = problem(6, 0.5)
    masks = jnp.stack([jnp.asarray(mask), jnp.ones((6, 6), bool)])
    batched = str(jax.make_jaxpr(jax.vmap(lambda m: maxent.fit(y, lam, m).covariance))(masks))
    assert "eigh" in batched and "select_n" in batched  # it is there, in a branch of a `cond` that is not batched
    assert batched.count("cond[") >= 1
    dense = maxent.MaxentConfig(preconditioner="diagonal")
    assert "eigh" not in str(jax.make_jaxpr(jax.vmap(lambda m: maxent.fit(y, lam, m, config=dense).covariance))(masks))


@pytest.mark.parametrize("shape", ["box", "goe", "scattered"])
def test_automatic_preconditioner(shape: str) -> None:
    """Dense masks with precisions of row and column effects get the eigenbasis, others the diagonal; answers agree."""
    d = 8
    g = np.random.default_rng(1)
    lam = np.full((d, d), 100.0) + (100.0 * (d - 1) / 2 if shape == "box" else -50.0) * np.eye(d)
    if shape == "scattered":
        lam = lam * mirrored(10 ** g.uniform(-1, 1, (d, d)))
    y, mask = problem(d, 1.0)[0], np.ones((d, d), bool)
    assert bool(linear.suits_eigen(1 / jnp.asarray(lam), jnp.asarray(mask))) == (shape != "scattered")
    assert not bool(linear.suits_eigen(1 / jnp.asarray(lam), jnp.eye(d, dtype=bool)))
    steps = {}
    for choice in ("auto", "diagonal", "eigen", "exact"):
        config = maxent.MaxentConfig(tol=1e-16, preconditioner=choice)
        found = maxent.fit(y, lam, mask, config=config)
        close(found.covariance, maxent.fit(y, lam, mask, config=TIGHT).covariance)
        steps[choice] = int(found.inner_steps)
    assert steps["auto"] == steps["diagonal" if shape == "scattered" else "eigen"]
    if shape != "scattered":
        assert steps["eigen"] < 0.5 * steps["diagonal"]


@pytest.mark.parametrize("method", METHODS)
def test_edges_give_the_same_answer(method: str) -> None:
    y, lam, mask = problem(8, 0.4)
    edges = int(np.triu(mask, 1).sum())
    plain = maxent.fit(y, lam, mask, method=method, config=TIGHT)
    for count in (edges, 28):
        found = maxent.fit(y, lam, mask, method=method, config=maxent.MaxentConfig(tol=1e-18, max_edges=count))
        close(found.covariance, plain.covariance)
    short = maxent.fit(y, lam, mask, method=method, config=maxent.MaxentConfig(max_edges=edges - 1, max_steps=30))
    assert int(short.status) == status.NOT_CONVERGED


def test_lbfgs_and_the_plain_objective() -> None:
    """First-order use: L-BFGS in both parametrisations, and optax on the objective itself, reach Newton's answer."""
    y, lam, mask = problem(8, 0.5, size=1.0)
    found = maxent.fit(y, lam, mask, config=TIGHT)
    for diagonal in ("log", "softplus"):
        config = maxent.MaxentConfig(inner="lbfgs", diagonal=diagonal, tol=1e-12)
        first = maxent.fit(y, lam, mask, method="cholesky", config=config)
        assert int(first.status) == status.OK
        close(first.covariance, found.covariance, 1e-5)

    def loss(theta: jax.Array) -> jax.Array:
        factor = jnp.tril(theta, -1) + jnp.diag(jnp.exp(jnp.diagonal(theta)))
        return maxent.cholesky_objective(factor, y, lam, jnp.asarray(mask))

    best = jnp.linalg.cholesky(found.covariance)
    close(
        loss(jnp.tril(best, -1) + jnp.diag(jnp.log(jnp.diagonal(best)))),
        maxent.objective(found.covariance, y, lam, mask),
    )
    assert np.abs(jax.grad(maxent.cholesky_objective)(best, y, lam, jnp.asarray(mask))).max() < 1e-6
    optimizer = optax.adam(3e-3)
    theta = jnp.zeros((8, 8))
    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(theta)

        def step(carry: Any, _: Any) -> Any:
            theta, state = carry
            update, state = optimizer.update(jax.grad(loss)(theta), state)
            return (theta + update, state), None

        (theta, _), _ = jax.lax.scan(step, (theta, state), length=4000)
    assert float(loss(theta) - maxent.objective(found.covariance, y, lam, mask)) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_float32(method: str) -> None:
    """float32 in, float32 out; a status of 0 is worth what it says, and where rounding forbids it, it is not given."""
    settings = maxent.MaxentConfig(max_inner=500)
    converged = 0
    for number in range(60):
        case = make(0, number)
        if case.d > 8:
            continue
        y, lam, mask = padded(case)
        found = maxent.fit(np.float32(y), np.float32(lam), mask, t=case.t, method=method, config=settings)
        assert found.covariance.dtype == found.precision.dtype == found.gap.dtype == jnp.float32
        if int(found.status) == status.OK:
            converged += 1
            w = np.asarray(found.covariance, float)
            best = maxent.fit(y, lam, mask, t=case.t, config=TIGHT).covariance
            above = maxent.objective(jnp.asarray(w), y, lam, mask, case.t) - maxent.objective(
                best, y, lam, mask, case.t
            )
            assert float(above) <= 5e-4 * case.d, (number, case.kind)
    assert converged >= (15 if method == "dual" else 8)


@pytest.mark.x64_off
def test_x64_off() -> None:
    y, lam, mask = problem(6, 0.5)
    found = maxent.fit(y, lam, mask)
    assert found.covariance.dtype == jnp.float32 and int(found.status) == status.OK
    slope = jax.grad(lambda y: jnp.sum(maxent.fit(y, lam, mask, method="cholesky").covariance))(y)
    other = jax.grad(lambda y: jnp.sum(maxent.fit(y, lam, mask).covariance))(y)
    close(slope, other, 1e-2)


def test_jit_once_for_all_numbers() -> None:
    """Other values of y, lam, t and of every number of the config do not compile again."""
    y, lam, mask = problem(8, 0.5)
    traces = []

    @jax.jit
    def fit(y: Any, lam: Any, t: Any, config: maxent.MaxentConfig) -> maxent.MaxentResult:
        traces.append(1)
        return maxent.fit(y, lam, mask, t=t, config=config)

    for k in range(3):
        config = maxent.MaxentConfig(tol=1e-8 * 10**-k, max_steps=50 + k, max_inner=100 + k)
        fit(y * (1 + k), lam, 1.0 + k, config)
    assert len(traces) == 1


def test_scalar_lam_and_integers() -> None:
    y, _, mask = problem(4, 0.5)
    close(maxent.fit(y, 7.0, mask).covariance, maxent.fit(y, jnp.full((4, 4), 7.0), mask).covariance)
    full = jnp.full((4, 4), 7.0)
    for objective in (maxent.objective, maxent.cholesky_objective):
        at = 2.0 * jnp.eye(4)
        assert objective(at, y, 7.0, jnp.asarray(mask)) == objective(at, y, full, jnp.asarray(mask))
    whole = maxent.fit(2 * np.eye(3, dtype=int), 1, np.eye(3, dtype=bool))
    assert whole.covariance.dtype == jnp.float64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": jnp.ones((2, 3))}, "y must be a square matrix, got shape"),
        ({"y": jnp.ones((0, 0))}, "y must be a square matrix, got shape"),
        ({"lam": jnp.ones(3)}, "lam must be a number or have the shape of y"),
        ({"mask": np.ones((3, 3))}, "mask must be boolean of shape"),
        ({"mask": np.ones((2, 2), bool)}, "mask must be boolean of shape"),
        ({"t": 0.0}, "t must be finite and > 0"),
        ({"t": jnp.nan}, "t must be finite and > 0"),
        ({"t": jnp.ones(2)}, "t must be a single number"),
        ({"method": "newton"}, "method must be one of 'dual', 'cholesky'"),
        ({"init": jnp.eye(2)}, "init must have the shape of y"),
    ],
)
def test_static_faults_raise(change: dict[str, Any], message: str) -> None:
    arguments = {"y": jnp.eye(3), "lam": 1.0, "mask": np.ones((3, 3), bool), **change}
    with pytest.raises(ValueError, match=message):
        maxent.fit(arguments.pop("y"), arguments.pop("lam"), arguments.pop("mask"), **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tol": 0.0}, "tol must be"),
        ({"derivative_tol": -1.0}, "derivative_tol must be"),
        ({"preconditioner": "none"}, "preconditioner must be one of"),
        ({"inner": "adam"}, "inner must be one of"),
        ({"diagonal": "exp"}, "diagonal must be one of"),
        ({"max_edges": 0}, "max_edges must be an integer >= 1"),
        ({"memory": 2.5}, "memory must be an integer >= 1"),
    ],
)
def test_config_faults_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        maxent.MaxentConfig(**settings)
