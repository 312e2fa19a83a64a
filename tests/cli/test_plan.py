"""`jaxdpcov plan`: the same numbers as `plan`, from flags, and one line for everything that it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdpcov import ZCDP, Bounds, estimate, plan, sim

Cli = Callable[..., Any]
QUICK = ["--method", "gaussian,diagonal", "--rho", "0.5"]


def document(cli: Cli, *words: str) -> dict[str, Any]:
    done = cli("plan", *words, "--json")
    assert done.code == 0 and done.err == "", done
    return json.loads(done.out)


def test_it_is_plan(cli: Cli) -> None:
    words = ["--n", "500", "--d", "2", "--bound=-1:1", *QUICK, "--assume", "ar1:correlation=0.3,scale=0.2"]
    found = document(cli, *words, "--target", "0.05")
    assumed = sim.make("ar1", 2, correlation=0.3, scale=0.2)
    methods = ["gaussian", "diagonal"]
    direct = plan(500, 2, Bounds.box(-1.0, 1.0), ZCDP(0.5), assumed=assumed, methods=methods, target=0.05)
    assert found == json.loads(json.dumps(direct.to_dict())) and found["best"] == direct.best
    printed = cli("plan", *words, "--target", "0.05").out
    assert printed == f"{direct}\n" and "rho for target" in printed


def test_bounds_as_estimate_has_them(cli: Cli, place: Path) -> None:
    by_file = document(cli, "--n", "100", "--bounds", "bounds.toml", *QUICK)
    by_name = document(cli, "--n", "100", "--bound", "a=0:10", "--bound", "b=0:10", *QUICK)
    by_number = document(cli, "--n", "100", "--d", "2", "--bound", "0:10", *QUICK)
    assert by_file == by_name and by_file["forecasts"] == by_number["forecasts"] and by_file["d"] == 2
    ball = document(cli, "--n", "100", "--d", "2", "--radius", "3", "--ball-center", "1,2", *QUICK)
    assert ball["assumed"].startswith("reference for a ball")
    pure = ["--n", "100", "--d", "2", "--radius", "3", "--epsilon", "1", "--method", "gaussian"]
    assert "pure-DP" in document(cli, *pure)["excluded"]["gaussian"]


def test_an_earlier_release(cli: Cli, place: Path) -> None:
    rows = np.random.default_rng(0).uniform(0, 10, (50, 2))
    release = estimate(rows, bounds={"x0": (0, 10), "x1": (0, 10)}, rho=1.0, method="gaussian", key=1)
    release.save("r.npz")
    found = document(cli, "--n", "100", "--bounds", "bounds.toml", *QUICK, "--release", "r.npz")
    assert "release by gaussian" in found["assumed"]


FLAT = "--n 100 --d 2 --bound 0:1 --rho 1 "
WRONG = {
    "--d 2 --bound 0:1 --rho 1": "'--n'",
    "--n 100 --bound 0:1 --rho 1": "--d is missing",
    "--n 0 --d 2 --bound 0:1 --rho 1": "n must be a whole number, at least 1",
    "--n 100 --d 0 --bound 0:1 --rho 1": "d must be a whole number, at least 1",
    "--n 100 --d 2 --rho 1": "no bounds",
    "--n 100 --d 2 --bound 0:1": "exactly one budget",
    "--n 100 --d 2 --bound 0:1 --rho nan": "rho must be finite",
    "--n 100 --d 2 --bound 0:nan --rho 1": "--bound '0:nan' must be two finite numbers LOW:HIGH",
    "--n 100 --d 3 --bounds bounds.toml --rho 1": "--d 3 does not go with bounds of 2 columns",
    "--n 100 --d 2 --bound 0:1 --bound 0:2 --rho 1": "for all columns",
    "--n 100 --d 2 --bound 0:1 --bound a=0:2 --rho 1": "for all columns",
    "--n 100 --d 2 --bound 0-1 --rho 1": "--bound '0-1' must be two finite numbers LOW:HIGH",
    "--n 100 --d 2 --bound 1:0 --rho 1": "must not exceed upper",
    FLAT + "--radius 1": "give one kind",
    FLAT + "--method gausian": "did you mean 'gaussian'",
    FLAT + "--assume arl": "did you mean 'ar1'",
    FLAT + "--assume ar1:corelation=1": "did you mean 'correlation'",
    FLAT + "--assume ar1:correlation=2": "correlation must satisfy",
    FLAT + "--assume ar1:correlation": "NAME=VALUE",
    FLAT + "--assume iris": "4 columns",
    FLAT + "--release nowhere.npz": "no file nowhere.npz",
    FLAT + "--release rows.csv": "not a release file",
    FLAT + "--assume ar1 --release rows.csv": "give one",
    FLAT + "--target 0": "target must be finite and > 0",
    FLAT + "--metric l2": "metric must be one of",
}


@pytest.mark.parametrize("words", WRONG)
def test_choices_that_cannot_be(words: str, refuse: Callable[..., str]) -> None:
    assert WRONG[words] in refuse("plan", *words.split())
