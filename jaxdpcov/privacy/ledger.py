"""The ledger of a release: one entry for each primitive that touched the rows, composed in a tree.

The tree is a pytree: costs, scales and sensitivities are leaves, so a ledger comes out of `jit` (traced until then)
and of `vmap` (batched), while what was measured and the shape of the composition are static.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record

KINDS = ("gaussian", "laplace", "exponential", "above_threshold", "stability")
_SELECTIONS = ("exponential", "above_threshold")


@record(static=("what", "kind", "unit"))
class Entry:
    """One primitive: what it measured, its sensitivity, its noise scale and its cost.

    kind: "gaussian" | "laplace" | "exponential" | "above_threshold", or "stability" within `Approx`.
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


@record(static=("text",))
class Remark:
    """What a reader of the ledger must know although it spent nothing, such as a look outside of the guarantee."""

    text: str


@record()
class Seq:
    """Sequential composition: the costs of the children add up."""

    children: tuple[Any, ...]


@record()
class Par:
    """Parallel composition over disjoint row blocks fixed in advance: the dearest child counts.

    A row's block may depend on its index and on public randomness only, and n is public (replace-one). Blocks that
    are chosen by content do not qualify, since a replaced row can touch two of them; nor does add/remove-one.
    """

    children: tuple[Any, ...]


@record()
class Rounds:
    """One primitive repeated with budgets that were settled on the way, from what earlier rounds had released.

    entry: an `Entry` whose leaves have one more axis, the last one, of length the most rounds there could be. A round
    of cost 0 did not take place. The costs add up as in `Seq`: a zCDP budget fixed in advance bounds adaptively chosen
    ones too (Whitehouse, Ramdas, Rogers, Wu 2023, privacy filters).
    """

    entry: Entry


@record()
class Approx:
    """A primitive that is (epsilon, delta)-DP and nothing purer: `entry` counts epsilon, and `delta` goes with it.

    It has no price in zCDP or pure DP, so that a ledger with one adds up in neither.
    """

    entry: Entry
    delta: Any


def total(node: Any, unit: str) -> Any:
    """What a ledger adds up to, in one unit of privacy: the sum over `Seq`, the maximum over `Par`.

    Args:
        node: an `Entry`, `Rounds`, `Seq` or `Par`; leaves concrete, traced or batched.
        unit: "rho": zCDP. An entry in epsilon is priced at epsilon^2 / 2 (Bun, Steinke 2016, Proposition 1.4), an
            exponential mechanism at epsilon^2 / 8 (Cesar, Rogers 2021, 2004.07223). "epsilon": pure DP.

    Returns:
        The total, of the shape of the leaves; NaN where an entry failed closed; 0.0 for an empty node.

    Edge cases: unit "epsilon" raises ValueError for an entry that is not pure DP (Gaussian noise), both units for one
        that is (epsilon, delta)-DP (`Approx`).

    >>> from jaxdpcov.privacy.ledger import Entry, Seq, total
    >>> gaussian = Entry("mean", "gaussian", "rho", 1.0, 1.0, 0.5)
    >>> choice = Entry("pair", "exponential", "epsilon", 1.0, 2.0, 2.0)
    >>> total(Seq((gaussian, choice)), "rho")
    1.0
    """
    _checks.choice("unit", unit, ("rho", "epsilon"))
    if isinstance(node, Remark):
        return 0.0
    if isinstance(node, Entry):
        return _price(node, unit)
    if isinstance(node, Rounds):
        return jnp.sum(_price(node.entry, unit), axis=-1)
    if isinstance(node, Approx):
        raise ValueError(f"{node.entry.what!r} is (epsilon, delta)-DP, which has no price in {unit}")
    totals = [total(child, unit) for child in node.children]
    result = totals[0] if totals else 0.0
    for cost in totals[1:]:
        result = result + cost if isinstance(node, Seq) else _larger(result, cost)
    return result


def entries(node: Any) -> tuple[Entry, ...]:
    """The entries of a ledger, in the order in which they were written down.

    `Rounds` give an entry for each round that took place, or where that is traced or batched the one for all of them.

    >>> from jaxdpcov.privacy.ledger import Entry, Seq, entries
    >>> [entry.what for entry in entries(Seq((Entry("mean", "gaussian", "rho", 1.0, 1.0, 0.5),)))]
    ['mean']
    """
    if isinstance(node, Remark):
        return ()
    if isinstance(node, Entry):
        return (node,)
    if isinstance(node, Approx):
        return (node.entry,)
    if isinstance(node, Rounds):
        entry = node.entry
        if _checks.is_traced(entry) or np.ndim(entry.cost) != 1:
            return (entry,)
        numbers = zip(*np.broadcast_arrays(entry.sensitivity, entry.scale, entry.cost))
        return tuple(Entry(entry.what, entry.kind, entry.unit, *each) for each in numbers if each[2] != 0.0)
    return tuple(entry for child in node.children for entry in entries(child))


