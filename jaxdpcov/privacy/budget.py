"""Privacy budgets: what a person is ready to spend, checked when made, split and converted without ever growing."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.privacy import accounting

_REAL = (np.floating, np.integer)


def _repr(budget: Any) -> str:
    """The call that makes the budget, short for arrays and tracers too."""
    return f"{type(budget).__name__}({', '.join(f'{name}={_short(leaf)}' for name, leaf in vars(budget).items())})"


@record()
class ZCDP:
    """rho-zero-concentrated differential privacy: D_alpha(M(X) || M(X')) <= rho alpha for all alpha > 1.

    Args:
        rho: finite and > 0, no unit; a number, or an array of budgets for `jax.vmap`. A leaf.

    References: Bun, Steinke 2016 (arXiv 1605.02065).

    >>> from jaxdpcov.privacy.budget import ZCDP
    >>> ZCDP(0.5)
    ZCDP(rho=0.5)
    >>> print(ZCDP(0.5))
    0.5-zCDP
    """

    rho: Any

    __repr__ = _repr

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", _positive("rho", self.rho))

    def __str__(self) -> str:
        return f"{_short(self.rho, '.6g')}-zCDP"


@record()
class PureDP:
    """epsilon-differential privacy: P(M(X) in A) <= e^epsilon P(M(X') in A) for every event A.

    Args:
        epsilon: finite and > 0, no unit; a number, or an array of budgets for `jax.vmap`. A leaf.

    References: Dwork, McSherry, Nissim, Smith 2006.

    >>> from jaxdpcov.privacy.budget import PureDP
    >>> print(PureDP(1))
    1-DP
    """

    epsilon: Any

    __repr__ = _repr

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))

    def __str__(self) -> str:
        return f"{_short(self.epsilon, '.6g')}-DP"

    @staticmethod
    def from_zcdp(rho: Any, *, bounded_range: bool = False) -> "PureDP":
        """The pure budget whose zCDP price is `rho`, so that a pure mechanism can be part of a zCDP release.

        Args:
            rho: a `ZCDP` budget or its number, concrete or traced.
            bounded_range: False for any epsilon-DP mechanism, epsilon^2 / 2 = rho. True where the mechanism is told
                to be an exponential mechanism, whose bounded range makes the price epsilon^2 / 8, so that rho buys
                twice the epsilon.

        Returns:
            PureDP, rounded down by a few roundings: its price in floats is at most rho.

        References: Bun, Steinke 2016, Proposition 1.4; Cesar, Rogers 2021 (2004.07223).

        >>> from jaxdpcov.privacy.budget import PureDP
        >>> print(PureDP.from_zcdp(0.5), PureDP.from_zcdp(0.5, bounded_range=True))
        1-DP 2-DP
        """
        rho = rho.rho if isinstance(rho, ZCDP) else _positive("rho", rho)
        factor = 8.0 if bounded_range else 2.0
        if isinstance(rho, jax.Array):
            return PureDP(jnp.sqrt(factor * rho) * (1.0 - 4.0 * float(jnp.finfo(rho.dtype).eps)))
        return PureDP(np.sqrt(factor) * np.sqrt(rho) * (1.0 - 4.0 * float(np.finfo(float).eps)))


@record()
class ApproxDP:
    """(epsilon, delta)-differential privacy: P(M(X) in A) <= e^epsilon P(M(X') in A) + delta for every event A.

    Args:
        epsilon: finite and > 0, no unit. A leaf.
        delta: 0 < delta < 1, no unit; well below 1/n. A leaf.

    A zCDP mechanism converts it on the host, by `to_zcdp`.

    References: Dwork, Kenthapadi, McSherry, Mironov, Naor 2006.

    >>> from jaxdpcov.privacy.budget import ApproxDP
    >>> print(ApproxDP(1, 1e-6))
    (1, 1e-06)-DP
    """

    epsilon: Any
    delta: Any

    __repr__ = _repr

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", _positive("epsilon", self.epsilon))
        delta = _real("delta", self.delta)
        _checks.between("delta", delta, 0, 1)
        object.__setattr__(self, "delta", delta)

    def __str__(self) -> str:
        return f"({_short(self.epsilon, '.6g')}, {_short(self.delta, '.6g')})-DP"


def split(total: Any, shares: Sequence[Any]) -> tuple[Any, ...]:
    """Cut a budget's number into parts that never add up to more than it, in floating point.

    Each part is total * share, and the last is what remains, less 4 len(shares) roundings of the total: so the parts
    add up to at most `total` in any order, compiled or not, also when a part is split again and the pieces are
    summed as one list.

    Args:
        total: rho or epsilon, finite and > 0; a number, an array of budgets or traced.
        shares: the parts' shares of it, each > 0, together 1; numbers or traced.

    Returns:
        One part for each share, in order; Python floats where all is concrete on the host. One share gives `total`.

    Edge cases: where total or shares are traced nothing can raise, so every part is NaN unless all are > 0.

    >>> from jaxdpcov.privacy.budget import split
    >>> [round(part, 12) for part in split(1.0, (0.1, 0.2, 0.7))]
    [0.1, 0.2, 0.7]
    """
    total = _positive("total", total)
    given = [_positive("shares", share) for share in shares]
    if not given:
        raise ValueError("shares must hold at least one share, got none")
    together: Any = 1.0 if _checks.is_traced(given) else sum(np.asarray(share) for share in given)
    if np.any(abs(together - 1.0) > 1e-6):
        raise ValueError(f"shares must add up to 1, got {tuple(map(_short, given))}")
    if len(given) == 1:
        return (total,)
    dtypes = [number.dtype for number in (total, *given) if isinstance(number, jax.Array)]
    if dtypes:
        total, *given = (x if _weak(x, dtypes[0]) else jnp.asarray(x, dtypes[0]) for x in (total, *given))
    parts = [total * share for share in given[:-1]]
    spent = parts[0]
    for part in parts[1:]:
        spent = spent + part
    eps = jnp.finfo(dtypes[0]).eps if dtypes else np.finfo(float).eps
    parts.append(total - spent - total * (2.0 * len(given) * float(eps)))
    if not dtypes:
        if not all(np.all(part > 0.0) for part in parts):
            raise ValueError(f"shares must leave something for the last part, got {tuple(map(_short, given))}")
        return tuple(parts)
    valid = jnp.isfinite(total)
    for part in parts:
        valid = valid & (part > 0.0)
    return tuple(jnp.where(valid, part, jnp.nan) for part in parts)


def to_zcdp(budget: "ZCDP | PureDP | ApproxDP") -> ZCDP:
    """A budget in zCDP. What it means differs by kind, so read the returns.

    Args:
        budget: `ZCDP`, `PureDP` or `ApproxDP`; the last with concrete numbers, or arrays of them.

    Returns:
        ZCDP as it is. For ApproxDP the largest rho that implies it, rounded down: any rho-zCDP mechanism may spend
        it. For PureDP the price epsilon^2 / 2 of a pure mechanism inside a zCDP release, and no more than that:
        rho-zCDP does not imply pure DP, so a pure budget never buys Gaussian noise.

    Edge cases: a traced ApproxDP raises TypeError: convert outside jit.

    References: Bun, Steinke 2016, Proposition 1.4; Canonne, Kamath, Steinke 2020 (2004.00010).

    >>> from jaxdpcov.privacy.budget import ApproxDP, to_zcdp
    >>> print(to_zcdp(ApproxDP(1.0, 1e-6)))
    0.024356-zCDP
    """
    if isinstance(budget, ZCDP):
        return budget
    if isinstance(budget, PureDP):
        return ZCDP(budget.epsilon * budget.epsilon * 0.5)
    if not isinstance(budget, ApproxDP):
        raise TypeError(f"budget must be ZCDP(rho), PureDP(epsilon) or ApproxDP(epsilon, delta), got {budget!r}")
    if _checks.is_traced(budget):
        raise TypeError(f"{budget!r} is traced and its conversion works on concrete numbers: convert outside jit")
    rho = np.vectorize(accounting.rho_of_epsilon, otypes=[np.float64])(budget.epsilon, budget.delta)
    return ZCDP(rho)


def _real(name: str, value: Any) -> Any:
    """A number of the host as a float, an array as it is; TypeError for what is no real number."""
    if isinstance(value, jax.core.Tracer):
        return value
    dtype = getattr(value, "dtype", np.float64)
    if isinstance(value, (list, tuple)) or not any(jnp.issubdtype(dtype, kind) for kind in _REAL):
        raise TypeError(f"{name} must be a number, got {_short(value)}")
    try:
        seen = _checks.concrete(name, value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got an integer beyond the floats") from None
    if isinstance(value, jax.Array):
        return value if jnp.issubdtype(dtype, np.floating) else value.astype(float)
    assert seen is not None
    return float(seen) if seen.ndim == 0 else seen


def _positive(name: str, value: Any) -> Any:
    number = _real(name, value)
    _checks.positive(name, number)
    return number


def _weak(number: Any, dtype: Any) -> bool:
    """True where the number goes with arrays of `dtype` as it is, under strict promotion too."""
    return isinstance(number, float) or number.dtype == dtype


def _short(leaf: Any, form: str = "") -> str:
    """A leaf for a message or a repr: a number as itself, an array by its dtype and shape."""
    if isinstance(leaf, float) or (isinstance(leaf, (np.generic, np.ndarray, jax.Array)) and _plain(leaf)):
        return format(float(leaf), form)
    if isinstance(leaf, (np.generic, np.ndarray, jax.Array)):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return repr(leaf)[:80]


def _plain(leaf: Any) -> bool:
    """One concrete real number?"""
    real = any(jnp.issubdtype(leaf.dtype, kind) for kind in _REAL)
    return leaf.ndim == 0 and real and not isinstance(leaf, jax.core.Tracer)
