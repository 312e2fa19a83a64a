"""`jaxdpcov methods`: the mechanisms, with the budgets, bounds and options that each takes."""

import dataclasses
from typing import Annotated

import typer

_BUDGETS = {"ZCDP": "--rho, or --epsilon with --delta", "PureDP": "--epsilon"}
_BOUNDS = {"BoxBounds": "--bounds, --bound", "L2Bounds": "--radius", "SpectrumBounds": "spectrum (Python only)"}


def command(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the mechanisms for --method: what each does, and the budgets, bounds and options that it takes."""
    from jaxdpcov.cli import show
    from jaxdpcov.mechanisms._registry import MECHANISMS

    entries = [
        {
            "method": name,
            "summary": (each.function.__doc__ or "").partition("\n")[0],
            "budgets": [_BUDGETS.get(kind.__name__, kind.__name__) for kind in each.budgets],
            "bounds": [_BOUNDS.get(kind.__name__, kind.__name__) for kind in each.bounds],
            "options": [field.name for field in dataclasses.fields(each.config)],
        }
        for name, each in MECHANISMS.items()
    ]
    if json:
        show.write_json({"methods": entries})
        return
    for entry in entries:
        show.write(f"{entry['method']}: {entry['summary']}")
        show.write(f"  budget   {'; or '.join(entry['budgets'])}")
        show.write(f"  bounds   {'; or '.join(entry['bounds'])}")
        show.write(f"  options  {', '.join(entry['options'])}")
