"""What a release's own noise levels say: its statistics with their noise in one form, and what follows from them.

In frame units z, x = center + scale z. A covariance comes from a noisy second moment M + E and a noisy mean m + e as
C = (M + E) - (m + e)(m + e)^T + diag(s^2), s the std of e. Its noise is, entry by entry,

    E_jk - m_j e_k - m_k e_j - (e_j e_k - [j = k] s_j^2),

and under add/remove, where both are sums over a noisy count n + f, to first order - (M_jk - 2 m_j m_k) f/n besides. All
parts are uncorrelated, so variances add up: those of `parts`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxdpcov import linalg, status
from jaxdpcov._records import record
from jaxdpcov.bounds import SpectrumBounds
from jaxdpcov.privacy.budget import PureDP
from jaxdpcov.privacy.noise import Measured
from jaxdpcov.release import Release, column_names


@record(static=("law", "joint", "terms"))
class Statistics:
    """The noisy second moment of one release, as it left the noise.

    second: `Measured` (d, d) in z, 0 with std 0 where an entry is a public constant, NaN where none was measured.
    mean: `Measured` (d,) in z, to be subtracted; None where the second moment is a covariance already, or one about the
    public centre. count: `Measured` () where n is private. n: rows. scale: (d,).
    law: "gaussian" or "laplace". joint: whether the noise of one entry is independent of that of the others.
    terms: "rows", or "pairs" where the moment is that of n/2 half differences.
    """

    second: Any
    mean: Any
    count: Any
    n: Any
    scale: Any
    law: str
    joint: bool
    terms: str

    @property
    def units(self) -> Array:
        """(d, d): what 1 in z z^T is in squared data units."""
        return self.scale[:, None] * self.scale[None, :]

    @property
    def size(self) -> Array:
        """What the second moment is a mean over: rows, or pairs of them."""
        return jnp.floor(self.n / 2) if self.terms == "pairs" else self.n

    def covariance(self) -> Array:
        """(d, d), z: the covariance as measured, without bias and without any step that makes it PSD."""
        return centred(self.second.value, None if self.mean is None else self.mean.value, self.mean)

    def parts(self) -> list[Array]:
        """Standard deviations (d, d), z, of the uncorrelated parts of the covariance's noise, largest orders first.

        m_j^2 is estimated without bias by the noisy mean's square less its noise variance, 0 at least.
        """
        std = self.second.std
        parts, eye = [std], np.eye(std.shape[0], dtype=bool)
        product = jnp.zeros_like(std)
        if self.mean is not None:
            s = self.mean.std
            m = root(self.mean.value**2 - s**2)
            cross = m[:, None] * s[None, :]
            # On the diagonal both are one number, with twice the noise of each.
            parts += [jnp.where(eye, 2.0 * cross, cross), jnp.where(eye, 0.0, cross.T)]
            # Var e^2 is 2 s^4 of normal, 5 s^4 of Laplace noise.
            product = s[:, None] * s[None, :]
            square = jnp.sqrt(jnp.asarray(2.0 if self.law == "gaussian" else 5.0, std.dtype))
            parts.append(jnp.where(eye, square * product, product))
        if self.count is not None:
            share = self.count.std / self.n
            outer = 0.0 if self.mean is None else self.mean.value[:, None] * self.mean.value[None, :]
            moved = jnp.abs(self.covariance() - outer) * share
            parts.append(jnp.where(std == 0, 0.0, jnp.where(self.count.value < 1.0, jnp.inf, moved)))
        return parts

    def std(self) -> Array:
        """(d, d), z: the standard deviation of the covariance's noise."""
        return root(sum_of_squares(self.parts()))


def root(x: Array) -> Array:
    """Square roots, 0 with derivative 0 for what is not positive, NaN for NaN."""
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), jnp.where(jnp.isnan(x), jnp.nan, 0.0))


def centred(second: Array, mean: Any, noise: Any) -> Array:
    """The second moment less the mean's square, with the mean's noise variance given back."""
    if mean is None:
        return second
    return second - mean[:, None] * mean[None, :] + jnp.diag(noise.std**2)


def sum_of_squares(parts: Sequence[Array]) -> Array:
    """Of arrays of one shape."""
    total = jnp.zeros_like(parts[0])
    for part in parts:
        total = total + part**2
    return total


