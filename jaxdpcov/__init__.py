"""Differentially private covariance in JAX."""

from jaxdpcov.bounds import Bounds
from jaxdpcov.data.cells import DataError
from jaxdpcov.data.rows import Rows
from jaxdpcov.estimate import estimate
from jaxdpcov.mechanisms.adaptive import AdaptiveConfig, adaptive
from jaxdpcov.mechanisms.auto import AutoConfig, auto
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
from jaxdpcov.mechanisms.klsu import KLSUConfig, learn_gaussian, naive_pce, pgce, ppc, private_mean, weak_ppc
from jaxdpcov.mechanisms.pace import PaceConfig, SSPSelectConfig, pace, ssp_select
from jaxdpcov.mechanisms.private_range import RangeConfig, private_range
from jaxdpcov.mechanisms.product import ProductConfig, learn_product, product_mean
from jaxdpcov.mechanisms.separate import (
    ClippedGaussianConfig,
    ClippedSeparateConfig,
    SeparateConfig,
    clipped_gaussian,
    clipped_separate,
    separate,
)
from jaxdpcov.plan import Plan, plan
from jaxdpcov.privacy.budget import ZCDP, ApproxDP, PureDP
from jaxdpcov.release import Release, load

__version__ = "0.1.0"

__all__ = [
    "AdaptiveConfig",
    "ApproxDP",
    "AutoConfig",
    "Bounds",
    "ClippedGaussianConfig",
    "ClippedSeparateConfig",
    "CoinPressConfig",
    "DataError",
    "DiagonalConfig",
    "EMCovConfig",
    "GaussianConfig",
    "KLSUConfig",
    "LaplaceConfig",
    "PaceConfig",
    "Plan",
    "ProductConfig",
    "PureDP",
    "RangeConfig",
    "Release",
    "Rows",
    "SSPSelectConfig",
    "SeparateConfig",
    "ZCDP",
    "adaptive",
    "auto",
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
    "learn_gaussian",
    "learn_product",
    "load",
    "naive_pce",
    "pace",
    "pgce",
    "plan",
    "ppc",
    "private_mean",
    "private_range",
    "product_mean",
    "separate",
    "ssp_select",
    "weak_ppc",
]
