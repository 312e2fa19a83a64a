"""Errors of `product_mean` and `learn_product` beside one Gaussian mechanism on the mean, and the rounds of the paper.

    python bench/accuracy/product.py [--trials 20] [--rounds-rows 300000]

Rows of 0 and 1 with independent columns (others where it says so); writes docs/results/product.md and its plot. Every
method sees the same rows. What the numbers in `product_mean` and `learn_product` were fitted on is said at the end.
"""

import argparse
import datetime
import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdpcov as dp
from jaxdpcov import metrics
from jaxdpcov.mechanisms.product.result import floor

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
UNIT = dp.Bounds.box(0.0, 1.0)
SIZES = (10, 100, 1000)
METHODS = ("sample", "one Gaussian", "theory", "practical")
COLOURS = {"sample": "0.6", "one Gaussian": "C0", "theory": "C5", "practical": "C1"}
Draw = Callable[[np.random.Generator, int], np.ndarray]

HEAD = """# Product distributions: `product_mean` and `learn_product`

`python bench/accuracy/product.py`, {versions}, float64; means over {trials} trials.

`l2` is the l2 error of the means, in u (columns in [0, 1]), of `product_mean`. `TV` is a bound on the total variation
distance from the true product distribution (`metrics.product_total_variation_bound`), of `learn_product`. "sample" is
the mean of the rows, not private. "one Gaussian" is the Gaussian mechanism on that mean, of sensitivity sqrt(d)/n, the
baseline; it is clipped to [0, 1] for `l2` and to the floor of `learn_product` for `TV`. "theory" and "practical" are
the two presets. "theory" has the rounds and the constants of Kamath, Li, Singhal and Ullman (2019), with noise for the
sensitivity min(sqrt(2) B, sqrt(|S|)) in place of the paper's B, which is no bound.
"""

WHY = """
A block of "theory" has n/(R + 1) rows, and truncation lowers its noise only where 12 u log(m R/(alpha beta)) < 1. Its
last noise is below that of one Gaussian mechanism where (R + 1) sqrt(12 log(m/(alpha beta))) < sqrt(d): from some
40,000 columns on. With fewer it was the worse of the two at every n tried here; its theorem asks for far more rows than
these, and the status says so. "practical" asks all rows in each of its two rounds, at shares of the budget, and both
measurements count. Where all means are near 1/2 nothing can be gained, and its choice of a radius costs it two percent.
It loses where its weights mislead: rows that are no product and too few to tell (one row in 50 at n = 2000, in TV).
"""

TUNED = """
## What was fitted

On log-uniform means between 1/d and 1/2 (half of them flipped), Beta(0.3, 0.3), means of 0.1 and 0.9, a twentieth or
a fifth of the columns at 0.3 to 0.4 among rare ones, and rows a few of which hold all there is; d = 10, 100 and 1000,
n = 1000 to 100,000, rho from 0.02 to 1, 12 to 40 trials, TV by the bound sqrt(chi^2/2). Sparse, balanced and mixed
means and "one row in 50" were looked at too: the floor was chosen with these in view, and how mass is counted and
which radii are on offer were changed after the last three had shown a fault of the first form. Zipf means, those in
even steps and the Beta rows were looked at in the report alone. The first two and the third round were tried in that
first form.

- Share of the first look, 0.2: 0.15 to 0.4 are within 5% of each other on most.
- Share of the rest that chooses the radius, 0.04: 0.01 to 0.08 within 5% on most.
- Cost of a unit of mass that truncation takes away, 0.5: 1 is about 5% worse, 2 about 10%.
- Noise of the choice, 0.3 of the least loss expected, which sets how much mass one row may count for: 0.1 to 0.35
  differ by less than 10% on most products (with few large means among rare ones 0.1 is up to a third better in TV).
  Where a few rows hold all the mass 0.1 has up to nine times the error of one Gaussian mechanism, 0.2 up to 2.4
  times, 0.35 at most 1.33 times in the same places; with too few rows all have.
- Radii on offer: those that are predicted to gain at least what the choice can tell apart, twice its sensitivity over
  epsilon. With all of them on offer one release in a hundred of balanced means had two and a half times the error; a
  multiple of 3 takes away what is gained on some.
- Rounds: a third one (shares 0.15, 0.2 and the rest) was from 20% better to 40% worse, and the same on most.
- Floor of `learn_product`, 1.5 standard deviations: 0.5 is up to 60% worse; 3 is up to a third better on some and
  nearly twice as bad on others.
"""


