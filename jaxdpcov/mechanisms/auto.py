"""A private radius, then all entries at once or one at a time: a private test of how much is beside the diagonal."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov._records import build, record
from jaxdpcov.bounds import BoxBounds, L2Bounds
from jaxdpcov.data import clip, levels
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _ball, _steps
from jaxdpcov.mechanisms._registry import mechanism
from jaxdpcov.mechanisms.adaptive import AdaptiveConfig, choose_radius
from jaxdpcov.mechanisms.pace import PaceConfig, SSPSelectConfig, common, rounds, select
from jaxdpcov.privacy import ledger, noise, sensitivity
from jaxdpcov.privacy.budget import ZCDP, split
from jaxdpcov.release import Release

#: Below so many columns measuring all entries is as good or better on everything tried.
_FEW = 20
#: What speaks for measuring all: a norm or a top eigenvalue so many times that of the noise on all entries.
_NORM, _TOP = 0.7, 2.0


@record(static=("relation", "center", "loop"))
class AutoConfig:
    """Choices of `auto`.

    relation, center, n_share, mean_share: as in `BallConfig`.
    trace_share, radius_share: shares of the budget for the trace and the radius, as in `adaptive`.
    norm_share, top_share: shares of the rest for the two numbers that decide, under a box of 20 columns and more.
    t: weight of the measurements against the entropy. loop: as in `PaceConfig`.

    >>> from jaxdpcov import AutoConfig
    >>> AutoConfig().norm_share
    0.03
    """

    relation: str = "replace"
    center: str = "private"
    mean_share: Any = None
    n_share: Any = 0.05
    trace_share: Any = 0.05
    radius_share: Any = 0.1
    norm_share: Any = 0.03
    top_share: Any = 0.03
    t: Any = 1.0
    loop: str = "auto"

    def __post_init__(self) -> None:
        PaceConfig(loop=self.loop)
        for part in (AdaptiveConfig(), SSPSelectConfig()):  # each checks its own choices
            type(part)(**{name: value for name, value in vars(self).items() if name in vars(part)})
        for name in ("norm_share", "top_share"):
            _checks.between(name, getattr(self, name), 0.0, 1.0)
        if not _checks.is_traced(self.norm_share, self.top_share):
            _checks.between("norm_share + top_share", self.norm_share + self.top_share, 0.0, 1.0)

    def law(self) -> "AutoConfig":
        """The choices that decide what is released."""
        return build(AutoConfig, vars(self) | {"loop": "auto"})

    def adaptive(self) -> AdaptiveConfig:
        """The choices of the radius and of the noise on rows clipped there."""
        return self._part(AdaptiveConfig())

    def pace(self) -> PaceConfig:
        """The choices of the rounds."""
        return self._part(PaceConfig())

    def select(self) -> SSPSelectConfig:
        """The choices where all entries are measured."""
        return self._part(SSPSelectConfig())

    def _part(self, default: Any) -> Any:
        """`default` with the choices made here, which are checked already and may be traced."""
        own = {name: value for name, value in vars(self).items() if name in vars(default)}
        return build(type(default), vars(default) | own)


@mechanism(config=AutoConfig, budgets=(ZCDP,), bounds=(L2Bounds, BoxBounds), host=True)
def auto(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: AutoConfig) -> Release:
    """Private covariance of rows clipped at a private radius, reconstructed as suits them.

    Formal guarantee: rho-zCDP for the stated relation, as the sum of its parts. A twentieth of the budget measures the
    trace and a tenth chooses the radius, as in `adaptive`. Rows clipped there give the mean and the second moment. All
    its entries are measured, with the noise of `clipped_gaussian`, and reconstructed as by `ssp_select`. Under a box of
    20 columns and more, where rows are so long that a few entries are measured far better than all, two Gaussian
    mechanisms at 3% of what is left each measure the norm of the entries above the diagonal and the top eigenvalue of
    the off-diagonal part: where neither stands out of the noise that measuring all entries would add, `pace` takes what
    is left instead. Proofs: docs/guarantees.md.

    Args:
        key: a JAX PRNG key. One key serves one release.
        rows: (n, d) array in data units, or `Rows`: read twice. For many releases of one data set in a study,
            `Rows.level_moments` reads them once.
        budget: `ZCDP(rho)` or `ApproxDP(epsilon, delta)` (converted on the host).
        bounds: `Bounds.box(lower, upper)`, or `Bounds.l2(radius, center)`, under which all entries are measured.
        config: `AutoConfig`.

    Returns:
        `Release` as that of `pace`; the fields that only one of the branches has are zero in the other
        (`measured_in_round`: -1). `extra["radius"]`: where rows were clipped, in half-widths of a box or data units
        under l2 bounds. `diagnostics["all_entries"]`: whether all were measured. `measured` holds "trace", the noisy
        mean square norm of the rows, "off_diagonal_norm" and "off_diagonal_top" where they were asked for, and "mean",
        all in frame units z.

    Raises:
        TypeError, ValueError: for public arguments only. Traced arguments that are invalid give NaN and a status.

    References: as `adaptive`, `pace` and `ssp_select`; how they are joined is of our own.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, auto
    >>> x = jax.random.uniform(jax.random.key(1), (2000, 4))
    >>> bool(auto(jax.random.key(0), x, ZCDP(rho=0.5), Bounds.box(0.0, 1.0)).diagnostics["all_entries"])
    True
    """
    frame = clip.frame(bounds, rows.d, rows.dtype)
    ball = clip.ball_frame(bounds, rows.d, rows.dtype)
    key_masses, key_pairs, key = jax.random.split(key, 3)
    masses = _ball.masses(rows, key_masses, ball, config)
    n = jnp.asarray(rows.count(), rows.dtype)
    opened, level = _choose(key, masses, n, ball, budget, config)
    sums = _ball.moments_at_level(rows, key_pairs, ball, config, level)
    opened, clipped = _mean(opened, sums, frame, ball, budget, config, level)
    if rows.d < _FEW or frame.domain == "ball":
        sub, found = _all_entries(opened, clipped, budget, config)
        opened = opened.add(sub.entries, {}, sub.diagnostics | {"all_entries": jnp.asarray(True)})
        return common.close("auto", opened, found, clipped.centre, frame, budget, bounds, config)
    opened, dense = _test(opened, clipped, budget, config)
    what = (opened, clipped, budget, config)
    if config.loop == "auto" and not _checks.is_traced(dense, what):
        packed = _dense(*what) if bool(dense) else _sparse(*what)
    else:
        # `vmap` selects between the operands of `cond`, which counts as a use of a key, though not of its bits.
        kind, bits = jax.random.key_impl(opened.key), jax.random.key_data(opened.key)

        def branch(run: Any) -> Any:
            def keyed(bits: jax.Array, opened: _steps.Opened, *rest: Any) -> Any:
                return run(opened._replace(key=jax.random.wrap_key_data(bits, impl=kind)), *rest)

            return keyed

        packed = jax.lax.cond(dense, branch(_dense), branch(_sparse), bits, opened._replace(key=None), *what[1:])
    found, entries, diagnostics, extra = packed
    opened = opened.add(entries, {}, diagnostics | {"all_entries": dense}, extra)
    return common.close("auto", opened, found, clipped.centre, frame, budget, bounds, config)


class Clipped(NamedTuple):
    """The exact sum of w w^T over rows clipped at a radius in the unit ball, (d, d), and what to make of it.

    radius: of the ball. square: what 1 in w w^T is in z z^T. frame: of z. ball: of the unit ball.
    """

    second: Any
    radius: Any
    square: Any
    centre: common.Centre
    frame: clip.Frame
    ball: clip.Frame

    def scales(self, opened: _steps.Opened, budget: Any, config: AutoConfig) -> _ball.Scales:
        """The noise that goes with it."""
        return _ball.Scales(self.ball, budget, config.adaptive(), opened.slack)


@jax.jit
def _choose(
    key: jax.Array, masses: levels.Masses, n: jax.Array, ball: clip.Frame, budget: Any, config: AutoConfig
) -> tuple[_steps.Opened, jax.Array]:
    """The noisy trace, and the level of the radius."""
    opened = _steps.begin("auto", key, n, ball, budget, config, rounds.valid(config.pace()))
    opened, level, _ = choose_radius(opened, masses, ball, budget, config.adaptive(), either=False)
    trace = opened.measured["trace"]
    square = jnp.square(_unit(ball))
    return opened.add((), {"trace": noise.Measured(trace.value * square, trace.std * square)}), level


def _unit(ball: clip.Frame) -> jax.Array:
    """What 1 in the unit ball is in z: 1 under l2 bounds, sqrt(d) under a box."""
    return clip.reach(ball) if isinstance(ball, clip.BallOfBox) else jnp.ones_like(ball.scale[0])


@jax.jit
def _mean(
    opened: _steps.Opened,
    sums: levels.Moments,
    frame: clip.Frame,
    ball: clip.Frame,
    budget: Any,
    config: AutoConfig,
    level: jax.Array,
) -> tuple[_steps.Opened, Clipped]:
    """The noisy mean of the clipped rows, and their second moment with its centre."""
    key_mean, key = jax.random.split(opened.key)
    scales = _ball.Scales(ball, budget, config.adaptive(), opened.slack)
    radius = levels.radius(level, sums.first.dtype)
    in_z = radius * _unit(ball)
    opened, mean = _ball.measure_mean(key_mean, sums.first, scales, opened._replace(key=key), in_z)
    # Of pairs, w is half the difference, and z the difference over sqrt(2).
    square = in_z * in_z * (2.0 if config.center == "pairs" else 1.0)
    return opened, Clipped(sums.second, radius, square, common.centre_of(mean, sums.second), frame, ball)


@jax.jit
def _test(opened: _steps.Opened, clipped: Clipped, budget: Any, config: AutoConfig) -> tuple[_steps.Opened, jax.Array]:
    """Whether there is more beside the diagonal than the noise on all entries would hide, or that is little anyway."""
    key_norm, key_top, key = jax.random.split(opened.key, 3)
    rest = 1.0 - config.norm_share - config.top_share
    norm_cost, top_cost, cost = split(opened.cost, (config.norm_share, config.top_share, rest))
    scales = clipped.scales(opened, budget, config)
    off = common.block(clipped.frame.live) & ~jnp.eye(clipped.second.shape[0], dtype=bool)
    beside = jnp.where(off, clipped.second - opened.count * clipped.centre.offset / clipped.square, 0.0)
    about = {"width": scales.width, "paired": scales.paired}
    moved = sensitivity.clipped_off_diagonal(config.relation, clipped.radius, **about)
    norm, norm_entry = noise.gaussian(
        key_norm,
        jnp.sqrt(0.5 * jnp.sum(beside * beside)),
        sensitivity=moved[0] * opened.slack,
        rho=norm_cost,
        what="norm of the off-diagonal of sum of w w^T",
    )
    top, top_entry = noise.gaussian(
        key_top,
        jnp.linalg.eigvalsh(beside)[-1],
        sensitivity=moved[1] * opened.slack,
        rho=top_cost,
        what="top eigenvalue of the off-diagonal of sum of w w^T",
    )
    bound = scales.second_bound(clipped.radius)
    d, std = scales.d, scales.off_weight() * scales.unit(bound, cost)
    dense = (norm.value > _NORM * std * jnp.sqrt(0.5 * d * (d - 1.0))) | (top.value > _TOP * std * jnp.sqrt(d))
    # Where rows are short, measuring all entries adds no more noise than measuring one for each column.
    each = sensitivity.box_entry(config.relation, diagonal=False, paired=scales.paired)
    dense |= scales.off_weight() * bound * clipped.square <= jnp.sqrt(d) * each
    in_z = clipped.square / opened.count
    numbers = {"off_diagonal_norm": norm, "off_diagonal_top": top}
    measured = {name: noise.Measured(number.value * in_z, number.std * in_z) for name, number in numbers.items()}
    return opened._replace(key=key, cost=cost).add((norm_entry, top_entry), measured), dense


@jax.jit
def _all_entries(
    opened: _steps.Opened, clipped: Clipped, budget: Any, config: AutoConfig
) -> tuple[_steps.Opened, common.Found]:
    """The second moment with what is left of the budget, and the average of its reconstructions."""
    key_noise, key = jax.random.split(opened.key)
    scales = clipped.scales(opened, budget, config)
    noisy, entry = scales.clipped_second(key_noise, clipped.second, opened.cost, clipped.radius)
    moment = _ball.scaled(noisy, clipped.square / opened.count, common.block(clipped.frame.live))
    opened = _bare(opened)._replace(key=key).add((entry,), {})
    return select.reconstruct(opened, moment, clipped.centre, clipped.frame.live, config.select())


def _few_entries(
    opened: _steps.Opened, clipped: Clipped, budget: Any, config: AutoConfig
) -> tuple[_steps.Opened, common.Found]:
    """`pace` on the clipped rows, which are in the box too."""
    second = clipped.second * clipped.square
    return rounds.run(_bare(opened), second, clipped.centre, clipped.frame, budget, config.pace())


def _bare(opened: _steps.Opened) -> _steps.Opened:
    """Without what was entered so far, so that what comes back is a branch's own."""
    return opened._replace(entries=(), measured={}, diagnostics={}, extra={})


def _dense(*what: Any) -> Any:
    return _packed(_all_entries(*what), jax.eval_shape(_few_entries, *what), True)


def _sparse(*what: Any) -> Any:
    return _packed(_few_entries(*what), jax.eval_shape(_all_entries, *what), False)


def _packed(taken: Any, other: Any, first: bool) -> tuple[common.Found, Any, dict[str, Any], dict[str, Any]]:
    """What a branch found, in a form that both have: zeros for all that only the other one has."""
    opened, found = taken
    unused, _ = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), other)
    unused = unused._replace(extra={name: value - 1 for name, value in unused.extra.items()})
    both = (opened, unused) if first else (unused, opened)
    entries = tuple(_as_rounds(entry) for part in both for entry in part.entries)
    diagnostics, extra = (getattr(both[0], name) | getattr(both[1], name) for name in ("diagnostics", "extra"))
    return found, entries, diagnostics, extra


def _as_rounds(entry: Any) -> ledger.Rounds:
    """An entry that may not have taken place."""
    return entry if isinstance(entry, ledger.Rounds) else ledger.Rounds(jax.tree.map(lambda x: jnp.ravel(x), entry))
