"""Studies from files: TOML, YAML or JSON of one structure, and the ready ones of published figures by name."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jaxdpcov import _checks
from jaxdpcov.sim.study import Study


def ready() -> dict[str, Any]:
    """The ready studies: name -> file."""
    folder = resources.files("jaxdpcov.sim.figures")
    files = (file for file in folder.iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in sorted(files, key=lambda file: file.name)}


def read_study(config: str | os.PathLike[str], **changes: Any) -> Study:
    """The study of a TOML, YAML or JSON file, or a ready one by its name; `changes` replace settings of the file.

    Raises:
        ValueError, TypeError: one line that names the file and what is wrong.
        OSError: the file cannot be read.

    >>> from jaxdpcov.sim import read_study
    >>> read_study("adaptive-d", repetitions=5).repetitions
    5
    """
    name = os.fspath(config)
    files = ready()
    if name in files:
        text, kind = files[name].read_text(encoding="utf-8"), "toml"
    elif Path(name).suffix.lower() in (".toml", ".yaml", ".yml", ".json"):
        kind = Path(name).suffix.lower().lstrip(".")
        try:
            text = Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}: no text in UTF-8") from None
    else:
        hint = _checks.hint(name, files)
        raise ValueError(f"a study is a .toml, .yaml or .json file, or one of {', '.join(files)}; got {name!r}{hint}")
    try:
        return Study.of({**_parsed(text, kind), **changes})
    except (ValueError, TypeError) as error:
        kind_of = TypeError if isinstance(error, TypeError) else ValueError
        raise kind_of(f"{name}: {error}") from None


def _parsed(text: str, kind: str) -> Mapping[str, Any]:
    if kind == "toml":
        import tomllib

        return tomllib.loads(text)
    if kind == "json":
        import json

        found = json.loads(text)
    else:
        import yaml

        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"no YAML: {error}") from None
    if not isinstance(found, Mapping):
        raise ValueError("a study is a table of settings")
    return found
