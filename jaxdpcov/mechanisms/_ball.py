"""Shared steps of the mechanisms in the unit ball: moments of clipped rows, in the Gaussian or the separate form.

The Gaussian form adds noise to the second moment. The separate form (Dong, Liang and Yi 2022) takes the eigenvectors of
a noisy second moment and the eigenvalues from a noisy copy of the sorted spectrum, k-th largest with k-th largest.
Statistics are sums over rows w = clip(u, radius) / radius: in the unit ball again, whatever the radius.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import _checks, linalg
from jaxdpcov._records import record
from jaxdpcov.data import clip, levels
from jaxdpcov.data.rows import Rows
from jaxdpcov.linalg import eigenvalues
from jaxdpcov.mechanisms import _steps
from jaxdpcov.privacy import ledger, noise, sensitivity
from jaxdpcov.privacy.budget import split
from jaxdpcov.release import Release


@record(static=("relation", "center", "noise", "psd", "constants"))
class BallConfig:
    """Choices of the mechanisms in the unit ball.

    relation: "replace" (n public) or "add_remove" (n private, measured with `n_share` of the budget).
    center: "private" measures the mean of the clipped rows with `mean_share` of the estimate's budget (None: the share
    that minimises a predicted error); "zero" takes moments about the public centre, as the papers do; "pairs" takes
    half differences of paired rows and spends nothing on the mean (replace-one only, no mean is released).
    noise: "goe", the tight calibration, or "sgw", that of the papers. Laplace noise has one form and ignores it.
    psd: what happens to a second moment of Gaussian form. "denoise" moves its eigenvalues to what its eigenvectors are
    expected to deserve, "project" sends those below 0 to 0, "floor" those below the noise level to that level,
    "none" leaves it. The separate form is PSD as it comes; where centring undoes that, all but "none" put it right.
    constants: "tuned", or "paper" for the forms of Dong, Liang and Yi (2022).
    spectrum_share: the share of the second moment's budget that measures eigenvalues in the separate form. None: 0.2,
    or 0.5 with constants="paper".
    """

    relation: str = "replace"
    center: str = "private"
    noise: str = "goe"
    psd: str = "denoise"
    constants: str = "tuned"
    spectrum_share: Any = None
    mean_share: Any = None
    n_share: Any = 0.05

    def __post_init__(self) -> None:
        _checks.choice("relation", self.relation, ("replace", "add_remove"))
        _checks.choice("center", self.center, ("private", "zero", "pairs"))
        _checks.choice("noise", self.noise, ("goe", "sgw"))
        _checks.choice("psd", self.psd, ("denoise", "project", "floor", "none"))
        _checks.choice("constants", self.constants, ("tuned", "paper"))
        for name in ("spectrum_share", "mean_share", "n_share"):
            if getattr(self, name) is not None:
                _checks.between(name, getattr(self, name), 0.0, 1.0)
        if self.relation == "add_remove" and self.center == "pairs":
            raise ValueError("center='pairs' needs relation='replace': adding a row would pair all others anew")

    @property
    def spectrum(self) -> Any:
        """The share of the eigenvalues."""
        if self.spectrum_share is None:
            return 0.5 if self.constants == "paper" else 0.2
        return self.spectrum_share


class Choice(NamedTuple):
    """Where rows are clipped and which form the second moment takes; `separate` None: see `form`."""

    radius: Any
    form: str  # "gaussian" | "separate" | "either", as `separate` says
    separate: Any = None


class Scales(_steps.Scales):
    """Noise for sums over clipped rows, at the sensitivity that goes with the radius."""

    def __init__(self, frame: clip.Frame, budget: Any, config: BallConfig, slack: jax.Array) -> None:
        super().__init__(frame, budget, config, slack)
        self.choices, self.about = config, (config.relation,)
        self.paired = config.center == "pairs"

    def pay(self, cost: Any) -> dict[str, Any]:
        """`cost` as an argument of a selection."""
        return {"epsilon": cost} if self.pure else {"rho": cost}

    def after_mean(self, cost: jax.Array, count: jax.Array) -> tuple[Any, Any]:
        """The estimate's budget cut into that of the mean (None where there is none) and that of the second moment."""
        if self.config.center != "private":
            return None, cost
        share = self.mean_share(cost, count) if self.config.mean_share is None else self.config.mean_share
        first, second = split(cost, (share, 1.0 - share))
        return first, second

    def between_forms(self, cost: Any) -> tuple[Any, Any]:
        """The second moment's budget in the separate form: for the eigenvalues and for the matrix."""
        spectrum, matrix = split(cost, (self.choices.spectrum, 1.0 - self.choices.spectrum))
        return spectrum, matrix

    def second_bound(self, radius: Any) -> Any:
        """Sensitivity of sum w w^T in the norm of the noise."""
        if self.pure:
            bound = sensitivity.clipped_second_moment_l1(
                *self.about, radius, self.d, width=self.width, paired=self.paired
            )
        else:
            bound = sensitivity.clipped_frobenius(*self.about, radius, width=self.width, paired=self.paired)
        return bound * self.slack

    def spectrum_bound(self, radius: Any) -> Any:
        """Sensitivity of the sorted eigenvalues of sum w w^T in the norm of the noise."""
        of = sensitivity.clipped_spectrum_l1 if self.pure else sensitivity.clipped_frobenius
        return of(*self.about, radius, width=self.width, paired=self.paired) * self.slack

    def unit(self, bound: Any, cost: Any) -> jax.Array:
        """Scale of the noise: Gaussian standard deviation, or Laplace scale."""
        return noise.calibrate(bound, cost, self.slack.dtype, squared=not self.pure)

    def off_weight(self) -> float:
        """Standard deviation beside the diagonal, in units of the scale."""
        if self.pure:
            return math.sqrt(2.0)
        return math.sqrt(0.5) if self.config.noise == "goe" else 1.0

    def clipped_second(self, key: jax.Array, value: jax.Array, cost: Any, radius: Any) -> tuple[Any, Any]:
        """Noise on sum w w^T."""
        what, bound, mask = "sum of w w^T", self.second_bound(radius), self.frame.live
        if self.pure:
            return noise.symmetric_laplace(key, value, sensitivity=bound, epsilon=cost, mask=mask, what=what)
        off = self.off_weight()
        return noise.symmetric_gaussian(key, value, sensitivity=bound, rho=cost, off=off, mask=mask, what=what)

    def clipped_spectrum(self, key: jax.Array, sums: levels.Moments, cost: Any, radius: Any) -> tuple[Any, Any]:
        """Noise on the sorted eigenvalues of sum w w^T; those of constant columns come first and are known to be 0."""
        exact = sums.spectrum
        if exact is None:
            exact, _ = eigenvalues.eigh_masked(sums.second, self.frame.live)
        bound = self.spectrum_bound(radius)
        return self.vector(key, exact, (bound / self.slack,) * 2, cost, "eigenvalues of sum of w w^T")