def statistics(release: Release, what: str) -> Statistics:
    """The statistics of one release (in a batch: under `lanes`); ValueError that names `what` where it has none."""
    scale = jnp.asarray(release.scale)
    live = scale != 0
    block = live[:, None] & live[None, :]
    found, mean, joint = release.measured.get("second_moment"), release.measured.get("mean"), True
    if found is not None:
        value, std = jnp.asarray(found.value), jnp.asarray(found.std)
        # CoinPress and private preconditioning measure the covariance itself, after a map that mixes columns.
        joint = not isinstance(release.bounds, SpectrumBounds) or release.d == 1
        if value.ndim == 1 and release.d > 1:
            unknown = np.where(np.eye(release.d, dtype=bool), 0.0, np.nan)
            value, std = (jnp.diag(x) + jnp.asarray(unknown, x.dtype) for x in (value, std))
        value, std = value.reshape(block.shape), std.reshape(block.shape)
    elif "covariance" in release.measured:
        value, std = (
            jnp.asarray(x) for x in (release.measured["covariance"].value, release.measured["covariance"].std)
        )
        mean, joint = None, False
    elif "measurement_precision" in release.extra:
        # Covariances already, with the mean's noise in their std.
        weight = jnp.asarray(release.extra["measurement_precision"])
        known, y = weight > 0, jnp.asarray(release.extra["measurements"])
        std = jnp.where(known, 1.0 / jnp.sqrt(jnp.where(known, weight, 1.0)), jnp.nan)
        value, mean = jnp.where(known, y, jnp.nan), None
    else:
        raise ValueError(
            f"{release.mechanism} measures no entry of the second moment, which {what} needs: take a release of "
            "gaussian, laplace, diagonal, clipped_gaussian, adaptive, ssp_select or auto"
        )
    value, std = marked(release, *(jnp.where(block, x, 0.0) for x in (value, std)))
    count = release.measured.get("n")
    paired = getattr(release.config, "center", None) == "pairs"
    return Statistics(
        second=Measured(value, std),
        mean=None if mean is None else Measured(jnp.asarray(mean.value), jnp.asarray(mean.std)),
        count=None if count is None else Measured(jnp.asarray(count.value), jnp.asarray(count.std)),
        n=jnp.asarray(release.n, value.dtype),
        scale=scale.astype(value.dtype),
        law=law(release),
        joint=joint,
        terms="pairs" if paired else "rows",
    )


def marked(release: Release, *values: Array) -> tuple[Array, ...]:
    """Values with NaN throughout where the release is invalid, also where a public constant was known."""
    bits = jnp.asarray(release.status) & (status.INVALID_BUDGET | status.INVALID_BOUNDS)
    return tuple(jnp.where(bits == 0, value, jnp.nan) for value in values)


def law(release: Release) -> str:
    """The law of a release's additive noise: pure budgets buy Laplace noise, all others Gaussian noise."""
    return "laplace" if isinstance(release.spent, PureDP) else "gaussian"


def level(release: Release, what: str) -> Array:
    """(d, d), squared data units: std of the noise on each entry of one release's covariance, 0 where none is known."""
    spectrum = release.measured.get("eigenvalues")
    known = {"second_moment", "covariance"} & release.measured.keys() or "measurement_precision" in release.extra
    if spectrum is not None and not known:
        # Noise on eigenvalues alone moves the matrix no further than that on them, in any direction.
        scale = jnp.asarray(release.scale)
        return jnp.diag(jnp.max(jnp.asarray(spectrum.std)) * scale * scale)
    found = statistics(release, what)
    std = found.std()
    measured = ~jnp.isnan(found.second.value) | jnp.any(jnp.isnan(jnp.diagonal(std)))
    return jnp.where(measured, std, 0.0) * found.units


def units(std: Array) -> Array:
    """(d,) units in which each column's variance has noise of std 1; 1 for a column without noise.

    In them the noise has one scale, whatever the units of the columns and the map that the noise came through.
    """
    own = jnp.diagonal(std)
    return jnp.where(own > 0, jnp.sqrt(jnp.where(own > 0, own, 1.0)), jnp.where(jnp.isnan(own), jnp.nan, 1.0))


def edge(std: Array, unit: Array, fraction: float) -> Array:
    """A fraction of the edge of the noise's spectrum, in units `unit` of the columns; see `linalg.noise_floor`."""
    return linalg.noise_floor(std / (unit[:, None] * unit[None, :]), std.shape[0], fraction=fraction)


