"""Errors of pace, ssp_select and auto beside the Gaussian family, over budgets, on real sets and made populations.

    python bench/accuracy/pace.py [--sets wine sparse-100 ...] [--repetitions 20] [--store DIRECTORY] [--data DIRECTORY]
    python bench/accuracy/pace.py --report

Moments about the centre of the bounds, which is known. Errors against X'X/n of the clipped rows, all in z: Frobenius,
Mahalanobis (||S^-1/2 (S^ - S) S^-1/2||, eigenvalues of S floored at 1e-6 of the largest) and inverse Stein
(tr(S^ W^-1) of W against S; infinite for a singular estimate, so that SSP has none). Every repetition has a key of its
own, the same for all methods. A file for each set and budget goes to the store, and all of them to
docs/results/data/pace.json at the end; what is in either is not computed again.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import pace_sets
from pace_report import load, report

import jaxdpcov as dp
from jaxdpcov import metrics

ZERO = {"center": "zero"}
METHODS: dict[str, tuple[Callable[..., Any], Any]] = {
    "ssp, paper": (dp.gaussian, dp.GaussianConfig(noise="sgw", **ZERO)),
    "gaussian": (dp.gaussian, dp.GaussianConfig(**ZERO)),
    "diagonal": (dp.diagonal, dp.DiagonalConfig(**ZERO)),
    "adaptive": (dp.adaptive, dp.AdaptiveConfig(**ZERO)),
    "pace, paper": (dp.pace, dp.PaceConfig.paper(**ZERO)),
    "pace": (dp.pace, dp.PaceConfig(**ZERO)),
    "ssp_select": (dp.ssp_select, dp.SSPSelectConfig(**ZERO)),
    "auto": (dp.auto, dp.AutoConfig(**ZERO)),
}
BUDGETS = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)


@jax.jit
def errors(estimate: jax.Array, truth: jax.Array) -> jax.Array:
    """Frobenius, Mahalanobis and inverse Stein."""
    floor = 1e-6 * jnp.linalg.eigvalsh(truth)[-1]
    return jnp.stack(
        [
            metrics.frobenius(estimate, truth),
            metrics.mahalanobis(estimate, truth, floor),
            metrics.stein(estimate, truth),
        ]
    )


def study(name: str, store: Path, data: Path, repetitions: int, budgets: tuple[float, ...]) -> None:
    """All methods on one set; (repetitions, 3) errors by method."""
    z, known = None, load(store)
    for rho in budgets:
        file = store / f"{name}_{rho:g}.npz"
        found = known.get((name, rho), {})
        wanted = {method: each for method, each in METHODS.items() if len(found.get(method, ())) < repetitions}
        if not wanted:
            continue
        z = pace_sets.make(name, data) if z is None else z
        truth = jnp.asarray(z.T @ z / len(z))
        start = time.perf_counter()
        for method, (mechanism, config) in wanted.items():
            each = []
            for key in jax.random.split(jax.random.key(1), repetitions):
                release = mechanism(key, z, dp.ZCDP(rho), dp.Bounds.box(-1.0, 1.0), config=config)
                each.append(np.asarray(errors(release.covariance, truth)))
            found[method] = np.stack(each)
        np.savez(file, **found)
        print(f"{name} (n, d) = {z.shape}, rho = {rho:g}, {time.perf_counter() - start:.0f} s", end="")
        print("".join(f"; {method} {np.mean(found[method][:, 0]):.4g}" for method in found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(pace_sets.SETS), choices=list(pace_sets.SETS))
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS))
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()) / "jaxdpcov-pace")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where the .npz sets of columns are")
    parser.add_argument("--report", action="store_true", help="write docs/results from what is there, and run nothing")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    args.store.mkdir(parents=True, exist_ok=True)
    if not args.report:
        for name in args.sets:
            study(name, args.store, args.data, args.repetitions, tuple(args.budgets))
            jax.clear_caches()  # compiled programs hold memory maps, of which a process has 65,530
    report(args.store, Path(__file__).parents[2] / "docs" / "results")


if __name__ == "__main__":
    main()
