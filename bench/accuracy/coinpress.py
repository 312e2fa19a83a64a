"""Accuracy of CoinPress: the settings of the published figures; sweeps over range, size, budget, spectrum and tails.

    python bench/accuracy/coinpress.py figures [--trials 100] [--n 3000 4000 5000 6000 7000 8000]
    python bench/accuracy/coinpress.py mean [--trials 100]
    python bench/accuracy/coinpress.py sweep [--trials 100] [--what range size budget spectrum tails]
    python bench/accuracy/coinpress.py radius [--trials 100]
    python bench/accuracy/coinpress.py faults [--trials 100]

Each prints one table in Markdown. Errors are means over the trials, trimmed by a tenth at each end, with their standard
error; covariance errors are ||Sigma^{-1/2} (Sigma^ - Sigma) Sigma^{-1/2}||_F, those of means are l2 norms in standard
deviations.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdpcov as dp

#: The figures of Biswas, Dong, Kamath and Ullman (2020) as published, at n = 3000; its code maps rows by A^T, goes back
#: by A^{-1} Z A^{-1} and projects to |Z|.
PUBLISHED = {0: 0.191, 1: 2.84, 2: 0.557, 3: 0.306, 4: 0.353, 5: 0.397}
PUBLISHED_MEAN = {0: 0.221, 1: 1.07, 2: 0.281, 3: 0.272, 4: 0.271}


def trimmed(errors: Any) -> tuple[float, float]:
    """The mean without a tenth at each end, and its standard error (Tukey and McLaughlin 1963)."""
    errors = np.sort(np.asarray(errors, np.float64))
    cut = len(errors) // 10
    kept = errors[cut : len(errors) - cut]
    winsorised = np.clip(errors, kept[0], kept[-1])
    return float(kept.mean()), float(winsorised.std(ddof=1) / (1.0 - 2.0 * cut / len(errors)) / len(errors) ** 0.5)


def study(one: Callable[[jax.Array], Any], trials: int, seed: int, lanes: int) -> Any:
    """`one` over keys, compiled once."""
    return jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=max(2, lanes)))(
        jax.random.split(jax.random.key(seed), trials)
    )


def gaussian(key: jax.Array, n: int, std: jax.Array) -> jax.Array:
    return jax.random.normal(key, (n, std.shape[0])) * std[None, :]


def student(key: jax.Array, n: int, std: jax.Array, freedom: float) -> jax.Array:
    """Multivariate Student t with covariance diag(std^2)."""
    first, second = jax.random.split(key)
    chi = 2.0 * jax.random.gamma(second, 0.5 * freedom, (n, 1))
    return gaussian(first, n, std) * jnp.sqrt((freedom - 2.0) / chi)


def covariance_errors(
    trials: int,
    n: int,
    std: Any,
    bounds: Any,
    rho: float,
    config: Any,
    rows: Callable[[jax.Array, int, jax.Array], jax.Array] = gaussian,
    seed: int = 0,
) -> tuple[np.ndarray, float, int]:
    """Errors, the share of covering ellipsoids, and the rounds."""
    std = jnp.asarray(std)
    d = std.shape[0]
    units = std[:, None] * std[None, :]
    rounds: list[int] = []

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        data_key, key = jax.random.split(key)
        release = dp.coinpress_covariance(key, rows(data_key, n, std), dp.ZCDP(rho), bounds, config=config)
        rounds.append(release.config.rounds)
        error = jnp.linalg.norm(release.covariance / units - jnp.eye(d))
        return error, jnp.linalg.eigvalsh(release.extra["ellipsoid"] / units)[0] >= 1.0

    errors, covered = study(one, trials, seed, max(1, 3_000_000 // (n * d)))
    return np.asarray(errors), float(np.mean(covered)), rounds[0]


def sample_errors(trials: int, n: int, d: int, seed: int = 0) -> np.ndarray:
    """The second moment itself, without privacy."""

    def one(key: jax.Array) -> jax.Array:
        x = jax.random.normal(jax.random.split(key)[0], (n, d))
        return jnp.linalg.norm(x.T @ x / n - jnp.eye(d))

    return np.asarray(study(one, trials, seed, max(1, 3_000_000 // (n * d))))


def show(errors: Any) -> str:
    mean, se = trimmed(errors)
    return f"{mean:.3g} ± {se:.1g}"


def figures(args: argparse.Namespace) -> None:
    d, rho = 10, 0.5
    bounds = dp.Bounds.spectrum(1.0, 10.0 * d**0.5)
    print(f"d = {d}, Sigma = I, K = 10 sqrt(d), rho = {rho}, {args.trials} trials, mean zero, practical constants\n")
    print("| n | rounds | sgw | goe | published (n = 3000) |\n|---|---|---|---|---|")
    for n in args.n:
        known = PUBLISHED if n == 3000 else {}
        print(f"| {n} | not private | {show(sample_errors(args.trials, n, d))} | | {known.get(0, '')} |", flush=True)
        for t in range(1, 6):
            found = []
            for noise in ("sgw", "goe"):
                config = dp.CoinPressConfig(rounds=t, noise=noise, center="zero")
                found.append(covariance_errors(args.trials, n, np.ones(d), bounds, rho, config)[0])
            print(f"| {n} | {t} | {show(found[0])} | {show(found[1])} | {known.get(t, '')} |", flush=True)


def mean_errors(trials: int, n: int, d: int, radius: float, rho: float, config: Any) -> tuple[np.ndarray, float, int]:
    """l2 errors, the share of covering balls, and the rounds, for mu = 0 and Sigma = I."""
    bounds = dp.Bounds.spectrum(1.0, 1.0, mean_radius=radius)
    rounds: list[int] = []

    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        data_key, key = jax.random.split(key)
        x = jax.random.normal(data_key, (n, d))
        release = dp.coinpress_mean(key, x, dp.ZCDP(rho), bounds, config=config)
        rounds.append(release.config.rounds)
        error = jnp.linalg.norm(release.mean)
        return error, error <= release.extra["radius"]

    errors, covered = study(one, trials, 1, max(1, 3_000_000 // (n * d)))
    return np.asarray(errors), float(np.mean(covered)), rounds[0]


def mean(args: argparse.Namespace) -> None:
    n, d, rho = 1000, 50, 0.5
    print(f"d = {d}, mu = 0, R = 10 sqrt(d), rho = {rho}, n = {n}, {args.trials} trials, practical constants\n")
    print("| rounds | error | published |\n|---|---|---|")
    for t in range(1, 5):
        errors = mean_errors(args.trials, n, d, 10.0 * d**0.5, rho, dp.CoinPressConfig(rounds=t))[0]
        print(f"| {t} | {show(errors)} | {PUBLISHED_MEAN[t]} |", flush=True)


def radius(args: argparse.Namespace) -> None:
    n, d, rho = 1000, 10, 0.5
    print(f"Mean, d = {d}, n = {n}, rho = {rho}, {args.trials} trials; not private: {(d / n) ** 0.5:.3f}\n")
    print("| R | practical | rounds | theory | rounds | covered |\n|---|---|---|---|---|---|")
    for r in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6):
        practical, theory = (
            mean_errors(args.trials, n, d, r, rho, dp.CoinPressConfig(constants=c)) for c in ("practical", "theory")
        )
        print(
            f"| {r:g} | {show(practical[0])} | {practical[2]} | {show(theory[0])} | {theory[2]} | {theory[1]:.3f} |",
            flush=True,
        )


def sweep(args: argparse.Namespace) -> None:
    print(
        f"rho = 0.5, n = 10000, d = 10, K = 10 sqrt(d), mean zero where not said; {args.trials} trials, beta = 0.05\n"
    )
    print("| setting | not private | practical | rounds | theory | rounds | covered |\n|---|---|---|---|---|---|---|")
    settings: list[tuple[str, str, dict[str, Any]]] = [
        *(("range", f"K = {k:g} sqrt(d)", {"ratio": k * 10**0.5}) for k in (1e0, 1e1, 1e2, 1e3, 1e4)),
        *(("size", f"d = {d}", {"d": d, "ratio": 10 * d**0.5}) for d in (2, 10, 100)),
        *(("budget", f"rho = {rho:g}", {"rho": rho}) for rho in (0.01, 0.1, 0.5, 1.0, 10.0)),
        ("spectrum", "half the eigenvalues 1e4", {"std": np.repeat([1.0, 100.0], 5), "ratio": 1e4}),
        ("spectrum", "log-uniform over 1e4", {"std": np.logspace(0, 2, 10), "ratio": 1e4}),
        *(("tails", f"Student t, {f} degrees", {"freedom": f}) for f in (5.0, 3.0)),
    ]
    for what, name, changed in settings:
        if what not in args.what:
            continue
        d = changed.get("d", 10)
        std = changed.get("std", np.ones(d))
        bounds = dp.Bounds.spectrum(1.0, changed.get("ratio", 10 * d**0.5))
        rows = gaussian
        if "freedom" in changed:

            def rows(key: jax.Array, n: int, std: jax.Array, f: float = changed["freedom"]) -> jax.Array:
                return student(key, n, std, f)

        practical, theory = (
            covariance_errors(
                args.trials,
                10_000,
                std,
                bounds,
                changed.get("rho", 0.5),
                dp.CoinPressConfig(constants=c, center="zero"),
                rows,
            )
            for c in ("practical", "theory")
        )
        plain = show(sample_errors(args.trials, 10_000, d))
        print(
            f"| {name} | {plain} | {show(practical[0])} | {practical[2]} "
            f"| {show(theory[0])} | {theory[2]} | {theory[1]:.3f} |",
            flush=True,
        )


def faults(args: argparse.Namespace) -> None:
    """The published order of A and its |Z|, by the slow emulation of the tests, beside the published values."""
    import pathlib
    import sys

    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
    from tests.reference import coinpress as reference

    n, d, rho = 3000, 10, 0.5
    rng = np.random.default_rng(0)
    print(f"d = {d}, Sigma = I, K = 10 sqrt(d), rho = {rho}, n = {n}, {args.trials} trials, sgw\n")
    print("| rounds | emulated faults | published |\n|---|---|---|")
    for t in range(1, 6):
        rhos = [rho] if t == 1 else [rho / 4 / (t - 1)] * (t - 1) + [0.75 * rho]
        errors = []
        for _ in range(args.trials):
            upper = [np.triu(rng.normal(size=(d, d))) for _ in range(t)]
            draws = [u + np.triu(u, 1).T for u in upper]
            found = reference.published_covariance(rng.normal(size=(n, d)), 10 * d**0.5, rhos, draws)
            errors.append(np.linalg.norm(found - np.eye(d)))
        print(f"| {t} | {show(errors)} | {PUBLISHED[t]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = {"figures": figures, "mean": mean, "radius": radius, "sweep": sweep, "faults": faults}
    parser.add_argument("study", choices=studies)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--n", type=int, nargs="+", default=[3000, 4000, 5000, 6000, 7000, 8000])
    kinds = ["range", "size", "budget", "spectrum", "tails"]
    parser.add_argument("--what", nargs="+", choices=kinds, default=kinds)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    studies[args.study](args)


if __name__ == "__main__":
    main()
