"""Do intervals from a release's own noise hold what they should, and are found edges real? Writes docs/results.

    python bench/accuracy/intervals.py [--releases 2000]

Coverage of 95% intervals over releases of many mechanisms, and the false-discovery rate of edges on sparse Gaussian
graphs. Minutes on two cores.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdpcov as dp
from jaxdpcov.apps import intervals, inverses

OUT = Path(__file__).resolve().parents[2] / "docs" / "results" / "intervals.md"
LEVEL, N, D = 0.95, 1000, 4
BOX = dp.Bounds.box(-1.0, 1.0)


def off_centre(n: int = N) -> np.ndarray:
    """Rows in [-1, 1]^d away from 0, so that the mean's noise counts, with columns that go together."""
    u = np.random.default_rng(0).uniform(0.0, 1.0, (n, D))
    return np.stack([u[:, 0], np.maximum(u[:, 0], u[:, 1]), 0.5 * u[:, 2] - 1.0, 2.0 * u[:, 3] - 1.0], axis=1)


def signs(n: int = N) -> np.ndarray:
    """Rows of one norm, which no private radius at or above it clips."""
    z = np.random.default_rng(1).normal(size=(n, D)) + 0.3
    z[:, 1] += z[:, 0]
    return np.sign(z)


def normal(key: Any, n: int, root: Any) -> Any:
    """Fresh Gaussian rows of covariance root root^T."""
    return jnp.matmul(jax.random.normal(key, (n, root.shape[0])), root.T)


def chain(d: int, weight: float) -> np.ndarray:
    """Root of the covariance whose precision joins neighbours in a chain alone; variances about 0.15^2."""
    precision = np.eye(d) + weight * (np.eye(d, k=1) + np.eye(d, k=-1))
    covariance = np.linalg.inv(precision)
    return 0.15 * np.linalg.cholesky(covariance / np.mean(np.diag(covariance)))


def cases() -> Iterator[tuple[str, str, Callable[[Any, Any], Any], np.ndarray]]:
    """Name, what its own value is, the mechanism, and its rows."""
    x = off_centre()
    zcdp, pure = dp.ZCDP(0.5), dp.PureDP(4.0)
    for relation in ("replace", "add_remove"):
        for center in ("private", "zero"):
            about: dict[str, Any] = {"relation": relation, "center": center, "psd": "none"}
            label = f"{relation}, center={center}"

            def gaussian(key: Any, rows: Any, about: Any = about) -> Any:
                return dp.gaussian(key, rows, zcdp, BOX, config=dp.GaussianConfig(**about))

            def laplace(key: Any, rows: Any, about: Any = about) -> Any:
                return dp.laplace(key, rows, pure, BOX, config=dp.LaplaceConfig(**about))

            yield f"`gaussian`, {label}", center, gaussian, x
            yield f"`laplace`, {label}", center, laplace, x
    ball = dp.Bounds.l2(2.0)
    yield "`gaussian`, l2 bounds", "private", lambda key, rows: dp.gaussian(key, rows, zcdp, ball), x
    yield "`diagonal`", "private", lambda key, rows: dp.diagonal(key, rows, zcdp, BOX), x
    yield "`ssp_select`", "private", lambda key, rows: dp.ssp_select(key, rows, zcdp, BOX), x
    yield "`adaptive`, rows of one norm", "private", lambda key, rows: dp.adaptive(key, rows, zcdp, BOX), signs()
    yield "`auto`, rows of one norm", "private", lambda key, rows: dp.auto(key, rows, zcdp, BOX), signs()


def held(found: Any, truth: np.ndarray) -> np.ndarray:
    """Shares of a batch of intervals that hold the truth, of those that are not NaN; NaN where all are."""
    lower, upper = np.asarray(found.lower), np.asarray(found.upper)
    known = np.sum(~np.isnan(lower), axis=0)
    return np.where(known == 0, np.nan, np.sum((lower <= truth) & (truth <= upper), axis=0) / np.maximum(known, 1))


def entry(shares: np.ndarray) -> str:
    """Least, mean and largest share in per cent."""
    upper = shares[np.triu_indices(len(shares))] if shares.ndim == 2 else shares
    low, mean, high = (100 * f(upper) for f in (np.nanmin, np.nanmean, np.nanmax))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def own_values(releases: int) -> list[str]:
    lines = ["| release | covariances | means |", "|---|---|---|"]
    keys = jax.random.split(jax.random.key(0), releases)
    for name, center, mechanism, x in cases():

        def one(key: Any, mechanism: Any = mechanism, x: Any = x, center: str = center) -> Any:
            release = mechanism(key, jnp.asarray(x))
            mean = intervals.mean_interval(release, LEVEL) if center == "private" else None
            return intervals.covariance_interval(release, LEVEL), mean

        covariances, means = jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(keys)
        truth = np.cov(x.T, ddof=0) if center == "private" else x.T @ x / len(x)
        mean = entry(held(means, x.mean(axis=0))) if means is not None else ""
        lines.append(f"| {name} | {entry(held(covariances, truth))} | {mean} |")
        print(lines[-1], flush=True)
    return lines


