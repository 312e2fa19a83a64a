"""Tables, ratios and plots of the study in adaptive.py, from the errors that it stored."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Errors = dict[str, np.ndarray]

#: By form: the methods that adaptive is held against.
RIVALS = {
    "paper": ("gaussian, paper", "separate, paper", "emcov, paper"),
    "default": ("gaussian", "gaussian, denoised", "separate", "emcov"),
}
PAPER_OF = {
    "gaussian": "gaussian, paper",
    "gaussian, denoised": "gaussian, paper",
    "separate": "separate, paper",
    "adaptive": "adaptive, paper",
}
COLOURS = {"gaussian": "C0", "separate": "C1", "adaptive": "C3", "emcov": "C2", "coinpress": "C4"}


class Interval(NamedTuple):
    """A ratio of mean errors and a 95% bootstrap interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ({self.low:.2f}-{self.high:.2f})"


def band(errors: np.ndarray) -> float:
    """Half of the 95% interval of the mean error."""
    return float(1.96 * np.std(errors, ddof=1) / np.sqrt(len(errors)))


def number(value: float) -> str:
    """Two digits that count, never an exponent for what is in tables."""
    return f"{float(f'{value:.2g}'):g}"


def ratio(above: np.ndarray, below: Sequence[np.ndarray], draws: int = 4000) -> Interval:
    """Mean error over the smallest of the mean errors of `below`; repetitions are resampled together, in pairs."""
    count = min(len(above), *(len(each) for each in below))
    lanes = np.random.default_rng(0).integers(0, count, (draws, count))

    def of(means: Callable[[np.ndarray], Any]) -> Any:
        return means(above) / np.min([means(each) for each in below], axis=0)

    low, high = np.quantile(of(lambda each: each[:count][lanes].mean(axis=1)), [0.025, 0.975])
    return Interval(float(of(np.mean)), float(low), float(high))


def table(axis: str, points: list[tuple[float, Errors]], methods: Sequence[str]) -> list[str]:
    """Mean errors in units of 1e-4 with the half width of their bands."""
    shown = [name for name in methods if any(name in found for _, found in points)]
    lines = [f"| {axis} | trace | {' | '.join(shown)} |", "|---" * (len(shown) + 2) + "|"]
    for at, found in points:
        cells = []
        for name in shown:
            errors = found.get(name)
            cells.append("" if errors is None else f"{1e4 * np.mean(errors):.3g} ± {number(1e4 * band(errors))}")
        lines.append(f"| {at:g} | {float(found['trace']):.3g} | {' | '.join(cells)} |")
    return lines


def ratios(axis: str, points: list[tuple[float, Errors]]) -> list[str]:
    """Default over paper for each mechanism, and adaptive over its best rival."""
    heads = [
        "gaussian, default / paper",
        "denoised / paper",
        "separate, default / paper",
        "adaptive, default / paper",
        "adaptive / best, default",
        "adaptive / best, paper",
    ]
    lines = [f"| {axis} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for at, found in points:
        pairs = [(name, PAPER_OF[name]) for name in ("gaussian", "gaussian, denoised", "separate", "adaptive")]
        sides = [(name, (paper,)) for name, paper in pairs]
        sides += [(name, RIVALS[form]) for form, name in (("default", "adaptive"), ("paper", "adaptive, paper"))]
        cells = [
            ratio(found[name], [found[each] for each in below if each in found])
            if name in found and not found.keys().isdisjoint(below)
            else ""
            for name, below in sides
        ]
        lines.append(f"| {at:g} | {' | '.join(map(str, cells))} |")
    return lines


def plot(file: Path, axis: str, points: list[tuple[float, Errors]], methods: Sequence[str]) -> None:
    """Mean errors with 95% bands against the sweep: the paper's form beside the default."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 4.0), sharey=True, layout="constrained")
    for form, panel in zip(("paper", "default"), axes):
        for name in methods:
            if (name.endswith(", paper") != (form == "paper")) and name != "coinpress":
                continue
            held = [(at, found[name]) for at, found in points if name in found]
            if not held:
                continue
            where = np.array([at for at, _ in held])
            means, halves = (np.array([f(each) for _, each in held]) for f in (np.mean, band))
            own, denoised = name.removesuffix(", paper"), name == "gaussian, denoised"
            colour = COLOURS[own.removesuffix(", denoised")]
            panel.plot(where, means, "--" if denoised else "-", marker="o", ms=3, lw=1.3, color=colour, label=own)
            panel.fill_between(where, means - halves, means + halves, color=colour, alpha=0.25, lw=0)
        panel.set_yscale("log")
        if not axis.startswith("octaves"):
            panel.set_xscale("log")
        ticks = [at for at, _ in points]
        panel.set_xticks(ticks, [f"{at:g}" for at in ticks])
        panel.set_xticks([], minor=True)
        panel.set_xlabel(axis)
        panel.set_title({"paper": "the paper's form", "default": "default"}[form], fontsize=10)
        panel.grid(True, which="both", alpha=0.2, lw=0.5)
        panel.legend(fontsize=8, frameon=False)
    axes[0].set_ylabel("Frobenius error")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def write(
    folder: Path,
    sweeps: dict[str, tuple[str, list[tuple[float, Errors]]]],
    methods: Sequence[str],
    head: Sequence[str],
    missing: Sequence[str],
) -> None:
    """adaptive.md and one PNG for each sweep in `folder`. `sweeps`: name to (axis, [(where on it, errors)])."""
    lines = [*head, ""]
    if missing:
        lines += [f"Not run: {'; '.join(missing)}.", ""]
    for name, (axis, points) in sweeps.items():
        if not points:
            continue
        image = f"adaptive-{name.replace(' ', '-')}.png"
        short = axis.split(" (")[0]
        lines += [f"## Over {axis}", ""]
        (folder / image).unlink(missing_ok=True)
        if len(points) > 1:
            plot(folder / image, axis, points, methods)
            lines += [f"![Frobenius errors over {short}]({image})", ""]
        lines += [*table(short, points, methods), "", *ratios(short, points), ""]
    (folder / "adaptive.md").write_text("\n".join(lines).rstrip() + "\n")
