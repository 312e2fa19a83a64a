"""The method that `estimate` takes unless one is named: a table made from plans, read from public inputs alone."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxdpcov import _checks
from jaxdpcov.bounds import Bounds, BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.mechanisms._registry import MECHANISMS, Mechanism
from jaxdpcov.plan import applies
from jaxdpcov.privacy.budget import ZCDP, PureDP

#: By kind of bounds and budget the mechanisms in order of preference: the first that takes all options is chosen.
#: tests/plan/test_rule.py compares the first ones with plans on several populations.
ORDER: dict[tuple[type, type], tuple[str, ...]] = {
    (BoxBounds, ZCDP): ("auto", "adaptive", "ssp_select", "gaussian", "pace", "separate", "clipped_gaussian"),
    (L2Bounds, ZCDP): ("adaptive", "auto", "gaussian", "separate", "clipped_gaussian"),
    (BoxBounds, PureDP): ("adaptive", "laplace", "separate", "clipped_gaussian"),
    (L2Bounds, PureDP): ("adaptive", "laplace", "separate", "clipped_gaussian"),
    (SpectrumBounds, ZCDP): ("coinpress_gaussian", "coinpress_covariance", "learn_gaussian", "pgce"),
    (SpectrumBounds, PureDP): ("coinpress_variance_1d",),
}
_NAMES: dict[type, str] = {BoxBounds: "box bounds", L2Bounds: "l2 bounds", SpectrumBounds: "spectrum bounds"}
_BUDGETS: dict[type, str] = {ZCDP: "a zCDP budget", PureDP: "a pure-DP budget"}


def choose(budget: type, bounds: Any, options: Mapping[str, Any]) -> tuple[Mechanism, str]:
    """The mechanism for that kind of budget and those bounds which takes these options, and why, for the ledger.

    Args:
        budget: `ZCDP` or `PureDP`. bounds: public bounds, their type, or a mapping of intervals (a box).
        options: fields of the config, as `estimate` takes them; those that are None count as left out.

    Raises:
        ValueError, TypeError: no mechanism takes the options; what one that has them says, or the closest name.

    >>> from jaxdpcov import Bounds, ZCDP
    >>> from jaxdpcov.plan.rule import choose
    >>> choose(ZCDP, Bounds.box(0.0, 1.0), {})[0].name, choose(ZCDP, Bounds.box(0.0, 1.0), {"psd": "floor"})[1]
    ('auto', 'method adaptive: chosen for box bounds and a zCDP budget, as auto does not take psd')
    """
    kind = kind_of(bounds)
    options = {name: value for name, value in options.items() if value is not None}
    refused: list[Exception] = []
    passed: str | None = None
    for name in ORDER[kind, budget]:
        mechanism = MECHANISMS[name]
        try:
            applies.config_for(mechanism, options)
            _fits(name, bounds, options)
        except (ValueError, TypeError) as error:
            refused.append(error)
            if passed is None:
                passed = f", as {name} does not take {_culprits(mechanism, bounds, options)}"
            continue
        return mechanism, f"method {name}: chosen for {_NAMES[kind]} and {_BUDGETS[budget]}{passed or ''}"
    for name in options:
        known = dict.fromkeys(field.name for each in ORDER[kind, budget] for field in _fields(each))
        if name not in known and name != "relation":
            hint = _checks.hint(name, known, "; name one with method=")
            raise ValueError(f"no method for {_NAMES[kind]} and {_BUDGETS[budget]} takes {name}{hint}")
    # A mechanism that has all the options, and refuses a value, says more than one that has them not.
    told = next((each for each in refused if " has no option " not in str(each)), refused[0])
    raise type(told)(str(told))


def _fields(name: str) -> tuple[Any, ...]:
    return dataclasses.fields(MECHANISMS[name].config)


def kind_of(bounds: Any) -> type:
    """`L2Bounds`, `BoxBounds` or `SpectrumBounds`; a mapping of intervals is a box."""
    if isinstance(bounds, type):
        return bounds
    return type(bounds) if isinstance(bounds, Bounds) else BoxBounds


def _fits(name: str, bounds: Any, options: Mapping[str, Any]) -> None:
    """What `coinpress_gaussian` refuses beside its config: a known mean is not to be measured, nor one of no bound."""
    if name in ("coinpress_gaussian", "learn_gaussian"):
        if options.get("center", "pairs") != "pairs":
            raise ValueError(f"{name} measures the mean and needs center='pairs', got {options['center']!r}")
        if isinstance(bounds, SpectrumBounds) and bounds.mean_radius is None:
            raise ValueError(f"{name} needs mean_radius: Bounds.spectrum(..., mean_radius=...)")


def _culprits(mechanism: Mechanism, bounds: Any, options: Mapping[str, Any]) -> str:
    """The options that keep the mechanism from being taken, by themselves or else together."""
    found = []
    for name, value in options.items():
        try:
            applies.config_for(mechanism, {name: value})
            _fits(mechanism.name, None, {name: value})
        except (ValueError, TypeError):
            found.append(name)
    if isinstance(bounds, SpectrumBounds) and bounds.mean_radius is None:
        found.append("bounds without mean_radius")
    return ", ".join(found or options)
