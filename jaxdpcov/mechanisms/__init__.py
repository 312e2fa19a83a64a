"""The mechanisms, one file each, behind one signature. Importing this package registers them all."""

from jaxdpcov.mechanisms import adaptive, coinpress, emcov, gaussian, separate

__all__ = ["adaptive", "coinpress", "emcov", "gaussian", "separate"]
