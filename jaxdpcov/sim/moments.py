"""What a study compares: estimates of a moment with the true one, and the metrics that it can be asked for."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import _checks, metrics

Array = jax.Array

#: What is estimated: "second_moment" is about the public centre of the bounds.
MOMENTS = ("covariance", "second_moment", "mean")
#: Eigenvalues of the truth are raised to this share of the largest one in "mahalanobis", as data may be singular.
FLOOR = 1e-6


class Truth(NamedTuple):
    """What an estimate is compared with, data units. moment: that which is estimated. covariance: (d, d)."""

    moment: Any
    covariance: Any


def sample_moment(rows: Array, moment: str, center: Array) -> Array:
    """The moment of rows (n, d) as they are, without clipping or noise; covariances divide by n."""
    about = jnp.mean(rows, axis=0) if moment != "second_moment" else center
    if moment == "mean":
        return about
    centred = rows - about[None, :]
    return jnp.matmul(centred.T, centred, precision="highest") / rows.shape[0]


def population_moment(mean: Array, covariance: Array, moment: str, center: Array) -> Array:
    """The same of a population."""
    if moment == "mean":
        return mean
    if moment == "covariance":
        return covariance
    about = mean - center
    return covariance + about[:, None] * about[None, :]


def _l2(estimate: Array, truth: Truth) -> Array:
    return jnp.linalg.norm(estimate - truth.moment)


def _mahalanobis_mean(estimate: Array, truth: Truth) -> Array:
    error = estimate - truth.moment
    return jnp.sqrt(error @ jnp.linalg.solve(truth.covariance, error))


def _of_matrices(metric: Callable[[Any, Any], Array]) -> Callable[[Array, Truth], Array]:
    def measured(estimate: Array, truth: Truth) -> Array:
        return metric(estimate, truth.moment)

    return measured


def _relative(estimate: Array, truth: Array) -> Array:
    return metrics.frobenius(estimate, truth) / jnp.linalg.norm(truth)


def _mahalanobis(estimate: Array, truth: Array) -> Array:
    return metrics.mahalanobis(estimate, truth, FLOOR)


#: Metrics of a covariance or second moment by name; "mahalanobis" floors the truth (`FLOOR`).
OF_MATRICES: dict[str, Callable[[Array, Truth], Array]] = {
    "frobenius": _of_matrices(metrics.frobenius),
    "relative_frobenius": _of_matrices(_relative),
    "spectral": _of_matrices(metrics.spectral),
    "mahalanobis": _of_matrices(_mahalanobis),
    "stein": _of_matrices(metrics.stein),
    "correlation_error": _of_matrices(metrics.correlation_error),
    "kl": _of_matrices(metrics.kl),
    "hellinger": _of_matrices(metrics.hellinger),
    "bures_wasserstein": _of_matrices(metrics.bures_wasserstein),
}
#: Metrics of a mean by name; "mahalanobis" is in standard deviations of the population.
OF_MEANS: dict[str, Callable[[Array, Truth], Array]] = {"l2": _l2, "mahalanobis": _mahalanobis_mean}


def measures(moment: str, wanted: Sequence[Any]) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Pairs (name, f(estimate, truth: `Truth`) -> ()) of metrics that are given so already, or by name."""
    _checks.choice("moment", moment, MOMENTS)
    there = OF_MEANS if moment == "mean" else OF_MATRICES
    found = []
    for metric in wanted:
        if isinstance(metric, str):
            if metric not in there:
                raise ValueError(f"metric must be one of {', '.join(there)} for a {moment}; got {metric!r}")
            metric = (metric, there[metric])
        if not isinstance(metric, (tuple, list)) or len(metric) != 2:
            raise TypeError(f"a metric is a name, or a pair (name, function), got {metric!r}")
        name, function = metric
        if not callable(function):
            raise TypeError(f"metric {name!r} must be a function (estimate, truth), got {type(function).__name__}")
        found.append((str(name), function))
    if not found:
        raise ValueError("at least one metric is needed")
    return tuple(found)
