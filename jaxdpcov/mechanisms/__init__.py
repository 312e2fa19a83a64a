"""The mechanisms, one file each, behind one signature. Importing this package registers them all."""

from jaxdpcov.mechanisms import adaptive, auto, coinpress, emcov, gaussian, klsu, pace, private_range, product, separate

__all__ = ["adaptive", "auto", "coinpress", "emcov", "gaussian", "klsu", "pace", "private_range", "product", "separate"]
