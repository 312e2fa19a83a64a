"""Each mechanism against its floor, and against what could be installed instead: one table of ratios, in one run.

    python bench/against.py [--full] [--columns 10 50 100] [--repetitions 1 10 100 1000 10000] [--rows 10000]
        [--limit 10] [--sections releases studies libraries reconstruction memory] [--save]

A floor is the bare passes over the rows, the factorisations and the noise draws that a release needs, measured in the
same run. A cell that would take longer than `--limit` seconds a run is left out, and a line says so. Programs run on
`jax.devices()[0]`, the NumPy rivals on the host. `--save` writes docs/results/speed.md and data/speed.json beside it.
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
    args.columns = args.columns or ([10, 20, 50, 100, 200, 500] if args.full else [10, 50, 100])
    args.limit = args.limit or (120.0 if args.full else 10.0)
    args.repetitions = sorted(args.repetitions)
    return args


def main() -> None:
    args = arguments()
    jax.config.update("jax_enable_x64", True)
    where, has = jax.devices()[0], versions()
    head = [
        "# Speed: against the floor, and against other tools",
        "",
        f"`python bench/against.py`, {datetime.date.today()}; {', '.join(f'{k} {v}' for k, v in has.items())}; "
        f"{where.device_kind} ({where.platform}), {os.cpu_count()} cores, float64, LAPACK of NumPy on "
        f"{os.environ['OPENBLAS_NUM_THREADS']} thread. {_CLOCKS[fair_clock()]}, the smallest of up to "
        f"{args.repeats} interleaved runs, compilation apart; a run may take {args.limit:g} s. Trust ratios: "
        "both sides ran in turn. "
        "Errors are Frobenius distances to the moment that the tool estimates, of the clipped rows.",
    ]
    print("\n".join(head), flush=True)
    lines, raw = list(head), {"versions": has, "device": where.device_kind, "settings": vars(args)}
    for name in args.sections:
        section: tuple[list[str], Any] = SECTIONS[name](args)
        print("\n".join(["", *section[0]]), flush=True)
        lines += ["", *section[0]]
        raw[name] = section[1]
    if args.save:
        (RESULTS / "data").mkdir(parents=True, exist_ok=True)
        (RESULTS / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = json.dumps(raw, indent=1, default=lambda value: np.asarray(value).tolist())
        (RESULTS / "data" / "speed.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
