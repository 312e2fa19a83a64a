"""Data layer: readers that turn files and tables into blocks of numbers."""

from jaxdpcov.data.cells import DataError
from jaxdpcov.data.io import Table, describe_columns, open_table

__all__ = ["DataError", "Table", "describe_columns", "open_table"]
