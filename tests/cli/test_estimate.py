"""`jaxdpcov estimate`: what it prints and saves, and one line for everything that it refuses."""

import importlib
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import rich.console

import jaxdpcov
from jaxdpcov import estimate
from jaxdpcov.cli import show
from jaxdpcov.cli.errors import UserError
from jaxdpcov.cli.estimate import parse_categories, parse_columns, parse_options
from jaxdpcov.release import Release

Cli = Callable[..., Any]
PUBLIC = ["--bounds", "bounds.toml", "--rho", "0.5"]
#: With the mechanism of the shortest program.
RUN = [*PUBLIC, "--method", "gaussian"]


def document(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli("estimate", *words, "--json")
    assert done.code == 0 and done.err == "", done
    return json.loads(done.out)


def test_the_release_is_that_of_estimate(cli: Cli) -> None:
    """With the default method of both, which the ledger names."""
    found = document(cli, "rows.csv", *PUBLIC, "--seed", "3")
    release = estimate("rows.csv", bounds={"a": (0, 10), "b": (0, 10)}, rho=0.5, key=3)
    assert found["covariance"] == release.covariance.tolist() and found["mean"] == release.mean.tolist()
    assert found["columns"] == ["a", "b"] and found["n"] == 40 and found["mechanism"] == "auto"
    assert found["spent"]["ZCDP"]["rho"] <= 0.5 and found["study_only"] is True
    chosen, *entries = found["ledger"]
    assert chosen["what"] == "method auto: chosen for box bounds and a zCDP budget"
    assert sum(entry["rho"] for entry in entries) <= 0.5 * (1 + 1e-12)
    assert abs(found["implies"]["epsilon"] - 5.221534) < 1e-5 and found["implies"]["delta"] == 1e-6


def test_what_is_printed(cli: Cli) -> None:
    done = cli("estimate", "rows.csv", *RUN)
    assert done.code == 0 and done.err == ""
    expected = ["n = 40", "d = 2", "spent 0.5-zCDP", "one row (not one person", "replace (n is public)", "column"]
    expected += ["mean", "std", "ledger:", "sum of z z^T, gaussian", "covariance:", "implies (5.22154, 1e-06)-DP"]
    assert [text for text in expected if text not in done.out] == []
    assert "STUDY" not in done.out
    assert "FOR STUDY ONLY" in cli("estimate", "rows.csv", *RUN, "--seed", "1").out


def test_means_alone(cli: Cli) -> None:
    done = cli("estimate", "rows.csv", *RUN, "--method", "product_mean", "--option", "constants=theory")
    assert done.code == 0 and "covariance: none" in done.out and "2 disjoint row blocks" in done.out
    assert document(cli, "rows.csv", *RUN, "--method", "product_mean")["covariance"] is None


def test_private_bounds(cli: Cli) -> None:
    rows = np.random.default_rng(0).normal([170.0, 40.0], [10.0, 5.0], (3000, 2))
    np.savetxt("wide.csv", rows, delimiter=",", header="height,age", comments="")
    public = ["wide.csv", "--bound", "height=0:10000", "--bound", "age=0:1000", "--rho", "1"]
    done = cli("estimate", *public, "--private-bound", "height=20", "--private-bound", "age=10")
    assert done.code == 0 and "lower" in done.out and "histograms, stage 1 of 1" in done.out
    found = document(cli, *public, "--private-bound", "height=20")
    assert 0 < found["lower"][0] < 170 < found["upper"][0] < 400 and found["upper"][1] == 1000.0
    intervals = document(cli, *public, "--method", "private_range", "--option", "std=20,10")
    assert 40 < intervals["upper"][1] < 140 and intervals["covariance"] is None
    approximate = [*public[:-2], "--epsilon", "1", "--delta", "1e-7", "--method", "private_range", "--option", "std=20"]
    assert document(cli, *approximate)["implies"] == {"epsilon": 1.0, "delta": 1e-7}
    assert "implies (1, 1e-07)-DP" in cli("estimate", *approximate).out


def test_seeds_repeat_and_the_operating_system_does_not(cli: Cli) -> None:
    runs = [document(cli, "rows.csv", *RUN, *words)["covariance"] for words in (["--seed", "7"],) * 2 + ([],) * 2]
    assert runs[0] == runs[1] and runs[2] != runs[3] and runs[0] != runs[2]
    assert runs[0] != document(cli, "rows.csv", *RUN, "--seed", "8")["covariance"]


def test_every_choice_reaches_estimate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("p.csv").write_text("who,a,sex,b\n1,1,F,1\n1,2,M,2\n2,3,,3\n", encoding="utf-8")
    seen: dict[str, Any] = {}

    def record(data: Any, **given: Any) -> Release:
        seen.update(given, data=data)
        return jaxdpcov.estimate(data, **given)

    monkeypatch.setattr(importlib.import_module("jaxdpcov.estimate"), "estimate", record)
    done = cli(
        "estimate", "p.csv", "--bound", "a=-5:1e3", "--bound", "b=0:1", "--epsilon", "1", "--delta", "1e-6",
        "--method", "diagonal", "--columns", "b,sex", "--columns", "a", "--category", "sex=F,M,", "--person", "who",
        "--max-rows", "1", "--missing", "cell", "--center", "zero", "--relation", "add_remove", "--option", "psd=floor",
        "--option", "n_share=0.1",
    )  # fmt: skip
    assert done.code == 0, done
    assert done.out.count("sex=") >= 3 and "n is private" in done.out and "one person" in done.out
    seen.pop("progress")
    assert seen == {
        "data": "p.csv", "bounds": {"a": (-5.0, 1000.0), "b": (0.0, 1.0)}, "rho": None, "epsilon": 1.0, "delta": 1e-6,
        "method": "diagonal", "columns": ["b", "sex", "a"], "categories": {"sex": ["F", "M", ""]}, "person": "who",
        "max_rows": 1, "missing": "cell", "center": "zero", "relation": "add_remove", "key": None, "psd": "floor",
        "n_share": 0.1,
    }  # fmt: skip


def test_a_ball_instead_of_a_box(cli: Cli) -> None:
    words = ["--radius", "9", "--ball-center", "5,5", "--epsilon", "1", "--seed", "3"]
    found = document(cli, "rows.csv", *words)
    release = estimate("rows.csv", bounds=jaxdpcov.Bounds.l2(9.0, [5.0, 5.0]), epsilon=1.0, key=3)
    assert found["covariance"] == release.covariance.tolist()
    assert "for l2 bounds and a pure-DP budget" in found["ledger"][0]["what"]


def test_save_and_load(cli: Cli, refuse: Callable[..., str]) -> None:
    done = cli("estimate", "rows.csv", *RUN, "--out", "r.npz")
    assert "saved to r.npz" in done.out and not Path("r.npz.tmp").exists()
    assert isinstance(jaxdpcov.load("r.npz"), Release)
    before = Path("r.npz").read_bytes()
    assert "--force" in refuse("estimate", "rows.csv", *RUN, "--out", "r.npz")
    assert Path("r.npz").read_bytes() == before
    assert cli("estimate", "rows.csv", *RUN, "--out", "r.npz", "--force", "--quiet") == type(done)(0, "", "")
    assert Path("r.npz").read_bytes() != before


def test_a_release_that_cannot_be_saved_is_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Release, "save", full)
    done = cli("estimate", "rows.csv", *RUN, "--out", "r.npz", "--quiet")
    assert done.code == 2 and "covariance:" in done.out and "No space left on device" in done.err


