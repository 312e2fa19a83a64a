"""Simulation: populations with exact moments, and studies of many repetitions on them."""

from jaxdpcov.sim.config import read_study
from jaxdpcov.sim.laws import Population, from_release, from_rows, normal
from jaxdpcov.sim.moments import Truth
from jaxdpcov.sim.populations import DATA_SETS, POPULATIONS, data_set, make
from jaxdpcov.sim.results import Repeats, Results, summarise
from jaxdpcov.sim.run import repeat, sweep
from jaxdpcov.sim.study import Study

__all__ = [
    "DATA_SETS",
    "POPULATIONS",
    "Population",
    "Repeats",
    "Results",
    "Study",
    "Truth",
    "data_set",
    "from_release",
    "from_rows",
    "make",
    "normal",
    "read_study",
    "repeat",
    "summarise",
    "sweep",
]
