"""Repetitions and sweeps: the numbers of a plain loop, whatever stops them, and on any number of devices."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, GaussianConfig, gaussian, metrics, separate
from jaxdpcov.sim import Results, Study, engine, make, repeat, run, sweep

ROOT = Path(__file__).parents[2]
BALL = Bounds.l2(3.0)
SETTINGS: dict[str, Any] = {
    "arms": ["gaussian", "separate", "not_private"],
    "population": "identity",
    "n": [40, 50],
    "d": 2,
    "rho": [0.5, 2.0],
    "bounds": {"radius": 3.0},
    "metrics": ["frobenius", "spectral"],
    "repetitions": 11,
    "data": "fixed",
    "seed": 4,
}


def loop(seed: int, repetitions: int) -> np.ndarray:
    """Errors of gaussian on fresh rows, one release after the other."""
    population, key, found = make("ar1", 3, mean=1.0), jax.random.key(seed), []
    for i in range(repetitions):
        own = jax.random.fold_in(jax.random.clone(key), i)
        key_data, key_noise = jax.random.split(own)
        release = gaussian(key_noise, population.sample(key_data, 60), ZCDP(1.0), BALL)
        error = float(metrics.frobenius(release.covariance, population.covariance))
        found.append([error, float(release.mean[0]), int(release.status)])
    return np.array(found)


def test_repetitions_are_those_of_a_plain_loop_and_keep_what_is_asked() -> None:
    found = repeat("gaussian", make("ar1", 3, mean=1.0), ZCDP(1.0), BALL, n=60, repetitions=5, keep=["mean", "extra"])
    expected = loop(0, 5)
    np.testing.assert_allclose(found.errors[:, 0], expected[:, 0], rtol=1e-10)
    np.testing.assert_allclose(found.kept["mean"][:, 0], expected[:, 1], rtol=1e-10)
    assert (found.done, found.metrics, set(found.kept)) == (5, ("frobenius",), {"mean"})
    assert found.status.tolist() == expected[:, 2].tolist()


def test_errors_of_one_data_set_are_against_its_own_moment_about_the_centre() -> None:
    rows = make("ar1", 3).sample(jax.random.key(1), 50)
    found = repeat(
        "gaussian", rows, ZCDP(1.0), Bounds.box(-4.0, 2.0), repetitions=3, moment="second_moment",
        config=GaussianConfig(center="zero"), metrics=["frobenius", ("first", lambda estimate, truth: estimate[0, 0])],
    )  # fmt: skip
    about = np.asarray(rows) + 1.0
    truth = about.T @ about / 50
    for i in range(3):
        key = jax.random.split(jax.random.fold_in(jax.random.key(0), i))[1]
        estimate = gaussian(
            key, rows, ZCDP(1.0), Bounds.box(-4.0, 2.0), config=GaussianConfig(center="zero")
        ).covariance
        np.testing.assert_allclose(found.errors[i, 0], np.linalg.norm(estimate - truth), rtol=1e-10)
        np.testing.assert_allclose(found.errors[i, 1], estimate[0, 0], rtol=1e-10)


def test_a_table_of_level_moments_stands_for_the_rows() -> None:
    rows = 0.3 * make("ar1", 2).sample(jax.random.key(1), 50)
    found = repeat("separate", rows, ZCDP(1.0), BALL, repetitions=2)
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))[1]
    centred = np.asarray(rows) - np.mean(np.asarray(rows), axis=0)
    release = separate(key, rows, ZCDP(1.0), BALL)
    np.testing.assert_allclose(
        found.errors[1, 0], np.linalg.norm(release.covariance - centred.T @ centred / 50), rtol=1e-8
    )


def test_without_privacy_the_error_is_that_of_the_sample() -> None:
    population = make("student_t", 2, freedom=9.0, mean=2.0)
    for moment, metric in (("mean", "l2"), ("second_moment", "frobenius")):
        found = repeat("not_private", population, ZCDP(1.0), BALL, n=30, repetitions=2, moment=moment, metrics=[metric])
        rows = np.asarray(population.sample(jax.random.split(jax.random.fold_in(jax.random.key(0), 1))[0], 30))
        estimate, truth = {
            "second_moment": (rows.T @ rows / 30, population.second_moment),
            "mean": (rows.mean(axis=0), population.mean),
        }[moment]
        np.testing.assert_allclose(found.errors[1, 0], np.linalg.norm(estimate - truth), rtol=1e-10)


def test_more_repetitions_and_other_batches_begin_with_the_same_numbers() -> None:
    population = make("ar1", 3, mean=1.0)
    few = repeat("gaussian", population, ZCDP(1.0), BALL, n=60, repetitions=3, batch_size=1)
    more = repeat("gaussian", population, ZCDP(1.0), BALL, n=60, repetitions=5)
    assert (few.batch_size, more.batch_size) == (1, 4)
    np.testing.assert_allclose(few.errors, more.errors[:3], rtol=1e-12)
    assert len(set(more.errors[:, 0].tolist())) == 5


def test_what_repeat_cannot_do_is_named() -> None:
    population = make("identity", 2)
    for settings, message in (
        ({"n": None}, "n= is the number of rows"),
        ({"repetitions": 0}, "repetitions must be"),
        ({"metrics": ["frob"]}, "metric must be one of"),
        ({"metrics": []}, "at least one metric"),
        ({"keep": ["rows"]}, "keep must be one of"),
        ({"truth": "real"}, "truth must be one of"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"seed": "a"}, "seed must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            repeat("gaussian", population, ZCDP(1.0), BALL, **{"n": 10, "repetitions": 2, **settings})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'gaussian'"):
        repeat("gausian", population, ZCDP(1.0), BALL, n=10)
    with pytest.raises(ValueError, match="truth='population' needs a population"):
        repeat("gaussian", jnp.ones((4, 2)), ZCDP(1.0), BALL, truth="population")


def test_mechanisms_that_choose_rounds_run_at_the_rounds_they_choose() -> None:
    study = Study.of(
        {
            "arms": ["coinpress_mean"], "population": "identity", "n": 200, "d": 2, "rho": [0.5], "moment": "mean",
            "metrics": "l2", "repetitions": 2, "bounds": {"spectrum_lower": 1, "spectrum_upper": 1, "mean_radius": 50},
        }
    )  # fmt: skip
    assert np.all(sweep(study).outcomes[0].errors < 2.0)


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of four repetitions, each of them stored."""
    monkeypatch.setattr(engine, "_CALL", 4)
    monkeypatch.setattr(run, "_EVERY", 0.0)


