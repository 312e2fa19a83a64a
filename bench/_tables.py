"""The sections of `against`: each measures its candidates side by side; lines of Markdown and raw numbers."""

import argparse
import functools
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _floors
import _peak
import _rivals
import _studies
import jax
import numpy as np
from _timing import best_times, fair_clock, first_call

import jaxdpcov as dp
from jaxdpcov import maxent

Section = tuple[list[str], list[dict[str, Any]]]


def say(*words: Any) -> None:
    """A line on what goes on, to standard error."""
    print(*words, file=sys.stderr, flush=True)


def releases(args: argparse.Namespace) -> Section:
    """One release of every mechanism against its floor."""
    d = 50 if 50 in args.columns else args.columns[0]
    x = _studies.sample(args.release_rows, d)
    lines = [
        f"## One release of {args.release_rows:,} x {d} rows",
        "",
        "Floor: passes (sums over clipped rows in slices that stay in cache), factorisations, noise draws, all bare.",
        "",
        "| mechanism | compile (s) | ms | floor (ms) | ratio | floor made of |",
        "|---|---|---|---|---|---|",
    ]
    raw = []
    for name, needs in _floors.NEEDS.items():
        say("one release:", name)
        made = _studies.one(name, x)
        best = best_times({"ours": made.run, "floor": _floors.release(needs, x)}, args.repeats, fair_clock())
        ratio = best["ours"] / best["floor"]
        lines.append(
            f"| `{name}` | {made.seconds:.1f} | {1e3 * best['ours']:.1f} | {1e3 * best['floor']:.1f} | {ratio:.2f} "
            f"| {', '.join(needs.passes)}; {_factorisations(needs)} |"
        )
        raw.append({"mechanism": name, "rows": args.release_rows, "d": d, "compile": made.seconds, **best})
    return lines, raw


def _factorisations(needs: _floors.Needs) -> str:
    parts = [f"{needs.eighs} eigh" if needs.eighs else "", "eigenvalues" if needs.spectra or needs.once else ""]
    return " + ".join([part for part in [*parts, "eigh at each size" if needs.deflated else ""] if part]) or "none"


