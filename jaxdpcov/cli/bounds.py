"""Public bounds as people write them: files in TOML, YAML or JSON, `--bound` flags, and templates to fill in."""

import difflib
import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxdpcov.cli.errors import UserError

FORMATS = ("toml", "yaml", "json")
_ENDINGS = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_FLAG_EXAMPLE = "--bound age=0:120"


class Bound(NamedTuple):
    """The ends of one column, data units, and where they were given."""

    low: float
    high: float
    where: str


def gather(file: Path | None, flags: Sequence[str]) -> dict[str, Bound]:
    """Bounds by column name: those of the file, then those of `--bound`, which win."""
    bounds = {} if file is None else read_file(file)
    given: set[str] = set()
    for flag in flags:
        name, bound = parse_flag(flag)
        if name in given:
            raise UserError(f"--bound is given twice for column {name!r}")
        given.add(name)
        bounds[name] = bound
    return bounds


def parse_flag(text: str) -> tuple[str, Bound]:
    """`NAME=LOW:HIGH`; the last `=` ends the name, which may hold spaces, colons and `=` of its own.

    >>> parse_flag("a=b: c=-5:1e3")
    ('a=b: c', Bound(low=-5.0, high=1000.0, where='--bound'))
    """
    name, equals, ends = text.rpartition("=")
    low, colon, high = ends.partition(":")
    if not (equals and colon and name.strip()):
        raise UserError(f"--bound {text!r} must be NAME=LOW:HIGH, such as {_FLAG_EXAMPLE}")
    return name.strip(), _bound(name.strip(), [low, high], "--bound", f"write {_FLAG_EXAMPLE}")


def read_file(path: Path) -> dict[str, Bound]:
    """The table `bounds` of a file: `column = [low, high]` for each column."""
    kind = file_format(path, "--bounds")
    path = path.expanduser()
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"--bounds: there is no file {path}") from None
    except OSError as error:
        raise UserError(f"--bounds: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not in UTF-8") from None
    reader = {"toml": _read_toml, "yaml": _read_yaml, "json": _read_json}[kind]
    try:
        return dict(_checked(path, kind, reader(path, text)))
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None


def file_format(path: Path, flag: str) -> str:
    """The format that a file's ending says."""
    kind = _ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise UserError(f"{flag}: {path} must end in .toml, .yaml, .yml or .json")
    return kind


