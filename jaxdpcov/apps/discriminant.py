"""Linear discriminant analysis from one private covariance of features with class indicators: post-processing alone.

Indicators are columns that are 1 where a row is of a class, else 0, as `estimate(categories=...)` makes them. With p
the class frequencies, m the mean and S_xc the covariances of features and indicators, class c has mean m + S_xc / p_c,
and the within-class covariance is S_xx - S_xc S_cc^+ S_cx, where S_cc = diag(p) - p p^T is known from p alone.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdpcov import _checks, linalg
from jaxdpcov._records import record
from jaxdpcov.apps import _noise
from jaxdpcov.release import Release, column_names


@record(static=("classes", "features"))
class Discriminant:
    """A linear classifier of k classes; leading axes of a batch of releases come first.

    frequencies: (k,) shares of the classes, positive, sum 1. means: (k, p), data units.
    covariance: (p, p) pooled within-class covariance, floored, squared data units. coefficients: (k, p) and
    offsets: (k,): a row's log probability of class c is coefficients[c] . x + offsets[c], but for a number of its own.
    classes, features: names of the k classes and p columns, in order.

    >>> import jax
    >>> from jaxdpcov import Bounds, ZCDP, gaussian
    >>> from jaxdpcov.apps.discriminant import discriminant
    >>> kind = (jax.numpy.arange(10_000) % 2).astype(float)
    >>> x = kind + 0.3 * jax.random.normal(jax.random.key(1), (10_000,))
    >>> rows = jax.numpy.stack([x, kind, 1.0 - kind], axis=1)
    >>> release = gaussian(jax.random.key(0), rows, ZCDP(rho=1.0), Bounds.box([-1.0, 0.0, 0.0], [2.0, 1.0, 1.0]))
    >>> found = discriminant(release, classes=["x1", "x2"])
    >>> found.predict([[0.1], [0.9]]).tolist(), (found.log_odds([[0.9]]) > 0).tolist()
    ([1, 0], [[True, False]])
    """

    frequencies: Any
    means: Any
    covariance: Any
    coefficients: Any
    offsets: Any
    classes: tuple[str, ...]
    features: tuple[str, ...]

    def log_probabilities(self, rows: Any) -> jax.Array:
        """Log probabilities (n, k) of the classes at rows (n, p) of the features. As sensitive as the rows."""
        rows = jnp.asarray(rows, self.coefficients.dtype)
        if rows.ndim < 2 or rows.shape[-1] != self.coefficients.shape[-1]:
            raise ValueError(f"rows must be (n, {len(self.features)}), the features alone, got shape {rows.shape}")
        rows = rows.reshape((1,) * (self.coefficients.ndim - rows.ndim) + rows.shape)
        scores = jnp.matmul(rows, self.coefficients.mT, precision="highest") + self.offsets[..., None, :]
        return jax.nn.log_softmax(scores, axis=-1)

    def log_odds(self, rows: Any) -> jax.Array:
        """Log odds (n, k) of each class against all others together, at rows (n, p)."""
        logs = self.log_probabilities(rows)
        k = logs.shape[-1]
        others = [jax.nn.logsumexp(jnp.delete(logs, c, axis=-1), axis=-1) for c in range(k)]
        return logs - jnp.stack(others, axis=-1)

    def predict(self, rows: Any) -> jax.Array:
        """The likeliest class (n,), its number in `classes`, at rows (n, p)."""
        return jnp.argmax(self.log_probabilities(rows), axis=-1)


def discriminant(
    release: Release,
    classes: Sequence[str | int],
    *,
    rest: str | None = None,
    features: Sequence[str | int] | None = None,
    floor: Any = "noise",
    mean: Any = None,
) -> Discriminant:
    """Linear discriminant analysis by the private mean and covariance of a release.

    Formal guarantee: post-processing of the release, at no further cost. Which classes there are is a public choice:
    `classes` must not be read off sensitive rows, where a rare label is private.

    Args:
        release: with a mean and a covariance of features and 0/1 indicators, such as `estimate(..., categories={
            "kind": ["a", "b"]})` makes as columns "kind=a" and "kind=b", or a batch of releases.
        classes: the indicator columns, by name or number, one a class.
        rest: None where each row has just one class among them. Else the name of a further class, for rows that have
            none: so one 0/1 column and `rest` make two classes.
        features: columns to tell the classes by, names or numbers; all others by default.
        floor: eigenvalues of the within-class covariance below it are raised to it, as in `whitening`: "noise" or a
            number in squared data units; None or 0: none.
        mean: (d,), data units: for a release without a mean. Nothing stands in for it: class frequencies are means.

    Returns:
        `Discriminant`.

    What the noise is told apart by. Without `rest`, indicators add up to 1: frequencies are projected on sum 1, and the
    S_xc of a feature on sum 0 over classes, which takes their common noise away. A frequency is at least the noise std
    of an indicator's mean (and 1/n), so that S_xc / p_c stays bounded; all are then scaled to sum 1. The between-class
    part sum_c S_xc S_xc^T / p_c is on average too large by sum_c var(S_xc) / p_c on its diagonal, which is given back;
    the rest is floored as in `whitening`, in units of the noise of the features' own block.

    Raises:
        ValueError: for columns that the release has not, fewer than two classes, releases without covariance or mean,
            or without a known noise level (give a number as floor), and, where numbers are concrete, for a singular
            within-class covariance without floor.

    Edge cases: constant features do not count. A class without rows has the frequency of the noise and a mean near
        that of all. A singular covariance without floor, where it is traced, and an invalid release give NaN.

    References: Fisher 1936; Hastie, Tibshirani, Friedman 2009, section 4.3.

    >>> import numpy as np
    >>> from jaxdpcov import estimate
    >>> from jaxdpcov.apps.discriminant import discriminant
    >>> kind = np.arange(3000) % 2
    >>> table = np.column_stack([kind + np.random.default_rng(0).uniform(-1, 1, 3000), kind])
    >>> release = estimate(table, bounds={"x0": (-1, 2), "x1": (0, 1)}, rho=0.5, method="gaussian", key=1)
    >>> found = discriminant(release, classes=["x1"], rest="other")
    >>> found.classes, abs(found.means).round(0).tolist()
    (('x1', 'other'), [[1.0], [0.0]])
    """
    floor = _noise.check_floor("floor", floor)
    covariance = _noise.covariance(release, "a discriminant")
    if release.mean is None and mean is None:
        raise ValueError(
            f"this release of {release.mechanism} has no mean, and class frequencies are means: release with "
            'center="private", or pass mean=, one number for each column'
        )
    center = _noise.centre(release, mean)
    if isinstance(classes, (str, int)):
        raise ValueError(f"classes must be a list of indicator columns, got {classes!r}")
    c = tuple(_noise.column(release, name) for name in classes)
    if len(set(c)) < len(c) or len(c) + (rest is not None) < 2:
        raise ValueError(f"classes must be two or more different columns, or one with rest=, got {tuple(classes)}")
    x = _features(release, features, c)

    def one(release: Release, covariance: jax.Array, center: jax.Array) -> Any:
        std = _known_level(release, needed=floor is None)
        noise = release.measured.get("mean")
        frequency = jnp.zeros(release.d, covariance.dtype)
        if noise is not None and mean is None:
            frequency = jnp.asarray(noise.std) * jnp.asarray(release.scale)
        live = jnp.asarray(release.scale) != 0
        n = jnp.asarray(release.n, covariance.dtype)
        return _fit(covariance, center, std, frequency, floor, live, n, x, c, rest is not None)

    p, means, within, w, offsets, definite = _noise.lanes(one, release, covariance, center)
    if not _checks.is_traced(definite) and not np.all(definite):
        raise ValueError('the within-class covariance is singular: a discriminant needs floor="noise" or a number > 0')
    names = column_names(release)
    labels = tuple(names[j] for j in c) + (() if rest is None else (rest,))
    return Discriminant(p, means, within, w, offsets, labels, tuple(names[j] for j in x))


def _features(release: Release, features: Sequence[str | int] | None, c: tuple[int, ...]) -> tuple[int, ...]:
    if features is None:
        x = tuple(j for j in range(release.d) if j not in c)
    else:
        x = tuple(_noise.column(release, name) for name in features)
    if not x or set(x) & set(c) or len(set(x)) < len(x):
        raise ValueError(f"features must be different columns beside the classes, at least one, got {x}")
    return x


def _known_level(release: Release, needed: bool) -> Any:
    """The noise's std, None where it is neither known nor needed."""
    try:
        return _noise.level(release, 'floor="noise" (a number will do, too)')
    except ValueError:
        if needed:
            raise
        return None


