"""`jaxdpcov study`: run a simulation study from a file, go on with a stopped one, write tables and a plot."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxdpcov.cli.errors import UserError

if TYPE_CHECKING:
    from jaxdpcov.sim.study import Study


def command(
    config: Annotated[
        str | None, typer.Argument(help="A TOML, YAML or JSON file, or a ready study (--list).", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results and, as it runs, for what is done. Default: the study's name."),
    ] = None,
    repetitions: Annotated[int | None, typer.Option(help="Repetitions of each cell, in place of the file's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, in place of the file's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Lanes of a batch; chosen unless given.")] = None,
    devices: Annotated[
        int | None, typer.Option(help="On a CPU: run so many calls at once, say one for each core; batch size 1.")
    ] = None,
    ready: Annotated[bool, typer.Option("--list", help="List the ready studies.")] = False,
    plot: Annotated[bool, typer.Option(help="Draw plot.png (needs matplotlib).")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar and no table.")] = False,
) -> None:
    """Run a simulation study: mechanisms x budgets x n x d x populations x repetitions.

    Writes summary.csv, summary.json, errors.parquet and plot.png to --out. Stopped at any moment, the same command goes
    on where it was, and ends with the numbers of a run that was not stopped.

    Example: jaxdpcov study adaptive-d --repetitions 20 --out adaptive-d
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    if devices is not None:
        if devices < 1:
            raise UserError("--devices must be at least 1")
        jax.config.update("jax_num_cpu_devices", devices)
        batch_size = 1 if batch_size is None else batch_size
    from jaxdpcov.cli import show
    from jaxdpcov.sim import config as configs
    from jaxdpcov.sim.run import sweep

    if ready:
        for name in configs.ready():
            study = configs.read_study(name)
            show.write(f"{name}: {study.title} ({len(study.cells)} cells, {study.repetitions} repetitions)")
        return
    if config is None:
        raise UserError("name a study: a file, or one of --list, such as 'jaxdpcov study adaptive-d'")
    changes = {name: value for name, value in (("repetitions", repetitions), ("seed", seed)) if value is not None}
    study = configs.read_study(config, **changes)
    folder = Path(Path(config).stem) if out is None else out
    with show.progress(not quiet) as report:
        results = sweep(study, store=folder / "cells", batch_size=batch_size, progress=report)
    files = results.save(folder)
    summary = results.summary()
    if plot:
        files += _plots(study, summary, folder)
    if not quiet:
        swept = [name for name in summary[0] if len({row.get(name) for row in summary}) > 1 or name == "arm"]
        coordinates = [name for name in swept if name in results.cells[0].coordinates(study.budget_name)]
        header = [*coordinates, "metric", study.statistic, "95% band", "failures"]
        show.write(f"{study.title}: {study.repetitions} repetitions, batch size {results.about['batch_size']}")
        show.write_table(
            header,
            [
                [
                    *(str(row.get(name, "")) for name in coordinates),
                    row["metric"],
                    f"{row[study.statistic]:.4g}",
                    f"{row['low']:.4g} to {row['high']:.4g}",
                    str(row["failures"]),
                ]
                for row in summary
            ],
        )
    show.write(f"written: {', '.join(str(file) for file in files)}")


def _plots(study: "Study", summary: list[dict[str, Any]], folder: Path) -> list[Path]:
    """A picture for each metric, where there is an axis to draw along and matplotlib to draw with."""
    import importlib.util

    from jaxdpcov import plots

    if study.x is None or importlib.util.find_spec("matplotlib") is None:
        return []
    files = []
    for metric, _ in study.measures():
        name = "plot.png" if len(study.measures()) == 1 else f"plot-{metric}.png"
        if not any(row["metric"] == metric and math.isfinite(row[study.statistic]) for row in summary):
            continue
        figure = plots.study(summary, study.x, metric=metric, statistic=study.statistic, title=study.title)
        figure.savefig(folder / name, dpi=120)
        files.append(folder / name)
    return files
