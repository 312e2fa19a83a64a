"""The measured graph of a release, its plot, and the progress that the rounds tell."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, PaceConfig, SSPSelectConfig, estimate, gaussian, pace, ssp_select
from jaxdpcov.apps import graph
from jaxdpcov.privacy import ledger

RHO, NAMES = 0.5, ("a", "b", "c", "d", "e")


def rows() -> np.ndarray:
    """Two pairs of columns that go together, and one alone; bounds of several widths."""
    z = np.random.default_rng(0).uniform(-1.0, 1.0, (4000, 5))
    z[:, 1], z[:, 3] = z[:, 0], -z[:, 2]
    return z * np.array([1.0, 2.0, 3.0, 4.0, 5.0])


BOX = Bounds.box(-np.arange(1.0, 6.0), np.arange(1.0, 6.0))


@cache
def release() -> Any:
    return pace(jax.random.key(0), rows(), ZCDP(RHO), BOX, config=PaceConfig(center="zero"))


def test_edges_are_the_measured_pairs_in_data_units() -> None:
    edges, made = graph.edges(release()), release()
    mask = np.triu(np.asarray(made.extra["measured_mask"]), 1)
    assert len(edges) == mask.sum() and {edge[:2] for edge in edges[:2]} == {("x0", "x1"), ("x2", "x3")}
    assert [edge.round for edge in edges] == sorted(edge.round for edge in edges) and edges[0].round == 1
    exact = rows().T @ rows() / 4000
    for edge in edges:
        i, j = (int(name[1:]) for name in edge[:2])
        assert mask[i, j] and edge.std > 0
        assert abs(edge.measured - exact[i, j]) < 5 * edge.std
        assert edge.covariance == float(made.covariance[i, j])
        std = float(jnp.sqrt(made.covariance[i, i] * made.covariance[j, j]))
        assert edge.correlation == pytest.approx(edge.covariance / std, rel=1e-12)
    assert edges[0].times >= 1 and sum(edge.times for edge in edges) <= len(graph.rounds(made))


def test_rounds_are_those_of_the_ledger() -> None:
    rounds, made = graph.rounds(release()), release()
    assert len(rounds) == int(made.diagnostics["rounds"])
    spent = sum(each.choice + each.measurement for each in rounds)
    diagonal = next(entry.cost for entry in ledger.entries(made.ledger) if entry.what.startswith("diagonal"))
    assert spent + float(diagonal) == pytest.approx(float(made.spent.rho), rel=1e-12)
    assert all(each.chosen.shape == (1, 2) and np.all(each.chosen >= 0) for each in rounds)


def test_all_entries_at_once_have_no_rounds() -> None:
    made = ssp_select(jax.random.key(0), rows(), ZCDP(RHO), BOX, config=SSPSelectConfig(center="zero"))
    assert graph.rounds(made) == []
    edges = graph.edges(made)
    assert len(edges) == 10 and {edge.round for edge in edges} == {0}
    assert len(_plot(made).axes) == 4  # two heat maps, each with its colour bar


def test_other_releases_and_batches_are_refused() -> None:
    other = gaussian(jax.random.key(0), rows(), ZCDP(RHO), BOX, config=GaussianConfig(center="zero"))
    batch = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), release())
    for function in (graph.edges, graph.rounds, _plot):
        with pytest.raises(ValueError, match="gaussian chooses no entries"):
            function(other)
        with pytest.raises(ValueError, match=r"batch of shape \(2,\)"):
            function(batch)


def test_the_plot_shows_the_matrix_the_entries_and_the_budget() -> None:
    figure, made = _plot(release()), release()
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[:3] == ["correlation", f"{len(graph.edges(made))} measured entries beside the diagonal",
                          "budget by round"]  # fmt: skip
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), np.asarray(made.correlation))
    shown = figure.axes[1].images[0].get_array()
    np.testing.assert_array_equal(np.isfinite(np.ma.filled(shown, np.nan)), np.asarray(made.extra["measured_mask"]))
    heights = [bar.get_height() for bar in figure.axes[2].patches]
    assert sum(heights) == pytest.approx(sum(r.choice + r.measurement for r in graph.rounds(made)), rel=1e-12)


def test_rounds_tell_their_progress_to_estimate_alone() -> None:
    told: list[tuple[int, int | None]] = []
    made = estimate(
        rows(), bounds=BOX, rho=RHO, method="pace", center="zero", key=1, progress=lambda *at: told.append(at)
    )
    rounds = [done for done, total in told if total == 1000][-int(made.diagnostics["rounds"]) :]
    assert rounds == sorted(rounds) and rounds[-1] == 1000 and rounds[0] > 0
    before = len(told)
    release.__wrapped__()
    assert len(told) == before


def _plot(made: Any) -> Any:
    pytest.importorskip("matplotlib")
    from jaxdpcov import plots

    return plots.measured_graph(made)
