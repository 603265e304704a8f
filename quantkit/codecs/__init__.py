"""Values to bytes and back for every tensor type: `decode`, `encode`, and what can do either.

Parts are named arrays as the format names them; the types here have one, `data` (uint8, 1-D,
rows one after the other).

Each type has a readable reference in numpy, and most a twin in the native library that is used
where the library is there: the same bits when decoding, at most the same error when encoding. Both
release the interpreter lock, so callers may work on several tensors in threads. `threads` is how
many the library itself may use for one call, by default QUANTKIT_THREADS or every processor.

Arrays may also be torch tensors, of any device: the results are tensors of that device, computed
there where `libquantkit_cuda` can (`quantkit.codecs.tensors`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

# Importing a module registers its codecs.
from quantkit.codecs import affine, legacy, microscale, plain, reference  # noqa: F401
from quantkit.codecs.base import codec_for, find_codec
from quantkit.codecs.blocks import checked_importance
from quantkit.native import cpu
from quantkit.qtypes import QType

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", np.ndarray, "Tensor")

__all__ = ["can_decode", "can_encode", "decode", "decode_bfloat", "encode", "implementation"]


def can_decode(qtype: QType) -> bool:
    """Whether `decode` reads this type."""
    return find_codec(qtype) is not None


def can_encode(qtype: QType) -> bool:
    """Whether `encode` writes this type."""
    codec = find_codec(qtype)
    return codec is not None and codec.can_encode


def implementation(qtype: QType) -> str:
    """What encodes this type in this process, or decodes it where nothing encodes it.

    "native avx512", "native avx2" or "native scalar", by the instructions in use, or "numpy".
    Those three give the same bytes, numpy's search may give others. FormatError: no codec.
    """
    return f"native {cpu.variant()}" if codec_for(qtype).is_native else "numpy"


def decode(
    qtype: QType,
    parts: Mapping[str, Array],
    shape: tuple[int, ...],
    *,
    threads: int | None = None,
) -> Array:
    """The float32 values of a tensor, in `shape` (row-major).

    F32 gives a view of the part, read-only where the part is. FormatError: a type without
    decoder, bytes that do not match the shape, a block with a scale that is not finite, an integer
    that float32 cannot hold.
    """
    stored: Any = parts
    values: Any
    if any(map(_is_tensor, parts.values())):
        from quantkit.codecs import tensors

        values = tensors.decode(qtype, stored, tuple(shape), threads)
    else:
        values = codec_for(qtype).decode(stored, tuple(shape), threads)
    return values


def decode_bfloat(
    qtype: QType,
    parts: Mapping[str, Array],
    shape: tuple[int, ...],
    *,
    threads: int | None = None,
) -> Array:
    """The values of `decode` rounded to bfloat16 (to nearest even), as bits: uint16 in `shape`.

    Tensors give bfloat16 itself; `torch.from_numpy(bits).view(torch.bfloat16)` makes such a tensor
    of an array without a copy. BF16 gives a view of the part, read-only where the part is. Errors
    as for `decode`.
    """
    stored: Any = parts
    values: Any
    if any(map(_is_tensor, parts.values())):
        from quantkit.codecs import tensors

        values = tensors.decode_bfloat(qtype, stored, tuple(shape), threads)
    else:
        values = codec_for(qtype).decode_bfloat(stored, tuple(shape), threads)
    return values


def encode(
    qtype: QType,
    values: Array,
    importance: np.ndarray | Tensor | None = None,
    *,
    threads: int | None = None,
) -> dict[str, Array]:
    """The parts that store `values` (float32, (..., row)) in type `qtype`.

    `importance` is the mean square of each input channel, (row,) or (n_expert, row) for values of
    three dimensions; block types minimise the squared error weighted by it, plain types ignore it.
    Deterministic, whatever the number of threads. FormatError: a type without encoder, rows that
    are not whole blocks, values that are not finite or too large, importance of another shape.
    """
    given: Any = values
    weights: Any = importance
    parts: Any
    if _is_tensor(values):
        from quantkit.codecs import tensors

        parts = tensors.encode(qtype, given, weights, threads)
    else:
        array = np.asarray(given, np.float32)
        parts = codec_for(qtype).encode(array, checked_importance(array, weights), threads)
    return parts


def _is_tensor(value: object) -> bool:
    """Whether torch made it. Where nothing has loaded torch, nothing did, and it stays unloaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
