"""The command line `jaxdpcov`: its entry point, which needs the extra `cli` and says so where that is missing."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 2 for a user's error, 1 for a fault of ours, 130 on Ctrl-C.

    Args:
        arguments: the words after `jaxdpcov`; those of the process unless given.
    """
    try:
        import rich  # noqa: F401  (used later, missed now)

        from jaxdpcov.cli.app import run
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "jaxdpcov":
            raise
        print("Error: the command line needs typer and rich: pip install 'jaxdpcov[cli]'", file=sys.stderr)
        return 2
    return run(sys.argv[1:] if arguments is None else list(arguments))
