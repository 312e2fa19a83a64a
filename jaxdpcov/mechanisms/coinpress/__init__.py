"""CoinPress (Biswas, Dong, Kamath, Ullman 2020): mean, covariance, variance by rounds that narrow a prior range."""

from jaxdpcov.mechanisms.coinpress.config import CoinPressConfig
from jaxdpcov.mechanisms.coinpress.covariance import coinpress_covariance
from jaxdpcov.mechanisms.coinpress.joint import coinpress_gaussian
from jaxdpcov.mechanisms.coinpress.mean import coinpress_mean, coinpress_mean_1d
from jaxdpcov.mechanisms.coinpress.variance import coinpress_variance_1d

__all__ = [
    "CoinPressConfig",
    "coinpress_covariance",
    "coinpress_gaussian",
    "coinpress_mean",
    "coinpress_mean_1d",
    "coinpress_variance_1d",
]
