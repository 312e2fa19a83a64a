"""Distances of product distributions over {0,1}^d, given by their means: Kullback-Leibler and total variation."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdpcov.linalg.matrix import Array
from jaxdpcov.metrics._steps import excess, kind_root


def product_kl(estimate: Any, truth: Any) -> Array:
    """Kullback-Leibler divergence, in nats, of the product distribution over {0,1}^d of the truth from the estimate's.

    sum p log(p/q) + (1 - p) log((1 - p)/(1 - q)) with p = truth, q = estimate; swap them for the other direction.

    Args:
        estimate, truth: means q and p (..., d), in [0, 1] (of a noisy mean, clip it first).

    Returns:
        The divergence (...), with relative precision also near 0; inf where the estimate rules out (q = 0 or 1) what
        the truth does not, or an entry is outside of [0, 1]. Gradients are finite also there,
        and at p = 0 or 1, where the true one is infinite.

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.product_kl([0.5, 0.25], [1.0, 0.25])), 4)  # log 2
    0.6931
    """
    q, p, unless = _means(estimate, truth)
    return unless(_kl(q, p), jnp.inf)


def product_total_variation_bound(estimate: Any, truth: Any) -> Array:
    """Upper bound on the total variation distance of two product distributions over {0,1}^d, in [0, 1].

    The smallest of 1 - prod(1 - |p - q|) (the best couplings of the coordinates, side by side; never above the sum of
    |p - q|); sqrt(KL/2) in either direction (Pinsker); and sqrt(1 - prod(sqrt(p q) + sqrt((1 - p)(1 - q)))^2), from the
    Hellinger distance. The sqrt(chi^2/2) of Kamath et al., chi^2 = sum (p - q)^2/(q (1 - q)), is never below
    sqrt(KL/2), as KL <= chi^2 in each coordinate. The true distance has no closed form, and is exact here for d = 1.

    Args:
        estimate, truth: means q and p (..., d), in [0, 1] (of a noisy mean, clip it first).

    Returns:
        The bound (...), with relative precision also near 0; 1 where an entry is outside of [0, 1]. Gradients are those
        of the smallest one; finite also
        at a mean of 0 or 1, where the true one may be infinite.

    References: Kamath, Li, Singhal, Ullman 2019, "Privately learning high-dimensional distributions".

    >>> from jaxdpcov import metrics
    >>> round(float(metrics.product_total_variation_bound([0.5, 0.25], [0.75, 0.25])), 4)
    0.25
    """
    q, p, unless = _means(estimate, truth)
    gap = p - q
    surely = jnp.any(jnp.abs(gap) == 1, axis=-1)  # a coordinate that is 0 under one and 1 under the other
    open_gap = jnp.where(jnp.abs(gap) == 1, 0.0, gap)
    coupling = -jnp.expm1(jnp.sum(jnp.log1p(-_size(open_gap)), axis=-1))
    # 1 - sqrt(p q) - sqrt((1 - p)(1 - q)) is half the squared distance of the roots.
    loss = 0.5 * (_root_gap(p, q, open_gap) ** 2 + _root_gap(1.0 - p, 1.0 - q, open_gap) ** 2)
    hellinger = kind_root(-jnp.expm1(2.0 * jnp.sum(jnp.log1p(-loss), axis=-1)))
    pinsker = kind_root(0.5 * jnp.minimum(_kl(q, p), _kl(p, q)))
    smallest = jnp.minimum(jnp.minimum(coupling, hellinger), jnp.minimum(pinsker, 1.0))
    return unless(jnp.where(surely, 1.0, smallest), 1.0)


def _means(estimate: Any, truth: Any) -> tuple[Array, Array, Callable[[Array, float], Array]]:
    """Both means at one dtype and one shape, made harmless where they are none, and what then takes a value's place."""
    estimate, truth = _floats("estimate", estimate), _floats("truth", truth)
    if estimate.shape[-1] != truth.shape[-1]:
        raise ValueError(f"estimate and truth must have one size, got shapes {estimate.shape} and {truth.shape}")
    dtype = np.promote_types(estimate.dtype, truth.dtype)
    shape = np.broadcast_shapes(estimate.shape, truth.shape)
    q, p = (jnp.broadcast_to(mean.astype(dtype), shape) for mean in (estimate, truth))
    finite = jnp.all(jnp.isfinite(q) & jnp.isfinite(p), axis=-1)
    inside = (q >= 0) & (q <= 1) & (p >= 0) & (p <= 1)

    def unless(value: Array, worst: float) -> Array:
        bad = jnp.where(finite, jnp.asarray(worst, dtype), jnp.nan)
        return jnp.where(jnp.all(inside, axis=-1), value, bad)

    return jnp.where(inside, q, 0.5), jnp.where(inside, p, 0.5), unless


def _floats(name: str, mean: Any) -> Array:
    mean = jnp.asarray(mean)
    if mean.ndim < 1 or mean.shape[-1] == 0:
        raise ValueError(f"{name} must be a mean (..., d), got shape {mean.shape}")
    return mean if jnp.issubdtype(mean.dtype, jnp.floating) else mean.astype(jnp.asarray(0.0).dtype)


def _size(x: Array) -> Array:
    """|x| with derivative 0 at 0."""
    return jnp.where(x == 0, 0.0, jnp.abs(x))


def _kl(q: Array, p: Array) -> Array:
    return jnp.sum(_kl_of(q, p, q - p) + _kl_of(1.0 - q, 1.0 - p, p - q), axis=-1)


def _kl_of(q: Array, p: Array, gap: Array) -> Array:
    """p log(p/q) + gap >= 0, gap = q - p: what an outcome of probability p adds. The gaps of both cancel."""
    near = jnp.abs(gap) < 0.25 * p
    close = p * excess(jnp.where(near, gap, 0.0) / jnp.where(near, p, 1.0))
    open_p, open_q = (jnp.where((p > 0) & (q > 0), x, 1.0) for x in (p, q))
    apart = gap + open_p * (jnp.log(open_p) - jnp.log(open_q))
    edge = jnp.where(p > 0, jnp.asarray(jnp.inf, p.dtype), q)
    return jnp.where(near, close, jnp.where((p > 0) & (q > 0), apart, edge))


def _root_gap(p: Array, q: Array, gap: Array) -> Array:
    """sqrt p - sqrt q by its size, from gap = p - q up to the sign."""
    total = kind_root(p) + kind_root(q)
    return gap / jnp.where(total > 0, total, 1.0)
