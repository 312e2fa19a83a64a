"""Speed and memory of the noise-adding mechanisms against the bare passes they need; one table of ratios in one run.

python bench/speed.py [--rows 1000000] [--columns 50] [--repeats 9]
"""

import argparse

import jax
import jax.numpy as jnp
from _timing import best_times, first_call, peak_growth_mib, print_ratios

import jaxdpcov as dp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = jax.block_until_ready(jax.random.normal(jax.random.key(1), (args.rows, args.columns), jnp.float64))
    key, budget = jax.random.key(0), dp.ZCDP(0.5)
    ball, box = dp.Bounds.l2(7.0), dp.Bounds.box(-3.0, 3.0)
    moment = dp.GaussianConfig(center="zero")
    bare = jax.jit(lambda x: jnp.matmul(x.T, x, precision="highest"))

    candidates = {
        "x.T @ x": lambda: bare(rows),
        "gaussian l2, center=zero": lambda: dp.gaussian(key, rows, budget, ball, config=moment),
        "gaussian l2": lambda: dp.gaussian(key, rows, budget, ball),
        "gaussian box": lambda: dp.gaussian(key, rows, budget, box),
        "laplace l2": lambda: dp.laplace(key, rows, dp.PureDP(1.0), ball),
        "diagonal l2": lambda: dp.diagonal(key, rows, budget, ball),
    }
    print(f"rows {args.rows} x {args.columns} float64, {jax.devices()[0].platform}, jax {jax.__version__}")
    print("first call, compilation included (s):")
    for name, run in candidates.items():
        print(f"  {name}: {first_call(run):.2f}")
    print_ratios(best_times(candidates, args.repeats), "x.T @ x")
    print("memory beyond the input (MiB): XLA's temporary buffers, and the rise of resident memory during a warm run")
    programs = {
        "gaussian l2": lambda x: dp.gaussian(key, x, budget, ball).covariance,
        "gaussian box": lambda x: dp.gaussian(key, x, budget, box).covariance,
    }
    for name, program in programs.items():
        temporary = jax.jit(program).lower(rows).compile().memory_analysis().temp_size_in_bytes / 2**20
        print(f"  {name}: {temporary:.1f}, {peak_growth_mib(candidates[name]):.1f}")


if __name__ == "__main__":
    main()
