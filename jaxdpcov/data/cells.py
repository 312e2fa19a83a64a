"""Cells of a source: the kinds of columns and the public rule from one cell to one number.

Every rule works on one cell at a time, so that a row's numbers never depend on another row: rows can then be bounded
one by one. Decimal numbers are numbers, true and false are 1 and 0, and any other text is a missing cell.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

T = TypeVar("T")
#: One column of one batch: a NumPy array of numbers or objects, or a pyarrow Array.
Cells: TypeAlias = Any

#: Texts that stand for a missing cell wherever it matters whether a cell is missing or text.
MISSING_WORDS = (
    *("", "-", ".", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "<NA>", "NaT"),
    *("inf", "-inf", "+inf", "Inf", "-Inf", "Infinity", "-Infinity"),
)
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_NUMBER = r"^[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"


class DataError(ValueError):
    """The data cannot be read as a table of numbers; the one-line message names a column or a row, never a value."""


def attempt(call: Callable[[], T], complaint: str | Callable[[Exception], str]) -> T:
    """`call()`, or a DataError with our own message when a library's call fails.

    The library's exception may quote a row. Raising outside of the handler keeps it out of ours altogether:
    `raise ... from None` would hide it and still carry it along as `__context__`.
    """
    try:
        return call()
    except MemoryError:
        raise
    except Exception as error:  # whatever a reader raises on a broken file: ValueError, OSError, zlib.error, ...
        message = complaint if isinstance(complaint, str) else complaint(error)
    raise DataError(message)


class Kind(enum.Enum):
    """What the cells of a column are, from its declared type (CELLS: nothing is declared, each cell is read alone)."""

    NUMBER = "number"
    BOOLEAN = "boolean"
    TEXT = "text"
    CELLS = "cells"
    OTHER = "other"


class Column(NamedTuple):
    """A column of a source: its name, what its cells are and the type that a person reads."""

    name: str
    kind: Kind
    type: str


def is_text(cells: Cells) -> bool:
    """True when the cells are text or objects, which `texts` reads, rather than numbers."""
    if isinstance(cells, np.ndarray):
        return cells.dtype.kind in "OUS"
    import pyarrow as pa

    value_type = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
    return _is_text_type(value_type)


def _is_text_type(arrow_type: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    return any((kinds.is_string(arrow_type), kinds.is_large_string(arrow_type), kinds.is_string_view(arrow_type),
                kinds.is_binary(arrow_type), kinds.is_large_binary(arrow_type)))  # fmt: skip


def _text(value: Any) -> str:
    """One Python object as the text of a cell; what has no text is an empty cell."""
    try:
        if value is None or (isinstance(value, float) and value != value):
            return ""
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            return repr(int(value))  # one id or category whether it came as 1 or as 1.0
        return str(value).encode("utf-8", "replace").decode("utf-8")
    except Exception:  # an object that cannot print itself is no number and no category
        return ""


def texts(cells: Cells) -> Any:
    """Cells as trimmed text, a pyarrow large_string array without nulls: a null is an empty cell.

    Bytes that are no UTF-8 are let through: they match no number and no category.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "f":
            cells = pa.array(cells + 0.0, mask=np.isnan(cells))  # + 0.0: minus zero and zero are one id
        else:
            cells = pa.array([_text(value) for value in cells.tolist()] if cells.dtype.kind in "OUS" else cells)
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_floating(cells.type):
        cells = pc.add(cells.cast(pa.float64()), 0.0)
    if pa.types.is_binary(cells.type) or pa.types.is_large_binary(cells.type):
        cells = cells.cast(pa.large_binary()).view(pa.large_string())
    return pc.ascii_trim_whitespace(pc.fill_null(cells.cast(pa.large_string()), ""))


def text_numbers(trimmed: Any) -> np.ndarray:
    """Trimmed text cells as float64: a decimal number as such, true and false as 1 and 0, all else NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    matched = pc.match_substring_regex(trimmed, _NUMBER)
    candidates = pc.if_else(matched, trimmed, pa.scalar(None, pa.large_string()))
    try:
        numbers = candidates.cast(pa.float64())
    except pa.ArrowInvalid:  # older versions refuse a leading plus or an overflow; float() gives the same numbers
        numbers = pa.array([None if text is None else float(text) for text in candidates.to_pylist()], pa.float64())
    if not pc.all(matched).as_py():
        for words, number in ((TRUE, 1.0), (FALSE, 0.0)):
            found = pc.is_in(trimmed, value_set=pa.array(words, pa.large_string()))
            numbers = pc.if_else(found, number, numbers)
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


def numbers(cells: Cells) -> np.ndarray:
    """Cells as float64, missing ones NaN; declared numbers are rounded to the nearest float64, text is read by cell."""
    if is_text(cells):
        return text_numbers(texts(cells))
    if isinstance(cells, np.ndarray):
        return np.asarray(cells, dtype=np.float64)
    import pyarrow as pa

    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    return np.asarray(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def seen_kind(cells: Cells) -> str:
    """'number', 'boolean', 'text' or 'empty', by the cells of a first block: the best that any one of them is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = texts(cells)
    if pc.any(pc.match_substring_regex(trimmed, _NUMBER)).as_py():
        return "number"
    if pc.any(pc.is_in(trimmed, value_set=pa.array(TRUE + FALSE, pa.large_string()))).as_py():
        return "boolean"
    empty = pc.all(pc.is_in(trimmed, value_set=pa.array(MISSING_WORDS, pa.large_string()))).as_py()
    return "text" if empty is False else "empty"


def arrow_kind(arrow_type: Any) -> Kind:
    """The kind of a pyarrow type."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_dictionary(arrow_type):
        return arrow_kind(arrow_type.value_type)
    if kinds.is_boolean(arrow_type):
        return Kind.BOOLEAN
    if any((kinds.is_integer(arrow_type), kinds.is_floating(arrow_type), kinds.is_decimal(arrow_type),
            kinds.is_null(arrow_type))):  # fmt: skip
        return Kind.NUMBER
    return Kind.TEXT if _is_text_type(arrow_type) else Kind.OTHER
