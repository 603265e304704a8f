"""Donors that are not what they seem, made by editing the bytes of good ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from quantkit.containers.base import TensorEntry, TensorSpec
from quantkit.containers.gguf import open_gguf, write_gguf

Edit = Callable[[TensorEntry, np.ndarray], np.ndarray]
"""(tensor, its bytes) -> its new bytes."""


def edited(source: Path, out: Path, edit: Edit) -> Path:
    """A copy of a GGUF whose tensors went through `edit`."""
    file = open_gguf(source)
    specs = []
    for entry in file.tensors.values():
        data = edit(entry, entry.parts()["data"].copy()).tobytes()
        specs.append(TensorSpec(entry.name, entry.shape, entry.qtype, lambda data=data: [data]))
    return write_gguf(out, file.metadata.carried(), specs)[0]


def reorder(order: list[int], *words: str) -> Edit:
    """Reorder axis 0 (experts) of tensors whose name contains one of `words`."""

    def edit(entry: TensorEntry, data: np.ndarray) -> np.ndarray:
        if any(word in entry.name for word in words):
            return data.reshape(len(order), -1)[order].ravel()
        return data

    return edit
