"""Validation of public arguments: one clear line that names the argument, its value and what is allowed.

Public numbers raise where they are concrete. Where they are traced nothing can raise, so the code that
uses them fails closed (NaN result and a status); a check here lets tracers and JAX's sentinels pass.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_NUMBERS = (int, float, np.number, np.ndarray)


def is_traced(*trees: Any) -> bool:
    """True when any leaf of the trees is a tracer, so that its value cannot be looked at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(trees))


def concrete(name: str, value: Any) -> np.ndarray | None:
    """The value as a float array of the host, None where it is traced; TypeError where it is no number."""
    if isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, (*_NUMBERS, list, tuple, jax.Array)) and not isinstance(value, bool):
        try:
            return np.asarray(value, dtype=np.float64)
        except OverflowError:
            return np.asarray(np.inf)  # a whole number beyond the floats: every check for finiteness refuses it
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{name} must be a number, got {_show(value)}")


def positive(name: str, value: Any) -> None:
    """Raise unless `value` is a finite number above zero (or traced)."""
    seen = concrete(name, value)
    if seen is not None and not np.all(np.isfinite(seen) & (seen > 0)):
        raise ValueError(f"{name} must be finite and > 0, got {_show(value)}")


def between(name: str, value: Any, low: float, high: float, *, open_ends: bool = True) -> None:
    """Raise unless low < value < high (low <= value <= high when `open_ends` is False), or traced."""
    seen = concrete(name, value)
    if seen is None:
        return
    inside = (seen > low) & (seen < high) if open_ends else (seen >= low) & (seen <= high)
    if not np.all(inside):
        sign = "<" if open_ends else "<="
        raise ValueError(f"{name} must satisfy {low:g} {sign} {name} {sign} {high:g}, got {_show(value)}")


def finite(name: str, value: Any) -> None:
    """Raise unless every entry of `value` is finite (or traced)."""
    seen = concrete(name, value)
    if seen is not None and not np.all(np.isfinite(seen)):
        raise ValueError(f"{name} must be finite, got {_show(value)}")


def whole(name: str, value: Any, least: int = 1, most: float = np.inf) -> None:
    """Raise unless `value` is a whole number (no bool) with least <= value <= most."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {_show(value)}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}")


def hint(value: Any, allowed: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about an unknown name: the closest of those allowed, if one is close."""
    close = difflib.get_close_matches(str(value), list(allowed), n=1)
    return f"; did you mean {close[0]!r}?" if close else otherwise


def choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise unless `value` is one of `allowed`."""
    if not any(value is option or (type(value) is type(option) and value == option) for option in allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {_show(value)}")


def typed_key(key: Any) -> jax.Array:
    """`key` as one typed PRNG key; a legacy uint32 key is wrapped, anything else raises TypeError."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        typed = key
    elif isinstance(key, (jax.Array, np.ndarray)) and key.dtype == np.uint32:
        typed = jax.random.wrap_key_data(jnp.asarray(key))
    else:
        raise TypeError(f"key must be a JAX PRNG key such as jax.random.key(0), got {type(key).__name__}")
    if typed.shape != ():
        raise ValueError(f"key must be one key, got an array of keys of shape {typed.shape}; use jax.vmap over keys")
    return typed


def _show(value: Any) -> str:
    """A public value for a message: short, and an array by its shape where it is long."""
    text = repr(np.asarray(value).tolist()) if isinstance(value, (np.ndarray, jax.Array, np.number)) else repr(value)
    return text if len(text) <= 80 else f"{type(value).__name__} of shape {np.shape(value)}"
