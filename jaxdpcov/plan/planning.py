"""`plan`: predicted errors of all mechanisms that apply, ranked, and the budget or n that reaches a wanted error."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import jaxdpcov.mechanisms.adaptive
import jaxdpcov.mechanisms.auto
import jaxdpcov.mechanisms.coinpress
import jaxdpcov.mechanisms.emcov
import jaxdpcov.mechanisms.gaussian
import jaxdpcov.mechanisms.klsu
import jaxdpcov.mechanisms.pace
import jaxdpcov.mechanisms.private_range
import jaxdpcov.mechanisms.product
import jaxdpcov.mechanisms.separate  # noqa: F401  (all register themselves)
from jaxdpcov import _checks
from jaxdpcov._records import build
from jaxdpcov.bounds import Bounds, BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.mechanisms._registry import MECHANISMS, Mechanism
from jaxdpcov.plan import applies, closed, simulate
from jaxdpcov.plan import assumed as assumptions
from jaxdpcov.plan.result import Forecast, Plan
from jaxdpcov.privacy.budget import PureDP
from jaxdpcov.sim import engine

#: Beyond these a plan is not made: numbers of rows must be exact floats, and d x d matrices fit into memory.
MOST_ROWS, MOST_COLUMNS = 10**15, 10_000
#: Seconds of one core beyond which a mechanism is not simulated unless it is named.
PATIENCE = 60.0
#: The search for a target tries budgets within these factors of the one given, and rows within their roots.
FACTORS = (1e-8, 1e8)
#: Halvings of a bracket of a factor of ten in rho (or n^2): budgets are found within 4%.
HALVINGS = 6


def plan(
    n: int,
    d: int,
    bounds: Any,
    budget: Any,
    *,
    assumed: Any = None,
    target: float | None = None,
    methods: Sequence[str] | None = None,
    relation: str = "replace",
    metric: str = "frobenius",
    repetitions: int = 16,
    seed: int = 0,
) -> Plan:
    """Predict the error of every mechanism that applies, before any budget is spent.

    Formal guarantee: none is needed. Nothing here has seen the data: all arguments are public, and `assumed` is a
    population, public rows, or a release, which is private already.

    A mechanism is run on rows drawn from the assumed population, `repetitions` times in one compiled program, the same
    rows for all mechanisms. More than a few thousand rows are stood for by fewer (`Plan.rows`) at the budget that gives
    the same noise: noise on a mean of n rows goes like 1/(n sqrt(rho)), or 1/(n epsilon). What fewer rows make worse at
    any budget, such as differences of pairs under `Bounds.spectrum`, is overstated so. For `gaussian`, `laplace`
    and `diagonal` the closed form of the noise is given too; it leaves out clipping and the PSD step, and is
    the forecast where simulating would take minutes.

    Args:
        n: public number of rows, >= 1 (under add_remove: a guess). d: number of columns, >= 1.
        bounds: `Bounds.box`, `Bounds.l2` or `Bounds.spectrum`.
        budget: `ZCDP`, `ApproxDP` or `PureDP`, one concrete number.
        assumed: what rows are like: a population of `jaxdpcov.sim`, `sim.from_rows(rows, public=True)`, an earlier
            `Release`, or None for the reference population of the bounds (`jaxdpcov.plan.reference`). Rows that
            nobody marked public are refused.
        target: a wanted error; the plan then says which budget at this n, and which n at this budget, reach it.
        methods: names of mechanisms; all that apply unless given. Those named are simulated however long it takes.
        relation: "replace" or "add_remove".
        metric: "frobenius" (data units), "scaled" (Frobenius, in units of the bounds: half-widths or the radius),
            "relative" (Frobenius, over the norm of the truth), "spectral", "mahalanobis", or "mean" (l2 error of
            the mean).
        repetitions: how often each mechanism is run, >= 2.
        seed: of the rows and the noise.

    Returns:
        `Plan`: `forecasts`, ranked; `best`; `excluded`, with reasons; `sampling`, the error beside the private one.

    Raises:
        ValueError, TypeError: one line that names the argument and what is allowed.

    >>> from jaxdpcov import Bounds, ZCDP, plan
    >>> found = plan(10_000, 4, Bounds.box(0.0, 1.0), ZCDP(0.5), methods=["gaussian", "diagonal", "laplace"])
    >>> found.best, found.excluded
    ('gaussian', {'laplace': 'is pure DP: needs PureDP(epsilon)'})
    """
    _checks.whole("n", n, 1, MOST_ROWS)
    _checks.whole("d", d, 1, MOST_COLUMNS)
    _checks.whole("repetitions", repetitions, 2)
    _checks.whole("seed", seed, 0, 2**63 - 1)
    if not isinstance(bounds, Bounds):
        raise TypeError(f"bounds must be Bounds.box, Bounds.l2 or Bounds.spectrum, got {type(bounds).__name__}")
    _checks.choice("relation", relation, ("replace", "add_remove"))
    _checks.choice("metric", metric, simulate.METRICS)
    if target is not None:
        _checks.positive("target", target)
    names = _names(methods)
    with jax.enable_x64(True):
        budget = applies.check_budget(budget)
        bounds = _checked(bounds, d)
        population, what = assumptions.population(assumed, d, bounds)
        run = _Run(int(n), int(d), bounds, budget, population, metric, int(repetitions), int(seed))
        forecasts, excluded = [], {}
        for name in names:
            found = _forecast(run, MECHANISMS[name], relation, target, asked=methods is not None)
            if isinstance(found, str):
                excluded[name] = found
            else:
                forecasts.append(found)
        sampling = run.sampling()
    forecasts.sort(key=lambda each: (each.error, each.method))
    (number,) = vars(budget).values()
    return Plan(
        n=int(n), d=int(d), budget=number, unit="epsilon" if isinstance(budget, PureDP) else "rho", relation=relation,
        metric=metric, assumed=what, repetitions=int(repetitions), rows=run.rows, seed=int(seed),
        target=None if target is None else float(target), sampling=sampling, forecasts=tuple(forecasts),
        excluded=excluded,
    )  # fmt: skip


class _Run:
    """The public inputs of one plan, and what is computed from them."""

    def __init__(
        self, n: int, d: int, bounds: Any, budget: Any, population: Any, metric: str, repetitions: int, seed: int
    ) -> None:
        self.n, self.d, self.bounds, self.budget = n, d, bounds, budget
        self.population, self.metric, self.repetitions = population, metric, repetitions
        self.rows = simulate.rows_for(n, d, bounds)
        self.seed = seed

    def at(self, factor: float) -> Any:
        """The budget with rho times `factor` (epsilon times its root)."""
        if isinstance(self.budget, PureDP):
            return PureDP(self.budget.epsilon * math.sqrt(factor))
        return type(self.budget)(self.budget.rho * factor)

    def simulated(self, mechanism: Mechanism, config: Any, factor: float) -> np.ndarray:
        """(R,) errors at a multiple of rho."""
        budget = simulate.scaled_budget(self.at(factor), self.n, self.rows)
        return self._errors(mechanism.name, budget, config)

    def _errors(self, method: str, budget: Any, config: Any, truth: str = "sample") -> np.ndarray:
        about = (self.population, budget, self.bounds, config, self.rows, self.metric)
        return simulate.errors(method, self.seed, self.repetitions, *about, truth=truth)

    def noise(self, mechanism: Mechanism, config: Any, factor: float) -> float | None:
        return closed.noise(
            mechanism, self.n, self.d, self.at(factor), self.bounds, config, self.population, self.metric
        )

    def sampling(self) -> float:
        """The mean error of the rows' own moments at n, from that at the number of rows drawn; NaN where too large."""
        if simulate.seconds("", self.d, self.repetitions) > PATIENCE:
            return math.nan
        made = self._errors(engine.NOT_PRIVATE, self.budget, None, truth="population")
        return float(np.mean(made)) * math.sqrt(self.rows / self.n)


