"""`jaxdpcov columns`: names and types without a value, and templates."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml


@pytest.fixture
def mixed(place: Path) -> Path:
    """A file with a column of each kind; its cells hold the secret number and word."""
    text = "id,sex,ok,hole,blood pressure\n918273645,Zyzzyva,true,,1.5\n918273645,Zyzzyva,false,,2.5\n"
    (place / "mixed.csv").write_text(text, encoding="utf-8")
    return place


def test_names_and_types_but_no_value(mixed: Path, cli: Callable[..., Any]) -> None:
    done = cli("columns", "mixed.csv")
    assert done.code == 0 and done.err == ""
    for name, kind in (("id", "number"), ("sex", "text"), ("ok", "boolean"), ("hole", "empty")):
        assert any(line.split() == [name, kind] for line in done.out.splitlines()), done.out
    assert "918273645" not in done.out and "Zyzzyva" not in done.out and "1.5" not in done.out
    assert '"blood pressure" = []' in done.out and '"sex" is text' in done.out


def test_each_format_is_a_file_of_its_own(mixed: Path, cli: Callable[..., Any]) -> None:
    expected = {"bounds": {"id": [], "ok": [], "hole": [], "blood pressure": []}}
    for kind, load in (("toml", tomllib.loads), ("yaml", yaml.safe_load), ("json", json.loads)):
        done = cli("columns", "mixed.csv", "--format", kind)
        assert load(done.out) == expected
        assert cli("columns", "mixed.csv", "--out", f"b.{kind}").code == 0
        assert Path(f"b.{kind}").read_text(encoding="utf-8") == done.out
    found = json.loads(cli("columns", "mixed.csv", "--json").out)
    assert found["columns"][1] == {"name": "sex", "type": "text"}


def test_an_unfilled_template_is_refused_with_its_column(place: Path, refuse: Callable[..., str], cli: Any) -> None:
    cli("columns", "rows.csv", "--out", "open.toml")
    line = refuse("estimate", "rows.csv", "--rho", "1", "--bounds", "open.toml")
    assert "open.toml" in line and "column 'a' has no bounds yet" in line and "a = [0, 120]" in line


def test_declared_types(place: Path, cli: Callable[..., Any]) -> None:
    table = pa.table({"n": [1], "t": ["x"], "d": pa.array([0], pa.date32()), "b": [True]})
    pq.write_table(table, "t.parquet")
    np.savez("t.npz", X=np.zeros((2, 2)), columns=np.array(["p", "q"]))
    found = json.loads(cli("columns", "t.parquet", "--json").out)["columns"]
    assert [column["type"] for column in found] == ["number", "text", "date32[day]", "boolean"]
    assert [column["name"] for column in json.loads(cli("columns", "t.npz", "--json").out)["columns"]] == ["p", "q"]


def test_names_cannot_steer_the_terminal(place: Path, cli: Callable[..., Any]) -> None:
    Path("odd.csv").write_text('"\x1b[31mred","[bold]x[/bold]",:smile:\n1,2,3\n', encoding="utf-8")
    done = cli("columns", "odd.csv")
    assert "\x1b" not in done.out and "[bold]x[/bold]" in done.out and ":smile:" in done.out


def test_what_is_refused(place: Path, refuse: Callable[..., str]) -> None:
    Path("dup.csv").write_text("a,a\n918273645,2\n", encoding="utf-8")
    Path("empty.csv").write_text("", encoding="utf-8")
    Path("kept.toml").write_text("[bounds]\n", encoding="utf-8")
    assert "more than one column named 'a'" in refuse("columns", "dup.csv")
    assert "is empty" in refuse("columns", "empty.csv")
    assert "no file nowhere.csv" in refuse("columns", "nowhere.csv")
    assert "must end in .csv" in refuse("columns", "bounds.toml")
    assert "toml, yaml, json" in refuse("columns", "rows.csv", "--format", "xml")
    assert "exclude" in refuse("columns", "rows.csv", "--format", "toml", "--json")
    assert "exists" in refuse("columns", "rows.csv", "--out", "kept.toml")
    assert "must end in .toml" in refuse("columns", "rows.csv", "--out", "b.txt")
    assert "cannot be written" in refuse("columns", "rows.csv", "--out", "nowhere/b.toml")
