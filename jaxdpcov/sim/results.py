"""What repetitions leave: errors by cell, their summaries with bands and failures counted, and files of both."""

import csv
import dataclasses
import io
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdpcov.sim.engine import Task
from jaxdpcov.sim.study import Cell, Study

#: Bootstrap resamplings of a band, its level, and what "trimmed" leaves out at each end.
RESAMPLINGS, LEVEL, TRIM = 1000, 0.95, 0.1
QUANTILES = (0.05, 0.25, 0.75, 0.95)


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Repetitions of one cell, in the order of their keys.

    metrics: names. errors: (r, metrics). status: (r,) bits, see `jaxdpcov.status`. kept: arrays (r, ...) by name.
    batch_size: lanes of a batch.
    """

    metrics: tuple[str, ...]
    errors: np.ndarray
    status: np.ndarray
    kept: Mapping[str, np.ndarray]
    batch_size: int

    @property
    def done(self) -> int:
        """Repetitions that are there."""
        return len(self.errors)

    @staticmethod
    def empty(task: Task, batch_size: int) -> "Repeats":
        """None yet."""
        names = tuple(name for name, _ in task.metrics)
        return Repeats(names, np.zeros((0, len(names))), np.zeros(0, np.int32), {}, batch_size)

    def extended(self, errors: np.ndarray, status: np.ndarray, kept: Any) -> "Repeats":
        """With those of one more call."""
        flat = {_path(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(kept)[0]}
        if self.done:
            errors, status = np.concatenate([self.errors, errors]), np.concatenate([self.status, status])
            flat = {name: np.concatenate([self.kept[name], leaf]) for name, leaf in flat.items()}
        return Repeats(self.metrics, errors, status, flat, self.batch_size)

    def save(self, file: Path) -> None:
        """To a file that is there whole or not at all."""
        content = io.BytesIO()
        arrays: dict[str, Any] = {f"kept/{name}": leaf for name, leaf in self.kept.items()}
        np.savez(content, errors=self.errors, status=self.status, **arrays)
        write(file, content.getvalue())

    @staticmethod
    def load(file: Path, task: Task, batch_size: int) -> "Repeats":
        """What is in a file, none if it is not there."""
        found = Repeats.empty(task, batch_size)
        if not file.exists():
            return found
        try:
            with np.load(file, allow_pickle=False) as stored:
                kept = {name.removeprefix("kept/"): stored[name] for name in stored.files if name.startswith("kept/")}
                errors, status = stored["errors"], stored["status"]
            if errors.shape == (len(status), len(found.metrics)):
                return Repeats(found.metrics, errors, status, kept, batch_size)
        except (EOFError, KeyError, ValueError, zipfile.BadZipFile):
            pass
        raise ValueError(f"{file} is no part of a study: give another folder, or remove it")


@dataclasses.dataclass(frozen=True)
class Results:
    """A study that was run: its cells, the repetitions of each, and about (settings, batch size, versions)."""

    study: Study
    cells: tuple[Cell, ...]
    outcomes: tuple[Repeats, ...]
    about: Mapping[str, Any]

    def summary(self) -> list[dict[str, Any]]:
        """A row for each cell and metric: where it stands, `statistic` with its band, and more; see `summarise`."""
        rows = []
        for cell, found in zip(self.cells, self.outcomes):
            at = cell.coordinates(self.study.budget_name)
            for place, metric in enumerate(found.metrics):
                numbers = summarise(found.errors[:, place], self.study.statistic)
                flagged = int(np.count_nonzero(found.status))
                rows.append({**at, "metric": metric, **numbers, "status_set": flagged})
        return rows

    def table(self) -> list[dict[str, Any]]:
        """A row for each repetition of each cell: where it stands, its errors by metric and its status bits."""
        return [
            {**cell.coordinates(self.study.budget_name), "repetition": i, **dict(zip(found.metrics, map(float, each))),
             "status": int(bits)}
            for cell, found in zip(self.cells, self.outcomes)
            for i, (each, bits) in enumerate(zip(found.errors, found.status))
        ]  # fmt: skip

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Files in `folder`: summary.csv, summary.json (with settings, seed and versions), errors.parquet.

        Parquet needs pyarrow (extra `cli`); without it errors.csv has the repetitions.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "summary.csv", folder / "summary.json"]
        summary = self.summary()
        _write_csv(files[0], summary)
        document = {**self.about, "summary": [{k: _json(v) for k, v in row.items()} for row in summary]}
        files[1].write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        table = self.table()
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            files.append(folder / "errors.csv")
            _write_csv(files[-1], table)
            return files
        columns = list(dict.fromkeys(name for row in table for name in row))
        made = pyarrow.table({name: [row.get(name) for row in table] for name in columns})
        about = {"jaxdpcov": json.dumps(dict(self.about))}
        files.append(folder / "errors.parquet")
        parquet.write_table(made.replace_schema_metadata(about), files[-1])
        return files


def summarise(errors: np.ndarray, statistic: str = "mean") -> dict[str, Any]:
    """Statistics of errors (r,), those that are not finite counted as failures and left out.

    Returns:
        "mean", "trimmed" (by 10% at each end), "median", quantiles "q05" ... "q95", "low" and "high": the 95% band of
        `statistic` (percentile bootstrap), NaN below two repetitions; "repetitions", "failures".

    >>> import numpy as np
    >>> from jaxdpcov.sim import summarise
    >>> found = summarise(np.array([1.0, 3.0, np.nan]))
    >>> found["mean"], found["failures"]
    (2.0, 1)
    """
    from scipy import stats

    finite = np.sort(errors[np.isfinite(errors)])
    functions: dict[str, Any] = {"mean": np.mean, "trimmed": _trimmed, "median": np.median}
    nothing = len(finite) == 0
    found: dict[str, Any] = {name: np.nan if nothing else float(f(finite)) for name, f in functions.items()}
    for q in QUANTILES:
        found[f"q{100 * q:02.0f}"] = np.nan if nothing else float(np.quantile(finite, q))
    low = high = np.nan
    if len(finite) > 1:
        band = stats.bootstrap(
            (finite,),
            functions[statistic],
            n_resamples=RESAMPLINGS,
            batch=max(1, 1_000_000 // len(finite)),
            vectorized=True,
            axis=0,
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        low, high = float(band.low), float(band.high)
    return {**found, "low": low, "high": high, "repetitions": len(errors), "failures": len(errors) - len(finite)}


def _trimmed(values: np.ndarray, axis: int = 0) -> Any:
    from scipy import stats

    return stats.trim_mean(values, TRIM, axis=axis)


def versions(device: Any) -> dict[str, str]:
    """What the bits of a study depend on besides its settings."""
    own = vars(sys.modules["jaxdpcov"])["__version__"]  # of the package above, which is loaded
    precision = np.dtype(jax.numpy.zeros(()).dtype).name
    return {
        "jaxdpcov": own, "jax": jax.__version__, "jaxlib": metadata.version("jaxlib"), "numpy": np.__version__,
        "platform": device.platform, "device": device.device_kind, "precision": precision,
    }  # fmt: skip


def _path(path: Any) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "name", getattr(part, "idx", part)))) for part in path)


def _write_csv(file: Path, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def write(file: Path, content: bytes) -> None:
    """A file that is there whole or not at all, whenever the process is killed."""
    beside = file.with_name(f"{file.name}.{os.getpid()}.part")
    beside.write_bytes(content)
    os.replace(beside, file)
