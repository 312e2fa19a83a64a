"""What a plan says: a forecast for each mechanism that applies, the reasons of the others, and a table to read."""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The predicted error of one mechanism, in the metric and units of its plan.

    error: the mean over repetitions of the error against the moments of the rows themselves, or the closed form.
    band: the standard error of that mean, 0 of a closed form. noise: the closed form of the noise alone, before
    post-processing, None where there is none. how: "simulation" or "closed form". failures: repetitions without a
    finite error. budget, n: what would reach the target (rho or epsilon at this n; rows at this budget), None without
    a target or where nothing that was tried reaches it; `limit` says then what was tried.
    """

    method: str
    error: float
    band: float
    noise: float | None
    how: str
    failures: int = 0
    budget: float | None = None
    n: int | None = None
    limit: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Forecasts of the mechanisms that apply, the smallest predicted error first.

    unit: "rho" or "epsilon", that of `budget` and of the budgets in the forecasts. sampling: the error that the rows'
    own moments have about the population's at this n, which no budget removes. rows: how many rows stood for n in the
    simulation. excluded: mechanism -> why it has no forecast. assumed: what the rows were taken to be.
    """

    n: int
    d: int
    budget: float
    unit: str
    relation: str
    metric: str
    assumed: str
    repetitions: int
    rows: int
    seed: int
    target: float | None
    sampling: float
    forecasts: tuple[Forecast, ...]
    excluded: dict[str, str]

    @property
    def best(self) -> str | None:
        """The name of the mechanism with the smallest predicted error, None where none applies."""
        return self.forecasts[0].method if self.forecasts else None

    def __getitem__(self, method: str) -> Forecast:
        for each in self.forecasts:
            if each.method == method:
                return each
        raise KeyError(f"no forecast for {method!r}: {self.excluded.get(method, 'no such mechanism was asked for')}")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON but for infinite errors."""
        return dataclasses.asdict(self) | {"best": self.best, "forecasts": [vars(each) for each in self.forecasts]}

    def __str__(self) -> str:
        lines = [
            f"plan: n = {self.n}, d = {self.d}, {self.unit} = {self.budget:g}, relation {self.relation}, "
            f"{self.metric} error against the rows' own moments",
            f"assumed: {self.assumed}; no data were looked at",
        ]
        head = [f"{'method':<20}", f"{'error':>11}", f"{'+-':>9}", f"{'noise alone':>12}"]
        if self.target is not None:
            head += [f"{self.unit + ' for target':>18}", f"{'n for target':>13}"]
        lines.append(" ".join(head).rstrip())
        for each in self.forecasts:
            noise = "" if each.noise is None else f"{each.noise:.4g}"
            cells = [f"{each.method:<20}", f"{each.error:>11.4g}", f"{each.band:>9.2g}", f"{noise:>12}"]
            if self.target is not None:
                cells.append(f"{'-' if each.budget is None else format(each.budget, '.3g'):>18}")
                cells.append(f"{'-' if each.n is None else each.n:>13}")
            mark = " (closed form)" if each.how == "closed form" else ""
            lines.append(" ".join(cells).rstrip() + mark + (f" {each.failures} failed" if each.failures else ""))
        if not self.forecasts:
            lines.append("no mechanism has a forecast")
        if math.isfinite(self.sampling):
            lines.append(f"the rows' own moments differ from the population's by about {self.sampling:.4g}")
        if self.target is not None:
            lines.append(f"target: error {self.target:g}")
            lines += [f"  {each.method}: {each.limit}" for each in self.forecasts if each.limit]
        if self.excluded:
            lines.append("no forecast:")
            lines += [f"  {name}: {why}" for name, why in self.excluded.items()]
        return "\n".join(lines)
