"""Columns of a source: which are read, chosen by name, and which numbers they become (categories as indicators)."""

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdpcov.data.cells import (
    FALSE,
    TRUE,
    Cells,
    Column,
    DataError,
    Kind,
    is_text,
    numbers,
    seen_kind,
    text_numbers,
    texts,
)


def checked_schema(label: str, schema: Iterable[Column]) -> tuple[Column, ...]:
    """The columns with names stripped of surrounding spaces; DataError when two (with a name) are called the same."""
    columns = tuple(column._replace(name=column.name.strip()) for column in schema)
    seen: set[str] = set()
    for column in columns:
        if column.name and column.name in seen:
            raise DataError(f"{label} has more than one column named {column.name!r}; rename one of them")
        seen.add(column.name)
    if not columns:
        raise DataError(f"{label} has no columns")
    return columns


@dataclass(frozen=True)
class Indicators:
    """One column that becomes 0/1 columns, one for each public category."""

    position: int
    start: int
    categories: tuple[Any, ...]

    def write(self, cells: Cells, out: np.ndarray) -> None:
        """Set the indicators of each cell; a cell that is missing or outside of the list sets none."""
        import pyarrow.compute as pc

        text = texts(cells) if is_text(cells) else None
        values = numbers(cells) if text is None else None
        for offset, category in enumerate(self.categories):
            if text is not None and isinstance(category, str):
                hit = pc.equal(text, category.strip()).to_numpy(zero_copy_only=False)
            else:
                values = text_numbers(text) if values is None else values
                number = _category_number(category)
                hit = np.isnan(values) if math.isnan(number) else values == number
            out[:, self.start + offset] = hit


