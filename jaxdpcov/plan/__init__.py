"""Planning before any budget is spent: predicted errors from public inputs, and the default method."""

from jaxdpcov.plan.assumed import reference
from jaxdpcov.plan.planning import plan
from jaxdpcov.plan.result import Forecast, Plan

__all__ = ["Forecast", "Plan", "plan", "reference"]
