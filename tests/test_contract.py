"""What every registered mechanism keeps to under JAX's transformations, with its budget and with its key.

Reads the registry: a mechanism enters by registering and by one case in `tests/contract_cases.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, ApproxDP, Bounds, PureDP, Release, status
from jaxdpcov.data.clip import clip
from jaxdpcov.mechanisms import _registry
from jaxdpcov.privacy import ledger
from tests import contract_cases as cases
from tests.contract_cases import EXAMPLES, FIRST, GAUSSIAN, MECHANISMS, ONE, SEVERAL, Example

KEY = jax.random.key(20)
EVERY = pytest.mark.parametrize("example", EXAMPLES, ids=str)
LIMITED = [example for example in EXAMPLES if example.case.has_limit(example.config)]
SUMS = [example for example in EXAMPLES if example.case.row_sums(example.config)]
CLIPPED = [example for example in EXAMPLES if example.case.fixed_bounds]
EACH = pytest.mark.parametrize("example", FIRST, ids=str)


def key(i: int = 0) -> jax.Array:
    return jax.random.fold_in(jax.random.clone(KEY), i)


def inputs(example: Example, seed: int = 0, stretch: float = 1.0):
    """Arguments of `cases.call` as arrays; `stretch` moves every public number but the ends of the unit box."""
    tree = cases.in_arrays((example.budget, example.bounds(), example.config))
    budget, bounds, config = jax.tree_util.tree_map(lambda leaf: stretch * leaf, tree)
    if example.bounds_name == "unit":
        bounds = tree[1]
    return key(seed), jnp.asarray(example.rows(seed=seed)), budget, bounds, config


def run(example: Example, *arguments) -> Release:
    """The public call. Its arguments are arrays, which it passes on to one compiled program as they are."""
    return cases.call(example, *arguments)


def test_every_mechanism_has_a_case() -> None:
    missing, stale = set(MECHANISMS) - set(cases.CASES), set(cases.CASES) - set(MECHANISMS)
    assert not missing, f"registered without a case in tests/contract_cases.py: {sorted(missing)}"
    assert not stale, f"cases of mechanisms that are not registered: {sorted(stale)}"
    tried = {(e.mechanism.name, type(e.budget)) for e in EXAMPLES}
    assert tried == {(m.name, budget) for m in MECHANISMS.values() for budget in m.budgets if budget in cases.BUDGETS}
    bounds = {(e.mechanism.name, type(e.bounds())) for e in EXAMPLES}
    assert bounds == {(m.name, kind) for m in MECHANISMS.values() for kind in m.bounds}


@EVERY
def test_other_numbers_compile_nothing(example: Example) -> None:
    """The public call with plain numbers; then another key, other rows and other numbers throughout."""
    plain = cases.call(example, key(), example.rows(), example.budget, example.bounds(), example.config)
    assert plain.mechanism == example.mechanism.name
    assert cases.answer(plain).shape == (example.d,) and cases.answer(plain).dtype == np.float64
    assert plain.covariance is None or plain.covariance.shape == (example.d, example.d)
    other = inputs(example, 1, 0.9)
    assert cases.compilations(lambda: run(example, *other)) == []
    again = run(example, *inputs(example))
    cases.assert_same(plain, again, rtol=0.0)  # one key, one release, to the last bit, arrays or plain numbers


def test_the_count_of_compilations_counts() -> None:
    """The planted fault of the test above: another shape is compiled anew, so is a static field."""
    example = GAUSSIAN
    calls = cases.compilations(lambda: cases.call(example, *inputs(example)[:1], np.ones((5, 2)), *_public(example, 2)))
    assert len(calls) >= 1


def _public(example: Example, d: int):
    return example.budget, example.bounds(d), example.config


@pytest.mark.parametrize("example", ONE, ids=str)
def test_jit_is_the_plain_call(example: Example) -> None:
    """Inside a caller's jit, data and settings closed over or passed, the result is that of the plain call."""
    arguments = inputs(example)
    inside = jax.jit(lambda key_, x, *public: (cases.call(example, key_, x, *public), jnp.sum(x)))
    # Called plainly, pace and auto are several programs, whose rounding their solver magnifies.
    rtol = 1e-10 if example.mechanism.name in ("auto", "pace") else 1e-12
    cases.assert_same(inside(*arguments)[0], run(example, *arguments), rtol=rtol)


