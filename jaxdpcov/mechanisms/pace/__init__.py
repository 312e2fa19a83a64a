"""PACE-GGM (Ferrando et al. 2026): select entries, measure them, reconstruct by maximum entropy; and a rival."""

from jaxdpcov.mechanisms.pace.config import PaceConfig
from jaxdpcov.mechanisms.pace.mechanism import pace
from jaxdpcov.mechanisms.pace.select import SSPSelectConfig, ssp_select

__all__ = ["PaceConfig", "SSPSelectConfig", "pace", "ssp_select"]
