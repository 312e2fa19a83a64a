"""Side-by-side timing: every candidate runs in turn in each repeat, so that a noisy machine hits all of them alike."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax


def best_times(
    candidates: dict[str, Callable[[], Any]],
    repeats: int = 9,
    clock: Callable[[], float] = time.perf_counter,
    *,
    warm: bool = True,
) -> dict[str, float]:
    """Smallest time of each candidate in seconds, over `repeats` interleaved runs after one to compile.

    `warm=False` leaves that one out, for candidates that are compiled and run for long.
    `time.process_time` as the clock counts the seconds of all cores together, which other work on them hardly moves.
    """
    for run in candidates.values() if warm else ():
        jax.block_until_ready(run())
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, run in candidates.items():
            start = clock()
            jax.block_until_ready(run())
            best[name] = min(best[name], clock() - start)
    return best


def first_call(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a first call, compilation included."""
    start = clock()
    jax.block_until_ready(run())
    return clock() - start


def fair_clock() -> Callable[[], float]:
    """CPU time of all threads where programs run on the CPU, which other work hardly moves; wall time elsewhere."""
    return time.process_time if jax.devices()[0].platform == "cpu" else time.perf_counter


def print_ratios(best: dict[str, float], base: str) -> None:
    """One line a candidate: milliseconds and the ratio to `base`."""
    width = max(map(len, best))
    print(f"{'':<{width}}  {'ms':>10}  ratio to {base}")
    for name, seconds in best.items():
        print(f"{name:<{width}}  {1e3 * seconds:>10.2f}  {seconds / best[base]:.3f}")


def ratio_table(best: dict[str, float], base: str) -> list[str]:
    """The same as lines of Markdown."""
    rows = (f"| {name} | {1e3 * seconds:.1f} | {seconds / best[base]:.3f} |" for name, seconds in best.items())
    return [f"| what | CPU ms | ratio to {base} |", "|---|---|---|", *rows]


def resident_mib() -> float:
    """Resident memory of this process in MiB (Linux)."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    raise OSError("no VmRSS line")


def peak_growth_mib(run: Callable[[], Any]) -> float:
    """How far resident memory rises above its start while `run` runs (sampled every millisecond)."""
    before, peak, done = resident_mib(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident_mib())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        jax.block_until_ready(run())
    finally:
        done.set()
        watcher.join()
    return max(0.0, peak - before)
