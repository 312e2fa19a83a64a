"""`import jaxdpcov` does nothing but import: no setting, no backend, no array, no slow library, no warning."""

import json
import os
import subprocess
import sys

import pytest

SLOW = ["dp_accounting", "matplotlib", "opendp", "pandas", "polars", "pyarrow", "rich", "sklearn", "typer", "yaml"]

REPORT = """
import json, os, random, sys
import numpy as np
import jax

def state():
    return {
        "jax": {name: repr(value) for name, value in sorted(jax.config.values.items())},
        "environment": dict(os.environ),
        "numpy errors": np.geterr(),
        "numpy print": {name: repr(value) for name, value in np.get_printoptions().items()},
        "numpy random": repr(np.random.get_state()),
        "random": repr(random.getstate()),
        "filters": repr(__import__("warnings").filters),
    }

before, loaded = state(), set(sys.modules)
import jaxdpcov
after = state()
print(json.dumps({
    "changed": [name for name in before if before[name] != after[name]],
    "loaded": sorted(set(sys.modules) - loaded),
}))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a plain script: default JAX settings, warnings are errors, and a JAX platform that does not exist."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=clean | {"JAX_PLATFORMS": "no_such_platform"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def report() -> dict[str, list[str]]:
    done = run(REPORT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_changes_no_global_state(report: dict[str, list[str]]) -> None:
    assert report["changed"] == []


def test_import_loads_no_slow_library(report: dict[str, list[str]]) -> None:
    wanted = [*SLOW, "scipy.optimize", "scipy.stats"]
    assert [name for name in report["loaded"] if name in wanted] == []


def test_import_starts_no_backend_and_makes_no_array() -> None:
    """The platform does not exist, so the first array or device query would raise."""
    assert run("import jaxdpcov").returncode == 0
    planted = run("import jaxdpcov, jax.numpy as jnp; jnp.zeros(1)")
    assert planted.returncode != 0 and "no_such_platform" in planted.stderr


def test_every_public_name_is_there() -> None:
    code = "import jaxdpcov; [getattr(jaxdpcov, name) for name in jaxdpcov.__all__]; print(len(set(jaxdpcov.__all__)))"
    done = run(code, JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
