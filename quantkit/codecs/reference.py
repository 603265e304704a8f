"""Types that are read but not written: the 256-element blocks, and ggml's activation types.

K-quants, IQ1 to IQ4 and TQ are decoded by gguf-py, which agrees with ggml bit for bit; the chunk
loop, the checks and the errors are ours.
"""

from __future__ import annotations

import gguf
import numpy as np

from quantkit.codecs.base import Bytes, Floats, register
from quantkit.codecs.blocks import BlockCodec
from quantkit.qtypes import QType, by_name

NAMES = "Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS TQ1_0 TQ2_0"
CHUNK_BLOCKS = 64  # gguf-py makes many temporaries of a chunk's size


class ReferenceCodec(BlockCodec):
    """A type that gguf-py can decode."""

    def __init__(self, qtype: QType) -> None:
        super().__init__(qtype)
        self._peer_type = gguf.GGMLQuantizationType[qtype.name]

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        for start in range(0, len(blocks), CHUNK_BLOCKS):
            chunk = np.ascontiguousarray(blocks[start : start + CHUNK_BLOCKS])
            # As one row: gguf-py loops over groups of rows.
            values = gguf.quants.dequantize(chunk.reshape(1, -1), self._peer_type)
            out[start : start + CHUNK_BLOCKS] = values.reshape(-1, self.qtype.block_size)


class ActivationCodec(BlockCodec):
    """Q8_1 and Q8_K: a scale, int8 values, and sums of values that only dot products use.

    The values start at byte 4: in Q8_1 a half sum follows the half scale, in Q8_K the scale is a
    float32 and the sums come last.
    """

    _first_value = 4

    def __init__(self, name: str, scale_dtype: str) -> None:
        super().__init__(by_name(name))
        self._scale_dtype = np.dtype(scale_dtype)

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        scale = np.ascontiguousarray(blocks[:, : self._scale_dtype.itemsize])
        stored = blocks[:, self._first_value : self._first_value + self.qtype.block_size]
        np.copyto(out, np.ascontiguousarray(stored).view(np.int8))
        np.multiply(out, scale.view(self._scale_dtype).astype(np.float32), out=out)


for _name in NAMES.split():
    register(ReferenceCodec(by_name(_name)))
register(ActivationCodec("Q8_1", "<f2"))
register(ActivationCodec("Q8_K", "<f4"))
