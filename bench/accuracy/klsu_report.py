"""The page docs/results/klsu.md and its plots, from the points of bench/accuracy/klsu.py."""

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np

METHODS = ("sample", "naive", "learn_gaussian", "learn_gaussian, theory", "coinpress_gaussian")
COVARIANCES = ("sample", "naive_pce", "naive_pce, theory", "pgce", "pgce, theory", "coinpress")
LABEL = {"sample": "not private", "coinpress": "coinpress_covariance"}


def curve(points: dict[str, Any], prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """(rows, trials' errors by rows), in the order of n."""
    found = {int(name.rsplit(" ", 1)[1]): each for name, each in points.items() if name.rsplit(" ", 1)[0] == prefix}
    return np.array(sorted(found)), [np.array(found[n]) for n in sorted(found)]


def crossing(points: dict[str, Any], prefix: str, level: float) -> float | None:
    """Rows at which the median error falls below `level`, by a line in logarithms; None where it does not."""
    n, errors = curve(points, prefix)
    medians = np.array([np.median(each) for each in errors])
    below = np.flatnonzero(medians < level)
    if not below.size or not below[0]:
        return None
    i = below[0]
    x, y = np.log(n[i - 1 : i + 1]), np.log(medians[i - 1 : i + 1])
    return float(np.exp(x[0] + (x[1] - x[0]) * (np.log(level) - y[0]) / (y[1] - y[0])))


def report(points: dict[str, Any], folder: Path) -> None:
    """Write the page and both plots."""
    import klsu

    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jaxdpcov", "jax", "numpy"))
    lines = [
        "# Rows that a Gaussian of unknown scale takes",
        "",
        "Made by `python bench/accuracy/klsu.py`; `--report` makes this page and its plots again from the raw errors",
        f"in `data/klsu.json`. Versions: {versions}.",
        "",
        "Sigma has a geometric spectrum from 1 to kappa in random directions, bounds are exact,",
        f"rho = {klsu.RHO}, beta = 0.05. 20 trials (8 beyond 65,536 rows), rows drawn anew in each; medians. Rows",
        "needed are read off between powers of two.",
        "",
        *_learn(points, folder, klsu),
        *_kappa(points, folder, klsu),
        *_invariant(points),
    ]
    (folder / "klsu.md").write_text("\n".join(lines) + "\n")


def _learn(points: dict[str, Any], folder: Path, klsu: Any) -> list[str]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    lines = [
        f"## A whole Gaussian: d = {klsu.LEARN_D}, kappa = {klsu.LEARN_KAPPA:g}, R = {klsu.LEARN_RADIUS:g}",
        "",
        "Total variation distance to the truth, by 4,000 draws in each trial. The mean lies at 0.9 R. `naive` is",
        "`learn_gaussian` without preconditioning (`rounds=0`); covariances are floored at the public lower bound.",
        "",
        "![Total variation distance against rows](klsu-learn.png)",
        "",
        f"| method | rows for a distance of {klsu.LEARN_TV:g} | nearest trials: median distance (10% to 90%) |",
        "|---|---|---|",
    ]
    for method in METHODS:
        n, errors = curve(points, f"learn {method}")
        if not n.size:
            continue
        middle = [np.median(each) for each in errors]
        ax.plot(n, middle, marker="o", markersize=3, label=LABEL.get(method, method))
        low, high = ([np.quantile(each, q) for each in errors] for q in (0.1, 0.9))
        ax.fill_between(n, low, high, alpha=0.15)
        needed = crossing(points, f"learn {method}", klsu.LEARN_TV)
        shown = "more than were tried" if needed is None else f"{needed:,.0f}"
        i = int(np.argmin(np.abs(np.log(middle) - np.log(klsu.LEARN_TV))))
        band = f"{middle[i]:.3f} ({low[i]:.3f} to {high[i]:.3f}) at {n[i]:,}"
        lines.append(f"| {LABEL.get(method, method)} | {shown} | {band} |")
    ax.axhline(klsu.LEARN_TV, color="gray", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel="rows n", ylabel="total variation distance")
    ax.legend(fontsize=8)
    figure.savefig(folder / "klsu-learn.png", dpi=90)
    return [*lines, ""]


def _kappa(points: dict[str, Any], folder: Path, klsu: Any) -> list[str]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    kappas = klsu.KAPPAS
    lines = [
        f"## Rows against kappa: d = {klsu.KAPPA_D}, mean known",
        "",
        f"Rows for a relative Frobenius error ||Sigma^-1/2 (S - Sigma) Sigma^-1/2||_F of {klsu.KAPPA_ERROR:g}; at most",
        f"{klsu.MOST_ROWS:,} were tried.",
        "",
        "![Rows needed against kappa](klsu-kappa.png)",
        "",
        "| method | " + " | ".join(f"{kappa:g}" for kappa in kappas) + " |",
        "|---|" + "---|" * len(kappas),
    ]
    for method in COVARIANCES:
        needed = [crossing(points, f"kappa {kappa:g} {method}", klsu.KAPPA_ERROR) for kappa in kappas]
        if method == "sample":
            needed = [needed[0]] * len(kappas)
        drawn = [(kappa, n) for kappa, n in zip(kappas, needed) if n is not None]
        if not drawn:
            continue
        ax.plot(*zip(*drawn), marker="o", markersize=3, label=LABEL.get(method, method))
        shown = " | ".join("" if n is None else f"{n:,.0f}" for n in needed)
        lines.append(f"| {LABEL.get(method, method)} | {shown} |")
    ax.set(xscale="log", yscale="log", xlabel="kappa", ylabel="rows n")
    ax.legend(fontsize=8)
    figure.savefig(folder / "klsu-kappa.png", dpi=90)
    return [*lines, ""]


def _invariant(points: dict[str, Any]) -> list[str]:
    lines = [
        '## The promise of `ppc` under constants="theory"',
        "",
        "d = 5, 131,072 rows, 100 releases each: those in which I <= A Sigma A^T <= kappa I held at the end, the",
        "smallest and largest eigenvalue of A Sigma A^T over all of them, the promised kappa at the end, and the",
        "largest ratio of a round.",
        "",
        "| kappa | rounds | held | smallest | largest | promised at the end | largest ratio of a round |",
        "|---|---|---|---|---|---|---|",
    ]
    found = {float(name.split()[1]): each for name, each in points.items() if name.startswith("invariant ")}
    for kappa, each in sorted(found.items()):
        kappas = each["kappas"]
        end = kappas[-1] if kappas else kappa
        ratio = "" if each["slowest"] is None else f"{each['slowest']:.3f}"
        lines.append(
            f"| {kappa:g} | {len(kappas)} | {each['held']} | {each['smallest']:.3g} | {each['largest']:.3g} "
            f"| {end:.3g} | {ratio} |"
        )
    return [*lines, ""]