class Limit:
    """Leaves out what would take longer than `seconds`, going by the last count that was run."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.last = seconds, dict[str, tuple[int, float]]()

    def skips(self, name: str, repetitions: int) -> bool:
        if name not in self.last:
            return False
        before, took = self.last[name]
        return before >= 10 and took * repetitions / before > self.seconds

    def why(self, name: str) -> str:
        before, took = self.last[name]
        return f"left out: {before:,} took {took:.2g} s, a run may take {self.seconds:g} s"


def studies(args: argparse.Namespace) -> Section:
    """Many releases of one data set against floors and NumPy loops."""
    lines = [
        f"## Many releases of {args.rows:,} rows, errors alone kept",
        "",
        "All repetitions in one compiled `jax.lax.map` over keys; `separate` and `adaptive` read a table of level "
        "moments, made once beforehand: its time is apart. The floor has each pass over the rows once, and what a "
        "release needs once for each repetition. The NumPy loop does once what repetitions "
        "share. Default configs, rho = 0.5, l2 bound 1.",
        "",
        "| mechanism | d | repetitions | compile (s) | table (s) | s | floor (s) | ratio to floor | NumPy loop (s) "
        "| NumPy / ours | error | error, NumPy |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    raw = []
    for d in args.columns:
        x = _studies.sample(args.rows, d)
        host, truth = np.asarray(x), np.asarray(_studies.moments(x)[0])
        for name in _studies.MANY:
            limit, made = Limit(args.limit), {}
            if _studies.MANY[name]:
                made = best_times({"table": lambda: _studies.home(name, x).moments}, args.repeats, fair_clock())  # noqa: B023
            loop = _rivals.LOOPS[name](host, _studies.RHO, _studies.mean_share(name, x))
            for repetitions in args.repetitions:
                say("many releases:", name, d, repetitions)
                cell = made | _study(name, x, repetitions, loop, truth, limit, args.repeats)
                lines.append(_study_line(name, d, repetitions, cell, limit))
                raw.append({"mechanism": name, "d": d, "repetitions": repetitions, "rows": args.rows, **cell})
                gc.collect()
    return lines, raw


def _study(
    name: str, x: jax.Array, repetitions: int, loop: _rivals.Loop, truth: np.ndarray, limit: Limit, repeats: int
) -> dict[str, Any]:
    """Seconds of "ours", "floor" and "numpy" (those within the limit), errors, and compilation."""
    kept: dict[str, Any] = {}
    cell: dict[str, Any] = {}

    def numpy() -> None:
        kept["numpy"] = _rivals.run_loop(loop, truth, repetitions)

    # A table of level moments holds the spectra of its second moments.
    needs = _floors.NEEDS[name]._replace(spectra=0) if _studies.MANY[name] else _floors.NEEDS[name]
    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "ours": lambda: made(),
        "floor": lambda: _floors.release(needs, x, repetitions, _studies.BATCH),
        "numpy": lambda: numpy,
    }

    def made() -> Callable[[], Any]:
        study = _studies.many(name, x, repetitions)
        cell["compile"] = study.seconds

        def run() -> Any:
            kept["ours"] = study.run()
            return kept["ours"]

        return run

    candidates = {who: make() for who, make in makers.items() if not limit.skips(who, repetitions)}
    clock = fair_clock()
    first = {who: first_call(run, clock) for who, run in candidates.items()}
    few = {who: run for who, run in candidates.items() if first[who] * repeats <= limit.seconds / 2}
    # What takes long is as warm as it gets; it has one more run, side by side with the others.
    best = best_times(few, repeats, clock, warm=False) | best_times(
        {who: run for who, run in candidates.items() if who not in few}, 1, clock, warm=False
    )
    for who, seconds in best.items():
        cell[who] = min(seconds, first[who])
        limit.last[who] = repetitions, cell[who]
    for who, errors in kept.items():
        cell[f"error, {who}"] = float(np.mean(np.asarray(errors)))
    return cell


def _study_line(name: str, d: int, repetitions: int, cell: dict[str, Any], limit: Limit) -> str:
    def number(key: str, form: str = ".3g") -> str:
        if key in cell:
            return format(cell[key], form)
        return limit.why(key) if key in limit.last else ""

    def ratio(above: str, below: str) -> str:
        return f"{cell[above] / cell[below]:.2f}" if above in cell and below in cell else ""

    parts = [
        number("compile", ".1f"),
        number("table", ".2g"),
        number("ours"),
        number("floor"),
        ratio("ours", "floor"),
        number("numpy"),
    ]
    parts += [ratio("numpy", "ours"), number("error, ours"), number("error, numpy")]
    return f"| `{name}` | {d} | {repetitions:,} | {' | '.join(parts)} |"


def libraries(args: argparse.Namespace) -> Section:
    """One release by diffprivlib and opendp against the mechanism with the same task and guarantee."""
    lines = [
        f"## One release of {args.rows:,} rows: against diffprivlib and opendp",
        "",
        "The same rows, bounds and budget; moments about zero. Times include the pass over the rows, but for opendp's "
        "Gaussian noise, which is exact on integers and gets the second moment that NumPy made beforehand. Errors: "
        "mean of 20 runs.",
        "",
        "| task | tool | d | first call (s) | ms | ratio to jaxdpcov | error |",
        "|---|---|---|---|---|---|---|",
    ]
    raw, missing = [], dict[str, None]()
    for d in args.columns:
        x = _studies.sample(args.rows, d)
        host, second = np.asarray(x), np.asarray(_studies.moments(x)[1])
        for task, (truth, tools) in _tasks(x, host, second).items():
            say("libraries:", task, d)
            runs: dict[str, Callable[[], Any]] = {}
            for tool, make in tools.items():
                try:
                    runs[tool] = make()
                except _rivals.Missing as told:
                    missing[str(told)] = None
            first = {tool: first_call(run) for tool, run in runs.items()}
            within = {tool: run for tool, run in runs.items() if first_call(run, fair_clock()) <= args.limit}
            best = best_times(within, args.repeats, fair_clock())
            for tool in runs:
                cell = {"task": task, "tool": tool, "d": d, "first": first[tool], "limit": args.limit}
                if tool not in within:
                    lines.append(f"| {task} | {tool} | {d} | {first[tool]:.2f} | more than {args.limit:g} s | | |")
                else:
                    cell["seconds"] = best[tool]
                    cell["error"] = float(
                        np.mean([np.linalg.norm(np.asarray(runs[tool]()) - truth) for _ in range(20)])
                    )
                    ratio = f"{best[tool] / best['jaxdpcov']:.2f}" if "jaxdpcov" in best else ""
                    lines.append(
                        f"| {task} | {tool} | {d} | {first[tool]:.2f} | {1e3 * best[tool]:.2f} | {ratio} "
                        f"| {cell['error']:.2g} |"
                    )
                raw.append(cell)
    return [*lines, *(f"\n{line}" for line in missing)], raw


def _tasks(x: jax.Array, host: np.ndarray, second: np.ndarray) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
    """Per task: the truth, and the tools that do it, each a maker of a run that returns a matrix."""
    rho, epsilon, rng = _studies.RHO, _studies.EPSILON, np.random.default_rng(0)

    def ours(name: str, budget: Any, bounds: Any, config: Any) -> Callable[[], Callable[[], Any]]:
        counter = iter(range(10**9))
        program = functools.partial(getattr(dp, name), config=config)
        return lambda: lambda: program(jax.random.key(next(counter)), x, budget, bounds).covariance

    def theirs(make: Callable[..., _rivals.Loop], *settings: Any) -> Callable[[], Callable[[], Any]]:
        return lambda: functools.partial(make(host, *settings), rng)

    variances = np.diag(np.var(np.clip(host, -1.0, 1.0), axis=0))
    ball, box = _studies.BALL, _studies.BOX
    return {
        "second moment, zCDP": (
            second,
            {
                "jaxdpcov": ours("gaussian", dp.ZCDP(rho), ball, dp.GaussianConfig(center="zero")),
                "opendp make_gaussian": theirs(_rivals.opendp_gaussian, rho),
            },
        ),
        "eigenvectors one by one, pure DP": (
            second,
            {
                "jaxdpcov": ours("emcov", dp.PureDP(epsilon), ball, dp.EMCovConfig(center="zero")),
                "diffprivlib covariance_eig": theirs(_rivals.diffprivlib_covariance, epsilon),
                "opendp make_private_pca": theirs(_rivals.opendp_pca, epsilon),
            },
        ),
        "variances, pure DP": (
            variances,
            {
                "jaxdpcov": ours("diagonal", dp.PureDP(epsilon), box, None),
                "diffprivlib tools.var": theirs(_rivals.diffprivlib_variances, epsilon),
            },
        ),
    }


def reconstruction(args: argparse.Namespace) -> Section:
    """The maximum-entropy step against CVXPY, and whole releases against a graphical lasso on a noisy matrix."""
    import maxent as solver_bench

    lines, raw = [], []
    try:
        _rivals.library("cvxpy")
        _rivals.library("clarabel")
        say("reconstruction: CVXPY")
        lines += [line.replace("## ", "## Reconstruction: ") for line in solver_bench.against_clarabel(args.repeats)]
    except _rivals.Missing as told:
        lines += ["## Reconstruction", "", str(told)]
    d, edges, n, rho = 30, 100, 3000, 1.0
    y, lam, mask, _ = solver_bench.instance(d, edges)
    x = _sparse_rows(n, d)
    truth = np.cov(x.T, ddof=0)
    box = dp.Bounds.box(-1.0, 1.0)
    keys = iter(jax.random.split(jax.random.key(0), 10_000))

    def whole(name: str, **choices: Any) -> Callable[[], Any]:
        mechanism = getattr(dp, name)
        return lambda: mechanism(next(keys), x, dp.ZCDP(rho), box, **choices).covariance

    candidates = {
        "`gaussian`": whole("gaussian"),
        "`pace`": whole("pace"),
        "`ssp_select`": whole("ssp_select"),
    }
    steps = {"`maxent.fit` alone, 100 measured entries": lambda: maxent.fit(y, lam, mask).covariance}
    try:
        lasso = _rivals.graphical_lasso()
        noisy = whole("gaussian", config=dp.GaussianConfig(psd="floor"))
        candidates["`gaussian`, then scikit-learn's graphical lasso"] = lambda: lasso(np.asarray(noisy()))
        steps["scikit-learn's graphical lasso alone"] = functools.partial(lasso, np.asarray(noisy()))
    except _rivals.Missing as told:
        lines += ["", str(told)]
    say("reconstruction: graphical lasso")
    lines += ["", f"## Sparse inverse, d = {d}, {n:,} rows, rho = {rho:g}, box [-1, 1]", ""]
    lines += ["| what | first call (s) | ms | error |", "|---|---|---|---|"]
    first = {name: first_call(run) for name, run in (candidates | steps).items()}
    best = best_times(candidates | steps, args.repeats, fair_clock())
    for name in best:
        error = None
        if name in candidates:
            error = float(np.mean([np.linalg.norm(np.asarray(candidates[name]()) - truth) for _ in range(10)]))
        shown = "" if error is None else f"{error:.3g}"
        lines.append(f"| {name} | {first[name]:.1f} | {1e3 * best[name]:.1f} | {shown} |")
        raw.append({"what": name, "first": first[name], "seconds": best[name], "error": error})
    return lines, raw


def _sparse_rows(n: int, d: int) -> np.ndarray:
    """Normal rows in [-1, 1] whose precision matrix has about 1.5 d entries beside the diagonal."""
    sys.path.insert(0, str(Path(__file__).parent / "accuracy"))
    import pace_sets

    return pace_sets.normal(pace_sets.sparse(d, 0), 0)[:n]


def memory(args: argparse.Namespace) -> Section:
    """Peak memory of a process that runs one long study."""
    d, repetitions = 100, 10_000
    lines = [
        f"## Peak memory of a process: {repetitions:,} repetitions, d = {d}, {args.rows:,} rows, errors alone kept",
        "",
        "| mechanism | before the study (MiB) | at the end (MiB) | s |",
        "|---|---|---|---|",
    ]
    raw = []
    for name in _studies.MANY:
        say("memory:", name)
        start = time.perf_counter()
        found = _peak.in_a_process(name, args.rows, d, repetitions, 20.0 * args.limit)
        took = time.perf_counter() - start
        shown = f"{found[0]:.0f} | {found[1]:.0f} | {took:.0f}" if found else f"| left out: > {20 * args.limit:g} s |"
        lines.append(f"| `{name}` | {shown} |")
        raw.append({"mechanism": name, "mib": found, "seconds": took})
    return lines, raw
