"""Which mechanisms of the registry apply to a budget, bounds and a relation, and else why not."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.mechanisms._registry import Mechanism
from jaxdpcov.privacy.budget import ZCDP, PureDP

_MAKERS = {L2Bounds: "Bounds.l2(radius)", BoxBounds: "Bounds.box(lower, upper)", SpectrumBounds: "Bounds.spectrum(...)"}


def public_reason(mechanism: Mechanism, budget: type, bounds: type) -> str | None:
    """Why the mechanism takes no budget or bounds of that kind; None where it takes both."""
    if bounds not in mechanism.bounds:
        return f"needs {' or '.join(_MAKERS[kind] for kind in mechanism.bounds)}"
    if budget not in mechanism.budgets:
        if budget is PureDP:
            return "adds Gaussian noise, which no pure-DP budget buys: needs ZCDP(rho) or ApproxDP(epsilon, delta)"
        return "is pure DP: needs PureDP(epsilon)"
    return None


def config_for(mechanism: Mechanism, options: Mapping[str, Any]) -> Any:
    """Its config with these options; ValueError or TypeError, in one line, where it cannot be."""
    fields = [field.name for field in dataclasses.fields(mechanism.config)]
    for name, value in options.items():
        if name not in fields:
            if name == "relation" and value == "replace":
                continue
            raise ValueError(f"{mechanism.name} has no option {name!r}; it has {', '.join(fields)}")
    return mechanism.config(**{name: value for name, value in options.items() if name in fields})


def shape_of(mechanism: Mechanism, n: int, d: int, budget: Any, bounds: Any, config: Any) -> Any:
    """The release's shapes, from n rows of d columns that hold nothing.

    Raises what the mechanism raises for such public arguments. Nothing is compiled.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    rows = jax.ShapeDtypeStruct((n, d), jax.numpy.zeros(()).dtype)
    return jax.eval_shape(lambda key, rows: mechanism.function(key, rows, budget, bounds, config=config), key, rows)


def check_budget(budget: Any) -> ZCDP | PureDP:
    """One concrete budget, in the unit that mechanisms account in."""
    from jaxdpcov.privacy.budget import ApproxDP, to_zcdp

    if not isinstance(budget, (ZCDP, PureDP, ApproxDP)):
        raise TypeError(f"budget must be ZCDP(rho), PureDP(epsilon) or ApproxDP(epsilon, delta), got {budget!r}")
    made = to_zcdp(budget) if isinstance(budget, ApproxDP) else budget
    (number,) = vars(made).values()
    if jax.numpy.ndim(number) != 0:
        raise ValueError(f"budget must be one budget, got {budget!r}")
    return type(made)(float(number))