@pytest.mark.parametrize("example", [e for e in SEVERAL if e in ONE or isinstance(e.budget, ZCDP)], ids=str)
def test_vmap_inside_jit_is_a_loop(example: Example) -> None:
    """Over lanes of keys, data sets, budgets, bounds and config numbers at once."""
    lanes = [inputs(example, i, stretch) for i, stretch in enumerate((1.0, 0.8, 1.1))]
    batched = jax.jit(jax.vmap(lambda *arguments: cases.call(example, *arguments)))
    together = batched(*(cases.stack(*column) for column in zip(*lanes)))
    assert str(together).startswith(f"Release({example.mechanism.name}, batch (3,)")
    for i, arguments in enumerate(lanes):
        cases.assert_same(cases.lane(together, i), run(example, *arguments), rtol=1e-11)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["keys", "rows", "budgets"])
def test_vmap_over_one_argument(axis: int) -> None:
    """The public call itself under vmap: keys of one data set, data sets under one key, a sweep over budgets."""
    example = next(e for e in EXAMPLES if jax.tree_util.tree_leaves(e.config))
    lanes = [inputs(example, 0) for _ in range(3)]
    for i, changed in enumerate((inputs(example, 0), inputs(example, 1, 0.8), inputs(example, 2, 1.1))):
        lanes[i] = tuple(changed[axis] if j == axis else value for j, value in enumerate(lanes[i]))
    axes = [0 if j == axis else None for j in range(5)]
    arguments = [cases.stack(*column) if j == axis else column[0] for j, column in enumerate(zip(*lanes))]
    together = jax.vmap(lambda *a: cases.call(example, *a), axes)(*arguments)
    for i, single in enumerate(lanes):
        cases.assert_same(cases.lane(together, i), run(example, *single), rtol=1e-11)


def _fold_tree(node, price):
    """The total of a ledger by its definition, independent of `ledger.total`."""
    if isinstance(node, ledger.Entry):
        return price(node)
    if isinstance(node, ledger.Rounds):
        return sum(price(entry) for entry in ledger.entries(node))
    parts = [_fold_tree(child, price) for child in node.children]
    return sum(parts) if isinstance(node, ledger.Seq) else max(parts)


@EVERY
def test_ledger_is_the_budget(example: Example) -> None:
    """Entries add up to the budget asked for, to 1e-12 of it and never above it; every scale fits its sensitivity."""
    for rho in (1e-8, 0.37, 1e8):
        key_, x, _, bounds, config = inputs(example)
        budget = cases.in_arrays(cases.high_budget(example.budget, rho))
        release = run(example, key_, x, budget, bounds, config)
        asked = float(cases.amount(budget))
        assert type(release.spent) is type(example.budget)
        spent = float(cases.amount(release.spent))
        assert asked * (1 - 1e-12) <= spent <= asked
        unit = "rho" if isinstance(example.budget, ZCDP) else "epsilon"

        def price(entry, unit=unit):
            if entry.unit == unit:
                return float(entry.cost)
            assert unit == "rho"  # Gaussian noise in a pure release would be a fault
            return float(entry.cost) ** 2 / (8 if entry.kind == "exponential" else 2)

        assert _fold_tree(release.ledger, price) == pytest.approx(spent, rel=1e-13)
        for entry in ledger.entries(release.ledger):
            cost = float(entry.cost)
            if entry.kind == "gaussian":
                assert float(entry.scale) == pytest.approx(float(entry.sensitivity) / np.sqrt(2 * cost), rel=1e-12)
            elif entry.kind == "laplace":
                assert float(entry.scale) == pytest.approx(float(entry.sensitivity) / cost, rel=1e-12)
            assert entry.what and float(entry.sensitivity) > 0


@EVERY
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_invalid_traced_budget_fails_closed(example: Example, bad: float) -> None:
    key_, x, budget, bounds, config = inputs(example)
    release = run(example, key_, x, cases.with_amount(budget, jnp.asarray(bad)), bounds, config)
    assert int(release.status) & status.INVALID_BUDGET
    for name, value in cases.paths(release.measured).items():
        assert np.all(np.isnan(value)), name
    assert np.all(np.isnan(cases.answer(release)))
    if release.mean is not None:
        assert np.all(np.isnan(release.mean))


