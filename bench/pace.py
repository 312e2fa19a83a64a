"""Speed of pace: whole releases followed from the host, vmapped repetitions, and the cost of a round.

    python bench/pace.py [--repeats 5] [--save]

Compilation is apart and printed. On a shared machine trust the ratios. `--save` writes docs/results/pace-speed.md and a
plot of the cost of a round.
"""

import argparse
import datetime
import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _timing import best_times, first_call

sys.path.insert(0, str(Path(__file__).parent / "accuracy"))
import pace_sets

import jaxdpcov as dp
from jaxdpcov import _progress

RESULTS = Path(__file__).parents[1] / "docs" / "results"
ZERO = dp.PaceConfig(center="zero")
#: Columns of the sparse populations whose rounds are timed.
SIZES = (20, 50, 100, 200)


def rows(d: int, n: int, seed: int = 0) -> np.ndarray:
    return pace_sets.normal(pace_sets.sparse(d, seed), seed)[:n]


def release(key: int, x: np.ndarray, rho: float, config: Any = ZERO) -> Any:
    return dp.pace(jax.random.key(key), x, dp.ZCDP(rho), dp.Bounds.box(-1.0, 1.0), config=config)


def whole(d: int, n: int, rho: float, repeats: int, config: Any = ZERO) -> list[str]:
    """Seconds of a release, compiled, and what it did."""
    x = rows(d, n)
    first = first_call(lambda: release(0, x, rho, config).covariance)
    seconds, rounds, edges = [], 0, 0
    for key in range(repeats):
        start = time.perf_counter()
        made = release(key, x, rho, config)
        jax.block_until_ready(made.covariance)
        seconds.append(time.perf_counter() - start)
        rounds = int(made.diagnostics["rounds"])
        edges = (int(np.sum(made.extra["measured_mask"])) - d) // 2
    schedule = "tuned" if config == ZERO else "paper"
    return [
        f"| {d} | {n} | {rho:g} | {schedule} | {rounds} | {edges} | {min(seconds):.3f} "
        f"| {max(seconds):.3f} | {first:.0f} |"
    ]


def lanes(repeats: int, count: int = 64) -> list[str]:
    """`count` vmapped repetitions at d = 20 against as many single runs of the same traced program."""
    x, box = rows(20, 10_000), dp.Bounds.box(-1.0, 1.0)
    keys = jax.random.split(jax.random.key(0), count)
    one = jax.jit(lambda key: dp.pace(key, x, dp.ZCDP(0.1), box, config=ZERO).covariance)
    many = jax.jit(jax.vmap(one))

    def single() -> None:
        for key in keys:
            jax.block_until_ready(one(key))

    best = best_times({"single": single, "vmapped": lambda: many(keys)}, repeats)
    ratio = best["vmapped"] / best["single"]
    return [
        f"{count} repetitions of the traced path at d = 20, n = 10,000, rho = 0.1, compiled: {best['single']:.2f} s as "
        f"single runs, {count} calls of one program for one key; {best['vmapped']:.2f} s vmapped, one call of that "
        f"program under `vmap` over the keys, where a CPU follows one repetition after the other; ratio {ratio:.2f}."
    ]


def rounds(d: int, seed: int = 0) -> np.ndarray:
    """(rounds, 2): measured entries so far, and milliseconds of the round, compiled."""
    x, at = rows(d, 10_000), []
    config = dp.PaceConfig(center="zero", growth=1.0, rounds_per_column=3)
    release(seed, x, 100.0, config)
    with _progress.reporting(lambda done, total: at.append(time.perf_counter())):
        made = release(seed, x, 100.0, config)
    chosen = np.asarray(made.extra["measured_in_round"])[: len(at), 0]
    seen: set[tuple[int, int]] = set()
    edges = []
    for i, j in chosen:
        seen |= {(int(i), int(j))} if i != j else set()
        edges.append(len(seen))
    return np.stack([edges[1:], 1e3 * np.diff(at)], axis=1)


def plot(costs: dict[int, np.ndarray], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    ax = figure.subplots()
    for d, cost in costs.items():
        # The median of twenty rounds: one that meets other work on the machine says nothing.
        parts = np.array_split(cost, max(1, len(cost) // 20))
        ax.plot([part[:, 0].mean() for part in parts], [np.median(part[:, 1]) for part in parts], label=f"d = {d}")
    ax.set(xlabel="measured entries beside the diagonal", ylabel="ms of a round", yscale="log")
    ax.legend()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write docs/results/pace-speed.md and its plot")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    versions = f"jax {importlib.metadata.version('jax')}, {os.cpu_count()} CPU cores, float64"
    lines = [
        "# Speed of pace",
        "",
        f"`python bench/pace.py --save`, {datetime.date.today()}, {versions}. Sparse populations (d random edges).",
        "",
        "| d | n | rho | schedule | rounds | edges | s (least) | s (most) | first call, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for d, n, rho, config in (
        (30, 3000, 1.0, ZERO),
        (100, 3000, 1.0, ZERO),
        (260, 3000, 1.0, ZERO),
        (260, 3000, 1.0, dp.PaceConfig.paper(center="zero")),
    ):
        lines += whole(d, n, rho, args.repeats, config)
        print(lines[-1], flush=True)
    lines += ["", *lanes(args.repeats), ""]
    print(lines[-2], flush=True)
    costs = {d: rounds(d) for d in SIZES}
    lines += ["| d | measured entries | ms of a round (median of the last 20) |", "|---|---|---|"]
    for d, cost in costs.items():
        lines.append(f"| {d} | {int(cost[-1, 0])} | {np.median(cost[-20:, 1]):.1f} |")
    print("\n".join(lines[-len(SIZES) :]), flush=True)
    if args.save:
        RESULTS.mkdir(parents=True, exist_ok=True)
        plot(costs, RESULTS / "pace-rounds.png")
        text = [*lines, "", "![Milliseconds of a round against measured entries](pace-rounds.png)"]
        (RESULTS / "pace-speed.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