def rows(node: Any) -> list[dict[str, Any]]:
    """The ledger as a table: one dict of texts and floats for each entry, and one for each `Par` above its blocks.

    Args:
        node: the ledger of one release, its numbers concrete.

    Returns:
        Dicts with `what`, `kind`, `sensitivity`, `scale` and the cost under the name of its unit, `rho` or `epsilon`.
        Entries within a block are named after it; their costs are part of the `parallel` row's, not added to it.
        Rounds with the same sensitivity and scale share a row, which says how many they are and what they cost.

    Edge cases: a traced or batched ledger raises and says how to take one lane.

    >>> from jaxdpcov.privacy.ledger import Entry, Seq, rows
    >>> rows(Seq((Entry("mean", "gaussian", "rho", 1.0, 1.0, 0.5),)))
    [{'what': 'mean', 'kind': 'gaussian', 'sensitivity': 1.0, 'scale': 1.0, 'rho': 0.5}]
    """
    return _rows(_concrete(node, "rows"), "")


def to_dp_event(node: Any) -> Any:
    """The ledger as a `dp_accounting.DpEvent`, for an accountant of that library (which must be installed).

    Leave the accountant's neighbouring relation at its default, add-or-remove-one, whatever the release's own
    relation is. An event counts noise in multiples of "the" sensitivity, and an accountant that is told replace-one
    takes that to be the add-or-remove one and doubles it (PLD, Gaussian noise), refuses the event (PLD, Laplace) or
    ignores what it was told (RDP). Ours are multiples of the sensitivity under the release's own relation, where
    that step has been made already.

    Gaussian and Laplace noise become `GaussianDpEvent` and `LaplaceDpEvent` with scale / sensitivity. A selection
    becomes a `ZCDpEvent` of its price, which the RDP accountant takes and the PLD accountant does not, and so do
    `Rounds` of adaptive budgets. `Seq` becomes
    a `ComposedDpEvent`. `Par` becomes its dearest child where that child dominates the others at every order
    (all Gaussian, or entry by entry); otherwise, as with Laplace noise in one block and Gaussian in another, whose
    curves cross, a `ZCDpEvent` of the largest price.

    Args:
        node: the ledger of one release, its numbers concrete.

    Returns:
        A `DpEvent`; entries are composed as if fixed in advance, so an exact (PLD) account of it is no guarantee for
        budgets that were chosen from earlier outputs. For these use the RDP accountant or the zCDP total.

    Edge cases: ImportError without dp-accounting. A traced or batched ledger raises, and so does one that failed
    closed (NaN): it released nothing.

    >>> from jaxdpcov.privacy.ledger import Entry, to_dp_event
    >>> to_dp_event(Entry("mean", "gaussian", "rho", sensitivity=2.0, scale=4.0, cost=0.125))
    GaussianDpEvent(noise_multiplier=2.0)
    """
    try:
        import dp_accounting
    except ImportError:
        raise ImportError("to_dp_event needs the package dp-accounting: pip install dp-accounting") from None
    node = _concrete(node, "to_dp_event")
    for entry in entries(node):
        numbers = (entry.sensitivity, entry.scale, entry.cost)
        if entry.cost != 0.0 and not all(np.isfinite(number) and number > 0.0 for number in numbers):
            raise ValueError(f"entry {entry.what!r} has no finite scale and cost > 0: it failed closed")
    return _event(dp_accounting, node)


def _price(entry: Entry, unit: str) -> Any:
    """The cost of one entry in either unit."""
    _checks.choice("kind", entry.kind, KINDS)
    if unit == entry.unit:
        return entry.cost
    if unit == "rho":
        return entry.cost * entry.cost * (0.125 if entry.kind == "exponential" else 0.5)
    if entry.kind in _SELECTIONS:
        return entry.scale
    raise ValueError(f"a total in epsilon needs pure DP throughout, and {entry.what!r} is {entry.kind} noise in rho")


def _larger(one: Any, other: Any) -> Any:
    """The maximum, NaN where either is: a block that failed closed is not hidden."""
    if isinstance(one, jax.Array) or isinstance(other, jax.Array):
        return jnp.maximum(one, other)
    both = np.maximum(one, other)
    return float(both) if np.ndim(both) == 0 else both


