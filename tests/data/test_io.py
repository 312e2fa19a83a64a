"""Tables from any source: the same numbers from each, columns and categories by name, missing numbers, blocks."""

import datetime as dt
import inspect
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdpcov.data import DataError, describe_columns, open_table

NAN = float("nan")
COLUMNS: dict[str, list[Any]] = {
    "id": ["u1", "u2", "u1", "NA", "u3", "u2"],
    "age": [31, None, 54, 2**60, -7, 0],
    "height": [1.5, float("inf"), -0.25, 1e300, None, 3.0],
    "member": [True, None, False, True, True, False],
    "sex": ["F", "M", None, " X ", "M", "F"],
    "grade": [1, 2, 3, None, 2, 1],
}
VALUES = np.array(
    [
        [31, 1.5, 1, 1, 0, 0, 1, 0],
        [NAN, NAN, NAN, 0, 1, 0, 0, 1],
        [54, -0.25, 0, 0, 0, 1, 0, 0],
        [2.0**60, 1e300, 1, 0, 0, 0, 0, 0],
        [-7, NAN, 1, 0, 1, 0, 0, 1],
        [0, 3.0, 0, 1, 0, 0, 1, 0],
    ]
)
NAMES = ("age", "height", "member", "sex=F", "sex=M", "sex=", "grade=1", "grade=2")
CHOICE: dict[str, Any] = {
    "columns": ["age", "height", "member", "sex", "grade"],
    "categories": {"sex": ["F", "M", ""], "grade": [1, 2]},
}


def source(kind: str, folder: Path) -> Any:
    frame = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in COLUMNS.items()})
    typed = frame.astype({"age": "Int64", "height": "float64", "member": "boolean", "grade": "float64"})
    arrow = pa.table(COLUMNS)
    pq.write_table(arrow, folder / "t.parquet", row_group_size=2)
    match kind:
        case "objects":
            return frame
        case "pandas":
            return typed.astype({"sex": "category", "id": "string"})
        case "pandas with arrow":
            return typed.convert_dtypes(dtype_backend="pyarrow")
        case "polars":
            return pl.DataFrame(COLUMNS).with_columns(pl.col("sex").cast(pl.Categorical))
        case "table":
            return pa.concat_tables([arrow.slice(0, 1), arrow.slice(1)])
        case "record batch":
            return arrow.combine_chunks().to_batches()[0]
        case "data set":
            return ds.dataset(folder / "t.parquet")
        case "parquet":
            return folder / "t.parquet"
        case "csv":
            arrow_csv.write_csv(arrow, folder / "t.csv")
            return str(folder / "t.csv")
    raise AssertionError(kind)