def versions() -> str:
    named = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy"))
    return f"{datetime.date.today()}, {named}"


def populations(d: int) -> dict[str, np.ndarray]:
    """Means by name (d,)."""
    half = np.arange(d) < d // 2
    return {"sparse": np.full(d, 1 / d), "balanced": np.full(d, 0.5), "mixed": np.where(half, 1 / d, 0.5)}


def bernoulli(p: np.ndarray) -> Draw:
    return lambda rng, n: (rng.random((n, len(p)), np.float32) < p).astype(float)


def others(d: int) -> dict[str, tuple[np.ndarray, Draw]]:
    """(means, rows) by name: means of a Zipf law, and rows that are no product or not of 0 and 1."""
    zipf = 0.5 / np.arange(1.0, d + 1.0)
    ladder = np.linspace(0.0, 1.0, d)
    rare = np.full(d, 0.02)

    def together(rng: np.random.Generator, n: int) -> np.ndarray:
        """One row in 50 has half of the columns, all others none: means 0.01, norms far apart."""
        return ((rng.random((n, 1)) < 0.02) & (rng.random((n, d)) < 0.5)).astype(float)

    return {
        "Zipf, 1/(2j)": (zipf, bernoulli(zipf)),
        "from 0 to 1 in even steps": (ladder, bernoulli(ladder)),
        "one row in 50 has half of the columns": (np.full(d, 0.01), together),
        "Beta(0.1, 4.9), not 0/1": (rare, lambda rng, n: rng.beta(0.1, 4.9, (n, d))),
    }


def total_variation(q: Any, p: np.ndarray) -> float:
    return float(metrics.product_total_variation_bound(jnp.asarray(q), jnp.asarray(p)))


@functools.cache
def program(learn: bool, constants: str) -> Callable[..., Any]:
    function = dp.learn_product if learn else dp.product_mean
    config = dp.ProductConfig(constants=constants)
    return jax.jit(lambda key, x, rho: function(key, x, dp.ZCDP(rho), UNIT, config=config).mean)


def errors(p: np.ndarray, draw: Draw, n: int, rho: float, trials: int, seed: int) -> dict[str, np.ndarray]:
    """method -> (trials, 2): l2 error and TV bound."""
    found: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    d = len(p)
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial, n, d])
        x = draw(rng, n)
        keys = jax.random.split(jax.random.key(trial), 4)
        std = np.sqrt(d / (2.0 * rho)) / n
        noisy = x.mean(0) + std * rng.normal(size=d)
        for method, mean, noise in (("sample", x.mean(0), 0.0), ("one Gaussian", noisy, std)):
            least = np.asarray(floor(jnp.full(d, noise), jnp.asarray(float(n))))
            q = np.clip(mean, least, 1.0 - least)
            found[method].append((float(np.linalg.norm(np.clip(mean, 0.0, 1.0) - p)), total_variation(q, p)))
        for i, constants in enumerate(("theory", "practical")):
            mean, q = (program(learn, constants)(keys[2 * i + learn], x, rho) for learn in (False, True))
            found[constants].append((float(np.linalg.norm(mean - p)), total_variation(q, p)))
    return {method: np.array(each) for method, each in found.items()}


def cell(values: np.ndarray) -> str:
    return f"{values.mean():.3g} ± {values.std(ddof=1) / len(values) ** 0.5:.1g}"


def table(found: dict[str, dict[str, np.ndarray]], first: str) -> list[str]:
    """Both errors by method, and those of "practical" over the baseline."""
    lines = []
    for at, name in enumerate(("l2", "TV")):
        lines += [f"| {first} | {' | '.join(f'{name}, {method}' for method in METHODS)} | practical / one Gaussian |"]
        lines += ["|" + "---|" * (len(METHODS) + 2)]
        for where, by in found.items():
            ratio = by["practical"][:, at].mean() / by["one Gaussian"][:, at].mean()
            lines += [f"| {where} | {' | '.join(cell(by[method][:, at]) for method in METHODS)} | {ratio:.2f} |"]
        lines += [""]
    return lines


