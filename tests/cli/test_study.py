"""`jaxdpcov study`: files that it writes, what it prints, and how it says what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = """
title = "small"
arms = ["gaussian", "not_private"]
population = "identity"
n = [20, 40]
d = 2
rho = 1.0
x = "n"
repetitions = 3
[bounds]
radius = 3.0
"""


def test_a_study_from_a_file_ends_in_tables_and_a_plot_and_is_not_run_twice(
    cli: Callable[..., Any], place: Path
) -> None:
    (place / "small.toml").write_text(TEXT)
    done = cli("study", "small.toml", "--repetitions", "4")
    assert (done.code, done.err) == (0, "")
    assert "small: 4 repetitions, batch size 4" in done.out and "not_private" in done.out
    made = sorted(file.name for file in (place / "small").iterdir())
    assert made == ["cells", "errors.parquet", "plot.png", "summary.csv", "summary.json"]
    before = {file: file.stat().st_mtime_ns for file in (place / "small" / "cells").glob("cell-*")}
    assert len(before) == 4
    again = cli("study", "small.toml", "--repetitions", "4", "--quiet", "--no-plot")
    assert again.code == 0 and "plot.png" not in again.out
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert json.loads((place / "small" / "summary.json").read_text())["study"]["repetitions"] == 4
    other = cli("study", "small.toml")
    assert other.code == 2 and "holds another study" in other.err and other.err.count("\n") == 1


def test_ready_studies_are_listed(cli: Callable[..., Any]) -> None:
    done = cli("study", "--list")
    assert done.code == 0
    assert "adaptive-d: " in done.out and "pace-rho: " in done.out and "coinpress-mean: " in done.out


def test_what_is_wrong_is_one_line(cli: Callable[..., Any], place: Path) -> None:
    (place / "bad.toml").write_text(TEXT.replace('"gaussian"', '"gausian"'))
    for words, says in (
        (("study",), "name a study"),
        (("study", "adaptive"), "did you mean"),
        (("study", "nothing.toml"), "No such file"),
        (("study", "bad.toml"), "bad.toml: method must be one of"),
        (("study", "adaptive-d", "--devices", "0"), "--devices"),
        (("study", "adaptive-d", "--repetitions", "0"), "repetitions must be"),
    ):
        done = cli(*words)
        assert done.code != 0 and says in done.err and done.err.count("\n") == 1, done
    assert not (place / "adaptive-d").exists()
