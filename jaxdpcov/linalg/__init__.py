"""Linear algebra of symmetric matrices that are public or already privatised: pure mathematics, batched.

All functions work over leading axes, use only the symmetric part (a + a^T)/2 of a matrix argument, and give NaN for a
matrix with a non-finite entry.
"""

from jaxdpcov.linalg.correlation import correlation, nearest_correlation
from jaxdpcov.linalg.matrix import after, smat, svec, symmetrize, try_cholesky
from jaxdpcov.linalg.shrink import noise_floor, shrink_to_diagonal
from jaxdpcov.linalg.spectral import inv_sqrtm, logm, powm, psd_project, spectral_map, sqrtm, top_projector

__all__ = [
    "after",
    "correlation",
    "inv_sqrtm",
    "logm",
    "nearest_correlation",
    "noise_floor",
    "powm",
    "psd_project",
    "shrink_to_diagonal",
    "smat",
    "spectral_map",
    "sqrtm",
    "svec",
    "symmetrize",
    "top_projector",
    "try_cholesky",
]
