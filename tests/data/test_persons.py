"""The unit of privacy: weights that sum to one for each person, and choices that no other person can move."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdpcov.data import DataError, open_table
from jaxdpcov.data.persons import person_ids, share

KEY = b"0123456789abcdef"


def kept(ids: list[str | None], max_rows: int | None, key: bytes = KEY, split: int = 7) -> np.ndarray:
    blocks = [person_ids(pa.array(ids[start : start + split], pa.string())) for start in range(0, len(ids), split)]
    return share(blocks, max_rows, key).weights


PEOPLE = st.lists(st.sampled_from(["ann", "bob", "cyd", "dee", "", None]), min_size=1, max_size=60)


@given(PEOPLE, st.one_of(st.none(), st.integers(1, 5)))
def test_each_person_keeps_at_most_max_rows_and_weighs_one(ids: list[str | None], max_rows: int | None) -> None:
    weights = kept(ids, max_rows)
    for person in set(ids) - {None, ""}:
        own = weights[[one == person for one in ids]]
        expected = len(own) if max_rows is None else min(len(own), max_rows)
        assert np.count_nonzero(own) == expected
        np.testing.assert_allclose(own[own > 0], 1 / expected)
        assert sum(own) == pytest.approx(1, abs=1e-12)
    assert not weights[[not one for one in ids]].any()
    assert share([person_ids(pa.array(ids, pa.string()))], max_rows, KEY).persons == len(set(ids) - {None, ""})


@settings(max_examples=300)
@given(PEOPLE, PEOPLE, st.integers(1, 4), st.randoms(use_true_random=False))
def test_one_persons_rows_move_nobody_elses(ids: list[str | None], other: list[str | None], k: int, random) -> None:  # type: ignore[no-untyped-def]
    """Replace all rows of ann by others, of any number, at any place and with any id that is new: the rest stays."""
    first = [(one, place) for place, one in enumerate(ids)]
    rest = [row for row in first if row[0] != "ann"]
    second = list(rest)
    for place in range(len(other)):
        second.insert(random.randint(0, len(second)), ("eve", -1 - place))

    # order among a person's own rows is theirs; inserting keeps it for all the rest
    def chosen(rows: list[tuple[str | None, int]]) -> dict[int, float]:
        weights = kept([one for one, _ in rows], k, split=random.randint(1, 9))
        return {place: weight for (one, place), weight in zip(rows, weights) if one not in ("ann", "eve")}

    assert chosen(first) == chosen(second)


def test_the_choice_is_even_and_follows_the_key() -> None:
    """4,000 persons with 5 rows each keep 2: each place with probability 0.4, within 5 standard deviations."""
    people, rows, k = 4000, 5, 2
    ids: list[str | None] = [f"p{i % people}" for i in range(people * rows)]
    weights = kept(ids, k, split=10_000)
    by_place = (weights.reshape(rows, people) > 0).mean(axis=1)
    assert np.all(np.abs(by_place - k / rows) < 5 * np.sqrt(0.24 / people)), by_place
    again, other = kept(ids, k, split=333), kept(ids, k, b"another key, 16+", split=10_000)
    np.testing.assert_array_equal(weights, again)
    agree = np.mean((weights > 0) == (other > 0))
    assert abs(agree - (0.4**2 + 0.6**2)) < 0.02
    assert np.array_equal(kept(["a"] * 9, 3, b"x" * 100), kept(["a"] * 9, 3, b"x" * 100))


def table(kind: str, data: dict[str, list]) -> object:  # type: ignore[type-arg]
    frame = pd.DataFrame(data)
    if kind == "numpy":
        return frame.to_numpy()
    return {"pandas": lambda: frame, "polars": lambda: pl.DataFrame(data), "arrow": lambda: pa.table(data)}[kind]()


@pytest.mark.parametrize("kind", ["numpy", "pandas", "polars", "arrow"])
def test_long_whole_numbers_stay_different_persons(kind: str) -> None:
    source = table(kind, {"x0": [2**60, 2**60 + 1, 2**60, 2**60 + 1], "x1": [1, 2, 3, 4]})
    opened = open_table(source, person="x0")
    assert opened.n == 2 and opened.columns == ("x1",)
    np.testing.assert_array_equal(opened.read()[1], [0.5] * 4)


def test_nullable_ids_of_pandas_are_the_same_person_with_and_without_missing_ones() -> None:
    ids = pd.array([2**60 + 1, None, 2**60 + 1, 2**60], "Int64")
    opened = open_table(pd.DataFrame({"p": ids, "x": [1.0, 2.0, 3.0, 4.0]}), person="p")
    values, weights = opened.read()
    assert opened.n == 2
    np.testing.assert_array_equal(values[:, 0], [1, 3, 4])
    np.testing.assert_array_equal(weights, [0.5, 0.5, 1])


def test_blocks_hold_the_kept_rows_only(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "visits.csv"
    lines = [f"{'abc'[i % 3] if i % 7 else 'NA'},{i},{i * i}" for i in range(1000)]
    path.write_text("\n".join(["who,x,y", *lines, ""]))
    opened = open_table(path, person=" who ", max_rows=5, selection_key=KEY, block_rows=4)
    assert opened.weighted and opened.n == 3 and opened.person == "who" and opened.d == 2
    blocks = list(opened.blocks())
    assert [len(values) for values, _ in blocks] == [4, 4, 4, 3]
    values, weights = (np.concatenate(part) for part in zip(*blocks))
    np.testing.assert_allclose(weights, 0.2)
    assert np.all(values[:, 0].astype(int) % 7 > 0) and np.all(np.diff(values[:, 0]) > 0)
    np.testing.assert_array_equal(np.bincount(values[:, 0].astype(int) % 3), [5, 5, 5])
    np.testing.assert_array_equal(values, np.concatenate([block for block, _ in opened.blocks()]))
    one_by_one = open_table(path, person="who", max_rows=5, selection_key=KEY).read()
    np.testing.assert_array_equal(one_by_one[0], values)


def test_without_a_key_each_table_chooses_anew() -> None:
    frame = pd.DataFrame({"p": ["a"] * 1000, "x": range(1000)})
    first, second = (open_table(frame, person="p", max_rows=10) for _ in range(2))
    np.testing.assert_array_equal(first.read()[0], first.read()[0])
    assert not np.array_equal(first.read()[0], second.read()[0])


def test_arguments() -> None:
    frame = pd.DataFrame({"p": ["", "NA", None], "x": [1, 2, 3]})
    with pytest.raises(DataError, match="no row of the data frame has an id in the person column 'p'"):
        open_table(frame, person="p")
    with pytest.raises(ValueError, match="give person=COLUMN"):
        open_table(frame, max_rows=3)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_rows must be a whole number >= 1"):
            open_table(frame, person="p", max_rows=wrong)
    with pytest.raises(ValueError, match="selection_key must be at least 16 bytes") as caught:
        open_table(frame, person="x", max_rows=1, selection_key=b"secret")
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="is of type list<item: int64>, which is no id"):
        open_table(pa.table({"p": [[1]], "x": [1]}), person="p")
    with pytest.raises(DataError, match=r"no column 'q' \(person\)"):
        open_table(frame, person="q")
    with pytest.raises(ValueError, match="cannot be among the columns"):
        open_table(frame, person="p", columns=["x", "p"])
