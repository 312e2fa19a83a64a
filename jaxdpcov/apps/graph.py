"""The measured graph of a release of `pace`, `auto` or `ssp_select`: the entries asked for, and what they said."""

from typing import Any, NamedTuple

import numpy as np

from jaxdpcov.privacy import ledger
from jaxdpcov.release import Release, column_names


class Edge(NamedTuple):
    """One measured entry beside the diagonal; a list of them is a table to `pandas.DataFrame`.

    first, second: names of the columns. measured, std: their covariance as measured, all measurements of it together,
    and the standard deviation of its noise, squared data units. covariance, correlation: those of the released matrix.
    round: the first round that chose it, counted from 1; 0 where all entries were measured at once. times: rounds that
    did.
    """

    first: str
    second: str
    measured: float
    std: float
    covariance: float
    correlation: float
    round: int
    times: int


class Round(NamedTuple):
    """One round: what choosing and measuring cost (rho), and the (k, 2) numbers of the columns chosen."""

    choice: float
    measurement: float
    chosen: np.ndarray


def edges(release: Release) -> list[Edge]:
    """The measured entries beside the diagonal, in the order in which they were first chosen.

    Formal guarantee: post-processing of the release, at no further cost.

    Args:
        release: one release (not a batch) of `pace`, `auto` or `ssp_select`.

    Returns:
        One `Edge` for each measured pair of columns.

    Raises:
        ValueError: for releases of mechanisms that choose no entries, and for batches.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, pace
    >>> from jaxdpcov.apps.graph import edges
    >>> x = jax.random.uniform(jax.random.key(1), (2000, 4))
    >>> release = pace(jax.random.key(0), x.at[:, 1].set(x[:, 0]), ZCDP(rho=0.5), Bounds.box(0.0, 1.0))
    >>> edges(release)[0][:2]
    ('x0', 'x1')
    """
    mask = _measured(release)
    scale = np.asarray(release.scale, float)
    units = scale[:, None] * scale[None, :]
    y = np.asarray(release.extra["measurements"], float) * units
    weight = np.asarray(release.extra["measurement_precision"], float)
    covariance, correlation = np.asarray(release.covariance, float), np.asarray(release.correlation, float)
    names, seen = column_names(release), _chosen(release)
    found = []
    for i, j in zip(*np.nonzero(np.triu(mask, 1))):
        when = seen.get((int(i), int(j)), [])
        found.append(
            Edge(
                first=names[i],
                second=names[j],
                measured=float(y[i, j]),
                std=float(units[i, j] / weight[i, j] ** 0.5),
                covariance=float(covariance[i, j]),
                correlation=float(correlation[i, j]),
                round=1 + when[0] if when else 0,
                times=max(1, len(when)),
            )
        )
    return sorted(found, key=lambda edge: edge.round)


def rounds(release: Release) -> list[Round]:
    """What each round cost and chose; an empty list where all entries were measured at once.

    >>> import jax
    >>> from jaxdpcov import Bounds, PaceConfig, ZCDP, pace
    >>> from jaxdpcov.apps.graph import rounds
    >>> x = jax.random.uniform(jax.random.key(1), (2000, 4))
    >>> release = pace(jax.random.key(0), x, ZCDP(rho=0.5), Bounds.box(0.0, 1.0), config=PaceConfig(center="zero"))
    >>> sum(each.choice + each.measurement for each in rounds(release)) < 0.5
    True
    """
    _measured(release)
    chosen = release.extra.get("measured_in_round")
    if chosen is None:
        return []
    chosen = np.asarray(chosen)
    spent = {"exponential": np.zeros(len(chosen)), "gaussian": np.zeros(len(chosen))}
    for node in release.ledger.children:
        if isinstance(node, ledger.Rounds) and np.size(node.entry.cost) >= len(chosen):
            spent[node.entry.kind] = spent[node.entry.kind] + np.asarray(node.entry.cost, float).reshape(
                len(chosen), -1
            ).sum(1)
    took_place = chosen[:, 0, 0] >= 0
    return [Round(float(c), float(m), pair) for c, m, pair, on in zip(*spent.values(), chosen, took_place) if on]


def _measured(release: Release) -> np.ndarray:
    """The mask of measured entries."""
    mask: Any = release.extra.get("measured_mask")
    if mask is None:
        raise ValueError(f"{release.mechanism} chooses no entries: give a release of pace, auto or ssp_select")
    if np.ndim(mask) != 2:
        lane = "jax.tree.map(lambda leaf: leaf[i], releases)"
        raise ValueError(f"expected one release, got a batch of shape {np.shape(mask)[:-2]}: take {lane}")
    return np.asarray(mask)


def _chosen(release: Release) -> dict[tuple[int, int], list[int]]:
    """The rounds, from 0, in which each pair of columns was chosen."""
    seen: dict[tuple[int, int], list[int]] = {}
    for number, pairs in enumerate(np.asarray(release.extra.get("measured_in_round", np.empty((0, 1, 2), int)))):
        for i, j in pairs:
            if i >= 0:
                seen.setdefault((int(i), int(j)), []).append(number)
    return seen
