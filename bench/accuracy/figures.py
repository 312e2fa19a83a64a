"""Every ready study of a published figure at a reduced number of repetitions: pictures and summaries in docs/results.

    python bench/accuracy/figures.py [--studies adaptive-d ...] [--repetitions 20] [--store DIRECTORY]

Each is what `jaxdpcov study NAME --repetitions 20` runs. What is in the store is not run again, and its time is not
told anew. Writes docs/results/studies.md, study-NAME.png, and data/study-NAME.csv.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import jax

import jaxdpcov as dp
from jaxdpcov import plots
from jaxdpcov.sim import config, read_study, sweep

RESULTS = Path(__file__).parents[2] / "docs" / "results"
HEAD = """# Ready studies

Pictures of `jaxdpcov study NAME --repetitions {repetitions}`: the published figures, run again with this library's
mechanisms in the papers' form and by default. Bands: 95% bootstrap over repetitions. Settings of each:
`jaxdpcov/sim/figures/NAME.toml`; numbers: `data/study-NAME.csv`. Seconds include compilation, on a machine that
did other work at the same time.

Written by `python bench/accuracy/figures.py`; jaxdpcov {version}, jax {jax}, float64, {device}.

| study | cells | seconds |
|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", nargs="+", default=list(config.ready()), choices=list(config.ready()))
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()) / "jaxdpcov-figures")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in args.studies:
        study, folder = read_study(name, repetitions=args.repetitions), args.store / f"{name}-{args.repetitions}"
        seconds, start = folder / "seconds.json", time.perf_counter()
        results = sweep(study, store=folder / "cells")
        if not seconds.exists():
            seconds.write_text(json.dumps(time.perf_counter() - start))
        results.save(folder)
        (RESULTS / "data" / f"study-{name}.csv").write_text((folder / "summary.csv").read_text())
        for metric, _ in study.measures():
            figure = plots.study(
                results.summary(), study.x, metric=metric, statistic=study.statistic, title=study.title
            )
            figure.savefig(RESULTS / f"study-{name}.png", dpi=110)
        print(f"{name}: {len(study.cells)} cells, {json.loads(seconds.read_text()):.0f} s", flush=True)
        jax.clear_caches()
    rows, pictures = [], []
    for name in config.ready():
        folder = args.store / f"{name}-{args.repetitions}"
        if (folder / "seconds.json").exists():
            study, took = read_study(name), json.loads((folder / "seconds.json").read_text())
            rows.append(f"| `{name}` | {len(study.cells)} | {took:.0f} |")
            pictures.append(f"## {study.title}\n\n![{study.title}](study-{name}.png)")
    device = jax.devices()[0].device_kind
    head = HEAD.format(repetitions=args.repetitions, version=dp.__version__, jax=jax.__version__, device=device)
    (RESULTS / "studies.md").write_text(head + "\n".join([*rows, "", "\n\n".join(pictures)]) + "\n")


if __name__ == "__main__":
    main()