def raised(covariance: Array, std: Any, floor: Any, live: Array) -> Array:
    """`covariance` with eigenvalues raised to a floor: a number in squared data units, or None for the noise's own.

    The own floor is a quarter of the edge of the noise's spectrum, both in the `units` of the noise. Rows and columns
    of constant columns are 0.
    """
    both = live[:, None] & live[None, :]
    if floor is None:
        unit = units(std)
        u = unit[:, None] * unit[None, :]
        made = linalg.psd_project(covariance / u, floor=edge(std, unit, 0.25)) * u
    else:
        made = linalg.psd_project(covariance, floor=floor)
    return jnp.where(both, linalg.symmetrize(made), jnp.where(jnp.isnan(made), jnp.nan, 0.0))


def check_floor(name: str, floor: Any) -> Any:
    """None for "noise", else the number that `floor` is."""
    if isinstance(floor, str):
        if floor != "noise":
            raise ValueError(f'{name} must be "noise" or a number >= 0, got {floor!r}')
        return None
    floor = 0.0 if floor is None else floor
    if not isinstance(floor, jax.core.Tracer) and not (np.ndim(floor) == 0 and 0.0 <= float(floor) < np.inf):
        raise ValueError(f'{name} must be "noise" or a number >= 0, got {floor!r}')
    return floor


def centre(release: Release, mean: Any = None) -> Array:
    """(..., d), data units: `mean` if given, else the release's, else the public centre of moments about that."""
    if mean is not None:
        given = jnp.asarray(mean, jnp.asarray(release.center).dtype)
        if given.shape[-1:] != (release.d,):
            raise ValueError(f"mean must have one number for each of the {release.d} columns, got shape {given.shape}")
        return jnp.broadcast_to(given, jnp.shape(release.center))
    if release.mean is not None:
        return jnp.asarray(release.mean)
    if getattr(release.config, "center", None) == "zero":
        return jnp.asarray(release.center)
    raise ValueError(
        f"this release of {release.mechanism} has no mean: pass mean=, one public or private number for each column"
    )


def covariance(release: Release, what: str) -> Array:
    """The released covariance; ValueError that names `what` where there is none."""
    if release.covariance is None:
        raise ValueError(f"{release.mechanism} releases a mean and no covariance, which {what} needs")
    return linalg.symmetrize(release.covariance)


def column(release: Release, name: Any) -> int:
    """The number of a column given by name or number; ValueError that lists the names."""
    names = column_names(release)
    if isinstance(name, str) and name in names:
        return names.index(name)
    if isinstance(name, (int, np.integer)) and not isinstance(name, bool) and -release.d <= name < release.d:
        return int(name) % release.d
    shown = ", ".join(names[:12]) + (", ..." if release.d > 12 else "")
    raise ValueError(f"no column {name!r}: give a name or a number below {release.d}; the columns are {shown}")


def lanes(function: Callable[..., Any], release: Release, *others: Any) -> Any:
    """`function(release, *others)`, over the leading axes of a batch; `others` have the same ones."""
    for _ in range(np.ndim(release.status)):
        function = jax.vmap(function)
    return function(release, *others)


def propagate(function: Callable[[Array], Array], found: Statistics) -> Array:
    """Standard deviations, to first order in the noise, of `function(covariance)`: any shape; data units in both.

    The gradient with respect to each independent noisy number, times its std, all squares added up (delta method).
    """
    scale, names = found.units, ["second"]
    point = {"second": found.second.value}
    if found.mean is not None:
        point["mean"], names = found.mean.value, [*names, "mean"]

    def of(at: dict[str, Array]) -> Array:
        symmetric = linalg.symmetrize(at["second"])
        return jnp.ravel(function(centred(symmetric, at.get("mean"), found.mean) * scale))

    value, back = jax.vjp(of, point)
    upper = np.triu(np.ones(found.second.value.shape, bool))

    def variance(direction: Array) -> Array:
        (slope,) = back(direction)
        # An entry beside the diagonal stands for two of the matrix.
        both = jnp.where(np.eye(upper.shape[0], dtype=bool), slope["second"], 2.0 * slope["second"])
        total = jnp.sum(jnp.where(upper, (both * found.second.std) ** 2, 0.0))
        if "mean" in slope:
            total += jnp.sum((slope["mean"] * found.mean.std) ** 2)
        if found.count is not None:
            moved = sum(jnp.sum(slope[name] * point[name]) for name in names)
            total += (moved * found.count.std / found.n) ** 2
        return total

    variances = jax.lax.map(variance, jnp.eye(value.shape[0], dtype=value.dtype))
    return jnp.sqrt(variances).reshape(jax.eval_shape(function, scale).shape)
