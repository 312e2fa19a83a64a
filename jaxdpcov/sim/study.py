"""What a study is: mechanisms x budgets x n x d x populations, its settings checked, from Python or a file."""

import contextlib
import dataclasses
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.bounds import Bounds
from jaxdpcov.mechanisms._registry import MECHANISMS
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP, to_zcdp
from jaxdpcov.sim import engine, moments, populations

_BUDGETS = ("rho", "epsilon", "delta")
_BOUNDS = ("radius", "lower", "upper", "spectrum_lower", "spectrum_upper", "mean_radius")
STATISTICS = ("mean", "trimmed", "median")
#: A number times a power of the number of columns, such as "10 * sqrt(d)".
_BY_COLUMNS = re.compile(r"([\d.eE+-]+)\s*\*\s*(sqrt\(d\)|d)")


@dataclasses.dataclass(frozen=True)
class Arm:
    """One contender: a mechanism with its options.

    label: its name in tables and plots. method: a mechanism, or "not_private". options: fields of its config.
    max_d: it sits out beyond so many columns. pure: its budget is pure, epsilon or that whose price is rho.
    """

    label: str
    method: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_d: int | None = None
    pure: bool = False

    def config(self, moment: str) -> Any:
        """The mechanism's config; moments about the public centre are taken where that is what is compared."""
        if self.method == engine.NOT_PRIVATE:
            if self.options:
                raise ValueError(f"arm {self.label!r}: {engine.NOT_PRIVATE} has no options")
            return None
        kind = MECHANISMS[self.method].config
        fields = [field.name for field in dataclasses.fields(kind)]
        for name in self.options:
            if name not in fields:
                raise ValueError(
                    f"arm {self.label!r}: {self.method} has no option {name!r}; it has {', '.join(fields)}"
                )
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}
        if moment == "second_moment":
            if "center" not in fields:
                raise ValueError(f"arm {self.label!r}: {self.method} has no moment='second_moment' about the centre")
            if options.setdefault("center", "zero") != "zero":
                raise ValueError(f"arm {self.label!r}: moment='second_moment' needs center='zero'")
        return kind(**options)


