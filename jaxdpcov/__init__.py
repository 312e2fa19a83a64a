"""Differentially private covariance in JAX."""

from jaxdpcov.bounds import Bounds
from jaxdpcov.data.cells import DataError
from jaxdpcov.data.rows import Rows
from jaxdpcov.estimate import estimate
from jaxdpcov.mechanisms.adaptive import AdaptiveConfig, adaptive
from jaxdpcov.mechanisms.coinpress import (
    CoinPressConfig,
    coinpress_covariance,
    coinpress_gaussian,
    coinpress_mean,
    coinpress_mean_1d,
    coinpress_variance_1d,
)
from jaxdpcov.mechanisms.emcov import EMCovConfig, emcov
from jaxdpcov.mechanisms.gaussian import DiagonalConfig, GaussianConfig, LaplaceConfig, diagonal, gaussian, laplace
from jaxdpcov.mechanisms.separate import (
    ClippedGaussianConfig,
    ClippedSeparateConfig,
    SeparateConfig,
    clipped_gaussian,
    clipped_separate,
    separate,
)
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP
from jaxdpcov.release import Release, load

__version__ = "0.1.0"

__all__ = [
    "AdaptiveConfig",
    "ApproxDP",
    "Bounds",
    "ClippedGaussianConfig",
    "ClippedSeparateConfig",
    "CoinPressConfig",
    "DataError",
    "DiagonalConfig",
    "EMCovConfig",
    "GaussianConfig",
    "LaplaceConfig",
    "PureDP",
    "Release",
    "Rows",
    "SeparateConfig",
    "ZCDP",
    "adaptive",
    "clipped_gaussian",
    "clipped_separate",
    "coinpress_covariance",
    "coinpress_gaussian",
    "coinpress_mean",
    "coinpress_mean_1d",
    "coinpress_variance_1d",
    "diagonal",
    "emcov",
    "estimate",
    "gaussian",
    "laplace",
    "load",
    "separate",
]