@EVERY
def test_invalid_traced_bounds_and_settings_fail_closed(example: Example) -> None:
    key_, x, budget, bounds, config = inputs(example)
    wrong = {"not a number": jax.tree_util.tree_map(lambda leaf: leaf * jnp.nan, bounds)}
    if example.bounds_name in ("box", "unit"):
        wrong["inverted"] = jax.tree_util.tree_map(lambda leaf: -leaf, bounds)
    if example.bounds_name == "l2":
        wrong["radius 0"] = jax.tree_util.tree_map(lambda leaf: 0.0 * leaf, bounds)
    for name, bad in wrong.items():
        release = run(example, key_, x, budget, bad, config)
        assert np.all(np.isnan(cases.answer(release))), name
        assert int(release.status) & status.INVALID_BOUNDS, name
    used = getattr(example.config, "relation", "replace") == "add_remove"
    if used and jax.tree_util.tree_leaves(config):
        release = run(example, key_, x, budget, bounds, jax.tree_util.tree_map(lambda leaf: -leaf, config))
        assert np.all(np.isnan(cases.answer(release))) and int(release.status) != status.OK


@EACH
def test_wrong_public_arguments_raise_and_name_it(example: Example) -> None:
    x, good, bounds, config = example.rows(), example.budget, example.bounds(), example.config
    for bad in ("abc", 0.5, None, True, [1.0]):
        with pytest.raises(TypeError, match="budget must be ZCDP"):
            cases.call(example, key(), x, bad, bounds, config)
    with pytest.raises(ValueError, match="one budget.*vmap"):
        cases.call(example, key(), x, cases.with_amount(good, jnp.ones(2)), bounds, config)
    for kind in (ZCDP, PureDP):
        for number in (0, 0.0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="must be finite and > 0"):
                kind(number)
        for text in ("abc", None, True):
            with pytest.raises(TypeError, match="must be a number"):
                kind(text)
    for delta in (0, 1, -0.1, float("nan")):
        with pytest.raises(ValueError, match="delta"):
            ApproxDP(1.0, delta)
    for wrong in (None, 1.0, "box", (0.0, 1.0)):
        with pytest.raises(TypeError, match=f"{example.mechanism.name} needs Bounds"):
            cases.call(example, key(), x, good, wrong, config)
    for wrong in (np.ones(3), np.ones((2, 2, 2)), np.ones((0, 3)), np.ones((3, 0)), np.float64(1.0)):
        with pytest.raises(ValueError, match=r"rows must have shape \(n, d\)"):
            cases.call(example, key(), wrong, good, bounds, config)
    for wrong in (np.full((3, 3), "a"), np.ones((3, 3), complex), jnp.ones((3, 3), jnp.complex64)):
        with pytest.raises(TypeError, match="rows must be"):
            cases.call(example, key(), wrong, good, bounds, config)
    message = f"one entry for each of the {example.d + 1} columns|rows of one column"
    with pytest.raises(ValueError, match=message):
        cases.call(example, key(), np.ones((5, example.d + 1)), good, bounds, config)
    with pytest.raises(TypeError, match=f"{example.mechanism.name} takes config={example.mechanism.config.__name__}"):
        cases.call(example, key(), x, good, bounds, {"center": "zero"})
    for wrong in (0, None, np.zeros(2), "key"):
        with pytest.raises(TypeError, match="key must be a JAX PRNG key"):
            cases.call(example, wrong, x, good, bounds, config)
    with pytest.raises(ValueError, match="one key.*vmap"):
        cases.call(example, jax.random.split(key()), x, good, bounds, config)
    allowed = example.mechanism.budgets
    for other in {ZCDP, PureDP} - set(allowed):
        message = "no pure-DP budget buys" if other is PureDP else r"PureDP\.from_zcdp"
        with pytest.raises(TypeError, match=message):
            cases.call(example, key(), x, other(0.5), bounds, config)
    if ApproxDP in allowed:
        return  # spent as it is
    if ZCDP in allowed:
        with pytest.raises(TypeError, match="convert outside jit"):
            jax.jit(lambda e: cases.call(example, key(), x, ApproxDP(e, 1e-6), bounds, config).status)(1.0)
    else:
        with pytest.raises(TypeError, match="give PureDP"):
            cases.call(example, key(), x, ApproxDP(1.0, 1e-6), bounds, config)


