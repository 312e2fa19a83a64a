"""What the command line prints: releases, tables and numbers for reading, and the progress of a long read."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from jaxdpcov.cli.errors import one_line
from jaxdpcov.privacy import accounting
from jaxdpcov.privacy.budget import ZCDP
from jaxdpcov.release import Release, column_names

#: The delta at which a zCDP budget is read as (epsilon, delta)-DP when none was asked for.
READING_DELTA = 1e-6
#: Covariances up to this size are printed; larger ones go to --out or --json.
MOST_PRINTED = 12
#: Seconds of reading before a progress bar appears.
PATIENCE = 1.0


def write(text: str) -> None:
    """One piece of text on standard output."""
    sys.stdout.write(text + "\n")


def write_json(document: Any) -> None:
    """A document of plain values; numbers that JSON does not know become null."""
    write(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))


def write_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> None:
    """A table at its natural width: a narrow terminal must wrap it, for a cut number would be a wrong one."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(header):
        table.add_column(Text(one_line(name)), justify="right" if numbers and place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    Console(file=sys.stdout, width=100_000, highlight=False).print(table)


def write_release(release: Release, *, delta: float | None, saved: str | None) -> None:
    """Everything that a person reads of a release."""
    write(str(release))
    names = column_names(release)
    if release.covariance is None:
        write("covariance: none, this method releases none")
    elif release.d <= MOST_PRINTED:
        write("covariance:")
        covariance = np.asarray(release.covariance)
        rows = [[name, *(f"{value:.5g}" for value in row)] for name, row in zip(names, covariance)]
        write_table(["", *names], rows, numbers=True)
    else:
        write(f"covariance: {release.d} x {release.d}, too large to print; --out FILE.npz or --json hold it")
    reading = read_budget(release, delta)
    if "delta" in reading:
        pair = f"({round_up(reading['epsilon'])}, {reading['delta']:g})"
        write(f"the budget spent implies {pair}-DP")
    if saved is not None:
        write(f"saved to {saved}; in Python: jaxdpcov.load({saved!r})")


def read_budget(release: Release, delta: float | None) -> dict[str, float]:
    """The budget spent as an epsilon, at a delta where it is zCDP."""
    if isinstance(release.spent, ZCDP):
        delta = READING_DELTA if delta is None else delta
        return {"epsilon": accounting.epsilon_of_rho(float(release.spent.rho), delta), "delta": delta}
    return {name: float(number) for name, number in vars(release.spent).items()}


def round_up(number: float, digits: int = 6) -> str:
    """A number for reading, never below the exact one (for epsilon and delta).

    >>> round_up(5.2215341), round_up(1e-06)
    ('5.22154', '1e-06')
    """
    return _rounded(number, digits, ROUND_CEILING)


def round_down(number: float, digits: int = 6) -> str:
    """A number for reading, never above the exact one (for rho).

    >>> round_down(0.0243559), round_down(0.5)
    ('0.0243559', '0.5')
    """
    return _rounded(number, digits, ROUND_FLOOR)


def _rounded(number: float, digits: int, mode: str) -> str:
    near = f"{number:.{digits}g}"
    if not math.isfinite(number) or abs(float(near) - number) <= 4e-15 * abs(number):
        return near  # a few roundings of floats off a short decimal: that one is meant
    return f"{float(Context(prec=digits, rounding=mode).create_decimal(Decimal(number))):.{digits}g}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def progress(shown: bool) -> Iterator[Callable[[int, int | None], None] | None]:
    """A callback for reads that draws a bar on standard error once they take long.

    The bar is a fraction without counts: how many rows there are is private under add/remove.
    """
    console = Console(stderr=True)
    if not (shown and console.is_terminal):
        yield None
        return
    bar = Progress(
        TextColumn("working"), BarColumn(), TextColumn("{task.fields[share]}"), TimeElapsedColumn(),
        console=console, transient=True,
    )  # fmt: skip
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        tasks: list[Any] = []

        def report(done: int, total: int | None) -> None:
            if not tasks:
                if time.monotonic() - started < PATIENCE:
                    return
                stack.enter_context(bar)
                tasks.append(bar.add_task("", total=None, share=""))
            part = min(done / total, 1.0) if total else None
            bar.update(
                tasks[0], total=None if part is None else 1.0, completed=part or 0.0,
                share="" if part is None else f"{part:.0%}",
            )  # fmt: skip

        yield report
