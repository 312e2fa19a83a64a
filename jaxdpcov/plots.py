"""Plots of releases and of what follows from them: the only file that imports matplotlib (extra `plots`)."""

from typing import Any

import numpy as np

from jaxdpcov.apps.pca import PCA


def scree(found: PCA, *, ax: Any = None) -> Any:
    """Explained variances of private principal components as bars, with the edge of the noise where it is known.

    Args:
        found: one `PCA` (not a batch).
        ax: matplotlib axes; new ones by default.

    Returns:
        The axes. Everything drawn is private already.
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


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    from matplotlib.figure import Figure

    return Figure().add_subplot()