def test_messages_show_no_rows() -> None:
    """An error about rows says their shape or dtype, and none of their values."""
    secret = np.full((3, 3), "8675309")
    for wrong in (secret, secret.astype(object), np.full(3, 8675309.0), np.full((3, 3), 8675309 + 0j)):
        with pytest.raises((TypeError, ValueError)) as caught:
            cases.call(GAUSSIAN, key(), wrong, GAUSSIAN.budget, GAUSSIAN.bounds(), None)
        assert "8675309" not in str(caught.value)


# One key: the same draws again for the same inputs, independent draws for any other.


def _data(key_) -> bytes:
    return np.asarray(jax.random.key_data(key_)).tobytes()


def test_keys_differ_in_every_public_input() -> None:
    """The folded keys of 40 near-identical inputs: one bit of one number, a swap, a shape, a name, a static field."""
    from jaxdpcov import DiagonalConfig, GaussianConfig

    one = np.float64(1.0)
    trees = [
        ("gaussian", (ZCDP(rho), Bounds.l2(radius), config))
        for rho in (0.5, np.nextafter(0.5, 1), 2.0, 1e-300)
        for radius in (1.0, np.nextafter(1.0, 2), 2.0, 0.5)
        for config in (GaussianConfig(), GaussianConfig(center="zero"))
    ]
    trees += [("laplace", trees[0][1]), ("diagonal", trees[0][1]), ("gaussian", (PureDP(0.5), *trees[0][1][1:]))]
    trees += [("gaussian", (ZCDP(0.5), bounds, GaussianConfig())) for bounds in (
        Bounds.box(0.0, 1.0), Bounds.box(-1.0, 0.0), Bounds.box(0.0, 2.0),
        Bounds.box(np.array([0.0, 1.0]), 2 * one), Bounds.box(0 * one, np.array([1.0, 2.0])),
        Bounds.box(np.array([0.0, 1.0]), np.array([2.0, 2.0])), Bounds.box(np.array([1.0, 0.0]), np.array([2.0, 2.0])),
        Bounds.l2(1.0, 0.0), Bounds.l2(1.0, np.zeros(2)),
    )]  # fmt: skip
    trees += [("gaussian", (ZCDP(0.5), Bounds.l2(1.0), config)) for config in (
        DiagonalConfig(), GaussianConfig(relation="add_remove"), GaussianConfig(noise="sgw"),
        GaussianConfig(shrink=True), GaussianConfig(mean_share=0.05), GaussianConfig(n_share=0.06),
        GaussianConfig(mean_share=0.06, n_share=0.05),
    )]  # fmt: skip
    found = {_data(_registry.fold(key(), name, cases.in_arrays(tree))) for name, tree in trees}
    assert len(found) == len(trees)


LANES = 10_000


@pytest.mark.parametrize("example", [e for e in ONE if e.bounds_name == "l2"], ids=str)
def test_one_key_at_other_settings_gives_independent_noise(example: Example) -> None:
    """Correlation over 10,000 keys of the noise at settings one rounding apart: |r| < 0.05 alarms at a rate of 6e-7."""
    x = jnp.asarray(cases.rows(4, 1))
    arguments = cases.in_arrays((example.budget, example.bounds(1), example.config))
    keys = jax.random.split(jax.random.clone(KEY), LANES)

    @jax.jit
    def noise(keys, budget, bounds, config):
        def one(each):
            measured = cases.call(example, each, x, budget, bounds, config).measured
            return jnp.concatenate([jnp.ravel(m.value) for m in measured.values()])

        return jax.vmap(one)(keys)

    def at(*changes):
        return np.asarray(noise(jax.random.clone(keys), *changes))

    base = at(*arguments)
    assert np.array_equal(base, at(*arguments))
    within = np.corrcoef(base.T)
    assert np.max(np.abs(within - np.eye(len(within)))) < 0.05  # mean and covariance draw apart
    for changed in range(3):
        moved = list(arguments)
        moved[changed] = jax.tree_util.tree_map(lambda leaf: jnp.nextafter(leaf, leaf + 1), moved[changed])
        other = at(*moved)
        joint = np.corrcoef(base.T, other.T)[: len(within), len(within) :]
        assert np.max(np.abs(joint)) < 0.05, changed
    # The planted fault: the same draws at another scale are fully correlated.
    assert np.corrcoef(base[:, 0], 1.7 * base[:, 0])[0, 1] > 0.99


