"""Maximum-entropy reconstruction of a covariance from noisy measurements of its entries: pure mathematics."""

from jaxdpcov.maxent.first_order import cholesky_objective as cholesky_objective
from jaxdpcov.maxent.problem import MaxentConfig as MaxentConfig
from jaxdpcov.maxent.problem import MaxentResult as MaxentResult
from jaxdpcov.maxent.problem import objective as objective
from jaxdpcov.maxent.solve import fit as fit
