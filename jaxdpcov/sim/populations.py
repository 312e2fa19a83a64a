"""Populations to simulate with: laws of rows with exact means and covariances, by name and seed, and real public sets.

No guarantee is given here and none is needed: a population is made from public numbers, from rows that are marked
public, or from a release.
"""

import functools
import inspect
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
    return _population("normal", covariance, {"root": root}, mean=mean, scale=scale)


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


def identity(d: int, *, scale: float = 1.0, mean: Any = 0.0) -> Population:
    """N(mean, scale^2 I)."""
    return normal(np.eye(d), mean, scale=scale)


def ar1(d: int, *, correlation: float = 0.5, scale: float = 1.0, mean: Any = 0.0) -> Population:
    """Normal with variances scale^2 and correlation^|i - j| between columns i and j."""
    _checks.between("correlation", correlation, -1.0, 1.0)
    steps = np.arange(d)
    return normal(np.float64(correlation) ** np.abs(steps[:, None] - steps[None, :]), mean, scale=scale)


def spiked(
    d: int, *, spikes: int | None = None, size: float = 10.0, seed: int = 0, scale: float = 1.0, mean: Any = 0.0
) -> Population:
    """Normal with covariance scale^2 (I + size V V^T), V having `spikes` (3, at most d) random orthonormal columns."""
    spikes = min(3, d) if spikes is None else spikes
    _checks.whole("spikes", spikes, 0)
    if spikes > d:
        raise ValueError(f"spikes must be at most d = {d}, got {spikes}")
    _checks.between("size", size, -1.0, np.inf)
    v = _basis(d, seed)[:, :spikes]
    return normal(np.eye(d) + size * v @ v.T, mean, scale=scale)


def log_uniform(d: int, *, condition: float = 100.0, seed: int = 0, scale: float = 1.0, mean: Any = 0.0) -> Population:
    """Normal with eigenvalues scale^2 times equal steps on the log scale from 1 to 1/condition, in a random basis."""
    _checks.between("condition", condition, 1.0, np.inf, open_ends=False)
    return _spectral(np.geomspace(1.0, 1.0 / condition, d), seed, mean, scale)


def low_trace(
    d: int, *, trace: float = 0.01, decay: float = 1.0, seed: int = 0, scale: float = 1.0, mean: Any = 0.0
) -> Population:
    """Normal with eigenvalues proportional to k^-decay, k = 1..d, that add up to scale^2 trace, in a random basis.

    Of use in the unit ball, where a trace far below 1 says that rows are short.
    """
    _checks.positive("trace", trace)
    _checks.between("decay", decay, 0.0, np.inf, open_ends=False)
    values = np.arange(1.0, d + 1.0) ** -decay
    return _spectral(trace * values / values.sum(), seed, mean, scale)


def sparse_ggm(d: int, *, edges: int | None = None, seed: int = 0, scale: float = 1.0, mean: Any = 0.0) -> Population:
    """Normal with variances scale^2 and a sparse precision: `edges` random pairs (d unless given, or all there are).

    Entries are uniform in 0.3 to 0.8 with either sign, and the diagonal is the largest absolute eigenvalue of the rest
    and 0.1, before variances are scaled to one.
    """
    i, j = np.triu_indices(d, 1)
    edges = min(d, len(i)) if edges is None else edges
    _checks.whole("edges", edges, 0)
    if edges > len(i):
        raise ValueError(f"edges must be at most d (d - 1)/2 = {len(i)}, got {edges}")
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(i), edges, replace=False) if edges else np.zeros(0, int)
    precision = np.zeros((d, d))
    precision[i[chosen], j[chosen]] = rng.uniform(0.3, 0.8, edges) * rng.choice([-1.0, 1.0], edges)
    precision += precision.T
    covariance = np.linalg.inv(precision + np.eye(d) * (np.abs(np.linalg.eigvalsh(precision)).max() + 0.1))
    std = np.sqrt(np.diagonal(covariance))
    return normal(covariance / std[:, None] / std[None, :], mean, scale=scale)


def student_t(
    d: int, *, freedom: float = 3.0, base: str = "identity", scale: float = 1.0, mean: Any = 0.0, **settings: Any
) -> Population:
    """Multivariate t with `freedom` > 2 degrees and the covariance of the normal population `base` with `settings`."""
    _checks.between("freedom", freedom, 2.0, np.inf)
    below = make(base, d, **settings)
    if below.law != "normal":
        raise ValueError(f"base must be a normal population, got {base!r}")
    parts = {"root": below.parts["root"], "freedom": np.float64(freedom)}
    return _population("student_t", below.covariance, parts, mean=mean, scale=scale)


