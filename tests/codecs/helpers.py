"""The encoders under test, and the data and the error measure of their tests."""

from __future__ import annotations

import numpy as np
import pytest

from quantkit.codecs import can_encode, decode, encode
from quantkit.codecs.affine import AffineCodec
from quantkit.codecs.base import codec_for
from quantkit.codecs.blocks import SearchingCodec
from quantkit.codecs.legacy import ScaledCodec, SignCodec
from quantkit.native import cpu, lib
from quantkit.qtypes import QTYPES, QType

ENCODABLE = [qtype for qtype in QTYPES if can_encode(qtype)]
BLOCK_TYPES = [qtype for qtype in ENCODABLE if qtype.block_size > 1]
# Scales and offsets: no symmetry between x and -x.
AFFINE = [
    qtype
    for qtype in BLOCK_TYPES
    if isinstance(codec_for(qtype), AffineCodec) or qtype.name in ("Q2_K", "Q4_K", "Q5_K")
]
# Scales that are themselves quantized: a search need not find what it found before.
SCALED_SCALES = [q for q in BLOCK_TYPES if q.block_size == 256 or q.name == "NVFP4"]
SCALED = [q for q in BLOCK_TYPES if isinstance(codec_for(q), (ScaledCodec, SignCodec))]
ROW = 256


def engines_of(qtype: QType) -> list[str]:
    """The implementations that encode a type: the numpy reference, the native library, or both."""
    engines = []
    if qtype.block_size == 1 or isinstance(codec_for(qtype), SearchingCodec):
        engines.append("numpy")
    if cpu.can_encode(qtype.gguf_id):
        engines.append("native")
    return engines


def engine_in_use() -> str:
    """The one that this test runs with."""
    return "numpy" if lib.cpu() is None else "native"


def each(qtypes: list[QType]) -> pytest.MarkDecorator:
    """Every type with every implementation of its encoder."""
    cases = [(engine, qtype) for qtype in qtypes for engine in engines_of(qtype)]
    ids = [f"{engine}-{qtype.name}" for engine, qtype in cases]
    return pytest.mark.parametrize(("engine", "qtype"), cases, indirect=["engine"], ids=ids)


def round_trip(
    qtype: QType, values: np.ndarray, importance: np.ndarray | None = None
) -> np.ndarray:
    return decode(qtype, encode(qtype, values, importance), values.shape)


def gaussian(seed: int, shape: tuple[int, ...] = (24, ROW), scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def heavy_tailed(seed: int, shape: tuple[int, ...] = (24, ROW)) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(4, shape).astype(np.float32)


def channel_weights(seed: int, row: int = ROW) -> np.ndarray:
    return np.exp(1.5 * np.random.default_rng(seed).standard_normal(row)).astype(np.float32)


def squared_error(a: np.ndarray, b: np.ndarray, weight: np.ndarray | float = 1.0) -> float:
    return float((weight * (a.astype(np.float64) - b) ** 2).sum())