@dataclasses.dataclass(frozen=True)
class Source:
    """A population by name with its settings, or a data set of `populations.DATA_SETS`."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def is_data(self) -> bool:
        """Whether it is a set of given rows, with an n and d of its own."""
        return self.name in populations.DATA_SETS

    def check(self, d: int | None) -> None:
        """ValueError or TypeError where it cannot be made with d columns; rows of a data set are not read for it."""
        if not self.is_data:
            populations.make(self.name, d, **dict(self.settings))
        else:
            populations.check_data_set(self.name, dict(self.settings))

    @property
    def label(self) -> str:
        """Name and settings."""
        return self.name + "".join(f", {key} = {value}" for key, value in self.settings)

    def make(self, d: int | None) -> Any:
        """The `Population`, or the rows (n, d) of a data set."""
        if self.is_data:
            return populations.data_set(self.name, **dict(self.settings))[0]
        return populations.make(self.name, d, **dict(self.settings))


@dataclasses.dataclass(frozen=True)
class Cell:
    """One point of a study: an arm at one budget on one source, with n rows of d columns."""

    arm: Arm
    source: Source
    n: int | None
    d: int | None
    budget: Any
    number: float

    def coordinates(self, budget_name: str) -> dict[str, Any]:
        """Where it stands, as plain values by name."""
        of_source = {"population": self.source.name, **dict(self.source.settings)}
        return {"arm": self.arm.label, **of_source, "n": self.n, "d": self.d, budget_name: self.number}


@dataclasses.dataclass(frozen=True)
class Study:
    """A simulation study. Lists are swept, and every combination is run.

    title: of tables and plots. arms: the contenders. sources: populations, or data sets with their own n and d.
    n, d: numbers of rows and columns. budgets: {"rho": [...]}, {"epsilon": [...]} with or without "delta".
    bounds: {"radius": r}, {"lower": a, "upper": b} or {"spectrum_lower": a, "spectrum_upper": b, "mean_radius": r},
        numbers or texts such as "10 * sqrt(d)".
    repetitions: of each cell. Repetition i of all arms and budgets has the same rows and key.
    data: "fresh" (each repetition draws its rows) or "fixed" (one data set for all: what varies is the noise).
    truth: "population", or "sample": the moment of the rows themselves. moment: "covariance", "second_moment" (about
        the centre of the bounds) or "mean". metrics: names of `sim.moments`, or pairs (name, f(estimate, truth)).
    statistic: "mean", "trimmed" (by 10% at each end) or "median", with its 95% bootstrap band. x: the coordinate on the
        axis of the plot. keep: fields of the releases to keep besides errors. seed: whole number.

    >>> from jaxdpcov.sim import Study
    >>> study = Study.of({"arms": ["gaussian"], "population": "identity", "n": 100, "d": [2, 3], "rho": 1.0,
    ...                   "bounds": {"radius": 3.0}, "repetitions": 10})
    >>> len(study.cells)
    2
    """

    arms: tuple[Arm, ...]
    sources: tuple[Source, ...]
    n: tuple[int | None, ...]
    d: tuple[int | None, ...]
    budgets: Mapping[str, Any]
    bounds: Mapping[str, Any]
    repetitions: int = 100
    title: str = "study"
    data: str = "fresh"
    truth: str = "population"
    moment: str = "covariance"
    metrics: tuple[Any, ...] = ("frobenius",)
    statistic: str = "mean"
    x: str | None = None
    keep: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("data", ("fresh", "fixed")),
            ("moment", moments.MOMENTS),
            ("statistic", STATISTICS),
        ):
            _checks.choice(name, getattr(self, name), allowed)
        for name in ("n", "d"):
            for value in getattr(self, name):
                if value is not None:
                    _checks.whole(name, value)
        _checks.whole("repetitions", self.repetitions)
        engine.check_key(self.seed)
        if not isinstance(self.title, str):
            raise TypeError(f"title must be a text, got {self.title!r}")
        if not self.arms or not self.sources:
            raise ValueError("a study needs at least one arm and one population")
        labels = [arm.label for arm in self.arms]
        if len(set(labels)) < len(labels):
            raise ValueError(f"arms must have labels of their own, got {labels}")
        for source in self.sources:
            if source.is_data and (self.data, self.truth) != ("fixed", "sample"):
                raise ValueError(f"{source.name} is a set of given rows: it needs data='fixed' and truth='sample'")
            if source.is_data and {*self.n, *self.d} != {None}:
                raise ValueError(f"{source.name} has rows and columns of its own: leave n and d out")
            if not source.is_data and (None in self.n or None in self.d):
                raise ValueError(f"population {source.name} needs n and d")
            source.check(min(self.d, key=lambda d: d or 0, default=None))
        self.measures()
        self.numbers()
        for arm in self.arms:
            engine.Task(arm.method, 0, (), self.moment, self.truth, self.keep)
            arm.config(self.moment)
            takes = () if arm.method == engine.NOT_PRIVATE else MECHANISMS[arm.method].bounds
            if takes and not isinstance(self.bounds_at(2), takes):
                kinds = " or ".join(kind.__name__ for kind in takes)
                raise ValueError(f"arm {arm.label!r}: {arm.method} takes {kinds}, not these bounds")
        self.bounds_at(2)
        if not self.cells:
            raise ValueError("a study needs at least one point: a list is empty, or all arms sit out")
        names = {
            name
            for cell in self.cells
            for name, value in cell.coordinates(self.budget_name).items()
            if _is_number(value)
        }
        if self.x is not None and self.x not in list(names):
            raise ValueError(f"x must be one of {', '.join(sorted(names))}; got {self.x!r}")

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "Study":
        """A study from plain values, as a TOML or YAML file holds them; see docs/studies.md for all of them.

        Raises:
            ValueError, TypeError: one line that names the setting and what is allowed.
        """
        given = dict(settings)
        try:
            arms, sources = _arms(given.pop("arms")), _sources(given.pop("population"))
        except KeyError as error:
            raise ValueError(f"a study needs {error.args[0]}") from None
        budgets = {name: given.pop(name) for name in _BUDGETS if name in given}
        bounds = dict(_mapping("bounds", given.pop("bounds", {})))
        only_data = all(source.is_data for source in sources)
        for name in ("n", "d"):
            value = given.pop(name, None)
            if value is None and not only_data:
                raise ValueError(f"a study of populations needs {name}")
            given[name] = (None,) if value is None else tuple(_listed(value))
        for name in given:
            if name not in _settings():
                raise ValueError(f"a study has no setting {name!r}; it has {', '.join(_settings())}")
        for name in ("metrics", "keep"):
            if name in given:
                given[name] = tuple(_listed(given[name]))
        return Study(arms=arms, sources=sources, budgets=budgets, bounds=bounds, **given)

    @property
    def budget_name(self) -> str:
        """The coordinate that budgets are told apart by."""
        return "rho" if "rho" in self.budgets else "epsilon"

    def numbers(self) -> list[float]:
        """The swept budgets."""
        names = set(self.budgets)
        if names not in ({"rho"}, {"epsilon"}, {"epsilon", "delta"}):
            raise ValueError("give rho, or epsilon, or epsilon with delta")
        if "delta" in names:
            ApproxDP(1.0, self.budgets["delta"])
        found = []
        for value in _listed(self.budgets[self.budget_name]):
            with contextlib.suppress(ValueError):
                value = float(value) if isinstance(value, str) else value  # YAML takes 1e-3 for a text
            _checks.positive(self.budget_name, value)
            if np.ndim(value) != 0:
                raise ValueError(f"{self.budget_name} must be a number or a list of numbers, got {value!r} in it")
            found.append(float(value))
        return found

    def budget(self, arm: Arm, number: float) -> Any:
        """The budget of an arm, on the host, in the unit in which it accounts."""
        if arm.method == engine.NOT_PRIVATE:
            return ZCDP(1.0)
        takes = MECHANISMS[arm.method].budgets
        if arm.pure:
            return PureDP.from_zcdp(number) if self.budget_name == "rho" else PureDP(number)
        if self.budget_name == "rho":
            if ZCDP not in takes:
                raise ValueError(
                    f"arm {arm.label!r}: {arm.method} is pure DP; pure = true gives it the epsilon of that price"
                )
            return ZCDP(number)
        if "delta" in self.budgets and ZCDP in takes:
            return to_zcdp(ApproxDP(number, float(self.budgets["delta"])))
        if PureDP not in takes:
            raise ValueError(f"arm {arm.label!r}: {arm.method} has no pure-DP form; give delta as well, or rho")
        return PureDP(number)

    def measures(self) -> tuple[tuple[str, Any], ...]:
        """The metrics by name."""
        return moments.measures(self.moment, self.metrics)

    def bounds_at(self, d: int) -> Bounds:
        """The public bounds for d columns."""
        known = {name: _at(name, value, d) for name, value in self.bounds.items()}
        for name in known:
            _checks.choice("a name in bounds", name, _BOUNDS)
        if set(known) == {"radius"}:
            return Bounds.l2(known["radius"])
        if set(known) == {"lower", "upper"}:
            return Bounds.box(known["lower"], known["upper"])
        if {"spectrum_lower", "spectrum_upper"} <= set(known) <= {"spectrum_lower", "spectrum_upper", "mean_radius"}:
            return Bounds.spectrum(
                known["spectrum_lower"], known["spectrum_upper"], mean_radius=known.get("mean_radius")
            )
        raise ValueError(f"bounds needs radius, or lower and upper, or spectrum_lower and spectrum_upper; got {known}")

    @property
    def cells(self) -> list[Cell]:
        """All points, in the order in which they run: what shares data stands together, arms before budgets."""
        found = []
        for d, n, source in itertools.product(self.d, self.n, self.sources):
            for arm, number in itertools.product(self.arms, self.numbers()):
                sits_out = arm.max_d is not None and d is not None and d > arm.max_d
                if not sits_out:
                    found.append(Cell(arm, source, n, d, self.budget(arm, number), number))
        return found

    def key(self, cell: Cell) -> jax.Array:
        """The key of a cell's rows and noise: one for all arms and budgets on the same rows."""
        words = f"{cell.source.label}, n = {cell.n}, d = {cell.d}"
        return jax.random.fold_in(engine.check_key(self.seed), zlib.crc32(words.encode()))

    def task(self, cell: Cell) -> engine.Task:
        """What is compiled for a cell."""
        n = cell.n if self.data == "fresh" else 0
        keep = () if cell.arm.method == engine.NOT_PRIVATE else self.keep
        assert n is not None
        return engine.Task(cell.arm.method, n, self.measures(), self.moment, self.truth, keep)

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values."""
        plain = dataclasses.asdict(self)
        plain["metrics"] = [name for name, _ in self.measures()]
        return json.loads(json.dumps(plain, default=_plain))

    def digest(self) -> str:
        """Tells studies apart: equal for equal settings, of functions the names."""
        return f"{zlib.crc32(json.dumps(self.to_dict(), sort_keys=True).encode()):08x}"


def _settings() -> list[str]:
    own = [field.name for field in dataclasses.fields(Study) if field.name not in ("sources", "budgets")]
    return [*own, "population", *_BUDGETS]


def _arms(given: Any) -> tuple[Arm, ...]:
    """Arms from a list of methods, or a mapping from labels to a method with its options."""
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Mapping):
        given = {_text("an arm of a list", method): {"method": method} for method in _listed(given)}
    arms = []
    for label, settings in given.items():
        settings = dict(_mapping(f"arm {label!r}", settings))
        about = {name: settings.pop(name) for name in ("method", "max_d", "pure") if name in settings}
        if about.get("max_d") is not None:
            _checks.whole("max_d", about["max_d"])
        _text(f"method of arm {label!r}", about.get("method", ""))
        if not isinstance(about.get("pure", False), bool):
            raise TypeError(f"pure of arm {label!r} must be true or false, got {about['pure']!r}")
        arms.append(Arm(label, about.pop("method", label), settings, **about))
    return tuple(arms)


def _sources(given: Any) -> tuple[Source, ...]:
    """Sources from names, or mappings with a name and settings, of which lists are swept."""
    found = []
    for each in [given] if isinstance(given, (str, Mapping)) else _listed(given):
        settings = {"name": each} if isinstance(each, str) else dict(_mapping("population", each))
        names = settings.pop("name", None)
        if names is None:
            raise ValueError("population needs a name")
        lists = [[(key, value) for value in _listed(swept)] for key, swept in settings.items()]
        for name, *chosen in itertools.product(_listed(names), *lists):
            found.append(Source(name, tuple(chosen)))
            if name not in (*populations.POPULATIONS, *populations.DATA_SETS):
                populations.make(name, 2)  # says what there is
    return tuple(found)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a table of settings, got {type(value).__name__}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a name, got {value!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _at(name: str, value: Any, d: int) -> Any:
    """A number, or one that goes with d."""
    if not isinstance(value, str):
        return value
    found = _BY_COLUMNS.fullmatch(value.strip())
    try:
        factor = float(found[1]) if found else math.nan
    except ValueError:
        factor = math.nan
    if found is None or math.isnan(factor):
        raise ValueError(f"{name} must be a number, or a text such as '10 * sqrt(d)'; got {value!r}")
    return factor * (math.sqrt(d) if found[2] == "sqrt(d)" else d)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return getattr(value, "__name__", None) or repr(value)
