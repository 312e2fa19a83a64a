"""Accuracy of CoinPress: the settings of the published figures; sweeps over range, size, budget, spectrum and tails.

    python bench/accuracy/coinpress.py [--only figures means range ...] [--trials 100]   # runs what is missing
    python bench/accuracy/coinpress.py --report                                          # tables and plots alone

Every point is stored with its raw errors in docs/results/data/coinpress.json as soon as it is there, and a later run
takes up where this one ended. docs/results/coinpress.md and its plots are made from that file (coinpress_report.py).

Errors of a covariance are ||Sigma^{-1/2} (Sigma^ - Sigma) Sigma^{-1/2}||_F, of a mean l2 norms in standard deviations,
of a variance |estimate/variance - 1|. Every setting of one shape sees the
same standard rows.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import coinpress_report

import jaxdpcov as dp
from jaxdpcov.mechanisms.coinpress import rounds as default

DATA = Path(__file__).resolve().parents[2] / "docs" / "results" / "data" / "coinpress.json"
Point = dict[str, Any]
FIGURE_ROWS = (3000, 4000, 5000, 6000, 7000, 8000)
FREEDOM = {"t5": 5.0, "t3": 3.0}
#: What a point says where it says nothing else.
COMMON = {"mechanism": "covariance", "rho": 0.5, "beta": 0.05, "at": 0.0, "seed": 0, "population": "identity"}


def points(trials: int) -> Iterator[Point]:
    """Every point of the study, in the order in which they are run."""
    wide = 10.0 * 10.0**0.5
    for n in FIGURE_ROWS:
        base = {"study": "figures", "n": n, "d": 10, "upper": wide, "trials": trials}
        yield {**base, "mechanism": "sample"}
        for t in range(1, 6):
            for noise in ("sgw", "goe"):
                yield {**base, "constants": "practical", "noise": noise, "rounds": t}
    base = {"study": "means", "n": 1000, "d": 50, "radius": 10.0 * 50.0**0.5, "trials": trials}
    yield {**base, "mechanism": "sample mean"}
    for t in range(1, 5):
        yield {**base, "mechanism": "mean", "constants": "practical", "rounds": t}
    sweeps = (_faults, _tails, _spectra, _radii, _budgets, _columns, _sizes)
    yield from (point for sweep in sweeps for point in sweep(trials))


def _faults(trials: int) -> Iterator[Point]:
    base = {"n": 3000, "d": 10, "upper": 10.0 * 10.0**0.5, "trials": trials}
    for t in range(1, 6):
        yield {"study": "faults", **base, "mechanism": "published code", "rounds": t}
    base = {"study": "halves", **base, "n": 8000, "population": "half"}
    for t in (3, 4):
        yield {**base, "mechanism": "published code", "rounds": t}
        for noise in ("sgw", "goe"):
            yield {**base, "constants": "practical", "noise": noise, "rounds": t}


def _both(base: Point, theory_trials: int) -> Iterator[Point]:
    yield {**base, "constants": "practical"}
    yield {**base, "constants": "theory", "trials": max(base["trials"], theory_trials)}


def _sizes(trials: int) -> Iterator[Point]:
    for d in (100, 10, 2):
        repeats = trials // 5 if d == 100 else trials
        yield {"study": "range", "mechanism": "sample", "n": 10_000, "d": d, "trials": repeats}
        for k in (1.0, 10.0, 100.0, 1e3, 1e4):
            base = {"study": "range", "n": 10_000, "d": d, "upper": k * d**0.5, "trials": repeats}
            yield from _both(base, 20 if d == 100 else 500)


def _budgets(trials: int) -> Iterator[Point]:
    base = {"study": "budget", "n": 10_000, "d": 10, "upper": 10.0 * 10.0**0.5, "trials": trials}
    yield {**base, "mechanism": "sample"}
    for rho in (0.1, 10.0):
        yield from _both({**base, "rho": rho}, 200)


def _spectra(trials: int) -> Iterator[Point]:
    base = {"study": "spectrum", "n": 10_000, "d": 10, "upper": 1e4, "trials": trials}
    yield {**base, "mechanism": "sample"}
    for population in ("half", "log-uniform"):
        yield from _both({**base, "population": population}, 200)


def _tails(trials: int) -> Iterator[Point]:
    for population in ("t5", "t3"):
        base = {"study": "tails", "n": 10_000, "d": 10, "upper": 10.0 * 10.0**0.5, "trials": trials}
        base["population"] = population
        yield {**base, "mechanism": "sample"}
        yield from _both(base, 200)


def _radii(trials: int) -> Iterator[Point]:
    base = {"study": "radius", "n": 1000, "d": 10, "trials": trials}
    yield {**base, "mechanism": "sample mean"}
    for radius in (1e1, 1e3, 1e6):
        yield from _both({**base, "mechanism": "mean", "radius": radius, "at": 0.7}, 200)


def _columns(trials: int) -> Iterator[Point]:
    for n, budget in ((20_000, {"epsilon": 1.0}), (2000, {"rho": 0.5})):
        base = {"n": n, "d": 1, "trials": 10 * trials, **budget}
        for upper in (1e2, 1e4, 1e8, 1e12):
            point = {"study": "variance", "mechanism": "variance_1d", **base, "upper": upper, "population": "middle"}
            yield {**point, "constants": "practical"}
        for radius in (1e3, 1e6):
            point = {"study": "mean_1d", "mechanism": "mean_1d", **base, "radius": radius, "at": 0.7}
            yield {**point, "constants": "practical"}


def std(point: Point) -> np.ndarray:
    """Standard deviations of the columns; the covariance is diagonal, which the mechanisms do not know."""
    d, population = point["d"], point["population"]
    if population == "half":
        return np.where(np.arange(d) < d // 2, 1.0, point["upper"] ** 0.5)
    if population == "log-uniform":
        return np.logspace(0.0, 0.5 * np.log10(point["upper"]), d)
    if population == "middle":
        return np.full(d, point["upper"] ** 0.25)
    return np.ones(d)


def rows(point: Point, most: int, batch: int, lanes: int) -> np.ndarray:
    """(lanes, most, d) rows of mean zero: Gaussian, or multivariate Student t of the same covariance."""
    rng = np.random.default_rng([point["seed"], batch, most, point["d"]])
    x = rng.standard_normal((lanes, most, point["d"])) * std(point)
    if point["population"] in FREEDOM:
        freedom = FREEDOM[point["population"]]
        x *= np.sqrt((freedom - 2.0) / rng.chisquare(freedom, (lanes, most, 1)))
    return x


@functools.cache
def program(kind: str, most: int, settings: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """(errors, whether the confidence sets hold the truth) of trials, one compilation for all numbers of a study."""
    config = dp.CoinPressConfig(**dict(settings))

    def one(key: jax.Array, x: jax.Array, numbers: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        size, n = numbers["std"], numbers["n"]
        inside = (jnp.arange(most) < n).astype(size.dtype)

        def white(matrix: jax.Array) -> jax.Array:
            return matrix / (size[:, None] * size[None, :])

        eye = jnp.eye(size.shape[0])
        if kind == "sample":
            return jnp.linalg.norm(white(jnp.matmul((x * inside[:, None]).T, x) / n) - eye), jnp.asarray(True)
        if kind == "sample mean":
            return jnp.linalg.norm(jnp.sum(x * inside[:, None], axis=0) / n), jnp.asarray(True)
        # One program serves all n: the rows beyond n carry no weight.
        x = x + numbers["mean"][None, :]
        home = dp.Rows.array(x, weights=inside, n=n)
        budget = dp.PureDP(numbers["epsilon"]) if "epsilon" in numbers else dp.ZCDP(numbers["rho"])
        bounds = dp.Bounds.spectrum(1.0, numbers["upper"], mean_radius=numbers["radius"])
        release = getattr(dp, f"coinpress_{kind}")(key, home, budget, bounds, config=config)
        if kind.startswith("mean"):
            error = jnp.linalg.norm(release.mean - numbers["mean"])
            return error, error <= release.extra["radius"]
        if kind == "variance_1d":
            low, high = release.extra["interval"]
            truth = size[0] ** 2
            return jnp.abs(release.covariance[0, 0] / truth - 1.0), (low <= truth) & (truth <= high)
        covered = jnp.linalg.eigvalsh(white(release.extra["ellipsoid"]))[0] >= 1.0
        return jnp.linalg.norm(white(release.covariance) - eye), covered

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None)))


def chosen_rounds(point: Point) -> int:
    """The rounds of the point, or the default number of its mechanism."""
    if "rounds" in point:
        return point["rounds"]
    n, d, constants, beta = (point[name] for name in ("n", "d", "constants", "beta"))
    pure, cost = "epsilon" in point, point.get("epsilon", point["rho"])
    if point["mechanism"] == "covariance":
        return default.covariance_rounds(n, d, point["upper"], cost, constants, "goe", beta)
    if point["mechanism"] == "variance_1d":
        return default.variance_rounds(n, point["upper"], cost, constants, beta, pure)
    return default.mean_rounds(n, d, point["radius"], cost, constants, beta, pure)


def emulated(point: Point) -> Point:
    """The published code with its faults, by the slow form of the tests."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.reference.coinpress import published_covariance

    n, d, t, rho, size = point["n"], point["d"], point["rounds"], point["rho"], std(point)
    costs = [rho] if t == 1 else [0.25 * rho / (t - 1)] * (t - 1) + [0.75 * rho]
    rng = np.random.default_rng(point["seed"])
    errors = []
    for _ in range(point["trials"]):
        upper = [np.triu(rng.normal(size=(d, d))) for _ in range(t)]
        draws = [u + np.triu(u, 1).T for u in upper]
        found = published_covariance(rng.normal(size=(n, d)) * size, point["upper"], costs, draws)
        errors.append(np.linalg.norm(found / np.outer(size, size) - np.eye(d)))
    return {"errors": [float(f"{error:.5g}") for error in errors]}