def test_large_covariances_are_not_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "MOST_PRINTED", 1)
    done = cli("estimate", "rows.csv", *RUN)
    assert done.code == 0 and "2 x 2, too large to print" in done.out


DATA: dict[str, tuple[str, list[str]]] = {
    "one NaN": ("a,b\n1,2\nnan,4\n5,6\n", []),
    "an infinity": ("a,b\n1,2\n-inf,4\n5,inf\n", []),
    "1e300": ("a,b\n1,2\n1e300,4\n5,-1e300\n", []),
    "text in a cell": ("a,b\n1,2\n918273645x,4\n", []),
    "a constant column": ("a,b\n1,2\n1,4\n1,6\n", []),
    "all constant": ("a,b\n1,2\n1,2\n", []),
    "n = 1": ("a,b\n1,2\n", []),
    "zero width": ("a,b\n1,2\n1,3\n", ["--bound", "a=1:1"]),
}


@pytest.mark.parametrize("case", DATA)
def test_odd_rows_are_answered(case: str, cli: Cli) -> None:
    text, words = DATA[case]
    Path("odd.csv").write_text(text, encoding="utf-8")
    found = document(cli, "odd.csv", *RUN, *words)
    covariance = np.array(found["covariance"])
    assert np.isfinite(covariance).all() and np.isfinite(found["mean"]).all()
    assert (covariance == covariance.T).all() and np.linalg.eigvalsh(covariance)[0] >= -1e-9 * covariance.max()
    assert found["n"] == len(text.splitlines()) - 1