KINDS = ["objects", "pandas", "pandas with arrow", "polars", "table", "record batch", "data set", "parquet", "csv"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_same_numbers(kind: str, tmp_path: Path) -> None:
    data = source(kind, tmp_path)
    table = open_table(data, **CHOICE)
    assert table.columns == NAMES and table.d == 8 and not table.weighted
    np.testing.assert_array_equal(table.read()[0], VALUES)
    assert table.n == 6
    for rows in (1, 4, 6, 100):
        blocks = list(open_table(data, **CHOICE, block_rows=rows).blocks())
        assert [len(block) for block in blocks] == [rows] * (6 // rows) + [6 % rows] * (6 % rows > 0)
        assert all(block.dtype == np.float64 and block.flags.c_contiguous for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), VALUES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_knows_its_persons(kind: str, tmp_path: Path) -> None:
    table = open_table(source(kind, tmp_path), **CHOICE, person="id")
    values, weights = table.read()
    assert table.n == 3
    np.testing.assert_array_equal(values, VALUES[[0, 1, 2, 4, 5]])
    np.testing.assert_array_equal(weights, [0.5, 0.5, 0.5, 1, 0.5])
    key = b"0123456789abcdef"
    chosen = open_table(source(kind, tmp_path), **CHOICE, person="id", max_rows=1, selection_key=key).read()[0]
    reference = open_table(pa.table(COLUMNS), **CHOICE, person="id", max_rows=1, selection_key=key).read()[0]
    np.testing.assert_array_equal(chosen, reference)


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_describes_its_columns(kind: str, tmp_path: Path) -> None:
    names = {"id": "text", "age": "number", "height": "number", "member": "boolean", "sex": "text", "grade": "number"}
    assert dict(describe_columns(source(kind, tmp_path))) == names


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_refuses_what_it_has_not(kind: str, tmp_path: Path) -> None:
    data = source(kind, tmp_path)
    with pytest.raises(DataError, match="column 'id' of .* is text, not numbers; declare its categories"):
        open_table(data)
    with pytest.raises(DataError, match=r"has no column 'hieght' \(columns\); close to it: 'height'"):
        open_table(data, columns=["age", "hieght"])
    with pytest.raises(DataError, match=r"no column 'z' \(categories\); its columns: 'id', 'age', .*'grade'$"):
        open_table(data, categories={"z": [1]})
    with pytest.raises(DataError, match=r"column 'age' of .* has no number in row 2( \(line 3.*\))?; missing="):
        open_table(data, columns=["grade", "age"], missing="error").read()


@pytest.mark.parametrize("kind", ["objects", "parquet", "csv"])
def test_missing_cells_take_the_public_center(kind: str, tmp_path: Path) -> None:
    data = source(kind, tmp_path)
    centers = np.arange(8.0) + 100
    expected = np.where(np.isnan(VALUES), centers, VALUES)
    table = open_table(data, **CHOICE)
    for given_centers in (centers, dict(zip(NAMES, centers)), jnp.asarray(centers)):
        filled = table.with_missing("cell", given_centers)
        assert filled.missing == "cell" and filled.columns == NAMES
        np.testing.assert_array_equal(filled.read()[0], expected)
        np.testing.assert_array_equal(next(filled.blocks()), expected)
    np.testing.assert_array_equal(open_table(data, **CHOICE, missing="cell", centers=centers).read()[0], expected)
    np.testing.assert_array_equal(table.read()[0], VALUES)
    with pytest.raises(DataError, match="column 'age'"):
        table.with_missing("error").read()


def test_arguments_for_missing_cells() -> None:
    table = open_table(np.zeros((2, 2)))
    for centers, message in (
        (None, "centers, one public number for each column, go with missing='cell'"),
        ({"x0": 1}, "centers has no entry for column 'x1'"),
        ({"x0": 1, "x1": 1, "y": 1}, "centers has an entry for 'y'"),
        ([1.0], r"one number for each of the 2 columns, got shape \(1,\)"),
        ([1.0, NAN], "centers must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            table.with_missing("cell", centers)
    with pytest.raises(ValueError, match="go with missing='cell'"):
        table.with_missing("row", [0.0, 0.0])
    with pytest.raises(ValueError, match="missing must be one of 'row', 'cell', 'error'"):
        open_table(np.zeros((2, 2)), missing="drop")
    np.testing.assert_array_equal(open_table(np.full((1, 2), NAN), missing="cell", centers=5.0).read()[0], [[5, 5]])


CELLS = st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70), st.booleans(), st.sampled_from(["a", "7", ""]))


@given(st.lists(st.tuples(CELLS, CELLS), min_size=2, max_size=12), st.data())
def test_a_row_depends_on_no_other_row(rows: list[tuple[Any, Any]], data: st.DataObject) -> None:
    """One row replaced changes that row's numbers and no other's, bit for bit, whatever pandas makes of the column."""
    place = data.draw(st.integers(0, len(rows) - 1))
    other = list(rows)
    other[place] = data.draw(st.tuples(CELLS, CELLS))

    def read(cells: list[tuple[Any, Any]]) -> np.ndarray:
        frame = pd.DataFrame([("1", "1"), *cells], columns=["x", "y"], dtype=object)
        return open_table(frame, categories={"y": ["a", 7, ""]}).read()[0][1:]

    np.testing.assert_array_equal(np.delete(read(rows), place, 0), np.delete(read(other), place, 0))


def test_numpy_arrays() -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6]])
    for array in (rows, rows.astype(np.float32), np.asfortranarray(rows), rows[:, ::-1][:, ::-1], jnp.asarray(rows)):
        table = open_table(array, columns=["x2", "x0"])
        assert table.columns == ("x2", "x0") and table.n == 2
        np.testing.assert_array_equal(table.read()[0], [[3, 1], [6, 4]])
    np.testing.assert_array_equal(open_table(rows.tolist(), categories={"x0": [4]}).read()[0], [[0, 2, 3], [1, 5, 6]])
    np.testing.assert_array_equal(open_table(rows > 3).read()[0], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(open_table(np.ma.masked_equal(rows, 5)).read()[0], [[1, 2, 3], [4, NAN, 6]])
    np.testing.assert_array_equal(open_table(np.array([["1", "x"], ["y", "2"]])).read()[0], [[1, NAN], [NAN, 2]])
    np.testing.assert_array_equal(open_table(np.array([[np.longdouble("1e4000")]])).read()[0], [[NAN]])
    untouched = np.array([[np.inf, 1.0]])
    block = next(open_table(untouched).blocks())
    block[:] = 0
    assert np.isinf(untouched[0, 0]) and untouched[0, 1] == 1


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (np.zeros(3), DataError, r"must be 2-d, .* got shape \(3,\); a single column is x.reshape"),
        (np.zeros((2, 2, 2)), DataError, r"must be 2-d, .* got shape \(2, 2, 2\)$"),
        (np.zeros((0, 2)), DataError, "the array has no rows"),
        (np.zeros((2, 0)), DataError, "the array has no columns"),
        (np.zeros((2, 2), complex), DataError, "must hold numbers, got dtype complex128"),
        (np.zeros((2, 2), "datetime64[s]"), DataError, "must hold numbers, got dtype datetime64"),
        ([[1, 2], [3]], DataError, "cannot be seen as a NumPy array"),
        (pd.DataFrame({"a": []}), DataError, "the data frame has no rows"),
        (pd.DataFrame(), DataError, "the data frame has no columns"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), DataError, "more than one column named 'a'"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}), DataError, "'a' of the data frame is of type datetime64"),
        (pd.DataFrame({"a": pd.to_timedelta([1])}), DataError, "is of type timedelta64"),
        (pd.DataFrame({"a": [1j]}), DataError, "is of type complex128"),
        (pd.DataFrame({"a": pd.period_range("2020", periods=2)}), DataError, "is of type period"),
        (pa.table({"a": [dt.date(2020, 1, 1)]}), DataError, "column 'a' of the table is of type date32"),
        (pa.table({"a": [{"b": 1}]}), DataError, "is of type struct<b: int64>"),
        (pa.table([[1], [2]], names=["a", "a"]), DataError, "more than one column named 'a'"),
        (pa.table({"a": pa.array([], pa.int8())}), DataError, "the table has no rows"),
        (pl.DataFrame({"a": [dt.time(1)]}), DataError, "is of type Time"),
        (pl.DataFrame({"a": [1]}).clear(), DataError, "the data frame has no rows"),
        (pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}), DataError, "is of type Object"),
        (pl.DataFrame({"a": [1]}).lazy(), TypeError, r"polars.LazyFrame; collect\(\) it first"),
        (pa.table({"a": [1]}).to_reader(), TypeError, "can be read only once"),
        (pd.Series([1]), TypeError, r"make it a frame of one column with to_frame\(\)"),
        (pl.Series([1]), TypeError, r"make it a frame of one column with to_frame\(\)"),
        (5, TypeError, "data must be a path to a CSV, Parquet, .*; got builtins.int"),
        (None, TypeError, "data must be a path"),
        (iter([[1.0]]), TypeError, "data must be a path"),
    ],
)
def test_what_is_no_table(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        open_table(data).read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"columns": "age"}, "columns must be a list of column names, got 'age'"),
        ({"columns": 5}, "columns must be a list of column names, got 5"),
        ({"columns": [0]}, "columns takes column names, which are text; got 0"),
        ({"columns": []}, "no column of the table is left"),
        ({"columns": ["age", "age"]}, "columns names 'age' more than once"),
        ({"columns": ["Age "]}, r"no column 'Age ' \(columns\); close to it: 'age'"),
        ({"columns": ["AGE"]}, r"no column 'AGE' \(columns\); close to it: 'age'"),
        ({"columns": [""]}, "columns asks for a column without a name, and the table has 0 of them"),
        ({"columns": ["age"], "categories": {"sex": ["F"]}}, "'sex', which is not among the chosen columns"),
        ({"categories": ["sex"]}, "categories must map column names to lists"),
        ({"categories": {"sex": "F"}}, "categories of column 'sex' must be a list, got 'F'"),
        ({"categories": {"sex": []}}, "categories of column 'sex' must not be empty"),
        ({"categories": {"sex": [["F"]]}}, "must be texts or numbers"),
        ({"categories": {"sex": ["F", " F"]}}, "must be different from each other"),
        ({"categories": {"sex": [1, True]}}, "must be different from each other"),
        ({"categories": {"sex": [NAN]}}, "must be finite numbers, got nan"),
        ({"categories": {"grade": ["low"]}}, "categories of column 'grade' must be finite numbers, got 'low'"),
        ({"columns": ["grade"], "categories": {"grade": ["1", 1]}}, "'grade=1'"),
        ({"columns": ["age"], "block_rows": 0}, "block_rows must be a whole number >= 1, got 0"),
    ],
)
def test_choices_that_cannot_be(choice: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        open_table(pa.table(COLUMNS), **choice)


def test_categories() -> None:
    frame = pd.DataFrame({"c": ["1", "01", "1.0", "true", "", None, " a ", "NA", "A"], "x": range(9)})
    table = open_table(frame, categories={"c": ["1", "a", "NA", ""]})
    assert table.columns == ("c=1", "c=a", "c=NA", "c=", "x")
    hits = table.read()[0][:, :4]
    np.testing.assert_array_equal(np.argwhere(hits), [[0, 0], [4, 3], [5, 3], [6, 1], [7, 2]])
    numeric = open_table(frame, categories={"c": [1, 7]}).read()[0][:, :2]
    np.testing.assert_array_equal(np.flatnonzero(numeric[:, 0]), [0, 1, 2, 3])
    flags = pa.table({"b": [True, False, None], "d": [Decimal(1), Decimal(2), None]})
    table = open_table(flags, categories={"b": ["true", False, ""], "d": ["1"]})
    np.testing.assert_array_equal(table.read()[0], [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]])
    with pytest.raises(ValueError, match="two of the resulting columns would be named 'c=1'"):
        open_table(pd.DataFrame({"c": ["1"], "c=1": [1]}), categories={"c": ["1"]})


