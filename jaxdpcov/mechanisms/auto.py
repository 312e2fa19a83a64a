"""One entry at a time or all at once: a private test of how much there is beside the diagonal decides."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov._records import build, record
from jaxdpcov.bounds import BoxBounds
from jaxdpcov.data import clip
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms import _steps
from jaxdpcov.mechanisms._registry import mechanism
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

    relation, center, n_share: as in the Gaussian family. mean_share: None for the share predicted best for `gaussian`.
    norm_share, top_share: shares of the budget for the two numbers that decide, from 20 columns on.
    t: weight of the measurements against the entropy. loop: as in `PaceConfig`.

    >>> from jaxdpcov import AutoConfig
    >>> AutoConfig().norm_share
    0.03
    """

    relation: str = "replace"
    center: str = "private"
    mean_share: Any = None
    n_share: Any = 0.05
    norm_share: Any = 0.03
    top_share: Any = 0.03
    t: Any = 1.0
    loop: str = "auto"

    def __post_init__(self) -> None:
        SSPSelectConfig(self.relation, self.center, mean_share=self.mean_share, n_share=self.n_share, t=self.t)
        PaceConfig(loop=self.loop)
        for name in ("norm_share", "top_share"):
            _checks.between(name, getattr(self, name), 0.0, 1.0)
        if not _checks.is_traced(self.norm_share, self.top_share):
            _checks.between("norm_share + top_share", self.norm_share + self.top_share, 0.0, 1.0)

    def law(self) -> "AutoConfig":
        """The choices that decide what is released."""
        return build(AutoConfig, vars(self) | {"loop": "auto"})

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


@mechanism(config=AutoConfig, budgets=(ZCDP,), bounds=(BoxBounds,), host=True)
def auto(key: jax.Array, rows: Rows, budget: Any, bounds: Any, config: AutoConfig) -> Release:
    """Private covariance by `ssp_select` or `pace`: the former below 20 columns, else what a private test says.

    Formal guarantee: rho-zCDP for the stated relation, as the sum of its parts. From 20 columns on two Gaussian
    mechanisms measure the norm of the entries above the diagonal and the top eigenvalue of the off-diagonal part of
    the second moment (sensitivity d/n in z each), at 3% of the budget each. Where either stands out of the noise that
    measuring all entries would add, they all are measured, as by `ssp_select`; else `pace` takes what is left. Proofs:
    docs/guarantees.md.

    Where rows are short against the box, as in bounds of several standard deviations in every column, `adaptive` is far
    better than either (docs/results/pace.md).

    Args, Returns, Raises: as `pace`; the fields that only the other branch has are zero (`measured_in_round`: -1).
    `diagnostics["all_entries"]`: whether all were measured. `measured` holds "off_diagonal_norm" and "off_diagonal_top"
    in z (and "mean").

    References: as `pace` and `ssp_select`; the test is of our own.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, auto
    >>> x = jax.random.uniform(jax.random.key(1), (2000, 4))
    >>> bool(auto(jax.random.key(0), x, ZCDP(rho=0.5), Bounds.box(0.0, 1.0)).diagnostics["all_entries"])
    True
    """
    frame = clip.frame(bounds, rows.d, rows.dtype)
    key_pairs, key = jax.random.split(key)
    sums = _steps.moment_sums(rows, key_pairs, frame, config)
    n = jnp.asarray(rows.count(), rows.dtype)
    valid = rounds.valid(config.pace())
    opened, centre = common.begin("auto", key, sums, n, frame, budget, config.select(), valid)
    if rows.d < _FEW:
        sub, found = _all_entries(opened, sums.second, centre, frame, budget, config)
        opened = opened.add(sub.entries, {}, sub.diagnostics | {"all_entries": jnp.asarray(True)})
        return common.close("auto", opened, found, centre, frame, budget, bounds, config)
    opened, dense = _test(opened, sums.second, centre, frame, budget, config)
    what = (opened, sums.second, centre, frame, budget, config)
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
    return common.close("auto", opened, found, centre, frame, budget, bounds, config)


@jax.jit
def _test(
    opened: _steps.Opened, second: jax.Array, centre: common.Centre, frame: clip.Frame, budget: Any, config: AutoConfig
) -> tuple[_steps.Opened, jax.Array]:
    """Whether there is more beside the diagonal than the noise on all entries would hide."""
    key_norm, key_top, key = jax.random.split(opened.key, 3)
    rest = 1.0 - config.norm_share - config.top_share
    norm_cost, top_cost, cost = split(opened.cost, (config.norm_share, config.top_share, rest))
    scales = _steps.Scales(frame, budget, config.select(), opened.slack)
    off = common.block(frame.live) & ~jnp.eye(second.shape[0], dtype=bool)
    beside = jnp.where(off, second - opened.count * centre.offset, 0.0)
    bound = sensitivity.box_off_diagonal(config.relation, scales.d, paired=config.center == "pairs") * opened.slack
    numbers = (jnp.sqrt(0.5 * jnp.sum(beside * beside)), jnp.linalg.eigvalsh(beside)[-1])
    about = (("norm of the off-diagonal of sum of z z^T", key_norm, norm_cost),
             ("top eigenvalue of the off-diagonal of sum of z z^T", key_top, top_cost))  # fmt: skip
    noisy, entries = zip(
        *(
            noise.gaussian(a_key, number, sensitivity=bound, rho=price, what=what)
            for number, (what, a_key, price) in zip(numbers, about)
        )
    )
    shape, d = scales.triangle(), scales.d
    std = shape.l2 * shape.off / jnp.sqrt(2.0 * cost)
    dense = (noisy[0].value > _NORM * std * jnp.sqrt(0.5 * d * (d - 1.0))) | (noisy[1].value > _TOP * std * jnp.sqrt(d))
    norm, top = (type(x)(x.value / opened.count, x.std / opened.count) for x in noisy)
    opened = opened._replace(key=key, cost=cost).add(entries, {"off_diagonal_norm": norm, "off_diagonal_top": top})
    return opened, dense


@jax.jit
def _all_entries(
    opened: _steps.Opened, second: jax.Array, centre: common.Centre, frame: clip.Frame, budget: Any, config: AutoConfig
) -> tuple[_steps.Opened, common.Found]:
    return select.measure(_bare(opened), second, centre, frame, budget, config.select())


def _few_entries(
    opened: _steps.Opened, second: jax.Array, centre: common.Centre, frame: clip.Frame, budget: Any, config: AutoConfig
) -> tuple[_steps.Opened, common.Found]:
    return rounds.run(_bare(opened), second, centre, frame, budget, config.pace())


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
