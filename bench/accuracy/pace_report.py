"""Tables, ratios and plots of the study in pace.py, from the errors that it stored."""

import datetime
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pace_sets

Errors = dict[str, np.ndarray]

DATA = Path(__file__).resolve().parents[2] / "docs" / "results" / "data" / "pace.json"
#: Rows of the tables and lines of the plots, in this order.
METHODS = ("ssp, paper", "gaussian", "diagonal", "adaptive", "pace, paper", "pace", "ssp_select", "auto")
COLOURS = dict(zip(METHODS, ("C7", "C0", "C8", "C3", "C5", "C1", "C2", "k")))
BASE = "ssp, paper"
METRICS = ("Frobenius", "Mahalanobis", "inverse Stein")
#: The budgets of the target ratios.
FIVE = (1e-3, 1e-2, 0.1, 1.0, 10.0)


def load(store: Path) -> dict[tuple[str, float], Errors]:
    """(set, rho) -> method -> (repetitions, 3) errors: those of docs/results/data, and the newer ones of a store."""
    found = {}
    for key, errors in (json.loads(DATA.read_text()) if DATA.exists() else {}).items():
        name, rho = key.rsplit(" ", 1)
        found[name, float(rho)] = {method: np.array(each) for method, each in errors.items()}
    for name in pace_sets.SETS:
        for file in sorted(store.glob(f"{name}_*.npz")):
            rho = file.stem.removeprefix(f"{name}_")
            if rho.replace(".", "").replace("e-", "").isdigit():
                found[name, float(rho)] = dict(np.load(file))
    return dict(sorted(found.items(), key=lambda item: (list(pace_sets.SETS).index(item[0][0]), item[0][1])))


def keep(found: dict[tuple[str, float], Errors]) -> None:
    """Write all errors to docs/results/data, with four digits."""
    digits = {
        f"{name} {rho:g}": {m: [[float(f"{x:.4g}") for x in each] for each in errors] for m, errors in cell.items()}
        for (name, rho), cell in found.items()
    }
    DATA.write_text(json.dumps(digits, separators=(",", ":")).replace('},"', '},\n"') + "\n")


def mean_and_band(errors: np.ndarray, metric: int) -> tuple[float, float]:
    """Mean error and half of its 95% interval; infinite where an estimate was singular."""
    each = errors[:, metric]
    if not np.all(np.isfinite(each)):
        return np.inf, np.nan
    return float(each.mean()), float(1.96 * each.std(ddof=1) / np.sqrt(len(each)))


def geometric(cells: list[Errors], method: str, base: str, metric: int) -> tuple[float, int, float]:
    """Geometric mean of ratios of mean errors, number of cells worse beyond both bands, the largest ratio."""
    logs, worse = [], 0
    for cell in cells:
        (ours, band), (theirs, other) = (mean_and_band(cell[name], metric) for name in (method, base))
        logs.append(np.log(ours / theirs))
        worse += ours - theirs > np.hypot(band, other)
    return float(np.exp(np.mean(logs))), worse, float(np.exp(np.max(logs)))


