"""Types that store one number per element: floats, small floats, integers, booleans.

NaN and infinity are passed on when reading, as they may be meant (masks); writing refuses them,
like every encoder. Integers that float32 cannot hold exactly are refused rather than rounded:
they are indices or hash constants, and a near miss would be silent corruption.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from quantkit.codecs.base import (
    DATA,
    Bytes,
    Codec,
    Doubles,
    Floats,
    Halves,
    bfloat_bits,
    data_part,
    new_output,
    register,
    require_magnitude,
)
from quantkit.errors import FormatError
from quantkit.native import cpu
from quantkit.qtypes import by_name

CHUNK_ELEMENTS = 1 << 18


class DtypeCodec(Codec):
    """A type that numpy has: F64, integers, booleans; read only."""

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(by_name(name))
        self._dtype = np.dtype(dtype)

    def decode(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Floats:
        stored = data_part(self.qtype, parts, shape).view(self._dtype)
        out = np.empty(stored.size, np.float32)
        for start in range(0, stored.size, CHUNK_ELEMENTS):
            chunk = stored[start : start + CHUNK_ELEMENTS]
            values = out[start : start + CHUNK_ELEMENTS]
            with np.errstate(over="ignore"):
                np.copyto(values, chunk, casting="unsafe")
            self._require_kept(chunk, values, start, shape)
        return out.reshape(shape)

    def _require_kept(
        self, chunk: np.ndarray, values: Floats, start: int, shape: tuple[int, ...]
    ) -> None:
        """Integers must survive exactly, finite doubles must stay finite."""
        if self._dtype.kind == "f":
            lost = np.isinf(values) & np.isfinite(chunk)
        else:
            # Doubles hold every integer below 2^53 and every float32, so they can be compared.
            wide = chunk.astype(np.float64)
            lost = (values != wide) | (np.abs(wide) >= 2.0**53)
        bad = np.flatnonzero(lost)
        if bad.size:
            position = np.unravel_index(start + int(bad[0]), shape) if shape else ()
            raise FormatError(
                f"a {self.qtype.name} value that float32 cannot hold",
                value=f"{chunk[bad[0]]} at index {tuple(int(i) for i in position)}",
                rule="exact integers, finite floats",
                hint="read the bytes of such a tensor instead of decoding it",
            )


class Float32Codec(Codec):
    """F32: decoding returns a view of the part, read-only where the part is."""

    def __init__(self) -> None:
        super().__init__(by_name("F32"))

    @property
    def can_encode(self) -> bool:
        return True

    def decode_bfloat(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Halves:
        out = new_output(math.prod(shape), np.uint16)
        data = data_part(self.qtype, parts, shape)
        if cpu.try_decode(self.qtype.gguf_id, data, out, fresh=True, threads=threads) is None:
            return super().decode_bfloat(parts, shape, threads)
        return out.reshape(shape)

    def decode(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Floats:
        values: Floats = data_part(self.qtype, parts, shape).view("<f4").reshape(shape)
        return values

    def encode(
        self, values: Floats, importance: Doubles | None, threads: int | None = None
    ) -> dict[str, np.ndarray]:
        flat = values.reshape(-1)
        for start in range(0, flat.size, CHUNK_ELEMENTS):
            _require_writable(flat, start, self, values.shape, float(np.finfo(np.float32).max))
        return {DATA: flat.astype("<f4").view(np.uint8)}


class HalfWidthCodec(Codec):
    """A 16-bit float."""

    largest: float

    @property
    def can_encode(self) -> bool:
        return True

    def decode(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Floats:
        data = data_part(self.qtype, parts, shape)
        out = new_output(data.size // 2, np.float32)
        if cpu.try_decode(self.qtype.gguf_id, data, out, fresh=True, threads=threads) is None:
            for start in range(0, out.size, CHUNK_ELEMENTS):
                stop = min(start + CHUNK_ELEMENTS, out.size)
                self._widen(data[2 * start : 2 * stop], out[start:stop])
        return out.reshape(shape)

    def encode(
        self, values: Floats, importance: Doubles | None, threads: int | None = None
    ) -> dict[str, np.ndarray]:
        flat = values.reshape(-1)
        out = np.empty(flat.size, "<u2")
        for start in range(0, flat.size, CHUNK_ELEMENTS):
            chunk = _require_writable(flat, start, self, values.shape, self.largest)
            out[start : start + CHUNK_ELEMENTS] = self._narrow(chunk)
        return {DATA: out.view(np.uint8)}

    @abstractmethod
    def _widen(self, data: Bytes, out: Floats) -> None:
        """Write the values of the stored bits to `out`."""

    @abstractmethod
    def _narrow(self, values: Floats) -> np.ndarray:
        """The bits, rounded to nearest even, uint16."""


class Float16Codec(HalfWidthCodec):
    """F16, IEEE binary16. Values that would round to infinity are refused."""

    largest = float(np.nextafter(np.float32(65520), np.float32(0)))

    def __init__(self) -> None:
        super().__init__(by_name("F16"))

    def _widen(self, data: Bytes, out: Floats) -> None:
        np.copyto(out, data.view("<f2"))

    def _narrow(self, values: Floats) -> np.ndarray:
        return values.astype("<f2").view("<u2")


class Bfloat16Codec(HalfWidthCodec):
    """BF16: the upper half of a float32."""

    # Halfway between the largest bfloat16 and the next power of two rounds to infinity.
    largest = float(np.array(0x7F7F7FFF, np.uint32).view(np.float32))

    def __init__(self) -> None:
        super().__init__(by_name("BF16"))

    def decode_bfloat(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Halves:
        stored: Halves = data_part(self.qtype, parts, shape).view("<u2").reshape(shape)
        return stored

    def _widen(self, data: Bytes, out: Floats) -> None:
        bits = out.view(np.uint32)
        np.copyto(bits, data.view("<u2"))
        np.left_shift(bits, 16, out=bits)

    def _narrow(self, values: Floats) -> np.ndarray:
        return bfloat_bits(values).astype("<u2")


def _require_writable(
    flat: Floats, start: int, codec: Codec, shape: tuple[int, ...], largest: float
) -> Floats:
    """The chunk at `start`, checked."""
    chunk = flat[start : start + CHUNK_ELEMENTS]
    require_magnitude(chunk, largest, codec.qtype, first=start, shape=shape)
    return chunk


class TableCodec(Codec):
    """A float of at most 8 bits, by table; read only. Two 4-bit ones share a byte, low first."""

    def __init__(self, name: str, table: Floats) -> None:
        super().__init__(by_name(name))
        self._table = table

    def decode(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Floats:
        data = data_part(self.qtype, parts, shape)
        return np.take(self._table, data, axis=0).reshape(shape)


def minifloat_table(
    exponent_bits: int, mantissa_bits: int, bias: int, specials: Mapping[int, float]
) -> Floats:
    """The value of every code of a small float with a sign bit; `specials` replaces some."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    normal = np.ldexp(1 + fraction, exponent - bias)
    magnitude = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    values = np.where(codes >> (exponent_bits + mantissa_bits), -magnitude, magnitude)
    for code, value in specials.items():
        values[code] = value
    return values.astype(np.float32)