@dataclass(frozen=True)
class Layout:
    """Which columns are read, in which order, and which numbers they become."""

    read: tuple[Column, ...]
    columns: tuple[str, ...]
    plain: tuple[tuple[int, int], ...]
    indicators: tuple[Indicators, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns to read."""
        return tuple(column.name for column in self.read)

    def encode(self, cells: Sequence[Cells] | np.ndarray, rows: int) -> np.ndarray:
        """A fresh float64 array (rows, d) of the cells, given by column or as one 2-d array; what is missing is NaN."""
        out = np.empty((rows, len(self.columns)), dtype=np.float64)
        if isinstance(cells, np.ndarray):
            if not self.indicators:
                # A long double beyond float64 is infinite, so missing; a warning would tell that it is there.
                with np.errstate(over="ignore", invalid="ignore"):
                    out[...] = cells
            else:
                cells = list(cells.T)
        if not isinstance(cells, np.ndarray):
            self._encode_columns(cells, out)
        np.copyto(out, np.nan, where=~np.isfinite(out))
        return out

    def _encode_columns(self, cells: Sequence[Cells], out: np.ndarray) -> None:
        if self.plain and self.read[0].kind is Kind.CELLS and not isinstance(cells[0], np.ndarray):
            # a CSV file: all columns at once, for a call on each is what costs where there are thousands
            import pyarrow as pa

            joined = pa.concat_arrays([cells[position] for position, _ in self.plain])
            out[:, [target for _, target in self.plain]] = numbers(joined).reshape(len(self.plain), len(out)).T
        else:
            for position, target in self.plain:
                out[:, target] = numbers(cells[position])
        for indicators in self.indicators:
            indicators.write(cells[indicators.position], out)


def find(label: str, schema: Sequence[Column], name: Any, argument: str) -> Column:
    """The column called `name`; DataError with the closest names when there is none."""
    if not isinstance(name, str):
        raise TypeError(f"{argument} takes column names, which are text; got {name!r}")
    found = [column for column in schema if column.name == name.strip()]
    if len(found) == 1:
        return found[0]
    names = [column.name for column in schema if column.name]
    if not name.strip():
        raise DataError(f"{argument} asks for a column without a name, and {label} has {len(found)} of them")
    close = difflib.get_close_matches(name.strip(), names, n=3, cutoff=0.5)
    if not close:
        close = [other for other in names if other.lower() == name.strip().lower()]
    shown = close or names[:8]
    more = "" if close or len(names) <= 8 else f", ... ({len(names)} in all)"
    lead = "close to it" if close else "its columns"
    raise DataError(f"{label} has no column {name!r} ({argument}); {lead}: {', '.join(map(repr, shown))}{more}")


def layout(
    label: str,
    schema: Sequence[Column],
    columns: Sequence[str] | None,
    categories: Mapping[str, Sequence[Any]] | None,
    person: str | None,
) -> Layout:
    """Choose the columns by name, check that each is numbers, and lay out what they become."""
    if isinstance(columns, str) or (columns is not None and not isinstance(columns, Iterable)):
        raise TypeError(f"columns must be a list of column names, got {columns!r}")
    if categories is not None and not isinstance(categories, Mapping):
        raise TypeError(f"categories must map column names to lists of categories, got {type(categories).__name__}")
    listed: dict[str, tuple[Any, ...]] = {}
    for name, values in (categories or {}).items():
        column = find(label, schema, name, "categories")
        listed[column.name] = _checked_categories(label, column, values)
    if columns is None:
        chosen = [column for column in schema if column.name != person and is_named(column.name)]
        chosen += [find(label, schema, name, "categories") for name in listed if not is_named(name)]
    else:
        chosen = [find(label, schema, name, "columns") for name in columns]
    if not chosen:
        raise DataError(f"no column of {label} is left to estimate from; name some with columns=")
    names = [column.name for column in chosen]
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"columns names {name!r} more than once")
    if person is not None and person in names:
        raise ValueError(f"the person column {person!r} says whose row it is and cannot be among the columns")
    for name in listed:
        if name not in names:
            raise ValueError(f"categories are given for column {name!r}, which is not among the chosen columns")

    made: list[str] = []
    plain: list[tuple[int, int]] = []
    indicators: list[Indicators] = []
    for position, column in enumerate(chosen):
        if column.name in listed:
            indicators.append(Indicators(position, len(made), listed[column.name]))
            made += [f"{column.name}={value}" for value in listed[column.name]]
        else:
            _check_numeric(label, column)
            plain.append((position, len(made)))
            made.append(column.name)
    for name, count in Counter(made).items():
        if count > 1:
            raise ValueError(f"two of the resulting columns would be named {name!r}; rename a column or a category")
    return Layout(tuple(chosen), tuple(made), tuple(plain), tuple(indicators))


def check_not_text(label: str, layout: Layout, cells: Sequence[Cells] | np.ndarray) -> None:
    """DataError for a plain column without a declared type of which no cell of the first block is a number."""
    for position, _ in layout.plain:
        column = layout.read[position]
        if column.kind is Kind.CELLS and seen_kind(cells[position]) == "text":
            raise DataError(text_message(label, column.name))


def text_message(label: str, name: str) -> str:
    """What to tell a person whose column is text."""
    return (f"column {name!r} of {label} is text, not numbers; "
            f"declare its categories with categories={{{name!r}: [...]}} or leave it out with columns=")  # fmt: skip


def is_named(name: str) -> bool:
    """False for columns that hold no variable: pandas writes its row labels without a name or under such a one."""
    return bool(name) and not (name.startswith("__index_level_") and name.endswith("__"))


def _check_numeric(label: str, column: Column) -> None:
    if column.kind is Kind.TEXT:
        raise DataError(text_message(label, column.name))
    if column.kind is Kind.OTHER:
        raise DataError(
            f"column {column.name!r} of {label} is of type {column.type}, which is no number; "
            "turn it into a number or leave it out with columns="
        )


def _checked_categories(label: str, column: Column, values: Any) -> tuple[Any, ...]:
    name = column.name
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"categories of column {name!r} must be a list, got {values!r}")
    if column.kind is Kind.OTHER:
        raise DataError(f"column {name!r} of {label} is of type {column.type}, which cannot take categories")
    listed = tuple(values)
    if not listed:
        raise ValueError(f"categories of column {name!r} must not be empty")
    for value in listed:
        if not isinstance(value, (str, bool, int, float, np.number, np.bool_)):
            raise TypeError(f"categories of column {name!r} must be texts or numbers, got {value!r}")
        if column.kind in (Kind.NUMBER, Kind.BOOLEAN) or not isinstance(value, str):
            try:
                _category_number(value)
            except ValueError:
                raise ValueError(f"categories of column {name!r} must be finite numbers, got {value!r}") from None
    keys = [value.strip() if isinstance(value, str) else float(value) for value in listed]
    if len(set(keys)) < len(keys):
        raise ValueError(f"categories of column {name!r} must be different from each other")
    return listed


def _category_number(value: Any) -> float:
    """A category as the number that its cells hold; the empty text, NaN, is the category of missing cells."""
    if isinstance(value, str):
        text = value.strip()
        if not text:
            return math.nan
        if text in TRUE or text in FALSE:
            return float(text in TRUE)
        value = text
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number