def summary(title: str, cells: list[Errors]) -> list[str]:
    """One row a method: ratios to the paper's SSP over all cells."""
    if not cells:
        return []
    lines = [
        f"### {title}: {len(cells)} cells",
        "",
        "| method | Frobenius | worse | largest | Mahalanobis | worse | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        if all(method in cell for cell in cells):
            numbers = []
            for metric in (0, 1):
                ratio, worse, largest = geometric(cells, method, BASE, metric)
                numbers += [f"{ratio:.3f}", str(worse), f"{largest:.2f}"]
            lines.append(f"| {method} | {' | '.join(numbers)} |")
    return [*lines, ""]


def against_branches(found: dict[tuple[str, float], Errors]) -> list[str]:
    """`auto` over the better of its two branches, where it has a choice."""
    lines = ["| set | rho | auto / better branch (Frobenius) | pace / ssp_select |", "|---|---|---|---|"]
    if not any(name in pace_sets.MANY_COLUMNS for name, _ in found):
        return ["Not run yet.", ""]
    for (name, rho), cell in found.items():
        if not {"auto", "pace", "ssp_select"} <= set(cell) or name not in pace_sets.MANY_COLUMNS:
            continue
        auto, pace, select = (cell[method][:, 0].mean() for method in ("auto", "pace", "ssp_select"))
        lines.append(f"| {name} | {rho:g} | {auto / min(pace, select):.2f} | {pace / select:.2f} |")
    return [*lines, ""]


def errors_table(found: dict[tuple[str, float], Errors], metric: int) -> list[str]:
    lines = [f"| set | rho | {' | '.join(METHODS)} |", "|---" * (len(METHODS) + 2) + "|"]
    for (name, rho), cell in found.items():
        shown = []
        for method in METHODS:
            if method not in cell:
                shown.append("")
                continue
            mean, band = mean_and_band(cell[method], metric)
            band = band if band > 1e-4 * mean else 0.0  # errors are kept to five digits
            shown.append(f"{mean:.3g} ± {band:.1g}" if np.isfinite(mean) else "inf")
        lines.append(f"| {name} | {rho:g} | {' | '.join(shown)} |")
    return [*lines, ""]


def plot(found: dict[tuple[str, float], Errors], names: list[str], metric: int, path: Path) -> None:
    """Error against rho, one panel a set."""
    from matplotlib.figure import Figure

    columns = 4
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(4.0 * columns, 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(axes.flat, names):
        for method in METHODS:
            points = [(rho, *mean_and_band(cell[method], metric)) for (at, rho), cell in found.items()
                      if at == name and method in cell]  # fmt: skip
            if points:
                rho, mean, band = np.array(points).T
                ax.errorbar(rho, mean, band, color=COLOURS[method], label=method, linewidth=1.2)
        ax.set(xscale="log", yscale="log", title=name)
    for ax in axes[-1]:
        ax.set_xlabel("rho")
    for ax in axes[:, 0]:
        ax.set_ylabel(f"{METRICS[metric]} error")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(METHODS))
    figure.savefig(path, dpi=55)


def report(store: Path, folder: Path) -> None:
    """docs/results/pace.md and its plots."""
    found = load(store)
    keep(found)
    folder.mkdir(parents=True, exist_ok=True)
    counts = {len(errors) for cell in found.values() for errors in cell.values()}
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy", "scikit-learn"))
    nine = [cell for (name, rho), cell in found.items() if name in pace_sets.NINE and rho in FIVE]
    tuned = [cell for (name, rho), cell in found.items() if name in pace_sets.TUNED_ON]
    others = [cell for (name, rho), cell in found.items() if name not in pace_sets.TUNED_ON]
    lines: list[Any] = [
        "# PACE, one-shot measurement with a chosen reconstruction, and `auto`",
        "",
        f"`python bench/accuracy/pace.py`, {datetime.date.today()}, {versions}, float64;",
        f"{min(counts)} to {max(counts)} repetitions a cell.",
        "",
        "Rows in [-1, 1]^d about a known centre; errors against the second moment of those rows, in units of the",
        "half-widths of the bounds. Mahalanobis errors have the eigenvalues of the truth floored at 1e-6 of its",
        "largest; bands are 95% intervals of the mean. SSP is the Gaussian mechanism on the whole matrix; the paper's",
        "form has one noise std on all entries at l2 sensitivity sqrt(2) d/n and clips negative eigenvalues.",
        "",
        "## Ratios of mean errors to the paper's SSP",
        "",
        "Geometric means over sets and budgets; 'worse' counts the cells that are worse beyond both bands.",
        "",
        *summary("The nine sets (d = 10 to 52), rho = 0.001 to 10", nine),
        *summary("Sets that choices were made on", tuned),
        *summary("All other sets", others),
        "The reconstructions, their weights and the form of `auto` were chosen while looking at",
        f"{', '.join(pace_sets.TUNED_ON)}.",
        "",
        "## `auto` and its branches from 100 columns on",
        "",
        *against_branches(found),
    ]
    for metric, name in enumerate(METRICS):
        lines += [f"## {name} errors", ""]
        lines += errors_table(found, metric)
    names = list(dict.fromkeys(name for name, _ in found))
    for metric, name in ((0, "frobenius"), (1, "mahalanobis")):
        plot(found, names, metric, folder / f"pace-{name}.png")
        lines += [f"![{METRICS[metric]} errors against rho](pace-{name}.png)", ""]
    (folder / "pace.md").write_text("\n".join(lines).rstrip() + "\n")