def measured(point: Point) -> Point:
    """What a point's trials gave: errors, how many confidence sets held the truth, and the rounds."""
    full = {**COMMON, **point}
    if full["mechanism"] == "published code":
        return {"point": point, **emulated(full)}
    kind, n, d = full["mechanism"], full["n"], full["d"]
    settings: dict[str, Any] = {}
    if not kind.startswith("sample"):
        settings = {name: full[name] for name in ("constants", "noise") if name in full}
        settings.update(rounds=chosen_rounds(full), center="zero", beta=full["beta"])
    numbers = {name: full[name] for name in ("rho", "epsilon", "upper", "radius", "n") if name in full}
    numbers = {"radius": 1.0, "upper": 1.0, **numbers, "std": std(full)}
    numbers["mean"] = np.full(d, full["at"] * numbers["radius"] / d**0.5)
    numbers = {name: jnp.asarray(number, float) for name, number in numbers.items()}
    # The batch stays the same for a shape, so that one program serves all of its points.
    most = FIGURE_ROWS[-1] if full["study"] == "figures" else n
    lanes = min(50, max(2, 2_000_000 // (most * d)))
    batches = -(-full["trials"] // lanes)
    keys = jax.random.split(jax.random.key(full["seed"]), (batches, lanes))
    run = program(kind, most, tuple(sorted(settings.items())))
    parts = [run(keys[i], rows(full, most, i, lanes), numbers) for i in range(batches)]
    errors, covered = (np.concatenate([np.asarray(part[i]) for part in parts])[: full["trials"]] for i in (0, 1))
    result: Point = {"point": point, "errors": [float(f"{error:.5g}") for error in errors]}
    if settings:
        result.update(rounds=settings["rounds"], covered=int(np.sum(covered)))
    return result


def save(results: list[Point]) -> None:
    """One line a point, and the versions that made them."""
    DATA.parent.mkdir(parents=True, exist_ok=True)
    versions = {"jaxdpcov": dp.__version__, "jax": jax.__version__, "numpy": np.__version__}
    lines = ",\n".join(json.dumps(result) for result in results)
    DATA.write_text(f'{{"versions": {json.dumps(versions)}, "results": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="studies to run, all by default")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--report", action="store_true", help="run nothing, write tables and plots")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    results = json.loads(DATA.read_text())["results"] if DATA.exists() else []
    if not args.report:
        known = [result["point"] for result in results]
        for point in points(args.trials):
            if point not in known and (args.only is None or point["study"] in args.only):
                results.append(measured(point))
                save(results)
                print(json.dumps({**point, "median": float(np.median(results[-1]["errors"]))}), flush=True)
    stored = json.loads(DATA.read_text())
    coinpress_report.write(stored["results"], stored["versions"])


if __name__ == "__main__":
    main()