@functools.partial(jax.jit, static_argnames=("x", "c", "rest"))
def _fit(
    covariance: jax.Array,
    center: jax.Array,
    std: Any,
    frequency: jax.Array,
    floor: Any,
    live: jax.Array,
    n: jax.Array,
    x: tuple[int, ...],
    c: tuple[int, ...],
    rest: bool,
) -> Any:
    at, of = np.array(x), np.array(c)
    s_xx, s_xc, p = covariance[np.ix_(at, at)], covariance[np.ix_(at, of)], center[of]
    noise = jnp.zeros_like(covariance) if std is None else std
    var = noise[np.ix_(at, of)] ** 2
    if rest:
        p = jnp.append(p, 1.0 - jnp.sum(p))
        s_xc = jnp.concatenate([s_xc, -jnp.sum(s_xc, axis=1, keepdims=True)], axis=1)
        var = jnp.concatenate([var, jnp.sum(var, axis=1, keepdims=True)], axis=1)
    else:
        k = len(c)
        p = p - (jnp.sum(p) - 1.0) / k
        s_xc = s_xc - jnp.mean(s_xc, axis=1, keepdims=True)
        var = var * (1.0 - 2.0 / k) + jnp.sum(var, axis=1, keepdims=True) / k**2
    least = jnp.maximum(jnp.max(frequency[of]), 1.0 / jnp.maximum(n, float(len(c) + rest)))
    p = jnp.maximum(p, jnp.minimum(least, 1.0 / (len(c) + rest)))
    p = p / jnp.sum(p)
    means = center[at][None, :] + (s_xc / p[None, :]).T
    between = jnp.matmul(s_xc / p[None, :], s_xc.T, precision="highest")
    within = s_xx - between + jnp.diag(jnp.sum(var / p[None, :], axis=1))
    alive = live[at]
    block = None if std is None else std[np.ix_(at, at)]
    within = _noise.raised(within, block, floor, alive)
    size = jnp.max(jnp.diagonal(within))
    filled = within + jnp.diag(jnp.where(alive, 0.0, jnp.where(size > 0, size, 1.0)))
    lower, definite = linalg.try_cholesky(filled)
    left = jnp.min(jnp.diagonal(lower) ** 2 / jnp.diagonal(filled))
    definite &= left > 8.0 * len(x) * jnp.finfo(filled.dtype).eps
    # About the mean of all, so that nothing large cancels.
    shift = jnp.where(alive[None, :], means - center[at][None, :], 0.0)
    inner = jax.lax.linalg.triangular_solve(lower, shift.T, left_side=True, lower=True)
    w = jax.lax.linalg.triangular_solve(lower, inner, left_side=True, lower=True, transpose_a=True).T
    offsets = jnp.log(p) - 0.5 * jnp.sum(w * shift, axis=1) - jnp.matmul(w, center[at], precision="highest")
    valid = jnp.all(jnp.isfinite(covariance)) & jnp.all(jnp.isfinite(center))
    made = [jnp.where(definite & valid, v, jnp.nan) for v in (p, means, within, w, offsets)]
    return *made, definite | ~valid
