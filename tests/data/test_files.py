"""Files: CSV in all its forms, broken ones that are refused without a word of their contents, Parquet, npy and npz."""

import bz2
import csv
import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdpcov.data import DataError, describe_columns, open_table
from jaxdpcov.data.cells import text_numbers, texts

Columns = tuple[str, ...]


def write(folder: Path, content: str | bytes, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


NAN = float("nan")
GOOD: dict[str, tuple[str | bytes, Columns, list[list[float]]]] = {
    "plain": ("a,b\n1,2\n3,4\n", ("a", "b"), [[1, 2], [3, 4]]),
    "no last line end": ("a,b\n1,2\n3,4", ("a", "b"), [[1, 2], [3, 4]]),
    "windows": ("a,b\r\n1,2\r\n3,4\r\n", ("a", "b"), [[1, 2], [3, 4]]),
    "old mac": ("a,b\r1,2\r3,4\r", ("a", "b"), [[1, 2], [3, 4]]),
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", ("a", "b"), [[1, 2]]),
    "mark and quotes": (b'\xef\xbb\xbf"a","b"\n1,2\n', ("a", "b"), [[1, 2]]),
    "quoted numbers": ('a,b\n"1","2"\n', ("a", "b"), [[1, 2]]),
    "odd names": ('a b,"c, d","e ""f"" g"\n1,2,3\n', ("a b", "c, d", 'e "f" g'), [[1, 2, 3]]),
    "names over lines": ('a,"b\nc"\n1,2\n', ("a", "b\nc"), [[1, 2]]),
    "spaces": (" a , b\n 1, 2 \n", ("a", "b"), [[1, 2]]),
    "other letters": ("größe,年齢\n1,2\n", ("größe", "年齢"), [[1, 2]]),
    "bad bytes in a cell": (b"a,b\n\xff\xfe,2\n1,2\n", ("a", "b"), [[NAN, 2], [1, 2]]),
    "missing": ("a,b\n,2\nNA,?\n1,\n", ("a", "b"), [[NAN, 2], [NAN, NAN], [1, NAN]]),
    "text among numbers": ('a,b\nx,2\n"1,000",1e300\n7,1e400\n', ("a", "b"), [[NAN, 2], [NAN, 1e300], [7, NAN]]),
    "infinities": ("a\ninf\n-inf\n1\n", ("a",), [[NAN], [NAN], [1]]),
    "booleans": ("a\ntrue\nFalse\nTRUE\nyes\n", ("a",), [[1], [0], [1], [NAN]]),
    "blank lines": ("\n\na,b\n\n1,2\n\n\n3,4\n\n", ("a", "b"), [[1, 2], [3, 4]]),
    "blank lines of one column": ("a\n1\n\n2\n", ("a",), [[1], [NAN], [2]]),
    "no name": (",a,\n0,1,\n1,2,\n", ("a",), [[1], [2]]),
    "line end in a cell": ('a,b\n"1\n",2\n"x\ny",3\n', ("a", "b"), [[1, 2], [NAN, 3]]),
    "line end in the last cell": ('a,b\n1,"2\n"\n', ("a", "b"), [[1, 2]]),
    "numbered names": ("0,1,2\n5,6,7\n", ("0", "1", "2"), [[5, 6, 7]]),
    "years": ("id,1990,1991,1992,1993\n1,2,3,4,5\n", ("id", "1990", "1991", "1992", "1993"), [[1, 2, 3, 4, 5]]),
    "semicolons": ("a;b\n1;2\n", ("a", "b"), [[1, 2]]),
    "tabs": ("a\tb\n1\t2\n", ("a", "b"), [[1, 2]]),
    "bars": ("a|b\n1|2\n", ("a", "b"), [[1, 2]]),
    "big whole numbers": ("a\n9007199254740993\n-9223372036854775809\n", ("a",), [[2.0**53], [-(2.0**63)]]),
    "all missing": ("a,b\n,1\n,2\n", ("a", "b"), [[NAN, 1], [NAN, 2]]),
}


@pytest.mark.parametrize("case", GOOD)
def test_csv(case: str, tmp_path: Path) -> None:
    content, columns, rows = GOOD[case]
    path = write(tmp_path, content)
    table = open_table(path)
    assert table.columns == columns and table.d == len(columns) and table.n is None
    np.testing.assert_array_equal(table.read()[0], np.array(rows, float))
    assert table.n == len(rows)
    assert [name for name, _ in describe_columns(path)] == list(columns)


SECRET = "918273645"
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty"),
    "one blank line": ("\n", "has no rows"),
    "header only": ("a,b\n", "has no rows"),
    "header only, no line end": ("a,b", "has no rows"),
    "header and blank lines": ("a,b\n\n\n", "has no rows"),
    "short row": (f"a,b\n1,2\n{SECRET}\n", r"row 2 \(line 3 where no line is blank\) has 1 cell, the header has 2"),
    "long row": (f"a,b\n1,2\n3,4\n1,{SECRET},3\n", "row 3 .* has 3 cells, the header has 2"),
    "same names": (f"a,b,a\n1,2,{SECRET}\n", "more than one column named 'a'"),
    "same names but for spaces": (f"a, a\n1,{SECRET}\n", "more than one column named 'a'"),
    "no header": (f"5.1,{SECRET},x\n1,2,x\n", "looks like a row"),
    "one number in the header": (f"x,{SECRET}\n1,2\n", "looks like a row"),
    "text throughout": (f"a,b\nx{SECRET},1\ny,2\n", "column 'a' of .* is text, not numbers; declare its categories"),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), "not in UTF-8"),
    "latin-1 header": ("größe\n1\n".encode("latin-1"), "not in UTF-8"),
    "open quote": (f'a,b\n5,6\n1,"{SECRET}\n3,4\n', "quote is opened and never closed"),
    "open quote, first column": (f'a,b\n"1,{SECRET}\n3,4\n', "row 1 .* has 1 cell"),
    "open quote in the header": ('"a,b\n1,2\n' + "3,4\n" * 50_000, "header"),
    "endless cell": ("a,b\n1," + SECRET * 1_000_000 + "\n", "a row is longer than 1 MiB"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_csv(case: str, tmp_path: Path) -> None:
    content, message = BROKEN[case]
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=message) as caught:
        open_table(path).read()
    text = str(caught.value)
    assert "\n" not in text and SECRET not in text
    assert caught.value.__context__ is None and caught.value.__cause__ is None