def release(
    name: str, key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: BallConfig, at: Any = None
) -> Release:
    """The mechanisms of one fixed radius: `separate` (the whole ball), or `clipped_*` at `at`, a public number."""
    frame = clip.ball_frame(bounds, rows.d, rows.dtype)
    key_pairs, key = jax.random.split(key)
    if at is None:
        radius, sums = jnp.ones((), rows.dtype), moments_at_level(rows, key_pairs, frame, config, jnp.asarray(0))
    else:
        radius, sums = at, moments(rows, key_pairs, frame, config, at)
    n = jnp.asarray(rows.count(), rows.dtype)
    return _fixed(name, key, sums, n, frame, budget, bounds, config, radius)


@functools.partial(jax.jit, static_argnames="name")
def _fixed(
    name: str,
    key: jax.Array,
    sums: levels.Moments,
    n: jax.Array,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: BallConfig,
    radius: jax.Array,
) -> Release:
    opened = _steps.begin(name, key, n, frame, budget, config, (radius > 0) & (radius <= 1.0))
    form = "gaussian" if name == "clipped_gaussian" else "separate"
    return finish(name, opened, sums, frame, budget, bounds, config, Choice(radius, form))


def masses(rows: Rows, key: jax.Array, frame: clip.Frame, config: Any) -> levels.Masses:
    """The pass over rows, or over half differences of pairs, that a private radius is chosen from."""
    if config.center == "pairs":
        return rows.reduce_pairs(levels.pair_masses, key, frame)
    return rows.reduce(levels.masses, frame)