def same(one: Results, other: Results) -> bool:
    return all(
        np.array_equal(a.errors, b.errors) and np.array_equal(a.status, b.status)
        for a, b in zip(one.outcomes, other.outcomes, strict=True)
    )


@pytest.mark.usefixtures("in_pieces")
def test_a_sweep_that_is_stopped_ten_times_ends_with_the_numbers_of_one_that_was_not(tmp_path: Path) -> None:
    study = Study.of(SETTINGS)
    whole = sweep(study, batch_size=2)
    rng = np.random.default_rng(0)
    stops = iter([*rng.integers(1, 5, 10).tolist(), 10**9])
    done: list[int] = []
    for stop in stops:
        calls = 0

        def interrupt(so_far: int, total: int | None, stop: int = stop) -> None:
            nonlocal calls
            done.append(so_far)
            assert total == 12 * 11
            calls += 1
            if calls == stop:
                raise KeyboardInterrupt

        try:
            found = sweep(study, store=tmp_path, progress=interrupt, batch_size=2)
        except KeyboardInterrupt:
            (tmp_path / "cell-00000.npz.99.part").write_bytes(b"what a killed process leaves")
    assert done == sorted(done) and done[-1] == 12 * 11, "nothing was done twice"
    assert len(done) == 12 * 3
    assert same(found, whole)
    assert same(sweep(study, store=tmp_path, progress=lambda *_: pytest.fail("all is done")), whole)


