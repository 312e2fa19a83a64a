"""The whole second moment measured at once, and the reconstruction that suits it, found without the rows."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds
from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.mechanisms.pace import common, estimators
from jaxdpcov.privacy import noise
from jaxdpcov.privacy.budget import ZCDP
from jaxdpcov.release import Release


@record(static=("relation", "center", "noise", "copies", "combine"))
class SSPSelectConfig:
    """Choices of `ssp_select`.

    relation, center, noise, mean_share, n_share: as in the Gaussian family.
    copies: how many times the noisy matrix is split to score the reconstructions, static.
    combine: "average" weighs the reconstructions by their scores, "best" takes the best one.
    t: weight of the measurements against the entropy; 1 is the default throughout, 0.5 where the inverse is wanted.

    >>> from jaxdpcov import SSPSelectConfig
    >>> SSPSelectConfig(center="zero").copies
    3
    """

    relation: str = "replace"
    center: str = "private"
    noise: str = "goe"
    mean_share: Any = None
    n_share: Any = 0.05
    copies: int = 3
    combine: str = "average"
    t: Any = 1.0

    def __post_init__(self) -> None:
        _checks.choice("relation", self.relation, ("replace", "add_remove"))
        _checks.choice("center", self.center, ("private", "zero", "pairs"))
        _checks.choice("noise", self.noise, ("goe", "sgw"))
        _checks.choice("combine", self.combine, ("average", "best"))
        if self.mean_share is not None:
            _checks.between("mean_share", self.mean_share, 0.0, 1.0)
        _checks.between("n_share", self.n_share, 0.0, 1.0)
        _checks.positive("t", self.t)
        if isinstance(self.copies, bool) or not isinstance(self.copies, int) or self.copies < 1:
            raise ValueError(f"copies must be a whole number >= 1, got {self.copies!r}")
        if self.relation == "add_remove" and self.center == "pairs":
            raise ValueError("center='pairs' needs relation='replace': adding a row would pair all others anew")


@mechanism(config=SSPSelectConfig, budgets=(ZCDP,), bounds=(BoxBounds,))
def ssp_select(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: SSPSelectConfig) -> Release:
    """Private covariance by the Gaussian mechanism on the whole second moment, reconstructed by what suits the result.

    Formal guarantee: that of `gaussian` under a box at the same budget, rho-zCDP for the stated relation: the upper
    triangle of the second moment with std d/(n sqrt(2 rho)) in z, less on the diagonal. All else is post-processing.
    Ten reconstructions (maximum entropy on all entries, on those above the noise, after shrinkage, the diagonal alone,
    moved eigenvalues) are scored by splitting the noisy matrix in two independent ones, and averaged by their
    scores.

    Args, Returns, Raises: as `pace`. `measured` holds the noisy "second_moment" and "mean" in z, and
    `diagnostics["weights"]` the weights of the reconstructions `jaxdpcov.mechanisms.pace.estimators.NAMES`.

    Edge cases: where entries are large against the noise all reconstructions agree, and with `gaussian` too.

    References:
        Ferrando et al. 2026 (maximum entropy); Leiner, Duan, Wasserman, Ramdas 2023 (data fission); Leung, Barron 2006
        (exponential weights); Stephens 2017 (mixture); Bun, Allez, Bouchaud, Potters 2016 (eigenvalues).

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, ssp_select
    >>> x = jax.random.uniform(jax.random.key(1), (2000, 4))
    >>> ssp_select(jax.random.key(0), x, ZCDP(rho=0.5), Bounds.box(0.0, 1.0)).covariance.shape
    (4, 4)
    """
    frame = clip.frame(bounds, rows.d, rows.dtype)
    key_pairs, key = jax.random.split(key)
    sums = _steps.moment_sums(rows, key_pairs, frame, config)
    n = jnp.asarray(rows.count(), rows.dtype)
    valid = (config.t > 0) & (config.t < jnp.inf)
    opened, centre = common.begin("ssp_select", key, sums, n, frame, budget, config, valid)
    return _finish(opened, sums.second, centre, frame, budget, bounds, config)


@jax.jit
def _finish(
    opened: _steps.Opened,
    second: jax.Array,
    centre: common.Centre,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: SSPSelectConfig,
) -> Release:
    opened, found = measure(opened, second, centre, frame, budget, config)
    return common.close("ssp_select", opened, found, centre, frame, budget, bounds, config)


def measure(
    opened: _steps.Opened, second: jax.Array, centre: common.Centre, frame: clip.Frame, budget: Any, config: Any
) -> tuple[_steps.Opened, common.Found]:
    """All entries with what is left of the budget, and the average of their reconstructions; `second` is sum z z^T."""
    key_noise, key = jax.random.split(opened.key)
    scales = _steps.Scales(frame, budget, config, opened.slack)
    noisy, entry = scales.second(key_noise, second, opened.cost)
    moment = _steps.divide(noisy, opened.count, frame.live)
    return reconstruct(opened._replace(key=key).add((entry,), {}), moment, centre, frame.live, config)


def reconstruct(
    opened: _steps.Opened, moment: noise.Measured, centre: common.Centre, live: jax.Array, config: Any
) -> tuple[_steps.Opened, common.Found]:
    """The average of the reconstructions of a noisy second moment in z."""
    on = common.block(live)
    y = jnp.where(on, moment.value - centre.offset, 0.0)
    std = jnp.where(on, jnp.sqrt(moment.std**2 + centre.spread), 0.0)
    noisy = estimators.Noisy(y, std, live)
    averaged = estimators.average(opened.key, noisy, config.t, config.copies, config.combine == "best")
    precision = _inverse(averaged.covariance, live)
    opened = opened.add((), {"second_moment": moment}, {"weights": averaged.weights})
    weight = jnp.where(on, 1.0 / jnp.where(on, std, 1.0) ** 2, 0.0)
    return opened, common.Found(averaged.covariance, precision, y, weight, averaged.gap)


def _inverse(covariance: jax.Array, live: jax.Array) -> jax.Array:
    """The inverse within the columns that are not constant."""
    on = common.block(live)
    factor = jnp.linalg.cholesky(
        jnp.where(on, covariance, 0.0) + jnp.diag(jnp.where(live, 0.0, jnp.ones_like(covariance[0])))
    )
    eye = jnp.eye(live.shape[0], dtype=covariance.dtype)
    whole = jax.scipy.linalg.cho_solve((factor, True), eye)
    return jnp.where(on, 0.5 * (whole + whole.T), 0.0)
