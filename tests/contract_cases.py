"""The one table that says how to try each registered mechanism; the contract tests read it and `MECHANISMS`, no more.

A new mechanism enters the contract suite with one `Case` in `CASES`: its settings, and its own noise-free limit.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxdpcov.mechanisms  # noqa: F401  (registers them)
from jaxdpcov import ZCDP, Bounds, PureDP
from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.mechanisms._registry import MECHANISMS, Mechanism
from tests.mechanisms.klsu_cases import without_noise
from tests.reference import moments as reference
from tests.reference import separate as ball

N, D = 12, 3


class Limit(NamedTuple):
    """A mechanism's answer without noise, and the size of the noise around it (Frobenius norm, l2 norm)."""

    covariance: np.ndarray
    mean: np.ndarray | None
    covariance_scale: float
    mean_scale: float = 0.0


class Case(NamedTuple):
    """How to try one mechanism.

    variants: name -> (keywords of its config, the bounds to try it with by the names below).
    limit: (example, x, bounds, config, budget, release) -> Limit; of the release, public numbers only (how it shared
        its budget); None where the mechanism's own tests have it. has_limit: config -> whether there is a closed form.
    fixed_bounds: rows enter only through one fixed public bound, so that clipping them beforehand changes nothing.
    row_sums: the answer is a function of sums over rows: their order and their home do not matter.
    smooth: gradients in budget, bounds, rows and config are finite.
    fixed_ledger: no cost and no sensitivity depends on earlier (noisy) outputs.
    large: the rho at which noise is below a hundredth of the answer on the contract's rows.
    columns: the number of columns where the mechanism takes no other.
    one_row: with pairs, one row (which makes none) gives an answer of noise alone, not NaN.
    passes: how many different sums over the rows it asks for, one pass over a stream each.
    """

    variants: dict[str, tuple[dict[str, Any], tuple[str, ...]]]
    limit: Callable[..., Limit] | None
    has_limit: Callable[[Any], bool] = lambda config: True
    fixed_bounds: bool = True
    row_sums: Callable[[Any], bool] = lambda config: True
    smooth: bool = True
    fixed_ledger: bool = True
    large: float = 1e8
    columns: int | None = None
    passes: int = 1
    one_row: bool = False


#: Bounds by name for d columns: l2 about a public centre, a box off zero, [0, 1]^d, a range of covariances and means.
BOUNDS: dict[str, tuple[type, Callable[[int], Any]]] = {
    "l2": (L2Bounds, lambda d: Bounds.l2(2.0, np.linspace(0.5, -0.25, d))),
    "box": (BoxBounds, lambda d: Bounds.box(np.linspace(-1.0, 0.5, d), np.linspace(1.5, 2.0, d))),
    "unit": (BoxBounds, lambda d: Bounds.box(np.zeros(d), np.ones(d))),
    "spectrum": (
        SpectrumBounds,
        lambda d: Bounds.spectrum(0.2, 9.0, mean_center=np.linspace(0.5, -0.25, d), mean_radius=4.0),
    ),
}
BUDGETS: dict[type, Any] = {ZCDP: ZCDP(0.5), PureDP: PureDP(1.0)}

_BOTH = ("l2", "box")


def _moment_limit(example: "Example", x: np.ndarray, bounds: Any, config: Any, budget: Any, release: Any) -> Limit:
    """Gaussian family: the clipped moments, and the stated noise carried through covariance = M - m m^T."""
    n, d = x.shape
    plain = as_reference(bounds)
    shape = reference.Shape(
        domain="ball" if plain[0] == "l2" else "box",
        d=d,
        center=config.center,
        relation=config.relation,
        noise=config.noise,
        pure=isinstance(budget, PureDP),
        diagonal=example.mechanism.name == "diagonal",
    )
    share = float(release.diagnostics.get("mean_share", 0.0))
    noise = reference.stds(shape, amount(budget), share, float(config.n_share))
    if shape.diagonal:
        noise["second"] = np.diag(noise["second"])
    covariance, mean = reference.moments(x, plain, config.center)
    if shape.diagonal:
        covariance = np.diag(np.diag(covariance))
    covariance = reference.psd(covariance) if config.psd != "none" else covariance
    scale = reference.frame(plain, d)[1]
    # |m| <= 1 per column, and the count multiplies everything (second moments are at most 1 or 2 in z).
    error = (noise["second"] + 4.0 * noise["first"][:, None] + 4.0 * noise["n"]) / n
    if config.psd == "floor":
        error = error + np.eye(d) * 4.0 * np.max(noise["second"]) / n
    covariance_scale = float(np.linalg.norm(error * np.outer(scale, scale)))
    mean_scale = float(np.linalg.norm((noise["first"] + noise["n"]) / n * scale))
    return Limit(covariance, mean, covariance_scale, mean_scale)


