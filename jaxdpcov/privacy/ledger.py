"""The ledger of a release: one entry for each primitive that touched the rows, composed in a tree."""

from typing import Any

from jaxdpcov._records import record


@record(static=("what", "kind", "unit"))
class Entry:
    """One primitive: what it measured, its sensitivity, its noise scale and its cost.

    kind: "gaussian" | "laplace" | "exponential" | "above_threshold".
    unit: "rho" (zCDP) or "epsilon" (pure DP): the unit of `cost`.
    sensitivity: of exactly the statistic that was noised (l2 for gaussian, l1 for laplace, of the score else).
    scale: noise standard deviation (gaussian) or scale b (laplace) that goes with that sensitivity; the
    epsilon of a selection for "exponential" and "above_threshold".
    """

    what: str
    kind: str
    unit: str
    sensitivity: Any
    scale: Any
    cost: Any


@record()
class Seq:
    """Sequential composition: the costs of the children add up."""

    children: tuple[Any, ...]


@record()
class Par:
    """Parallel composition over disjoint row blocks fixed in advance: the dearest child counts."""

    children: tuple[Any, ...]
