"""Speed and memory of CoinPress against the bare products its rounds need; one table of ratios in one run.

A round needs one product X A^T and one W^T W: the base is three times both, made in the same blocks of rows, for three
rounds.

    python bench/coinpress.py [--rows 1000000] [--columns 50] [--repeats 9] [--save]

--save writes what is printed to docs/results/data/coinpress_speed.txt too, for the page that
bench/accuracy/coinpress.py makes.
"""

import argparse
import contextlib
import io
from pathlib import Path

import jax
import jax.numpy as jnp
from _timing import best_times, first_call, peak_growth_mib, print_ratios

import jaxdpcov as dp

ROUNDS = 3
SAVED = Path(__file__).resolve().parents[1] / "docs" / "results" / "data" / "coinpress_speed.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--save", action="store_true")
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

    candidates = {
        base: lambda: passes(bare["whole"]),
        "the same in blocks of rows": lambda: passes(bare["blocks"]),
        "coinpress_covariance, center=zero": lambda: dp.coinpress_covariance(key, rows, budget, bounds, config=zero),
        "coinpress_covariance, pairs": lambda: dp.coinpress_covariance(key, rows, budget, bounds, config=pairs),
        "coinpress_mean": lambda: dp.coinpress_mean(key, rows, budget, bounds, config=zero),
        "coinpress_gaussian": lambda: dp.coinpress_gaussian(key, rows, budget, bounds, config=pairs),
    }
    where = f"{jax.devices()[0].platform}, jax {jax.__version__}"
    print(f"rows {args.rows} x {args.columns} float64, {ROUNDS} rounds, {where}")
    print("first call, compilation included (s):")
    for name, run in candidates.items():
        print(f"  {name}: {first_call(run):.2f}")
    print_ratios(best_times(candidates, args.repeats), base)
    print("memory beyond the input (MiB): XLA's temporary buffers, and the rise of resident memory during a warm run")
    programs = {
        "coinpress_covariance, center=zero": zero,
        "coinpress_covariance, pairs": pairs,
    }
    for name, config in programs.items():
        program = jax.jit(lambda x, c=config: dp.coinpress_covariance(key, x, budget, bounds, config=c).covariance)
        temporary = program.lower(rows).compile().memory_analysis().temp_size_in_bytes / 2**20
        print(f"  {name}: {temporary:.1f}, {peak_growth_mib(candidates[name]):.1f}")


if __name__ == "__main__":
    main()
