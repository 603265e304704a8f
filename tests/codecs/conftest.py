"""Random blocks of any type, and ggml's own quantizer when its library can be found."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import numpy as np
import pytest

from quantkit.codecs import decode
from quantkit.errors import FormatError
from quantkit.qtypes import QType

LIBRARY_VARIABLE = "QUANTKIT_GGML_LIBRARY"
LIBRARY_NAMES = ("libggml-base.so", "libggml-base.so.0", "libggml-base.dylib")


class Ggml:
    """`dequantize_row_*` and `ggml_quantize_chunk` of libggml-base."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._quantize = library.ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        self._quantize.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 3,
            ctypes.c_void_p,
        ]
        for sizes in (library.ggml_type_size, library.ggml_blck_size):
            sizes.argtypes = [ctypes.c_int]
        library.ggml_type_size.restype = ctypes.c_size_t
        library.ggml_blck_size.restype = ctypes.c_int64

    def sizes(self, qtype: QType) -> tuple[int, int]:
        """(block_size, type_size)."""
        block_size = int(self._library.ggml_blck_size(qtype.gguf_id))
        return block_size, int(self._library.ggml_type_size(qtype.gguf_id))

    def decode(self, qtype: QType, data: np.ndarray) -> np.ndarray | None:
        """Values of whole blocks, or None where ggml has no such function."""
        symbol = "dequantize_row_" + qtype.name.lower().replace("_k", "_K")
        function = getattr(self._library, symbol, None)
        if function is None:
            return None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
        data = np.ascontiguousarray(data)
        values = np.empty(data.size // qtype.type_size * qtype.block_size, np.float32)
        function(data.ctypes.data, values.ctypes.data, values.size)
        return values

    def encode(self, qtype: QType, values: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        """What ggml_quantize_chunk writes for a matrix."""
        rows, row_length = values.shape
        data = np.zeros(qtype.nbytes(values.size), np.uint8)
        weights = None
        if importance is not None:
            importance = np.ascontiguousarray(importance, np.float32)
            weights = importance.ctypes.data
        written = self._quantize(
            qtype.gguf_id, values.ctypes.data, data.ctypes.data, 0, rows, row_length, weights
        )
        assert written == data.size
        return data


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    """The library named by QUANTKIT_GGML_LIBRARY (a file or its folder), or one the loader finds."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named and os.path.isdir(named):
        candidates = [os.path.join(named, name) for name in LIBRARY_NAMES]
    else:
        candidates = [named] if named else list(LIBRARY_NAMES)
    for candidate in candidates:
        try:
            return Ggml(ctypes.CDLL(candidate))
        except OSError:
            continue
    pytest.skip(f"libggml-base not found; set {LIBRARY_VARIABLE} to it or to its folder")


def _valid(qtype: QType, block: np.ndarray) -> bool:
    try:
        return bool(np.isfinite(decode(qtype, {"data": block}, (qtype.block_size,))).all())
    except FormatError:
        return False


@pytest.fixture(scope="session")
def random_blocks() -> Callable[[QType, int], np.ndarray]:
    """Random bytes of n blocks, (n, type_size), without the few that hold a non-finite scale."""

    def make(qtype: QType, n_blocks: int) -> np.ndarray:
        rng = np.random.default_rng(sum(qtype.name.encode()))
        drawn = rng.integers(0, 256, (2 * n_blocks, qtype.type_size), dtype=np.uint8)
        valid = np.array([block for block in drawn if _valid(qtype, block)])
        # Of the scale formats binary16 is the most often not finite: one in 32, and up to two.
        assert len(valid) > 0.85 * len(drawn)
        return valid[:n_blocks]

    return make
