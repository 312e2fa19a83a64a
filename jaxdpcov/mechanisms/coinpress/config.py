"""Choices of the CoinPress mechanisms, and the step that settles the open ones on the host before anything compiles."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows, as_rows
from jaxdpcov.mechanisms import _registry
from jaxdpcov.privacy.budget import ApproxDP, PureDP, to_zcdp

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


Settle = Callable[[Rows, Any, SpectrumBounds, CoinPressConfig], CoinPressConfig]


def settled(settle: Settle) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a registered mechanism settle what its config leaves open, from public numbers and on the host.

    `settle(rows, budget, bounds, config)` returns the config with every structural choice made. The key is folded with
    that config, so rounds=None gives what the number it chose would give. Wrong types go on to the registry's checks.
    """

    def decorate(registered: Callable[..., Any]) -> Callable[..., Any]:
        entry = _registry.MECHANISMS[registered.__name__]

        @functools.wraps(registered)
        def public(key: Any, rows: Any, budget: Any, bounds: Any, *, config: Any = None) -> Any:
            rows = as_rows(rows)
            chosen = CoinPressConfig() if config is None else config
            if isinstance(budget, ApproxDP) and not _checks.is_traced(budget):
                budget = to_zcdp(budget)
            if isinstance(budget, entry.budgets) and isinstance(bounds, SpectrumBounds):
                if isinstance(chosen, CoinPressConfig):
                    _check_matrix(bounds, rows.d)
                    config = settle(rows, budget, bounds, chosen)
            return registered(key, rows, budget, bounds, config=config)

        _registry.MECHANISMS[entry.name] = dataclasses.replace(entry, function=public)
        return public

    return decorate


def _check_matrix(bounds: SpectrumBounds, d: int) -> None:
    """A concrete matrix A0 must be a lower bound that some covariance below `upper` A0 can meet."""
    if np.shape(bounds.lower) != (d, d) or _checks.is_traced(bounds.lower):
        return
    matrix = np.asarray(bounds.lower, np.float64)
    size = float(np.max(np.abs(matrix)))
    if not np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-6 * size) or np.linalg.eigvalsh(matrix)[0] <= 1e-14 * size:
        raise ValueError("lower must be a symmetric positive definite matrix (or one number)")
    if not _checks.is_traced(bounds.upper) and np.any(np.asarray(bounds.upper) < 1.0):
        raise ValueError(f"upper must be at least 1 where lower is a matrix A0: Sigma <= upper A0; got {bounds.upper}")


def given(config: CoinPressConfig) -> tuple[Any, ...]:
    """The shares of the budget by round, of a config whose rounds are settled."""
    assert config.rounds is not None
    return shares(config.rounds) if config.split is None else config.split


def with_rounds(
    config: CoinPressConfig, choose: Callable[[float], int], *, known: dict[str, Any], field: str = "rounds"
) -> CoinPressConfig:
    """The config with `field` set: as given, or as many as `split` has shares, or choose(beta) if all is `known`."""
    if getattr(config, field) is not None:
        return config
    if field == "rounds" and config.split is not None:
        return dataclasses.replace(config, rounds=len(config.split))
    for name, value in known.items():
        if number(value) is None:
            raise TypeError(
                f"{field}=None chooses the number of rounds by {name}, which is traced here: "
                f"give config=CoinPressConfig({field}=...)"
            )
    beta = number(config.beta)
    settings: dict[str, Any] = {field: choose(0.05 if beta is None else beta)}
    return dataclasses.replace(config, **settings)


def number(value: Any) -> float | None:
    """A public number on the host, None where it is traced."""
    return None if isinstance(value, jax.core.Tracer) else float(np.max(np.asarray(value, np.float64)))


def cost(budget: Any) -> float | None:
    """The number in a budget on the host, None where it is traced."""
    return number(budget.epsilon if isinstance(budget, PureDP) else budget.rho)


def one_column(rows: Rows, name: str) -> None:
    """ValueError unless the rows have one column."""
    if rows.d != 1:
        raise ValueError(f"{name} takes rows of one column, got {rows.d}; see {name.removesuffix('_1d')}")
