"""Run repetitions and whole studies: data made once, a file for each cell, so that a study goes on where it stopped."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxdpcov import _checks
from jaxdpcov.sim import engine, moments
from jaxdpcov.sim.laws import Population
from jaxdpcov.sim.results import Repeats, Results, versions, write
from jaxdpcov.sim.study import Arm, Cell, Study

#: Called with repetitions done and in all.
Progress = Callable[[int, int | None], None]
#: Seconds between two writes of a cell that is not finished; cells after which what is compiled is let go.
_EVERY, _CELLS = 2.0, 200
_ABOUT = "study.json"


def repeat(
    method: str,
    data: Any,
    budget: Any,
    bounds: Any,
    *,
    n: int | None = None,
    config: Any = None,
    repetitions: int = 1000,
    metrics: Sequence[Any] = ("frobenius",),
    moment: str = "covariance",
    truth: str | None = None,
    keep: Sequence[str] = (),
    seed: int = 0,
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
    progress: Progress | None = None,
) -> Repeats:
    """Errors of many independent releases of one mechanism, in one compiled program.

    A simulation, without any guarantee: on a population, or on rows that may be looked at.

    Args:
        method: name of a mechanism, or "not_private" for the moment of the rows themselves.
        data: `Population`, of which each repetition draws `n` rows; or an array (n, d), which all share: passes over it
            that do not depend on the key are made once for about a hundred repetitions.
        budget, bounds, config: as the mechanism takes them, concrete.
        repetitions: how many. metrics: names (`sim.moments`) or pairs (name, f(estimate, truth: `Truth`) -> ()).
        moment: "covariance", "second_moment" (about the centre of the bounds: the config's center must be "zero") or
            "mean". truth: "population", or "sample", the moment of the rows; None: the first that there is.
        keep: fields of the releases to keep for every repetition; errors and status alone by default.
        seed: whole number. Repetition i has one key whatever `repetitions` is.
        batch_size: lanes of a batch; None: `engine.batch_size`. Results of other sizes differ in the last bits.
        devices: JAX devices to spread repetitions over; all by default. Results do not depend on how many. On
            several CPU devices they run at once with batch_size=1 alone (`engine.calls` says why).
        progress: called with (repetitions done, all).

    Returns:
        `Repeats`: errors (repetitions, metrics), status bits (repetitions,), and what was kept.

    Raises:
        ValueError, TypeError: one line that names the argument and what is allowed.

    >>> from jaxdpcov import Bounds, ZCDP
    >>> from jaxdpcov.sim import make, repeat
    >>> found = repeat("gaussian", make("identity", 2), ZCDP(1.0), Bounds.l2(3.0), n=100, repetitions=8)
    >>> found.errors.shape, found.metrics
    ((8, 1), ('frobenius',))
    """
    fresh = isinstance(data, Population)
    if fresh == (n is None):
        raise ValueError("n= is the number of rows to draw of a population; an array of rows has its own")
    _checks.whole("repetitions", repetitions)
    task = engine.Task(
        method,
        n or 0,
        moments.measures(moment, metrics),
        moment,
        truth or ("population" if fresh else "sample"),
        () if method == engine.NOT_PRIVATE else tuple(keep),
    )
    if config is None:
        config = Arm(method, method).config(moment)
    elif moment == "second_moment" and getattr(config, "center", None) != "zero":
        raise ValueError("moment='second_moment' needs a config with center='zero'")
    rows = data if fresh else jnp.asarray(data, jnp.zeros(()).dtype)
    d = data.d if fresh else rows.shape[1]
    devices = list(jax.devices() if devices is None else devices)
    batch = engine.batch_size(n or 0, d, repetitions, devices[0]) if batch_size is None else batch_size
    _checks.whole("batch_size", batch)
    found = Repeats.empty(task, batch)
    program = _program(task, rows, budget, bounds, config, batch)
    keys = engine.keys(engine.check_key(seed), repetitions)
    for part in engine.calls(program, keys, engine.call_size(repetitions, batch), devices):
        found = found.extended(*part)
        if progress is not None:
            progress(found.done, repetitions)
    return found


def sweep(
    study: Study,
    *,
    store: str | os.PathLike[str] | None = None,
    devices: Sequence[Any] | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """All cells of a study, each by repetitions in compiled programs; see `Study` and `repeat`.

    Args:
        study: what to run.
        store: folder that keeps what is done, made if there is none: another run with it goes on there, and ends with
            the numbers of a run that was never stopped, to the bit. A folder of another study is refused.
        devices: JAX devices to spread repetitions over, as in `repeat`; all by default.
        batch_size: lanes of a batch, for the whole study; None: that of the store, or chosen for its largest cell.
        progress: called with (repetitions done, all).

    Returns:
        `Results`, with summaries, tables and files.

    >>> from jaxdpcov.sim import Study, sweep
    >>> study = Study.of({"arms": ["gaussian", "not_private"], "population": "identity", "n": 100, "d": 2, "rho": 1.0,
    ...                   "bounds": {"radius": 3.0}, "repetitions": 4})
    >>> [row["arm"] for row in sweep(study).summary()]
    ['gaussian', 'not_private']
    """
    devices = list(jax.devices() if devices is None else devices)
    folder = None if store is None else Path(store)
    about = _about(study, folder, batch_size, devices[0])
    batch = about["batch_size"]
    cells, outcomes, done = study.cells, [], 0
    total = len(cells) * study.repetitions
    last = 0.0
    data: Any = None
    truths: dict[Any, Any] = {}
    for index, cell in enumerate(cells):
        task, file = study.task(cell), None if folder is None else folder / f"cell-{index:05d}.npz"
        found = Repeats.load(file, task, batch) if file is not None else Repeats.empty(task, batch)
        if found.done < study.repetitions:
            if index and index % _CELLS == 0:
                jax.clear_caches()  # each program holds memory maps, of which a process has 65,530
            if data is None or data[0] != _data_of(cell):
                data, truths = (_data_of(cell), _make(study, cell)), {}
            d = data[1].d if isinstance(data[1], Population) else data[1].shape[1]
            bounds, config = study.bounds_at(d), cell.arm.config(study.moment)
            program = _program(task, data[1], cell.budget, bounds, config, batch, truths)
            keys = engine.keys(study.key(cell), study.repetitions)
            size = about["call_size"]
            for part in engine.calls(program, keys, size, devices, found.done):
                found = found.extended(*part)
                if file is not None and (found.done == study.repetitions or time.monotonic() - last > _EVERY):
                    found.save(file)
                    last = time.monotonic()
                if progress is not None:
                    progress(done + found.done, total)
        done += found.done
        outcomes.append(found)
    return Results(study, tuple(cells), tuple(outcomes), about)


def _data_of(cell: Cell) -> tuple[Any, ...]:
    return cell.source, cell.n, cell.d


def _make(study: Study, cell: Cell) -> Any:
    """The population of a cell, or the one data set (n, d) of its repetitions."""
    made = cell.source.make(cell.d)
    if isinstance(made, Population):
        if study.data == "fresh":
            return made
        assert cell.n is not None
        rows = made.sample(jax.random.fold_in(study.key(cell), 0x726F7773), cell.n)
        return _Drawn(made, rows) if study.truth == "population" else rows
    return jnp.asarray(made, jnp.zeros(()).dtype)


class _Drawn:
    """One data set with the population that it was drawn from."""

    def __init__(self, population: Population, rows: jax.Array) -> None:
        self.population, self.rows, self.shape = population, rows, rows.shape


def _program(
    task: engine.Task,
    data: Any,
    budget: Any,
    bounds: Any,
    config: Any,
    batch: int,
    truths: dict[Any, Any] | None = None,
) -> engine.Program:
    """The program of a cell; `truths` keeps what cells on one data set share: its truth and its tables."""
    truths = {} if truths is None else truths
    of = data.population if isinstance(data, _Drawn) else data
    rows = data.rows if isinstance(data, _Drawn) else data
    if "truth" not in truths:
        truths["truth"] = engine.true_moment(of, task, bounds)
    if not task.n:
        by = engine.by_level(task, bounds, config)
        if by not in truths:
            truths[by] = engine.home(rows, bounds, by)
        rows = truths[by]
    return engine.Program(task, rows, truths["truth"], budget, bounds, config, batch)


def _about(study: Study, folder: Path | None, batch: int | None, device: Any) -> dict[str, Any]:
    """What a study's numbers depend on besides its settings, from its store where it has one."""
    if batch is not None:
        _checks.whole("batch_size", batch)
    file = None if folder is None else folder / _ABOUT
    begun = folder is not None and any(folder.glob("cell-*.npz"))
    about = None if file is None or not file.exists() else _read(file)
    if about is not None and (
        begun or about["digest"] == study.digest()
    ):  # one with no cells yet holds nothing to lose
        if about["digest"] != study.digest():
            raise ValueError(f"store {folder} holds another study ({about['study']['title']!r}): give another folder")
        if batch is not None and batch != about["batch_size"]:
            raise ValueError(f"batch_size must be {about['batch_size']}, with which the store {folder} was begun")
        now = versions(device)
        if file is not None and about["versions"] != now:  # said in every summary: bits may differ between the parts
            about["resumed_with"] = [*(each for each in about.get("resumed_with", []) if each != now), now]
            write(file, json.dumps(about, indent=1).encode())
        return dict(about)
    repetitions = study.repetitions
    if batch is None:
        sizes = [(cell.n or 0, cell.d or 1) for cell in study.cells]
        fresh = study.data == "fresh"
        batch = min(engine.batch_size(n if fresh else 0, d, repetitions, device) for n, d in sizes)
    about = {
        "study": study.to_dict(),
        "digest": study.digest(),
        "batch_size": int(batch),
        "call_size": engine.call_size(repetitions, batch),
        "versions": versions(device),
    }
    if file is not None and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        if begun:
            raise ValueError(f"store {folder} has cells of a study and no {_ABOUT}: give another folder")
        write(file, json.dumps(about, indent=1).encode())
    return about


def _read(file: Path) -> dict[str, Any]:
    """What a store says of its study."""
    try:
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if {"study", "digest", "batch_size", "call_size", "versions"} <= set(about):
            return about
    except (ValueError, TypeError):  # no text, or no JSON
        pass
    raise ValueError(f"{file} says of no study: give another folder, or remove this one")
