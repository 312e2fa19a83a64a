"""The commands put together in one typer application, and its run from words to an exit code."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from jaxdpcov.cli import account, columns, errors, estimate, methods, plan, study

app = typer.Typer(name="jaxdpcov", add_completion=False, pretty_exceptions_enable=False)
app.command("estimate")(estimate.command)
app.command("columns")(columns.command)
app.command("account")(account.command)
app.command("methods")(methods.command)
app.command("plan")(plan.command)
app.command("study")(study.command)


def _version(asked: bool) -> None:
    if asked:
        # The package above us has been loaded; its files need not have been installed, so no metadata are asked.
        print(f"jaxdpcov {vars(sys.modules['jaxdpcov'])['__version__']}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Differentially private mean and covariance of a file of sensitive rows."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; every way to fail ends in one line and an exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))
    for stream in (sys.stdout, sys.stderr):
        # A column's name that the terminal's encoding cannot show must not end in a traceback after the spending.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    words = list(arguments) or ["--help"]
    return errors.run_guarded(lambda: get_command(app).main(words, prog_name="jaxdpcov", standalone_mode=False))
