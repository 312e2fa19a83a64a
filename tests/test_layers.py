"""The floors of the house: reads every module's imports and fails where one reaches upward or sideways."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "jaxdpcov"

#: Floor of each module or folder below the package; the longest matching name counts. Imports go down or stay level.
FLOORS = {
    "_checks": 0,
    "_progress": 0,
    "_records": 0,
    "bounds": 0,
    "status": 0,
    "distributions": 1,
    "linalg": 1,
    "maxent": 1,
    "privacy": 1,
    "data": 2,
    "release": 2,
    "mechanisms": 3,
    "metrics": 4,
    "apps": 4,
    "plots": 4,
    "plan": 5,
    "sim": 5,
    "audit": 5,
    "train": 5,
    "estimate": 6,
    "sklearn": 7,
    "cli": 7,
    "__init__": 8,
}
#: What a mechanism may import of its own folder; `auto` alone joins mechanisms.
SHARED_STEPS = {"_steps", "_ball", "_constants", "_ellipsoid", "_mapped", "_prior", "_range", "_registry"}
JOINS_MECHANISMS = {"auto", "__init__"}

#: External libraries that load slowly or are optional: imported inside functions only ...
INSIDE_FUNCTIONS = {
    "dp_accounting",
    "matplotlib",
    "opendp",
    "pandas",
    "polars",
    "pyarrow",
    "rich",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
    "typer",
    "yaml",
}
#: ... save where a file is nothing but the face of that library (and `import jaxdpcov` does not load it).
AT_THE_TOP = {"sklearn": {"sklearn"}, "rich": {"cli"}, "typer": {"cli"}}
#: External libraries with one home each.
HOMES = {"optax": {"maxent", "train"}, "matplotlib": {"plots"}, "typer": {"cli"}}
#: `jax.random` functions that draw noise with a tail: below floor 4 only the privacy layer calls them.
NOISE_DRAWS = {"cauchy", "exponential", "gumbel", "laplace", "logistic", "multivariate_normal", "normal", "t"}
NOISE_HOMES = {"privacy._draws", "privacy.noise", "privacy.selection"}


class Import(NamedTuple):
    """One imported dotted name; `lazy` when it stands inside a function."""

    name: str
    line: int
    lazy: bool


def within(name: str, parents: set[str]) -> str | None:
    """The one of `parents` that `name` is or lies below, None when it is none."""
    return next((parent for parent in sorted(parents) if name == parent or name.startswith(parent + ".")), None)


def modules(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name below it: `privacy.noise`, and `privacy.__init__` for a folder."""
    return {".".join(path.relative_to(package).with_suffix("").parts): path for path in sorted(package.rglob("*.py"))}


def imports(module: str, tree: ast.Module) -> Iterator[Import]:
    """All imports of a module, absolute, with `from a import b` as `a.b`."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    here = [PACKAGE, *module.split(".")]
                    base = ".".join([*here[: len(here) - child.level], *filter(None, [child.module])])
                yield from (Import(f"{base}.{alias.name}", child.lineno, lazy) for alias in child.names)
            yield from walk(child, inside)

    yield from walk(tree, False)


def target(name: str, known: dict[str, Path]) -> str:
    """The module of the package that an import of `jaxdpcov.<...>` loads, `__init__` for the package itself."""
    parts = name.split(".")[1:]
    for length in range(len(parts), -1, -1):
        stem = ".".join(parts[:length])
        for candidate in (stem, f"{stem}.__init__".lstrip(".")):
            if candidate in known:
                return candidate
    return ".".join(parts) or "__init__"


def floor(module: str) -> int | None:
    """The floor of a module, None when the table has no place for it."""
    home = within(module, set(FLOORS))
    return None if home is None else FLOORS[home]


def unit(module: str) -> str:
    """A mechanism's own name: its file, or its folder (`mechanisms.pace.host` -> `pace`)."""
    return module.split(".")[1]


def inner_fault(module: str, goal: str) -> str | None:
    """Why `module` may not import `goal` of the package, None when it may."""
    here, there = floor(module), floor(goal)
    if here is None or there is None:
        return "has no floor in the table"
    if there > here:
        return f"floor {here} reaches up to floor {there}"
    if module.startswith("mechanisms.") and goal.startswith("mechanisms."):
        own = unit(module) == unit(goal)
        if not own and unit(goal) not in SHARED_STEPS and unit(module) not in JOINS_MECHANISMS:
            return "a mechanism imports a sibling"
    if here == 4 and (there == 3 or within(goal, {"data.rows"})):
        return "floor 4 works on releases, not on mechanisms or rows"
    return None


