"""`product_mean` and `learn_product`: private means of columns in a box, and a product distribution over {0, 1}^d."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov.bounds import BoxBounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms._registry import fold, mechanism
from jaxdpcov.mechanisms.product import practical, theory
from jaxdpcov.mechanisms.product.config import Known, ProductConfig, known, only_unit_box
from jaxdpcov.mechanisms.product.result import Result, floor
from jaxdpcov.privacy import ledger, noise
from jaxdpcov.privacy.budget import ZCDP
from jaxdpcov.release import Release


def _fit(name: str, key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: ProductConfig) -> Release:
    n = jnp.asarray(rows.count(), rows.dtype)
    learn = name == "learn_product"
    about = known(n, budget, bounds, rows.d, learn)
    # n is public, and radii depend on it: one key at another n must not give the same draws.
    ways = {"practical": practical.fit, "theory": theory.fit}
    result = ways[config.constants](fold(key, name, n), rows, budget, about, config, learn)
    return _release(name, result, about, bounds, config)


@functools.partial(jax.jit, static_argnames="name")
def _release(name: str, result: Result, about: Known, bounds: Any, config: ProductConfig) -> Release:
    """Post-processing: means into the box, probabilities off 0 and 1, and the way back to data units."""
    frame = about.frame
    extra = dict(result.extra)
    if name == "learn_product":
        extra["floor"] = floor(result.std, about.n)
        mean = jnp.clip(result.value, extra["floor"], 1.0 - extra["floor"])
    else:
        mean = frame.mean(2.0 * jnp.clip(result.value, 0.0, 1.0) - 1.0)
        failed = jnp.isnan(result.value)
        mean = jnp.where(about.live | failed, mean, frame.center)
    z = jnp.where(about.live, 2.0 * result.value - 1.0, 0.0 * result.value)
    return Release(
        covariance=None,
        mean=mean,
        measured={"mean": noise.Measured(z, 2.0 * result.std)},
        center=frame.center,
        scale=frame.scale,
        n=about.n,
        bounds=bounds,
        status=about.bits | result.bits,
        spent=ZCDP(ledger.total(result.ledger, "rho")),
        ledger=result.ledger,
        config=config,
        diagnostics={},
        extra=extra,
        mechanism=name,
        relation=config.relation,
    )


@mechanism(config=ProductConfig, budgets=(ZCDP,), bounds=(BoxBounds,))
def product_mean(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: ProductConfig) -> Release:
    """Private means of many columns in a box, most of them near an end of it: less noise than one Gaussian mechanism.

    Formal guarantee: rho-zCDP, replace-one with public n. Rows are u in [0, 1]^d after clipping to the box. Rows of
    non-negative entries, weighted by a and truncated to l2 norm B, have a sum of l2 sensitivity at most
    min(sqrt(2) B, |a|). Under constants="practical" all rows are asked three times (a first look, the choice of
    B by the exponential mechanism, weighted and truncated rows), at costs that add up to rho. Under "theory" each of
    R + 1 disjoint blocks of rows, drawn by the key, is asked once at the whole rho: parallel composition, adaptive,
    with R = max(1, ceil(log2(d/2))). Proofs: docs/guarantees.md.

    A column whose mean is near the upper end counts as 1 - u, which a first noisy look at all columns decides. Under
    "theory" that is round 1, which truncates no row: columns below 3/16 go on as they are, those above 13/16 flipped.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. Clipped to `bounds` here; a row that is not finite becomes the
            middle of the box. "theory" deals rows out to blocks: by a permutation from the key for an array, in turn
            for a stream, whose order must be public; rows with weights (persons) need "practical".
        budget: `ZCDP(rho)`, or `ApproxDP(epsilon, delta)`, converted on the host.
        bounds: `Bounds.box(lower, upper)`, public. lower = upper marks a constant column, which gets no noise.
        config: `ProductConfig`.

    Returns:
        `Release` with mean (d,) in data units and no covariance. `extra` has "flipped" (d,); "practical": "weights"
        (d,) and "radius"; "theory": "final_round" (d,), the round in which a column became final (R' + 1 for those
        of the last measurement after R' rounds), "radius" (R + 1,) and "columns_left" (R + 1,) by block, and "error"
        (d,), in u: where the status is 0, means of independent columns are within it, all at once, with
        probability 1 - beta.

    Edge cases: the status says where n is too small for that ("theory"), or for a first look that can tell a mean of 0
        from 1/2 ("practical"); the answer is finite all the same. Columns need not be independent for privacy or
        for the practical form.

    Raises:
        TypeError, ValueError: for public arguments only, never for what rows hold.

    References:
        Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), algorithm PPDE; the paper calibrates noise to B.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, product_mean
    >>> rows = jax.random.bernoulli(jax.random.key(1), 0.01, (20_000, 50)).astype(float)
    >>> release = product_mean(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.box(0.0, 1.0))
    >>> release.mean.shape, bool(abs(release.mean - 0.01).max() < 0.005)
    ((50,), True)
    """
    return _fit("product_mean", key, rows, budget, bounds, config)


@mechanism(config=ProductConfig, budgets=(ZCDP,), bounds=(BoxBounds,), settle=only_unit_box)
def learn_product(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: ProductConfig) -> Release:
    """A product distribution over {0, 1}^d near that of the rows in total variation: one probability for each column.

    Formal guarantee: as `product_mean`, of which this is the form for 0/1 rows: rho-zCDP, replace-one with public n.
    Weights go by the relative error of small probabilities, and probabilities keep off 0 and 1 by a public margin.

    Args: as `product_mean`; rows (n, d) of 0 and 1 (anything between counts as it is), bounds `Bounds.box(0.0, 1.0)`.

    Returns:
        `Release` whose mean (d,) holds probabilities within [floor, 1 - floor], floor = extra["floor"] (d,) > 0: the
        larger of 1.5 standard deviations of a column's noise and 1/(2 n). Divergences from it are finite. Under
        constants="theory" extra["total_variation"] bounds the total variation distance from the distribution of
        rows with independent columns, with probability 1 - beta where the status is 0; the status is set where that
        bound is above alpha.

    Edge cases, Raises: as `product_mean`; a box other than [0, 1]^d raises ValueError, or where traced gives NaN and a
        status.

    References:
        Kamath, Li, Singhal, Ullman 2019 (arXiv 1805.00216), algorithm PPDE.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, learn_product
    >>> rows = jax.random.bernoulli(jax.random.key(1), 0.01, (20_000, 50)).astype(float)
    >>> release = learn_product(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.box(0.0, 1.0))
    >>> bool((release.mean > 0).all() and (release.mean < 1).all())
    True
    """
    return _fit("learn_product", key, rows, budget, bounds, config)
