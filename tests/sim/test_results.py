"""What repetitions leave: statistics with failures apart, bands, and files that say how they were made."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from jaxdpcov import plots
from jaxdpcov.sim import Results, Study, summarise, sweep

STUDY = Study.of(
    {
        "arms": {"noise": {"method": "gaussian"}, "not_private": {}}, "population": "identity", "n": [20, 40], "d": 2,
        "rho": 1.0, "bounds": {"radius": 3.0}, "repetitions": 6, "seed": 3, "metrics": ["frobenius", "stein"],
        "statistic": "median", "x": "n",
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def results() -> Results:
    return sweep(STUDY)


def test_statistics_are_of_what_is_finite_and_failures_are_counted() -> None:
    errors = np.concatenate([np.arange(1.0, 21.0), [np.nan, np.inf]])
    found = summarise(errors, "trimmed")
    assert (found["repetitions"], found["failures"]) == (22, 2)
    assert (found["mean"], found["median"], found["trimmed"]) == (10.5, 10.5, 10.5)
    assert found["q25"] == np.quantile(np.arange(1.0, 21.0), 0.25)
    found = summarise(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1000.0]))
    assert found["trimmed"] == 5.5 and found["mean"] == 104.5
    nothing = summarise(np.full(3, np.nan))
    assert nothing["failures"] == 3 and np.isnan(nothing["mean"]) and np.isnan(nothing["low"])
    alone = summarise(np.array([2.0]))
    assert alone["mean"] == 2.0 and np.isnan(alone["low"])


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_bands_cover_what_they_are_of(statistic: str) -> None:
    """The 95% band of 50 exponentials, 300 times: coverage 0.85 to 0.99 (a percentile bootstrap of skewed data errs
    by a few percent; three standard errors of 300 are 0.04)."""
    rng, truth = np.random.default_rng(0), {"mean": 1.0, "median": np.log(2.0)}[statistic]
    covered = 0
    for _ in range(300):
        found = summarise(rng.exponential(size=50), statistic)
        covered += found["low"] <= truth <= found["high"]
    assert 0.85 <= covered / 300 <= 0.99


def test_a_summary_has_a_row_for_each_cell_and_metric(results: Results) -> None:
    rows = results.summary()
    assert [(row["arm"], row["n"], row["metric"]) for row in rows][:3] == [
        ("noise", 20, "frobenius"), ("noise", 20, "stein"), ("not_private", 20, "frobenius"),
    ]  # fmt: skip
    assert len(rows) == 8
    for row, place in ((rows[0], 0), (rows[1], 1)):
        errors = results.outcomes[0].errors[:, place]
        assert row["failures"] == np.count_nonzero(~np.isfinite(errors))
        assert row["median"] == np.median(errors[np.isfinite(errors)])
        assert row["low"] <= row["median"] <= row["high"]


def test_files_hold_results_with_settings_seed_and_versions(results: Results, tmp_path: Path) -> None:
    files = results.save(tmp_path / "out")
    assert [file.name for file in files] == ["summary.csv", "summary.json", "errors.parquet"]
    with files[0].open(newline="") as read:
        rows = list(csv.DictReader(read))
    assert [float(row["median"]) for row in rows] == [row["median"] for row in results.summary()]
    document = json.loads(files[1].read_text())
    assert document["study"]["seed"] == 3 and document["batch_size"] == 4
    assert {"jaxdpcov", "jax", "jaxlib", "numpy", "platform", "device", "precision"} == set(document["versions"])
    assert len(document["summary"]) == 8
    from pyarrow import parquet

    table = parquet.read_table(files[2])
    assert table.num_rows == 4 * 6
    assert json.loads(table.schema.metadata[b"jaxdpcov"])["digest"] == STUDY.digest()
    np.testing.assert_array_equal(table["frobenius"].to_numpy()[:6], results.outcomes[0].errors[:, 0])


def test_a_plot_has_a_line_and_a_band_for_each_arm_and_a_panel_for_what_else_was_swept(results: Results) -> None:
    figure = plots.study(results.summary(), "n", statistic="median", title="errors")
    (ax,) = figure.axes
    assert len(ax.lines) == 2 and len(ax.collections) == 1
    assert ax.get_xscale() == ax.get_yscale() == "log"
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [20, 40])
    expected = [row["median"] for row in results.summary() if (row["arm"], row["metric"]) == ("noise", "frobenius")]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), expected)
    rows = [{**row, "d": d} for row in results.summary() for d in (2, 3)]
    assert len(plots.study(rows, "n", statistic="median").axes) == 2
    with pytest.raises(ValueError, match="no finite mean"):
        plots.study(results.summary(), "n", metric="other")
