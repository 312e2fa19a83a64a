"""True runs in processes of their own: start-up, closed pipes, missing extras, the settings that a run leaves."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxdpcov

ROOT = Path(__file__).resolve().parents[2]


def start(*words: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m jaxdpcov.cli WORDS`, or `python -c CODE`, with JAX as it comes and warnings as errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = ["-m", "jaxdpcov.cli", *words] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        env=clean | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "COLUMNS": "100"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_no_backend_starts_where_nothing_is_computed(place: Path) -> None:
    """The platform does not exist: whatever starts JAX's backend fails, from the first command to the last."""
    lines = ["--help", "estimate --help", "--version", "account --rho 0.5 --delta 1e-6", "methods", "columns rows.csv"]
    code = (
        f"from jaxdpcov.cli import main\nfor line in {lines}:\n    done = main(line.split())\n    print('<end>', done)"
    )
    done = start(code=code, JAX_PLATFORMS="no_such_platform")
    assert (done.returncode, done.stderr) == (0, "")
    *parts, rest = done.stdout.split("<end> 0\n")
    assert len(parts) == len(lines) and all(parts) and not rest


def test_a_run_from_end_to_end(place: Path) -> None:
    words = ["estimate", "rows.csv", "--bounds", "bounds.toml", "--rho", "0.5", "--json", "--out", "r.npz"]
    code = (
        "import sys, jax\nfrom jaxdpcov.cli import main\n"
        f"print(jax.config.jax_enable_x64, main({words}), jax.config.jax_enable_x64, file=sys.stderr)"
    )
    done = start(code=code)
    assert (done.returncode, done.stderr) == (0, "False 0 True\n")
    found = json.loads(done.stdout)
    release = jaxdpcov.load("r.npz")
    assert found["key_source"] == "os" and found["covariance"] == release.covariance.tolist()
    assert release.covariance.dtype == release.measured["mean"].value.dtype == "float64"


def test_a_failing_run_in_a_process_of_its_own(place: Path) -> None:
    done = start("estimate", "rows.csv", "--bounds", "bounds.toml", "--rho", "0", JAX_PLATFORMS="no_such_platform")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: rho must be finite and > 0, got 0.0\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_how_to_get_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom jaxdpcov.cli import main; sys.exit(main(['--help']))"
    done = start(code=code)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "Error: the command line needs typer and rich: pip install 'jaxdpcov[cli]'\n"


def test_without_pyarrow_or_yaml_one_line_says_how_to_get_it(place: Path) -> None:
    Path("b.yaml").write_text("bounds:\n  a: [0, 1]\n", encoding="utf-8")
    for missing, flags in (("pyarrow", "--bounds bounds.toml"), ("yaml", "--bounds b.yaml")):
        words = f"estimate rows.csv --rho 1 {flags}".split()
        code = f"import sys; sys.modules[{missing!r}] = None\nfrom jaxdpcov.cli import main; sys.exit(main({words}))"
        done = start(code=code)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
        assert "pip install 'jaxdpcov[cli]'" in done.stderr


def test_whoever_reads_the_output_may_go_away(place: Path) -> None:
    """The pipe is closed before the first write; a full disk is told in one line."""
    for words in (["account", "--rho", "1"], ["columns", "rows.csv"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "jaxdpcov.cli", *words], stdout=write, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120,
        )  # fmt: skip
        os.close(write)
        assert done.returncode == 1 and done.stderr == ""
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "jaxdpcov.cli", "methods"], stdout=full, stderr=subprocess.PIPE, text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120,
            )  # fmt: skip
        assert done.returncode == 1 and done.stderr == "Error: No space left on device\n"


def test_names_that_the_terminal_has_no_letters_for(place: Path) -> None:
    Path("odd.csv").write_text("größe,年齢\n1,2\n", encoding="utf-8")
    done = start("columns", "odd.csv", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0 and "gr\\xf6\\xdfe" in done.stdout


def test_the_script_of_the_package_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"jaxdpcov": "jaxdpcov.cli:main"}
    assert start("--version").stdout == f"jaxdpcov {jaxdpcov.__version__}\n"
