"""Tables in memory as sources of blocks: NumPy arrays, pandas and polars data frames, pyarrow tables and data sets."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdpcov.data.cells import Cells, Column, DataError, Kind, arrow_kind, attempt
from jaxdpcov.data.columns import checked_schema


class Batch(NamedTuple):
    """Some consecutive rows: their cells by column (or one 2-d array), how many, and how far the reading has come."""

    cells: Sequence[Cells] | np.ndarray
    rows: int
    done: int


class Source:
    """A table that can be read again and again, in order, some rows at a time."""

    #: How messages call it.
    label: str
    schema: tuple[Column, ...]
    #: Number of rows, None when it takes a pass to know.
    n: int | None
    #: What `Batch.done` counts up to (rows, or bytes of a text file), None when unknown.
    total: int | None

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """The named columns in order; at most about `rows` rows at a time where the source lets one choose."""
        raise NotImplementedError

    def id_batches(self, name: str, rows: int) -> Iterator[Batch]:
        """One column, for `texts` to read: long whole numbers must not go through float64, two ids would become one."""
        return self.batches([name], rows)

    def check_unchanged(self) -> None:
        """DataError when the source is a file that has changed since it was opened."""

    def place(self, row: int) -> str:
        """What a message calls the row with this index, 0 being the first one."""
        return f"row {row + 1}"


def guarded(make: Callable[[], Iterator[Any]], complaint: str | Callable[[Exception], str]) -> Iterator[Any]:
    """The items of a library's iterator; an exception of the library becomes a DataError with our own message."""
    iterator = attempt(lambda: iter(make()), complaint)
    end = object()
    while (item := attempt(lambda: next(iterator, end), complaint)) is not end:
        yield item


class ArraySource(Source):
    """A 2-d NumPy array, or whatever NumPy can see as one; `reopen` gives it anew for each block where it is a file."""

    def __init__(
        self, array: Any, *, label: str = "the array", names: Sequence[str] | None = None, reopen: Any = None
    ) -> None:
        if isinstance(array, np.ma.MaskedArray):
            absent: Any = np.nan if array.dtype.kind in "biuf" else None
            array = np.where(np.ma.getmaskarray(array), absent, array.data)
        array = attempt(
            lambda: np.asarray(array), f"{label} cannot be seen as a NumPy array of one row for each record"
        )
        if array.ndim != 2:
            hint = "; a single column is x.reshape(-1, 1)" if array.ndim == 1 else ""
            raise DataError(f"{label} must be 2-d, one row for each record, got shape {array.shape}{hint}")
        kinds = {"b": Kind.BOOLEAN, "i": Kind.NUMBER, "u": Kind.NUMBER, "f": Kind.NUMBER}
        kind = kinds.get(array.dtype.kind, Kind.CELLS if array.dtype.kind in "OUS" else None)
        if kind is None:
            raise DataError(f"{label} must hold numbers, got dtype {array.dtype}")
        if names is None:
            names = [f"x{index}" for index in range(array.shape[1])]
        elif len(names) != array.shape[1]:
            raise DataError(f"{label} has {array.shape[1]} columns and {len(names)} column names")
        self.label = label
        self.schema = checked_schema(label, [Column(str(name), kind, str(array.dtype)) for name in names])
        self.n = self.total = array.shape[0]
        self._shape, self._kind = array.shape, kind
        self._open: Callable[[], Any] = (lambda: array) if reopen is None else reopen

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`."""
        places = {column.name: index for index, column in enumerate(self.schema)}
        wanted = [places[name] for name in names]
        everything = wanted == list(range(self._shape[1]))
        for start in range(0, self._shape[0], rows):
            piece = self._open()[start : start + rows]
            piece = piece if everything else piece[:, wanted]
            yield Batch(list(piece.T) if self._kind is Kind.CELLS else piece, len(piece), start + len(piece))


class PandasSource(Source):
    """A pandas data frame. Columns of text or objects are read cell by cell: pandas makes them of any mixture."""

    def __init__(self, frame: Any) -> None:
        self.label = "the data frame"
        self._frame = frame
        dtypes = list(frame.dtypes)
        columns = [Column(str(name), *_pandas_kind(dtype)) for name, dtype in zip(frame.columns, dtypes)]
        self.schema = checked_schema(self.label, columns)
        self.n = self.total = len(frame)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`."""
        return self._batches(names, rows, _pandas_cells)

    def id_batches(self, name: str, rows: int) -> Iterator[Batch]:
        """See `Source`."""
        return self._batches([name], rows, _pandas_objects)

    def _batches(self, names: Sequence[str], rows: int, read: Callable[[Any, Column], np.ndarray]) -> Iterator[Batch]:
        places = {column.name: index for index, column in enumerate(self.schema)}
        for start in range(0, len(self._frame), rows):
            piece = self._frame.iloc[start : start + rows]
            cells = [read(piece.iloc[:, places[name]], self.schema[places[name]]) for name in names]
            yield Batch(cells, len(piece), start + len(piece))


def _pandas_kind(dtype: Any) -> tuple[Kind, str]:
    import pandas as pd

    types, name = pd.api.types, str(dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        inner = dtype.categories.dtype
        return (Kind.NUMBER if types.is_numeric_dtype(inner) else Kind.CELLS), "category"
    if types.is_bool_dtype(dtype):
        return Kind.BOOLEAN, name
    if types.is_complex_dtype(dtype):
        return Kind.OTHER, name
    if types.is_numeric_dtype(dtype):
        return Kind.NUMBER, name
    if types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
        return Kind.CELLS, name
    arrow_type = getattr(dtype, "pyarrow_dtype", None)
    return (Kind.OTHER if arrow_type is None else arrow_kind(arrow_type)), name


def _pandas_cells(series: Any, column: Column) -> np.ndarray:
    if column.kind not in (Kind.NUMBER, Kind.BOOLEAN):
        return _pandas_objects(series, column)

    def floats() -> np.ndarray:
        values = series.astype("float64") if column.type == "category" else series
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))

    return attempt(floats, f"column {column.name!r} of the data frame cannot be read as numbers")


def _pandas_objects(series: Any, column: Column) -> np.ndarray:
    def objects() -> np.ndarray:
        cells = np.array(series.astype(object), dtype=object)
        cells[np.asarray(series.isna(), dtype=bool)] = None
        return cells

    return attempt(objects, f"column {column.name!r} of the data frame cannot be read cell by cell")


class ArrowSource(Source):
    """A pyarrow Table, RecordBatch or Dataset."""

    def __init__(self, table: Any) -> None:
        import pyarrow as pa

        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        self.label = "the table" if isinstance(table, pa.Table) else "the data set"
        self._table = table
        self.schema = arrow_schema(self.label, table.schema)
        self.n = self.total = table.num_rows if isinstance(table, pa.Table) else None

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        raw = raw_names(self._table.schema, names)

        def make() -> Iterator[Any]:
            if isinstance(self._table, pa.Table):
                yield from self._table.select(raw).to_batches(max_chunksize=rows)
                return
            options = {}
            if getattr(getattr(self._table, "format", None), "default_extname", "") == "parquet":
                options["fragment_scan_options"] = ds.ParquetFragmentScanOptions(
                    pre_buffer=False, use_buffered_stream=True, buffer_size=1 << 20
                )
            yield from self._table.scanner(
                columns=raw, batch_size=rows, batch_readahead=1, fragment_readahead=1, **options
            ).to_batches()

        yield from arrow_batches(guarded(make, f"{self.label} cannot be read"), raw)


class PolarsSource(Source):
    """A polars data frame, handed over to pyarrow some rows at a time."""

    def __init__(self, frame: Any) -> None:
        self.label = "the data frame"
        self._frame = frame
        columns = []
        for name, dtype in frame.schema.items():  # column by column: one odd type must not hide the others
            try:
                arrow_type = frame.select(name).clear().to_arrow().schema.field(0).type
                columns.append(Column(name, arrow_kind(arrow_type), str(dtype)))
            except Exception:  # polars panics on what Arrow has no type for
                columns.append(Column(name, Kind.OTHER, str(dtype)))
        self.schema = checked_schema(self.label, columns)
        self.n = self.total = frame.height

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`."""
        places = {column.name: index for index, column in enumerate(self.schema)}
        raw = [self._frame.columns[places[name]] for name in names]

        def make() -> Iterator[Any]:
            for start in range(0, self._frame.height, rows):
                yield self._frame.slice(start, rows).select(raw).to_arrow().combine_chunks().to_batches()[0]

        yield from arrow_batches(guarded(make, f"{self.label} cannot be read"), raw)