def test_mechanisms_draw_apart() -> None:
    """One key through two mechanisms with the same bounds and budget: no draw in common."""
    x, pairs = jnp.zeros((4, 1)), []
    for name, budget in (("gaussian", ZCDP(0.5)), ("diagonal", ZCDP(0.5)), ("laplace", PureDP(1.0))):
        mechanism = MECHANISMS[name]
        config = mechanism.config(center="zero")
        one = lambda k, m=mechanism, b=budget, c=config: m.function(k, x, b, Bounds.l2(1.0), config=c).measured  # noqa: E731
        keys = jax.random.split(jax.random.clone(KEY), LANES)
        pairs.append(np.ravel(jax.jit(jax.vmap(one))(keys)["second_moment"].value))
    assert np.max(np.abs(np.corrcoef(pairs) - np.eye(3))) < 0.05


def test_the_count_moves_the_draws_where_it_is_public() -> None:
    """The mean's share depends on a public n: the same draws at two counts would give the exact sum by subtraction."""
    from jaxdpcov import GaussianConfig, Rows

    example = next(e for e in EXAMPLES if e.mechanism.name == "gaussian")
    budget, bounds = ZCDP(0.5), Bounds.l2(1.0)
    call = jax.jit(
        lambda n: example.mechanism.function(
            key(), Rows.array(jnp.zeros((4, 1)), n=n), budget, bounds, config=GaussianConfig(center="zero", psd="none")
        ).measured["second_moment"]
    )
    draws = [float(m.value[0, 0] / m.std[0, 0]) for m in (call(4.0), call(5.0), call(8.0))]
    assert len({round(draw, 6) for draw in draws}) == 3


def test_the_number_of_columns_moves_the_draws() -> None:
    """Box noise grows with d: the same draws for two sets of columns would give what they share by subtraction."""
    from jaxdpcov import GaussianConfig

    mechanism, config = MECHANISMS["gaussian"].function, GaussianConfig(center="zero", psd="none")
    draws = []
    for d in (1, 2, 3):
        measured = mechanism(key(), np.zeros((4, d)), ZCDP(0.5), Bounds.box(-1.0, 1.0), config=config).measured
        draws.append(float(measured["second_moment"].value[0, 0] / measured["second_moment"].std[0, 0]))
    assert len({round(draw, 6) for draw in draws}) == 3


def test_legacy_keys_are_accepted() -> None:
    example = GAUSSIAN
    new = cases.call(example, jax.random.key(3), cases.rows(), *_public(example, cases.D))
    old = cases.call(example, jax.random.PRNGKey(3), cases.rows(), *_public(example, cases.D))
    cases.assert_same(new, old, rtol=0.0)


# Rows: clipping, order, hazards, and the answer without noise.

