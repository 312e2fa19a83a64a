"""The data of the study in pace.py: rows in [-1, 1]^d, from scikit-learn, from files, and from made populations."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

#: Rows of a made population.
ROWS = 10_000


def standardised(x: np.ndarray) -> np.ndarray:
    """Columns about their mean, clipped at four standard deviations and divided by them."""
    centred = x - x.mean(axis=0)
    return np.clip(centred / (4.0 * centred.std(axis=0)), -1.0, 1.0)


def powers_of_two(x: np.ndarray) -> np.ndarray:
    """Columns as they are, uncentred, divided by the power of two above their largest absolute value."""
    return x / 2.0 ** np.ceil(np.log2(np.abs(x).max(axis=0)))


def normal(correlation: np.ndarray, seed: int) -> np.ndarray:
    """Normal rows of unit variances, clipped at four standard deviations and divided by them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(ROWS, len(correlation))) @ np.linalg.cholesky(correlation).T
    return np.clip(rows / 4.0, -1.0, 1.0)


def unit(covariance: np.ndarray) -> np.ndarray:
    std = np.sqrt(np.diag(covariance))
    return covariance / std[:, None] / std[None, :]


def sparse(d: int, seed: int) -> np.ndarray:
    """A precision with d random edges of size 0.3 to 0.8 and either sign."""
    rng = np.random.default_rng(seed)
    i, j = np.triu_indices(d, 1)
    chosen = rng.choice(len(i), d, replace=False)
    precision = np.zeros((d, d))
    precision[i[chosen], j[chosen]] = rng.uniform(0.3, 0.8, d) * rng.choice([-1, 1], d)
    precision += precision.T
    return unit(np.linalg.inv(precision + np.eye(d) * (np.abs(np.linalg.eigvalsh(precision)).max() + 0.1)))


def dense(d: int, seed: int) -> np.ndarray:
    """Wishart with 2 d degrees of freedom."""
    factor = np.random.default_rng(seed).normal(size=(2 * d, d))
    return unit(factor.T @ factor)


def low_rank(d: int, seed: int) -> np.ndarray:
    """Three factors + 0.3 I."""
    factor = np.random.default_rng(seed).normal(size=(d, 3))
    return unit(factor @ factor.T + 0.3 * np.eye(d))


def blocks(d: int, seed: int) -> np.ndarray:
    """Blocks of five at correlation 0.7."""
    return np.kron(np.eye(d // 5), np.full((5, 5), 0.7)) + 0.3 * np.eye(d)


def _bundled(name: str, prepare: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], np.ndarray]:
    def load(_: Path) -> np.ndarray:
        from sklearn import datasets

        x = getattr(datasets, f"load_{name}")().data
        return prepare(x[:, x.std(axis=0) > (0.5 if name == "digits" else 0.0)])

    return load


def _from_file(name: str) -> Callable[[Path], np.ndarray]:
    def load(folder: Path) -> np.ndarray:
        with np.load(folder / f"{name}.npz") as stored:
            x, low, high = stored["X"], stored["lo"], stored["hi"]
        return np.clip((x - 0.5 * (low + high)) / (0.5 * (high - low)), -1.0, 1.0)

    return load


def _made(kind: Callable[[int, int], np.ndarray], d: int, seed: int) -> Callable[[Path], np.ndarray]:
    return lambda _: normal(kind(d, seed), seed + 10)


#: On these the choices of the mechanisms were made: the weights of the reconstructions and which there are, and the
#: form of `auto`.
TUNED_ON = (
    "sparse-20", "dense-15", "low-rank-30", "blocks-25", "wine", "cancer", "cancer-raw", "diabetes", "sparse-100",
    "blocks-100", "splice",
)  # fmt: skip
SETS: dict[str, Callable[[Path], np.ndarray]] = {
    "sparse-20": _made(sparse, 20, 1),
    "dense-15": _made(dense, 15, 2),
    "low-rank-30": _made(low_rank, 30, 3),
    "blocks-25": _made(blocks, 25, 4),
    "cancer": _bundled("breast_cancer", standardised),
    "cancer-raw": _bundled("breast_cancer", powers_of_two),
    "wine": _bundled("wine", standardised),
    "diabetes": _bundled("diabetes", standardised),
    "digits": _bundled("digits", standardised),
    "magic": _from_file("magic_gamma"),
    "shuttle": _from_file("statlog_shuttle"),
    "landsat": _from_file("statlog_landsat"),
    "wine-quality": _from_file("wine_quality"),
    "sparse-30": _made(sparse, 30, 21),
    "dense-30": _made(dense, 30, 22),
    "blocks-30": _made(blocks, 30, 23),
    "sparse-100": _made(sparse, 100, 31),
    "blocks-100": _made(blocks, 100, 32),
    "dense-100": _made(dense, 100, 33),
    "low-rank-100": _made(low_rank, 100, 34),
    "splice": _from_file("splice_dna"),
    "sparse-200": _made(sparse, 200, 41),
    "blocks-200": _made(blocks, 200, 42),
    "dense-200": _made(dense, 200, 43),
    "low-rank-200": _made(low_rank, 200, 44),
}
#: The nine sets that the target ratios are over.
NINE = ("sparse-20", "dense-15", "low-rank-30", "blocks-25", "cancer", "cancer-raw", "wine", "diabetes", "digits")

#: At least 100 columns: there `auto` has to choose well.
MANY_COLUMNS = ("splice", *(name for name in SETS if name.endswith(("-100", "-200"))))


def make(name: str, data: Path) -> np.ndarray:
    """(n, d) rows of a set."""
    return SETS[name](data)