def mixture(
    d: int,
    *,
    components: int = 3,
    separation: float = 3.0,
    condition: float = 10.0,
    seed: int = 0,
    scale: float = 1.0,
    mean: Any = 0.0,
) -> Population:
    """Normal components with random weights, means and covariances, moved so that the whole has mean `mean`.

    Means before that are `separation` long in random directions, weights are of a flat Dirichlet law, and covariances
    have eigenvalues in equal log steps from 1 to 1/condition, each in its own random basis; all times `scale`.
    """
    _checks.whole("components", components, 1)
    _checks.between("separation", separation, 0.0, np.inf, open_ends=False)
    _checks.between("condition", condition, 1.0, np.inf, open_ends=False)
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(components))
    directions = rng.normal(size=(components, d))
    means = separation * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    means -= weights @ means
    values = np.geomspace(1.0, 1.0 / condition, d)
    roots = np.stack([_basis(d, rng) * np.sqrt(values) for _ in range(components)])
    covariance = np.einsum("k,kij,klj->il", weights, roots, roots) + (means.T * weights) @ means
    parts = {"weights": weights, "means": means, "roots": roots}
    return _population("mixture", covariance, parts, mean=mean, scale=scale)


def zipf_norms(
    d: int, *, octaves: int = 1, exponent: float = 3.0, seed: int = 0, scale: float = 1.0, mean: Any = 0.0
) -> Population:
    """Directions of a random linear image of a standard normal, with norms of a Zipf law; in the unit ball.

    The direction is that of U^T g, U uniform in [0, 1]^(d x d). The norm is 2^(k + 1 - octaves) with probability
    proportional to (k + 1)^-exponent, k = 0..octaves - 1. These are the rows of Dong, Liang and Yi (2022),
    which take the mean of the drawn rows away before their norms are set; here it is that of the law, zero.
    """
    _checks.whole("octaves", octaves, 1)
    _checks.finite("exponent", exponent)
    root = np.random.default_rng(seed).uniform(size=(d, d)).T
    weights = np.arange(1.0, octaves + 1.0) ** -exponent
    weights /= weights.sum()
    norms = 2.0 ** (np.arange(octaves) + 1.0 - octaves)
    values, vectors = np.linalg.eigh(root @ root.T)
    shares = direction_shares(np.maximum(values, 0.0))
    covariance = np.sum(weights * norms**2) * (vectors * shares) @ vectors.T
    return _population("norms", covariance, {"root": root, "norms": norms, "weights": weights}, mean=mean, scale=scale)


def product(d: int, *, largest: float = 0.5, exponent: float = 1.0, scale: float = 1.0, mean: Any = 0.0) -> Population:
    """Independent columns of 0 and 1, column j = 1..d being 1 with probability largest j^-exponent; scaled and moved.

    `mean` is what is added, so that the mean of the population is `mean` + scale largest j^-exponent.
    """
    _checks.between("largest", largest, 0.0, 1.0, open_ends=False)
    _checks.between("exponent", exponent, 0.0, np.inf, open_ends=False)
    chance = largest * np.arange(1.0, d + 1.0) ** -exponent
    covariance = np.diag(chance * (1.0 - chance))
    return _population("product", covariance, {"chance": chance}, mean=mean, scale=scale, own_mean=chance)


def direction_shares(values: Any) -> np.ndarray:
    """(d,) E[l_i z_i^2 / sum_j l_j z_j^2] of independent standard normal z, for values l >= 0 that are not all zero.

    1/s = int_0^inf exp(-s t) dt makes it int l_i/(1 + 2 l_i t) prod_j (1 + 2 l_j t)^(-1/2) dt: one dimension. On the
    log scale of t the trapezoid rule converges like exp(-2 pi^2/step).

    >>> from jaxdpcov.sim.populations import direction_shares
    >>> direction_shares([3.0, 3.0, 0.0]).round(12).tolist()
    [0.5, 0.5, 0.0]
    """
    values = np.asarray(values, np.float64)
    positive = values[values > 0]
    step = 0.2
    s = np.arange(-np.log(positive.max()) - 45.0, -np.log(positive.min()) + 90.0, step)
    t = np.exp(s)
    weight = np.exp(-0.5 * np.sum(np.log1p(2.0 * t[:, None] * positive[None, :]), axis=1)) * t * step
    terms = values[None, :] / (1.0 + 2.0 * t[:, None] * values[None, :])
    return np.asarray(weight @ terms)


