"""Shared steps of mechanisms: row sums with the noise that fits them, centring, and the way back to data units.

This is the one place that joins a reduction over rows to its noise, so that "noise matches what was computed" is
the property of one function.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import _checks, linalg, status
from jaxdpcov._records import record
from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.linalg import eigenvalues
from jaxdpcov.linalg.spectral import psd_project_with_lowest
from jaxdpcov.mechanisms._registry import fold
from jaxdpcov.privacy import ledger, noise, sensitivity
from jaxdpcov.privacy.budget import ZCDP, PureDP, split
from jaxdpcov.release import Release


@record(static=("relation", "center", "noise", "psd", "shrink"))
class MomentsConfig:
    """Choices of the mechanisms that add noise to moments.

    relation: "replace" (n public) or "add_remove" (n private, measured with `n_share` of the budget).
    center: "private" measures the mean with `mean_share` of the budget (None: the share that minimises the
    predicted error); "zero" takes moments about the public centre; "pairs" takes differences of paired rows and
    spends nothing on the mean (replace-one only, and no mean is released).
    noise: "goe", the tight calibration, or "sgw", that of the papers. Laplace noise has one form and ignores it.
    psd: "project" (eigenvalues below 0 become 0), "floor" (below the noise level, that level), "none", or "denoise",
    which moves eigenvalues to what their eigenvectors are expected to deserve, and then projects: the smaller error,
    by a third and more where the noise is not small against the spectrum (not with `shrink`; `diagonal` projects).
    shrink: shrink off-diagonal entries toward 0 by a weight from the known noise level, before the PSD step.
    """

    relation: str = "replace"
    center: str = "private"
    noise: str = "goe"
    psd: str = "project"
    shrink: bool = False
    mean_share: Any = None
    n_share: Any = 0.05

    def __post_init__(self) -> None:
        _checks.choice("relation", self.relation, ("replace", "add_remove"))
        _checks.choice("center", self.center, ("private", "zero", "pairs"))
        _checks.choice("noise", self.noise, ("goe", "sgw"))
        _checks.choice("psd", self.psd, ("project", "floor", "none", "denoise"))
        _checks.choice("shrink", self.shrink, (True, False))
        if self.psd == "denoise" and self.shrink:
            raise ValueError("psd='denoise' needs shrink=False: it takes the noise to be whole")
        if self.mean_share is not None:
            _checks.between("mean_share", self.mean_share, 0.0, 1.0)
        _checks.between("n_share", self.n_share, 0.0, 1.0)
        if self.relation == "add_remove" and self.center == "pairs":
            raise ValueError("center='pairs' needs relation='replace': adding a row would pair all others anew")


class Sums(NamedTuple):
    """Exact sums over rows in frame units. Private: they leave through `privacy.noise` only."""

    second: Any  # (d, d), or its diagonal (d,)
    first: Any  # (d,)


def sum_moments(z: jax.Array, weights: Any, diagonal: bool) -> Sums:
    """sum w z z^T (or its diagonal) and sum w z over one block of mapped rows."""
    weighted = z if weights is None else z * weights[:, None]
    if diagonal:
        second = jnp.sum(weighted * z, axis=0)
    else:
        second = jnp.matmul(weighted.T, z, precision="highest")
    return Sums(second, jnp.sum(weighted, axis=0))


def _matrix_block(x: jax.Array, weights: Any, frame: clip.Frame) -> Sums:
    return sum_moments(frame.rows(x), weights, diagonal=False)


def _diagonal_block(x: jax.Array, weights: Any, frame: clip.Frame) -> Sums:
    return sum_moments(frame.rows(x), weights, diagonal=True)


def _matrix_pairs(first: jax.Array, second: jax.Array, valid: Any, frame: clip.Frame) -> Sums:
    return sum_moments((frame.rows(first) - frame.rows(second)) * 0.5**0.5, valid, diagonal=False)


def _diagonal_pairs(first: jax.Array, second: jax.Array, valid: Any, frame: clip.Frame) -> Sums:
    return sum_moments((frame.rows(first) - frame.rows(second)) * 0.5**0.5, valid, diagonal=True)


def moments(
    name: str, key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: MomentsConfig, *, diagonal: bool = False
) -> Release:
    """Release the second moment (or its diagonal) and the mean: one pass over rows, then noise and post-processing."""
    frame = clip.frame(bounds, rows.d, rows.dtype)
    key_pairs, key_noise = jax.random.split(key)
    sums = moment_sums(rows, key_pairs, frame, config, diagonal=diagonal)
    n = jnp.asarray(rows.count(), rows.dtype)
    return _finish(name, key_noise, sums, n, frame, budget, bounds, config, diagonal)


def moment_sums(rows: Rows, key: jax.Array, frame: clip.Frame, config: Any, *, diagonal: bool = False) -> Sums:
    """Exact sums over mapped rows, or over pairs of them that `key` draws: one pass."""
    if config.center == "pairs":
        return rows.reduce_pairs(_diagonal_pairs if diagonal else _matrix_pairs, key, frame)
    return rows.reduce(_diagonal_block if diagonal else _matrix_block, frame)


@functools.partial(jax.jit, static_argnames=("name", "diagonal"))
def _finish(
    name: str,
    key: jax.Array,
    sums: Sums,
    n: jax.Array,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: MomentsConfig,
    diagonal: bool,
) -> Release:
    """All that follows the pass over rows: noise on the sums, centring, post-processing, the way back to data units."""
    opened = begin(name, key, n, frame, budget, config, jnp.asarray(True))
    scales = Scales(frame, budget, config, opened.slack, diagonal)
    key_first, key_second = jax.random.split(opened.key)
    opened, mean = measure_mean(key_first, sums.first, scales, opened, config.mean_share)
    noisy, entry = scales.second(key_second, sums.second, opened.cost)
    second = divide(noisy, opened.count, frame.live)
    opened = opened.add((entry,), {"second_moment": second})
    if mean is not None:
        # The square of a noisy mean is too large by its noise variance: give that back.
        z_covariance = second.value - (mean.value**2 if diagonal else mean.value[:, None] * mean.value[None, :])
        z_covariance += mean.std**2 if diagonal else jnp.diag(mean.std**2)
    else:
        z_covariance = second.value
    ceiling = None if frame.domain == "box" else 1.0 + (config.center == "pairs")
    post, indefinite = _postprocess(z_covariance, second.std, ceiling, frame.live, config, diagonal)
    covariance = jnp.diag(post) if diagonal else post
    return close(name, opened, frame, budget, bounds, config, covariance=covariance, mean=mean, indefinite=indefinite)


class Opened(NamedTuple):
    """What is settled before moments are released: counts, what is left of the budget, and what was measured."""

    key: Any
    n: Any  # as released
    count: Any  # contributions to the sums: n, or the number of pairs
    slack: Any  # NaN where a public number is invalid: no noise scale survives it
    cost: Any
    bits: Any
    entries: tuple[Any, ...]
    measured: dict[str, Any]
    diagnostics: dict[str, Any]
    extra: dict[str, Any]

    def add(self, entries: Any, measured: Any, diagnostics: Any = None, extra: Any = None) -> "Opened":
        """With more entries in the ledger and what they bought."""
        return self._replace(
            entries=(*self.entries, *entries),
            measured=self.measured | measured,
            diagnostics=self.diagnostics | (diagnostics or {}),
            extra=self.extra | (extra or {}),
        )


def begin(
    name: str, key: jax.Array, n: jax.Array, frame: clip.Frame, budget: Any, config: Any, valid: jax.Array
) -> Opened:
    """Check public numbers, and measure n where it is private."""
    paired = config.center == "pairs"
    valid = valid & frame.valid
    if config.relation == "replace":
        key = fold(key, name, n)  # n is public, and the share of the mean depends on it
        valid = valid & (n >= 1.0 + paired)
    slack = jnp.where(valid, sensitivity.slack(n.dtype), jnp.nan).astype(n.dtype)
    scales = Scales(frame, budget, config, slack)
    cost = scales.cost(budget)
    bits = jnp.where(valid, status.OK, status.INVALID_BOUNDS)
    bits |= jnp.where((cost > 0) & jnp.isfinite(cost), status.OK, status.INVALID_BUDGET)
    key, key_count = jax.random.split(key)
    if config.relation == "replace":
        count = jnp.floor(n / 2) if paired else n
        return Opened(key, n, count, slack, cost, bits, (), {}, {}, {})
    count_cost, cost = split(cost, (config.n_share, 1.0 - config.n_share))
    noisy, entry = scales.vector(key_count, n, (1.0, 1.0), count_cost, "number of rows")
    bits |= jnp.where(noisy.value < 1.0, status.COUNT_FLOORED, status.OK)
    n = jnp.maximum(noisy.value, 1.0)
    return Opened(key, n, n, slack, cost, bits, (entry,), {"n": noisy}, {}, {})


def measure_mean(
    key: jax.Array, first: jax.Array, scales: "Scales", opened: Opened, share: Any
) -> tuple[Opened, noise.Measured | None]:
    """The noisy mean in frame units at `share` of what is left (None: the best share predicted), if one is wanted."""
    if scales.config.center != "private":
        return opened, None
    if share is None:
        share = scales.mean_share(opened.cost, opened.count)
    first_cost, cost = split(opened.cost, (share, 1.0 - share))
    noisy, entry = scales.vector(key, first, scales.first(), first_cost, "sum of z")
    mean = divide(noisy, opened.count, scales.frame.live)
    return opened._replace(cost=cost).add((entry,), {"mean": mean}, {"mean_share": share}), mean


def close(
    name: str,
    opened: Opened,
    frame: clip.Frame,
    budget: Any,
    bounds: Any,
    config: Any,
    *,
    covariance: jax.Array,
    mean: noise.Measured | None,
    indefinite: Any,
) -> Release:
    """The release of a covariance in frame units, and a mean, from all that was measured and entered by then."""
    pure, tree = isinstance(budget, PureDP), ledger.Seq(opened.entries)
    total = ledger.total(tree, "epsilon" if pure else "rho")
    # A share outside (0, 1), which nothing could refuse while it was traced, shows in the parts.
    bits = opened.bits | jnp.where(indefinite, status.NOT_PSD, status.OK)
    bits |= jnp.where(jnp.isnan(total), status.INVALID_BUDGET, status.OK)
    # A noise scale on a value that is no number: the sums were void, as those of a table for other bounds.
    for each in opened.measured.values():
        void = jnp.any(jnp.isnan(each.value) & jnp.isfinite(each.std))
        bits |= jnp.where(void, status.INVALID_BOUNDS, status.OK)
    return Release(
        covariance=frame.covariance(covariance),
        mean=None if mean is None else frame.mean(mean.value),
        measured=opened.measured,
        center=frame.center,
        scale=frame.scale,
        n=opened.n,
        bounds=bounds,
        status=bits,
        spent=PureDP(total) if pure else ZCDP(total),
        ledger=tree,
        config=config,
        diagnostics=opened.diagnostics,
        extra=opened.extra,
        mechanism=name,
        relation=config.relation,
    )


class Scales:
    """Noise for the sums of one release: Gaussian under a zCDP budget, Laplace under a pure one."""

    def __init__(self, frame: clip.Frame, budget: Any, config: Any, slack: jax.Array, diagonal: bool = False) -> None:
        self.pure = isinstance(budget, PureDP)
        self.frame, self.config, self.diagonal, self.slack = frame, config, diagonal, slack
        self.width = frame.center.shape[0]
        self.d = jnp.sum(frame.live, dtype=slack.dtype)

    def cost(self, budget: Any) -> jax.Array:
        """The number that the budget is counted in."""
        return budget.epsilon if self.pure else budget.rho

    def vector(self, key: jax.Array, value: Any, bounds: tuple[Any, Any], cost: Any, what: str) -> tuple[Any, Any]:
        """Noise on every entry of a sum whose (l2, l1) sensitivities are `bounds`."""
        if self.pure:
            return noise.laplace(key, value, sensitivity=bounds[1] * self.slack, epsilon=cost, what=what)
        return noise.gaussian(key, value, sensitivity=bounds[0] * self.slack, rho=cost, what=what)

    def first(self) -> tuple[Any, Any]:
        """(l2, l1) sensitivity of sum z."""
        about = (self.frame.domain, self.config.relation, self.d)
        return sensitivity.mean_l2(*about), sensitivity.mean_l1(*about)

    def second(self, key: jax.Array, value: jax.Array, cost: Any) -> tuple[Any, Any]:
        """Noise on sum z z^T or its diagonal."""
        domain, relation, paired = self.frame.domain, self.config.relation, self.config.center == "pairs"
        if self.diagonal:
            if paired:
                bounds = [f(domain, self.d, width=self.width) for f in _PAIR_DIAGONAL]
            else:
                bounds = [f(domain, relation, self.d, width=self.width) for f in _DIAGONAL]
            return self.vector(key, value, (bounds[0], bounds[1]), cost, "diagonal of sum of z z^T")
        if self.pure:
            if paired:
                l1 = sensitivity.pair_second_moment_l1(domain, self.d, width=self.width)
            else:
                l1 = sensitivity.second_moment_l1(domain, relation, self.d, width=self.width)
            return noise.symmetric_laplace(key, value, sensitivity=l1 * self.slack, epsilon=cost, what="sum of z z^T")
        shape = self.triangle()
        return noise.symmetric_gaussian(
            key, value, sensitivity=shape.l2 * self.slack, rho=cost, diag=shape.diag, off=shape.off, what="sum of z z^T"
        )

    def triangle(self) -> sensitivity.Triangle:
        """Calibration of Gaussian noise on sum z z^T."""
        kind = self.config.noise
        if self.config.center == "pairs":
            return sensitivity.pair_second_moment(self.frame.domain, self.d, kind, width=self.width)
        return sensitivity.second_moment(self.frame.domain, self.config.relation, self.d, kind, width=self.width)

    def mean_share(self, cost: jax.Array, n: jax.Array) -> jax.Array:
        """The share of the mean that minimises the predicted squared Frobenius error of the covariance (in z).

        Public inputs only. With noise variances at the whole cost, the second moment errs by A/(1-a)^p and the
        square of the mean by B/a^p + C/a^(2p): p = 1 for rho, 2 for epsilon. B needs |mean|^2 in z, which nobody
        knows: a quarter of the largest value possible is assumed.
        """
        d, power = self.d, 2.0 if self.pure else 1.0
        l2, l1 = self.first()
        variance = (2.0 * (l1 / cost) ** 2 if self.pure else l2**2 / (2.0 * cost)) / n**2
        typical = 0.25 * (d if self.frame.domain == "box" else jnp.ones_like(d))
        if self.diagonal:
            domain, relation = self.frame.domain, self.config.relation
            l2_second, l1_second = (f(domain, relation, self.d, width=self.width) for f in _DIAGONAL)
            entries = d
            linear, square = 4.0 * typical, 2.0 * d
        elif self.pure:
            l2_second, l1_second = (
                0.0,
                sensitivity.second_moment_l1(self.frame.domain, self.config.relation, d, width=self.width),
            )
            entries = d**2
            linear, square = 2.0 * typical * (d + 1.0), d * (d + 1.0)
        else:
            shape = self.triangle()
            l2_second, l1_second = shape.l2, 0.0
            entries = shape.diag**2 * d + shape.off**2 * d * (d - 1.0)
            linear, square = 2.0 * typical * (d + 1.0), d * (d + 1.0)
        second = (2.0 * (l1_second / cost) ** 2 if self.pure else l2_second**2 / (2.0 * cost)) * entries / n**2
        # Relative to the second moment's own error, so that nothing overflows in float32.
        second = jnp.maximum(second, jnp.finfo(second.dtype).tiny)
        return _minimising_share(linear * variance / second, square * variance / second * variance, power)


_DIAGONAL = (sensitivity.diagonal_l2, sensitivity.diagonal_l1)
_PAIR_DIAGONAL = (sensitivity.pair_diagonal_l2, sensitivity.pair_diagonal_l1)


def _minimising_share(b: jax.Array, c: jax.Array, power: float) -> jax.Array:
    """argmin over a in [0.01, 0.9] of (1-a)^-p + b a^-p + c a^(-2p), differentiable in b and c."""

    def slope(a: jax.Array) -> jax.Array:
        # The derivative times a^(2p+1)/p: the same root, no large numbers.
        return a ** (2.0 * power + 1.0) * (1.0 - a) ** (-power - 1.0) - b * a**power - 2.0 * c

    def narrow(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
        # All points at once: a bisection is a loop of 50 steps, as dear as an eigendecomposition of 50 columns.
        points = low + (high - low) * jnp.linspace(0.0, 1.0, 64, dtype=b.dtype)
        first = jnp.sum(~(slope(points) > 0))  # the sign changes once; NaN counts as below
        return points[jnp.clip(first - 1, 0, 63)], points[jnp.clip(first, 0, 63)]

    steepness_at = jax.grad(slope)
    low, high = narrow(*narrow(jnp.full_like(b, 0.01), jnp.full_like(b, 0.9)))
    root = 0.5 * low + 0.5 * high
    for _ in range(3):  # from a relative 1e-4, which doubles its digits each time
        step = slope(root) / steepness_at(root)
        root = jnp.clip(root - jnp.where(jnp.isfinite(step), step, jnp.zeros_like(step)), low, high)
    root = jax.lax.stop_gradient(root)
    # One Newton step from the root changes nothing but carries the derivative (implicit function theorem).
    steepness = jax.lax.stop_gradient(steepness_at(root))
    inside = (root > 0.0101) & (root < 0.8999)
    return jnp.where(inside, root - slope(root) / jnp.where(inside, steepness, 1.0), root)


def divide(sums: noise.Measured, n: jax.Array, live: jax.Array) -> noise.Measured:
    """A noisy sum as a mean over n; entries of constant columns are known to be 0."""
    known = ~live if sums.value.ndim < 2 else ~(live[:, None] & live[None, :])
    return noise.Measured(
        jnp.where(known, 0.0, sums.value / n), jnp.where(known, 0.0, jnp.broadcast_to(sums.std, sums.value.shape) / n)
    )


def _postprocess(
    z_covariance: jax.Array,
    std: jax.Array,
    ceiling: float | None,
    live: jax.Array,
    config: MomentsConfig,
    diagonal: bool,
) -> tuple[jax.Array, jax.Array]:
    """Shrinkage and the PSD step in z, where the noise has one scale; also whether the PSD step changed anything."""
    # The largest std that noise on the triangle has in any one direction: of u^T W u over unit u.
    if diagonal:
        level = jnp.max(std)
    else:
        on = jnp.diagonal(std)
        off = jnp.max(std - jnp.diag(on))
        level = jnp.maximum(jnp.max(on), 2**0.5 * off)
    floor = level if config.psd == "floor" else jnp.zeros_like(level)
    if config.shrink and not diagonal:
        z_covariance, _ = linalg.shrink_to_diagonal(z_covariance, std)
    if diagonal:
        post = z_covariance if config.psd == "none" else jnp.clip(z_covariance, floor, ceiling)
        return post, jnp.any(z_covariance < 0)
    size = jnp.max(jnp.abs(jnp.diagonal(z_covariance)))
    small = 1e-6 * size + jnp.finfo(size.dtype).tiny
    if config.psd == "none":
        # A Cholesky factorisation tells the sign of the spectrum for a tenth of the price of the spectrum.
        _, definite = linalg.try_cholesky(z_covariance + small * jnp.eye(std.shape[0], dtype=size.dtype))
        return z_covariance, ~definite & jnp.isfinite(size)  # NaN has a status of its own
    if config.psd == "denoise":
        values, vectors = eigenvalues.eigh_masked(z_covariance, live)
        post = eigenvalues.rotation_invariant(values, off, eigenvalues.of_columns(live))
        post, lowest = eigenvalues.rebuild(vectors, post, live, 0.0, ceiling), jnp.min(values)
    else:
        post, lowest = psd_project_with_lowest(z_covariance, floor=floor, ceiling=ceiling)
    return post, (lowest < -small) & jnp.isfinite(size)
