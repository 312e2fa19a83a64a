"""One line for every failure: the library's own messages with flags, nothing at all of anybody else's text."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
import typer

import jaxdpcov.data.io
from jaxdpcov.cli import errors
from jaxdpcov.data import DataError

SECRET = "918273645"


def raised(code: str, module: str) -> Exception:
    """The exception that running `code` as part of `module` makes."""
    space: dict[str, Any] = {"__name__": module, "DataError": DataError}
    with pytest.raises(Exception) as caught:
        exec(code, space)
    return caught.value


OURS = "def f():\n    raise ValueError('rho must be > 0')\nf()"


def test_a_message_of_ours_is_shown() -> None:
    assert errors.describe(raised(OURS, "jaxdpcov.made.up")) == ("rho must be > 0", 2)


@pytest.mark.parametrize(
    ("code", "module"),
    [
        (OURS, "numpy.made.up"),
        (f"int('{SECRET}x')", "jaxdpcov.made.up"),
        (f"import numpy as np\nnp.asarray(['{SECRET}x']).astype(float)", "jaxdpcov.made.up"),
        (f"{{}}['{SECRET}']", "jaxdpcov.made.up"),
        (f"raise KeyError('{SECRET}')", "jaxdpcov.made.up"),
        (f"raise RuntimeError('{SECRET}')", "jaxdpcov.made.up"),
        (f"raise OSError('{SECRET}')", "jaxdpcov.made.up"),
    ],
)
def test_a_text_that_could_hold_data_is_not(code: str, module: str) -> None:
    line, exit_code = errors.describe(raised(code, module))
    assert exit_code == 1 and line.startswith("internal error") and SECRET not in line and "rho" not in line


def test_a_text_from_within_jax_is_not_shown_though_jax_cuts_its_frames() -> None:
    code = "import jax.numpy as jnp\ndef f():\n    return jnp.ones(3) @ jnp.ones(4)\nf()"
    assert errors.describe(raised(code, "jaxdpcov.made.up"))[1] == 1


def test_data_errors_and_the_systems_own_words_are_shown() -> None:
    assert errors.describe(raised("raise DataError('row 3 is short')", "elsewhere")) == ("row 3 is short", 2)
    assert errors.describe(OSError(28, "No space left on device")) == ("No space left on device", 1)
    assert errors.describe(MemoryError()) == ("out of memory", 1)
    exhausted = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 918273645 bytes")
    assert errors.describe(exhausted) == ("out of memory", 1)


def test_the_line_stays_one_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    errors.complain("a\nb\r\n\x1b[31mc\u202e")
    assert capsys.readouterr().err == "Error: a b \\x1b[31mc\\u202e\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give delta= as well (say 1e-6)", "give --delta as well (say 1e-6)"),
        ("leave it out with columns=", "leave it out with --columns"),
        ("center='pairs' needs relation='replace': no", "--center 'pairs' needs --relation 'replace': no"),
        ("categories={'sex': [...]} or", "--category 'sex=FIRST,SECOND' or"),
        ("no column 'rho=1' in 'my delta=3'", "no column 'rho=1' in 'my delta=3'"),
        ("a person's rows; columns= too", "a person's rows; --columns too"),
    ],
)
def test_keywords_become_flags(text: str, expected: str) -> None:
    assert errors.with_flags(text) == expected


def test_an_unexpected_exception_ends_in_one_line(refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError(SECRET)

    monkeypatch.setattr(jaxdpcov.data.io, "describe_columns", fail)
    line = refuse("columns", "rows.csv", code=1)
    assert "KeyError" in line and "cli/columns.py" in line


@pytest.mark.parametrize("stop", [KeyboardInterrupt, typer.Exit(130)])
def test_an_interrupt_ends_in_one_line(stop: Any, refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise stop

    monkeypatch.setattr(jaxdpcov.data.io, "describe_columns", interrupted)
    assert refuse("columns", "rows.csv", code=130) == "interrupted"


def test_typers_own_complaints_are_one_line(refuse: Callable[..., str]) -> None:
    assert "DATA" in refuse("estimate") and "--help" in refuse("estimate")
    assert "--rhoo" in refuse("estimate", "rows.csv", "--rhoo", "1")
    assert "No such command 'estimat'" in refuse("estimat")
    assert "--rho" in refuse("account", "--rho")