def test_many_categories_of_a_narrow_file_stay_within_a_block(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("c\n" + "1\n2\n" * 50_000)
    table = open_table(path, categories={"c": list(range(1, 401))})
    assert table.block_rows == 2**22 // 400
    sizes, sums = zip(*((len(block), block.sum(axis=0)) for block in table.blocks()))
    assert max(sizes) == table.block_rows and sum(sizes) == 100_000
    np.testing.assert_array_equal(np.sum(sums, axis=0)[:3], [50_000, 50_000, 0])


def test_columns_without_a_name_and_row_labels_are_left_out_unless_named() -> None:
    table = pa.table({"a": [1], "": [2], "__index_level_0__": [3]})
    assert open_table(table).columns == ("a",)
    assert open_table(table, columns=["__index_level_0__", ""]).columns == ("__index_level_0__", "")
    assert describe_columns(table) == [("a", "number")]
    with pytest.raises(DataError, match="has 2 of them"):
        open_table(pa.table([[1], [2], [3]], names=["a", "", ""]), columns=[""])
    assert open_table(pa.table([[1], [2], [3]], names=["a", "", ""])).columns == ("a",)
    assert open_table(pd.DataFrame(np.zeros((1, 2)))).columns == ("0", "1")


def test_a_frame_that_grows_between_passes_is_refused() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "p": ["a", "b"]})
    tables = [open_table(frame, columns=["x"]), open_table(frame, columns=["x"], person="p")]
    frame.loc[2] = [3.0, "c"]
    for table in tables:
        with pytest.raises(DataError, match="another number of rows than before"):
            table.read()


def test_what_is_printed_holds_no_count() -> None:
    table = open_table(pd.DataFrame({"x": np.arange(1234.0), "p": "a"}), person="p", columns=["x"])
    assert repr(table) == "Table of 'the data frame': d=1, unit=person by 'p', missing='row'"
    assert "n" not in inspect.signature(open_table).parameters
