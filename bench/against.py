"""Each mechanism against its floor, and against what could be installed instead: one table of ratios, in one run.

    python bench/against.py [--full] [--columns 10 50] [--repetitions 1 10 100 1000 10000] [--rows 10000]
        [--limit 10] [--sections releases studies libraries reconstruction memory] [--save]

A floor is the bare passes over the rows, the factorisations and the noise draws that a release needs, measured in the
same run. A cell that would take longer than `--limit` seconds a run is left out, and a line says so. Programs run on
`jax.devices()[0]`, the NumPy rivals on the host. `--save` puts the sections
of this run into docs/results/speed.md and data/speed.json beside it, in the place of their earlier ones.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

# LAPACK's own threads spin while others work; for these sizes one is as fast.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import _tables
import jax
import numpy as np
from _timing import fair_clock

import jaxdpcov as dp

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
SECTIONS = {
    "releases": _tables.releases,
    "studies": _tables.studies,
    "libraries": _tables.libraries,
    "reconstruction": _tables.reconstruction,
    "memory": _tables.memory,
}
_CLOCKS = {time.process_time: "CPU time of all threads", time.perf_counter: "Wall time"}
VERSIONS = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "cvxpy", "clarabel", "diffprivlib", "opendp")


def versions() -> dict[str, str]:
    """Versions of all that took part; "absent" for a rival that is not installed."""
    found = {"jaxdpcov": dp.__version__, "python": platform.python_version()}
    for name in VERSIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="d up to 500, and 120 s a run")
    parser.add_argument("--columns", type=int, nargs="+")
    parser.add_argument("--repetitions", type=int, nargs="+", default=[1, 10, 100, 1000, 10_000])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--release-rows", type=int, default=200_000, help="rows of the single releases")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, help="seconds that one run of one candidate may take")
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    args.columns = args.columns or ([10, 20, 50, 100, 200, 500] if args.full else [10, 50])
    args.limit = args.limit or (120.0 if args.full else 10.0)
    args.repetitions = sorted(args.repetitions)
    return args


def about(args: argparse.Namespace) -> str:
    """When, with what and where a section was measured."""
    made = ", ".join(f"{name} {version}" for name, version in versions().items())
    where = jax.devices()[0]
    return (
        f"{datetime.date.today()}; {made}; {where.device_kind} ({where.platform}), {os.cpu_count()} cores, float64, "
        f"NumPy's LAPACK on {os.environ['OPENBLAS_NUM_THREADS']} thread; {_CLOCKS[fair_clock()]}, the smallest of up "
        f"to {args.repeats} interleaved runs, at most {args.limit:g} s each."
    )


def page(sections: dict[str, Any]) -> str:
    """The sections that were ever saved, as Markdown."""
    lines = [
        "# Speed: against the floor, and against other tools",
        "",
        "Written by `python bench/against.py --save`. Compilation is apart. Trust ratios: both sides ran in turn. "
        "Errors are Frobenius distances to the moment that a tool estimates, of the clipped rows.",
    ]
    told = None
    for name in SECTIONS:
        if name in sections:
            made = sections[name]
            lines += ["", *made["lines"]]
            told, before = made["about"], told
            if told != before:
                lines += ["", f"Measured {told}"]
    return "\n".join(lines) + "\n"


def save(made: dict[str, Any]) -> None:
    """Put the sections of this run in the place of their earlier ones."""
    (RESULTS / "data").mkdir(parents=True, exist_ok=True)
    data = RESULTS / "data" / "speed.json"
    kept = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
    kept |= json.loads(json.dumps(made, default=lambda value: np.asarray(value).tolist()))
    data.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "speed.md").write_text(page(kept), encoding="utf-8")


def main() -> None:
    args = arguments()
    jax.config.update("jax_enable_x64", True)
    print(about(args), flush=True)
    made: dict[str, Any] = {}
    for name in args.sections:
        lines, cells = SECTIONS[name](args)
        print("\n".join(["", *lines]), flush=True)
        made[name] = {"about": about(args), "settings": vars(args), "lines": lines, "cells": cells}
        if args.save:
            save(made)  # as soon as a section is there


if __name__ == "__main__":
    main()