def outer_fault(module: str, found: Import) -> str | None:
    """Why `module` may not import this library here, None when it may."""
    parts = found.name.split(".")
    if any(part.startswith("_") and part != "__future__" for part in parts):
        return "imports a private name of a library"
    home = within(found.name, set(HOMES))
    if home and not within(module, HOMES[home]):
        return f"{home} belongs in {', '.join(sorted(HOMES[home]))} only"
    slow = within(found.name, INSIDE_FUNCTIONS)
    if slow and not found.lazy and not within(module, AT_THE_TOP.get(slow, set())):
        return f"{slow} is imported inside functions only"
    return None


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute chain on a plain name, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None


def name_faults(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Private names of a library reached by attribute, and noise drawn outside the privacy layer."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    here = floor(module)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Attribute, ast.Name)):
            continue
        path = dotted(node)
        head, _, rest = (path or "").partition(".")
        if head not in aliases:
            continue
        full = f"{aliases[head]}.{rest}".rstrip(".")
        private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__")
        if private and not within(full, {PACKAGE}):
            yield node.lineno, f"reaches the private name {full}"
        drawn = full.removeprefix("jax.random.")
        if drawn in NOISE_DRAWS and drawn != full and module not in NOISE_HOMES and here is not None and here < 4:
            yield node.lineno, f"draws {full} outside privacy.noise and privacy.selection"


def faults(package: Path) -> list[str]:
    """Every breach of the floors in the package, one line each."""
    known = modules(package)
    found: list[str] = []
    graph: dict[str, set[str]] = {module: set() for module in known}
    for module, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        if floor(module) is None:
            found.append(f"{module}: has no floor in the table")
        if ast.get_docstring(tree) is None:
            found.append(f"{module}: its first line does not say its responsibility")
        for one in imports(module, tree):
            if within(one.name, {PACKAGE}):
                goal = target(one.name, known)
                graph[module].add(goal)
                why = inner_fault(module, goal)
            else:
                why = outer_fault(module, one)
            if why:
                found.append(f"{module}:{one.line}: imports {one.name}: {why}")
        found.extend(f"{module}:{line}: {why}" for line, why in name_faults(module, tree))
    return found + [f"import cycle: {' -> '.join(cycle)}" for cycle in cycles(graph)]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """One path for each import cycle that a depth-first search meets."""
    done: set[str] = set()
    found: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for goal in sorted(graph.get(module, set())):
                visit(goal, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def test_the_package_keeps_its_floors() -> None:
    package = ROOT / PACKAGE
    assert len(modules(package)) > 5, "the package was not found"
    found = faults(package)
    assert not found, "\n" + "\n".join(found)


GOOD = {
    "_checks.py": "import jax\nimport numpy as np\nx = jax.core.Tracer",
    "bounds.py": "from jaxdpcov import _checks",
    "privacy/__init__.py": "",
    "privacy/ledger.py": "def events():\n    import dp_accounting",
    "privacy/noise.py": "import jax\nfrom . import ledger\ndef draw(key):\n    return jax.random.normal(key)",
    "privacy/accounting.py": "def solve():\n    from scipy import optimize\n    from scipy.stats import norm",
    "maxent.py": "import optax",
    "data/rows.py": "from jaxdpcov.privacy.noise import draw",
    "mechanisms/_steps.py": "from jaxdpcov.data import rows",
    "mechanisms/gaussian.py": "from jaxdpcov.mechanisms import _steps\nfrom jaxdpcov.privacy import noise",
    "mechanisms/pace/__init__.py": "from jaxdpcov.mechanisms.pace import host",
    "mechanisms/pace/host.py": "from jaxdpcov.mechanisms._steps import centred",
    "mechanisms/auto.py": "from jaxdpcov.mechanisms import gaussian",
    "metrics.py": "from jaxdpcov.privacy.ledger import events",
    "plots.py": "def draw():\n    import matplotlib.pyplot as plt",
    "audit.py": "import jax\nfrom jaxdpcov.mechanisms import gaussian\ny = jax.random.normal",
    "estimate.py": "from jaxdpcov import audit",
    "sklearn.py": "from sklearn.base import BaseEstimator",
    "cli/__init__.py": "import typer\nfrom jaxdpcov.estimate import estimate",
    "__init__.py": "from jaxdpcov.estimate import estimate as estimate",
}

BAD = {
    "up": ("bounds.py", "from jaxdpcov import estimate", "reaches up"),
    "up to privacy": ("bounds.py", "from jaxdpcov.privacy.noise import draw", "reaches up"),
    "up inside a function": ("privacy/noise.py", "def f():\n    import jaxdpcov.data.rows", "reaches up"),
    "up under a condition": ("privacy/noise.py", "if 1:\n    import jaxdpcov.data.rows", "reaches up"),
    "up, relative": ("privacy/noise.py", "from ..data.rows import Rows", "reaches up"),
    "the package itself": ("mechanisms/gaussian.py", "from jaxdpcov import estimate_it", "reaches up"),
    "the package by name": ("mechanisms/gaussian.py", "import jaxdpcov", "reaches up"),
    "a sibling": ("mechanisms/emcov.py", "from jaxdpcov.mechanisms.gaussian import gaussian", "sibling"),
    "a sibling by folder": ("mechanisms/emcov.py", "from jaxdpcov.mechanisms import gaussian", "sibling"),
    "a sibling, relative": ("mechanisms/pace/select.py", "from ..gaussian import gaussian", "sibling"),
    "shared steps": ("mechanisms/_registry.py", "from jaxdpcov.mechanisms import gaussian", "sibling"),
    "rows in metrics": ("metrics.py", "from jaxdpcov.data.rows import Rows", "not on mechanisms or rows"),
    "rows in apps": ("apps/pca.py", "from jaxdpcov.data import rows", "not on mechanisms or rows"),
    "mechanisms in apps": ("apps/pca.py", "from jaxdpcov.mechanisms import gaussian", "not on mechanisms or rows"),
    "private jax": ("linalg.py", "from jax._src import core", "private name"),
    "private jax, plain": ("linalg.py", "import jax._src.core as core", "private name"),
    "private jax, by attribute": ("linalg.py", "import jax\nx = jax._src.core", "private name"),
    "private sklearn": ("sklearn.py", "from sklearn.utils._param_validation import x", "private name"),
    "optax elsewhere": ("linalg.py", "import optax", "optax belongs in"),
    "matplotlib elsewhere": ("metrics.py", "def f():\n    from matplotlib import pyplot", "matplotlib belongs in"),
    "matplotlib at the top": ("plots.py", "import matplotlib.pyplot as plt", "inside functions only"),
    "scipy.stats at the top": ("privacy/tails.py", "from scipy import stats", "inside functions only"),
    "scipy.optimize at the top": ("privacy/tails.py", "import scipy.optimize", "inside functions only"),
    "pandas at the top": ("release.py", "import pandas as pd", "inside functions only"),
    "pyarrow in a class": ("data/io.py", "class A:\n    import pyarrow.csv", "inside functions only"),
    "no floor": ("helpers.py", "import jax", "no floor"),
    "noise by a mechanism": (
        "mechanisms/gaussian.py",
        "import jax\ndef f(k):\n    return jax.random.normal(k)",
        "outside privacy.noise",
    ),
    "noise by a short name": ("data/clip.py", "from jax.random import laplace\nx = laplace", "outside privacy.noise"),
    "noise by an alias": ("data/clip.py", "from jax import random as r\nx = r.gumbel", "outside privacy.noise"),
    "a cycle": ("privacy/ledger.py", "def f():\n    from jaxdpcov.privacy import noise", "cycle"),
}


def write(package: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'"""Synthetic."""\n{text}\n', encoding="utf-8")


def test_a_house_in_order_passes(tmp_path: Path) -> None:
    write(tmp_path / PACKAGE, GOOD)
    assert faults(tmp_path / PACKAGE) == []


@pytest.mark.parametrize("case", BAD)
def test_a_breach_is_caught(case: str, tmp_path: Path) -> None:
    name, text, expected = BAD[case]
    write(tmp_path / PACKAGE, GOOD | {name: text})
    found = faults(tmp_path / PACKAGE)
    assert found and any(expected in line for line in found), found


def test_a_missing_first_line_is_caught(tmp_path: Path) -> None:
    write(tmp_path / PACKAGE, GOOD)
    (tmp_path / PACKAGE / "linalg.py").write_text("import jax\n", encoding="utf-8")
    assert any("responsibility" in line for line in faults(tmp_path / PACKAGE))
