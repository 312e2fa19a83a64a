"""The choices of `product_mean` and `learn_product`, and what is known in public before a row is asked."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, status
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds
from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.privacy import sensitivity


@record(static=("relation", "constants"))
class ProductConfig:
    """Choices of `product_mean` and `learn_product`.

    constants: "practical" (the default) asks all rows twice: a first look, then rows weighted by it and truncated at a
    private radius. "theory" has the rounds of the paper on disjoint blocks of rows, with its constants, calibrated.
    relation: "replace" alone; the number of rows is public.
    alpha, beta: under "theory", the total variation distance aimed at and the failure probability, in (0, 1).
    look_share: under "practical", the share of the budget of the first look. radius_share: the share of what then is
    left that chooses the radius.

    >>> from jaxdpcov import ProductConfig
    >>> ProductConfig(constants="theory").alpha
    0.1
    """

    relation: str = "replace"
    constants: str = "practical"
    alpha: Any = 0.1
    beta: Any = 0.05
    look_share: Any = 0.2
    radius_share: Any = 0.04

    def __post_init__(self) -> None:
        if self.relation == "add_remove":
            raise ValueError("relation must be 'replace': radii, rounds and blocks go by the number of rows")
        _checks.choice("relation", self.relation, ("replace",))
        _checks.choice("constants", self.constants, ("practical", "theory"))
        for name in ("alpha", "beta", "look_share", "radius_share"):
            _checks.between(name, getattr(self, name), 0.0, 1.0)

    @property
    def permutes(self) -> bool:
        """True where rows are put into blocks by a permutation, which needs them in memory."""
        return self.constants == "theory"


@record()
class Known:
    """Public numbers of a release.

    n: () rows. live: (d,) bool, False for a constant column. frame: the row map. slack: () factor of every
    sensitivity, NaN where a public number is invalid, so that no noise scale survives it. bits: () status.
    """

    n: Any
    live: Any
    frame: Any
    slack: Any
    bits: Any


@functools.partial(jax.jit, static_argnames=("d", "unit"))
def known(n: jax.Array, budget: Any, bounds: BoxBounds, d: int, unit: bool) -> Known:
    """Check what is traced; with `unit` the box must be [0, 1]^d."""
    frame = clip.frame(bounds, d, n.dtype)
    valid = frame.valid & (n >= 1.0)
    if unit:
        valid &= jnp.all((frame.lower == 0.0) & (frame.upper == 1.0))
    bits = jnp.where(valid, status.OK, status.INVALID_BOUNDS)
    bits |= jnp.where((budget.rho > 0.0) & jnp.isfinite(budget.rho), status.OK, status.INVALID_BUDGET)
    slack = jnp.where(valid, sensitivity.slack(n.dtype), jnp.nan).astype(n.dtype)
    return Known(n, frame.live, frame, slack, bits)


def only_unit_box(rows: Rows, budget: Any, bounds: BoxBounds, config: ProductConfig) -> ProductConfig:
    """Refuse a concrete box other than [0, 1]^d; the config as it is."""
    if not _checks.is_traced(bounds):
        lower, upper = np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)
        # What no constructor lets through fails closed, as where it is traced.
        is_box = np.all(np.isfinite(lower)) and np.all(np.isfinite(upper)) and np.all(lower <= upper)
        if is_box and not (np.all(lower == 0.0) and np.all(upper == 1.0)):
            raise ValueError("learn_product needs Bounds.box(0.0, 1.0): rows of 0 and 1; product_mean takes any box")
    return config
