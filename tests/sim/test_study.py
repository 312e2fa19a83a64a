"""What a study is: combinations, keys, budgets and bounds of its cells, and what it refuses."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxdpcov.bounds import BoxBounds, L2Bounds, SpectrumBounds
from jaxdpcov.mechanisms._registry import MECHANISMS
from jaxdpcov.privacy.budget import ZCDP, PureDP
from jaxdpcov.sim import Study, config, read_study

SETTINGS: dict[str, Any] = {
    "arms": {"gaussian": {}, "short": {"method": "emcov", "pure": True, "max_d": 2}, "not_private": {}},
    "population": [{"name": "ar1", "correlation": [0.1, 0.5]}, "identity"],
    "n": [50, 100],
    "d": [2, 3],
    "rho": [0.1, 1.0],
    "bounds": {"radius": "2 * sqrt(d)"},
    "repetitions": 7,
}


def of(**changes: Any) -> Study:
    return Study.of({**SETTINGS, **changes})


def test_cells_are_all_combinations_save_of_arms_that_sit_out() -> None:
    study = of()
    assert len(study.cells) == 3 * 2 * 2 * (2 + 2 + 2) - 3 * 2 * 2
    places = [tuple(cell.coordinates("rho").items()) for cell in study.cells]
    assert len(set(places)) == len(places)
    assert not [cell for cell in study.cells if cell.arm.label == "short" and cell.d == 3]


def test_budgets_go_in_the_unit_of_the_arm() -> None:
    gaussian, short = of().arms[:2]
    assert of().budget(gaussian, 0.5) == ZCDP(0.5)
    assert of().budget(short, 0.5) == PureDP.from_zcdp(0.5)
    settings = {name: value for name, value in SETTINGS.items() if name != "rho"}
    both = Study.of({**settings, "epsilon": 1.0, "delta": 1e-6})
    found = both.budget(gaussian, 1.0)
    assert isinstance(found, ZCDP) and 0.01 < float(found.rho) < 0.5
    assert both.budget(short, 1.0) == PureDP(1.0)
    with pytest.raises(ValueError, match="no pure-DP form"):
        Study.of({**settings, "epsilon": 1.0})


def test_bounds_may_go_with_the_number_of_columns() -> None:
    ball = of().bounds_at(9)
    assert isinstance(ball, L2Bounds) and ball.radius == pytest.approx(6.0)
    assert isinstance(of(bounds={"lower": -1, "upper": 1}).bounds_at(2), BoxBounds)
    wide = {"spectrum_lower": 1, "spectrum_upper": "3 * d", "mean_radius": 2}
    spectrum = of(arms=["coinpress_gaussian"], bounds=wide).bounds_at(4)
    assert isinstance(spectrum, SpectrumBounds) and (spectrum.upper, spectrum.mean_radius) == (12.0, 2)


def test_one_key_for_all_arms_and_budgets_on_the_same_rows_and_for_them_alone() -> None:
    study = of()
    by_rows: dict[Any, set[Any]] = {}
    for cell in study.cells:
        words = tuple(np.asarray(jax.random.key_data(study.key(cell))).tolist())
        by_rows.setdefault((cell.source.label, cell.n, cell.d), set()).add(words)
    assert all(len(words) == 1 for words in by_rows.values())
    assert len(set().union(*by_rows.values())) == len(by_rows) == 12
    other = of(seed=1)
    assert not np.array_equal(*(jax.random.key_data(each.key(study.cells[0])) for each in (study, other)))


def test_a_digest_tells_settings_apart() -> None:
    assert of().digest() == of().digest()
    for changes in ({"seed": 1}, {"n": 50}, {"repetitions": 8}, {"metrics": "spectral"}, {"bounds": {"radius": 1.0}}):
        assert of(**changes).digest() != of().digest()


WRONG = {
    "no arms": ({"arms": {}}, "at least one arm"),
    "a method": ({"arms": ["gausian"]}, "did you mean 'gaussian'"),
    "an option": ({"arms": {"a": {"method": "gaussian", "sped": 1}}}, "has no option 'sped'"),
    "an arm": ({"arms": {"gaussian": 3}}, "must be a table"),
    "a pure arm": ({"arms": ["laplace"]}, "pure = true"),
    "a population": ({"population": "identiy"}, "did you mean 'identity'"),
    "a population without a name": ({"population": {"d": 2}}, "needs a name"),
    "n": ({"n": 0}, "n must be a whole number"),
    "d": ({"d": 2.5}, "d must be a whole number"),
    "rho": ({"rho": -1.0}, "rho must be finite and > 0"),
    "two budgets": ({"epsilon": 1.0}, "give rho, or epsilon"),
    "a setting": ({"reps": 3}, "no setting 'reps'"),
    "bounds": ({"bounds": {"radius": 1, "lower": 2}}, "bounds needs"),
    "a name in bounds": ({"bounds": {"radios": 1}}, "radios"),
    "code in bounds": ({"bounds": {"radius": "__import__('os')"}}, "10 \\* sqrt"),
    "a metric": ({"metrics": "frobenus"}, "metric must be one of"),
    "a metric of a mean": ({"metrics": "l2"}, "for a covariance"),
    "an axis": ({"x": "octaves"}, "x must be one of"),
    "keep": ({"keep": "rows"}, "keep must be one of"),
    "real rows that are drawn": ({"population": "iris"}, "data='fixed'"),
    "a centre": (
        {"arms": {"gaussian": {"center": "private"}}, "moment": "second_moment"},
        "needs center='zero'",
    ),
    "repetitions": ({"repetitions": True}, "repetitions must be"),
    "a seed": ({"seed": 0.5}, "seed must be"),
    "n of a data set": ({"population": "iris", "data": "fixed", "truth": "sample"}, "leave n and d out"),
    "a setting of a data set": (
        {"population": {"name": "iris", "scale": 2.0}, "data": "fixed", "truth": "sample", "n": None, "d": None},
        "no setting 'scale'",
    ),
    "a setting of a population": ({"population": {"name": "ar1", "correlation": 2.0}}, "correlation must satisfy"),
    "bounds that an arm does not take": ({"arms": ["coinpress_mean"]}, "takes SpectrumBounds"),
    "an empty list": ({"n": []}, "at least one point"),
    "arms that all sit out": ({"arms": {"gaussian": {"max_d": 1}}}, "at least one point"),
    "an axis without numbers": ({"x": "arm"}, "x must be one of correlation, d, n, rho"),
    "a list of axes": ({"x": ["n"]}, "x must be one of"),
    "rho that is true": ({"rho": True}, "rho must be a number"),
    "rho in words": ({"rho": "half"}, "rho must be a number"),
    "rho in a list in a list": ({"rho": [[0.5]]}, "rho must be a number"),
    "pure in words": ({"arms": {"laplace": {"pure": "no"}}}, "must be true or false"),
    "a table in a list of arms": ({"arms": [{"method": "gaussian"}]}, "must be a name"),
    "a list of methods in an arm": ({"arms": {"a": {"method": ["gaussian"]}}}, "must be a name"),
    "a number for a metric": ({"metrics": 3}, "a metric is a name"),
    "a title": ({"title": 3}, "title must be"),
    "a field that is no setting": ({"sources": "identity"}, "no setting 'sources'"),
    "a moment that an arm has not": (
        {"arms": ["product_mean"], "bounds": {"lower": 0, "upper": 1}, "moment": "second_moment"},
        "no moment='second_moment'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises((ValueError, TypeError), match=message):
        of(**changes)


@pytest.mark.parametrize("missing", ["arms", "population", "n", "d", "rho"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        Study.of({name: value for name, value in SETTINGS.items() if name != missing})


@pytest.mark.parametrize("name", config.ready())
def test_ready_studies_have_arms_that_take_their_budgets_and_bounds(name: str) -> None:
    study = read_study(name)
    for cell in study.cells:
        if cell.arm.method == "not_private":
            continue
        entry = MECHANISMS[cell.arm.method]
        assert isinstance(cell.budget, entry.budgets)
        assert isinstance(study.bounds_at(cell.d or 2), entry.bounds)
        assert isinstance(cell.arm.config(study.moment), entry.config)
    assert study.x is not None


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_files_of_all_kinds_are_one_study(kind: str, tmp_path: Any) -> None:
    text = {
        "toml": 'arms = ["gaussian"]\npopulation = "identity"\nn = 10\nd = 2\nrho = [0.5]\n[bounds]\nradius = 1.0\n',
        "yaml": "arms: [gaussian]\npopulation: identity\nn: 10\nd: 2\nrho: [0.5]\nbounds: {radius: 1.0}\n",
        "json": '{"arms": ["gaussian"], "population": "identity", "n": 10, "d": 2, "rho": [0.5], '
        '"bounds": {"radius": 1.0}}',
    }[kind]
    file = tmp_path / f"a.{kind}"
    file.write_text(text)
    study = read_study(file, repetitions=3)
    assert (len(study.cells), study.repetitions, study.cells[0].budget) == (1, 3, ZCDP(0.5))
    file.write_text("[" * 3)
    with pytest.raises(ValueError, match=f"a.{kind}: "):
        read_study(file)


def test_a_number_in_a_text_is_a_budget_as_yaml_reads_some_so() -> None:
    assert of(rho=["1e-3", 0.5]).numbers() == [1e-3, 0.5]


def test_a_file_that_is_no_text_is_named(tmp_path: Any) -> None:
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"bad\.toml: no text"):
        read_study(tmp_path / "bad.toml")


def test_a_study_by_a_wrong_name_is_told_the_right_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'adaptive-rho'"):
        read_study("adaptive-roh")


def test_plain_settings_survive_json() -> None:
    plain = of().to_dict()
    assert plain["n"] == [50, 100] and plain["metrics"] == ["frobenius"]
    assert math.isclose(plain["budgets"]["rho"][1], 1.0)
