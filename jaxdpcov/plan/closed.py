"""Errors by closed form: what the noise of `gaussian`, `laplace` and `diagonal` does before any post-processing."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdpcov.data import clip
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms._registry import Mechanism
from jaxdpcov.plan.simulate import units
from jaxdpcov.privacy import sensitivity
from jaxdpcov.privacy.budget import PureDP, split
from jaxdpcov.sim.laws import Population

#: Mechanisms of one noisy second moment and one noisy mean.
CLOSED = ("gaussian", "laplace", "diagonal")


def noise(
    mechanism: Mechanism, n: float, d: int, budget: Any, bounds: Any, config: Any, population: Population, metric: str
) -> float | None:
    """The root mean square error that noise makes, None where there is no closed form for it.

    Clipping, and eigenvalues that the PSD step moves (which only helps), are left out. With W the noise of the second
    moment and e that of the mean m, of variance v an entry, the covariance errs by W - m e^T - e m^T - (e e^T - v I),
    whose terms are uncorrelated. Off the diagonal that is w^2 + v (m_i^2 + m_j^2) + v^2, on it w^2 + 4 v m_i^2 +
    (k - 1) v^2 with k the kurtosis of the noise, 3 or 6.

    References: the noise is that of `privacy.sensitivity`; the sum is of our own.
    """
    if mechanism.name not in CLOSED or config.relation != "replace" or metric in ("spectral", "mahalanobis"):
        return None
    if config.shrink or config.center != "private":
        return None
    pure, diagonal = isinstance(budget, PureDP), mechanism.name == "diagonal"
    frame = clip.frame(bounds, d, jnp.zeros(()).dtype)
    scales = _steps.Scales(frame, budget, config, jnp.ones(()), diagonal)
    live = np.asarray(frame.live)
    cost = float(budget.epsilon if pure else budget.rho)
    share = config.mean_share
    if share is None:
        share = float(scales.mean_share(jnp.asarray(cost), jnp.asarray(float(n))))
    first, second = split(cost, (share, 1.0 - share))

    def std(bounds: tuple[Any, Any], part: float) -> float:
        l2, l1 = (float(each) for each in bounds)
        return math.sqrt(2.0) * l1 / part / n if pure else l2 / math.sqrt(2.0 * part) / n

    v = std(scales.first(), first) ** 2
    width, live_count, domain = d, float(live.sum()), frame.domain
    about = (domain, "replace", live_count)
    if diagonal:
        l2, l1 = (float(f(*about, width=width)) for f in (sensitivity.diagonal_l2, sensitivity.diagonal_l1))
        w = np.diag(np.full(d, std((l2, l1), second)))
    elif pure:
        w = np.full((d, d), std((0.0, sensitivity.second_moment_l1(*about, width=width)), second))
    else:
        shape = scales.triangle()
        unit = std((shape.l2, 0.0), second)
        w = np.full((d, d), unit * float(shape.off))
        np.fill_diagonal(w, unit * float(shape.diag))
    half = np.asarray(frame.scale)
    if metric == "mean":
        return math.sqrt(v * float(np.sum(half[live] ** 2)))
    m = (np.asarray(population.mean, np.float64) - np.asarray(frame.center)) / np.where(live, half, 1.0)
    square = w**2
    spread = v * (m[:, None] ** 2 + m[None, :] ** 2) + v * v
    np.fill_diagonal(spread, 4.0 * v * m**2 + ((6.0 if pure else 3.0) - 1.0) * v * v)
    square = np.diag(np.diagonal(square + spread)) if diagonal else square + spread
    size = np.where(live, half / units(bounds, d) if metric == "scaled" else half, 0.0)
    total = float(np.sqrt(size**2 @ square @ size**2))
    if diagonal:  # the rest of the covariance is left out, which is no noise but an error
        beside = np.asarray(population.covariance) - np.diag(np.diagonal(population.covariance))
        per = np.outer(units(bounds, d), units(bounds, d)) if metric == "scaled" else 1.0
        total = math.hypot(total, float(np.linalg.norm(beside / per)))
    return total / float(np.linalg.norm(population.covariance)) if metric == "relative" else total
