"""Errors of an estimated covariance against the true one, and distances between the distributions that both define.

Every function takes `(estimate, truth)`, matrices (..., d, d) of which the symmetric part counts (the `product` ones:
means (..., d) of distributions over {0,1}^d), batched over leading axes that broadcast, and returns numbers (...). All
run under jit, vmap and grad; a distance that vanishes where the two agree has gradient 0 there. A non-finite entry
gives NaN. A matrix that is not positive definite where a formula needs it gives the worst value of the metric (inf, or
1 for `hellinger` and the total variation) with gradient 0: an average over a study shows it.
"""

from jaxdpcov.metrics.covariance import (
    correlation_error,
    frobenius,
    mahalanobis,
    spectral,
    stein,
    subspace_distance,
)
from jaxdpcov.metrics.gaussian import bures_wasserstein, chi_square, hellinger, kl
from jaxdpcov.metrics.product import product_kl, product_total_variation_bound
from jaxdpcov.metrics.variation import total_variation, total_variation_bounds

__all__ = [
    "bures_wasserstein",
    "chi_square",
    "correlation_error",
    "frobenius",
    "hellinger",
    "kl",
    "mahalanobis",
    "product_kl",
    "product_total_variation_bound",
    "spectral",
    "stein",
    "subspace_distance",
    "total_variation",
    "total_variation_bounds",
]