def population(releases: int) -> list[str]:
    lines = ["| statistic | n = 200, rho = 2,000 | n = 2,000, rho = 20 | n = 2,000, rho = 1 |", "|---|---|---|---|"]
    root = chain(D, 0.4)
    truth = root @ root.T
    inverse = np.linalg.inv(truth)
    partial = -inverse / np.sqrt(np.outer(np.diag(inverse), np.diag(inverse)))
    np.fill_diagonal(partial, 1.0)
    wanted = {
        "covariances": (intervals.covariance_interval, truth),
        "means": (intervals.mean_interval, np.zeros(D)),
        "precision": (inverses.precision_interval, inverse),
        "partial correlations": (inverses.partial_correlation_interval, partial),
    }
    shares: dict[str, list[str]] = {name: [] for name in wanted}
    for n, rho in ((200, 2e3), (2000, 20.0), (2000, 1.0)):

        def one(key: Any, n: int = n, rho: float = rho) -> Any:
            first, second = jax.random.split(key)
            release = dp.gaussian(
                first, normal(second, n, jnp.asarray(root)), dp.ZCDP(rho), BOX, config=dp.GaussianConfig(psd="none")
            )
            return {name: function(release, LEVEL, population=True) for name, (function, _) in wanted.items()}

        found = jax.jit(lambda keys, one=one: jax.lax.map(one, keys))(jax.random.split(jax.random.key(1), releases))
        for name, (_, value) in wanted.items():
            share = held(found[name], value)
            if name == "partial correlations":
                share = share[np.triu_indices(D, 1)]
            shares[name].append(entry(share))
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in shares.items()]
    print("\n".join(lines), flush=True)
    return lines


def discoveries(releases: int) -> list[str]:
    lines = [
        "| n | rho | level | false-discovery rate, `bh` | `by` | edges found, `bh` | releases with trusted noise |",
        "|---|---|---|---|---|---|---|",
    ]
    d = 8
    root = jnp.asarray(chain(d, 0.35))
    program = jax.jit(
        lambda keys, rho, n: jax.lax.map(
            lambda key: dp.gaussian(
                key[0], normal(key[1], n, root), dp.ZCDP(rho), BOX, config=dp.GaussianConfig(psd="none")
            ),
            keys,
        ),
        static_argnums=2,
    )
    for n, rho in ((2000, 1.0), (2000, 4.0), (2000, 100.0), (20_000, 0.1)):
        keys = jax.vmap(jax.random.split)(jax.random.split(jax.random.key(2), releases))
        made = jax.tree.map(np.asarray, program(keys, rho, n))
        singles = [jax.tree.map(lambda leaf, i=i: leaf[i], made) for i in range(releases)]
        for level in (0.05, 0.2):
            rates: dict[str, float] = {}
            power, trusted = 0.0, 0
            for method in ("bh", "by"):
                false = []
                for single in singles:
                    found = inverses.edges(single, level, method=method)
                    wrong = [abs(int(e.first[1:]) - int(e.second[1:])) != 1 for e in found]
                    false.append(np.mean(wrong) if wrong else 0.0)
                    if method == "bh":
                        power += (len(wrong) - sum(wrong)) / (d - 1) / releases
                rates[method] = float(np.mean(false))
                rates[method + "_error"] = float(np.std(false) / releases**0.5)
            trusted = sum(
                bool(np.isfinite(np.asarray(inverses.precision_interval(single).std)[0, 0])) for single in singles
            )
            cells = [f"{rates[m]:.3f} +- {rates[m + '_error']:.3f}" for m in ("bh", "by")]
            lines.append(
                f"| {n:,} | {rho:g} | {level:g} | {cells[0]} | {cells[1]} | {100 * power:.0f}% "
                f"| {100 * trusted / releases:.0f}% |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=2000)
    releases = parser.parse_args().releases
    jax.config.update("jax_enable_x64", True)
    error = 100 * (LEVEL * (1 - LEVEL) / releases) ** 0.5
    text = [
        "# Intervals and edges from the known noise",
        "",
        f"`python bench/accuracy/intervals.py`, {releases:,} releases a line, jaxdpcov {dp.__version__}, "
        f"jax {jax.__version__}. Shares of 95% intervals that hold the truth, in per cent: the mean over entries "
        f"(least to largest). One share has a standard error of {error:.1f}, the mean of ten independent ones "
        f"{error / 10**0.5:.2f}.",
        "",
        "## The rows' own values: noise alone",
        "",
        f"{N:,} rows of {D} columns in [-1, 1], away from 0 so that the mean's noise counts; rho = 0.5, or epsilon = 4 "
        "for `laplace`. With center=zero the value is the second moment about the public centre.",
        "",
        *own_values(releases),
        "",
        "## The population: noise and sampling",
        "",
        f"`gaussian` on fresh Gaussian rows for each release, {D} columns of standard deviation 0.15 or so in [-1, 1], "
        "with noise of a size with the sampling error, and in the last column several times that. "
        "Of the intervals of inverses those that are given count.",
        "",
        *population(releases),
        "",
        "## Edges",
        "",
        "`edges` on fresh rows of a Gaussian chain of 8 columns: 7 partial correlations of -0.35, 21 of 0. Mean share "
        "of false edges among those found +- its standard error (0 where none is found), and the share of the 7 found. "
        "Where the smallest eigenvalue as measured is below half the edge of the noise's spectrum none is reported.",
        "",
        *discoveries(min(releases, 1000)),
        "",
    ]
    OUT.write_text("\n".join(text))


if __name__ == "__main__":
    main()