def moments_at_level(rows: Rows, key: jax.Array, frame: clip.Frame, config: Any, level: jax.Array) -> levels.Moments:
    """The pass over rows clipped at the radius of a level, or over half differences of pairs.

    Pairs are drawn anew, by a key of this pass: each pairing is public randomness of its own.
    """
    if config.center == "pairs":
        return rows.reduce_pairs(levels.pair_moments, key, frame, levels.radius(level, rows.dtype))
    return rows.reduce(levels.moments_at_level, frame, level)


def moments(rows: Rows, key: jax.Array, frame: clip.Frame, config: BallConfig, radius: Any) -> levels.Moments:
    """The pass over rows clipped at a radius, or over half differences of pairs."""
    if config.center == "pairs":
        return rows.reduce_pairs(levels.pair_moments, key, frame, radius)
    return rows.reduce(levels.moments_at_radius, frame, radius)


def finish(
    name: str,
    opened: _steps.Opened,
    sums: levels.Moments,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: BallConfig,
    choice: Choice,
) -> Release:
    """Noise on the sums at the chosen radius, the chosen form, centring, and the way back to data units."""
    scales = Scales(frame, budget, config, opened.slack)
    key_first, key_second, key_spectrum = jax.random.split(opened.key, 3)
    measured: dict[str, Any] = {}
    live = frame.live
    parts: list[ledger.Entry] = []
    # From sums over w to moments of u; of a pair (u - u')/2 has half the covariance.
    to_second = choice.radius**2 * (2.0 if scales.paired else 1.0) / opened.count
    ceiling = choice.radius**2 * (2.0 if scales.paired else 1.0)

    opened, mean = measure_mean(key_first, sums.first, scales, opened, choice.radius)
    cost = opened.cost
    spectrum_cost, matrix_cost = scales.between_forms(cost)
    if choice.form != "separate":
        matrix_cost = cost if choice.form == "gaussian" else jnp.where(choice.separate, matrix_cost, cost)
    noisy, entry = scales.clipped_second(key_second, sums.second, matrix_cost, choice.radius)
    second = measured["second_moment"] = scaled(noisy, to_second, live[:, None] & live[None, :])
    spectrum = None
    if choice.form == "gaussian":
        parts.append(entry)
    else:
        noisy, spectrum_entry = scales.clipped_spectrum(key_spectrum, sums, spectrum_cost, choice.radius)
        spectrum = scaled(noisy, to_second, eigenvalues.of_columns(live))
        parts.extend([entry, spectrum_entry] if choice.form == "separate" else [_joint(scales, entry, cost)])
    if choice.form == "separate":
        measured["eigenvalues"] = spectrum

    covariance, indefinite = _covariance(second, spectrum, mean, ceiling, live, config, choice)
    # Entries of constant columns are known, and yet void where bounds are.
    covariance = jnp.where(jnp.isnan(opened.slack), jnp.nan, covariance)
    opened = opened.add(parts, measured)
    return _steps.close(
        name, opened, frame, budget, bounds, config, covariance=covariance, mean=mean, indefinite=indefinite
    )


def measure_mean(
    key: jax.Array, first: jax.Array, scales: Scales, opened: _steps.Opened, radius: Any
) -> tuple[_steps.Opened, noise.Measured | None]:
    """The noisy mean of the clipped rows in u at its share of what is left, if one is wanted; `first` is sum w."""
    first_cost, cost = scales.after_mean(opened.cost, opened.count)
    if first_cost is None:
        return opened, None
    noisy, entry = scales.vector(key, first, scales.first(), first_cost, "sum of w")
    mean = scaled(noisy, radius / opened.count, scales.frame.live)
    about = {"mean_share": first_cost / opened.cost}
    return opened._replace(cost=cost).add((entry,), {"mean": mean}, about), mean