def test_one_column(cli: Cli) -> None:
    Path("one.csv").write_text("a\n1\n2\n", encoding="utf-8")
    assert np.shape(document(cli, "one.csv", "--bound", "a=0:3", "--rho", "1")["covariance"]) == (1, 1)


FILES: dict[str, tuple[str, str, str]] = {
    "empty": ("odd.csv", "", "is empty"),
    "header only": ("odd.csv", "a,b\n", "has no rows"),
    "ragged": ("odd.csv", "a,b\n1,2\n918273645,3,4\n", "row 2 (line 3"),
    "ragged, short": ("odd.csv", "a,b\n1,2\n918273645\n", "row 2 (line 3"),
    "two of one name": ("odd.csv", "a,a\n918273645,2\n", "more than one column named 'a'"),
    "no header": ("odd.csv", "918273645,2\n3,4\n", "holds numbers"),
    "open quote": ("odd.csv", 'a,b\n1,2\n"918273645,3\n', "odd.csv"),
    "text column": ("odd.csv", "a,b\n1,Zyzzyva\n2,Zyzzyva\n", "--category b=FIRST,SECOND"),
    "third column": ("odd.csv", "a,b,c\n1,2,3\n", "no bounds for column 'c': add --bound c=0:120"),
    "other columns": ("odd.csv", "a,bb\n1,2\n", "did you mean 'bb'?"),
    "other ending": ("odd.xlsx", "x", "must end in .csv"),
    "no parquet": ("odd.parquet", "918273645", "cannot be read as a Parquet file"),
    "no npy": ("odd.npy", "918273645", "cannot be read as a npy file"),
}


@pytest.mark.parametrize("case", FILES)
def test_odd_files_are_refused(case: str, refuse: Callable[..., str]) -> None:
    name, text, expected = FILES[case]
    Path(name).write_text(text, encoding="utf-8")
    line = refuse("estimate", name, *RUN)
    assert expected in line and "Zyzzyva" not in line


def test_paths_that_are_no_files(refuse: Callable[..., str], place: Path) -> None:
    assert "there is no file nowhere.csv" in refuse("estimate", "nowhere.csv", *RUN)
    Path("folder").mkdir()
    assert "is a directory" in refuse("estimate", "folder", *RUN)
    os.chmod("rows.csv", 0)
    try:
        if not os.access("rows.csv", os.R_OK):  # the superuser may read everything
            assert "permissions" in refuse("estimate", "rows.csv", *RUN)
    finally:
        os.chmod("rows.csv", 0o644)


