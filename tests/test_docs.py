"""Every example that a person can copy runs: Python and shell blocks of README and docs, doctests of the modules."""

import doctest
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import jaxdpcov
from jaxdpcov.mechanisms._registry import MECHANISMS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = [
    found.name for found in pkgutil.walk_packages(jaxdpcov.__path__, "jaxdpcov.") if not found.name.endswith("__main__")
]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language on a page."""
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def command_lines() -> list[str]:
    """Each `jaxdpcov ...` line of the shell blocks, and the one at the end of README's main command."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    return sorted({line[found.start() :] for line in lines if (found := re.search(r"\bjaxdpcov (?=[a-z])", line))})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder in which the examples' relative paths lead to the shipped files."""
    shutil.copytree(ROOT / "docs" / "examples", tmp_path / "docs" / "examples")
    return tmp_path


def run(arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    """Run as a person would: JAX as it comes, warnings are errors."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_blocks_of_a_page_run_as_one_script(page: Path, place: Path) -> None:
    done = run(["-c", "\n".join(blocks(page, "python"))], place)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_run(line: str, place: Path) -> None:
    done = run(["-c", "import sys; from jaxdpcov.cli import main; sys.exit(main())", *shlex.split(line)[1:]], place)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_readme_has_a_quick_start_and_a_command() -> None:
    """Guards the two tests above against a change of the fences that would leave them nothing to run."""
    assert blocks(ROOT / "README.md", "python")
    assert any(line.startswith("jaxdpcov estimate docs/examples/health.csv") for line in command_lines())


def test_readme_has_a_line_for_every_method() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Methods")[1].split("## What is promised")[0]
    assert set(re.findall(r"`([a-z_0-9]+)`", table)) >= set(MECHANISMS)


def test_example_bounds_name_the_columns_of_the_example_data() -> None:
    examples = ROOT / "docs" / "examples"
    with (examples / "health.csv").open(encoding="utf-8") as file:
        header = file.readline().strip().split(",")
    bounds = tomllib.loads((examples / "health.toml").read_text(encoding="utf-8"))["bounds"]
    assert ["person", *bounds] == header
    assert all(low < high for low, high in bounds.values())


@pytest.mark.parametrize("x64", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["x64", "x32"])
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str, x64: bool) -> None:
    """The examples print the same with 64-bit numbers and without, as a plain script has it."""
    with jax.enable_x64(x64):
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
