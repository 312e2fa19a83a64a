"""Choices of the mechanisms of Kamath, Li, Singhal and Ullman, and the ones that are made on the host."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _prior, _range
from jaxdpcov.mechanisms.klsu import constants as public

#: More rounds than any prior range in floating point has a use for: 0.7^64 is 1e-10, and rounds mostly halve.
MAX_ROUNDS = 64


@record(static=("rounds", "constants", "noise", "psd", "center", "long_rows", "bins", "relation"))
class KLSUConfig:
    """Choices of `naive_pce`, `weak_ppc`, `ppc`, `pgce`, `private_mean` and `learn_gaussian`; each uses what it needs.

    rounds: of preconditioning, one noisy release each. None: the fewest that bring kappa to `kappa_final`, or if none
        do the number that brings it lowest, by the accuracy that n, d, the budget and `constants` promise; for a traced
        budget ceil(log(kappa/kappa_final)/log(1/0.7)), those of the theorem. 0 where the bounds are as narrow already:
        then nothing is spent on it. The release's config has the number.
    constants: "practical": typical sizes in place of tails, small errors and no statement on coverage. "theory":
        proven tails, so that I <= A Sigma A^T <= kappa I holds after every round with probability 1 - beta, and a
        round that cannot promise a smaller kappa changes nothing. Privacy is the same for both.
    noise: "goe", the tight calibration, or "sgw", one standard deviation on every entry.
    psd: "floor" (the covariance is at least the public lower bound, so that it has an inverse), "project" (eigenvalues
        below 0 become 0) or "none".
    center: "pairs" takes differences of paired rows, whatever the mean; "zero" takes moments about the public
        `mean_center`, for rows whose mean is known (covariances only).
    long_rows: rows beyond the radius are clipped to it ("clip"), or count as 0 ("drop", as published): the same
        sensitivity, and the same where the radius holds all rows.
    kappa_final: the condition at which preconditioning ends, > 8.
    precondition_share: of the budget, for preconditioning; the rest for the estimate.
    mean_share: of the budget of `learn_gaussian`, for the mean. None: the share that minimises the predicted
        Kullback-Leibler divergence.
    range_share: of the mean's budget, for the interval that holds it.
    bins: half-numbers of bins by stage of the search for that interval. None: from the bounds, on the host.
    beta: failure probability under "theory", in (0, 1).
    relation: "replace" only. Every step divides by n, which must be public.

    >>> from jaxdpcov import KLSUConfig
    >>> KLSUConfig(constants="theory").kappa_final
    12.0
    """

    rounds: int | None = None
    constants: str = "practical"
    noise: str = "goe"
    psd: str = "floor"
    center: str = "pairs"
    long_rows: str = "clip"
    kappa_final: Any = 12.0
    precondition_share: Any = 0.5
    mean_share: Any = None
    range_share: Any = 0.25
    bins: tuple[int, ...] | None = None
    beta: Any = 0.05
    relation: str = "replace"

    def __post_init__(self) -> None:
        count = self.rounds
        whole = isinstance(count, (int, np.integer)) and not isinstance(count, bool)
        if count is not None and not (whole and 0 <= count <= MAX_ROUNDS):
            raise ValueError(f"rounds must be a whole number from 0 to {MAX_ROUNDS}, or None; got {count!r}")
        _checks.choice("constants", self.constants, ("practical", "theory"))
        _checks.choice("noise", self.noise, ("goe", "sgw"))
        _checks.choice("psd", self.psd, ("floor", "project", "none"))
        _checks.choice("center", self.center, ("pairs", "zero"))
        _checks.choice("long_rows", self.long_rows, ("clip", "drop"))
        for share in ("precondition_share", "range_share", "beta"):
            _checks.between(share, getattr(self, share), 0.0, 1.0)
        if self.mean_share is not None:
            _checks.between("mean_share", self.mean_share, 0.0, 1.0)
        _checks.between("kappa_final", self.kappa_final, 8.0, math.inf)
        object.__setattr__(self, "bins", _range.check_bins(self.bins))
        if self.relation != "replace":
            raise ValueError(f"relation must be 'replace': every step divides by a public n; got {self.relation!r}")


def settle_rounds(rows: Rows, share: Any, budget: Any, bounds: SpectrumBounds, config: KLSUConfig) -> KLSUConfig:
    """The config with its number of preconditioning rounds, which have `share` of the budget."""

    def choose() -> int:
        kappa, final = _prior.spread(bounds), _prior.number(config.kappa_final) or 12.0
        most = published_rounds(kappa, final)
        rho, part, beta = _prior.cost(budget), _prior.number(share), _prior.number(config.beta)
        if rho is None or part is None or beta is None or most == 0:
            return most
        terms = float(rows.count()) // 2 if config.center == "pairs" else float(rows.count())
        return fewest(kappa, final, most, max(terms, 1.0), rows.d, rho * part, beta, config)

    return _prior.settled(config, "rounds", choose, n=rows.count(), upper=bounds.upper, lower=bounds.lower)


def published_rounds(kappa: float, final: float) -> int:
    """max(0, ceil(log(kappa/final)/log(1/0.7))), at most MAX_ROUNDS."""
    return min(max(0, math.ceil(math.log(kappa / final) / math.log(1.0 / 0.7) - 1e-9)), MAX_ROUNDS)


def fewest(
    kappa: float, final: float, most: int, terms: float, d: int, rho: float, beta: float, config: KLSUConfig
) -> int:
    """The fewest rounds whose promised kappa is at most `final`, or else those of the smallest kappa; see `rounds`."""
    tried = np.arange(1, most + 1)
    with jax.ensure_compile_time_eval():  # inside a caller's trace too: every number here is concrete
        each = jnp.asarray(rho / tried), jnp.asarray(beta / (2.0 * (tried + 1)))
        eps = public.relative_accuracy(config.constants, config.noise, jnp.asarray(terms), d, *each)
        reached = jnp.full(most, kappa)
        for t in tried:  # all numbers of rounds advance together
            following, usable = public.next_kappa(config.constants, eps, reached)
            reached = jnp.where(usable & (t <= tried), following, reached)
        ends = np.asarray(reached, np.float64)
    enough = np.flatnonzero(ends <= final)
    best = int(enough[0]) if enough.size else int(np.argmin(ends))
    return int(tried[best]) if ends[best] < kappa else 0
