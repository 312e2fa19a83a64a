"""The rounds of PACE followed from the host, reconstructing only what a round has touched.

The reconstruction separates over the connected components of the measured graph, so a round solves for the components
of its new entries alone: small for most rounds of a sparse graph. Sizes are rounded up to a few, so that few programs
are compiled. Draws and, to the solver's tolerance, answers are those of the traced loop.
"""

import functools
from typing import Any

import jax
import numpy as np

from jaxdpcov import _progress, maxent
from jaxdpcov.mechanisms.pace.state import Known, Log, Private, Schedule, pairs
from jaxdpcov.mechanisms.pace.step import absorb, choose_and_measure, going, tolerance

#: Sizes of components that have a program of their own, beside d itself.
_SIZES = (8, 16, 32, 64, 128, 256, 512)
#: In components of more than 64 columns, of which more than this share of entries is measured, the solver's
#: preconditioner for dense masks is the better one.
_DENSE, _LARGE = 0.25, 64

#: What progress is told in: parts of the budget.
_PARTS = 1000


def follow(key: jax.Array, private: Private, known: Known, log: Log, schedule: Schedule) -> tuple[Known, Log]:
    """Rounds until the budget is spent; progress is the share of it that is, a released number."""
    d = private.second.shape[0]
    i, j = pairs(d)
    graph, start, report = Graph(d), float(known.left), _progress.asked()
    while bool(_going(known, log)):
        known, log, chosen = _choose_and_measure(key, private, known, log, schedule)
        touched = graph.join([(int(i[e]), int(j[e])) for e in np.asarray(chosen)])
        size = next((s for s in _SIZES if len(touched) <= s < d), d)
        columns = np.full(size, d)
        columns[: len(touched)] = touched
        dense = len(touched) > _LARGE and 2 * graph.edges(touched) > _DENSE * len(touched) ** 2
        known = _reconstruct(private, known, log, chosen, columns, schedule, dense)
        if report is not None:
            report(round(_PARTS * (1.0 - float(known.left) / start)), _PARTS)
    return known, log


class Graph:
    """The measured graph: connected components, and how many edges there are within each."""

    def __init__(self, d: int) -> None:
        self._root = list(range(d))
        self._members = [[v] for v in range(d)]
        self._seen: set[tuple[int, int]] = set()

    def join(self, edges: list[tuple[int, int]]) -> list[int]:
        """Add edges; the columns of all components that they lie in."""
        for i, j in edges:
            if i != j:
                self._seen.add((i, j))
            a, b = sorted((self._root[i], self._root[j]), key=lambda root: -len(self._members[root]))
            if a != b:
                for v in self._members[b]:
                    self._root[v] = a
                self._members[a] += self._members[b]
                self._members[b] = []
        return sorted(v for root in {self._root[i] for i, _ in edges} for v in self._members[root])

    def edges(self, columns: list[int]) -> int:
        """Number of edges within whole components."""
        inside = set(columns)
        return sum(i in inside for i, _ in self._seen)


@jax.jit
def _going(known: Known, log: Log) -> jax.Array:
    return going(known, log)


@jax.jit
def _choose_and_measure(
    key: jax.Array, private: Private, known: Known, log: Log, schedule: Schedule
) -> tuple[Known, Log, jax.Array]:
    return choose_and_measure(key, private, known, log, schedule)


@functools.partial(jax.jit, static_argnames="dense")
def _reconstruct(
    private: Private, known: Known, log: Log, chosen: Any, columns: Any, schedule: Schedule, dense: bool
) -> Known:
    """The reconstruction within `columns` (m,), a union of components; d stands for no column."""
    y, lam = known.measurements(private)

    def block(matrix: jax.Array, fill: Any) -> jax.Array:
        return matrix.at[columns[:, None], columns[None, :]].get(mode="fill", fill_value=fill)

    found = maxent.fit(
        block(y, 0.0),
        block(lam, 1.0),
        block(known.mask, False),
        t=private.t,
        init=block(known.precision, 0.0),
        config=maxent.MaxentConfig(tol=tolerance(y.dtype), preconditioner="eigen" if dense else "diagonal"),
    )

    def put(matrix: jax.Array, part: jax.Array) -> jax.Array:
        return matrix.at[columns[:, None], columns[None, :]].set(part, mode="drop")

    covariance, precision = put(known.covariance, found.covariance), put(known.precision, found.precision)
    return absorb(known, log, chosen, covariance, precision, schedule)
