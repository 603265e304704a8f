"""The codec interface, the registry, and the checks that every codec shares.

A codec turns the named parts of one tensor into float32 values and back. It knows one type's
bytes and nothing about files. Codecs register themselves when their module is imported; a new
type needs a row in `quantkit.qtypes` and one `register` call.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from quantkit.errors import FormatError
from quantkit.qtypes import QType

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint16]  # bits of 16-bit floats

HUGE_PAGE_BYTES = 2 << 20
HUGE_PAGES_FROM_BYTES = 8 << 20

DATA = "data"  # the one part of every GGUF and every plain safetensors tensor


class Codec(ABC):
    """Values of one type: `decode` always, `encode` where `can_encode` says so.

    `threads` is how many the native library may use, None all; the numpy reference uses one.
    """

    def __init__(self, qtype: QType) -> None:
        self.qtype = qtype

    @property
    def can_encode(self) -> bool:
        """Whether `encode` works."""
        return False

    @property
    def is_native(self) -> bool:
        """Whether the native library encodes here, or decodes what has no encoder."""
        return False

    @abstractmethod
    def decode(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Floats:
        """The float32 values, in `shape` (row-major)."""

    def decode_bfloat(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Halves:
        """The bits of the values rounded to bfloat16, uint16 in `shape`."""
        return bfloat_bits(self.decode(parts, shape, threads))

    def encode(
        self, values: Floats, importance: Doubles | None, threads: int | None = None
    ) -> dict[str, np.ndarray]:
        """The parts that store `values`."""
        raise FormatError(
            f"{self.qtype.name} can be read but not written",
            value=self.qtype.name,
            rule="a type with an encoder",
            hint="stages that need this type take it from a donor",
        )


_CODECS: dict[str, Codec] = {}


def register(codec: Codec) -> None:
    """Make `codec` the one for its type; a second one for the same type is our own mistake."""
    assert codec.qtype.name not in _CODECS, codec.qtype.name
    _CODECS[codec.qtype.name] = codec


def find_codec(qtype: QType) -> Codec | None:
    """The codec of `qtype`, or None."""
    return _CODECS.get(qtype.name)


def codec_for(qtype: QType) -> Codec:
    """The codec of `qtype`; FormatError when the type is opaque or has none."""
    found = find_codec(qtype)
    if found is None:
        close = difflib.get_close_matches(qtype.name, list(_CODECS), n=2)
        raise FormatError(
            f"no codec reads {qtype.name}",
            value=qtype.name if qtype.gguf_id is None else f"{qtype.name} (id {qtype.gguf_id})",
            rule="a type with a decoder",
            hint=f"similar types: {', '.join(close)}" if close else None,
        )
    return found


def data_part(qtype: QType, parts: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> Bytes:
    """The `data` part as 1-D bytes, checked against what `shape` needs."""
    require_part(qtype, parts)
    data = parts[DATA].reshape(-1).view(np.uint8)
    require_size(qtype, data.size, shape)
    return data


def require_part(qtype: QType, parts: Mapping[str, object]) -> None:
    """FormatError without the `data` part."""
    if DATA not in parts:
        raise FormatError(
            f"a {qtype.name} tensor without its {DATA!r} part",
            value=sorted(parts),
            rule=f"parts of {qtype.name}: {DATA}",
        )


def require_size(qtype: QType, n_bytes: int, shape: tuple[int, ...]) -> None:
    """FormatError unless `n_bytes` are what whole rows of `shape` take."""
    require_whole_rows(qtype, shape)
    expected = qtype.nbytes(math.prod(shape))
    if n_bytes != expected:
        raise FormatError(
            f"{qtype.name} data of the wrong size",
            value=f"{n_bytes} bytes",
            rule=f"{expected} bytes for shape {shape}",
        )


def require_whole_rows(qtype: QType, shape: tuple[int, ...]) -> None:
    """FormatError unless the rows of `shape` (its last axis) consist of whole blocks."""
    row_length = shape[-1] if shape else 1
    if not qtype.fits_row(row_length):
        raise FormatError(
            f"rows of {row_length} elements do not fit {qtype.name}",
            value=f"shape {shape}",
            rule=f"the last dimension must be a multiple of {qtype.block_size}",
            hint="take a type with a smaller block for this tensor",
        )


def require_magnitude(
    values: Floats,
    largest: float,
    qtype: QType,
    *,
    first: int = 0,
    shape: tuple[int, ...] | None = None,
) -> None:
    """FormatError that names the first element that is not finite or exceeds `largest`.

    `first` is the flat index of `values[0]` in the tensor of `shape`, when a part is checked.
    """
    flat = values.reshape(-1)
    bad = np.flatnonzero(~(np.abs(flat) <= largest))
    if bad.size:
        index = first + int(bad[0])
        shape = values.shape if shape is None else shape
        raise beyond_magnitude(flat[bad[0]], index, largest, qtype, shape)


def beyond_magnitude(
    value: np.float32, index: int, largest: float, qtype: QType, shape: tuple[int, ...]
) -> FormatError:
    """The error about the value at flat `index` of a tensor."""
    position = np.unravel_index(index, shape) if shape else ()
    return FormatError(
        f"a value that {qtype.name} cannot hold",
        value=f"{value} at index {tuple(int(i) for i in position)}",
        rule=f"finite values of magnitude up to {largest:g}",
        hint="a non-finite weight usually comes from a damaged file or an overflow upstream",
    )


def new_output(n_elements: int, dtype: npt.DTypeLike) -> np.ndarray:
    """An array (n_elements,) to decode into, uninitialised; a large one at a huge page's start.

    numpy asks the kernel for huge pages, but only whole ones inside an allocation can be.
    """
    n_bytes = n_elements * np.dtype(dtype).itemsize
    if n_bytes < HUGE_PAGES_FROM_BYTES:
        return np.empty(n_elements, dtype)
    whole_bytes = -(-n_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    space = np.empty(whole_bytes + HUGE_PAGE_BYTES, np.uint8)
    start = -space.ctypes.data % HUGE_PAGE_BYTES
    return space[start : start + n_bytes].view(dtype)


def bfloat_bits(values: Floats) -> Halves:
    """Values rounded to bfloat16, to nearest even, as bits; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    rounded = np.where(np.isnan(values), bits | np.uint32(0x400000), rounded)
    return (rounded >> np.uint32(16)).astype(np.uint16)
