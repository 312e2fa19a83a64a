"""Differentially private covariance in JAX."""

from jaxdpcov.bounds import Bounds
from jaxdpcov.data.cells import DataError
from jaxdpcov.data.rows import Rows
from jaxdpcov.estimate import estimate
from jaxdpcov.mechanisms.gaussian import DiagonalConfig, GaussianConfig, LaplaceConfig, diagonal, gaussian, laplace
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP
from jaxdpcov.release import Release, load

__version__ = "0.1.0"

__all__ = [
    "ApproxDP",
    "Bounds",
    "DataError",
    "DiagonalConfig",
    "GaussianConfig",
    "LaplaceConfig",
    "PureDP",
    "Release",
    "Rows",
    "ZCDP",
    "diagonal",
    "estimate",
    "gaussian",
    "laplace",
    "load",
]
