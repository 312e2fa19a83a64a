"""A private radius and a private choice of form: the adaptive mechanism for data whose rows are mostly short."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.data import clip, levels
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _ball, _steps
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.privacy import selection, sensitivity, tails
from jaxdpcov.privacy.budget import ZCDP, PureDP, split
from jaxdpcov.release import Release

#: What a unit of clipped mass counts against a unit of predicted noise, where the radius is chosen (tuned). Clipped
#: mass bounds the bias in Frobenius norm, and is far above it unless the longest rows share a direction.
_BIAS_WEIGHT = 0.3


@record()
class AdaptiveConfig(_ball.BallConfig):
    """Choices of `adaptive`, beside the fields of `BallConfig`.

    trace_share, radius_share: shares of the budget for the trace and for the radius; the rest is the estimate's.
    beta: failure probability of the noise bounds behind the choices (of the paper's; the tuned form uses it in the
    bound on the trace alone). It moves accuracy, not privacy.
    constants: "tuned" chooses the radius by an exponential mechanism on clipped mass and expected noise; "paper" is
    AboveThreshold on level counts and the tail bounds of Dong, Liang and Yi (2022), for d >= 2.

    >>> from jaxdpcov import AdaptiveConfig
    >>> AdaptiveConfig(center="zero").trace_share
    0.125
    """

    trace_share: Any = 0.125
    radius_share: Any = 0.125
    beta: Any = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("trace_share", "radius_share", "beta"):
            _checks.between(name, getattr(self, name), 0.0, 1.0)
        if not _checks.is_traced(self.trace_share, self.radius_share):
            _checks.between("trace_share + radius_share", self.trace_share + self.radius_share, 0.0, 1.0)


@mechanism(config=AdaptiveConfig, budgets=(ZCDP, PureDP), bounds=(L2Bounds, BoxBounds))
def adaptive(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: AdaptiveConfig) -> Release:
    """Private covariance of rows clipped at a privately chosen radius, in the form with the smaller predicted error.

    Formal guarantee: rho-zCDP under `ZCDP` or `ApproxDP`, epsilon-DP under `PureDP`, for the stated relation, as the
    sum of three parts. An eighth of the budget measures the trace (sensitivity 1/n). An eighth chooses the radius
    among 2^(-k/4) of the bound: an exponential mechanism, or AboveThreshold at its halves with constants="paper". The
    rest is spent as by `clipped_gaussian` or `clipped_separate` at that radius; which of the two is decided by the
    noisy trace and public numbers. Proofs: docs/guarantees.md.

    It is far better than `gaussian` where most rows are short against the bound (a radius that had to be generous,
    heavy tails), and pays a quarter of the budget for it where they are not.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`: read twice (masses by norm, then the clipped second moment). For
            many releases of one data set in a study, `Rows.level_moments` reads them once.
        budget: `ZCDP(rho)`, `ApproxDP(epsilon, delta)` (converted on the host) or `PureDP(epsilon)`.
        bounds: `Bounds.l2(radius, center)`, or `Bounds.box(lower, upper)`, which is put into the unit ball by
            z / sqrt(d) with d the columns that are not constant.
        config: `AdaptiveConfig`.

    Returns:
        `Release` with covariance (d, d) and mean (d,) (of the clipped rows; None unless center="private") in data
        units. `extra`: "radius", where rows were clipped (data units under l2 bounds, half-widths under a box),
        "separate", whether the separate form was taken, and "trace", the bound on the trace used for it, in frame
        units x = center + scale u. `measured` holds the noisy "trace" and "second_moment" in frame units, `diagnostics`
        the errors predicted for both forms, "predicted_gaussian" and "predicted_separate".

    Raises:
        TypeError, ValueError: for public arguments only, never for what rows hold. Traced arguments that are invalid
        give NaN and a status instead.

    References:
        Dong, Liang, Yi 2022 (arXiv 2205.14324), algorithm AdaptiveCov.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, adaptive
    >>> rows = 0.01 * jax.random.normal(jax.random.key(1), (5000, 3))
    >>> release = adaptive(jax.random.key(0), rows, ZCDP(rho=0.5), Bounds.l2(1.0))
    >>> release.covariance.shape, bool(release.extra["radius"] < 0.5)
    ((3, 3), True)
    """
    frame = clip.ball_frame(bounds, rows.d, rows.dtype)
    key_masses, key_pairs, key = jax.random.split(key, 3)
    masses = _ball.masses(rows, key_masses, frame, config)
    n = jnp.asarray(rows.count(), rows.dtype)
    opened, level, separate = _choose(key, masses, n, frame, budget, config)
    sums = _ball.moments_at_level(rows, key_pairs, frame, config, level)
    return _finish(opened, sums, frame, budget, bounds, config, level, separate)


@jax.jit
def _choose(
    key: jax.Array, masses: levels.Masses, n: jax.Array, frame: clip.Frame, budget: Any, config: AdaptiveConfig
) -> tuple[_steps.Opened, jax.Array, jax.Array]:
    """The noisy trace, the level of the radius, and whether the separate form is predicted to err less there."""
    opened = _steps.begin("adaptive", key, n, frame, budget, config, (config.beta > 0) & (config.beta < 1.0))
    opened, level, chosen = choose_radius(opened, masses, frame, budget, config)
    separate = chosen.separate < chosen.gaussian
    to_mean = (2.0 if config.center == "pairs" else 1.0) / opened.count
    predicted = {"predicted_gaussian": chosen.gaussian * to_mean, "predicted_separate": chosen.separate * to_mean}
    opened = opened.add((), {}, predicted, {"separate": separate, "trace": chosen.trace * to_mean})
    return opened, level, separate


class Chosen(NamedTuple):
    """A bound on the trace of the sum, and the predicted errors of both forms at the chosen radius."""

    trace: Any
    gaussian: Any
    separate: Any


def choose_radius(
    opened: _steps.Opened, masses: levels.Masses, frame: clip.Frame, budget: Any, config: Any, *, either: bool = True
) -> tuple[_steps.Opened, jax.Array, Chosen]:
    """The noisy trace and the level of a private radius: for the better of the two forms, or the Gaussian one alone.

    `config` has the choices of `AdaptiveConfig`. Entered are both parts, the noisy "trace" and the "radius".
    """
    scales = _ball.Scales(frame, budget, config, opened.slack)
    key, key_trace, key_radius = jax.random.split(opened.key, 3)
    rest = 1.0 - config.trace_share - config.radius_share
    trace_cost, radius_cost, cost = split(opened.cost, (config.trace_share, config.radius_share, rest))

    bound = sensitivity.squared_norm()
    trace, trace_entry = scales.vector(key_trace, masses.total, (bound, bound), trace_cost, "sum of |u|^2")
    margin = jnp.log((4.0 if scales.pure else 8.0) / config.beta)
    if not scales.pure:
        margin = jnp.sqrt(2.0 * margin)
    upper = jnp.clip(trace.value + trace_entry.scale * margin, 0.0, opened.count)

    dtype = masses.beyond.dtype
    radii = levels.radii(dtype)
    predict = functools.partial(_predict, upper, opened.count, scales, scales.after_mean(cost, opened.count)[1], config)
    predicted = predict(radii)
    noise_there = jnp.minimum(predicted.gaussian, predicted.separate) if either else predicted.gaussian
    pick = _above_threshold if config.constants == "paper" else _exponential
    level, radius_entry = pick(key_radius, masses, radii, noise_there, scales, radius_cost, predicted.plain)

    radius = levels.radius(level, dtype)
    here = predict(radius[None])
    to_mean = (2.0 if scales.paired else 1.0) / opened.count
    opened = opened._replace(key=key, cost=cost).add(
        (trace_entry, radius_entry),
        {"trace": type(trace)(trace.value * to_mean, trace.std * to_mean)},
        {},
        {"radius": radius * clip.reach(frame)},
    )
    return opened, level, Chosen(upper, here.gaussian[0], here.separate[0])


@jax.jit
def _finish(
    opened: _steps.Opened,
    sums: levels.Moments,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: AdaptiveConfig,
    level: jax.Array,
    separate: jax.Array,
) -> Release:
    choice = _ball.Choice(levels.radius(level, sums.first.dtype), "either", separate)
    return _ball.finish("adaptive", opened, sums, frame, budget, bounds, config, choice)


class _Prediction(NamedTuple):
    """Predicted Frobenius errors of sum u u^T of rows clipped at each radius, (m,).

    gaussian, separate: of the two forms. plain: the root mean square of the Gaussian form's noise alone.
    """

    gaussian: Any
    separate: Any
    plain: Any


def _predict(
    trace: jax.Array, count: jax.Array, scales: _ball.Scales, cost: Any, config: AdaptiveConfig, radii: jax.Array
) -> _Prediction:
    """Errors at radii (m,) from public numbers and the bound `trace` on sum |u|^2.

    The separate form errs by at most 2 sqrt(trace |W|) + |z|: W its noise in spectral norm, z that of the eigenvalues.
    """
    width, square, d = scales.width, radii * radii, scales.d
    spectrum_cost, matrix_cost = scales.between_forms(cost)

    def unit(bound_at: Any, spent: Any) -> jax.Array:
        return jax.vmap(lambda radius: scales.unit(bound_at(radius), spent))(radii)

    whole, matrix = (unit(scales.second_bound, spent) for spent in (cost, matrix_cost))
    spectrum = unit(scales.spectrum_bound, spectrum_cost)
    off = scales.off_weight()
    on = off if scales.pure else 1.0
    plain = whole * jnp.sqrt(on * on * d + off * off * d * (d - 1.0)) * square
    if config.constants == "paper":
        law = "laplace" if scales.pure else config.noise
        b = config.beta / 8.0
        eta = tails.eta(width, b, noise="laplace" if scales.pure else "gaussian", constants="paper")
        upsilon, omega = (bound(width, b, noise=law, constants="paper") for bound in (tails.upsilon, tails.omega))
        vectors = 2.0 * jnp.sqrt(trace * square * matrix * upsilon)
        return _Prediction(square * whole * omega, vectors + square * spectrum * eta, plain)

    # |W| is about 2 sqrt(d) times its off-diagonal std. The bound on what its eigenvectors cost is about ten times too
    # large for the spectra of practice: fitted over populations, as reported in bench/accuracy.
    reach = 2.0 * jnp.sqrt(d) * off
    mass = jnp.minimum(trace, count * square)
    vectors = 0.12 * 2.0 * jnp.sqrt(mass * square * matrix * reach)
    separate = vectors + 0.5 * jnp.sqrt(d) * spectrum * (math.sqrt(2.0) if scales.pure else 1.0) * square
    gaussian = plain
    if config.psd == "denoise":
        denoised = 0.1 * 2.0 * jnp.sqrt(mass * square * whole * reach)
        gaussian = jnp.minimum(plain, denoised + 0.5 * jnp.sqrt(2.0 * d) * off * whole * square)
    return _Prediction(gaussian, separate, plain)


def _clipped_mass(masses: levels.Masses, radii: jax.Array) -> jax.Array:
    """(L,) sum of max(0, |u|^2 - radius^2)."""
    return masses.mass - radii * radii * masses.beyond


def _exponential(
    key: jax.Array,
    masses: levels.Masses,
    radii: jax.Array,
    noise_there: jax.Array,
    scales: _ball.Scales,
    cost: Any,
    plain: jax.Array,
) -> tuple[jax.Array, Any]:
    """The level whose radius has the smallest sum of clipped mass (weighted) and predicted noise, nearly.

    Kept minus clipped mass differs from twice the clipped mass by the same number at all radii, and has half the
    sensitivity. A radius whose whole noise is below what the choice itself can tell apart is not on offer.
    """
    clipped = _clipped_mass(masses, radii)
    scores = 0.5 * _BIAS_WEIGHT * (masses.total - 2.0 * clipped) - noise_there
    bound = sensitivity.radius_score(_BIAS_WEIGHT) * scales.slack
    resolution = bound / (0.5 * cost if scales.pure else jnp.sqrt(2.0 * cost))
    larger = jnp.concatenate([jnp.full((1,), jnp.inf, plain.dtype), plain[:-1]])
    return selection.exponential(
        key, scores, sensitivity=bound, mask=larger > 0.25 * resolution, what="radius", **scales.pay(cost)
    )


def _above_threshold(
    key: jax.Array,
    masses: levels.Masses,
    radii: jax.Array,
    noise_there: jax.Array,
    scales: _ball.Scales,
    cost: Any,
    plain: jax.Array,
) -> tuple[jax.Array, Any]:
    """The level before the first at which clipping is found to cost more than the noise that it saves.

    The radii are those of whole octaves. A row between two of them counts as if it had the larger: level counts are all
    that is asked of the rows.
    """
    square, beyond, noise_there = (each[:: levels.PER_OCTAVE] for each in (radii * radii, masses.beyond, noise_there))
    by_level = beyond - jnp.concatenate([jnp.zeros_like(beyond[:1]), beyond[:-1]])
    above = jnp.concatenate([jnp.ones_like(square[:1]), square[:-1]])
    bias = jnp.cumsum(by_level * above) - square * beyond
    index, entry = selection.above_threshold(
        key,
        bias - noise_there,
        threshold=0.0,
        sensitivity=sensitivity.level_query() * scales.slack,
        what="radius",
        **scales.pay(cost),
    )
    return levels.PER_OCTAVE * jnp.clip(index - 1, 0, square.shape[0] - 2), entry