def _forecast(run: _Run, mechanism: Mechanism, relation: str, target: float | None, *, asked: bool) -> Forecast | str:
    """The forecast of one mechanism, or why there is none."""
    why = applies.public_reason(mechanism, type(run.budget), type(run.bounds))
    if why is not None:
        return why
    try:
        config = applies.config_for(mechanism, {"relation": relation})
        small = min(run.rows, 2 * run.d + 2)
        about = applies.shape_of(mechanism, max(small, min(run.rows, 2)), run.d, run.budget, run.bounds, config)
    except (ValueError, TypeError) as error:
        return str(error).splitlines()[0]
    if run.metric == "mean" and about.mean is None:
        return "releases no mean"
    if run.metric != "mean" and about.covariance is None:
        return "releases no covariance" + ("; metric='mean' compares means" if about.mean is not None else "")
    noise = run.noise(mechanism, config, 1.0)
    evaluate: Callable[[float], float]
    if asked or simulate.seconds(mechanism.name, run.d, run.repetitions) <= PATIENCE:
        made = run.simulated(mechanism, config, 1.0)
        failures = int(np.sum(~np.isfinite(made)))
        band = math.inf if failures else float(np.std(made, ddof=1) / math.sqrt(len(made)))
        found = Forecast(mechanism.name, _mean(made), band, noise, "simulation", failures)

        def evaluate(factor: float) -> float:
            return _mean(run.simulated(mechanism, config, factor))

    elif noise is not None:
        found = Forecast(mechanism.name, noise, 0.0, noise, "closed form")

        def evaluate(factor: float) -> float:
            return float(run.noise(mechanism, config, factor) or math.inf)

    else:
        return f"simulating it at d = {run.d} takes minutes: name it in methods to have that"
    return found if target is None else _reach(run, found, evaluate, target)


