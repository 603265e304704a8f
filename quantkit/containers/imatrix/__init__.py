"""Importance files: how strongly each input channel of a matrix is used.

Read and written as llama.cpp does it, in its GGUF form and in the older `.dat` (`legacy`).
"""

from quantkit.containers.imatrix.entries import Entry, Importance, MeanSquares
from quantkit.containers.imatrix.store import FORMATS, read_importance, write_importance

__all__ = [
    "FORMATS",
    "Entry",
    "Importance",
    "MeanSquares",
    "read_importance",
    "write_importance",
]
