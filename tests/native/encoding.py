"""What the tests of the native encoders share: bytes, values back, errors, an importance."""

from __future__ import annotations

import numpy as np

from quantkit.codecs import decode
from quantkit.native import cpu
from quantkit.qtypes import QType


def encoded(qtype: QType, values: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    assert qtype.gguf_id is not None
    out = np.empty(qtype.nbytes(values.size), np.uint8)
    cpu.encode(qtype.gguf_id, values, importance, out)
    return out


def round_trip(
    qtype: QType, values: np.ndarray, importance: np.ndarray | None = None
) -> np.ndarray:
    return decode(qtype, {"data": encoded(qtype, values, importance)}, values.shape)


def squared_error(
    values: np.ndarray, decoded: np.ndarray, importance: np.ndarray | None = None
) -> float:
    misses = (values.astype(np.float64) - decoded) ** 2
    return float((misses if importance is None else misses * importance).sum())


def some_importance(row: int) -> np.ndarray:
    return np.exp(1.5 * np.random.default_rng(1).standard_normal(row)).astype(np.float32)
