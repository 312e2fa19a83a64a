"""Bounds as people write them: three formats, flags, slips told with their line, templates that refuse as they are."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jaxdpcov.cli import bounds
from jaxdpcov.cli.errors import UserError

GOOD = {
    "b.toml": '[bounds]\nage = [0, 120]\n"blood pressure" = [-5.5, 1e3]\n',
    "b.yaml": "bounds:\n  age: [0, 120]\n  blood pressure: [-5.5, 1e3]\n",
    "b.yml": 'bounds:\n  age:\n  - 0\n  - 120\n  "blood pressure":\n  - -5.5\n  - 1e3\n',
    "b.json": '{"bounds": {"age": [0, 120], "blood pressure": [-5.5, 1e3]}}',
    "B.TOML": '\ufeff[bounds]\r\n# note\r\nage = [0, 120]\r\n"blood pressure" = [-5.5, 1_000]\r\n',
}


@pytest.mark.parametrize("name", GOOD)
def test_three_formats_say_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(GOOD[name], encoding="utf-8", newline="")
    found = {column: tuple(bound[:2]) for column, bound in bounds.read_file(path).items()}
    assert found == {"age": (0.0, 120.0), "blood pressure": (-5.5, 1000.0)}


def test_yaml_names_are_names(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text("bounds:\n  no: [0, 1]\n  1: [0, 2]\n  2020-01-01: [0, 3]\n", encoding="utf-8")
    assert [bound.high for bound in bounds.read_file(path).values()] == [1.0, 2.0, 3.0]
    assert list(bounds.read_file(path)) == ["no", "1", "2020-01-01"]


BAD = {
    "toml, open bracket": ("b.toml", "[bounds]\na = [0, 10\nb = 1\n", "b.toml, line 3"),
    "toml, no value": ("b.toml", "[bounds]\na =\n", "b.toml, line 2"),
    "toml, its end": ("b.toml", '[bounds]\na = "', "b.toml"),
    "toml, twice": ("b.toml", "[bounds]\na = [0, 1]\na = [0, 2]\n", "b.toml, line 3"),
    "toml, twice by spaces": ("b.toml", '[bounds]\na = [0, 1]\n"a " = [0, 2]\n', "'a' is given twice"),
    "toml, no table": ("b.toml", "a = [0, 1]\n", "no table named bounds"),
    "toml, a typo in the table": ("b.toml", "[bound]\na = [0, 1]\n", "no table named bounds"),
    "toml, a column outside": ("b.toml", "b = [0, 1]\n[bounds]\na = [0, 1]\n", "'b' beside the table"),
    "toml, a dot": ("b.toml", "[bounds]\na.b = [0, 1]\n", "needs quotes"),
    "toml, one number": ("b.toml", "[bounds]\na = 5\n", "two finite numbers"),
    "toml, three numbers": ("b.toml", "[bounds]\na = [0, 1, 2]\n", "two finite numbers"),
    "toml, text": ("b.toml", '[bounds]\na = ["0", "1"]\n', "two finite numbers"),
    "toml, truth": ("b.toml", "[bounds]\na = [false, true]\n", "two finite numbers"),
    "toml, infinite": ("b.toml", "[bounds]\na = [0, inf]\n", "two finite numbers"),
    "toml, nan": ("b.toml", "[bounds]\na = [nan, 1]\n", "two finite numbers"),
    "toml, beyond the floats": ("b.toml", f"[bounds]\na = [0, 1{'0' * 400}]\n", "two finite numbers"),
    "toml, upside down": ("b.toml", "[bounds]\na = [3, 1]\n", "low 3 above high 1"),
    "toml, open": ("b.toml", "[bounds]\na = []\n", "column 'a' has no bounds yet"),
    "toml, empty": ("b.toml", "", "no table named bounds"),
    "yaml, open bracket": ("b.yaml", "bounds:\n  a: [0, 10\n  b: [0, 1]\n", "b.yaml, line 3"),
    "yaml, a tab": ("b.yaml", "bounds:\n\ta: [0, 1]\n", "b.yaml, line 2"),
    "yaml, twice": ("b.yaml", "bounds:\n  a: [0, 1]\n  a: [0, 2]\n", "b.yaml, line 3"),
    "yaml, upside down": ("b.yaml", "bounds:\n  b: [0, 1]\n  a: [3, 1]\n", "b.yaml, line 3"),
    "yaml, open": ("b.yaml", "bounds:\n  b: [0, 1]\n  a:\n", "b.yaml, line 3: column 'a' has no bounds yet"),
    "yaml, text": ("b.yaml", "bounds:\n  a: low high\n", "b.yaml, line 2"),
    "yaml, nested": ("b.yaml", "bounds:\n  a: [[0, 1], 2]\n", "two finite numbers"),
    "yaml, a table": ("b.yaml", "bounds:\n  a: {low: 0, high: 1}\n", "two finite numbers"),
    "yaml, infinite": ("b.yaml", "bounds:\n  a: [0, .inf]\n", "two finite numbers"),
    "yaml, a list": ("b.yaml", "- a\n", "no table named bounds"),
    "yaml, empty": ("b.yaml", "", "no table named bounds"),
    "yaml, two": ("b.yaml", "bounds: {}\n---\nbounds: {}\n", "no valid YAML"),
    "yaml, code": ("b.yaml", "bounds:\n  a: !!python/object/apply:os.system ['echo 1']\n", "two finite numbers"),
    "json, a comma": ("b.json", '{"bounds": {"a": [0, 10],\n}}', "b.json, line 2"),
    "json, twice": ("b.json", '{"bounds": {"a": [0, 10], "a": [0, 1]}}', "'a' is given twice"),
    "json, a list": ("b.json", "[1, 2]", "no table named bounds"),
    "json, infinite": ("b.json", '{"bounds": {"a": [0, Infinity]}}', "two finite numbers"),
    "json, open": ("b.json", '{"bounds": {"a": null}}', "column 'a' has no bounds yet"),
    "json, deep": ("b.json", "[" * 100_000, "b.json"),
    "other ending": ("b.ini", "", "must end in .toml"),
}


@pytest.mark.parametrize("case", BAD)
def test_slips_name_the_file_and_the_line(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, text, expected = BAD[case]
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        bounds.read_file(Path(name))
    assert expected in str(caught.value) and name in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        bounds.read_file(tmp_path / "nowhere.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        bounds.read_file(tmp_path / "folder.toml")
    (tmp_path / "latin.toml").write_bytes(b"[bounds]\n# caf\xe9\na = [0, 1]\n")
    with pytest.raises(UserError, match=r"latin.toml, line 2: not in UTF-8"):
        bounds.read_file(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "name", "low", "high"),
    [
        ("age=0:120", "age", 0, 120),
        ("a=-5:5", "a", -5, 5),
        ("a=-1e3:+.5", "a", -1000, 0.5),
        ("a = 0 : 1 ", "a", 0, 1),
        ("a=3:3", "a", 3, 3),
        ("a:b=0:1", "a:b", 0, 1),
        ("sex=F=0:1", "sex=F", 0, 1),
        ("blood pressure=0:1", "blood pressure", 0, 1),
    ],
)
def test_flags(text: str, name: str, low: float, high: float) -> None:
    assert bounds.parse_flag(text) == (name, bounds.Bound(low, high, "--bound"))


@pytest.mark.parametrize(
    "text",
    ["", "age", "age=", "age=5", "=0:1", " =0:1", "age=0:", "age=:1", "age=0:1:2", "age=0:inf", "age=nan:1", "age=a:b",
     "age=2:1", "age=0-120", "age:0=120", "age=1_0:20"],
)  # fmt: skip
def test_flags_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=r"--bound age=0:120"):
        bounds.parse_flag(text)


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text("[bounds]\na = [0, 1]\nb = [0, 2]\n", encoding="utf-8")
    found = bounds.gather(path, ["b=0:3", "c=0:4"])
    assert {name: bound.high for name, bound in found.items()} == {"a": 1, "b": 3, "c": 4}
    with pytest.raises(UserError, match="twice for column 'b'"):
        bounds.gather(path, ["b=0:3", "b=0:4"])


def test_every_column_needs_its_bounds_and_no_other_may_have_any() -> None:
    known = {"a": bounds.Bound(0, 1, "b.toml"), "b": bounds.Bound(0, 1, "--bound")}
    assert bounds.match(known, ["b", "a", "s=F"], ["s=F"]) == {"a": (0, 1), "b": (0, 1)}
    with pytest.raises(UserError, match=r"column 'old age': add --bound 'old age=0:120'"):
        bounds.match(known, ["a", "b", "old age"], [])
    with pytest.raises(UserError, match=r"columns 'c', 'd': add --bound c=0:120"):
        bounds.match(known, ["a", "b", "c", "d"], [])
    with pytest.raises(UserError, match=r"--bound gives bounds for 'b'.*none of the columns used \('a'\)"):
        bounds.match(known, ["a"], [])
    with pytest.raises(UserError, match=r"b.toml gives bounds for 'a'.*did you mean 'aa'\?"):
        bounds.match(known, ["aa", "b"], [])


# Any text that a column can be called; surrounding spaces are no part of a name, and lone surrogates no text.
NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).map(str.strip).filter(bool),
    min_size=1, max_size=6, unique=True,
)  # fmt: skip


@given(names=NAMES, kind=st.sampled_from(bounds.FORMATS))
def test_a_template_refuses_until_it_is_filled_in(names: list[str], kind: str, tmp_path_factory) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("t") / f"b.{kind}"
    text = bounds.template([(name, "number") for name in names], kind)
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(UserError, match="has no bounds yet"):
        bounds.read_file(path)
    path.write_text(text.replace("[]", "[-1, 2.5]"), encoding="utf-8", newline="")
    if any("[]" in name for name in names):
        return
    found = bounds.read_file(path)
    assert list(found) == names and {bound[:2] for bound in found.values()} == {(-1.0, 2.5)}


def test_a_template_leaves_out_what_is_no_number() -> None:
    described = [("a", "number"), ("sex", "text"), ("ok", "boolean"), ("day", "date32[day]"), ("hole", "empty")]
    for kind in bounds.FORMATS:
        text = bounds.template(described, kind)
        load = {"json": json.loads, "yaml": yaml.safe_load, "toml": bounds.tomllib.loads}[kind]
        assert load(text) == {"bounds": {"a": [], "ok": [], "hole": []}}
        assert kind == "json" or ('"sex" is text' in text and "date32" in text)


def test_a_template_of_no_numbers_at_all(tmp_path: Path) -> None:
    for kind in bounds.FORMATS:
        path = tmp_path / f"b.{kind}"
        path.write_text(bounds.template([("sex", "text")], kind), encoding="utf-8")
        assert bounds.read_file(path) == {}
