"""Populations by name and seed, and real public sets."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxdpcov import _checks
from jaxdpcov.sim.laws import Population, from_rows, normal, population

Array = jax.Array


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
    return population("student_t", below.covariance, parts, mean=mean, scale=scale)


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
    return population("mixture", covariance, parts, mean=mean, scale=scale)


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
    return population("norms", covariance, {"root": root, "norms": norms, "weights": weights}, mean=mean, scale=scale)


def product(d: int, *, largest: float = 0.5, exponent: float = 1.0, scale: float = 1.0, mean: Any = 0.0) -> Population:
    """Independent columns of 0 and 1, column j = 1..d being 1 with probability largest j^-exponent; scaled and moved.

    `mean` is what is added, so that the mean of the population is `mean` + scale largest j^-exponent.
    """
    _checks.between("largest", largest, 0.0, 1.0, open_ends=False)
    _checks.between("exponent", exponent, 0.0, np.inf, open_ends=False)
    chance = largest * np.arange(1.0, d + 1.0) ** -exponent
    covariance = np.diag(chance * (1.0 - chance))
    return population("product", covariance, {"chance": chance}, mean=mean, scale=scale, own_mean=chance)


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


def _spectral(values: np.ndarray, seed: int, mean: Any, scale: float) -> Population:
    basis = _basis(len(values), seed)
    return normal((basis * values) @ basis.T, mean, scale=scale)


def _basis(d: int, seed: Any) -> np.ndarray:
    """A random orthonormal basis, uniform."""
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
    return q * np.sign(np.diagonal(r))


def _known(name: str, settings: Mapping[str, Any], has: list[str]) -> None:
    for setting in settings:
        if setting not in has:
            hint = _checks.hint(setting, has, ".")
            raise ValueError(f"population {name} has no setting {setting!r}{hint} It has {', '.join(has)}")


def _unknown(what: str, name: Any, allowed: Any) -> str:
    return f"{what} one of {', '.join(allowed)}; got {name!r}{_checks.hint(name, allowed)}"
