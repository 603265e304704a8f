"""The library's functions for numpy arrays, by ggml type id.

Arrays are C-contiguous; inputs may be read-only and memory-mapped. `None` for `threads` is
`lib.thread_count()`. Callers have asked `can_decode` or `can_encode` first; a status that is the
caller's mistake is a RuntimeError.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from quantkit.native import lib
from quantkit.native.abi import Operation, Status

VARIANTS = {"scalar": 0, "avx2": 1, "avx512": 2}
BEST_VARIANT = -1
FLOAT_LARGEST = float(np.finfo(np.float32).max)

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def can_decode(type_id: int | None) -> bool:
    """Whether the library is there and decodes this type."""
    return block(Operation.DECODE, type_id) is not None


def can_encode(type_id: int | None) -> bool:
    """Whether the library is there and encodes this type."""
    return block(Operation.ENCODE, type_id) is not None


def block(operation: Operation, type_id: int | None) -> tuple[int, int] | None:
    """(elements, bytes) of a block where the library offers the operation, else None."""
    library = lib.cpu()
    if library is None or type_id is None:
        return None
    n_elements, n_bytes = ctypes.c_int32(), ctypes.c_int32()
    status = library.qk_cpu_block(
        operation, type_id, ctypes.byref(n_elements), ctypes.byref(n_bytes)
    )
    return (n_elements.value, n_bytes.value) if status == Status.OK else None


def variant() -> str:
    """The instructions in use: a key of VARIANTS."""
    name: str = _library().qk_cpu_variant().decode()
    return name


def set_variant(name: str | None) -> bool:
    """Use other instructions from now on, None the best; False where they do not exist."""
    number = BEST_VARIANT if name is None else VARIANTS[name]
    return bool(_library().qk_cpu_set_variant(number) == Status.OK)


def decode(
    type_id: int,
    data: Bytes,
    out: npt.NDArray[np.generic],
    *,
    fresh: bool = False,
    threads: int | None = None,
) -> bool:
    """Decode whole blocks into `out`: float32, or uint16 for the bits of bfloat16.

    `fresh` says that `out` was allocated for this call: stores past the caches, the best for a
    large `out` that is used again, take three times as long where the kernel still has to
    provide the pages.
    False when a block's scale is suspect: not finite, or so large that a value may overflow.
    """
    assert data.flags.c_contiguous
    assert out.flags.c_contiguous
    assert out.dtype in (np.float32, np.uint16)
    library = _library()
    status = library.qk_cpu_decode(
        type_id,
        data.ctypes.data,
        out.ctypes.data,
        int(out.dtype == np.uint16),
        int(fresh),
        out.size,
        lib.thread_count() if threads is None else threads,
    )
    if status not in (Status.OK, Status.NOT_FINITE):
        raise _mistake(library, status)
    return bool(status == Status.OK)


def try_decode(
    type_id: int | None,
    data: Bytes,
    out: npt.NDArray[np.generic],
    *,
    fresh: bool = False,
    threads: int | None = None,
) -> bool | None:
    """`decode` where the library has the type: whether a scale is suspect; else None."""
    if type_id is None or not can_decode(type_id):
        return None
    return not decode(type_id, np.ascontiguousarray(data), out, fresh=fresh, threads=threads)


def encode(
    type_id: int,
    values: Floats,
    importance: Floats | None,
    out: Bytes,
    *,
    largest: float = FLOAT_LARGEST,
    threads: int | None = None,
) -> int | None:
    """Encode rows (rows, row_length), all weighted by importance (row_length,); None is 1.

    The flat index of the first value that is NaN or exceeds `largest` in magnitude, after which
    `out` holds nothing of use; None when there is none. Importance is finite and not negative.
    """
    assert values.flags.c_contiguous
    assert values.dtype == np.float32
    library = _library()
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
    rows, row_length = values.shape
    assert weights is None or weights.shape == (row_length,)
    status = library.qk_cpu_encode(
        type_id,
        values.ctypes.data,
        None if weights is None else weights.ctypes.data,
        largest,
        out.ctypes.data,
        rows,
        row_length,
        lib.thread_count() if threads is None else threads,
    )
    if status == Status.NOT_FINITE:
        return int(library.qk_last_index())
    if status != Status.OK:
        raise _mistake(library, status)
    return None


def _library() -> ctypes.CDLL:
    library = lib.cpu()
    if library is None:
        raise RuntimeError(f"the native library is not available: {lib.load().diagnosis}")
    return library


def _mistake(library: ctypes.CDLL, status: int) -> RuntimeError:
    message = library.qk_last_error().decode()
    return RuntimeError(f"{Status(status).name}: {message} (index {library.qk_last_index()})")