def test_a_ragged_row_far_down_is_found_by_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n" + "1,2\n" * 600_000 + "3\n")
    with pytest.raises(DataError, match=r"row 600001 \(line 600002"):
        open_table(path).read()


def test_columns_of_text_are_found_in_the_first_block_and_only_among_the_chosen(tmp_path: Path) -> None:
    path = write(tmp_path, "name,x,mixed,none\nann,1,u,\nbob,2,5,NA\n")
    assert describe_columns(path) == [("name", "text"), ("x", "number"), ("mixed", "number"), ("none", "empty")]
    with pytest.raises(DataError, match="'name'"):
        open_table(path)
    np.testing.assert_array_equal(open_table(path, columns=["mixed", "x"]).read()[0], [[NAN, 1], [5, 2]])
    late = write(tmp_path, "a\n" + "1\n" * 700_000 + "text\n" * 700_000, "late.csv")
    assert np.isnan(open_table(late).read()[0]).sum() == 700_000


CELL = st.one_of(
    st.sampled_from(["1", "-2.5", "1e300", "", "NA", "true", "zq9,zq9", 'zq9"zq9', "zq9\nzq9", "zq9\r", SECRET, "é"]),
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "replace").decode()),
)


@settings(max_examples=150)
@given(st.integers(1, 4), st.data())
def test_whatever_a_csv_writer_writes_is_read_back(width: int, data: st.DataObject) -> None:
    """Against Python's own csv module, cell by cell; the file is as any library would write it."""
    rows = data.draw(st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=8))
    rows.insert(0, ["1"] * width)  # a number in each column, so that none is text throughout
    text = io.StringIO(newline="")
    csv.writer(text, quoting=data.draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]))).writerows(
        [[f"c{index}" for index in range(width)], *rows]
    )
    folder = Path(os.environ["PYTEST_DATA_FUZZ"])
    got = open_table(write(folder, text.getvalue())).read()[0]
    expected = text_numbers(texts(pa.array([cell for row in rows for cell in row]))).copy()
    expected[~np.isfinite(expected)] = np.nan
    np.testing.assert_array_equal(got, expected.reshape(len(rows), width))


PIECE = st.one_of(
    st.sampled_from([b",", b"\n", b"\r\n", b'"', b"zq9x", SECRET.encode(), b"1", b"\x00", b"\xff", b";", b" ", b"-"]),
    st.binary(max_size=4),
)


