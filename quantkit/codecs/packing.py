"""Bit layouts: how the small integer codes of a block are packed into bytes.

Each layout converts between codes, one uint8 per element, and the packed bytes of many blocks at
a time. Nibbles are moved eight at a time through 64-bit words; the words are read and written
with the same (little-endian) order, so only shifts inside a byte matter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from quantkit.codecs.base import Bytes

_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_FOUR = np.uint64(4)
_WORD_BYTES = 8


class Layout(ABC):
    """Codes of shape (blocks, elements) to packed bytes of shape (blocks, `nbytes`) and back."""

    nbytes: int

    @abstractmethod
    def unpack(self, packed: Bytes) -> Bytes:
        """Codes, one byte each: a new array, or a view where they are stored so."""

    @abstractmethod
    def pack(self, codes: Bytes) -> Bytes:
        """Packed bytes; `codes` is contiguous and in range."""


class WholeBytes(Layout):
    """One byte per element."""

    def __init__(self, n_elements: int) -> None:
        self.nbytes = n_elements

    def unpack(self, packed: Bytes) -> Bytes:
        return packed

    def pack(self, codes: Bytes) -> Bytes:
        return codes


class Nibbles(Layout):
    """4-bit codes: low nibbles hold the first half of each group, high nibbles the second.

    `group` is 32 elements (16 bytes) in most types and 16 (8 bytes) in NVFP4.
    """

    def __init__(self, n_elements: int, group: int = 32) -> None:
        self.nbytes = n_elements // 2
        self._words = n_elements // _WORD_BYTES
        self._half = group // 2 // _WORD_BYTES

    def _word_pairs(self) -> list[tuple[int, int, int]]:
        """(packed word, word of its low codes, word of its high codes)."""
        pairs = []
        for packed in range(self._words // 2):
            group, within = divmod(packed, self._half)
            low = group * 2 * self._half + within
            pairs.append((packed, low, low + self._half))
        return pairs

    def unpack(self, packed: Bytes) -> Bytes:
        source = np.ascontiguousarray(packed).view(np.uint64)
        codes = np.empty((len(packed), self._words), np.uint64)
        for word, low, high in self._word_pairs():
            np.bitwise_and(source[:, word], _LOW_NIBBLES, out=codes[:, low])
            np.bitwise_and(source[:, word] >> _FOUR, _LOW_NIBBLES, out=codes[:, high])
        return codes.view(np.uint8)

    def pack(self, codes: Bytes) -> Bytes:
        source = codes.view(np.uint64)
        packed = np.empty((len(codes), self._words // 2), np.uint64)
        for word, low, high in self._word_pairs():
            np.bitwise_or(source[:, low], source[:, high] << _FOUR, out=packed[:, word])
        return packed.view(np.uint8)


class FiveBits(Layout):
    """5-bit codes of 32 elements: 4 bytes of fifth bits (LSB first), then 16 bytes of nibbles."""

    nbytes = 20
    _high_bytes = 4

    def __init__(self) -> None:
        self._nibbles = Nibbles(32)

    def unpack(self, packed: Bytes) -> Bytes:
        high = np.unpackbits(packed[:, : self._high_bytes], axis=1, bitorder="little")
        codes = self._nibbles.unpack(packed[:, self._high_bytes :])
        codes |= high << 4
        return codes

    def pack(self, codes: Bytes) -> Bytes:
        high = np.packbits(codes >> 4, axis=1, bitorder="little")
        return np.concatenate([high, self._nibbles.pack(codes & np.uint8(0x0F))], axis=1)


class TwoBits(Layout):
    """2-bit codes, four consecutive elements to a byte, the first in the lowest bits."""

    def __init__(self, n_elements: int) -> None:
        self.nbytes = n_elements // 4
        every_byte = np.arange(256, dtype=np.uint8)[:, None]
        four_codes = (every_byte >> np.array([0, 2, 4, 6], np.uint8)) & 3
        self._four_codes = four_codes.astype(np.uint8).view(np.uint32)[:, 0]

    def unpack(self, packed: Bytes) -> Bytes:
        return np.take(self._four_codes, packed).view(np.uint8)

    def pack(self, codes: Bytes) -> Bytes:
        packed = codes[:, 0::4].copy()
        for position in range(1, 4):
            packed |= codes[:, position::4] << (2 * position)
        return packed


class OneBit(Layout):
    """1-bit codes, eight consecutive elements to a byte, the first in the lowest bit."""

    def __init__(self, n_elements: int) -> None:
        self.nbytes = n_elements // 8

    def unpack(self, packed: Bytes) -> Bytes:
        return np.unpackbits(packed, axis=1, bitorder="little")

    def pack(self, codes: Bytes) -> Bytes:
        return np.packbits(codes, axis=1, bitorder="little")
