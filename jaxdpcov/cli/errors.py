"""How a command ends badly: one line on standard error, never a traceback, never a text that could hold data."""

import dis
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from jaxdpcov.data.cells import DataError

USER, INTERNAL, INTERRUPTED = 2, 1, 130
_EXHAUSTED = "RESOURCE_EXHAUSTED"

#: Python's keywords and the flags that stand for them, for messages of the library.
_FLAGS = {
    "bounds": "--bounds",
    "center": "--center",
    "columns": "--columns",
    "delta": "--delta",
    "epsilon": "--epsilon",
    "max_rows": "--max-rows",
    "method": "--method",
    "missing": "--missing",
    "person": "--person",
    "relation": "--relation",
    "rho": "--rho",
}
#: A keyword of ours, or anything in quotes, such as a column's name, which stays as it is.
_KEYWORD = re.compile(rf"(?<!\w)'[^']*'|(?<![\w.-])({'|'.join(_FLAGS)})=(?=(\S?))")


class UserError(Exception):
    """A mistake in what the user gave; the message is one line that names the flag and what is allowed."""


def run_guarded(call: Callable[[], int | None]) -> int:
    """The exit code of `call`, with whatever it raises told in one line."""
    try:
        code = call() or 0
        sys.stdout.flush()
    except SystemExit as error:  # typer ends so when whoever reads our output has seen enough and closes the pipe
        return error.code if isinstance(error.code, int) else INTERNAL
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return INTERNAL
    except Exception as error:
        line, code = describe(error)
        complain(line)
        if isinstance(error, OSError):
            _drop_output()
    if code == INTERRUPTED:
        complain("interrupted")
    return code


def _drop_output() -> None:
    """Let what standard output still holds go nowhere: Python would try again at exit, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(line: str) -> None:
    """Print the one line."""
    print(f"Error: {one_line(line)}", file=sys.stderr)


def describe(error: Exception) -> tuple[str, int]:
    """The line for an exception and the exit code: its own text only where that text is known to be ours."""
    usage = getattr(error, "format_message", None)  # of typer's exceptions, whichever module it keeps them in
    if usage is not None:
        context = getattr(error, "ctx", None)
        hint = f"see '{context.command_path} --help'" if context is not None else ""
        return f"{usage().rstrip('.')}; {hint}".rstrip("; "), USER
    if isinstance(error, UserError):
        return str(error), USER
    ours = isinstance(error, (ValueError, TypeError, ImportError)) and _is_ours(error.__traceback__)
    if ours or isinstance(error, DataError):
        return with_flags(str(error)), USER
    if isinstance(error, OSError) and error.strerror:  # the system's words and a path: no data
        return f"{error.strerror}{f': {error.filename}' if error.filename else ''}", INTERNAL
    # Of jaxlib, which has no class for it; its text begins with the code.
    if isinstance(error, MemoryError) or (type(error).__name__ == "JaxRuntimeError" and _EXHAUSTED in str(error)):
        return "out of memory", INTERNAL
    return (
        f"internal error, {type(error).__name__} {_place(error.__traceback__)}; its text is not shown because it "
        "could hold data; please report it",
        INTERNAL,
    )


def with_flags(text: str) -> str:
    """A message of the library with flags in place of Python's keywords.

    >>> with_flags("max_rows limits the rows of each person: give person=COLUMN as well")
    '--max-rows limits the rows of each person: give --person COLUMN as well'
    """
    text = re.sub(r"categories=\{'(.*?)': \[\.\.\.\]\}", r"--category '\1=FIRST,SECOND'", text)
    text = re.sub(r"^max_rows\b", "--max-rows", text)
    text = text.replace(
        "PureDP.from_zcdp(rho) has the price rho", "`jaxdpcov account --rho` tells which epsilon has a price in rho"
    )

    def flag(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        return _FLAGS[found[1]] + (" " if re.match(r"[\w']", found[2]) else "")

    return _KEYWORD.sub(flag, text)


def one_line(text: str) -> str:
    """Text that stays on one line and cannot steer the terminal, whatever a column is called."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def _innermost(tb: TracebackType | None) -> TracebackType | None:
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    return tb


def _is_ours(tb: TracebackType | None) -> bool:
    """Whether a `raise` statement of this package made the exception.

    A library's own text may quote a cell, also where a function in C was called from a line of ours, and JAX cuts its
    own frames from tracebacks: so the instruction itself must be a raise.
    """
    last = _innermost(tb)
    if last is None or last.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "jaxdpcov":
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _place(tb: TracebackType | None) -> str:
    """The last line of this package on the way to the exception."""
    home = Path(__file__).parents[1]
    own = [frame for frame in traceback.extract_tb(tb) if Path(frame.filename).is_relative_to(home)]
    return f"at {Path(own[-1].filename).relative_to(home)}:{own[-1].lineno}" if own else "outside of the package"