BOTH = "--bounds bounds.toml "
CHOICES = {
    "--rho 1": "such as --bound a=0:120",
    "--rho 1 --bound a=0:1": "add --bound b=0:120",
    "--rho 1 --bound c=0:1 --bounds bounds.toml": "--bound gives bounds for 'c'",
    "--rho 1 --bound a=5": "--bound age=0:120",
    "--rho 1 --bounds nowhere.toml": "no file nowhere.toml",
    "--rho 1 --bounds rows.csv": "must end in .toml",
    BOTH + "--rho 0": "rho must be finite and > 0, got 0.0",
    BOTH + "--rho -1": "rho must be finite and > 0, got -1.0",
    BOTH + "--rho nan": "rho must be finite and > 0, got nan",
    BOTH + "--rho inf": "rho must be finite and > 0, got inf",
    BOTH + "--rho abc": "'--rho'",
    BOTH + "--epsilon 1 --delta 0": "delta must satisfy 0 < delta < 1, got 0.0",
    BOTH + "--epsilon 1 --delta 1": "delta must satisfy 0 < delta < 1, got 1.0",
    BOTH + "--epsilon 0 --delta 1e-6": "epsilon must be finite and > 0",
    BOTH + "--rho 1 --epsilon 1": "exactly one budget: --rho 0.5, or --epsilon 1.0 with --delta 1e-6",
    BOTH: "exactly one budget",
    BOTH + "--delta 1e-6": "exactly one budget",
    BOTH + "--rho 1 --delta 1e-6": "delta goes with epsilon",
    BOTH + "--epsilon 1 --method gaussian": "give --delta as well (say 1e-6), or a method that has one (",
    BOTH + "--rho 1 --method laplace": "laplace is pure DP: give --epsilon",
    BOTH + "--rho 1 --method gausian": "did you mean 'gaussian'?",
    BOTH + "--rho 1 --method gaussian --columns a,c": "no column 'c'",
    BOTH + "--rho 1 --columns a": "none of the columns used ('a')",
    BOTH + "--rho 1 --columns a,a": "more than once",
    BOTH + '--rho 1 --columns "a': "must be a list",
    BOTH + "--rho 1 --center foo": "center must be one of 'private', 'zero', 'pairs'; got 'foo'",
    BOTH + "--rho 1 --missing foo": "missing must be one of 'row', 'cell', 'error'; got 'foo'",
    BOTH + "--rho 1 --relation foo": "relation must be one of 'replace', 'add_remove'; got 'foo'",
    BOTH + "--rho 1 --relation add_remove --center pairs": "--center 'pairs' needs --relation 'replace'",
    BOTH + "--rho 1 --max-rows 2": "--max-rows limits the rows of each person: give --person",
    "--rho 1 --bound b=0:1 --person a --max-rows 0": "--max-rows must be a whole number >= 1",
    BOTH + "--rho 1 --person c": "no column 'c' (person)",
    BOTH + "--rho 1 --option psd": "must be NAME=VALUE",
    BOTH + "--rho 1 --private-bound x": "--private-bound 'x' must be NAME=VALUE",
    BOTH + "--rho 1 --private-bound x=1": "private_bounds has an entry for 'x'",
    BOTH + "--rho 1 --option psd=x": "psd must be one of",
    BOTH + "--rho 1 --option noize=sgw": "no method for box bounds and a zCDP budget takes noize; did you mean 'noise'",
    BOTH + "--rho 1 --option key=1": "takes key; name one with --method",
    BOTH + "--rho 1 --method gaussian --option noize=sgw": "gaussian has no option 'noize'",
    BOTH + "--rho 1 --option center=zero": "the flag --center",
    BOTH + "--rho 1 --option n_share=2": "n_share must satisfy",
    BOTH + "--rho 1 --option psd=none --option psd=none": "twice",
    BOTH + "--rho 1 --category c=x,y": "no column 'c'",
    BOTH + "--rho 1 --category c": "must be NAME=FIRST,SECOND",
    BOTH + "--rho 1 --category a=": "lists no category",
    BOTH + "--rho 1 --category a=1 --category a=2": "twice for column 'a'",
    "--rho 1 --bound b=0:1 --category a=x,x": "must be different",
    "--rho 1 --radius 0": "radius must be finite and > 0",
    "--rho 1 --radius 1 --ball-center 1,2,3": "one entry for each of the 2 columns",
    "--rho 1 --radius 1 --ball-center 1,2,3 --missing cell": "one entry for each of the 2 columns",
    "--rho 1 --radius 1 --ball-center x": "finite numbers",
    BOTH + "--rho 1 --radius 1": "give one kind",
    BOTH + "--rho 1 --ball-center 1": "goes with --radius",
    BOTH + "--rho 1 --seed -1": "'--seed'",
    BOTH + "--rho 1 --seed x": "'--seed'",
    BOTH + "--rho 1 --quiet": "--quiet without --out or --json",
    BOTH + "--rho 1 --out r.csv": "must end in .npz",
    BOTH + "--rho 1 --out nowhere/r.npz": "a directory that exists",
}


