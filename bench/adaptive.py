"""Speed of `adaptive`: one release of many rows against bare clipped second moments, many releases from a level table.

    python bench/adaptive.py [--rows 1000000] [--columns 50] [--table-rows 10000] [--releases 1000] [--repeats 9]

Prints what it does and writes docs/results/adaptive-speed.md. Rows are normal, of root mean square norm 0.25 of the
bound, moments about zero.
"""

import argparse
import os
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _timing import best_times, ratio_table

import jaxdpcov as dp

KEY, BUDGET, BALL = 0, dp.ZCDP(0.5), dp.Bounds.l2(1.0)
FORMS = {
    "adaptive": dp.AdaptiveConfig(center="zero"),
    "adaptive, paper": dp.AdaptiveConfig(center="zero", noise="sgw", constants="paper", psd="project"),
}


def sample(n: int, d: int) -> jax.Array:
    return jax.block_until_ready(0.25 / d**0.5 * jax.random.normal(jax.random.key(1), (n, d), jnp.float64))


def clipped_second(x: jax.Array) -> jax.Array:
    norms = jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True))
    w = x * jnp.minimum(1.0, 0.25 / norms)
    return jnp.matmul(w.T, w, precision="highest")


def in_blocks(x: jax.Array) -> jax.Array:
    """The same in blocks of rows that stay in cache, what is over apart."""
    n, d = x.shape
    size = min(n, max(64, 400_000 // d))

    def at(i: Any, total: jax.Array) -> jax.Array:
        return total + clipped_second(jax.lax.dynamic_slice(x, (i * size, 0), (size, d)))

    total = jax.lax.fori_loop(0, n // size, at, jnp.zeros((d, d), x.dtype))
    return total + clipped_second(x[n // size * size :])


def one_release(n: int, d: int, repeats: int) -> list[str]:
    x = sample(n, d)
    matrix = x.T @ x
    pair = jnp.stack([matrix, matrix + jnp.eye(d)])
    whole, blocks, two = jax.jit(clipped_second), jax.jit(in_blocks), jax.jit(jnp.linalg.eigh)
    base = "a bare clipped second moment"
    candidates = {
        base: lambda: whole(x),
        "the same in blocks of rows": lambda: blocks(x),
        f"two eigh of {d} x {d}": lambda: two(pair),
        **{
            name: lambda config=config: dp.adaptive(jax.random.key(KEY), x, BUDGET, BALL, config=config)
            for name, config in FORMS.items()
        },
    }
    best = best_times(candidates, repeats, time.process_time)
    passes = {name: (best[name] - best[f"two eigh of {d} x {d}"]) / best[base] for name in FORMS}
    return [
        f"## One release of {n:,} x {d} rows in float64",
        "",
        *ratio_table(best, base),
        "",
        f"Passes' worth beyond the two eigh: {', '.join(f'{name} {each:.2f}' for name, each in passes.items())} "
        "(two are read: masses by norm, then the clipped second moment).",
        "",
    ]


def mentions(program: Any, n: int) -> bool:
    """Whether an array of a compiled program has a dimension of n."""
    shapes = re.findall(r"\[([\d,]+)\]", program.as_text())
    return any(n in map(int, shape.split(",")) for shape in shapes)


def many_releases(n: int, d: int, releases: int, repeats: int) -> list[str]:
    x = sample(n, d)
    rows = dp.Rows.array(x)
    keys = jax.random.split(jax.random.key(KEY), releases)
    noisy = x.T @ x / n + 0.01 * jax.random.normal(jax.random.key(2), (releases, d, d))
    noisy = 0.5 * (noisy + noisy.mT)

    def lanes(keys: jax.Array, home: Any, config: Any) -> jax.Array:
        def one(key: jax.Array) -> jax.Array:
            return dp.adaptive(key, home, BUDGET, BALL, config=config).covariance

        return jax.lax.map(one, keys, batch_size=20)

    def eigh(matrices: jax.Array) -> Any:
        return jax.lax.map(jnp.linalg.eigh, matrices, batch_size=20)

    table = rows.level_moments(BALL)
    base = f"{releases:,} bare eigh"
    programs = {
        "from the table": jax.jit(lanes).lower(keys, table, FORMS["adaptive"]).compile(),
        "from the rows": jax.jit(lanes).lower(keys, rows, FORMS["adaptive"]).compile(),
    }
    bare = jax.jit(eigh)
    best = best_times(
        {
            base: lambda: bare(noisy),
            "the table, from the rows": lambda: jax.tree_util.tree_leaves(rows.level_moments(BALL)),
            f"{releases:,} releases from the table": lambda: programs["from the table"](keys, table, FORMS["adaptive"]),
            f"{releases:,} releases from the rows": lambda: programs["from the rows"](keys, rows, FORMS["adaptive"]),
        },
        repeats,
        time.process_time,
    )
    found = {name: mentions(program, n) for name, program in programs.items()}
    says = {True: "arrays", False: "no array"}
    return [
        f"## {releases:,} releases of {n:,} x {d} rows in float64",
        "",
        *ratio_table(best, base),
        "",
        f"The compiled program of the releases from the table has {says[found['from the table']]} with a dimension of "
        f"{n:,}, so that no pass over rows is left in it; that from the rows has {says[found['from the rows']]} of it. "
        f"The table holds {table.moments.first.shape[0]} radii with the spectra of their second moments, so that a "
        "release takes one eigh, of the noisy second moment.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--table-rows", type=int, default=10_000)
    parser.add_argument("--releases", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    few = max(3, args.repeats // 3)
    lines = [
        "# Speed of adaptive",
        "",
        f"CPU time of all cores together, the smallest of {args.repeats} interleaved runs ({few} of many releases), "
        f"without compilation; ratios within one run of the script. Written by `python bench/adaptive.py`; "
        f"jaxdpcov {dp.__version__}, jax {jax.__version__}, numpy {np.__version__}, {jax.devices()[0].platform} with "
        f"{os.cpu_count()} cores. Rows: normal, root mean square norm 0.25 of the bound; moments about zero.",
        "",
        *one_release(args.rows, args.columns, args.repeats),
        *many_releases(args.table_rows, args.columns, args.releases, few),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    folder = Path(__file__).parents[1] / "docs" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adaptive-speed.md").write_text(text)


if __name__ == "__main__":
    main()