def _covariance(
    second: noise.Measured,
    spectrum: noise.Measured | None,
    mean: noise.Measured | None,
    ceiling: jax.Array,
    live: jax.Array,
    config: BallConfig,
    choice: Choice,
) -> tuple[jax.Array, jax.Array]:
    """The covariance in u from its noisy statistics, and whether it was indefinite before the PSD step."""
    separate = choice.form == "separate" if choice.separate is None else choice.separate
    raw = second.value
    if spectrum is not None:
        raw = linalg.after(raw, spectrum.value)
    if spectrum is not None or (mean is None and config.psd != "none"):
        values, vectors = eigenvalues.eigh_masked(raw, live)
    if spectrum is not None:
        own = ordered(spectrum, ceiling, live, config)
        raw = jnp.where(separate, eigenvalues.recompose(vectors, own), raw)
    if mean is not None:
        # The square of a noisy mean is too large by its noise variance: give that back.
        raw = raw - mean.value[:, None] * mean.value[None, :] + jnp.diag(mean.std**2)
    if config.psd == "none":
        size = jnp.max(jnp.abs(jnp.diagonal(raw)))
        margin = 1e-6 * size + jnp.finfo(size.dtype).tiny
        return raw, ~linalg.try_cholesky(raw + margin * jnp.eye(live.shape[0], dtype=size.dtype))[1] & (size < jnp.inf)
    if mean is not None:
        values, vectors = eigenvalues.eigh_masked(raw, live)
        own = values
    # The largest std that noise on the triangle has in any one direction: of u^T W u over unit u.
    on = jnp.diagonal(second.std)
    off = jnp.max(second.std - jnp.diag(on))
    floor = jnp.maximum(jnp.max(on), math.sqrt(2.0) * off) if config.psd == "floor" else jnp.zeros_like(off)
    post = values
    if config.psd == "denoise":
        post = eigenvalues.rotation_invariant(values, off, eigenvalues.of_columns(live))
    if spectrum is not None:
        post = jnp.where(separate, own, post)
    covariance = eigenvalues.rebuild(vectors, post, live, floor, ceiling)
    lowest = jnp.min(values)
    return covariance, (lowest < 0) & (~jnp.asarray(separate) | (mean is not None))


def ordered(spectrum: noise.Measured, ceiling: jax.Array, live: jax.Array, config: BallConfig) -> jax.Array:
    """Noisy eigenvalues of a PSD matrix with a known largest trace, put into the order and range that they have."""
    values = spectrum.value
    if config.constants == "tuned":
        values = eigenvalues.isotonic(values, eigenvalues.of_columns(live))
    return jnp.clip(values, 0.0, ceiling)


def _joint(scales: Scales, matrix: ledger.Entry, cost: jax.Array) -> ledger.Entry:
    """One entry for the estimate in either form, so that the ledger's shape does not depend on the form.

    The separate form adds independent noise to two statistics at costs that add up to at most `cost`: for Gaussian
    noise that is the Gaussian mechanism on both, each divided by its own scale, at exactly their sum.
    """
    what = f"{matrix.what}, with its eigenvalues in the separate form"
    return ledger.Entry(what, matrix.kind, matrix.unit, matrix.sensitivity, scales.unit(matrix.sensitivity, cost), cost)


def scaled(sums: noise.Measured, factor: jax.Array, live: jax.Array) -> noise.Measured:
    """A noisy sum in another unit; entries of constant columns are known to be 0."""
    value, std = sums.value * factor, jnp.broadcast_to(sums.std, sums.value.shape) * factor
    return noise.Measured(jnp.where(live, value, 0.0), jnp.where(live, std, 0.0))
