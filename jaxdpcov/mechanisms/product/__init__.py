"""Product distributions over {0, 1}^d (Kamath, Li, Singhal, Ullman 2019): means with noise that fits small ones."""

from jaxdpcov.mechanisms.product.config import ProductConfig
from jaxdpcov.mechanisms.product.release import learn_product, product_mean

__all__ = ["ProductConfig", "learn_product", "product_mean"]
