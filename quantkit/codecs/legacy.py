"""Blocks with one binary16 scale: Q4_0, Q5_0, Q8_0, IQ4_NL, Q2_0, Q1_0.

Layout: the scale `d` (two bytes, little-endian), then the packed codes. A value is
`level(code) * d`. `d` may be negative, which gives the lopsided level sets (-8..7, -1..2) their
other orientation. Source: ggml-common.h and ggml-quants.c of llama.cpp.

Encoders minimise the squared error weighted by importance alone: with the mean square of each
input channel as importance that is the expected squared error of the layer's output for
uncorrelated channels. Without importance every element counts the same, which is the same measure
for inputs without structure. (ggml multiplies importance by sqrt(mean square + x^2), or takes
x^2 when there is none; that favours large weights beyond what the output error asks for.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quantkit.codecs.base import Bytes, Floats, register
from quantkit.codecs.blocks import SearchingCodec
from quantkit.codecs.levels import IntegerLevels, Levels, TableLevels
from quantkit.codecs.packing import FiveBits, Layout, Nibbles, OneBit, TwoBits, WholeBytes
from quantkit.codecs.scale_search import (
    HALF_LARGEST,
    HALF_SMALLEST,
    ScaleSearch,
    block_extreme,
    round_to_half,
)
from quantkit.qtypes import by_name

HALF_BYTES = 2
LEVELS_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class Scan:
    """Which level the largest element of a block is mapped to, one candidate scale for each.

    `plain` is scanned without importance, `weighted` with it: an outlier in a channel that hardly
    matters may then be clipped far, so the scan reaches further. Negative entries turn the level
    set round. Whole levels are included so that what was decoded encodes to itself.
    """

    plain: tuple[float, ...]
    weighted: tuple[float, ...]


def _both_signs(levels: Iterable[float]) -> tuple[float, ...]:
    return tuple(sign * float(level) for level in levels for sign in (-1, 1))


def _steps(start: float, stop: float, step: float) -> list[float]:
    """Evenly spaced levels, both ends included."""
    return list(np.linspace(start, stop, round((stop - start) / step) + 1))


def _ratio(start: float, stop: float, count: int) -> list[float]:
    """Levels in constant ratio, both ends included."""
    return list(np.geomspace(start, stop, count))


def read_half(blocks: Bytes, offset: int) -> Floats:
    """The binary16 field at byte `offset` of each block, as a float32 column (n, 1)."""
    field = np.ascontiguousarray(blocks[:, offset : offset + HALF_BYTES])
    return field.view("<f2").astype(np.float32)


def half_bytes(values: Floats) -> Bytes:
    """(n,) float32 that binary16 holds exactly, as (n, 2) bytes."""
    return values.astype("<f2")[:, None].view(np.uint8)


class ScaledCodec(SearchingCodec):
    """One scale, then packed codes of a fixed level set."""

    def __init__(self, name: str, levels: Levels, layout: Layout, scan: Scan) -> None:
        super().__init__(by_name(name))
        self._levels = levels
        self._layout = layout
        self._scan = scan

    @property
    def largest(self) -> float:
        return HALF_LARGEST * self._levels.largest

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        self._levels.values(self._layout.unpack(blocks[:, -self._layout.nbytes :]), out)
        np.multiply(out, read_half(blocks, 0), out=out)

    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        search = ScaleSearch(self._levels, values, weight)
        extreme = block_extreme(values)
        for level in self._scan.plain if weight is None else self._scan.weighted:
            search.consider(round_to_half(extreme * np.float32(1 / level)))
        search.consider(np.copysign(np.float32(HALF_SMALLEST), extreme))
        search.refine(round_to_half)
        codes = np.ascontiguousarray(search.codes().T)
        return np.concatenate([half_bytes(search.scale), self._layout.pack(codes)], axis=1)


class SignCodec(SearchingCodec):
    """Q1_0: d where the bit is set, -d elsewhere. The optimum is known: the mean magnitude."""

    def __init__(self) -> None:
        super().__init__(by_name("Q1_0"))
        self._layout = OneBit(self.qtype.block_size)

    @property
    def largest(self) -> float:
        return HALF_LARGEST

    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        np.copyto(out, self._layout.unpack(blocks[:, HALF_BYTES:]))
        out *= 2
        out -= 1
        np.multiply(out, read_half(blocks, 0), out=out)

    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        magnitude = np.abs(values)
        total: Floats | np.float32 = np.float32(len(values))
        if weight is not None:
            magnitude *= weight
            total = np.add.reduce(weight, axis=0)
        mean = np.add.reduce(magnitude, axis=0) / total
        bits = np.ascontiguousarray((values >= 0).T).view(np.uint8)
        return np.concatenate([half_bytes(mean), self._layout.pack(bits)], axis=1)


register(
    ScaledCodec(
        "Q4_0",
        IntegerLevels(-8, 7, zero_code=8),
        Nibbles(32),
        Scan(
            plain=_both_signs(_steps(6, 10, 0.25)),
            weighted=_both_signs([8, 7, 6, 5, 4, *_ratio(4, 24, 48)]),
        ),
    )
)
register(
    ScaledCodec(
        "Q5_0",
        IntegerLevels(-16, 15, zero_code=16),
        FiveBits(),
        Scan(
            plain=_both_signs(_steps(12, 18, 0.25)),
            weighted=_both_signs([*range(10, 17), *_ratio(10, 48, 64)]),
        ),
    )
)
register(
    ScaledCodec(
        "Q8_0",
        # -128 is left out, as in ggml: some kernels negate codes as bytes.
        IntegerLevels(-127, 127, zero_code=0),
        WholeBytes(32),
        Scan(
            plain=(*_steps(100, 128, 0.5),),
            weighted=(*_steps(90, 130, 1), *_ratio(131, 320, 32)),
        ),
    )
)
register(
    ScaledCodec(
        "IQ4_NL",
        TableLevels(LEVELS_IQ4_NL),
        Nibbles(32),
        Scan(
            plain=_both_signs([127, 113, 104, 89, *_steps(95, 151, 4)]),
            weighted=_both_signs([127, 113, 104, 89, *_ratio(80, 320, 36)]),
        ),
    )
)
register(
    ScaledCodec(
        "Q2_0",
        IntegerLevels(-1, 2, zero_code=1),
        TwoBits(64),
        Scan(
            plain=_both_signs([1, 2, *_ratio(1, 8, 24)]),
            weighted=_both_signs([1, 2, *_ratio(0.7, 24, 40)]),
        ),
    )
)
register(SignCodec())
