"""Status bits of a release: what a caller should know, computed from public and privatised values only."""

from typing import Any

import numpy as np

OK = 0
#: A budget was not a positive finite number (it was traced, so nothing could raise): every value is NaN.
INVALID_BUDGET = 1
#: Bounds, counts or another public number were invalid (traced): every value is NaN.
INVALID_BOUNDS = 2
#: The noisy row count fell below 1 and was floored there (add/remove only).
COUNT_FLOORED = 4
#: The noisy covariance was not positive semi-definite before post-processing.
NOT_PSD = 8
#: An iterative solver stopped before its residual met the tolerance.
NOT_CONVERGED = 16
#: Too few rows for the theorem behind the method; the answer is private but may be useless.
TOO_FEW_ROWS = 32

_TEXTS = {
    INVALID_BUDGET: "invalid budget: the result is NaN",
    INVALID_BOUNDS: "invalid public bounds or counts: the result is NaN",
    COUNT_FLOORED: "the noisy row count was floored at 1",
    NOT_PSD: "the noisy covariance had negative eigenvalues before post-processing",
    NOT_CONVERGED: "a solver stopped before it converged",
    TOO_FEW_ROWS: "too few rows for the accuracy theorem of this method",
}


def describe(status: Any) -> list[str]:
    """The sentences for one status value, an empty list for OK.

    >>> from jaxdpcov import status
    >>> status.describe(status.COUNT_FLOORED)
    ['the noisy row count was floored at 1']
    """
    value = int(np.asarray(status))
    return [text for bit, text in _TEXTS.items() if value & bit]
