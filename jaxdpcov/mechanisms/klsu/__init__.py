"""Kamath, Li, Singhal and Ullman (2019): Gaussians of unknown scale, by private recursive preconditioning."""

from jaxdpcov.mechanisms.klsu.config import KLSUConfig
from jaxdpcov.mechanisms.klsu.covariance import naive_pce, pgce, ppc, weak_ppc
from jaxdpcov.mechanisms.klsu.joint import learn_gaussian, private_mean

__all__ = ["KLSUConfig", "learn_gaussian", "naive_pce", "pgce", "ppc", "private_mean", "weak_ppc"]
