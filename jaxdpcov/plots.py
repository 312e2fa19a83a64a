"""Plots of releases and of what follows from them: the only file that imports matplotlib (extra `plots`)."""

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
