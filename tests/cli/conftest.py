"""What the tests of the command line share: an empty folder with small files, and runs whose ending is checked."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxdpcov.cli import main

#: A number that stands in data only: no message may ever show it.
SECRET = "918273645"


@dataclasses.dataclass(frozen=True)
class Done:
    """How one run ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with rows of two columns and bounds that fit them."""
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{i % 10},{(3 * i) % 7}" for i in range(40))
    (tmp_path / "rows.csv").write_text(f"a,b\n{rows}\n", encoding="utf-8")
    (tmp_path / "bounds.toml").write_text("[bounds]\na = [0, 10]\nb = [0, 10]\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def cli(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run the command line in this process."""

    def run(*words: str) -> Done:
        capsys.readouterr()
        code = main(list(words))
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err and SECRET not in seen.err + (seen.out if code else "")
        return Done(code, seen.out, seen.err)

    return run


@pytest.fixture
def refuse(cli: Callable[..., Done]) -> Callable[..., str]:
    """Run what must be refused: exit code 2, nothing on standard output, and one line, which is returned."""

    def run(*words: str, code: int = 2) -> str:
        done = cli(*words)
        assert (done.code, done.out) == (code, ""), done
        lines = done.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("Error: "), done.err
        return lines[0].removeprefix("Error: ")

    return run
