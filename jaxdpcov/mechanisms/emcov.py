"""Eigenvectors drawn one by one by the exponential mechanism, eigenvalues with noise: `emcov`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import linalg
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.data import clip, levels
from jaxdpcov.data.rows import Rows
from jaxdpcov.linalg import eigenvalues
from jaxdpcov.mechanisms import _ball, _steps
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.privacy import directions, ledger, sensitivity
from jaxdpcov.privacy.budget import ZCDP, PureDP, split
from jaxdpcov.release import Release


@record()
class EMCovConfig(_ball.BallConfig):
    """Choices of `emcov`: the fields of `BallConfig`, of which `noise` has no effect.

    psd: "project" or "none", for center="private"; else the result is PSD as it comes. ("denoise" and "floor" are
    "project" here.)
    constants: "tuned" puts the noisy eigenvalues in order; "paper" draws eigenvectors at half the exponent.
    spectrum_share: the share of the eigenvalues; a half unless given.

    >>> from jaxdpcov import EMCovConfig
    >>> EMCovConfig().spectrum
    0.5
    """

    @property
    def spectrum(self) -> Any:
        """The share of the eigenvalues."""
        return 0.5 if self.spectrum_share is None else self.spectrum_share


@mechanism(config=EMCovConfig, budgets=(PureDP, ZCDP), bounds=(L2Bounds, BoxBounds))
def emcov(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: EMCovConfig) -> Release:
    """Private covariance by iterative eigenvector sampling.

    Formal guarantee: epsilon-DP under `PureDP`, rho-zCDP under `ZCDP` or `ApproxDP`, for the stated relation. With
    C = sum of u u^T over rows in the unit ball, half of the budget measures the sorted eigenvalues of C (Laplace noise
    at l1 sensitivity 2; Gaussian noise at l2 sensitivity sqrt(2)), and half is split evenly over d - 1 eigenvectors,
    each drawn from the sphere of what is left with density exp(epsilon_i v^T C v / 2). Replacing a row moves v^T C v by
    at most 1, so the exponential mechanism at epsilon_i has exactly that exponent (the published 1/4 spends half of
    it). A draw's zCDP price is epsilon_i^2/8 (bounded range), so a zCDP budget buys much larger epsilon_i than a pure
    one of the same price.

    Running time depends on the rows: each draw is by rejection to acceptance. No count of it is released, but time
    itself is a channel outside of the guarantee.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`. Clipped to `bounds` here.
        budget: `PureDP(epsilon)`, `ZCDP(rho)`, or `ApproxDP(epsilon, delta)` (converted on the host).
        bounds: `Bounds.l2(radius, center)`, or `Bounds.box(lower, upper)`, put into the unit ball by z / sqrt(d).
        config: `EMCovConfig`.

    Returns:
        `Release` with covariance (d, d) and mean (d,), None unless center="private", in data units. `measured` holds
        the noisy "eigenvalues" (ascending); `extra` the drawn "eigenvectors" as columns, largest first.

    Raises:
        TypeError, ValueError: for public arguments only, never for what rows hold.

    References:
        Amin, Dick, Kulesza, Munoz, Vassilvitskii 2019 (Differentially private covariance estimation); Kent, Ganeiber,
        Mardia 2018 (sampler).

    >>> import jax
    >>> from jaxdpcov import Bounds, PureDP, emcov
    >>> rows = 0.1 * jax.random.normal(jax.random.key(1), (1000, 3))
    >>> emcov(jax.random.key(0), rows, PureDP(epsilon=1.0), Bounds.l2(1.0)).covariance.shape
    (3, 3)
    """
    frame = clip.ball_frame(bounds, rows.d, rows.dtype)
    key_pairs, key = jax.random.split(key)
    sums = _ball.moments_at_level(rows, key_pairs, frame, config, jnp.asarray(0))
    return _finish(key, sums, jnp.asarray(rows.count(), rows.dtype), frame, budget, bounds, config)


@functools.partial(jax.jit)
def _finish(
    key: jax.Array,
    sums: levels.Moments,
    n: jax.Array,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: EMCovConfig,
) -> Release:
    opened = _steps.begin("emcov", key, n, frame, budget, config, jnp.asarray(True))
    scales = _ball.Scales(frame, budget, config, opened.slack)
    key_first, key_spectrum, key_directions = jax.random.split(opened.key, 3)
    measured, parts, live, diagnostics = {}, [], frame.live, {}
    pair = 2.0 if scales.paired else 1.0
    to_second = pair / opened.count

    first_cost, cost = scales.after_mean(opened.cost, opened.count)
    mean = None
    if first_cost is not None:
        diagnostics["mean_share"] = first_cost / opened.cost
        noisy, entry = scales.vector(key_first, sums.first, scales.first(), first_cost, "sum of w")
        mean = measured["mean"] = _ball.scaled(noisy, 1.0 / opened.count, live)
        parts.append(entry)
    spectrum_cost, direction_cost = split(cost, (config.spectrum, 1.0 - config.spectrum))
    noisy, entry = scales.clipped_spectrum(key_spectrum, sums, spectrum_cost, jnp.ones_like(n))
    spectrum = measured["eigenvalues"] = _ball.scaled(noisy, to_second, eigenvalues.of_columns(live))
    parts.append(entry)
    basis, drawn = directions.exponential_directions(
        key_directions,
        linalg.after(sums.second, spectrum.value),
        sensitivity=sensitivity.direction() * (2.0 if config.constants == "paper" else 1.0) * opened.slack,
        monotone=config.relation == "add_remove",
        live=live,
        what="eigenvector",
        **scales.pay(direction_cost),
    )
    parts.extend(ledger.entries(drawn))

    own = _ball.ordered(spectrum, jnp.full_like(n, pair), live, config)
    raw = eigenvalues.recompose(basis, own[::-1])
    raw = jnp.where(live[:, None] & live[None, :], raw, 0.0)
    indefinite = jnp.asarray(False)
    if mean is not None:
        # The square of a noisy mean is too large by its noise variance: give that back.
        raw = raw - mean.value[:, None] * mean.value[None, :] + jnp.diag(mean.std**2)
        if config.psd != "none":
            projected = linalg.psd_project(raw, floor=0.0, ceiling=1.0)
            indefinite = jnp.trace(projected - raw) > 1e-6 * jnp.sum(jnp.abs(own))
            raw = projected
    opened = opened.add(parts, measured, diagnostics, {"eigenvectors": basis})
    return _steps.close(
        "emcov", opened, frame, budget, bounds, config, covariance=raw, mean=mean, indefinite=indefinite
    )