def _ball_limit(example: "Example", x: np.ndarray, bounds: Any, config: Any, budget: Any, release: Any) -> Limit:
    """Unit ball: moments of the rows clipped at the public (or privately chosen) radius, and the stated noise."""
    n, d = x.shape
    u = ball.unit_rows(x, as_reference(bounds))
    whole = float(bounds.radius) if isinstance(bounds, L2Bounds) else float(np.sqrt(d))
    at = release.extra.get("radius", getattr(config, "radius", whole))
    radius = min(float(at) / whole, 1.0)
    pairs = [(2 * i, 2 * i + 1) for i in range(n // 2)]
    rows_, factor = (ball.paired_rows(u, pairs), 2.0) if config.center == "pairs" else (u, 1.0)
    w = radius * ball.clipped(rows_, radius)
    covariance, mean = factor * ball.second_moment(w) / len(w), None
    if config.center == "private":
        covariance, mean = covariance - np.outer(w.mean(0), w.mean(0)), w.mean(0)
    shape = ball.Shape(d, config.relation, config.center == "pairs", config.noise, isinstance(budget, PureDP))
    cost, add = amount(budget), shape.relation == "add_remove"
    count_cost, cost = (cost * config.n_share, cost * (1 - config.n_share)) if add else (np.inf, cost)
    cost *= 1.0 - getattr(config, "trace_share", 0.0) - getattr(config, "radius_share", 0.0)
    first_cost = cost * float(release.diagnostics.get("mean_share", 0.0))
    second_cost = (cost - first_cost) * np.array([config.spectrum, 1 - config.spectrum])
    # Noise of w w^T counts twice: once itself, once the turn of its eigenvectors, were the form the separate one.
    error = 2.0 * ball.std(shape, "second", second_cost[1], radius)
    error = (error + np.eye(d) * ball.std(shape, "spectrum", second_cost[0], radius)) * factor * radius**2 / len(w)
    mean_error = 0.0 if mean is None else radius * float(ball.std(shape, "first", first_cost)) / n
    count_error = float(ball.std(shape, "n", count_cost)) / n
    error = error + 2 * (mean_error + count_error * np.abs(factor * ball.second_moment(w) / len(w)))
    center, scale = np.asarray(release.center, float), np.asarray(release.scale, float)
    covariance = covariance * np.outer(scale, scale)
    limit = reference.psd(covariance) if config.psd != "none" else covariance
    at_center = None if mean is None else center + scale * mean
    size = float(np.linalg.norm(error * np.outer(scale, scale)))
    return Limit(limit, at_center, size, float(np.linalg.norm((mean_error + count_error) * scale)))


def _directions_limit(example: "Example", x: np.ndarray, bounds: Any, config: Any, budget: Any, release: Any) -> Limit:
    """Drawn eigenvectors: the limit of the unit ball, with the spread of a Bingham law around each eigenvector.

    The angle between eigenvectors i and j has variance 1/(2 strength (l_i - l_j)), which moves the matrix by the
    (l_i - l_j) sqrt(2) of it: strength is half of one draw's epsilon (all of it under add/remove).
    """
    limit = _ball_limit(example, x, bounds, config, budget, release)
    n, d = x.shape
    add = config.relation == "add_remove"
    cost = amount(budget) * (1 - config.n_share if add else 1.0) * (1 - config.spectrum)
    cost *= 1 - float(release.diagnostics.get("mean_share", 0.0))
    epsilon = cost / (d - 1) if isinstance(budget, PureDP) else np.sqrt(8 * cost / (d - 1))
    strength = epsilon * (1.0 if add else 0.5) * (0.5 if config.constants == "paper" else 1.0)
    u = ball.unit_rows(x, as_reference(bounds))
    values = np.linalg.eigvalsh(n * ball.second_moment(u))
    gaps = sum(abs(a - b) for a, b in itertools.combinations(values, 2))
    spread = np.sqrt(gaps / strength) / n * float(np.max(np.asarray(release.scale)) ** 2)
    return limit._replace(covariance_scale=limit.covariance_scale + spread)


def _sums(config: Any) -> bool:
    """Pairs depend on the order of the rows, and their limit on the pairing."""
    return config.center != "pairs"


CASES: dict[str, Case] = {
    "gaussian": Case(
        {
            "default": ({}, _BOTH),
            "zero": ({"center": "zero", "psd": "none"}, _BOTH),
            "pairs": ({"center": "pairs", "noise": "sgw"}, ("l2",)),
            "add_remove": ({"relation": "add_remove", "psd": "floor"}, ("box",)),
            "share": ({"mean_share": 0.3, "psd": "none", "shrink": True}, ("box",)),
        },
        _moment_limit,
        has_limit=_sums,
        row_sums=_sums,
    ),
    "laplace": Case(
        {
            "default": ({}, ("l2",)),
            "pairs": ({"center": "pairs", "psd": "floor", "shrink": True}, ("l2",)),
            "add_remove": ({"relation": "add_remove", "center": "zero"}, ("box",)),
        },
        _moment_limit,
        has_limit=_sums,
        row_sums=_sums,
    ),
    "diagonal": Case(
        {
            "default": ({}, ("l2",)),
            "add_remove": ({"relation": "add_remove", "psd": "none"}, ("box",)),
        },
        _moment_limit,
        has_limit=_sums,
        row_sums=_sums,
    ),
}


_AT = {"radius": 1.1}
_PAPER = {"center": "zero", "psd": "none", "constants": "paper", "noise": "sgw"}
_ADD_REMOVE = {"relation": "add_remove", "psd": "floor"}
for _name, _variants in {
    "separate": {"default": ({}, ("l2",)), "zero": (_PAPER, ("box",))},
    "clipped_gaussian": {"default": (_AT, ("l2",)), "add_remove": (_AT | _ADD_REMOVE, ("box",))},
    "clipped_separate": {"default": (_AT, ("box",)), "pairs": (_AT | {"center": "pairs"}, ("l2",))},
    "adaptive": {"default": ({}, ("l2",)), "zero": (_PAPER, ("l2",)), "add_remove": (_ADD_REMOVE, ("box",))},
}.items():
    CASES[_name] = Case(
        _variants, _ball_limit, has_limit=_sums, row_sums=_sums, fixed_ledger=_name != "adaptive", passes=2
    )


CASES["emcov"] = Case(
    {
        "default": ({}, ("l2",)),
        "add_remove": ({"relation": "add_remove", "psd": "none"}, ("box",)),
    },
    _directions_limit,
    has_limit=_sums,
    row_sums=_sums,
    smooth=False,  # a rejection loop has no derivative
    large=1e15,  # the error of a direction falls like 1 / sqrt(epsilon)
)


_TWO, _ONE = {"rounds": 2, "center": "zero"}, {"rounds": 2, "mean_rounds": 1}
_THEORY = {"rounds": 2, "constants": "theory", "noise": "sgw", "psd": "none", "split": (0.25, 0.75)}
for _name, _variants in {
    "covariance": {"default": (_TWO, ("spectrum",)), "pairs": (_THEORY, ("spectrum",))},
    "gaussian": {"default": (_ONE, ("spectrum",))},
    "mean": {"default": (_TWO, ("spectrum",))},
    "mean_1d": {"default": (_TWO, ("spectrum",))},
    "variance_1d": {"default": (_TWO, ("spectrum",))},
}.items():
    CASES[f"coinpress_{_name}"] = Case(
        _variants,
        None,
        has_limit=lambda config: False,
        fixed_bounds=False,
        row_sums=_sums,
        smooth=_name != "variance_1d",  # at the contract's n and budgets it sits on a public end, where nothing moves
        fixed_ledger=False,
        columns=1 if _name.endswith("_1d") else None,
    )


def _klsu_limit(example: "Example", x: np.ndarray, bounds: Any, config: Any, budget: Any, release: Any) -> Limit:
    """Preconditioned covariances: the slow form without noise, and the noise of its last answer, mapped back."""
    lower, kappa = float(bounds.lower), float(bounds.upper) / float(bounds.lower)
    y = (x - np.asarray(bounds.mean_center)) / np.sqrt(lower)
    covariance, size = without_noise(example.mechanism.name, y, kappa, amount(budget), config)
    return Limit(lower * covariance, None, lower * size)


_ZERO = {"center": "zero"}
_DROP = {"long_rows": "drop", "constants": "theory", "noise": "sgw", "psd": "none"}
for _name, _variants in {
    "naive_pce": {"default": (_ZERO, ("spectrum",))},
    "weak_ppc": {"default": (_ZERO, ("spectrum",))},
    "ppc": {"default": (_ZERO | {"rounds": 2}, ("spectrum",))},
    "pgce": {"default": (_ZERO | {"rounds": 2}, ("spectrum",)), "drop": (_DROP | {"rounds": 1}, ("spectrum",))},
    "private_mean": {"default": ({"rounds": 1, "bins": (9,)}, ("spectrum",))},
    "learn_gaussian": {"default": ({"rounds": 1, "bins": (1, 5)}, ("spectrum",))},
}.items():
    CASES[_name] = Case(
        _variants,
        None if _name in ("private_mean", "learn_gaussian") else _klsu_limit,
        has_limit=_sums,
        fixed_bounds=False,
        row_sums=_sums,
        fixed_ledger=_name == "naive_pce",  # the noise of the others is stated through maps that were released
        passes=3 if _name == "pgce" else 1,
        one_row=True,
    )


for _name, _variants in {
    "pace": {
        "default": ({}, ("box",)),
        "add_remove": (
            {"relation": "add_remove", "center": "zero", "entries_per_round": 2, "loop": "traced"},
            ("box",),
        ),
    },
    "ssp_select": {"default": ({}, ("box",))},
    "auto": {"default": ({}, ("box",)), "pairs": ({"center": "pairs"}, ("l2",))},
}.items():
    CASES[_name] = Case(
        _variants,
        None,
        has_limit=lambda config: False,
        row_sums=_sums,
        fixed_ledger=_name == "ssp_select",
        passes=2 if _name == "auto" else 1,
    )


CASES["private_range"] = Case(
    {"default": ({"std": 0.4, "bins": (4,)}, ("box",)), "spectrum": ({"bins": (4,)}, ("spectrum",))},
    None,  # a step function of the counts: its own tests have the limit
    has_limit=lambda config: False,
    fixed_bounds=False,
    smooth=False,
)


for _name, _variants in {
    "product_mean": {"default": ({}, ("box",)), "theory": ({"constants": "theory"}, ("box",))},
    "learn_product": {"default": ({}, ("unit",))},
}.items():
    CASES[_name] = Case(
        _variants,
        None,
        has_limit=lambda config: False,
        row_sums=lambda config: config.constants != "theory",  # blocks of rows
        smooth=_name == "product_mean",  # there is one box alone for the other, and no derivative in it
        fixed_ledger=False,
        passes=3,
    )


class Example(NamedTuple):
    """One mechanism with one kind of budget, one kind of bounds and one config."""

    mechanism: Mechanism
    case: Case
    budget: Any
    bounds_name: str
    variant: str

    @property
    def config(self) -> Any:
        return self.mechanism.config(**self.case.variants[self.variant][0])

    @property
    def d(self) -> int:
        """The number of columns to try it with."""
        return self.case.columns or D

    def bounds(self, d: int | None = None) -> Any:
        return BOUNDS[self.bounds_name][1](self.d if d is None else d)

    def rows(self, n: int = N, seed: int = 0) -> np.ndarray:
        return rows(n, D, seed)[:, : self.d]

    @property
    def psd(self) -> bool:
        """True where the covariance is promised to be positive semi-definite."""
        return getattr(self.config, "psd", "project") != "none"

    @property
    def fixed_ledger(self) -> bool:
        """True where no cost or sensitivity in the ledger depends on earlier (noisy) outputs."""
        return self.case.fixed_ledger and getattr(self.config, "relation", "replace") == "replace"

    @property
    def min_rows(self) -> int:
        return 2 if getattr(self.config, "center", None) == "pairs" and not self.case.one_row else 1

    def __str__(self) -> str:
        return f"{self.mechanism.name}-{type(self.budget).__name__}-{self.bounds_name}-{self.variant}"


def examples() -> list[Example]:
    """Every registered mechanism that has a case, in all its settings."""
    found = []
    for mechanism in MECHANISMS.values():
        case = CASES.get(mechanism.name)
        if case is None:
            continue  # a test of its own fails on this
        budgets = [budget for budget in mechanism.budgets if budget in BUDGETS]  # (epsilon, delta) has tests of its own
        for budget, (variant, (_, names)) in itertools.product(budgets, case.variants.items()):
            found += [Example(mechanism, case, BUDGETS[budget], name, variant) for name in names]
    return found


EXAMPLES = examples()
#: The first setting of each mechanism and budget: for checks that do not depend on the settings.
FIRST = list({(e.mechanism.name, type(e.budget)): e for e in reversed(EXAMPLES)}.values())[::-1]
#: One setting of each mechanism: for checks that do not depend on the kind of budget either.
ONE = list({e.mechanism.name: e for e in reversed(FIRST)}.values())[::-1]
#: And the settings that differ in kind: in pairs, add/remove, no projection, paper constants, Laplace noise.
_KINDS = {
    "gaussian-ZCDP-l2-pairs",
    "gaussian-ZCDP-l2-zero",
    "gaussian-ZCDP-box-default",
    "gaussian-ZCDP-box-add_remove",
    "separate-PureDP-l2-default",
    "separate-ZCDP-box-zero",
    "clipped_separate-ZCDP-l2-pairs",
    "adaptive-ZCDP-l2-zero",
    "adaptive-PureDP-l2-default",
    "adaptive-ZCDP-box-add_remove",
    "emcov-ZCDP-box-add_remove",
    "coinpress_covariance-ZCDP-spectrum-pairs",
    "coinpress_mean_1d-PureDP-spectrum-default",
    "pace-ZCDP-box-add_remove",
    "pgce-ZCDP-spectrum-drop",
    "product_mean-ZCDP-box-theory",
}
SEVERAL = [e for e in EXAMPLES if e in ONE or str(e) in _KINDS]
assert {str(e) for e in SEVERAL} == {str(e) for e in ONE} | _KINDS
GAUSSIAN = next(example for example in EXAMPLES if example.mechanism.name == "gaussian")


def rows(n: int = N, d: int = D, seed: int = 0) -> np.ndarray:
    """Generic rows, some of them beyond every bound, that lie near no kink of a mechanism."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) * np.linspace(0.5, 1.5, d) + 0.3


def call(example: Example, key: Any, x: Any, budget: Any, bounds: Any, config: Any) -> Any:
    return example.mechanism.function(key, x, budget, bounds, config=config)


def amount(budget: Any) -> Any:
    """The number in a budget of one number."""
    (number,) = vars(budget).values()
    return number


def with_amount(budget: Any, number: Any) -> Any:
    """The budget with another number, which nothing checks (as where JAX rebuilds it from a traced one)."""
    return jax.tree_util.tree_map(lambda _: number, budget)


def high_budget(budget: Any, rho: float) -> Any:
    """The budget of this kind whose price is rho."""
    return with_amount(budget, rho if isinstance(budget, ZCDP) else float(np.sqrt(2 * rho)))


def as_reference(bounds: Any) -> tuple:
    return (
        ("box", bounds.lower, bounds.upper) if isinstance(bounds, BoxBounds) else ("l2", bounds.radius, bounds.center)
    )


def arrays(tree: Any) -> list[np.ndarray]:
    """The leaves of a release as host arrays."""
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def paths(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a release by path."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_same(left: Any, right: Any, rtol: float = 1e-12, *, floor: float = 0.0) -> None:
    """Leaf by leaf: equal to `rtol` of the leaf's largest entry (or of `floor`), NaN where the other has NaN."""
    first, second = paths(left), paths(right)
    assert first.keys() == second.keys()
    for path, a in first.items():
        b = second[path]
        assert a.shape == b.shape and a.dtype == b.dtype, path
        size = np.max(np.abs(a), initial=floor, where=np.isfinite(a))
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=rtol, atol=rtol * float(size), err_msg=path)


def answer(release: Any) -> np.ndarray:
    """The variances of a release, or the means where it has no covariance."""
    return np.asarray(release.mean if release.covariance is None else np.diagonal(release.covariance))


def assert_sound(release: Any, *, psd: bool) -> None:
    """Finite throughout, exactly symmetric, PSD to rounding where promised."""
    for path, leaf in paths(release).items():
        assert np.all(np.isfinite(leaf)), path
    if release.covariance is None:
        return
    covariance = np.asarray(release.covariance)
    assert np.array_equal(covariance, covariance.T)
    if psd:
        values = np.linalg.eigvalsh(covariance.astype(np.float64))
        assert values[0] >= -64 * np.finfo(covariance.dtype).eps * max(abs(values[-1]), np.abs(values[0]))


def compilations(function: Callable[[], Any]) -> list[str]:
    """Names of the programs that are compiled while `function` runs."""
    names: list[str] = []

    def listen(event: str, _: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(function())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return names


def stack(*trees: Any) -> Any:
    """Lanes of one batch."""
    return jax.tree_util.tree_map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *trees)


def lane(tree: Any, i: int) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf[i], tree)


def in_arrays(tree: Any, dtype: Any = np.float64) -> Any:
    """Public numbers as arrays of one dtype: what is passed through jit and vmap as an argument."""
    return jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, dtype), tree)
