"""The rule from one cell to one number, against a plain Python form of it, and its locality."""

import math
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdpcov.data import DataError
from jaxdpcov.data.cells import Kind, arrow_kind, attempt, numbers, seen_kind, text_numbers, texts

ODD = [
    *("1", "+1", "-1", " 1", "1 ", "\t2\r\n", "1.", ".5", "-.5", "1e300", "1E-3", "1e400", "-1e400", "1e-400", "007"),
    *("9007199254740993", "123456789012345678901234567890", "1,000", "1_000", "0x10", "1e", "e5", ".", "+", "--1"),
    *("inf", "-inf", "Infinity", "nan", "NA", "", " ", "?", "true", "True", "TRUE", "tRue", "false", "yes", "1 2"),
    *("१", "½", "１", "1\x00", "\x001", "é", "1.5.2", "1e5.5", "1d5", "1f", "$5", "5%", "2020-01-01", "a" * 5000),
]


def reference(cell: str) -> float:
    """One cell, by the words of the documentation."""
    cell = cell.strip(" \t\n\r\v\f")
    if cell in ("true", "True", "TRUE"):
        return 1.0
    if cell in ("false", "False", "FALSE"):
        return 0.0
    if re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", cell, re.ASCII):
        return float(cell)
    return math.nan


@given(st.lists(st.one_of(st.sampled_from(ODD), st.floats().map(repr), st.integers().map(str), st.text()), min_size=1))
def test_text_cells_are_the_numbers_that_they_spell(cells: list[str]) -> None:
    cells = [cell.encode("utf-8", "replace").decode() for cell in cells]
    got = text_numbers(texts(pa.array(cells)))
    np.testing.assert_array_equal(got, [reference(cell) for cell in cells])


@pytest.mark.parametrize("odd", ODD)
def test_a_cell_does_not_depend_on_its_neighbours(odd: str) -> None:
    alone = {cell: numbers(pa.array([cell]))[0] for cell in ("1.5", "true", "x", "")}
    for cell, value in alone.items():
        np.testing.assert_array_equal(numbers(pa.array([odd, cell, odd]))[1], value)
    np.testing.assert_array_equal(numbers(pa.array([odd, "x", "1"]))[0], numbers(pa.array([odd]))[0])


def test_bytes_that_are_no_utf8_are_missing() -> None:
    np.testing.assert_array_equal(
        numbers(pa.array([b"\xff1", b"2", b"\xe9", b"\xc3\x28"])), [np.nan, 2, np.nan, np.nan]
    )


@pytest.mark.parametrize(
    "arrow_type",
    [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_every_text_type_of_arrow(arrow_type: pa.DataType) -> None:
    plain = pa.array(["1", None, "x"])
    try:
        cells = plain.dictionary_encode() if pa.types.is_dictionary(arrow_type) else plain.cast(arrow_type)
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow does not make the type")
    assert arrow_kind(cells.type) is Kind.TEXT
    assert texts(cells).to_pylist() == ["1", "", "x"]
    np.testing.assert_array_equal(numbers(cells), [1, np.nan, np.nan])


@pytest.mark.parametrize(
    ("arrow_type", "expected"),
    [
        (pa.uint64(), [3.0, np.nan, 2.0**63]),
        (pa.int64(), [3.0, np.nan, 2.0**53]),
        (pa.float16(), [3.0, np.nan, 5.0]),
        (pa.decimal128(20, 2), [3.0, np.nan, 5.0]),
        (pa.decimal256(40, 2), [3.0, np.nan, 5.0]),
        (pa.null(), [np.nan, np.nan, np.nan]),
    ],
    ids=str,
)
def test_declared_numbers(arrow_type: pa.DataType, expected: list[float]) -> None:
    last = {pa.uint64(): 2**63, pa.int64(): 2**53 + 1}.get(arrow_type, 5)
    if pa.types.is_decimal(arrow_type):
        cells = pa.array([Decimal(3), None, Decimal(5)], arrow_type)
    else:
        whole = None if arrow_type == pa.null() else np.float16 if arrow_type == pa.float16() else int
        cells = pa.array([None] * 3 if whole is None else [whole(3), None, whole(last)], arrow_type)
    assert arrow_kind(arrow_type) is Kind.NUMBER
    np.testing.assert_array_equal(numbers(cells), expected)
    np.testing.assert_array_equal(numbers(pa.array([True, None, False])), [1, np.nan, 0])


def test_objects_mean_the_same_as_declared_numbers() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    cells = np.array(
        [0.1, np.float32(0.1), 7, True, None, float("nan"), "5", b"6", "\ud800", Odd(), 1e300, [1], 1j], "O"
    )
    expected = [0.1, float(np.float32(0.1)), 7, 1, np.nan, np.nan, 5, 6, np.nan, np.nan, 1e300, np.nan, np.nan]
    np.testing.assert_array_equal(numbers(cells), expected)


def test_ids_have_one_text_whatever_their_type() -> None:
    assert texts(np.array([2**60 + 1, 1])).to_pylist() == [str(2**60 + 1), "1"]
    assert texts(np.array([2**60 + 1, 1.0, "1 ", 1], dtype=object)).to_pylist() == [str(2**60 + 1), "1", "1", "1"]
    assert texts(np.array([0.0, -0.0, np.nan])).to_pylist()[:2] == texts(np.array([0.0, 0.0])).to_pylist()
    assert texts(pa.array([0.0, -0.0])).to_pylist() == texts(pa.array([0.0, 0.0])).to_pylist()
    assert texts(np.array([np.nan])).to_pylist() == [""]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["", "NA", "x", "5"], "number"),
        (["true", "x"], "boolean"),
        (["x", "", "inf"], "text"),
        (["", "NA", None, "inf"], "empty"),
    ],
)
def test_the_kind_of_a_first_block(cells: list[str | None], kind: str) -> None:
    assert seen_kind(pa.array(cells)) == kind


def test_a_library_message_is_not_carried_along() -> None:
    def leak() -> None:
        raise ValueError("row: 12345")

    with pytest.raises(DataError) as caught:
        attempt(leak, "ours")
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    with pytest.raises(MemoryError):
        attempt(lambda: (_ for _ in ()).throw(MemoryError()), "ours")
