"""`estimate`: one release whatever holds the data, float64 whatever JAX is set to, and one line for every mistake."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from jaxdpcov import ZCDP, ApproxDP, Bounds, DataError, GaussianConfig, PureDP, Release, estimate, gaussian, load
from jaxdpcov.data import clip
from jaxdpcov.estimate import check_arguments
from jaxdpcov.privacy import ledger

N = 60
X = np.random.default_rng(5).normal((4.0, 1.0), (2.0, 1.0), (N, 2)).round(6)
X[0] = (1e6, -1e6)  # beyond the bounds
LOW, HIGH = np.array([-2.0, -1.0]), np.array([10.0, 3.0])
BOUNDS = {"x0": (-2.0, 10.0), "x1": (-1.0, 3.0)}
HUGE = 1e15  # a rho at which the noise is far below every tolerance here


def release(data: Any = X, **given: Any) -> Release:
    """A release of `data` at the seed and bounds of this file, by the mechanism of the shortest program."""
    return estimate(data, **({"bounds": BOUNDS, "rho": 0.5, "key": 3, "method": "gaussian"} | given))


def close(one: Release, other: Release, rtol: float = 1e-11) -> bool:
    """Equal up to the rounding of sums that were taken in another order."""
    scale = np.abs(one.covariance).max()
    return bool(
        np.allclose(one.covariance, other.covariance, rtol=0, atol=rtol * scale)
        and np.allclose(one.mean, other.mean, rtol=rtol, atol=rtol)
    )


def same(one: Release, other: Release) -> bool:
    """Equal bit by bit, in every leaf."""
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


# -- the homes of data ---------------------------------------------------------------------------------------------


def csv(folder: Path, rows: np.ndarray = X, name: str = "rows.csv") -> Path:
    lines = [",".join(f"x{j}" for j in range(rows.shape[1]))]
    lines += [",".join(map(repr, row)) for row in rows.tolist()]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / name


def table() -> pa.Table:
    return pa.table({"x0": X[:, 0], "x1": X[:, 1]})


def npy(folder: Path) -> Path:
    np.save(folder / "rows.npy", X)
    return folder / "rows.npy"


def npz(folder: Path) -> Path:
    np.savez(folder / "rows.npz", X=X, columns=np.array(["x0", "x1"]))
    return folder / "rows.npz"


def parquet(folder: Path) -> Path:
    pq.write_table(table(), folder / "rows.parquet")
    return folder / "rows.parquet"


HOMES: dict[str, Callable[[Path], Any]] = {
    "list": lambda _: X.tolist(),
    "jax array": lambda _: jnp.asarray(X),
    "pandas": lambda _: pd.DataFrame(X, columns=["x0", "x1"]),
    "polars": lambda _: pl.DataFrame({"x0": X[:, 0], "x1": X[:, 1]}),
    "pyarrow table": lambda _: table(),
    "pyarrow data set": lambda _: ds.dataset(table()),
    "csv": csv,
    "csv, text path": lambda folder: str(csv(folder)),
    "parquet": parquet,
    "npy": npy,
    "npz": npz,
}


@pytest.mark.parametrize("home", HOMES)
def test_every_home_gives_the_same_release(home: str, tmp_path: Path) -> None:
    found = release(HOMES[home](tmp_path))
    assert close(found, release()) and found.columns == ("x0", "x1") and found.n == N
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(found.measured))


def test_it_is_the_mechanism_on_clipped_rows() -> None:
    """The same key, rows and bounds by hand: nothing is added on the way, and what is beyond the bounds is cut."""
    box = Bounds.box(LOW, HIGH)
    direct = gaussian(jax.random.key(3), jnp.asarray(np.clip(X, LOW, HIGH)), ZCDP(0.5), box)
    assert close(release(key=jax.random.key(3)), direct)
    assert same(release(), release(np.asarray(clip.clip(jnp.asarray(X), box))))
    assert not np.allclose(release().covariance, np.cov(X.T, ddof=0), rtol=0.5)


def test_without_noise_it_is_the_covariance_over_n() -> None:
    inside = np.clip(X, LOW, HIGH)
    found = release(rho=HUGE)
    np.testing.assert_allclose(found.covariance, np.cov(inside.T, ddof=0), rtol=1e-5)
    np.testing.assert_allclose(found.mean, inside.mean(0), rtol=1e-5)


def test_the_order_of_rows_and_of_bounds_does_not_matter() -> None:
    order = np.random.default_rng(0).permutation(N)
    assert close(release(), release(X[order]))
    assert same(release(), release(bounds=dict(reversed(BOUNDS.items()))))


def test_columns_are_chosen_and_ordered_by_name() -> None:
    swapped = release(columns=["x1", "x0"], rho=HUGE)
    straight = release(rho=HUGE)
    assert swapped.columns == ("x1", "x0")
    np.testing.assert_allclose(swapped.covariance, straight.covariance[::-1, ::-1], rtol=1e-5)


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    many = np.random.default_rng(1).uniform(-1, 3, (70_000, 2)).round(3)
    assert close(release(many), release(csv(tmp_path, many)), rtol=1e-9)


# -- keys and numbers ----------------------------------------------------------------------------------------------


def test_where_the_key_comes_from() -> None:
    os_made = [release(key=None) for _ in range(2)]
    assert not np.array_equal(os_made[0].covariance, os_made[1].covariance)
    assert {made.key_source for made in os_made} == {"os"}
    assert release(key=np.int64(3)).key_source == release().key_source == "study"
    assert "STUDY" in str(release()) and "STUDY" not in str(os_made[0])
    users = [release(key=key) for key in (jax.random.key(3), jax.random.PRNGKey(3), np.array([0, 3], np.uint32))]
    assert {made.key_source for made in users} == {"user"}
    assert all(np.array_equal(made.covariance, release().covariance) for made in users)
    assert not np.array_equal(release().covariance, release(key=4).covariance)
    assert not np.array_equal(release(key=2**40).covariance, release(key=2**41).covariance)


def test_the_entropy_of_the_operating_system_is_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: changing any of its words changes the release."""
    module = importlib.import_module("jaxdpcov.estimate")
    asked: list[int] = []

    def entropy(flipped: int | None) -> Callable[[int], bytes]:
        def draw(size: int) -> bytes:
            asked.append(size)
            return bytes(1 if place == flipped else 0 for place in range(size))

        return draw

    seen = []
    for flipped in (None, 0, 3, 4, 7):
        monkeypatch.setattr(module.secrets, "token_bytes", entropy(flipped))
        seen.append(release(key=None).covariance.tobytes())
    assert len(set(seen)) == 5 and asked == [8] * 5


