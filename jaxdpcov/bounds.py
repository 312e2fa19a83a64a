"""Public bounds, known before any budget is spent: of the rows (l2 ball, box) or of the population (spectrum)."""

from typing import Any

import numpy as np

from jaxdpcov import _checks
from jaxdpcov._records import record


class Bounds:
    """Namespace and common type of the public bounds; build one with `Bounds.l2`, `Bounds.box` or `Bounds.spectrum`.

    Bounds are public inputs. They must not be computed from the sensitive rows.

    >>> from jaxdpcov import Bounds
    >>> Bounds.l2(2.0)
    L2Bounds(radius=2.0, center=None)
    """

    @staticmethod
    def l2(radius: Any, center: Any = None) -> "L2Bounds":
        """Rows lie in the l2 ball ||x - center|| <= radius (data units); `center` is () or (d,), default 0."""
        return L2Bounds(radius, center)

    @staticmethod
    def box(lower: Any, upper: Any) -> "BoxBounds":
        """Rows lie in lower <= x <= upper per column (data units); () broadcasts, equal ends mark a constant column."""
        return BoxBounds(lower, upper)

    @staticmethod
    def spectrum(lower: Any, upper: Any, *, mean_center: Any = None, mean_radius: Any = None) -> "SpectrumBounds":
        """The *population* obeys lower I <= Sigma <= upper I (A0 <= Sigma <= upper A0 for a (d, d) `lower` = A0).

        `mean_center` (d,) and `mean_radius` () say ||mu - mean_center|| <= mean_radius, data units.

        >>> from jaxdpcov import Bounds
        >>> Bounds.spectrum(0.1, 1000.0, mean_radius=50.0).upper
        1000.0
        """
        return SpectrumBounds(lower, upper, mean_center, mean_radius)


@record()
class L2Bounds(Bounds):
    """||x - center||_2 <= radius for every row; see `Bounds.l2`."""

    radius: Any
    center: Any = None

    def __post_init__(self) -> None:
        _checks.positive("radius", self.radius)
        if np.ndim(self.radius) != 0:
            raise ValueError(f"radius must be a single number, got shape {np.shape(self.radius)}")
        if self.center is not None:
            _checks.finite("center", self.center)


@record()
class BoxBounds(Bounds):
    """lower <= x <= upper for every row and column; see `Bounds.box`."""

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        _checks.finite("lower", self.lower)
        _checks.finite("upper", self.upper)
        if np.ndim(self.lower) > 1 or np.ndim(self.upper) > 1:
            raise ValueError(
                "lower and upper must be numbers or one number per column, "
                f"got shapes {np.shape(self.lower)} and {np.shape(self.upper)}"
            )
        if _checks.is_traced(self.lower, self.upper):
            return
        lower, upper = np.asarray(self.lower, float), np.asarray(self.upper, float)
        try:
            inverted = lower > upper
        except ValueError:
            raise ValueError(
                f"lower and upper must have one entry per column, got shapes {lower.shape} and {upper.shape}"
            ) from None
        if np.any(inverted):
            column = int(np.argmax(np.atleast_1d(inverted)))
            low, high = (float(np.broadcast_to(end, np.shape(inverted)).reshape(-1)[column]) for end in (lower, upper))
            raise ValueError(f"lower must not exceed upper; column {column} has lower = {low:g}, upper = {high:g}")


@record()
class SpectrumBounds(Bounds):
    """lower <= Sigma <= upper for the population covariance; see `Bounds.spectrum`."""

    lower: Any
    upper: Any
    mean_center: Any = None
    mean_radius: Any = None

    def __post_init__(self) -> None:
        if np.ndim(self.lower) == 0:
            _checks.positive("lower", self.lower)
        elif np.ndim(self.lower) != 2 or np.shape(self.lower)[0] != np.shape(self.lower)[1]:
            raise ValueError(f"lower must be a number or a (d, d) matrix, got shape {np.shape(self.lower)}")
        else:
            _checks.finite("lower", self.lower)
        _checks.positive("upper", self.upper)
        if np.ndim(self.lower) == 0 and not _checks.is_traced(self.lower, self.upper):
            if np.any(np.asarray(self.lower) > np.asarray(self.upper)):
                raise ValueError(f"lower must not exceed upper, got lower = {self.lower}, upper = {self.upper}")
        if self.mean_center is not None:
            _checks.finite("mean_center", self.mean_center)
        if self.mean_radius is not None:
            _checks.positive("mean_radius", self.mean_radius)
