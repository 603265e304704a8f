"""Four-bit floats (e2m1) with byte-wide scales: MXFP4 and NVFP4.

Both store the doubled e2m1 values 0, 1, 2, 3, 4, 6, 8, 12 and half of the nominal scale.

MXFP4: 32 elements, one e8m0 byte e (a power of two, 2^(e-127)), then nibbles. 0xFF is NaN.
NVFP4: 64 elements, four unsigned e4m3 bytes, one per 16 elements, then nibbles per 16 elements.
The GGUF block has no tensor-wide scale. Byte 0x7F, NaN elsewhere, reads as 0 in ggml.

Source: ggml-common.h, ggml-impl.h of llama.cpp; OCP Microscaling Formats 1.0. The few scales in
reach of the block's largest element are all scored.
"""

from __future__ import annotations

import numpy as np

from quantkit.codecs.base import Bytes, Floats, register
from quantkit.codecs.blocks import SearchingCodec
from quantkit.codecs.levels import TableLevels
from quantkit.codecs.packing import Nibbles
from quantkit.codecs.scale_search import ScaleSearch
from quantkit.qtypes import by_name

LEVELS_E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
LEVELS = TableLevels(LEVELS_E2M1_DOUBLED)

E8M0_BIAS = 127
E8M0_LARGEST = 252  # 12 times its scale is the last that float32 holds
# Exponents tried relative to the one that maps the largest element into [4, 8): one above for
# elements beyond the largest value, 6, and some below, which clip an element of no importance.
PLAIN_EXPONENTS = (0, 1, -1)
WEIGHTED_EXPONENTS = (0, 1, -1, -2, -3)

E4M3_LARGEST_CODE = 0x7E
# Scale codes tried relative to the smallest that keeps the largest element within range. Eight
# codes are an octave; some groups are stored best with their largest element at level 4 or 3.
PLAIN_CODE_STEPS = tuple(range(-6, 9))
WEIGHTED_CODE_STEPS = tuple(range(-14, 9))


def _e8m0_halves() -> Floats:
    """2^(e-128) for every byte e; NaN for 0xFF."""
    scales = np.ldexp(1.0, np.arange(256) - E8M0_BIAS - 1)
    scales[0xFF] = np.nan
    return scales.astype(np.float32)


def _e4m3_halves() -> Floats:
    """Half the value of every unsigned e4m3 byte (the top bit is ignored)."""
    codes = np.arange(256) & 0x7F
    exponent, mantissa = codes >> 3, codes & 7
    normal = np.ldexp(1.0 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values[np.arange(256) == 0x7F] = 0.0
    return (values / 2).astype(np.float32)


E8M0_HALVES = _e8m0_halves()
E4M3_HALVES = _e4m3_halves()


class Mxfp4Codec(SearchingCodec):
    """One power-of-two scale per 32 elements."""

    def __init__(self) -> None:
        super().__init__(by_name("MXFP4"))
        self._layout = Nibbles(self.qtype.block_size)

    @property
    def largest(self) -> float:
        return float(E8M0_HALVES[E8M0_LARGEST]) * LEVELS.largest

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        LEVELS.values(self._layout.unpack(blocks[:, 1:]), out)
        np.multiply(out, E8M0_HALVES[blocks[:, :1]], out=out)

    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        largest = np.abs(values).max(axis=0)
        # frexp gives largest = f * 2^exponent with f in [0.5, 1); divided by 2^exponent, blocks
        # of any magnitude can be squared and summed. Two steps, as 2^exponent may overflow.
        exponent = np.frexp(largest)[1]
        half = exponent // 2
        normalised = np.ldexp(np.ldexp(values, -half), half - exponent)
        search = ScaleSearch(LEVELS, normalised, weight)
        base = exponent - 3 + E8M0_BIAS
        for step in PLAIN_EXPONENTS if weight is None else WEIGHTED_EXPONENTS:
            code = np.clip(base + step, 0, E8M0_LARGEST)
            search.consider(np.ldexp(np.float32(1), code - 1 - E8M0_BIAS - exponent))
        # A block of zeros keeps scale 0, whose logarithm does not exist: code 0 serves.
        best = np.frexp(search.scale)[1] + exponent + E8M0_BIAS
        code = np.where(search.scale > 0, best, 0).astype(np.uint8)
        codes = np.ascontiguousarray(search.codes().T)
        return np.concatenate([code[:, None], self._layout.pack(codes)], axis=1)


class Nvfp4Codec(SearchingCodec):
    """Four e4m3 scales per 64 elements; each group of 16 is searched on its own."""

    _groups = 4
    _group_size = 16

    def __init__(self) -> None:
        super().__init__(by_name("NVFP4"))
        self._layout = Nibbles(self.qtype.block_size, group=self._group_size)

    @property
    def largest(self) -> float:
        return float(E4M3_HALVES[E4M3_LARGEST_CODE]) * LEVELS.largest

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        LEVELS.values(self._layout.unpack(blocks[:, self._groups :]), out)
        groups = out.reshape(-1, self._groups, self._group_size)
        np.multiply(groups, E4M3_HALVES[blocks[:, : self._groups], None], out=groups)

    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        n_blocks = values.shape[1]
        groups = self._by_group(values)
        search = ScaleSearch(LEVELS, groups, None if weight is None else self._by_group(weight))
        ideal = np.abs(groups).max(axis=0) / np.float32(LEVELS.largest)
        base = np.searchsorted(E4M3_HALVES[: E4M3_LARGEST_CODE + 1], ideal)
        for step in PLAIN_CODE_STEPS if weight is None else WEIGHTED_CODE_STEPS:
            search.consider(E4M3_HALVES[np.clip(base + step, 0, E4M3_LARGEST_CODE)])
        code = np.searchsorted(E4M3_HALVES[: E4M3_LARGEST_CODE + 1], search.scale)
        codes = np.ascontiguousarray(search.codes().T).reshape(n_blocks, -1)
        scales = code.astype(np.uint8).reshape(n_blocks, self._groups)
        return np.concatenate([scales, self._layout.pack(codes)], axis=1)

    def _by_group(self, columns: Floats) -> Floats:
        """(64, n) as (16, 4 n): the four groups of a block side by side."""
        grouped = columns.reshape(self._groups, self._group_size, -1).transpose(1, 2, 0)
        return np.ascontiguousarray(grouped).reshape(self._group_size, -1)


register(Mxfp4Codec())
register(Nvfp4Codec())
