"""The parts of `bench/against.py` at tiny sizes: rivals do the same task, floors do what they say, limits leave out."""

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdpcov as dp

BENCH = Path(__file__).resolve().parents[2] / "bench"
N, D = 500, 4


@pytest.fixture(scope="module")
def bench() -> Any:
    """The bench scripts by name, importable while this module's tests run."""
    sys.path.insert(0, str(BENCH))
    yield lambda name: importlib.import_module(name)
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    g = np.random.default_rng(0)
    return 0.3 * g.normal(size=(N, D)) * np.array([1.0, 0.6, 0.3, 0.1]) + 0.05


@pytest.mark.parametrize("name", ["gaussian", "separate", "adaptive"])
def test_numpy_loop_without_noise_is_the_mechanism_without_noise(bench: Any, x: np.ndarray, name: str) -> None:
    rho, share = 1e16, 0.3
    config = {
        "gaussian": dp.GaussianConfig(mean_share=share),
        "separate": dp.SeparateConfig(mean_share=share),
        "adaptive": dp.AdaptiveConfig(mean_share=share),
    }[name]
    ours = getattr(dp, name)(jax.random.key(0), x, dp.ZCDP(rho), dp.Bounds.l2(1.0), config=config).covariance
    theirs = bench("_rivals").LOOPS[name](x, rho, share)(np.random.default_rng(0))
    clipped = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    np.testing.assert_allclose(theirs, np.cov(clipped.T, ddof=0), atol=1e-7)
    np.testing.assert_allclose(theirs, np.asarray(ours), atol=1e-7)


@pytest.mark.parametrize("name", ["gaussian", "separate", "adaptive"])
def test_numpy_loop_errs_as_the_mechanism_does(bench: Any, x: np.ndarray, name: str) -> None:
    # Means of 400 errors each; the spread of one is about half its mean, so the ratio of means has std 0.036 and is
    # beyond 1 +- 0.2 less than once in 10^7 seeds.
    studies, rivals = bench("_studies"), bench("_rivals")
    rows = jnp.asarray(x)
    ours = np.asarray(studies.many(name, rows, 400).run())
    truth = np.asarray(studies.moments(rows)[0])
    loop = rivals.LOOPS[name](x, studies.RHO, studies.mean_share(name, rows))
    theirs = rivals.run_loop(loop, truth, 400)
    assert ours.shape == theirs.shape == (400,)
    assert 0.8 < theirs.mean() / ours.mean() < 1.25


def test_passes_are_sums_over_clipped_rows(bench: Any, x: np.ndarray) -> None:
    floors = bench("_floors")
    long = 3.0 * x  # some rows beyond the ball
    a = np.eye(D) + 0.1
    want = {}
    for name, rows in (("", long), ("mapped", long @ a.T)):
        w = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        want |= {"mapped": w.T @ w} if name else {"second": w.T @ w, "first": w.sum(0), "squares": (w * w).sum(0)}
    want["norms"] = np.sum(long**2)
    w = (long[::2] - long[1::2]) @ a.T / np.sqrt(2.0)
    w /= np.maximum(1.0, np.linalg.norm(w, axis=1, keepdims=True))
    want["pairs"] = w.T @ w
    for name in floors.PASSES:
        found = floors.one_pass(name, jnp.asarray(long), jnp.asarray(a))
        np.testing.assert_allclose(np.asarray(found), want[name], rtol=1e-12)


def test_passes_in_several_slices_have_a_tail(bench: Any, x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    floors = bench("_floors")
    monkeypatch.setattr(floors, "BLOCK", 64 * 3 * D)  # 192 rows a slice: two whole ones and a tail of 116
    found = floors.one_pass.__wrapped__("second", jnp.asarray(x), jnp.eye(D))
    w = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    np.testing.assert_allclose(np.asarray(found), w.T @ w, rtol=1e-12)


def test_the_floor_has_the_factorisations_and_draws_that_it_says(bench: Any) -> None:
    floors = bench("_floors")
    needs, matrix = floors.Needs(eighs=2, spectra=1, triangles=1, vectors=2, deflated=1), jnp.eye(D)
    program = jax.jit(functools.partial(floors.one_release, needs)).lower(jax.random.key(0), matrix)
    assert program.compile().as_text().count('custom_call_target="lapack_dsyevd_ffi"') == 2 + 1 + (D - 1)
    assert f"tensor<{D * (D + 1) // 2 + 2 * D}xf64>" in program.as_text()
    made = np.asarray(floors.work(needs, D, 6, 3)())
    assert made.shape == (6,) and len(np.unique(made)) == 6  # each repetition has a matrix and draws of its own


def test_every_floor_belongs_to_a_mechanism(bench: Any) -> None:
    for name, needs in bench("_floors").NEEDS.items():
        assert callable(getattr(dp, name))
        assert set(needs.passes) <= set(bench("_floors").PASSES)


def test_a_limit_leaves_out_what_would_take_longer(bench: Any) -> None:
    limit = bench("_tables").Limit(10.0)
    assert not limit.skips("ours", 10_000)
    limit.last["ours"] = 1000, 0.9
    assert not limit.skips("ours", 10_000)
    limit.last["ours"] = 1000, 1.1
    assert limit.skips("ours", 10_000)
    assert limit.why("ours") == "left out: 1,000 took 1.1 s, a run may take 10 s"


def test_a_missing_rival_says_what_to_install(bench: Any) -> None:
    rivals = bench("_rivals")
    with pytest.raises(rivals.Missing, match=r"no_such_rival skipped: .*jaxdpcov\[bench\]"):
        rivals.library("no_such_rival.tools")


def test_opendp_adds_the_noise_that_it_is_asked_for(bench: Any, x: np.ndarray) -> None:
    pytest.importorskip("opendp")
    # So little noise that no eigenvalue goes below 0.
    one = bench("_rivals").opendp_gaussian(x, 500.0)
    second = bench("_studies").moments(jnp.asarray(x))[1]
    noise = np.array([one(np.random.default_rng(0)) - second for _ in range(300)])
    on, off = noise[:, np.arange(D), np.arange(D)].std(), noise[:, *np.triu_indices(D, 1)].std()
    unit = np.sqrt(2.0) / N / np.sqrt(1000.0)
    # 1,200 and 1,800 draws: relative std 0.02 each; 0.1 is five of them.
    assert abs(on / unit - 1.0) < 0.1 and abs(off / (unit / np.sqrt(2.0)) - 1.0) < 0.1


def test_a_saved_section_takes_the_place_of_its_earlier_one(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    against = bench("against")
    monkeypatch.setattr(against, "RESULTS", tmp_path)

    def made(about: str, text: str) -> dict[str, Any]:
        return {"about": about, "lines": [text], "cells": [{"s": np.float64(0.5)}]}

    against.save({"studies": made("today", "first studies"), "memory": made("today", "memory")})
    against.save({"studies": made("tomorrow", "second studies")})
    page = (tmp_path / "speed.md").read_text()
    assert "first studies" not in page and page.index("second studies") < page.index("memory")
    assert "Measured today" in page and "Measured tomorrow" in page
