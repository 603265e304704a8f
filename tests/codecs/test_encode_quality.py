"""Encoders against ggml's own quantizer: at most its weighted squared error, on all data."""

from __future__ import annotations

import numpy as np
import pytest

from quantkit.codecs import can_encode, decode, encode
from quantkit.qtypes import QTYPES, QType
from tests.codecs.helpers import each
from tests.ggml import Ggml

ROWS, ROW = 48, 1280
TYPES = [q for q in QTYPES if can_encode(q) and q.gguf_id is not None and q.block_size > 1]


def draw(kind: str) -> np.ndarray:
    rng = np.random.default_rng(11)
    if kind == "gaussian":
        values = rng.standard_normal((ROWS, ROW))
    elif kind == "student-4":
        values = rng.standard_t(4, (ROWS, ROW))
    else:
        values = rng.laplace(size=(ROWS, ROW))
    return (0.02 * values).astype(np.float32)


def weighted_error(values: np.ndarray, decoded: np.ndarray, weight: np.ndarray) -> float:
    return float((weight * (values.astype(np.float64) - decoded) ** 2).sum())


@pytest.mark.peer
@each(TYPES)
@pytest.mark.parametrize("kind", ["gaussian", "student-4", "laplace"])
@pytest.mark.parametrize("spread", [None, 1.0, 2.0], ids=["plain", "spread-1", "spread-2"])
def test_error_is_at_most_that_of_ggml(
    qtype: QType, kind: str, spread: float | None, ggml: Ggml
) -> None:
    values = draw(kind)
    importance = None
    if spread is not None:
        rng = np.random.default_rng(12)
        importance = np.exp(spread * rng.standard_normal(ROW)).astype(np.float32)
    weight = np.ones(ROW) if importance is None else importance.astype(np.float64)
    peer = ggml.decode(qtype, ggml.encode(qtype, values, importance))
    assert peer is not None
    ours = decode(qtype, encode(qtype, values, importance), values.shape)
    bar = weighted_error(values, peer.reshape(values.shape), weight)
    # Q1_0 has one best answer without importance, and ggml gives it.
    assert weighted_error(values, ours, weight) <= bar * (1 + 1e-6)
