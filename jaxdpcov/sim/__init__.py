"""Simulation: populations with exact moments."""

from jaxdpcov.sim.populations import (
    DATA_SETS,
    POPULATIONS,
    Population,
    data_set,
    from_release,
    from_rows,
    make,
    normal,
)

__all__ = [
    "DATA_SETS",
    "POPULATIONS",
    "Population",
    "data_set",
    "from_release",
    "from_rows",
    "make",
    "normal",
]
