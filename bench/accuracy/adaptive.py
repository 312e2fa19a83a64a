"""Frobenius errors of gaussian, separate and adaptive on skewed data, in the paper's form and by default.

    python bench/accuracy/adaptive.py --repetitions 10 --points quick

Moments about zero, errors against X'X/n of the unclipped rows. Prints mean errors with a 95% band, then the ratio of
adaptive to the better of gaussian and separate.
"""

import argparse
import functools
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from populations import heavy_rows, normal_rows, skewed_rows

from jaxdpcov import (
    ZCDP,
    AdaptiveConfig,
    Bounds,
    ClippedGaussianConfig,
    GaussianConfig,
    Rows,
    SeparateConfig,
    adaptive,
    clipped_gaussian,
    gaussian,
    metrics,
    separate,
)

PAPER = {"center": "zero", "noise": "sgw", "constants": "paper", "psd": "project"}
METHODS = {
    "gaussian, paper": (gaussian, GaussianConfig(center="zero", noise="sgw")),
    "separate, paper": (separate, SeparateConfig(**PAPER)),
    "adaptive, paper": (adaptive, AdaptiveConfig(**PAPER)),
    "gaussian": (gaussian, GaussianConfig(center="zero")),
    "gaussian, denoised": (clipped_gaussian, ClippedGaussianConfig(radius=1.0, center="zero")),
    "separate": (separate, SeparateConfig(center="zero")),
    "adaptive, project": (adaptive, AdaptiveConfig(center="zero", psd="project")),
    "adaptive": (adaptive, AdaptiveConfig(center="zero")),
}
POINTS = {
    "quick": [
        ("N=1 n=16000 d=10", functools.partial(skewed_rows, 0, 16_000, 10, 1), 0.1),
        ("N=1 n=16000 d=50", functools.partial(skewed_rows, 0, 16_000, 50, 1), 0.1),
        ("N=2 n=50000 d=100", functools.partial(skewed_rows, 0, 50_000, 100, 2), 0.1),
        ("N=4 n=50000 d=50", functools.partial(skewed_rows, 0, 50_000, 50, 4), 0.1),
        ("N=4 n=50000 d=200", functools.partial(skewed_rows, 0, 50_000, 200, 4), 0.1),
        ("N=8 n=50000 d=100", functools.partial(skewed_rows, 0, 50_000, 100, 8), 0.1),
        ("N=4 n=5000 d=100", functools.partial(skewed_rows, 0, 5_000, 100, 4), 0.1),
        ("normal 0.25 slow n=20000 d=50", functools.partial(normal_rows, 0, 20_000, 50, 0.25, "slow"), 0.1),
        ("heavy 0.1 fast n=20000 d=50", functools.partial(heavy_rows, 0, 20_000, 50, 0.1, "fast"), 0.1),
    ],
    "norms": [(f"N={k}", functools.partial(skewed_rows, 0, 50_000, 200, k), 0.1) for k in range(1, 9)],
    "dimensions": [
        (f"d={d}", functools.partial(skewed_rows, 0, 50_000, d, 4), 0.1) for d in (10, 20, 50, 100, 200, 400, 800)
    ],
    "rows": [
        (f"n={n}", functools.partial(skewed_rows, 0, n, 200, 4), 0.1) for n in (1_000, 5_000, 20_000, 100_000, 400_000)
    ],
    "budgets": [
        (f"rho={r}", functools.partial(skewed_rows, 0, 50_000, 200, 4), r) for r in (0.01, 0.03, 0.1, 0.3, 1.0)
    ],
}


def errors(x: np.ndarray, rho: float, repetitions: int) -> dict[str, np.ndarray]:
    """(repetitions,) errors of each method; one pass over the rows serves all repetitions."""
    bounds, home = Bounds.l2(1.0), Rows.array(x)
    table = home.level_moments(bounds)
    truth = jnp.asarray(x.T @ x / len(x))
    keys = jax.random.split(jax.random.key(1), repetitions)

    def run(mechanism, config):
        @jax.jit
        def lanes(keys, rows):
            def one(key):
                return metrics.frobenius(mechanism(key, rows, ZCDP(rho), bounds, config=config).covariance, truth)

            return jax.lax.map(one, keys, batch_size=2)

        # The Gaussian sums depend on no key, so that they too are computed once.
        return np.asarray(lanes(keys, home if mechanism in (gaussian, clipped_gaussian) else table))

    return {name: run(*method) for name, method in METHODS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many points of each group")
    parser.add_argument("--points", nargs="+", default=["quick"], choices=[*POINTS])
    chosen = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for group in chosen.points:
        for label, make, rho in POINTS[group][chosen.skip :]:
            start, x = time.perf_counter(), make()
            found = errors(x, rho, chosen.repetitions)
            print(f"{label}, rho = {rho}, trace = {np.sum(x**2) / len(x):.3g}, {time.perf_counter() - start:.0f} s")
            for name, each in found.items():
                band = 1.96 * np.std(each, ddof=1) / np.sqrt(len(each))
                print(f"  {name:<20} {np.mean(each):.5f} +- {band:.5f}")
            for suffix in (", paper", ""):
                best = min(np.mean(found[f"{name}{suffix}"]) for name in ("gaussian", "separate"))
                ratio = np.mean(found[f"adaptive{suffix}"]) / best
                print(
                    f"  adaptive{suffix} to the better of gaussian{suffix} and separate{suffix}: {ratio:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
