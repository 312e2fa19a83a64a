"""Speed and memory of CoinPress against the bare products its rounds need; one table of ratios in one run.

A round needs one product X A^T and one W^T W: the base is three times both, made in the same blocks of rows, for three
rounds.

    python bench/coinpress.py [--rows 1000000] [--columns 50] [--repeats 9] [--save]

--save writes what is printed to docs/results/data/coinpress_speed.txt too, for the page that
bench/accuracy/coinpress.py makes.
"""

import argparse
import contextlib
import functools
import io
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from _timing import best_times, peak_growth_mib, print_ratios

import jaxdpcov as dp

ROUNDS = 3
SAVED = Path(__file__).resolve().parents[1] / "docs" / "results" / "data" / "coinpress_speed.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", nargs="+", help="covariance, mean, gaussian or 'covariance, pairs'; all by default")
    args = parser.parse_args()
    if not args.save:
        return measure(args)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        measure(args)
    print(printed.getvalue(), end="")
    SAVED.parent.mkdir(parents=True, exist_ok=True)
    SAVED.write_text(printed.getvalue())


def measure(args: argparse.Namespace) -> None:
    """Print the table."""
    jax.config.update("jax_enable_x64", True)
    rows = jax.block_until_ready(jax.random.normal(jax.random.key(1), (args.rows, args.columns), jnp.float64))
    key, budget = jax.random.key(0), dp.ZCDP(0.5)
    bounds = dp.Bounds.spectrum(0.5, 500.0, mean_radius=100.0)
    zero = dp.CoinPressConfig(rounds=ROUNDS, center="zero")
    pairs = dp.CoinPressConfig(rounds=ROUNDS, mean_rounds=ROUNDS)

    def whole(x: jax.Array, a: jax.Array) -> jax.Array:
        w = jnp.matmul(x, a.T, precision="highest")
        return jnp.matmul(w.T, w, precision="highest")

    def blocks(x: jax.Array, a: jax.Array) -> jax.Array:
        size = max(64, 400_000 // args.columns)

        def at(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + whole(jax.lax.dynamic_slice(x, (i * size, 0), (size, args.columns)), a)

        return jax.lax.fori_loop(0, args.rows // size, at, jnp.zeros_like(a))

    a = jnp.eye(args.columns) + 0.01 * jax.random.normal(jax.random.key(2), (args.columns, args.columns))
    base = f"{ROUNDS} x (X A^T, W^T W)"
    bare = {name: jax.jit(program) for name, program in (("whole", whole), ("blocks", blocks))}

    def passes(program: object) -> list[jax.Array]:
        return [program(rows, a) for _ in range(ROUNDS)]  # type: ignore[operator]

    mechanisms = {
        "covariance": lambda x: dp.coinpress_covariance(key, x, budget, bounds, config=zero),
        "covariance, pairs": lambda x: dp.coinpress_covariance(key, x, budget, bounds, config=pairs),
        "mean": lambda x: dp.coinpress_mean(key, x, budget, bounds, config=zero),
        "gaussian": lambda x: dp.coinpress_gaussian(key, x, budget, bounds, config=pairs),
    }
    chosen = {name: mechanisms[name] for name in args.only or mechanisms}
    where = f"{jax.devices()[0].platform}, jax {jax.__version__}"
    print(f"rows {args.rows} x {args.columns} float64, {ROUNDS} rounds, {where}, best of {args.repeats}")
    # Compiled once, for times and for the size of the temporary buffers.
    compiled = {}
    for name, mechanism in chosen.items():
        start = time.perf_counter()
        compiled[name] = jax.jit(mechanism).lower(rows).compile()
        print(f"compilation, {name}: {time.perf_counter() - start:.1f} s")
    candidates = {
        base: lambda: passes(bare["whole"]),
        "the same in blocks of rows": lambda: passes(bare["blocks"]),
        **{name: functools.partial(program, rows) for name, program in compiled.items()},
    }
    print_ratios(best_times(candidates, args.repeats), base)
    print("memory beyond the input (MiB): XLA's temporary buffers, and the rise of resident memory during a warm run")
    for name, program in compiled.items():
        temporary = program.memory_analysis().temp_size_in_bytes / 2**20
        print(f"  {name}: {temporary:.1f}, {peak_growth_mib(candidates[name]):.1f}")


if __name__ == "__main__":
    main()
