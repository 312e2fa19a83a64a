"""Rows as they come in: checked arrays of one floating type, and blocks cut to one size."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_warned_float32 = False


def _warn_float32(dtype: Any) -> None:
    """Warn, once per process, where rows come in float64 and x64 is off."""
    global _warned_float32
    if dtype == np.float64 and not jax.config.read("jax_enable_x64") and not _warned_float32:
        _warned_float32 = True
        warnings.warn(
            "float64 rows become float32 because jax_enable_x64 is off, and so is the release; call "
            "jax.config.update('jax_enable_x64', True) for float64",
            stacklevel=5,
        )


def as_float_array(values: Any) -> jax.Array:
    """`values` as a floating array (n, d), n >= 1 and d >= 1; one warning per process where float64 is lost."""
    if not isinstance(values, jax.Array):
        values = np.asarray(values)
        if values.dtype.kind not in "fiub":
            raise TypeError(f"rows must be numbers, got an array of dtype {values.dtype}")
        _warn_float32(values.dtype)
    if np.ndim(values) != 2 or np.shape(values)[0] < 1 or np.shape(values)[1] < 1:
        raise ValueError(f"rows must have shape (n, d) with n >= 1 and d >= 1, got {np.shape(values)}")
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise TypeError(f"rows must be real numbers, got dtype {values.dtype}")
    dtype = jnp.zeros(()).dtype
    if jnp.issubdtype(values.dtype, jnp.floating) and values.dtype.itemsize <= 4:
        dtype = np.dtype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell that a row is huge
        return jnp.asarray(values, dtype)


def cut(
    blocks: Iterable[Any], *, d: int, dtype: Any, weighted: bool, block_rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of exactly `block_rows` rows and their weights (the last one shorter), whatever the source's own sizes."""
    held: list[tuple[np.ndarray, np.ndarray]] = []
    rows = 0
    for item in blocks:
        values, weights = item if weighted else (item, np.ones(len(item)))
        if values.ndim != 2 or values.shape[1] != d or weights.shape != (values.shape[0],):
            raise ValueError(
                f"a block must have shape (m, {d}) and its weights (m,), got {values.shape} and {weights.shape}"
            )
        if values.dtype.kind not in "fiub":
            raise TypeError(f"rows must be numbers, got a block of dtype {values.dtype}")
        _warn_float32(values.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell that a row is huge
            pair = (np.asarray(values, dtype), np.clip(np.nan_to_num(weights), 0, 1).astype(dtype))
        while len(pair[0]):
            room = block_rows - rows
            held.append((pair[0][:room], pair[1][:room]))
            rows += len(held[-1][0])
            pair = (pair[0][room:], pair[1][room:])
            if rows == block_rows:
                yield _join(held)
                held, rows = [], 0
    if held:
        yield _join(held)


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([values for values, _ in parts]), np.concatenate([weights for _, weights in parts])
