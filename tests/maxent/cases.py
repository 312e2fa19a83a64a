"""Random instances of the maximum-entropy problem: every kind of mask and of measurement that a solver can meet."""

from typing import NamedTuple

import numpy as np

KINDS = ("feasible", "infeasible", "chordal", "cycle", "disconnected", "negative diagonal", "full")
#: Instances are padded with unmeasured columns to these sizes, so that a few compilations serve all of them.
SIZES = (8, 20, 40)


class Case(NamedTuple):
    kind: str
    d: int
    y: np.ndarray
    lam: np.ndarray
    mask: np.ndarray
    t: float


def mirrored(a: np.ndarray) -> np.ndarray:
    """The upper triangle on both sides."""
    return np.triu(a) + np.triu(a, 1).T


def make(seed: int, number: int) -> Case:
    """Instance `number`: d log-uniform in 2..40, t in 1e-2..1e4, precisions over six orders of magnitude."""
    g = np.random.default_rng((seed, number))
    kind = KINDS[number % len(KINDS)]
    d = int(np.round(np.exp(g.uniform(np.log(2), np.log(40.49)))))
    factors = g.normal(size=(d, 2 * d))
    truth = factors @ factors.T / (2 * d)
    mask = np.eye(d, dtype=bool)
    gaps = np.abs(np.arange(d)[:, None] - np.arange(d))
    if kind == "cycle":
        mask |= (gaps == 1) | (gaps == d - 1)
    elif kind == "chordal":
        mask |= gaps <= g.integers(1, 4)
    elif kind == "full":
        mask[:] = True
    else:
        mask |= mirrored(g.random((d, d)) < g.uniform(0.02, 0.6))
    if kind == "disconnected":
        group = g.integers(0, 3, d)
        mask &= group[:, None] == group
    lam = mirrored(10.0 ** g.uniform(0, 6, (d, d)))
    t = 10.0 ** g.uniform(-2, 4)
    # Noise of one to three standard deviations on a shrunken truth leaves no positive definite W with W = y.
    deviations = {"feasible": 0.0, "infeasible": 3.0, "cycle": 3.0}.get(kind, 1.0)
    if kind == "infeasible":
        truth = truth * g.uniform(0.05, 1.0)
    y = truth + deviations * mirrored(g.normal(size=(d, d))) / np.sqrt(lam)
    if kind == "negative diagonal":
        some = g.integers(0, d, max(1, d // 4))
        y[some, some] = -g.uniform(0, 5, len(some)) / np.sqrt(lam[some, some])
    return Case(kind, d, y, lam, mask, t)


def padded(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(y, lam, mask) with unmeasured columns up to the next of SIZES; the pads hold NaN, which nothing may read."""
    size = next(s for s in SIZES if s >= case.d)
    out = []
    for a, fill in ((case.y, np.nan), (case.lam, np.nan), (case.mask, False)):
        full = np.full((size, size), fill, a.dtype)
        full[: case.d, : case.d] = a
        out.append(full)
    return out[0], out[1], out[2]
