"""Types whose reference decoder is gguf-py's: the 256-element blocks; and ggml's activation types.

gguf-py agrees with ggml bit for bit; the chunk loop, the checks and the errors are ours. Only the
native library writes these types, and not all of them.
"""

from __future__ import annotations

import gguf
import numpy as np

from quantkit.codecs.base import Bytes, Codec, Doubles, Floats, register
from quantkit.codecs.blocks import BlockCodec, EncodingCodec
from quantkit.codecs.scale_search import HALF_LARGEST
from quantkit.native import cpu
from quantkit.qtypes import QType, by_name

NAMES = "Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_XS TQ1_0 TQ2_0"
CHUNK_BLOCKS = 64  # gguf-py makes many temporaries of a chunk's size


# The largest multiple of the half-precision scale that a code of either sign reaches.
LARGEST_LEVEL = {
    "Q2_K": 15,  # of the offset's scale
    "Q3_K": 31 * 3,
    "Q4_K": 63,
    "Q5_K": 63,
    "Q6_K": 127 * 31,
    "IQ4_XS": 31 * 113,
}


class ReferenceCodec(EncodingCodec):
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

    @property
    def can_encode(self) -> bool:
        return self.qtype.name in LARGEST_LEVEL and cpu.can_encode(self.qtype.gguf_id)

    @property
    def largest(self) -> float:
        return HALF_LARGEST * LARGEST_LEVEL[self.qtype.name]

    def encode(
        self, values: Floats, importance: Doubles | None, threads: int | None = None
    ) -> dict[str, np.ndarray]:
        if not self.can_encode:
            return Codec.encode(self, values, importance, threads)
        return super().encode(values, importance, threads)

    def encode_matrix(
        self,
        blocks: Floats,
        weights: Floats | None,
        out: Bytes,
        first: int,
        shape: tuple[int, ...],
    ) -> None:
        raise AssertionError("encode() comes here only without a native encoder")


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