def match(bounds: Mapping[str, Bound], columns: Sequence[str], indicators: Iterable[str]) -> dict[str, Any]:
    """The bounds of exactly the columns that are used; indicators of categories have theirs without being listed."""
    for name, bound in bounds.items():
        if name not in columns:
            close = difflib.get_close_matches(name, [column for column in columns if column not in bounds], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "take them out, or add it to --columns"
            used = f"none of the columns used ({_listed(columns)})"
            raise UserError(f"{bound.where} gives bounds for {name!r}, which is {used}; {hint}")
    missing = [name for name in columns if name not in bounds and name not in set(indicators)]
    if missing:
        raise UserError(
            f"no bounds for column{'s' * (len(missing) > 1)} {_listed(missing)}: add {flag_for(missing[0])} (with "
            "public numbers of your own), or a line to the file of --bounds, or leave it out with --columns"
        )
    return {name: (bound.low, bound.high) for name, bound in bounds.items()}


def flag_for(name: str) -> str:
    """The flag that would give bounds to a column, as one would type it.

    >>> flag_for("blood pressure")
    "--bound 'blood pressure=0:120'"
    """
    return f"--bound {shlex.quote(f'{name}=0:120')}"


def template(columns: Sequence[tuple[str, str]], kind: str) -> str:
    """A bounds file with every end left open; as it stands `read_file` refuses it.

    Args:
        columns: names and types, as `jaxdpcov.data.describe_columns` gives them.
        kind: "toml", "yaml" or "json".
    """
    open_ones = [(name, type_) for name, type_ in columns if type_ in ("number", "boolean", "empty")]
    if kind == "json":
        return json.dumps({"bounds": {name: [] for name, _ in open_ones}}, indent=2, ensure_ascii=False)
    lines = [
        "# Public bounds of the columns to release, in each column's own unit: put two numbers, lowest and highest, ",
        "# between the brackets. Take them from the meaning of the column, never from the rows. Delete the lines of",
        "# columns that are not released, such as an id, and choose the others with --columns.",
    ]
    lines = [line.rstrip() for line in lines]
    for name, type_ in columns:
        if type_ == "text":
            lines.append(f"# {_quoted(name)} is text: list its public categories with --category NAME=FIRST,SECOND")
        elif (name, type_) not in open_ones:
            lines.append(f"# {_quoted(name)} is of type {_quoted(type_)}, which is no number")
    if kind == "toml":
        lines += ["", "[bounds]", *(f"{_toml_key(name)} = []  # {type_}" for name, type_ in open_ones)]
    else:
        lines += ["", "bounds:" if open_ones else "bounds: {}"]
        lines += [f"  {_quoted(name)}: []  # {type_}" for name, type_ in open_ones]
    return "\n".join(lines)


def number(text: str) -> float:
    """A finite decimal number; ValueError for anything else.

    >>> number(" -1e3 ")
    -1000.0
    """
    if "_" in text:
        raise ValueError("not a number")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


# -- one reader for each format: pairs of a name and its entry, with the line where the format tells ---------------


class _Entry(NamedTuple):
    name: str
    ends: Any
    where: str


def _read_toml(path: Path, text: str) -> list[_Entry]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        message, line = (found[1], found[2]) if found else (str(error), None)
        place = "at its end" if line is None else f"line {line}"
        raise UserError(f"{path}, {place}: no valid TOML ({message})") from None
    return [_Entry(name, ends, str(path)) for name, ends in _table(path, document).items()]


def _read_json(path: Path, text: str) -> list[_Entry]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{path}: {name!r} is given twice")
        return dict(pairs)

    try:
        document = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: no valid JSON ({error.msg})") from None
    return [_Entry(name, ends, str(path)) for name, ends in _table(path, document).items()]


def _read_yaml(path: Path, text: str) -> list[_Entry]:
    try:
        import yaml
    except ImportError:
        raise UserError(f"reading {path} needs PyYAML: pip install 'jaxdpcov[cli]'") from None
    try:
        # Nodes rather than values: YAML would make False of a column called no, and text of 1e3.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{place}: no valid YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None

    def mapping(node: Any) -> dict[str, Any] | None:
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return {}
        if not isinstance(node, yaml.MappingNode):
            return None
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise UserError(f"{path}, line {key.start_mark.line + 1}: a name that is no text or is given twice")
            found[key.value] = value
        return found

    document = None if root is None else mapping(root)
    table = mapping((document or {}).get("bounds"))
    entries = _table(path, None if document is None else document | {"bounds": table})
    return [_Entry(name, _plain(node), f"{path}, line {node.start_mark.line + 1}") for name, node in entries.items()]


def _plain(node: Any) -> Any:
    """A YAML node as the ends that it spells: a list of texts, None where it is empty, anything else as it is."""
    if isinstance(node.value, list) and not any(isinstance(item, tuple) for item in node.value):
        return [item.value if isinstance(item.value, str) else None for item in node.value]
    return None if node.tag.endswith(":null") else node


def _table(path: Path, document: Any) -> dict[str, Any]:
    """The table `bounds`, the only one that the file may have."""
    if not isinstance(document, dict) or not isinstance(document.get("bounds"), dict):
        raise UserError(f"{path} has no table named bounds; write {_example(path, 'age')}")
    for name in document:
        if name != "bounds":
            raise UserError(f"{path} holds {name!r} beside the table bounds; columns go into that table")
    table: dict[str, Any] = document["bounds"]
    return table


def _checked(path: Path, kind: str, entries: Iterable[_Entry]) -> Iterable[tuple[str, Bound]]:
    seen: set[str] = set()
    for name, ends, where in entries:
        name = name.strip()
        if name in seen:
            raise UserError(f"{where}: column {name!r} is given twice")
        seen.add(name)
        example = _example(path, name)
        if ends is None or ends == []:
            raise UserError(f"{where}: column {name!r} has no bounds yet; write {example}, or delete the line")
        if isinstance(ends, dict) and kind == "toml":
            raise UserError(f"{where}: {name!r} is a table; a column with a dot in its name needs quotes")
        if kind != "yaml" and isinstance(ends, list):
            # numbers only: a text in quotes, true and dates are slips
            ends = [repr(end) if type(end) in (int, float) else "" for end in ends]
        yield name, _bound(name, ends, where, f"write {example}")


def _bound(name: str, ends: Any, where: str, advice: str) -> Bound:
    try:
        low, high = (number(end) for end in ends)
    except (TypeError, ValueError, AttributeError):
        raise UserError(
            f"{where}: bounds of column {name!r} must be two finite numbers, low and high; {advice}"
        ) from None
    if low > high:
        raise UserError(f"{where}: bounds of column {name!r} have low {low:g} above high {high:g}; {advice}")
    return Bound(low, high, where)


def _example(path: Path, name: str) -> str:
    """How bounds of a column look in this file."""
    kind = _ENDINGS[path.suffix.lower()]
    if kind == "toml":
        return f"{_toml_key(name)} = [0, 120] under [bounds]"
    if kind == "yaml":
        return f"{name if name.isidentifier() else _quoted(name)}: [0, 120] below bounds:"
    return f'{{"bounds": {{{_quoted(name)}: [0, 120]}}}}'


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(name: str) -> str:
    """A name in double quotes as TOML, YAML and JSON all read it."""
    escape = lambda found: f"\\u{ord(found[0]):04x}"  # noqa: E731
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", escape, json.dumps(name, ensure_ascii=False))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown if len(names) <= 8 else f"{shown}, ... ({len(names)} in all)"