def arrow_schema(label: str, schema: Any) -> tuple[Column, ...]:
    """The columns of a pyarrow schema."""
    return checked_schema(label, [Column(field.name, arrow_kind(field.type), str(field.type)) for field in schema])


def raw_names(schema: Any, names: Sequence[str]) -> list[str]:
    """Names as the pyarrow schema writes them, surrounding spaces included."""
    written = {name.strip(): name for name in schema.names}
    return [written[name] for name in names]


def arrow_batches(batches: Iterator[Any], raw: Sequence[str]) -> Iterator[Batch]:
    """Record batches as `Batch`, columns picked by name, `done` counted in rows."""
    done = 0
    for batch in batches:
        done += batch.num_rows
        if batch.num_rows:
            cells = [batch.column(batch.schema.get_field_index(name)) for name in raw]
            yield Batch(cells, batch.num_rows, done)


def memory_source(data: Any) -> Source:
    """The source for a table in memory; TypeError, with what is accepted, for anything else."""
    root = type(data).__module__.partition(".")[0]
    if root == "pandas" and type(data).__name__ != "Series" and hasattr(data, "iloc"):
        return PandasSource(data)
    if root == "polars" and type(data).__name__ == "DataFrame":
        return PolarsSource(data)
    if root == "pyarrow" and type(data).__name__ != "RecordBatchReader" and hasattr(data, "schema"):
        return ArrowSource(data)
    if isinstance(data, (list, tuple, np.ndarray)) or (hasattr(data, "__array__") and root not in ("pandas", "polars")):
        return ArraySource(data)
    hints = {
        "LazyFrame": "; collect() it first",
        "RecordBatchReader": "; it can be read only once: read_all() it first",
        "Series": "; make it a frame of one column with to_frame()",
    }
    raise TypeError(
        "data must be a path to a CSV, Parquet, npy or npz file, a NumPy array, a pandas or polars DataFrame, or a "
        f"pyarrow Table or Dataset; got {root}.{type(data).__name__}{hints.get(type(data).__name__, '')}"
    )
