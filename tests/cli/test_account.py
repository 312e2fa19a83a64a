"""`jaxdpcov account`: every conversion, in both directions, rounded to the safe side."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from jaxdpcov.privacy import accounting


def answer(cli: Callable[..., Any], *words: str) -> dict[str, Any]:
    done = cli("account", *words, "--json")
    assert done.code == 0 and done.err == ""
    return json.loads(done.out)


def test_there_and_back(cli: Callable[..., Any]) -> None:
    there = answer(cli, "--rho", "0.5", "--delta", "1e-6")
    assert there == {"curve": "zcdp", "rho": 0.5, "epsilon": accounting.epsilon_of_rho(0.5, 1e-6), "delta": 1e-6}
    back = answer(cli, "--epsilon", repr(there["epsilon"]), "--delta", "1e-6")
    assert math.isclose(back["rho"], 0.5, rel_tol=1e-8)
    delta = answer(cli, "--rho", "0.5", "--epsilon", repr(there["epsilon"]))["delta"]
    assert math.isclose(delta, 1e-6, rel_tol=1e-8)


def test_the_gaussian_curve_is_tighter_and_inverts(cli: Callable[..., Any]) -> None:
    exact = answer(cli, "--rho", "0.5", "--delta", "1e-6", "--gaussian")
    assert exact["epsilon"] == accounting.gaussian_epsilon(1.0, 1e-6) and exact["mu"] == 1.0
    assert exact["epsilon"] < answer(cli, "--rho", "0.5", "--delta", "1e-6")["epsilon"]
    back = answer(cli, "--epsilon", repr(exact["epsilon"]), "--delta", "1e-6", "--gaussian")
    assert math.isclose(back["rho"], 0.5, rel_tol=1e-8) and back["rho"] <= 0.5 * (1 + 1e-9)
    assert answer(cli, "--rho", "0.5", "--epsilon", "3", "--gaussian")["delta"] == accounting.gaussian_delta(1.0, 3.0)


def test_one_number_alone(cli: Callable[..., Any]) -> None:
    pure = answer(cli, "--epsilon", "2")
    assert (pure["rho"], pure["rho_exponential"]) == (2.0, 0.5)
    curve = answer(cli, "--rho", "2")
    assert math.isclose(curve["pure_epsilon"], 2.0) and curve["pure_epsilon"] <= 2.0
    assert [point["delta"] for point in curve["points"]] == [1e-5, 1e-6, 1e-8, 1e-10]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--rho 0.5 --delta 1e-6", "0.5-zCDP implies (5.22154, 1e-06)-DP"),
        ("--epsilon 1 --delta 1e-6", "0.0243559-zCDP implies (1, 1e-06)-DP"),
        ("--epsilon 1", "1-DP implies 0.5-zCDP, and 0.125-zCDP"),
        ("--rho 0.5", "price 0.5 at --epsilon 1"),
        ("--epsilon 1 --delta 1e-6 --gaussian", "noise std 4.22468 times"),
    ],
)
def test_what_is_printed_is_on_the_safe_side(words: str, expected: str, cli: Callable[..., Any]) -> None:
    """5.221534... goes up, 0.024355970... goes down, 4.224679... goes up."""
    assert expected in cli("account", *words.split()).out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", "--rho 0.5 --delta 1e-6"),
        ("--delta 1e-6", "--rho 0.5 --delta 1e-6"),
        ("--rho 1 --epsilon 1 --delta 1e-6", "--rho 0.5 --delta 1e-6"),
        ("--epsilon 1 --gaussian", "--gaussian needs two"),
        ("--rho 0", "rho must be finite and > 0"),
        ("--rho -1 --delta 1e-6", "rho must be finite and > 0, got -1.0"),
        ("--rho nan --delta 1e-6", "rho must be finite and > 0, got nan"),
        ("--rho abc --delta 1e-6", "'--rho'"),
        ("--rho 1 --delta 0", "delta must satisfy 0 < delta < 1"),
        ("--rho 1 --delta 1 --gaussian", "delta must satisfy 0 < delta < 1"),
        ("--epsilon 0 --delta 1e-6", "epsilon must be finite and > 0"),
        ("--epsilon inf", "epsilon must be finite and > 0"),
        ("--rho 0 --epsilon 1 --gaussian", "rho must be finite and > 0"),
        ("--rho 1 --epsilon -1", "epsilon must be finite and >= 0"),
    ],
)
def test_what_is_refused(words: str, expected: str, refuse: Callable[..., str]) -> None:
    assert expected in refuse("account", *words.split())
