"""The law of a row, with its exact mean and covariance: `Population`, and those that are made from numbers given.

No guarantee is given here and none is needed: a population is made from public numbers, from rows that are marked
public, or from a release.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record
from jaxdpcov.release import Release

Array = jax.Array


@record(static=("law",))
class Population:
    """The law of a row x = shift + scale y, where y is drawn by `law` from its `parts`.

    mean: (d,), covariance: (d, d), exact, data units. shift: (d,), scale: (). law: "normal", "student_t", "mixture",
    "norms", "product" or "rows". Only the law is static: populations of one law and one shape of parts share compiled
    programs. Made by `make`, `normal`, `from_rows` and `from_release`.

    >>> import jax
    >>> from jaxdpcov.sim import make
    >>> ar1 = make("ar1", 3, correlation=0.5)
    >>> ar1.d, ar1.sample(jax.random.key(0), 100).shape, float(ar1.covariance[0, 2])
    (3, (100, 3), 0.25)
    """

    law: str
    mean: Any
    covariance: Any
    shift: Any
    scale: Any
    parts: dict[str, Any]

    @property
    def d(self) -> int:
        """Number of columns."""
        return int(np.shape(self.mean)[-1])

    @property
    def second_moment(self) -> Any:
        """E[x x^T], (d, d), data units squared."""
        return self.covariance + self.mean[..., :, None] * self.mean[..., None, :]

    def sample(self, key: Any, n: int) -> Array:
        """n independent rows, (n, d), data units, in JAX's default float; jit- and vmap-able for a static n."""
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        return _draw(self, _checks.typed_key(key), int(n))


@functools.partial(jax.jit, static_argnames="n")
def _draw(population: Population, key: Array, n: int) -> Array:
    dtype = jnp.zeros(()).dtype
    shift, scale, parts = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype), (population.shift, population.scale, population.parts)
    )
    return shift[None, :] + scale * _LAWS[population.law](key, parts, n, population.d)


def _draw_normal(key: Array, parts: Mapping[str, Array], n: int, d: int) -> Array:
    z = jax.random.normal(key, (n, d), parts["root"].dtype)
    return jnp.matmul(z, parts["root"].T, precision="highest")


def _draw_student_t(key: Array, parts: Mapping[str, Array], n: int, d: int) -> Array:
    key, key_size = jax.random.split(key)
    freedom = parts["freedom"]
    size = jnp.sqrt((freedom - 2.0) / jax.random.chisquare(key_size, freedom, (n, 1), freedom.dtype))
    return _draw_normal(key, parts, n, d) * size


def _draw_mixture(key: Array, parts: Mapping[str, Array], n: int, d: int) -> Array:
    key, key_label = jax.random.split(key)
    z = jax.random.normal(key, (n, d), parts["means"].dtype)
    label = jax.random.categorical(key_label, jnp.log(parts["weights"]), shape=(n, 1))

    def add(k: Any, rows: Array) -> Array:  # a component at a time: no (n, d, d)
        here = parts["means"][k][None, :] + jnp.matmul(z, parts["roots"][k].T, precision="highest")
        return jnp.where(label == k, here, rows)

    return jax.lax.fori_loop(0, parts["weights"].shape[0], add, jnp.zeros_like(z))


def _draw_norms(key: Array, parts: Mapping[str, Array], n: int, d: int) -> Array:
    key, key_norm = jax.random.split(key)
    x = _draw_normal(key, parts, n, d)
    norm = jax.random.choice(key_norm, parts["norms"], (n, 1), p=parts["weights"])
    return x * (norm / jnp.linalg.norm(x, axis=1, keepdims=True))


def _draw_product(key: Array, parts: Mapping[str, Array], n: int, d: int) -> Array:
    chance = parts["chance"]
    return (jax.random.uniform(key, (n, d), chance.dtype) < chance[None, :]).astype(chance.dtype)


def _draw_rows(key: Array, parts: Mapping[str, Array], n: int, d: int) -> Array:
    return parts["rows"][jax.random.randint(key, (n,), 0, parts["rows"].shape[0])]


_LAWS: dict[str, Callable[[Array, Mapping[str, Array], int, int], Array]] = {
    "normal": _draw_normal,
    "student_t": _draw_student_t,
    "mixture": _draw_mixture,
    "norms": _draw_norms,
    "product": _draw_product,
    "rows": _draw_rows,
}


