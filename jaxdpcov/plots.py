"""Plots of releases and of what follows from them: the only file that imports matplotlib (extra `plots`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdpcov.apps import graph as graphs
from jaxdpcov.apps.pca import PCA
from jaxdpcov.release import Release, column_names


def scree(found: PCA, *, ax: Any = None) -> Any:
    """Explained variances of private principal components as bars, with the edge of the noise where it is known.

    Args:
        found: one `PCA` (not a batch).
        ax: matplotlib axes; new ones by default.

    Returns:
        The axes. Everything drawn is private already.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.pca import pca
    >>> rows = jax.random.normal(jax.random.key(1), (1000, 3))
    >>> ax = scree(pca(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.l2(4.0))))
    >>> len(ax.patches)
    3
    """
    variances = np.asarray(found.explained_variance)
    if variances.ndim != 1:
        raise ValueError(f"scree draws one PCA, got a batch of shape {variances.shape[:-1]}")
    ax = _axes(ax)
    ax.bar(np.arange(1, len(variances) + 1), variances, color="C0")
    if found.noise_edge is not None:
        ax.axhline(float(found.noise_edge), color="C3", linestyle="--", label="edge of the noise")
        ax.legend()
    ax.set_xlabel("component")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylabel("explained variance")
    return ax


def projection(found: PCA, rows: Any, *, labels: Any = None, ax: Any = None) -> Any:
    """Rows on the first two private components. This shows the rows themselves: draw public or synthetic ones.

    Args:
        found: one `PCA` of at least two components.
        rows: (n, d) data units.
        labels: (n,) class of each row for its colour; one colour by default.
        ax: matplotlib axes; new ones by default.

    Returns:
        The axes.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.pca import pca
    >>> rows = jax.random.normal(jax.random.key(1), (1000, 3))
    >>> found = pca(gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.l2(4.0)))
    >>> projection(found, rows[:10]).get_xlabel()[:11]
    'component 1'
    """
    coordinates = np.asarray(found.transform(rows))
    if coordinates.ndim != 2 or coordinates.shape[1] < 2:
        raise ValueError(f"projection draws one PCA of at least two components, got coordinates {coordinates.shape}")
    ax = _axes(ax)
    labels = np.zeros(len(coordinates), int) if labels is None else np.asarray(labels)
    for i, label in enumerate(np.unique(labels)):
        chosen = coordinates[labels == label]
        ax.scatter(chosen[:, 0], chosen[:, 1], s=8, color=f"C{i % 10}", label=str(label))
    if len(np.unique(labels)) > 1:
        ax.legend()
    ratio = 100.0 * np.asarray(found.explained_variance_ratio)
    ax.set_xlabel(f"component 1 ({ratio[0]:.0f}% of the variance)")
    ax.set_ylabel(f"component 2 ({ratio[1]:.0f}% of the variance)")
    return ax


def measured_graph(release: Release) -> Any:
    """The private correlations beside the entries that were measured, and what each round spent.

    Args:
        release: one release of `pace`, `auto` or `ssp_select`.

    Returns:
        A matplotlib figure. Everything drawn is released already.
    """
    from matplotlib.figure import Figure

    rounds = graphs.rounds(release)
    figure = Figure(figsize=(15.0 if rounds else 10.0, 4.5), layout="constrained")
    axes = figure.subplots(1, 3 if rounds else 2)
    names, d = column_names(release), release.d
    image = axes[0].imshow(np.asarray(release.correlation), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
    figure.colorbar(image, ax=axes[0], shrink=0.8)
    axes[0].set_title("correlation")
    std = np.full((d, d), np.nan)
    mask, weight = np.asarray(release.extra["measured_mask"]), np.asarray(release.extra["measurement_precision"])
    std[mask] = 1.0 / np.sqrt(weight[mask])
    image = axes[1].imshow(std, cmap="viridis")
    figure.colorbar(image, ax=axes[1], shrink=0.8, label="std of the noise, half-widths of the bounds")
    axes[1].set_title(f"{(int(mask.sum()) - int(np.trace(mask))) // 2} measured entries beside the diagonal")
    if d <= 30:
        for ax in axes[:2]:
            ax.set_xticks(range(d), names, rotation=90, fontsize=7)
            ax.set_yticks(range(d), names, fontsize=7)
    if rounds:
        at = np.arange(1, len(rounds) + 1)
        choice, measurement = (np.array([getattr(each, name) for each in rounds]) for name in ("choice", "measurement"))
        axes[2].bar(at, choice, color="C1", label="choice")
        axes[2].bar(at, measurement, bottom=choice, color="C0", label="measurement")
        axes[2].set_xlabel("round")
        axes[2].set_ylabel("rho")
        axes[2].set_title("budget by round")
        axes[2].legend()
    return figure


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def study(
    summary: Sequence[Mapping[str, Any]],
    x: str,
    *,
    metric: str | None = None,
    statistic: str = "mean",
    floor: str | None = "not_private",
    title: str = "",
    figure: Any = None,
) -> Any:
    """Errors of a study on log axes: a line with its band for each arm, a panel for whatever else was swept.

    Args:
        summary: rows as of `sim.Results.summary`, or of the "summary" in its summary.json.
        x: the coordinate on the axis. metric: which one; the first unless given. statistic: the column to draw.
        floor: the arm that is drawn as a dashed grey line, the error without privacy; None for no such line.
        title: above all panels. figure: matplotlib figure; a new one by default.

    Returns:
        The figure.

    >>> rows = [{"arm": "gaussian", "d": d, "metric": "frobenius", "mean": d / 10, "low": d / 11, "high": d / 9}
    ...         for d in (2, 4, 8)]
    >>> len(study(rows, "d").axes[0].lines)
    1
    """
    from matplotlib import ticker
    from matplotlib.figure import Figure

    metric = summary[0]["metric"] if metric is None else metric
    rows = [row for row in summary if row["metric"] == metric and np.isfinite(_number(row[statistic]))]
    if not rows:
        raise ValueError(f"the summary has no finite {statistic} of {metric!r}")
    swept = [name for name in rows[0] if name not in (_AFTER | {"arm", x})]
    swept = [name for name in swept if len({row.get(name) for row in rows}) > 1]
    panels = list(dict.fromkeys(tuple(row.get(name) for name in swept) for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    wide = min(3, len(panels))
    high = -(-len(panels) // wide)
    if figure is None:
        figure = Figure(figsize=(1.5 + 4.2 * wide, 0.9 + 3.4 * high), layout="constrained")
    grid = figure.subplots(high, wide, squeeze=False, sharex=True).ravel()
    for ax, panel in zip(grid, panels):
        for place, arm in enumerate(arms):
            found = [row for row in rows if row["arm"] == arm and tuple(row.get(name) for name in swept) == panel]
            found.sort(key=lambda row: row[x])
            at, value = ([row[name] for row in found] for name in (x, statistic))
            if arm == floor:
                ax.plot(at, value, color="0.45", linestyle="--", label="not private")
                continue
            ax.plot(at, value, color=f"C{place}", marker=_MARKERS[place % len(_MARKERS)], markersize=4, label=arm)
            low, high_ = ([_number(row[name]) for row in found] for name in ("low", "high"))
            ax.fill_between(at, low, high_, color=f"C{place}", alpha=0.2, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        places = sorted({row[x] for row in rows})
        if len(places) <= 8:
            ax.set_xticks(places, [f"{place:g}" for place in places])
            ax.xaxis.set_minor_locator(ticker.NullLocator())
        ax.yaxis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1.5, 0.5)))
        ax.grid(True, which="both", alpha=0.25)
        ax.set_title(", ".join(f"{value}" if name == "population" else f"{name} = {value}"
                               for name, value in zip(swept, panel)), fontsize=10)  # fmt: skip
        ax.set_xlabel(x)
    for ax in grid[len(panels) :]:
        ax.set_axis_off()
    grid[0].set_ylabel(f"{metric.replace('_', ' ')} error ({statistic})")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11, x=0.02, ha="left")  # the legend is at the right
    return figure


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


#: Columns of a summary that are no coordinates, and the marks of arms, which colour alone would not tell apart.
_AFTER = {
    "metric", "mean", "trimmed", "median", "low", "high", "repetitions", "failures", "status_set",
    *(f"q{q:02d}" for q in range(101)),
}  # fmt: skip
_MARKERS = "osD^vPX*<>"
