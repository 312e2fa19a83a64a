"""Choices of the CoinPress mechanisms."""

import dataclasses
from typing import Any

import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._prior import number

#: More rounds than any prior knowledge in floating-point range has a use for.
MAX_ROUNDS = 32


@record(static=("rounds", "constants", "noise", "psd", "center", "mean_rounds", "relation"))
class CoinPressConfig:
    """Choices of the CoinPress mechanisms; each says which of them it uses.

    rounds: passes over the rows, one noisy release each. None: the fewest whose predicted error is within 2% of the
        best, from the bounds, n, d and the budget, all public. That choice looks at numbers, so it is made on the host:
        a budget that is traced (inside `jit` or `vmap`) is replaced by the budgets 0.01 to 10, and the number that
        loses least over them is taken; traced bounds need an explicit `rounds`. The release's config has the number.
    constants: "practical", those of the paper's experiments: small errors, and no statement on coverage. "theory":
        proven tails, so that the confidence set holds the truth with probability 1 - beta; a round that would enlarge
        the set is not taken. "paper": the paper's own, looser proven form. Privacy is the same for all.
    noise: "goe", the tight calibration, or "sgw", that of the paper (covariance only).
    split: shares of the budget by round, together 1. None: a quarter for the first rounds, three quarters for the last.
    psd: "project" (eigenvalues below 0 become 0), "floor" (below the public lower bound, that bound) or "none".
    beta: failure probability of the confidence set under "theory" and "paper", in (0, 1). Under "practical" it sets
        one tail, that of a mean's Laplace noise: all rounds together lose the mean with probability at most beta/20.
    center: "pairs" takes differences of paired rows, whatever the mean; "zero" takes moments about the public
        `mean_center` (0 without one), for rows whose mean is known (covariance and variance only).
    mean_rounds, mean_share: rounds and share of the budget for the mean in `coinpress_gaussian`; None as for `rounds`,
        and the share that minimises the predicted Kullback-Leibler divergence.
    relation: "replace" only. Every step divides by n, which must be public.

    >>> from jaxdpcov import CoinPressConfig
    >>> CoinPressConfig(rounds=3).constants
    'practical'
    """

    rounds: int | None = None
    constants: str = "practical"
    noise: str = "goe"
    split: Any = None
    psd: str = "project"
    beta: Any = 0.05
    center: str = "pairs"
    mean_rounds: int | None = None
    mean_share: Any = None
    relation: str = "replace"

    def __post_init__(self) -> None:
        for name in ("rounds", "mean_rounds"):
            count = getattr(self, name)
            whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
            if count is not None and not (whole and 1 <= count <= MAX_ROUNDS):
                raise ValueError(f"{name} must be a whole number from 1 to {MAX_ROUNDS}, or None; got {count!r}")
        _checks.choice("constants", self.constants, ("practical", "theory", "paper"))
        _checks.choice("noise", self.noise, ("goe", "sgw"))
        _checks.choice("psd", self.psd, ("project", "floor", "none"))
        _checks.choice("center", self.center, ("pairs", "zero"))
        _checks.between("beta", self.beta, 0.0, 1.0)
        if self.mean_share is not None:
            _checks.between("mean_share", self.mean_share, 0.0, 1.0)
        if self.relation != "replace":
            raise ValueError(f"relation must be 'replace': CoinPress divides by a public n; got {self.relation!r}")
        if self.split is not None:
            self._check_split()

    def _check_split(self) -> None:
        if not isinstance(self.split, (tuple, list)) or not self.split:
            raise ValueError(f"split must be a tuple with one share for each round, got {self.split!r}")
        object.__setattr__(self, "split", tuple(self.split))
        for share in self.split:
            _checks.positive("split", share)
        if not _checks.is_traced(self.split) and abs(sum(map(float, self.split)) - 1.0) > 1e-6:
            raise ValueError(f"the shares of split must add up to 1, got {self.split!r}")
        if self.rounds is not None and self.rounds != len(self.split):
            raise ValueError(f"split must have one share for each of the {self.rounds} rounds, got {len(self.split)}")


def shares(rounds: int) -> tuple[float, ...]:
    """The default split of a budget: a quarter shared by all rounds but the last, three quarters for that one."""
    return (1.0,) if rounds == 1 else (*[0.25 / (rounds - 1)] * (rounds - 1), 0.75)


def given(config: CoinPressConfig) -> tuple[Any, ...]:
    """The shares of the budget by round, of a config whose rounds are settled."""
    assert config.rounds is not None
    return shares(config.rounds) if config.split is None else config.split


def by_split(config: CoinPressConfig) -> CoinPressConfig:
    """The config with as many rounds as `split` has shares, where that is what says how many."""
    if config.rounds is None and config.split is not None:
        return dataclasses.replace(config, rounds=len(config.split))
    return config


def units(n: Any, config: CoinPressConfig) -> float:
    """Rows or pairs on the host, of a number of rows that is no tracer."""
    return max(float(n) // 2, 1.0) if config.center == "pairs" else float(n)


def beta(config: CoinPressConfig) -> float:
    """The failure probability that a number of rounds is chosen by: the default's where it is traced."""
    known = number(config.beta)
    return 0.05 if known is None else known


def one_column(rows: Rows, name: str) -> None:
    """ValueError unless the rows have one column."""
    if rows.d != 1:
        raise ValueError(f"{name} takes rows of one column, got {rows.d}; see {name.removesuffix('_1d')}")
