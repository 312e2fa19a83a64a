"""Progress of loops that the host follows: a mechanism tells whoever asked, and has no argument for it."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

#: Called with (done, total) of public or released numbers.
Report = Callable[[int, int | None], None]

_asked: ContextVar[Report | None] = ContextVar("jaxdpcov_progress", default=None)


@contextlib.contextmanager
def reporting(report: Report | None) -> Iterator[None]:
    """Within it, host loops call `report`."""
    token = _asked.set(report)
    try:
        yield
    finally:
        _asked.reset(token)


def asked() -> Report | None:
    """Who is to be told, if anyone."""
    return _asked.get()
