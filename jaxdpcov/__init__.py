"""Differentially private covariance in JAX."""

from jaxdpcov.bounds import Bounds
from jaxdpcov.data.rows import Rows
from jaxdpcov.mechanisms.gaussian import DiagonalConfig, GaussianConfig, LaplaceConfig, diagonal, gaussian, laplace
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP
from jaxdpcov.release import Release, load

__version__ = "0.1.0"

__all__ = [
    "ApproxDP",
    "Bounds",
    "DiagonalConfig",
    "GaussianConfig",
    "LaplaceConfig",
    "PureDP",
    "Release",
    "Rows",
    "ZCDP",
    "diagonal",
    "gaussian",
    "laplace",
    "load",
]