def rounds(d: int, n: int, rho: float) -> list[str]:
    """How many columns each round of "theory" has, by population; rows come in blocks, as a file has them."""
    lines = []
    for name, p in populations(d).items():

        def blocks(p: np.ndarray = p) -> Iterator[np.ndarray]:
            rng = np.random.default_rng([7, d])
            for start in range(0, n, 20_000):
                yield rng.random((min(20_000, n - start), d), np.float32) < p

        rows = dp.Rows.chunked(blocks, d=d, n=n, block_rows=20_000)
        config = dp.ProductConfig(constants="theory")
        made = dp.product_mean(jax.random.key(0), rows, dp.ZCDP(rho), UNIT, config=config)
        final, left = np.asarray(made.extra["final_round"]), np.asarray(made.extra["columns_left"])
        u = np.where(final > 0, 0.5**final, 0.0)
        last = final.max()
        # Right: final in round r with a mean within [u/4, u]; measured last with one of at most twice its u.
        wrong = np.sum((p > 2.0 * u) | ((p < u / 4.0) & (final < last)))
        asked = ", ".join(f"{size}" for size in left)
        lines += [f"| {name} | {d} | {n} | {rho:g} | {asked} | {wrong} | {np.linalg.norm(made.mean - p):.3g} |"]
        print(lines[-1], flush=True)
    return lines


def plot(found: dict[str, dict[str, dict[str, np.ndarray]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey="row")
    for column, (name, by_size) in enumerate(found.items()):
        for row, title in enumerate(("l2 error of the means", "bound on total variation")):
            panel = axes[row, column]
            for method in METHODS:
                values = [by[method][:, row] for by in by_size.values()]
                means, errs = [v.mean() for v in values], [2 * v.std(ddof=1) / len(v) ** 0.5 for v in values]
                style = ":" if method == "sample" else "-"
                panel.errorbar(SIZES, means, errs, fmt=f"o{style}", color=COLOURS[method], ms=3.5, lw=1.3, label=method)
            panel.set(xscale="log", yscale="log")
            panel.grid(True, which="major", alpha=0.25, lw=0.5)
            if row == 0:
                panel.set_title(f"{name} means", fontsize=10)
            else:
                panel.set_xlabel("columns d")
                panel.axhline(1.0, color="0.8", lw=0.8)
            if column == 0:
                panel.set_ylabel(title)
    axes[0, 0].legend(fontsize=8, frameon=False)
    figure.savefig(RESULTS / "product.png", dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds-rows", type=int, default=300_000, help="rows of the table of rounds")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    n, rho = 10_000, 0.5
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for d in SIZES:
        for name, p in populations(d).items():
            by = errors(p, bernoulli(p), n, rho, args.trials, 1)
            found.setdefault(name, {})[f"{name}, d = {d}"] = by
            shown = {method: [round(float(v), 4) for v in each.mean(0)] for method, each in by.items()}
            print(name, d, shown, flush=True)
    plot(found)
    lines = [HEAD.format(versions=versions(), trials=args.trials)]
    lines += [f"## n = {n}, rho = {rho}", "", "![errors over the number of columns](product.png)", ""]
    lines += table({where: by for each in found.values() for where, by in each.items()}, "means")
    lines += [WHY.strip(), ""]
    for d, n, rho in ((100, 2000, 0.1), (100, 100_000, 0.02)):
        lines += [f"## d = {d}, n = {n}, rho = {rho:g}", ""]
        sets = {name: (p, bernoulli(p)) for name, p in populations(d).items()} | others(d)
        by_set = {name: errors(p, draw, n, rho, args.trials, 2) for name, (p, draw) in sets.items()}
        print({name: {m: each.mean(0).round(4).tolist() for m, each in by.items()} for name, by in by_set.items()})
        lines += table(by_set, "rows")
    lines += [
        "## The rounds of the paper",
        "",
        'How many columns each block of "theory" is asked for. Round r has columns of means at most u = 2^-r; those',
        "with a noisy mean below (3/8) u go on. Blocks left over, the last one at least, ask for what is left.",
        '"wrong" counts columns that are final in round r with a mean outside of [u/4, u], or left with one above.',
        "",
        "| means | d | n | rho | columns asked for, by block | wrong | l2 error |",
        "|---|---|---|---|---|---|---|",
    ]
    for d in SIZES:
        lines += rounds(d, args.rounds_rows, 10.0)
    lines += [TUNED.rstrip()]
    (RESULTS / "product.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