#: One hazard each, in place of some rows: what a file may hold.
HAZARDS = {
    "NaN": lambda x: _with(x, 0, np.nan),
    "one NaN cell": lambda x: _with(x, (0, -1), np.nan),
    "infinities": lambda x: _with(_with(x, 0, np.inf), (1, 0), -np.inf),
    "1e300": lambda x: _with(_with(x, 0, 1e300), (1, 0), -1.7e308),
    "subnormal": lambda x: 5e-324 * np.sign(x),
    "constant": lambda x: np.full_like(x, 0.7),
    "one constant column": lambda x: _with(x, (slice(None), -1), 0.7),
    "duplicates": lambda x: np.repeat(x[:2], cases.N // 2, axis=0),
    "all clipped": lambda x: 1e6 * x,
    "all zero": lambda x: 0.0 * x,
    "all NaN": lambda x: np.nan * x,
}


def _with(x: np.ndarray, where, value) -> np.ndarray:
    x = x.copy()
    x[where] = value
    return x


def with_rows(example: Example, x: np.ndarray, seed: int = 0):
    key_, _, *public = inputs(example, seed)
    return key_, jnp.asarray(x), *public


@EVERY
def test_hazardous_rows_give_sound_releases_and_move_nothing_public(example: Example) -> None:
    """Finite, exactly symmetric, PSD where promised; budget, ledger and shape are those of any other rows."""
    usual = run(example, *inputs(example))
    for name, spoil in HAZARDS.items():
        release = run(example, *with_rows(example, spoil(example.rows())))
        cases.assert_sound(release, psd=example.psd)
        if example.fixed_ledger:
            cases.assert_same(release.ledger, usual.ledger, rtol=0.0)
        cases.assert_same(release.spent, usual.spent, rtol=0.0)
        stds = [jax.tree_util.tree_map(lambda m: m.std, r.measured, is_leaf=_is_measured) for r in (release, usual)]
        if example.fixed_ledger:
            cases.assert_same(*stds, rtol=0.0)  # a noise scale that moved with the rows would tell of them
        assert jax.tree_util.tree_structure(release) == jax.tree_util.tree_structure(usual), name


def _is_measured(node) -> bool:
    return type(node).__name__ == "Measured"


@EVERY
@pytest.mark.parametrize("rho", [1e-8, 1e8])
def test_extreme_budgets_give_sound_releases(example: Example, rho: float) -> None:
    key_, x, _, bounds, config = inputs(example)
    budget = cases.in_arrays(cases.high_budget(example.budget, rho))
    cases.assert_sound(run(example, key_, x, budget, bounds, config), psd=example.psd)


@pytest.mark.parametrize("example", LIMITED, ids=str)
def test_an_infinite_budget_gives_the_limit_without_noise(example: Example) -> None:
    """Within 6 noise scales of the plain-NumPy limit at a large rho; beyond them at rho = 0.1, so that it can fail."""
    x, bounds, config = cases.rows(), example.bounds(), example.config
    budget = cases.high_budget(example.budget, example.case.large)
    release = run(example, key(), jnp.asarray(x), *cases.in_arrays((budget, bounds, config)))
    limit = example.case.limit(example, x, bounds, config, budget, release)
    assert np.linalg.norm(release.covariance - limit.covariance) <= 6 * limit.covariance_scale
    assert limit.covariance_scale < 0.01 * np.linalg.norm(limit.covariance)
    if limit.mean is not None and release.mean is not None:
        assert np.linalg.norm(release.mean - limit.mean) <= 6 * limit.mean_scale
    low = cases.in_arrays(cases.high_budget(example.budget, 0.1))
    noisy = run(example, key(), jnp.asarray(x), low, *cases.in_arrays((bounds, config)))
    assert np.linalg.norm(noisy.covariance - limit.covariance) > 6 * limit.covariance_scale


@pytest.mark.parametrize("example", SUMS, ids=str)
def test_order_of_rows_does_not_matter(example: Example) -> None:
    order = np.random.default_rng(0).permutation(cases.N)
    left, right = (run(example, *with_rows(example, x)) for x in (example.rows(), example.rows()[order]))
    cases.assert_same(left, right, rtol=1e-10)


@pytest.mark.parametrize("example", CLIPPED, ids=str)
def test_clipping_is_part_of_the_mechanism(example: Example) -> None:
    """f(key, X) = f(key, clip(X)) bit for bit in a box and about 0; about another centre to 1e-12."""
    wild = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1e6, 0.0, 0.0], [-3.0, 1e300, 0.1], [np.inf, 0.0, 0.0]])
    x = np.concatenate([wild, 3.0 * cases.rows(cases.N - len(wild), seed=5)])
    key_, _, budget, bounds, config = inputs(example)
    centers = [(bounds, 1e-12)]
    if example.bounds_name == "l2":
        centers.append((Bounds.l2(bounds.radius, 0.0 * bounds.center), 0.0))
    else:
        centers = [(bounds, 0.0), (Bounds.box(0.0 * bounds.lower, 0.0 * bounds.upper + 1.0), 0.0)]
    for about, rtol in centers:
        clipped = clip(jnp.asarray(x), about)
        assert not np.array_equal(clipped, x, equal_nan=True)
        shrunk = clip(jnp.asarray(x), jax.tree_util.tree_map(lambda leaf: 0.99 * leaf, about))
        tried = (jnp.asarray(x), clipped, shrunk)
        plenty = cases.in_arrays(cases.high_budget(example.budget, 1e4))
        for amount in (budget, plenty):
            left, right, other = (run(example, key_, rows, amount, about, config) for rows in tried)
            cases.assert_same(left, right, rtol=rtol, floor=1.0)
        # The planted fault: rows clipped to bounds a hundredth smaller give another answer.
        assert not np.array_equal(cases.answer(other), cases.answer(left))