def _mean(errors: np.ndarray) -> float:
    """Their mean, infinite where one of them is no number."""
    return float(np.mean(errors)) if np.all(np.isfinite(errors)) else math.inf


def _reach(run: _Run, found: Forecast, evaluate: Callable[[float], float], target: float) -> Forecast:
    """With the smallest budget and n tried whose predicted error is at most `target`.

    Noise depends on rho n^2 alone (on epsilon n under pure DP), so that one search serves both: over a factor of rho,
    by tens until the target is between two, then by halves of the factor's logarithm. An error that falls with the
    budget is assumed; where clipping keeps it above the target, no budget reaches it.
    """
    low, high = 1.0, 1.0
    lowest = found.error
    if found.error > target:
        while True:
            low, high = high, high * 10.0
            if high > FACTORS[1]:
                tried, rows = run.at(low), math.ceil(run.n * math.sqrt(low))
                return dataclasses.replace(
                    found,
                    limit=f"not reached: the error is still {lowest:.4g} at {tried} (tried for n = {run.n}), and as "
                    f"large at n = {rows} (tried for the given budget)",
                )
            lowest = evaluate(high)
            if lowest <= target:
                break
    else:
        while True:
            low, high = low / 10.0, low
            if low < FACTORS[0]:
                low = high
                break
            if evaluate(low) > target:
                break
    for _ in range(HALVINGS if low < high else 0):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if evaluate(middle) <= target else (middle, high)
    (number,) = vars(run.at(high)).values()
    limit = f"reached by less than {number:.3g}, the least that was tried" if high <= FACTORS[0] * 10.0 else None
    return dataclasses.replace(found, budget=number, n=max(1, math.ceil(run.n * math.sqrt(high))), limit=limit)


def _names(methods: Sequence[str] | None) -> list[str]:
    if methods is None:
        return list(MECHANISMS)
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names, such as [{methods!r}]")
    for name in methods:
        if name not in MECHANISMS:
            hint = _checks.hint(name, MECHANISMS)
            raise ValueError(f"methods must be among {', '.join(MECHANISMS)}; got {name!r}{hint}")
    if not methods:
        raise ValueError("methods must hold at least one name")
    return list(dict.fromkeys(methods))


def _checked(bounds: Any, d: int) -> Any:
    """The bounds as arrays, which must be concrete and fit d columns."""
    if _checks.is_traced(bounds):
        raise TypeError("bounds are traced: plan works on the host, outside jit")
    # Lists would be trees of leaves to JAX.
    fields = {name: None if value is None else np.asarray(value, np.float64) for name, value in vars(bounds).items()}
    bounds = build(type(bounds), fields)
    own = (bounds.lower, bounds.upper) if not isinstance(bounds, L2Bounds) else (bounds.center,)
    for each in (*own, getattr(bounds, "mean_center", None)):
        wrong = np.ndim(each) >= 1 and set(np.shape(each)) != {d}
        if wrong or (np.ndim(each) == 2 and not isinstance(bounds, SpectrumBounds)):
            raise ValueError(f"bounds must have one entry for each of the d = {d} columns, got shape {np.shape(each)}")
    if isinstance(bounds, BoxBounds):  # one number for all columns is the same plan as one for each
        lower, upper = (np.broadcast_to(end, (d,)) for end in (bounds.lower, bounds.upper))
        bounds = build(BoxBounds, {"lower": lower, "upper": upper})
    if isinstance(bounds, BoxBounds) and np.all(np.asarray(bounds.lower) == np.asarray(bounds.upper)):
        raise ValueError("bounds leave every column constant: there is nothing to plan")
    return bounds