#: Maker of each population by its name.
POPULATIONS: dict[str, Callable[..., Population]] = {
    maker.__name__: maker
    for maker in (
        identity, ar1, spiked, log_uniform, low_trace, student_t, mixture, sparse_ggm, zipf_norms, product,
    )
}  # fmt: skip
#: Public sets that come with scikit-learn.
DATA_SETS = ("iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud")


def make(name: str, d: int | None = None, **settings: Any) -> Population:
    """The population of that name with d columns, or the one that resamples a public set of `DATA_SETS` (its own d).

    Raises:
        ValueError: an unknown name or setting, with the closest one; a setting out of its range.
        TypeError: a setting that is no number.

    >>> from jaxdpcov.sim import make
    >>> make("student_t", 4, freedom=5.0, base="ar1", correlation=0.3).law
    'student_t'
    >>> make("ar1", 4, corelation=0.3)
    Traceback (most recent call last):
    ValueError: population ar1 has no setting 'corelation'; did you mean 'correlation'? It has correlation, scale, mean
    """
    if name in DATA_SETS:
        check_data_set(name, settings)
        rows, _ = data_set(name, **settings)
        if d is not None and d != rows.shape[1]:
            raise ValueError(f"data set {name} has {rows.shape[1]} columns, not d = {d}")
        return from_rows(rows, public=True)
    if name not in POPULATIONS:
        raise ValueError(_unknown("population must be", name, [*POPULATIONS, *DATA_SETS]))
    if d is None:
        raise ValueError(f"population {name} needs d, the number of columns")
    _checks.whole("d", d, 1)
    has = [p for p in inspect.signature(POPULATIONS[name]).parameters.values() if p.kind is p.KEYWORD_ONLY]
    own = [parameter.name for parameter in has]
    if name == "student_t":  # the rest are those of the base, which checks them
        _known(name, {key: value for key, value in settings.items() if key in own}, own)
    else:
        _known(name, settings, own)
    return POPULATIONS[name](d, **settings)


def data_set(name: str, prepare: str = "standardised") -> tuple[np.ndarray, tuple[str, ...]]:
    """Rows (n, d) of a set that comes with scikit-learn, float64, and the names of their columns.

    Columns without spread are left out (of digits those with a standard deviation up to half a grey level).

    Args:
        name: one of `DATA_SETS`.
        prepare: "standardised": columns about their means in units of four standard deviations, clipped to [-1, 1];
            "powers_of_two": columns divided by the power of two above their largest absolute value; "none": as they
            are. Both look at the rows, which are public here.

    >>> from jaxdpcov.sim import data_set
    >>> rows, columns = data_set("iris")
    >>> rows.shape, columns[0]
    ((150, 4), 'sepal length (cm)')
    """
    if name not in DATA_SETS:
        raise ValueError(_unknown("data set must be", name, DATA_SETS))
    check_data_set(name, {"prepare": prepare})
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    x = np.asarray(found.data, np.float64)
    kept = x.std(axis=0) > (0.5 if name == "digits" else 0.0)
    x, columns = x[:, kept], tuple(str(column) for column, one in zip(found.feature_names, kept) if one)
    if prepare == "standardised":
        centred = x - x.mean(axis=0)
        x = np.clip(centred / (4.0 * centred.std(axis=0)), -1.0, 1.0)
    elif prepare == "powers_of_two":
        x = x / 2.0 ** np.ceil(np.log2(np.abs(x).max(axis=0)))
    return x, columns


def check_data_set(name: str, settings: Mapping[str, Any]) -> None:
    """ValueError for a setting that `data_set` has not."""
    _known(name, settings, ["prepare"])
    _checks.choice("prepare", settings.get("prepare", "none"), ("standardised", "powers_of_two", "none"))


def _population(
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


def _spectral(values: np.ndarray, seed: int, mean: Any, scale: float) -> Population:
    basis = _basis(len(values), seed)
    return normal((basis * values) @ basis.T, mean, scale=scale)


def _basis(d: int, seed: Any) -> np.ndarray:
    """A random orthonormal basis, uniform."""
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
    return q * np.sign(np.diagonal(r))


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


def _known(name: str, settings: Mapping[str, Any], has: list[str]) -> None:
    for setting in settings:
        if setting not in has:
            hint = _checks.hint(setting, has, ".")
            raise ValueError(f"population {name} has no setting {setting!r}{hint} It has {', '.join(has)}")


def _unknown(what: str, name: Any, allowed: Any) -> str:
    return f"{what} one of {', '.join(allowed)}; got {name!r}{_checks.hint(name, allowed)}"