@pytest.mark.parametrize("words", CHOICES)
def test_choices_that_cannot_be(words: str, refuse: Callable[..., str]) -> None:
    assert CHOICES[words] in refuse("estimate", "rows.csv", *words.split())


def test_epsilon_alone_names_the_pure_methods(refuse: Callable[..., str]) -> None:
    line = refuse("estimate", "rows.csv", "--bounds", "bounds.toml", "--epsilon", "1", "--method", "gaussian")
    assert "--delta" in line and "laplace" in line.partition("has one (")[2]


def test_the_data_is_not_opened_before_the_rest_is_right(refuse: Callable[..., str], place: Path) -> None:
    Path("rows.csv").write_text("a,a\n", encoding="utf-8")
    for words, expected in CHOICES.items():
        if words.startswith("--rho 1 --bounds n") or "--rho 0" in words or "--out" in words or "--option" in words:
            assert expected in refuse("estimate", "rows.csv", *words.split())


def test_missing_cells_by_name(refuse: Callable[..., str], cli: Cli) -> None:
    Path("odd.csv").write_text("a,b\n1,918273645\n,2\n", encoding="utf-8")
    assert "column 'a' of odd.csv has no number in row 2" in refuse("estimate", "odd.csv", *RUN, "--missing", "error")
    assert cli("estimate", "odd.csv", *RUN, "--missing", "cell").code == 0
    assert "looked for without privacy" in cli("estimate", "rows.csv", *RUN, "--missing", "error").out


def test_out_is_never_the_data(refuse: Callable[..., str], place: Path) -> None:
    np.savez("rows.npz", X=np.ones((3, 2)), columns=np.array(["a", "b"]))
    before = Path("rows.npz").read_bytes()
    assert "file of the data" in refuse("estimate", "rows.npz", *RUN, "--out", "rows.npz", "--force")
    assert Path("rows.npz").read_bytes() == before


def test_lists() -> None:
    assert parse_columns(['a, "b, c"', "d=e"]) == ["a", "b, c", "d=e"]
    assert parse_categories(["x=1,2", 's=F="a,b",c'], ["s=F", "s"]) == {"x": ["1", "2"], "s=F": ["a,b", "c"]}
    assert parse_categories(["s=<=5,>5"], ["s"]) == {"s": ["<=5", ">5"]}
    assert parse_options(["a=1", "b=1e-3", "c=false", "d=none", "e=x=y"]) == {
        "a": 1, "b": 1e-3, "c": False, "d": "none", "e": "x=y"
    }  # fmt: skip
    with pytest.raises(UserError, match="must be a list"):
        parse_columns(['"a'])


def test_progress_is_a_fraction_without_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(show, "Console", lambda **_: console)
    monkeypatch.setattr(show, "PATIENCE", 0.0)
    with show.progress(True) as report:
        assert report is not None
        for done, total in ((98_765, 246_912), (197_530, 246_912), (4_242, None)):
            report(done, total)
            time.sleep(0.15)  # the bar draws itself ten times a second
    seen = screen.getvalue()
    assert "40%" in seen and "80%" in seen
    assert not any(count in seen.replace(",", "") for count in ("98765", "197530", "246912", "4242"))


def test_no_bar_without_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "PATIENCE", 0.0)
    assert cli("estimate", "rows.csv", *RUN).err == ""


def test_the_settings_of_a_process_that_runs_it(cli: Cli) -> None:
    assert cli("estimate", "rows.csv", *RUN).code == 0 and jax.config.read("jax_enable_x64") is True
