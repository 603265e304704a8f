"""Choosing a source for every expert unit: the exact optimum for a file size or an error bound.

Needs numbers only (`sensitivity.json`): no weights, no GPU.
"""

from quantkit.select.solve import Bounds, bounds_of, bytes_from_gb, select

__all__ = ["Bounds", "bounds_of", "bytes_from_gb", "select"]