@pytest.mark.x64_off
def test_with_x64_off_the_release_is_the_same_and_the_setting_stays() -> None:
    found = release()
    assert found.covariance.dtype == np.float64 and jax.config.read("jax_enable_x64") is False
    with jax.enable_x64(True):
        assert same(found, release())
    with pytest.raises(ValueError):
        release(bounds={"x0": (0, 1)})
    with pytest.raises(DataError):
        release(np.full((2, 2), np.nan), missing="error")
    assert jax.config.read("jax_enable_x64") is False


def test_a_plain_script() -> None:
    code = (
        "import jax, numpy as np\nfrom jaxdpcov import estimate\n"
        "x = np.random.default_rng(0).normal(size=(50, 2))\n"
        "made = estimate(x, bounds={'x0': (-3, 3), 'x1': (-3, 3)}, rho=1.0)\n"
        "floats = [leaf.dtype.name for leaf in jax.tree.leaves(made) if np.issubdtype(leaf.dtype, np.floating)]\n"
        "print(jax.config.jax_enable_x64, jax.numpy.ones(1).dtype, sorted(set(floats)), made.key_source)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("False float32 ['float64'] os\n", "")


# -- budgets, methods and options ----------------------------------------------------------------------------------


def test_budgets() -> None:
    assert isinstance(release().spent, ZCDP) and release().spent.rho <= 0.5
    approximate = release(rho=None, epsilon=1.0, delta=1e-6).spent
    assert isinstance(approximate, ZCDP) and 0.0243 < approximate.rho < 0.02436
    pure = release(rho=None, epsilon=1.0, method="laplace").spent
    assert isinstance(pure, PureDP) and 0.999 < pure.epsilon <= 1.0


def test_checks_without_data() -> None:
    mechanism, budget, config = check_arguments(
        method="gaussian", epsilon=1.0, delta=1e-6, center="zero", options={"psd": "none"}
    )
    assert (mechanism.name, budget) == ("gaussian", ApproxDP(1.0, 1e-6))
    assert config == GaussianConfig(center="zero", psd="none")


def test_options_reach_the_mechanism() -> None:
    found = release(noise="sgw", psd="none", mean_share=0.3)
    assert found.config.psd == "none" and found.measured["second_moment"].std.std() < 1e-15
    first, second = (entry.cost for entry in ledger.entries(found.ledger))
    assert np.isclose(first / (first + second), 0.3)


def test_a_ball() -> None:
    ball = Bounds.l2(4.0, np.array([4.0, 1.0]))
    assert close(release(bounds=ball), gaussian(jax.random.key(3), jnp.asarray(X), ZCDP(0.5), ball))


def test_pairs(tmp_path: Path) -> None:
    """Paired by a permutation from the key, whatever the source: a sorted file has no small differences."""
    inside = np.cov(np.clip(X, LOW, HIGH).T, ddof=1)
    made = [release(data, center="pairs", rho=HUGE) for data in (X, csv(tmp_path))]
    np.testing.assert_allclose(made[0].covariance, made[1].covariance, rtol=1e-11)
    by_row = np.clip(X, LOW, HIGH)[np.lexsort(X.T)]
    path = csv(tmp_path, by_row, "sorted.csv")
    made += [release(path, center="pairs", rho=HUGE, key=seed) for seed in range(5)]
    for one in made:
        assert one.mean is None
        np.testing.assert_allclose(one.covariance, inside, atol=0.5 * inside.max())
    # Neighbours of the sorted rows would give the column that they are sorted by less than a tenth of its variance.
    assert np.mean(np.diff(by_row[:, 1]) ** 2) / 2 < 0.1 * inside[1, 1]
    assert np.mean([one.covariance[1, 1] for one in made[2:]]) > 0.6 * inside[1, 1]  # four standard errors below


def test_coinpress_by_its_defaults(tmp_path: Path) -> None:
    """No choice of a centre has to be made, of an array or of a file."""
    bounds, x = Bounds.spectrum(0.01, 1e4, mean_radius=100.0), X[1:]
    for data in (x, csv(tmp_path, x)):
        found = release(data, method="coinpress_gaussian", bounds=bounds, rho=50.0)
        assert found.config.center == "pairs" and np.all(np.abs(found.mean - x.mean(0)) < x.std(0))
        assert release(data, method="coinpress_mean", bounds=bounds, rho=50.0).covariance is None


def test_under_add_remove_no_count_leaves(tmp_path: Path) -> None:
    found = release(relation="add_remove")
    assert found.relation == "add_remove" and "noisy n" in str(found) and "n is private" in str(found)
    assert not any(np.any(np.asarray(leaf) == N) for leaf in jax.tree.leaves(found))
    assert "number of rows" in [entry.what for entry in ledger.entries(found.ledger)]
    assert abs(release(relation="add_remove", rho=1e8).n - N) < 0.1


# -- persons, categories, missing cells ----------------------------------------------------------------------------


def persons(folder: Path) -> Path:
    """Twelve persons: the first has 40 rows, the others a few."""
    ids = [0] * 40 + [1 + i % 11 for i in range(N - 40)]
    lines = ["who,x0,x1", *(f"p{who},{a!r},{b!r}" for who, (a, b) in zip(ids, X.tolist()))]
    (folder / "people.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder / "people.csv"


def test_the_person_is_the_unit(tmp_path: Path) -> None:
    path = persons(tmp_path)
    found = release(path, person="who", rho=HUGE)
    frame = pd.read_csv(path)
    frame[["x0", "x1"]] = np.clip(frame[["x0", "x1"]], LOW, HIGH)
    weights = (1.0 / frame.groupby("who")["x0"].transform("size")).to_numpy()
    rows = frame[["x0", "x1"]].to_numpy()
    mean = weights @ rows / 12
    assert (found.n, found.unit, release().unit) == (12, "person", "row")
    np.testing.assert_allclose(found.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(found.covariance, (rows.T * weights) @ rows / 12 - np.outer(mean, mean), rtol=1e-3)
    assert "one person (all their rows)" in str(found) and "one row" in str(release())


def test_the_key_chooses_the_rows_of_a_person(tmp_path: Path) -> None:
    path = persons(tmp_path)
    chosen = [release(path, person="who", max_rows=1, rho=HUGE, key=key).mean for key in (3, 3, 4)]
    assert np.array_equal(chosen[0], chosen[1]) and np.abs(chosen[0] - chosen[2]).max() > 1e-3


def test_categories_bring_their_own_bounds() -> None:
    frame = pd.DataFrame({"x0": X[:, 0], "sex": ["F", "M", "?"] * 20})
    found = release(frame, bounds={"x0": (-2, 10)}, categories={"sex": ["F", "M"]}, rho=HUGE)
    assert found.columns == ("x0", "sex=F", "sex=M")
    np.testing.assert_allclose(found.mean[1:], 1 / 3, rtol=1e-4)
    np.testing.assert_allclose(found.bounds.lower, [-2, 0, 0])
    narrower = release(frame, bounds={"x0": (-2, 10), "sex=F": (0, 0.5)}, categories={"sex": ["F", "M"]}, rho=HUGE)
    np.testing.assert_allclose(narrower.mean[1], 1 / 6, rtol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_missing_cells(bad: float) -> None:
    holes, row, cell = X.copy(), X.copy(), X.copy()
    holes[7, 1] = bad
    center = 0.5 * (LOW + HIGH)
    row[7], cell[7, 1] = center, center[1]
    assert same(release(holes), release(row))
    assert same(release(holes, missing="cell"), release(cell, missing="cell"))
    ball = Bounds.l2(4.0, center)
    assert same(release(holes, missing="cell", bounds=ball), release(cell, missing="cell", bounds=ball))
    with pytest.raises(DataError, match="column 'x1' of the array has no number in row 8"):
        release(holes, missing="error")


def test_one_key_gives_other_noise_for_other_rows_of_the_same_data() -> None:
    """Else the difference of two releases with one key would be an exact statistic."""
    plain = release().measured["mean"].value
    for choice in ({"missing": "cell"}, {"columns": ["x0", "x1"]}):
        assert np.all(release(**choice).measured["mean"].value != plain)


def test_a_look_without_privacy_is_in_the_ledger() -> None:
    looked = release(missing="error")
    assert np.array_equal(looked.covariance, release().covariance)
    assert ledger.rows(looked.ledger)[0]["what"] == "missing cells: looked for without privacy"
    assert "without privacy" in str(looked) and "without privacy" not in str(release())


@pytest.mark.parametrize(
    "rows",
    [np.full((3, 2), 1e300), np.full((3, 2), 1.5), np.zeros((3, 2)), np.full((3, 2), np.nan), X[:1]],
    ids=["1e300", "constant", "zero", "missing", "one row"],
)
def test_odd_rows_give_a_finite_psd_release(rows: np.ndarray) -> None:
    found = release(rows)
    assert np.isfinite(found.covariance).all() and np.isfinite(found.mean).all()
    assert (found.covariance == found.covariance.T).all() and np.linalg.eigvalsh(found.covariance)[0] > -1e-9


def test_a_constant_column_is_known() -> None:
    found = release(bounds={"x0": (-2, 10), "x1": (1, 1)})
    assert found.mean[1] == 1 and not found.covariance[1].any() and not found.covariance[:, 1].any()


# -- what else a user meets ----------------------------------------------------------------------------------------


def test_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = csv(tmp_path)
    release(path, progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1] == (path.stat().st_size,) * 2


def test_print_save_load_and_json(tmp_path: Path) -> None:
    found = release()
    found.save(tmp_path / "r.npz")
    back = load(tmp_path / "r.npz")
    assert same(found, back) and str(back) == str(found) and back.columns == ("x0", "x1")
    assert json.loads(json.dumps(found.to_dict()))["covariance"] == found.covariance.tolist()
    assert found.to_pandas().loc["x0", "x1"] == found.covariance[0, 1]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no budget": ({"rho": None}, ValueError, "exactly one budget: rho=0.5"),
    "two budgets": ({"epsilon": 1.0}, ValueError, "exactly one budget"),
    "rho and delta": ({"delta": 1e-6}, ValueError, "delta goes with epsilon"),
    "rho = 0": ({"rho": 0}, ValueError, "rho must be finite and > 0, got 0"),
    "rho = -1": ({"rho": -1.0}, ValueError, "rho must be finite and > 0, got -1"),
    "rho = nan": ({"rho": float("nan")}, ValueError, "rho must be finite and > 0, got nan"),
    "rho = abc": ({"rho": "abc"}, TypeError, "rho must be a number, got 'abc'"),
    "delta = 0": ({"rho": None, "epsilon": 1, "delta": 0}, ValueError, "delta must satisfy 0 < delta < 1, got 0"),
    "pure": ({"rho": None, "epsilon": 1}, ValueError, r"give delta= as well.*\(.*laplace"),
    "laplace by rho": ({"method": "laplace"}, ValueError, "laplace is pure DP: give epsilon="),
    "laplace by delta": (
        {"rho": None, "epsilon": 1, "delta": 1e-6, "method": "laplace"}, ValueError, "without delta="
    ),
    "method": ({"method": "gausian"}, ValueError, "did you mean 'gaussian'"),
    "option": ({"mean_shar": 0.3}, ValueError, "gaussian has no option 'mean_shar'; it has .*mean_share"),
    "option's value": ({"psd": "x"}, ValueError, "psd must be one of 'project'"),
    "center": ({"center": "x"}, ValueError, "center must be one of"),
    "relation": ({"relation": "x"}, ValueError, "relation must be one of"),
    "missing": ({"missing": "x"}, ValueError, "missing must be one of"),
    "pairs, add_remove": ({"center": "pairs", "relation": "add_remove"}, ValueError, "needs relation='replace'"),
    "no bounds for one": ({"bounds": {"x0": (0, 1)}}, ValueError, r"no entry for column 'x1': add one, such as \{'x1"),
    "bounds for another": ({"bounds": BOUNDS | {"y": (0, 1)}}, ValueError, "entry for 'y', which is none"),
    "bounds, one number": ({"bounds": BOUNDS | {"x0": 5}}, ValueError, "bounds of column 'x0' must be two numbers"),
    "bounds, text": ({"bounds": BOUNDS | {"x0": "ab"}}, ValueError, "bounds of column 'x0' must be two numbers"),
    "bounds, huge": ({"bounds": BOUNDS | {"x0": (0, 10**400)}}, ValueError, "must be two numbers"),
    "bounds, nan": ({"bounds": BOUNDS | {"x0": (0, np.nan)}}, ValueError, "must be finite with low <= high"),
    "bounds, inverted": ({"bounds": BOUNDS | {"x0": (1, 0)}}, ValueError, "must be finite with low <= high"),
    "bounds, no mapping": ({"bounds": [(0, 1), (0, 1)]}, TypeError, "bounds must be a mapping"),
    "ball of another d": ({"bounds": Bounds.l2(1.0, [0.0] * 3)}, ValueError, "one entry for each of the 2 columns"),
    "the same, cells": (
        {"bounds": Bounds.l2(1.0, [0.0] * 3), "missing": "cell"}, ValueError, "one entry for each of the 2 columns"
    ),
    "spectrum": ({"bounds": Bounds.spectrum(1.0, 2.0)}, TypeError, "gaussian needs Bounds.l2"),
    "columns": ({"columns": ["x0", "y"]}, DataError, "no column 'y'"),
    "columns as text": ({"columns": "x0"}, TypeError, "columns must be a list"),
    "person": ({"person": "who"}, DataError, "no column 'who'"),
    "max_rows": ({"max_rows": 2}, ValueError, "give person=COLUMN"),
    "key, text": ({"key": "secret"}, TypeError, "key must be a JAX PRNG key"),
    "key, truth": ({"key": True}, TypeError, "key must be a JAX PRNG key"),
    "key, many": ({"key": np.zeros((2, 2), np.uint32)}, ValueError, "key must be one key"),
    "key, too long": ({"key": 2**70}, ValueError, "must fit into 64 bits"),
    "no rows": ({"data": np.zeros((0, 2))}, DataError, "has no rows"),
    "one dimension": ({"data": np.zeros(3)}, DataError, "must be 2-d"),
    "complex": ({"data": np.zeros((3, 2), complex)}, DataError, "must hold numbers"),
    "nothing": ({"data": None}, TypeError, "data must be a path"),
    "no file": ({"data": "nowhere.csv"}, DataError, "there is no file"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told_in_one_line(case: str) -> None:
    given, kind, message = WRONG[case]
    with pytest.raises(kind, match=message) as caught:
        release(given.get("data", X) if "data" in given else X, **{k: v for k, v in given.items() if k != "data"})
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_persons_cannot_be_paired(tmp_path: Path) -> None:
    frame = pd.read_csv(persons(tmp_path))
    for data in (tmp_path / "people.csv", frame):
        with pytest.raises(ValueError, match="needs unweighted rows"):
            release(data, person="who", center="pairs")
