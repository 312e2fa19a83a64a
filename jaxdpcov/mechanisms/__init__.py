"""The mechanisms, one file each, behind one signature. Importing this package registers them all."""

from jaxdpcov.mechanisms import gaussian

__all__ = ["gaussian"]
