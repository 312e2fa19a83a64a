"""How long `jaxdpcov estimate` takes on a CSV of 58,000 x 9, start-up and compilation included: one table."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NAMES = [f"column_{j}" for j in range(9)]

#: The parts of one run, in a process of its own: what the command does, step by step.
PARTS = """
import sys, time
marks = []
mark = lambda: marks.append((time.perf_counter(), time.process_time()))
mark()
import jax; mark()
jax.config.update("jax_enable_x64", True)
import jaxdpcov.cli.app, jaxdpcov.cli.show; mark()
import pyarrow.csv, pyarrow.compute; mark()
from jaxdpcov.data.io import open_table
for block in open_table(sys.argv[1]).blocks(): pass
mark()
bounds = {name: (-5.0, 5.0) for name in sys.argv[2:]}
for _ in range(2):
    jaxdpcov.estimate(sys.argv[1], bounds=bounds, rho=0.5)
    mark()
for before, after in zip(marks, marks[1:]):
    print(after[0] - before[0], after[1] - before[1])
"""


def write(path: Path, rows: int) -> None:
    """A CSV of normal numbers with six digits."""
    values = np.random.default_rng(0).normal(size=(rows, len(NAMES)))
    np.savetxt(path, values, fmt="%.6f", delimiter=",", header=",".join(NAMES), comments="")


def command(path: Path) -> tuple[float, float]:
    """Wall and processor seconds of the whole command."""
    words = [sys.executable, "-m", "jaxdpcov.cli", "estimate", str(path), "--rho", "0.5"]
    words += [word for name in NAMES for word in ("--bound", f"{name}=-5:5")]
    before, start = os.times(), time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, spent


def parts(path: Path) -> dict[str, np.ndarray]:
    """(wall, processor) seconds of each part; what compiles is what the first of two equal calls takes longer."""
    words = [sys.executable, "-c", PARTS, str(path), *NAMES]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    jax, own, arrow, read, first, second = np.array(done.stdout.split(), float).reshape(-1, 2)
    return {
        "import jax": jax,
        "import jaxdpcov and the command line": own,
        "import pyarrow": arrow,
        "read the file": read,
        "trace and compile": first - second,
        "compute": np.maximum(second - read, 0.0),
    }


def main() -> int:
    """Print the table; exit code 1 when the median of the wall times exceeds `--limit`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=58_000)
    parser.add_argument("--runs", type=int, default=3, help="runs of the command (default 3)")
    parser.add_argument("--limit", type=float, default=10.0, help="allowed median of the wall seconds (default 10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        write(path, options.rows)
        size = path.stat().st_size / 2**20
        runs = [command(path) for _ in range(options.runs)]
        shares = parts(path)
    wall = statistics.median(seconds for seconds, _ in runs)
    spent = statistics.median(seconds for _, seconds in runs)
    print(f"jaxdpcov estimate on {options.rows} x {len(NAMES)}, {size:.1f} MiB, median of {options.runs} runs")
    print(f"{'':<40}{'wall s':>8}{'cpu s':>8}{'cpu':>6}")
    print(f"{'the command':<40}{wall:>8.2f}{spent:>8.2f}   (limit: {options.limit:.0f} s wall)")
    print("the same step by step in one process:")
    total = sum(shares.values())[1]
    for name, (seconds, processor) in shares.items():
        print(f"  {name:<38}{seconds:>8.2f}{processor:>8.2f}{processor / total:>6.0%}")
    return int(wall > options.limit)


if __name__ == "__main__":
    sys.exit(main())
