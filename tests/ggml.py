"""ggml's own decoders and quantizers through ctypes, where its library can be found."""

from __future__ import annotations

import ctypes
import os

import numpy as np

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

    @staticmethod
    def decoder_name(qtype: QType) -> str:
        """The C function that decodes a type."""
        plain = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
        blocks = "dequantize_row_" + qtype.name.lower().replace("_k", "_K")
        return plain.get(qtype.name, blocks)

    def decode(
        self, qtype: QType, data: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray | None:
        """Values of whole blocks (in `out`), or None where ggml has no such function."""
        function = getattr(self._library, self.decoder_name(qtype), None)
        if function is None:
            return None
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
        data = np.ascontiguousarray(data)
        n_elements = data.size // qtype.type_size * qtype.block_size
        values = np.empty(n_elements, np.float32) if out is None else out
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


def find_ggml() -> Ggml | None:
    """The library named by QUANTKIT_GGML_LIBRARY (a file or its folder), or the loader's."""
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
    return None
