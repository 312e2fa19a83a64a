"""What a plan assumes of the rows: a population given, a release, or the reference population of the bounds."""

from typing import Any

import numpy as np

from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.release import Release
from jaxdpcov.sim.laws import Population, from_release, normal
from jaxdpcov.sim.populations import ar1, low_trace

#: Half-widths of a box, or radii of a ball, that are one standard deviation of the reference population.
BOX_STD, BALL_RMS = 0.25, 0.5


def population(assumed: Any, d: int, bounds: Any) -> tuple[Population, str]:
    """The population that is assumed, with what to call it. Rows that nobody marked public are refused."""
    if assumed is None:
        return reference(d, bounds)
    if isinstance(assumed, Release):
        found, what = from_release(assumed), f"the normal population of a release by {assumed.mechanism}"
    elif isinstance(assumed, Population):
        found, what = assumed, "public rows" if assumed.law == "rows" else f"a population of law {assumed.law!r}"
    else:
        raise TypeError(
            "assumed must be a population of jaxdpcov.sim, an earlier Release, or public rows marked as such by "
            f"sim.from_rows(rows, public=True); got {type(assumed).__name__}. A plan shows what it assumes: rows that "
            "are to be protected must not be planned from"
        )
    if found.d != d:
        raise ValueError(f"assumed has {found.d} columns, not d = {d}")
    numbers = (found.mean, found.covariance)
    if not all(np.all(np.isfinite(np.asarray(each))) for each in numbers):
        raise ValueError("assumed must have a finite mean and covariance")
    return found, what


def reference(d: int, bounds: Any) -> tuple[Population, str]:
    """A population that bounds alone suggest, with one sentence that says which it is.

    A box: normal about the centre, standard deviations a quarter of the half-widths (bounds of four standard
    deviations), correlation 0.5^|i - j|. A ball: normal about the centre, root mean square length half the radius,
    eigenvalues proportional to 1/k in a random basis. A spectrum: normal, eigenvalues relative to the lower bound in
    equal log steps between the bounds (those of the box in a random basis where the lower bound is a number), the mean
    half the mean radius off its centre along the diagonal.

    >>> from jaxdpcov import Bounds
    >>> from jaxdpcov.plan import reference
    >>> found, what = reference(3, Bounds.box(-4.0, 4.0))
    >>> found.covariance[0].tolist(), what
    ([1.0, 0.5, 0.25], 'reference for a box: normal, bounds at 4 standard deviations, correlation 0.5^|i-j|')
    """
    if isinstance(bounds, BoxBounds):
        lower, upper = (np.broadcast_to(np.asarray(end, np.float64), (d,)) for end in (bounds.lower, bounds.upper))
        std = BOX_STD * (0.5 * upper - 0.5 * lower)
        covariance = np.outer(std, std) * ar1(d).covariance
        what = "reference for a box: normal, bounds at 4 standard deviations, correlation 0.5^|i-j|"
        return normal(covariance, 0.5 * lower + 0.5 * upper), what
    if isinstance(bounds, L2Bounds):
        off = 0.0 if bounds.center is None else np.asarray(bounds.center, np.float64)
        what = "reference for a ball: normal, root mean square length radius/2, eigenvalues like 1/k"
        return low_trace(d, trace=(BALL_RMS * float(bounds.radius)) ** 2, mean=off), what
    assert isinstance(bounds, SpectrumBounds)
    top = float(bounds.upper)
    if np.ndim(bounds.lower) == 0:
        values = _steps(float(bounds.lower), top, d)
        basis = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
        covariance = (basis * values) @ basis.T
    else:
        matrix = np.asarray(bounds.lower, np.float64)
        own, vectors = np.linalg.eigh(matrix)
        root = (vectors * np.sqrt(own)) @ vectors.T
        covariance = (root * _steps(1.0, top, d)) @ root
    center: Any = np.zeros(d) if bounds.mean_center is None else np.asarray(bounds.mean_center, np.float64)
    shift = 0.0 if bounds.mean_radius is None else 0.5 * float(bounds.mean_radius) / np.sqrt(d)
    what = "reference for a spectrum: normal, eigenvalues in equal log steps between the bounds"
    return normal(covariance, center + shift), what


def _steps(low: float, high: float, d: int) -> np.ndarray:
    """(d,) numbers in equal log steps from low to high; the middle one where there is one."""
    return np.geomspace(low, high, d) if d > 1 else np.sqrt(np.array([low * high]))