@pytest.mark.usefixtures("in_pieces")
def test_a_store_serves_its_own_study_at_its_own_batch_size(tmp_path: Path) -> None:
    study = Study.of({**SETTINGS, "arms": ["not_private"], "n": 40, "rho": 1.0})
    store = tmp_path / "a" / "b"
    found = sweep(study, store=store, batch_size=2)
    assert found.about["batch_size"] == 2 and sweep(study, store=store).about["batch_size"] == 2
    with pytest.raises(ValueError, match="holds another study"):
        sweep(Study.of({**SETTINGS, "arms": ["not_private"], "n": 40, "rho": 1.0, "seed": 5}), store=store)
    with pytest.raises(ValueError, match="batch_size must be 2"):
        sweep(study, store=store, batch_size=4)
    (store / "cell-00000.npz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="no part of a study"):
        sweep(study, store=store)
    (store / "cell-00000.npz").write_bytes(b"")  # what a crash of the machine may leave
    with pytest.raises(ValueError, match="no part of a study"):
        sweep(study, store=store)
    np.savez(store / "cell-00000.npz", errors=np.zeros((11, 3)), status=np.zeros(11, np.int32))
    with pytest.raises(ValueError, match="no part of a study"):
        sweep(study, store=store)
    said = (store / "study.json").read_text()
    for text in ("", "{}", "[]"):
        (store / "study.json").write_text(text)
        with pytest.raises(ValueError, match=r"study\.json says of no study"):
            sweep(study, store=store)
    (store / "study.json").write_text(said)
    (store / "study.json").unlink()
    with pytest.raises(ValueError, match="has cells of a study"):
        sweep(study, store=store)


@pytest.mark.usefixtures("in_pieces")
def test_a_store_without_cells_is_free_for_another_study(tmp_path: Path) -> None:
    settings = {**SETTINGS, "arms": ["not_private"], "n": 40, "rho": 1.0}
    wide = Study.of({**settings, "bounds": {"lower": [0, 0, 0], "upper": 1}})
    with pytest.raises(ValueError, match="one entry for each of the 2 columns"):
        sweep(wide, store=tmp_path, batch_size=2)
    study = Study.of(settings)
    assert same(sweep(study, store=tmp_path, batch_size=2), sweep(study, batch_size=2))


def test_the_second_moment_is_compared_with_that_of_a_release_about_the_centre() -> None:
    off, about = make("identity", 2, mean=0.7), {"n": 40, "moment": "second_moment", "repetitions": 2, "batch_size": 1}
    found = repeat("gaussian", off, ZCDP(1e9), BALL, truth="sample", **about)  # type: ignore[arg-type]
    assert np.max(found.errors) < 0.1 * np.linalg.norm(np.full((2, 2), 0.49)), "that of the covariance"
    with pytest.raises(ValueError, match="center='zero'"):
        repeat("gaussian", off, ZCDP(1.0), BALL, config=GaussianConfig(), **about)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="releases no mean"):
        repeat("gaussian", off, ZCDP(1.0), BALL, config=GaussianConfig(center="zero"), n=40, repetitions=2,
               moment="mean", metrics=["l2"], batch_size=1)  # fmt: skip


SCRIPT = """
import sys
import jax
import numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
from jaxdpcov.sim import Study, engine, run, sweep
engine._CALL, run._EVERY = 4, 0.0
study = Study.of({settings!r})
store = sys.argv[3] if len(sys.argv) > 3 else None
found = [sweep(study, store=store, batch_size=int(size)) for size in sys.argv[2].split(",")]
assert len(jax.devices()) == int(sys.argv[1])
np.save(sys.stdout.buffer, np.concatenate([each.errors for one in found for each in one.outcomes]))
"""


def written(store: Path) -> set[tuple[str, int]]:
    """The cells of a store and when each was written last."""
    return {(file.name, file.stat().st_mtime_ns) for file in store.glob("cell-*.npz")}


def in_process(settings: dict[str, Any], *words: str, kill: float | None = None) -> np.ndarray | None:
    """Errors of all cells by a process of its own; None where it was killed so many seconds after its first result."""
    flags = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", SCRIPT.format(settings=settings), *words]
    process = subprocess.Popen(command, cwd=ROOT, env=flags | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
    if kill is not None:
        before = written(Path(words[2]))
        while written(Path(words[2])) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(kill)
        process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60)  # a hang is a failure
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0
    return np.load(io.BytesIO(out))


def test_one_device_and_four_give_identical_numbers() -> None:
    settings = {**SETTINGS, "arms": ["gaussian", "not_private"], "n": 40, "rho": 1.0}
    one, four = in_process(settings, "1", "1,2"), in_process(settings, "4", "1,2")
    assert one is not None and four is not None and one.shape == (44, 2)
    assert np.array_equal(one, four)


@pytest.mark.nightly
def test_a_sweep_killed_ten_times_ends_with_the_numbers_of_one_that_was_not(tmp_path: Path) -> None:
    settings = {**SETTINGS, "repetitions": 400}
    whole = in_process(settings, "1", "2")
    rng = np.random.default_rng(1)
    stops = set()
    for _ in range(10):
        assert in_process(settings, "1", "2", str(tmp_path), kill=rng.uniform(0.0, 0.5)) is None
        stops.add(frozenset(written(tmp_path)))
    found = in_process(settings, "1", "2", str(tmp_path))
    assert whole is not None and found is not None and len(stops) == 10
    assert np.array_equal(found, whole)


def test_the_batch_size_is_a_power_of_two_that_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.batch_size(0, 10, 1000) == 16 and engine.batch_size(0, 10, 1) == 2
    assert engine.batch_size(0, 10, 7) == 4
    monkeypatch.setattr(engine, "_free_bytes", lambda device: 4.0 * 8.0 * 1e6 * 4.0 * 5.0)
    assert engine.batch_size(10_000, 100, 1000) == 4, "five lanes of 1e6 numbers, four times over, fill a quarter"
    assert engine.batch_size(10**9, 100, 1000) == 2
