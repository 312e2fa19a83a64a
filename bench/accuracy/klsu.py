"""Rows that learning a Gaussian of unknown scale takes: preconditioning, one noisy second moment, and CoinPress.

    python bench/accuracy/klsu.py [--only kappa learn invariant]   # runs what is missing
    python bench/accuracy/klsu.py --report                         # the page and its plots alone

Every point is stored in docs/results/data/klsu.json as soon as it is there, and a later run takes up where this one
ended. docs/results/klsu.md and its plots are made from that file (klsu_report.py).

Sigma has a geometric spectrum from 1 to kappa in random directions, the same for all methods; rows are drawn anew in
every trial. Bounds are exact: lower = 1, upper = kappa.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import klsu_report

import jaxdpcov as dp
from jaxdpcov import metrics

DATA = Path(__file__).resolve().parents[2] / "docs" / "results" / "data" / "klsu.json"
RHO = 0.5
#: The study of kappa: columns, the error that is asked for, and the most rows that are tried.
KAPPA_D, KAPPA_ERROR, MOST_ROWS = 5, 0.5, 2**22
KAPPAS = (1e1, 1e2, 1e3, 1e4, 1e6, 1e8)
#: The study of a whole Gaussian.
LEARN_D, LEARN_KAPPA, LEARN_RADIUS, LEARN_TV = 10, 1e4, 1e3, 0.1

ZERO = {"center": "zero"}
COVARIANCES: dict[str, tuple[Callable[..., Any], Any]] = {
    "naive_pce": (dp.naive_pce, dp.KLSUConfig(**ZERO)),
    "naive_pce, theory": (dp.naive_pce, dp.KLSUConfig(constants="theory", **ZERO)),
    "pgce": (dp.pgce, dp.KLSUConfig(**ZERO)),
    "pgce, theory": (dp.pgce, dp.KLSUConfig(constants="theory", **ZERO)),
    "coinpress": (dp.coinpress_covariance, dp.CoinPressConfig(psd="floor", **ZERO)),
}
GAUSSIANS: dict[str, tuple[Callable[..., Any], Any]] = {
    "naive": (dp.learn_gaussian, dp.KLSUConfig(rounds=0)),
    "learn_gaussian": (dp.learn_gaussian, dp.KLSUConfig()),
    "learn_gaussian, theory": (dp.learn_gaussian, dp.KLSUConfig(constants="theory")),
    "coinpress_gaussian": (dp.coinpress_gaussian, dp.CoinPressConfig(psd="floor")),
}


def population(d: int, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """Sigma and a root of it."""
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]
    root = directions * np.geomspace(1.0, kappa, d) ** 0.5
    return root @ root.T, root


def trials(run: Callable[[Any, Any], Any], n: int, d: int, count: int, seed: int = 0) -> np.ndarray:
    """run(key, rows) on standard rows of `count` trials, one after the other in one program."""

    @jax.jit
    def all_of_them(keys: Any) -> Any:
        def one(key: Any) -> Any:
            rows_key, release_key = jax.random.split(key)
            return run(release_key, jax.random.normal(rows_key, (n, d)))

        return jax.lax.map(one, keys)

    found = np.asarray(all_of_them(jax.random.split(jax.random.key(seed), count)))
    jax.clear_caches()  # compiled programs hold memory maps, of which a process has 65,530
    return found


def covariance_errors(method: str, kappa: float, n: int, count: int) -> list[float]:
    """||Sigma^-1/2 (S - Sigma) Sigma^-1/2||_F by trial; "sample" is not private."""
    sigma, root = population(KAPPA_D, kappa)
    bounds = dp.Bounds.spectrum(1.0, kappa)

    def run(key: Any, z: Any) -> Any:
        x = z @ root.T
        if method == "sample":
            return metrics.mahalanobis(x.T @ x / n, sigma)
        mechanism, config = COVARIANCES[method]
        return metrics.mahalanobis(mechanism(key, x, dp.ZCDP(RHO), bounds, config=config).covariance, sigma)

    return trials(run, n, KAPPA_D, count).tolist()


def gaussian_distances(method: str, n: int, count: int) -> list[float]:
    """Total variation distance by trial, by 4,000 draws each."""
    sigma, root = population(LEARN_D, LEARN_KAPPA)
    mu = np.full(LEARN_D, 0.9 * LEARN_RADIUS / LEARN_D**0.5)
    bounds = dp.Bounds.spectrum(1.0, LEARN_KAPPA, mean_radius=LEARN_RADIUS)

    def run(key: Any, z: Any) -> Any:
        x = mu + z @ root.T
        release_key, draws_key = jax.random.split(key)
        if method == "sample":
            mean, covariance = x.mean(0), jnp.cov(x.T)
        else:
            mechanism, config = GAUSSIANS[method]
            release = mechanism(release_key, x, dp.ZCDP(RHO), bounds, config=config)
            mean, covariance = release.mean, release.covariance
        return metrics.total_variation(draws_key, covariance, sigma, mean, mu, draws=4_000)[0]

    return trials(run, n, LEARN_D, count).tolist()


def invariant(kappa: float, n: int, count: int) -> dict[str, Any]:
    """In how many releases of `ppc` I <= A Sigma A^T <= kappa I held at the end, and the promised kappa by round."""
    sigma, root = population(KAPPA_D, kappa)
    config = dp.KLSUConfig(constants="theory", **ZERO)

    def run(key: Any, z: Any) -> Any:
        release = dp.ppc(key, z @ root.T, dp.ZCDP(RHO), dp.Bounds.spectrum(1.0, kappa), config=config)
        a = release.extra["preconditioner"]
        values = jnp.linalg.eigvalsh(a @ sigma @ a.T)
        return jnp.concatenate([jnp.stack([values[0], values[-1]]), release.diagnostics["kappa"]])

    found = trials(run, n, KAPPA_D, count)
    low, high, kappas = found[:, 0], found[:, 1], found[0, 2:]
    end = kappas[-1] if len(kappas) else kappa
    steps = np.r_[kappa, kappas]
    return {
        "held": int(np.sum((low >= 1.0 - 1e-9) & (high <= end * (1.0 + 1e-9)))),
        "smallest": float(low.min()),
        "largest": float(high.max()),
        "kappas": kappas.tolist(),
        "slowest": float(np.max(steps[1:] / steps[:-1])) if len(kappas) else None,
    }


def count_of(n: int) -> int:
    """Trials at n rows."""
    return 20 if n <= 2**16 else 8


def sizes(first: int, last: int) -> Iterator[int]:
    """Powers of two."""
    n = first
    while n <= last:
        yield n
        n *= 2


class Store:
    """Points by name in one JSON file, written after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The point of that name, made where it is missing."""
        if name not in self.points:
            start = time.perf_counter()
            made = make()
            rounded = [float(f"{x:.4g}") for x in made] if isinstance(made, list) else made
            self.points[name] = rounded
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.points, indent=0, sort_keys=True) + "\n")
            shown = f"{np.median(made):.4g}" if isinstance(made, list) else made
            print(f"{name}: {shown} ({time.perf_counter() - start:.0f} s)", flush=True)
        return self.points[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["invariant", "learn", "kappa"])
    parser.add_argument("--report", action="store_true", help="write docs/results from what is there, and run nothing")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    store = Store(DATA)
    if not args.report and "invariant" in args.only:
        for kappa in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6):
            n = 2**17
            store.get(f"invariant {kappa:g} {n}", lambda kappa=kappa, n=n: invariant(kappa, n, 100))
    if not args.report and "learn" in args.only:
        for method in ("sample", *GAUSSIANS):
            for n in sizes(2**8 if method == "sample" else 2**10, MOST_ROWS):
                found = store.get(f"learn {method} {n}", lambda m=method, n=n: gaussian_distances(m, n, count_of(n)))
                if np.median(found) < 0.6 * LEARN_TV:
                    break
            for _ in range(4):  # trials at the number that was found, which then counts in finding it
                at = klsu_report.crossing(store.points, f"learn {method}", LEARN_TV)
                if at is None:
                    break
                n = int(np.ceil(at / 100) * 100)
                found = store.get(f"learn {method} {n}", lambda m=method, n=n: gaussian_distances(m, n, count_of(n)))
                if abs(np.median(found) - LEARN_TV) < 0.05 * LEARN_TV:
                    break
    if not args.report and "kappa" in args.only:
        for method in ("sample", *COVARIANCES):
            least = 2**5 if method == "sample" else 2**8
            for kappa in KAPPAS[:1] if method == "sample" else KAPPAS:
                for n in sizes(least, MOST_ROWS):
                    name = f"kappa {kappa:g} {method} {n}"
                    found = store.get(name, lambda m=method, k=kappa, n=n: covariance_errors(m, k, n, count_of(n)))
                    if np.median(found) < KAPPA_ERROR:
                        least = max(n // 2, 2**5)  # a wider range takes more
                        break
    klsu_report.report(store.points, DATA.parents[1])


if __name__ == "__main__":
    main()