def normal(covariance: Any, mean: Any = 0.0, *, scale: float = 1.0) -> Population:
    """N(mean, scale^2 covariance): covariance (d, d), positive semidefinite; mean () or (d,), data units.

    >>> from jaxdpcov.sim import normal
    >>> normal([[4.0, 0.0], [0.0, 1.0]], mean=1.0).second_moment[0].tolist()
    [5.0, 1.0]
    """
    covariance, root = _matrix("covariance", covariance)
    return population("normal", covariance, {"root": root}, mean=mean, scale=scale)


def from_rows(rows: Any, *, public: bool = False) -> Population:
    """Rows drawn with replacement from `rows` (n, d), whose mean and covariance (divided by n) are the population's.

    Everything that is simulated or planned from a population depends on it without any noise, so that the rows must
    be public. Say so with `public=True`; nothing else is accepted.

    Raises:
        ValueError: without `public=True`; for rows that are no finite (n, d) numbers.

    >>> from jaxdpcov.sim import from_rows
    >>> from_rows([[0.0, 1.0], [2.0, 1.0]], public=True).mean.tolist()
    [1.0, 1.0]
    """
    if public is not True:
        raise ValueError(
            "from_rows: what is made from a population shows it without noise, so sensitive rows must not become one; "
            "give public=True for public rows, and for sensitive ones an earlier release (from_release)"
        )
    rows = np.asarray(rows, np.float64)
    if rows.ndim != 2 or 0 in rows.shape or not np.all(np.isfinite(rows)):
        raise ValueError(f"rows must be finite numbers of shape (n, d) with n >= 1 and d >= 1, got shape {rows.shape}")
    mean = rows.mean(axis=0)
    centred = rows - mean
    return Population(
        "rows", mean, centred.T @ centred / len(rows), np.zeros_like(mean), np.float64(1.0), {"rows": rows}
    )


def from_release(release: Release) -> Population:
    """The normal population of a release's mean and the positive semidefinite part of its covariance.

    At no further cost: post-processing. The public centre stands in for a mean that was not released.

    >>> import jax
    >>> from jaxdpcov import ZCDP, Bounds, gaussian
    >>> from jaxdpcov.sim import from_release
    >>> rows = jax.random.uniform(jax.random.key(1), (1000, 2))
    >>> from_release(gaussian(jax.random.key(0), rows, ZCDP(0.5), Bounds.box(0.0, 1.0))).law
    'normal'
    """
    if not isinstance(release, Release):
        raise TypeError(f"release must be a Release, got {type(release).__name__}")
    if release.covariance is None:
        raise ValueError(f"this release of {release.mechanism} has no covariance to make a population of")
    covariance = np.asarray(release.covariance, np.float64)
    mean = np.asarray(release.center if release.mean is None else release.mean, np.float64)
    if covariance.ndim != 2 or not np.all(np.isfinite(covariance)) or not np.all(np.isfinite(mean)):
        raise ValueError(
            f"this release of {release.mechanism} is a batch or not finite: no population can be made of it"
        )
    values, vectors = np.linalg.eigh(0.5 * (covariance + covariance.T))
    return normal((vectors * np.maximum(values, 0.0)) @ vectors.T, mean)


def population(
    law: str, covariance: np.ndarray, parts: dict[str, Any], *, mean: Any, scale: Any, own_mean: Any = 0.0
) -> Population:
    """The population shift + scale y of a law of y with that covariance and mean."""
    _checks.positive("scale", scale)
    _checks.finite("mean", mean)
    d = len(covariance)
    if np.shape(mean) not in ((), (d,)):
        raise ValueError(f"mean must be a number or have one entry for each of the {d} columns, got {np.shape(mean)}")
    shift = np.broadcast_to(np.asarray(mean, np.float64), (d,)).copy()
    scale = np.float64(scale)
    return Population(law, shift + scale * own_mean, scale**2 * covariance, shift, scale, parts)


def _matrix(name: str, value: Any) -> tuple[np.ndarray, np.ndarray]:
    """A covariance (d, d) and its symmetric root."""
    matrix = np.asarray(value, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
        raise ValueError(f"{name} must be a finite (d, d) matrix, got shape {matrix.shape}")
    matrix = 0.5 * (matrix + matrix.T)
    values, vectors = np.linalg.eigh(matrix)
    if values[0] < -1e-9 * np.abs(matrix).max():
        raise ValueError(f"{name} must be positive semidefinite")
    return matrix, (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
