"""How much longer `import jaxdpcov` takes than `import jax`: alternating fresh processes, medians, one table."""

import argparse
import statistics
import subprocess
import sys

TIMED = "import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"


def seconds(module: str) -> float:
    """Seconds that importing `module` takes in a fresh interpreter, the interpreter's own start left out."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(module=module)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> int:
    """Print the table; exit code 1 when the difference exceeds `--limit`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="alternating runs of each import (default 9)")
    parser.add_argument("--limit", type=float, default=0.3, help="allowed difference of the medians in seconds")
    options = parser.parse_args()
    modules = ("jax", "jaxdpcov")
    for module in modules:
        seconds(module)  # fills the page and bytecode caches; not counted
    times: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(options.runs):
        for module in modules:
            times[module].append(seconds(module))
    base, ours = (statistics.median(times[module]) for module in modules)
    print(f"{'import':<12}{'median s':>10}{'min s':>10}{'max s':>10}{'ratio':>8}")
    for module in modules:
        middle, low, high = statistics.median(times[module]), min(times[module]), max(times[module])
        print(f"{module:<12}{middle:>10.3f}{low:>10.3f}{high:>10.3f}{middle / base:>8.2f}")
    print(f"difference {ours - base:.3f} s over {options.runs} runs each (limit {options.limit:.3f} s)")
    return int(ours - base > options.limit)


if __name__ == "__main__":
    sys.exit(main())
