"""What leaves a mechanism: the private covariance and mean with everything needed to use, print, save and load them."""

import contextlib
import io
import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, _records, linalg, status
from jaxdpcov._records import record
from jaxdpcov.bounds import BoxBounds
from jaxdpcov.distributions import Gaussian, Product
from jaxdpcov.privacy import ledger as ledgers

SCHEMA_VERSION = 1
_MAGIC = "jaxdpcov.release"


@record(static=("mechanism", "relation", "columns", "unit", "key_source", "schema_version"))
class Release:
    """A private covariance and mean. Every field is public or privatised; the key is in none of them.

    covariance: (d, d), data units, symmetric. mean: (d,), data units. Each is None where the mechanism has none.
    measured: the noisy statistics as they left the noise, before post-processing: name -> `Measured` (value and
    per-entry noise std) in frame units z, x = center + scale z. center, scale: (d,), public.
    n: the row count, public under replace-one, the noisy one under add/remove. status: bits, see `jaxdpcov.status`.
    spent: the budget the ledger adds up to. ledger: tree of entries. diagnostics, extra: privatised arrays by name.
    relation: the neighbouring relation. unit: "row" or "person", what one neighbour changes.
    key_source: "user", "os" (operating-system entropy) or "study" (a guessable seed: protects nobody).
    """

    covariance: Any
    mean: Any
    measured: dict[str, Any]
    center: Any
    scale: Any
    n: Any
    bounds: Any
    status: Any
    spent: Any
    ledger: Any
    config: Any
    diagnostics: dict[str, Any]
    extra: dict[str, Any]
    mechanism: str
    relation: str
    columns: tuple[str, ...] | None = None
    unit: str = "row"
    key_source: str = "user"
    schema_version: int = SCHEMA_VERSION

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(self.center.shape[-1])

    @property
    def std(self) -> jax.Array:
        """(d,) standard deviations, data units; 0 where a noisy variance is negative."""
        self._need_covariance()
        return jnp.sqrt(jnp.maximum(jnp.diagonal(self.covariance, axis1=-2, axis2=-1), 0.0))

    @property
    def correlation(self) -> jax.Array:
        """(d, d) correlation matrix with a unit diagonal; zero off the diagonal of a column without variance."""
        self._need_covariance()
        return linalg.correlation(self.covariance)

    @property
    def distribution(self) -> Gaussian | Product:
        """What the release says about a row, data units, at no further cost: densities and synthetic rows.

        `Gaussian(mean, covariance)`; of a mean alone under `Bounds.box(0, 1)`, the product distribution over {0,1}^d
        of the mean clipped to [0, 1]. ValueError where the release has neither; where the bounds are traced and turn
        out to be others, NaN.

        >>> import jax, jax.numpy as jnp
        >>> from jaxdpcov import ZCDP, Bounds, gaussian
        >>> rows = jnp.array([[0.1, 0.9], [0.4, 0.3], [0.2, 0.5]])
        >>> law = gaussian(jax.random.key(0), rows, ZCDP(100.0), Bounds.box(0.0, 1.0)).distribution
        >>> law.sample(jax.random.key(1), (1000,)).shape
        (1000, 2)
        """
        if self.mean is None:
            raise ValueError(
                f"this release of {self.mechanism} has no mean: with a known one, use "
                "jaxdpcov.distributions.Gaussian(mean, release.covariance)"
            )
        if self.covariance is not None:
            return Gaussian(self.mean, self.covariance)
        mean = jnp.clip(self.mean, 0.0, 1.0)
        if isinstance(self.bounds, BoxBounds):
            lower, upper = self.bounds.lower, self.bounds.upper
            if _checks.is_traced(lower, upper):
                unit = jnp.all(jnp.asarray(lower) == 0) & jnp.all(jnp.asarray(upper) == 1)
                return Product(jnp.where(unit, mean, jnp.nan))
            if np.all(np.asarray(lower) == 0) and np.all(np.asarray(upper) == 1):
                return Product(mean)
        raise ValueError(
            f"this release of {self.mechanism} has no covariance: a mean alone makes a distribution under "
            f"Bounds.box(0, 1) only, got {self.bounds}"
        )

    def _need_covariance(self) -> None:
        if self.covariance is None:
            raise ValueError(f"{self.mechanism} releases a mean and no covariance")

    def __str__(self) -> str:
        return summary(self)

    def to_pandas(self) -> Any:
        """The covariance as a pandas DataFrame with the column names (pandas must be installed)."""
        import pandas

        self._need_covariance()
        names = column_names(self)
        return pandas.DataFrame(np.asarray(self.covariance), index=names, columns=names)

    def to_dict(self) -> dict[str, Any]:
        """Covariance, mean, budget and ledger as plain lists and numbers, ready for JSON."""
        covariance, mean = (None if x is None else np.asarray(x).tolist() for x in (self.covariance, self.mean))
        return {
            "mechanism": self.mechanism,
            "columns": column_names(self),
            "n": float(self.n),
            "relation": self.relation,
            "unit": self.unit,
            "key_source": self.key_source,
            "spent": {type(self.spent).__name__: {k: float(v) for k, v in vars(self.spent).items()}},
            "status": status.describe(self.status),
            "mean": mean,
            "covariance": covariance,
            **{end: np.asarray(self.extra[end]).tolist() for end in ("lower", "upper") if end in self.extra},
            "ledger": ledgers.rows(self.ledger),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the release to one `.npz` file: arrays and JSON, no pickle. An existing file is replaced whole."""
        arrays: dict[str, np.ndarray] = {}
        text = json.dumps({"format": _MAGIC, "release": _encode(self, arrays)}, allow_nan=True)
        buffer = io.BytesIO()
        arrays["metadata"] = np.frombuffer(text.encode(), np.uint8)
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        temporary = f"{os.fspath(path)}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(buffer.getvalue())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def load(path: str | os.PathLike[str]) -> Release:
    """Read a release that `Release.save` wrote. ValueError for anything else; nothing in the file is executed."""
    with open(path, "rb") as file:
        content = io.BytesIO(file.read())
    try:
        with np.load(content, allow_pickle=False) as stored:
            document = json.loads(bytes(stored["metadata"]).decode())
            arrays = {name: stored[name] for name in stored.files if name != "metadata"}
        if document["format"] != _MAGIC:
            raise ValueError("wrong format")
        version = document["release"]["fields"]["schema_version"]
        if type(version) is not int:
            raise ValueError("wrong version")
    except Exception:
        raise ValueError(f"{os.fspath(path)} is not a release file of jaxdpcov") from None
    if version > SCHEMA_VERSION:
        raise ValueError(f"{os.fspath(path)} has schema version {version}; this jaxdpcov reads up to {SCHEMA_VERSION}")
    try:
        release = _decode(document["release"], arrays)
        if isinstance(release, Release):
            summary(release)  # what cannot be printed is no release, whatever its records say
            return release
    except Exception:
        raise ValueError(f"{os.fspath(path)} is a damaged release file") from None
    raise ValueError(f"{os.fspath(path)} is not a release file of jaxdpcov")


def column_names(release: Release) -> list[str]:
    """The column names of a release, x0..x{d-1} where it has none."""
    return list(release.columns or (f"x{j}" for j in range(release.d)))


def summary(release: Release) -> str:
    """A short table: who is protected, what was spent, and mean and std by column."""
    lanes = np.shape(release.status)
    if lanes:
        return f"Release({release.mechanism}, batch {lanes}, d = {release.d})"
    public = release.relation == "replace"
    count = "n" if public else "noisy n"
    unit = {
        "row": "one row (not one person, where a person can have several rows)",
        "person": "one person (all their rows)",
    }[release.unit]
    lines = [
        f"{release.mechanism}: {count} = {float(release.n):g}, d = {release.d}, spent {release.spent}",
        f"protects {unit}; neighbouring relation: {release.relation} (n is {'public' if public else 'private'})",
    ]
    if release.key_source == "user":
        lines.append("the caller chose the key: it protects only as long as nobody else can know or guess it")
    if release.key_source == "study":
        lines.append("FOR STUDY ONLY: the key came from a seed that can be guessed, which protects nobody")
    lines += [f"status: {text}" for text in status.describe(release.status)]
    # A name that holds line ends or control characters must neither break the table nor steer the terminal.
    names = [name if name.isprintable() else repr(name)[1:-1] for name in column_names(release)]
    shown = min(release.d, 12)
    width = max(6, *(len(name) for name in names[:shown]))
    table = _by_column(release)
    lines.append(f"{'column':<{width}}" + "".join(f"  {title:>12}" for title in table))
    lines += [f"{names[j]:<{width}}" + "".join(f"  {x[j]:>12.5g}" for x in table.values()) for j in range(shown)]
    if shown < release.d:
        lines.append(f"... {release.d - shown} more columns")
    lines.append("ledger:")
    for row in ledgers.rows(release.ledger):
        lines.append("  " + ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
    return "\n".join(lines)


def _by_column(release: Release) -> dict[str, np.ndarray]:
    """What is printed of each column, by title: the interval where one was found privately."""
    found = {"mean": release.mean, "std": None if release.covariance is None else release.std}
    found |= {end: release.extra.get(end) for end in ("lower", "upper")}
    return {title: np.asarray(values) for title, values in found.items() if values is not None}


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """JSON for a tree of records, dicts, tuples and leaves; arrays go to `arrays` under a running name."""
    if type(value).__name__ in _records.REGISTRY and isinstance(value, _records.REGISTRY[type(value).__name__]):
        return {"record": type(value).__name__, "fields": {k: _encode(v, arrays) for k, v in vars(value).items()}}
    if isinstance(value, dict):
        return {"dict": {k: _encode(v, arrays) for k, v in value.items()}}
    if isinstance(value, (tuple, list)):
        return {"tuple": [_encode(v, arrays) for v in value]}
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        name = f"a{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array": name}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"a release cannot hold a {type(value).__name__}")


def _decode(node: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(node, dict):
        return node
    if "record" in node:
        kind = _records.REGISTRY[node["record"]]
        return _records.build(kind, {k: _decode(v, arrays) for k, v in node["fields"].items()})
    if "dict" in node:
        return {k: _decode(v, arrays) for k, v in node["dict"].items()}
    if "tuple" in node:
        return tuple(_decode(v, arrays) for v in node["tuple"])
    return arrays[node["array"]]