def _powers_of_two() -> Floats:
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[0xFF] = np.nan
    return values.astype(np.float32)


def _pairs(nibble_table: Floats) -> Floats:
    """(256, 2): what a byte of two codes stands for."""
    codes = np.arange(256)
    return np.stack([nibble_table[codes & 0x0F], nibble_table[codes >> 4]], axis=1)


_INF = float("inf")
_NAN = float("nan")
_E5M2_SPECIALS = {0x7C: _INF, 0xFC: -_INF} | {
    sign | code: _NAN for sign in (0, 0x80) for code in (0x7D, 0x7E, 0x7F)
}

DTYPES = {
    "F64": "<f8",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "?",
}
TABLES = {
    "F4": _pairs(minifloat_table(2, 1, 1, {})),
    "F8_E4M3": minifloat_table(4, 3, 7, {0x7F: _NAN, 0xFF: _NAN}),
    "F8_E5M2": minifloat_table(5, 2, 15, _E5M2_SPECIALS),
    "F8_E4M3FNUZ": minifloat_table(4, 3, 8, {0x80: _NAN}),
    "F8_E5M2FNUZ": minifloat_table(5, 2, 16, {0x80: _NAN}),
    "F8_E8M0": _powers_of_two(),
}

register(Float32Codec())
register(Float16Codec())
register(Bfloat16Codec())
for _name, _dtype in DTYPES.items():
    register(DtypeCodec(_name, _dtype))
for _name, _table in TABLES.items():
    register(TableCodec(_name, _table))
