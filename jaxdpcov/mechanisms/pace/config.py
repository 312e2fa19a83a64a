"""The choices of `pace`: how the budget is shared between the diagonal, selection and measurement, and over rounds."""

from typing import Any

from jaxdpcov import _checks
from jaxdpcov._records import build, record


@record(static=("relation", "center", "rounds_per_column", "entries_per_round", "loop"))
class PaceConfig:
    """Choices of `pace`; `PaceConfig()` is the tuned schedule, `PaceConfig.paper()` that of Ferrando et al. (2026).

    relation, center, n_share: as in the Gaussian family. mean_share: share of the budget for the mean, where one is
    measured (center="private").
    diagonal_share: share of the budget for the diagonal, measured at once before the first round.
    selection_share: share of each round's budget that chooses the entry; the rest measures it.
    rounds_per_column: rounds planned for each column that is not constant, static; also the most there can be.
    growth: factor on the budget of the rounds to come after one that moved the estimate by no more than its noise.
    entries_per_round: entries chosen and measured together in a round, static. Fewer and cheaper rounds, a little less
    accurate.
    t: weight of the measurements against the entropy; 1 is the default throughout, 0.5 where the inverse is wanted.
    loop: "auto" follows the rounds from the host unless something is traced, "traced" compiles them as one program.

    >>> from jaxdpcov import PaceConfig
    >>> PaceConfig().rounds_per_column, PaceConfig.paper(entries_per_round=5).rounds_per_column
    (4, 16)
    """

    relation: str = "replace"
    center: str = "private"
    mean_share: Any = 0.15
    n_share: Any = 0.05
    diagonal_share: Any = 0.2
    selection_share: Any = 0.5
    rounds_per_column: int = 4
    growth: Any = 1.5
    entries_per_round: int = 1
    t: Any = 1.0
    loop: str = "auto"

    def __post_init__(self) -> None:
        _checks.choice("relation", self.relation, ("replace", "add_remove"))
        _checks.choice("center", self.center, ("private", "zero", "pairs"))
        _checks.choice("loop", self.loop, ("auto", "traced"))
        for name in ("mean_share", "n_share", "diagonal_share", "selection_share"):
            _checks.between(name, getattr(self, name), 0.0, 1.0)
        _checks.positive("t", self.t)
        _checks.between("growth", self.growth, 1.0, float("inf"), open_ends=False)
        for name in ("rounds_per_column", "entries_per_round"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        if self.relation == "add_remove" and self.center == "pairs":
            raise ValueError("center='pairs' needs relation='replace': adding a row would pair all others anew")

    def law(self) -> "PaceConfig":
        """The choices that decide what is released: how the rounds are carried out changes no draw."""
        return build(PaceConfig, vars(self) | {"loop": "auto"})

    @classmethod
    def paper(cls, **choices: Any) -> "PaceConfig":
        """The schedule after AIM: 16 rounds planned for each column, four times the budget after idle ones."""
        return cls(**({"rounds_per_column": 16, "growth": 4.0} | choices))
