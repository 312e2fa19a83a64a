"""From a source of sensitive rows (a file, an array, a data frame) to a table that is read in blocks of numbers."""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from jaxdpcov import _checks
from jaxdpcov.data.cells import DataError, Kind, seen_kind
from jaxdpcov.data.columns import Layout, check_not_text, find, is_named, layout
from jaxdpcov.data.files import file_source
from jaxdpcov.data.persons import Shares, person_ids, share
from jaxdpcov.data.sources import Source, memory_source

#: Called after each piece that was read: how far the pass is, and up to what it counts (None when unknown).
Progress: TypeAlias = Callable[[int, int | None], None]
#: A block (m, d), or with persons such a block and the (m,) weights of its rows.
Block: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]

#: Rows and numbers of a block unless told otherwise: 32 MiB of float64 at most.
_BLOCK_ROWS, _BLOCK_NUMBERS = 1 << 16, 1 << 22


class Table:
    """Sensitive rows as blocks of float64, to be read as often as needed; made by `open_table`.

    Attributes:
        columns: names of the numbers in a row, indicators of categories included.
        d: their number.
        person, max_rows: the unit of privacy is all rows with one value of this column, of which at most so many are
            kept; None when it is a row.
        block_rows: most rows in a block.
        missing: the rule for missing numbers, see `open_table`.
    """

    def __init__(
        self,
        source: Source,
        chosen: Layout,
        *,
        shares: Shares | None,
        person: str | None,
        max_rows: int | None,
        block_rows: int | None,
        progress: Progress | None,
    ) -> None:
        self.columns, self.d = chosen.columns, len(chosen.columns)
        self.person, self.max_rows, self.missing = person, max_rows, "row"
        self._source, self._layout, self._shares = source, chosen, shares
        self._centers: np.ndarray | None = None
        self.block_rows = block_rows or max(1, min(_BLOCK_ROWS, _BLOCK_NUMBERS // self.d))
        self._progress = progress
        self._counted: list[int] = []  # shared with the tables made from this one

    def __repr__(self) -> str:
        unit = "row" if self.person is None else f"person by {self.person!r}"
        return f"Table of {self._source.label!r}: d={self.d}, unit={unit}, missing={self.missing!r}"

    @property
    def indicators(self) -> tuple[str, ...]:
        """Names of the columns that are 0/1 indicators of a category."""
        marks = self._layout.indicators
        return tuple(self.columns[mark.start + i] for mark in marks for i in range(len(mark.categories)))

    @property
    def weighted(self) -> bool:
        """True when blocks come with weights."""
        return self._shares is not None

    @property
    def n(self) -> int | None:
        """Number of rows, or of persons where the unit is a person; None for a text file before its first pass."""
        if self._shares is not None:
            return self._shares.persons
        return self._source.n if self._source.n is not None else next(iter(self._counted), None)

    def with_missing(self, missing: str, centers: Mapping[str, float] | Any = None) -> "Table":
        """The same table under another rule for missing numbers, see `open_table`."""
        _checks.choice("missing", missing, ("row", "cell", "error"))
        if (missing == "cell") != (centers is not None):
            raise ValueError("centers, one public number for each column, go with missing='cell' and with nothing else")
        made = object.__new__(Table)
        made.__dict__.update(self.__dict__)
        made.missing = missing
        made._centers = None if centers is None else self._checked_centers(centers)
        return made

    def _checked_centers(self, centers: Any) -> np.ndarray:
        if isinstance(centers, Mapping):
            for name in self.columns:
                if name not in centers:
                    raise ValueError(f"centers has no entry for column {name!r}")
            for name in centers:
                if name not in self.columns:
                    raise ValueError(f"centers has an entry for {name!r}, which is none of the columns")
            centers = [centers[name] for name in self.columns]
        _checks.finite("centers", centers)
        values = np.asarray(centers, dtype=np.float64)
        if values.shape not in ((), (self.d,)):
            raise ValueError(f"centers must be one number for each of the {self.d} columns, got shape {values.shape}")
        return np.broadcast_to(values, (self.d,))

    def blocks(self) -> Iterator[Block]:
        """A fresh pass over the rows, in order, in float64 blocks (m, d) of at most `block_rows` rows.

        Every block but the last is full. Missing numbers are NaN (the column's center under missing='cell'). With
        persons it yields pairs (values, weights) of the kept rows only.

        Raises:
            DataError: the file has changed, is broken at some row, or misses a number under missing='error'.
        """
        pending = _Pending(self.block_rows, self.d)
        for values, weights in self._pieces():
            for block in pending.add(values, weights):
                yield block if self.weighted else block[0]
        for block in pending.rest():
            yield block if self.weighted else block[0]

    def read(self) -> tuple[np.ndarray, np.ndarray | None]:
        """All values (rows, d) at once and, with persons, their weights (rows,)."""
        pieces = list(self._pieces())
        values = np.concatenate([piece for piece, _ in pieces])
        return values, np.concatenate([weights for _, weights in pieces]) if self.weighted else None

    def _pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Values and weights of the kept rows, as the source hands them out, checked and filled."""
        first = 0
        for batch in self._source.batches(self._layout.names, self.block_rows):
            for start in range(0, batch.rows, self.block_rows):  # indicators may be far wider than what is read
                stop = min(start + self.block_rows, batch.rows)
                cells = batch.cells
                if stop - start < batch.rows:
                    whole = isinstance(cells, np.ndarray)
                    cells = cells[start:stop] if whole else [column[start:stop] for column in cells]
                values = self._layout.encode(cells, stop - start)
                self._treat_missing(values, first)
                weights = np.ones(len(values)) if self._shares is None else self._shares.weights[first:][: len(values)]
                first += len(values)
                if self._shares is not None:
                    self._check_count(first, at_end=False)
                    values, weights = values[weights > 0], weights[weights > 0]
                yield values, weights
            if self._progress is not None:
                self._progress(batch.done, self._source.total)
        self._check_count(first, at_end=True)

    def _treat_missing(self, values: np.ndarray, first: int) -> None:
        if self._centers is not None:
            np.copyto(values, self._centers[None, :], where=np.isnan(values))
        elif self.missing == "error" and np.isnan(values).any():
            row, column = (int(place) for place in np.argwhere(np.isnan(values))[0])
            raise DataError(
                f"column {self.columns[column]!r} of {self._source.label} has no number in "
                f"{self._source.place(first + row)}; missing='row' or 'cell' would allow it"
            )

    def _check_count(self, rows: int, *, at_end: bool) -> None:
        """Each pass must see the same rows: the source may have been changed under us."""
        expected = self._source.n if self._shares is None else len(self._shares.weights)
        expected = expected if expected is not None else next(iter(self._counted), None)
        if expected is not None and (rows > expected or (at_end and rows != expected)):
            raise DataError(f"{self._source.label} has another number of rows than before; it must stay as it is")
        if at_end and rows == 0:
            raise DataError(f"{self._source.label} has no rows")
        if at_end and not self._counted:
            self._counted.append(rows)


class _Pending:
    """Pieces of any length put together to blocks of one length."""

    def __init__(self, rows: int, d: int) -> None:
        self._rows, self._d, self._filled = rows, d, 0
        self._values, self._weights = np.empty((0, d)), np.empty(0)

    def add(self, values: np.ndarray, weights: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while len(values):
            if self._filled == 0 and len(values) == self._rows:
                yield values, weights
                return
            if self._filled == 0:  # a fresh one each time: the last belongs to whoever took it
                self._values, self._weights = np.empty((self._rows, self._d)), np.empty(self._rows)
            taken = min(len(values), self._rows - self._filled)
            stop = self._filled + taken
            self._values[self._filled : stop], self._weights[self._filled : stop] = values[:taken], weights[:taken]
            values, weights, self._filled = values[taken:], weights[taken:], stop
            if stop == self._rows:
                yield from self.rest()

    def rest(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self._filled:
            filled, self._filled = self._filled, 0
            yield self._values[:filled], self._weights[:filled]


def _source(data: Any, delimiter: str | None) -> Source:
    if isinstance(data, (str, os.PathLike)):
        return file_source(data, delimiter)
    if delimiter is not None:
        raise ValueError("delimiter is for CSV files")
    return memory_source(data)


def open_table(
    data: Any,
    *,
    columns: Sequence[str] | None = None,
    categories: Mapping[str, Sequence[Any]] | None = None,
    person: str | None = None,
    max_rows: int | None = None,
    selection_key: bytes | None = None,
    missing: str = "row",
    centers: Mapping[str, float] | Any = None,
    delimiter: str | None = None,
    block_rows: int | None = None,
    progress: Progress | None = None,
) -> Table:
    """Open a source of sensitive rows as a `Table` that can be read again and again in blocks.

    **Formal guarantee**: reading is row by row. A row's numbers depend on its own cells and on public arguments; with
    `person`, a row's weight depends on its person's own rows and the selection key only. Choosing columns, categories
    and centers by looking at the sensitive rows is outside of any guarantee. A reader may refuse what is no table of
    numbers: such errors depend on the data, are meant for the holder of the file, and name columns and rows, never a
    value.

    Cells: numbers are rounded to float64; true and false are 1 and 0; text cells (CSV, and columns of text or objects
    in pandas and NumPy) count as the number that they spell, in decimal form with surrounding spaces allowed, and any
    other text is missing, infinities and thousands separators included. A column of text is refused: by its type where
    the source declares types (Parquet, Arrow, polars), else when no cell of the first block is a number and some cell
    is text.

    Args:
        data: path of a CSV, Parquet, npy or npz file (the array X or the only one; an array `columns` names its
            columns), a 2-d array, a pandas or polars DataFrame, a pyarrow Table or Dataset. A CSV file has a header
            line and is UTF-8. Columns of an array are called x0, x1, ...
        columns: names of the columns to use, in this order; all but the person's (and columns without a name, or
            pandas' own row labels) unless given.
        categories: public lists of categories, {"sex": ["F", "M"]}: the column becomes 0/1 columns "sex=F", "sex=M".
            Texts are compared as texts, numbers as numbers. A cell that is missing or not in the list is zero in all
            of them; list "" to give missing cells a column of their own.
        person: column that says whose row it is; rows with one value are one unit of privacy and share weight one.
            Rows without a value are left out. Ids are compared as texts, surrounding spaces aside.
        max_rows: rows kept of each person, by a keyed hash; all of them unless given.
        selection_key: at least 16 bytes that key the hash; operating-system entropy unless given.
        missing: "row" leaves NaN, for the mechanism to move the whole row to the center of its bounds; "cell" puts the
            column's entry of `centers`; "error" raises DataError on the first missing number (a look at the data
            without privacy). A cell of a column with categories is never missing.
        centers: public numbers for missing="cell", one for each resulting column, in order or by name.
        delimiter: of a CSV file; a tab in .tsv files, else what the header line shows (comma first).
        block_rows: most rows in a block; by default 65536, or fewer if a block would exceed 32 MiB.
        progress: called as progress(done, total) during each pass, in rows, in bytes for CSV. Where n is private show
            only the fraction.

    Returns:
        The table. With `person` the ids have been read once, in a first pass.

    Raises:
        DataError: the source is no table of numbers, has no such column, or has no rows.
        ValueError, TypeError: an argument is out of range or of the wrong type.

    Edge cases: a file that changes between passes is refused; a table in memory must be left alone by the caller.

    >>> import numpy as np
    >>> table = open_table(np.array([[1.0, 20.0], [np.inf, 30.0]]), columns=["x1", "x0"])
    >>> table.columns, table.n
    (('x1', 'x0'), 2)
    >>> next(table.blocks()).tolist()
    [[20.0, 1.0], [30.0, nan]]
    """
    for name, value in (("max_rows", max_rows), ("block_rows", block_rows)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1):
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    if max_rows is not None and person is None:
        raise ValueError("max_rows limits the rows of each person: give person=COLUMN as well")
    if selection_key is not None and (not isinstance(selection_key, bytes) or len(selection_key) < 16):
        raise ValueError("selection_key must be at least 16 bytes")  # without its value: it is a secret
    source = _source(data, delimiter)
    label, schema = source.label, source.schema
    if person is not None:
        holder = find(label, schema, person, "person")
        if holder.kind is Kind.OTHER:
            raise DataError(f"the person column {holder.name!r} of {label} is of type {holder.type}, which is no id")
        person = holder.name
    chosen = layout(label, schema, columns, categories, person)
    batch = next(source.batches(chosen.names, _BLOCK_ROWS), None)
    if batch is None:
        raise DataError(f"{label} has no rows")
    check_not_text(label, chosen, batch.cells)
    shares = None
    if person is not None:
        shares = share(_ids(source, person, progress), max_rows, selection_key or secrets.token_bytes(32))
        if shares.persons == 0:
            raise DataError(f"no row of {label} has an id in the person column {person!r}")
    made = Table(source, chosen, shares=shares, person=person, max_rows=max_rows, block_rows=block_rows,
                 progress=progress)  # fmt: skip
    return made.with_missing(missing, centers)


def _ids(source: Source, person: str, progress: Progress | None) -> Iterator[Any]:
    for batch in source.id_batches(person, _BLOCK_ROWS):
        cells = batch.cells
        yield person_ids(cells[:, 0] if isinstance(cells, np.ndarray) else cells[0])
        if progress is not None:
            progress(batch.done, source.total)


def describe_columns(data: Any, *, delimiter: str | None = None) -> list[tuple[str, str]]:
    """Names and types of the columns of a source, for the holder of the data: never a value.

    The type is 'number', 'boolean' or 'text', or the source's own name for a type that cannot be used. It is the
    declared one where the source declares types; for CSV, and for columns of text or objects in pandas and NumPy, it
    is read from the first block ('empty' when all its cells are missing). Columns without a name, and pandas' own row
    labels, are left out.

    >>> import numpy as np
    >>> describe_columns(np.zeros((3, 2)))
    [('x0', 'number'), ('x1', 'number')]
    """
    source = _source(data, delimiter)
    named = [column for column in source.schema if is_named(column.name)]
    undeclared = [column.name for column in named if column.kind is Kind.CELLS]
    seen: dict[str, str] = {}
    if undeclared:
        batch = next(source.batches(undeclared, _BLOCK_ROWS), None)
        if batch is not None:
            seen = {name: seen_kind(batch.cells[place]) for place, name in enumerate(undeclared)}
    types = {Kind.CELLS: "empty", Kind.NUMBER: "number", Kind.BOOLEAN: "boolean", Kind.TEXT: "text"}
    return [(c.name, seen.get(c.name) or types.get(c.kind, c.type)) for c in named]