def _concrete(node: Any, caller: str) -> Any:
    """The same ledger in Python floats, and NumPy vectors under `Rounds`."""
    if _checks.is_traced(node):
        raise TypeError(f"{caller} needs concrete numbers, and this ledger is traced: call it outside jit and vmap")

    def convert(part: Any) -> Any:
        if isinstance(part, Rounds):
            return jax.tree.map(lambda leaf: single(np.asarray(leaf, np.float64), 1), part)
        return float(single(part, 0))

    def single(leaf: Any, axes: int) -> Any:
        if np.ndim(leaf) == axes:
            return leaf
        lane = "jax.tree.map(lambda leaf: leaf[i], ledger)"
        raise ValueError(
            f"{caller} needs the ledger of one release, got a batch of shape {np.shape(leaf)}: take {lane}"
        )

    return jax.tree.map(convert, node, is_leaf=lambda part: isinstance(part, Rounds))


def _rows(node: Any, block: str) -> list[dict[str, Any]]:
    if isinstance(node, Remark):
        return [{"what": block + node.text, "kind": "remark"}]
    if isinstance(node, Entry):
        about = {"what": block + node.what, "kind": node.kind, "sensitivity": node.sensitivity, "scale": node.scale}
        return [about | {node.unit: node.cost}]
    if isinstance(node, Approx):
        return [_rows(node.entry, block)[0] | {"delta": node.delta}]
    if isinstance(node, Rounds):
        return [row for part in _alike(node) for row in _rows(part, block)]
    if isinstance(node, Seq):
        return [row for child in node.children for row in _rows(child, block)]
    unit = "epsilon" if all(entry.unit == "epsilon" for entry in entries(node)) else "rho"
    head = {"what": f"{block}{len(node.children)} disjoint row blocks, the dearest counts", "kind": "parallel"}
    below = [row for i, child in enumerate(node.children) for row in _rows(child, f"{block}block {i + 1}: ")]
    return [head | {unit: total(node, unit)}, *below]


def _alike(node: Rounds) -> list[Entry]:
    """One entry for all rounds of one sensitivity and scale, in the order of the first of each."""
    groups: dict[tuple[float, float], list[float]] = {}
    for entry in entries(node):
        groups.setdefault((float(entry.sensitivity), float(entry.scale)), []).append(float(entry.cost))
    what, kind, unit = node.entry.what, node.entry.kind, node.entry.unit
    return [Entry(f"{what} ({len(each)} times)", kind, unit, *about, sum(each)) for about, each in groups.items()]


def _event(library: Any, node: Any) -> Any:
    if isinstance(node, Rounds):  # no exact account holds for budgets chosen on the way
        return library.ZCDpEvent(float(total(node, "rho")))
    if isinstance(node, Seq):
        return library.ComposedDpEvent([_event(library, child) for child in node.children])
    if isinstance(node, Remark):
        return library.NoOpDpEvent()
    if isinstance(node, Approx):
        return library.UnsupportedDpEvent()
    if isinstance(node, Par):
        if not node.children:
            return library.NoOpDpEvent()
        dearest = max(node.children, key=lambda child: total(child, "rho"))
        if all(_dominates(dearest, child) for child in node.children):
            return _event(library, dearest)
        return library.ZCDpEvent(total(node, "rho"))
    if node.cost == 0.0:  # measured nothing: a draw that was determined already
        return library.NoOpDpEvent()
    if node.kind == "gaussian":
        return library.GaussianDpEvent(node.scale / node.sensitivity)
    if node.kind == "laplace":
        return library.LaplaceDpEvent(node.scale / node.sensitivity)
    return library.ZCDpEvent(total(node, "rho"))


def _dominates(dearest: Any, other: Any) -> bool:
    """Whether the dearest child's event covers the other's at every order, not in its zCDP price alone."""
    mine, theirs = entries(dearest), entries(other)
    if _adaptive(dearest) or _adaptive(other):
        return False
    if all(entry.kind == "gaussian" for entry in mine + theirs):
        return True  # a composition of Gaussians is one Gaussian, and its price says all
    return _shape(dearest) == _shape(other) and all(a.cost >= b.cost for a, b in zip(mine, theirs))


def _adaptive(node: Any) -> bool:
    return isinstance(node, Rounds) or any(_adaptive(child) for child in getattr(node, "children", ()))


def _shape(node: Any) -> Any:
    """The tree of kinds, without names and numbers."""
    if isinstance(node, Remark):
        return node.text
    if isinstance(node, Entry):
        return node.kind, node.unit
    if isinstance(node, Approx):
        return type(node).__name__, _shape(node.entry)
    return type(node).__name__, tuple(_shape(child) for child in node.children)
