"""Files as sources of blocks: CSV, Parquet, npy and npz, read by pyarrow and NumPy some rows at a time."""

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdpcov.data.cells import Column, DataError, Kind, attempt, text_numbers
from jaxdpcov.data.columns import checked_schema
from jaxdpcov.data.sources import ArraySource, Batch, Source, arrow_batches, arrow_schema, guarded, raw_names

#: Bytes of text that are parsed at once, more where there are many columns; no row of a CSV file may be longer.
#: pyarrow reads up to 32 of them ahead.
_CSV_BLOCK, _CSV_BLOCK_PER_COLUMN, _CSV_BLOCK_MOST = 1 << 20, 1 << 10, 8 << 20
#: Bytes of read buffers over all columns of a Parquet file.
_PARQUET_BUFFERS = 32 << 20


def file_source(path: str | os.PathLike[str], delimiter: str | None = None) -> Source:
    """The source for a path, by the ending of its name."""
    place = Path(path).expanduser()
    if place.is_dir():
        raise DataError(f"{place} is a directory; several files are read as pyarrow.dataset.dataset({str(place)!r})")
    stamp = _stamp(place)
    if stamp[0] == 0:
        raise DataError(f"{place} is empty")
    attempt(lambda: open(place, "rb").close(), f"{place} cannot be opened; check its permissions")
    endings = [ending.lower() for ending in place.suffixes[-2:]]
    packed = endings[-1:] in (["." + "gz"], [".bz2"], [".zst"])
    ending = endings[-2] if packed and len(endings) == 2 else endings[-1] if endings else ""
    if delimiter is not None and ending not in (".csv", ".tsv", ".tab", ".txt"):
        raise ValueError(f"delimiter is for CSV files, and {place} is none")
    if ending in (".csv", ".tsv", ".tab", ".txt"):
        return CsvFile(place, stamp, delimiter, packed)
    if ending in (".parquet", ".pq") and not packed:
        return ParquetFile(place, stamp)
    if ending == ".npy" and not packed:
        return NpyFile(place, stamp)
    if ending == ".npz" and not packed:
        return _npz(place)
    raise DataError(f"{place} must end in .csv, .tsv, .txt (perhaps with .gz), .parquet, .pq, .npy or .npz")


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of the last change."""
    if not path.exists():
        raise DataError(f"there is no file {path}")
    seen = attempt(path.stat, f"{path} cannot be opened; check its permissions")
    return seen.st_size, seen.st_mtime_ns


def check_stamp(path: Path, stamp: tuple[int, int]) -> None:
    """DataError when the file is no longer the one that was opened."""
    if not path.exists() or _stamp(path) != stamp:
        raise DataError(f"{path} changed while it was being read; start again on a file that stays as it is")


def _pyarrow(label: str) -> Any:
    try:
        import pyarrow

        return pyarrow
    except ImportError:
        raise ImportError(f"reading {label} needs pyarrow: pip install 'jaxdpcov[cli]'") from None


class CsvFile(Source):
    """A CSV file with a header line. Cells are read as text and turned into numbers one by one.

    No type is guessed from a first block, so that no later block can fail on a cell. Quoted fields may hold the
    delimiter, line ends and doubled quotes. Blank lines are skipped, save in a file of one column, where a blank line
    is a missing cell.
    """

    def __init__(self, path: Path, stamp: tuple[int, int], delimiter: str | None, packed: bool) -> None:
        _pyarrow("CSV files")
        if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii()
                                      or delimiter in '"\r\n'):  # fmt: skip
            raise ValueError(f"delimiter must be one character, got {delimiter!r}")
        self.label, self._path, self._stamp, self._packed = str(path), path, stamp, packed
        self._delimiter = delimiter or ("\t" if ".tsv" in path.suffixes or ".tab" in path.suffixes else ",")
        header = self._header(delimiter)
        self._single = len(header) == 1
        self._block = min(_CSV_BLOCK_MOST, max(_CSV_BLOCK, _CSV_BLOCK_PER_COLUMN * len(header)))
        self._raw = {name.strip(): name for name in header}
        self._last = header[-1] if header.count(header[-1]) == 1 else None
        _check_header(self.label, header)
        self.schema = checked_schema(self.label, [Column(name, Kind.CELLS, "text cells") for name in header])
        self.n, self.total = None, None if packed else stamp[0]

    def _header(self, delimiter: str | None) -> list[str]:
        """The names in the first line that is not blank; sets the delimiter, by that line unless it is given."""

        def start() -> bytes:
            with self._stream() as file:
                return bytes(file.read(_CSV_BLOCK))

        head = attempt(start, f"{self.label} cannot be read")

        def first_row() -> tuple[list[str], bool]:
            # by the standard library: pyarrow would convert a whole block to tell the names
            text = io.TextIOWrapper(io.BytesIO(head), "utf-8-sig", errors="surrogateescape", newline="")
            names = next(filter(None, csv.reader(text, delimiter=self._delimiter)), [])
            return names, not text.read().strip()

        complaint = f"{self.label} has no header line that can be read; perhaps a quote is never closed"
        names, alone = attempt(first_row, complaint)
        if delimiter is None and len(names) == 1:
            self._delimiter = next((other for other in ";\t,|" if other in names[0]), self._delimiter)
            names, alone = attempt(first_row, complaint)
        if alone and len(head) < _CSV_BLOCK:
            raise DataError(f"{self.label} has no rows; a header line and at least one row are needed")
        attempt("".join(names).encode, f"the header line of {self.label} is not in UTF-8; save the file as UTF-8")
        return names

    def _stream(self) -> Any:
        import pyarrow as pa

        return pa.input_stream(str(self._path), compression="detect", buffer_size=None)

    def _open(self, columns: Sequence[str]) -> tuple[Any, Any]:
        """The file and pyarrow's reader on it."""
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        # one thread: only then does pyarrow count rows
        read = arrow_csv.ReadOptions(use_threads=False, block_size=self._block)
        parse = arrow_csv.ParseOptions(
            delimiter=self._delimiter,
            newlines_in_values=True,
            ignore_empty_lines=not self._single,
        )
        convert = arrow_csv.ConvertOptions(
            column_types={name: pa.large_binary() for name in columns},
            include_columns=list(columns),
            strings_can_be_null=False,
        )
        file = self._stream()
        try:
            return file, arrow_csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert)
        except BaseException:
            file.close()
            raise

    def _complaint(self, error: Exception) -> str:
        """Our own message for pyarrow's error, which quotes the row after these numbers.

        (pyarrow would call a handler with the row, too, but that prints bytes of it where they are no UTF-8.)
        """
        found = re.match(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if found:
            number, expected, got = map(int, found.groups())
            return f"{self.label}: {self.place(number - 2)} has {got} cell{'s' * (got != 1)}, the header has {expected}"
        return (
            f"{self.label} cannot be read as a CSV file in UTF-8 with a header line and at least one row "
            f"(or a quote is never closed, or a row is longer than {self._block >> 20} MiB)"
        )

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`; pyarrow chooses the number of rows, by bytes."""
        self.check_unchanged()
        raw = [self._raw[name] for name in names]
        # the file's last cell shows whether a quote was left open, which pyarrow takes for a cell of many lines
        read = raw if self._last is None or self._last in raw else [*raw, self._last]
        tail = None
        file, reader = attempt(lambda: self._open(read), self._complaint)
        with file, reader:
            for batch in guarded(lambda: iter(reader), self._complaint):
                if not batch.num_rows:
                    continue
                cells = [batch.column(place) for place in range(len(raw))]
                if self._last is not None:
                    tail = batch.column(read.index(self._last))[-1:]
                done = attempt(file.tell, self._complaint) if self.total is not None else 0
                yield Batch(cells, batch.num_rows, min(done, self.total or 0))
        if tail is not None and b"\n" in tail[0].as_py() and not self._packed and not self._ends_in_quote():
            raise DataError(f"{self.label}: a quote is opened and never closed")
        self.check_unchanged()

    def _bytes(self, start: int) -> bytes:
        """Up to 64 KiB of the file from `start`."""

        def read() -> bytes:
            with open(self._path, "rb") as file:
                file.seek(start)
                return file.read(1 << 16)

        return attempt(read, f"{self.label} cannot be read")

    def _ends_in_quote(self) -> bool:
        return self._bytes(max(0, self._stamp[0] - (1 << 16))).rstrip(b"\r\n").endswith(b'"')

    def check_unchanged(self) -> None:
        """See `Source`."""
        check_stamp(self._path, self._stamp)

    def place(self, row: int) -> str:
        """See `Source`."""
        return f"row {row + 1} (line {row + 2} where no line is blank)"


def _check_header(label: str, header: list[str]) -> None:
    """DataError when the first line looks like a row: its values would become names, which are published.

    Some numbers are fine as names: 0, 1, 2, ... (a frame without names), or four and more whole numbers in a row.
    """
    import pyarrow as pa

    values = text_numbers(pa.array([name.strip() for name in header], pa.large_string()))
    found = values[np.isfinite(values)]
    if not len(found):
        return
    counting = bool(np.all(np.diff(found) == 1)) and float(found[0]).is_integer()
    if not (counting and (len(found) >= 4 or (len(found) >= 2 and found[0] in (0, 1)))):
        raise DataError(
            f"the first line of {label} holds numbers, so that it looks like a row; "
            "a header line with the names of the columns is needed"
        )


class ParquetFile(Source):
    """A Parquet file, read a block at a time; the types are those of its schema."""

    def __init__(self, path: Path, stamp: tuple[int, int]) -> None:
        _pyarrow("Parquet files")
        self.label, self._path, self._stamp = str(path), path, stamp

        def read() -> tuple[Any, int]:
            with self._open() as file:
                return file.schema_arrow, file.metadata.num_rows

        self._complaint = f"{self.label} cannot be read as a Parquet file"
        self._arrow, self.n = attempt(read, self._complaint)
        self.total = self.n
        self.schema = arrow_schema(self.label, self._arrow)

    def _open(self, columns: int = 1) -> Any:
        import pyarrow.parquet as pq

        # with pre_buffer, or without a buffer size, pyarrow keeps whole column chunks: the file, in the end
        buffer = min(1 << 20, max(1 << 14, _PARQUET_BUFFERS // columns))
        return pq.ParquetFile(self._path, pre_buffer=False, buffer_size=buffer)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`."""
        self.check_unchanged()
        raw = raw_names(self._arrow, names)
        file = attempt(lambda: self._open(len(raw)), self._complaint)
        with file:
            make = lambda: file.iter_batches(batch_size=rows, columns=raw, use_threads=False)  # noqa: E731
            yield from arrow_batches(guarded(make, self._complaint), raw)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """See `Source`."""
        check_stamp(self._path, self._stamp)


class NpyFile(ArraySource):
    """A npy file with a 2-d array, mapped into memory afresh for each block so that pages are given back."""

    def __init__(self, path: Path, stamp: tuple[int, int]) -> None:
        self._path, self._stamp = path, stamp
        complaint = f"{path} cannot be read as a npy file of numbers"

        def reopen() -> np.ndarray:
            check_stamp(path, stamp)
            return attempt(lambda: np.load(path, mmap_mode="r", allow_pickle=False), complaint)

        super().__init__(reopen(), label=str(path), reopen=reopen)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """See `Source`."""
        yield from super().batches(names, rows)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """See `Source`."""
        check_stamp(self._path, self._stamp)


def _npz(path: Path) -> Source:
    """An npz file's array X, or its only array; `columns`, an array of texts, names the columns. Read whole."""

    def read() -> dict[str, np.ndarray]:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as packed:
            wanted = [name for name in packed.files if name != "columns"]
            wanted = ["X"] if "X" in wanted else wanted
            held = ["columns"] if "columns" in packed.files and wanted != [] else []
            return {name: packed[name] for name in wanted[:2] + held}

    arrays = attempt(read, f"{path} cannot be read as a npz file of numbers")
    names = arrays.pop("columns", None)
    if len(arrays) != 1:
        raise DataError(f"{path} must hold one array, or one that is named X (beside one named columns)")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "US"):
        raise DataError(f"the array columns of {path} must be a list of column names")
    (array,) = arrays.values()
    return ArraySource(array, label=str(path), names=None if names is None else [_decoded(name) for name in names])


def _decoded(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