@settings(max_examples=400)
@given(st.sampled_from([b"a,b\n", b"a\n", b'a,"b\n', b"\xef\xbb\xbfa,b,c\r\n", b""]), st.lists(PIECE, max_size=30))
@example(b"a,b\n", [b"zq9x", b"\n"])
def test_garbage_is_read_or_refused_without_showing_it(header: bytes, pieces: list[bytes]) -> None:
    path = write(Path(os.environ["PYTEST_DATA_FUZZ"]), header + b"".join(pieces), "garbage.csv")
    for call in (lambda: open_table(path).read()[0], lambda: describe_columns(path)):
        try:
            call()
        except DataError as error:
            shown = f"{error} {error.__context__!r} {error.__cause__!r}"
            assert "\n" not in str(error)
            if header:  # without one the first row is the header, whose names may be shown
                assert "zq9" not in shown and SECRET not in shown


@pytest.fixture(autouse=True, scope="module")
def _fuzz_folder(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    os.environ["PYTEST_DATA_FUZZ"] = str(tmp_path_factory.mktemp("fuzz"))
    yield
    del os.environ["PYTEST_DATA_FUZZ"]


@given(st.sampled_from(["parquet", "npy", "npz", "csv.gz"]), st.binary(min_size=1, max_size=200))
def test_garbage_under_other_endings(ending: str, content: bytes) -> None:
    magic = {"parquet": b"PAR1", "npy": b"\x93NUMPY\x01\x00", "npz": b"PK\x03\x04", "csv.gz": b"\x1f\x8b\x08\x00"}
    for start in (b"", magic[ending]):
        path = write(Path(os.environ["PYTEST_DATA_FUZZ"]), start + content, f"garbage.{ending}")
        with pytest.raises(DataError):
            open_table(path).read()


def test_very_wide_files(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 100, (40, 5000))
    lines = [",".join(f"column {index}" for index in range(5000)), *(",".join(map(str, row)) for row in rows)]
    table = open_table(write(tmp_path, "\n".join(lines)))
    np.testing.assert_array_equal(table.read()[0], rows)
    assert table.block_rows == 2**22 // 5000


def test_packed_files_and_delimiters(tmp_path: Path) -> None:
    text = b"a,b\n1,2\n"
    for path in (write(tmp_path, gzip.compress(text), "r.csv.gz"), write(tmp_path, bz2.compress(text), "r.csv.bz2")):
        np.testing.assert_array_equal(open_table(path).read()[0], [[1, 2]])
    np.testing.assert_array_equal(open_table(write(tmp_path, "a\tb;c\n1\t2\n", "r.tsv")).read()[0], [[1, 2]])
    assert open_table(write(tmp_path, "a;b,c\n1;2\n"), delimiter=";").columns == ("a", "b,c")
    for wrong in (";;", "", '"', "\n", 5):
        with pytest.raises(ValueError, match="delimiter must be one character"):
            open_table(write(tmp_path, text), delimiter=wrong)
    with pytest.raises(ValueError, match="delimiter is for CSV"):
        open_table(np.zeros((1, 1)), delimiter=",")
    with pytest.raises(ValueError, match="delimiter is for CSV"):
        open_table(write(tmp_path, b"PAR1", "r.parquet"), delimiter=",")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file .*nowhere.csv"):
        open_table(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="is a directory"):
        open_table(str(tmp_path))
    with pytest.raises(DataError, match="must end in .csv"):
        open_table(write(tmp_path, "a\n1\n", "rows.xlsx"))
    with pytest.raises(DataError, match="must end in .csv"):
        open_table(write(tmp_path, "a\n1\n", "rows"))


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    table = pa.table({"a.b": [1, 2, None], "a": [1.5, float("inf"), 3], "s": ["x", "y", None], "t": [True, None, False],
                      "l": [[1], [2], [3]], "__index_level_0__": [7, 8, 9]})  # fmt: skip
    pq.write_table(table, path)
    with pytest.raises(DataError, match="column 's' of .* is text"):
        open_table(path)
    with pytest.raises(DataError, match="column 'l' of .* is of type list<element: int64>"):
        open_table(path, columns=["l"])
    opened = open_table(path, columns=["t", "a", "a.b"])
    assert opened.n == 3
    np.testing.assert_array_equal(opened.read()[0], [[1, 1.5, 1], [NAN, NAN, 2], [0, 3, NAN]])
    assert dict(describe_columns(path)) == {
        "a.b": "number", "a": "number", "s": "text", "t": "boolean", "l": "list<element: int64>"
    }  # fmt: skip
    pq.write_table(table.slice(0, 0), path)
    with pytest.raises(DataError, match="has no rows"):
        open_table(path, columns=["a"])


def test_npy_and_npz(tmp_path: Path) -> None:
    rows = np.arange(12.0).reshape(4, 3)
    for order in ("C", "F"):
        np.save(tmp_path / "r.npy", np.array(rows, order=order))
        opened = open_table(tmp_path / "r.npy", block_rows=3)
        assert opened.columns == ("x0", "x1", "x2") and opened.n == 4
        np.testing.assert_array_equal(np.concatenate(list(opened.blocks())), rows)
    np.savez(tmp_path / "r.npz", rows)
    np.testing.assert_array_equal(open_table(tmp_path / "r.npz").read()[0], rows)
    np.savez(tmp_path / "r.npz", X=rows, y=rows[0], columns=["a", "b", "c"])
    np.testing.assert_array_equal(open_table(tmp_path / "r.npz", columns=["c"]).read()[0], rows[:, 2:])
    for arrays, message in (
        ({"y": rows, "z": rows}, "must hold one array"),
        ({"X": rows, "columns": np.array(["a"])}, "has 3 columns and 1 column names"),
        ({"X": rows, "columns": np.eye(2)}, "must be a list of column names"),
        ({"columns": np.array(["a"])}, "must hold one array"),
        ({"X": np.array([[object()]])}, "cannot be read as a npz file"),
        ({"X": rows.astype(complex)}, "must hold numbers, got dtype complex128"),
    ):
        np.savez(tmp_path / "r.npz", **arrays)
        with pytest.raises(DataError, match=message):
            open_table(tmp_path / "r.npz")


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_a_file_that_changes_is_refused(ending: str, tmp_path: Path) -> None:
    def save(rows: int) -> Path:
        path, values = tmp_path / f"r.{ending}", np.ones((rows, 1))
        if ending == "csv":
            np.savetxt(path, values, header="x0", comments="")
        elif ending == "npy":
            np.save(path, values)
        else:
            pq.write_table(pa.table({"x0": values[:, 0]}), path)
        return path

    table = open_table(save(10), block_rows=2)
    assert len(table.read()[0]) == 10
    blocks = table.blocks()
    next(blocks)
    save(11)
    with pytest.raises(DataError, match="changed while it was being read"):
        list(blocks)
    with pytest.raises(DataError, match="changed while it was being read"):
        list(table.blocks())
    path = save(10)
    table = open_table(path)
    path.unlink()
    with pytest.raises(DataError, match="changed while it was being read"):
        table.read()


def test_progress_counts_up(tmp_path: Path) -> None:
    for path in (write(tmp_path, "x\n" + "1\n" * 3_000_000), tmp_path / "r.npy"):
        if path.suffix == ".npy":
            np.save(path, np.ones((300_000, 1)))
        seen: list[tuple[int, int | None]] = []
        open_table(path, progress=lambda done, total, seen=seen: seen.append((done, total))).read()
        done = [step for step, _ in seen]
        assert len(seen) > 1 and done == sorted(done) and seen[-1][0] == seen[-1][1]
        assert seen[-1][1] == (path.stat().st_size if path.suffix == ".csv" else 300_000)


MEMORY = """
import sys
from jaxdpcov.data import open_table

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

small, large = sys.argv[1:]
for path in (small, large):
    before = peak()
    rows = sum(len(block) for block in open_table(path, block_rows=8192).blocks())
print(rows, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("ending", ["parquet", "npy"])
def test_memory_is_that_of_a_block(ending: str, tmp_path: Path) -> None:
    """After a file of 16 MB, one of 80 MB in one row group adds little (a reader that keeps what it read adds 64)."""
    paths = []
    for rows in (200_000, 1_000_000):
        values = np.random.default_rng(0).random((rows, 10))
        paths.append(tmp_path / f"{rows}.{ending}")
        if ending == "npy":
            np.save(paths[-1], values)
        else:
            pq.write_table(pa.table({f"x{i}": values[:, i] for i in range(10)}), paths[-1], row_group_size=rows)
    assert paths[1].stat().st_size > 75e6
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *map(str, paths)],
        capture_output=True, text=True, timeout=120, cwd=root, check=True, env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    rows, growth = done.stdout.split()
    assert int(rows) == 1_000_000
    assert float(growth) < 30, f"the peak grew by {growth} MB"
