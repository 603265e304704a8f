"""`libquantkit_cuda` for torch tensors: block types decoded and encoded on the GPU they lie on.

Results equal the CPU library's bit for bit, save that a decoded NaN is any NaN.
Calls enqueue work on torch's current stream of the tensors' device, like torch's own. The library
is built with `make native-cuda`; without it everything here but `load` raises `DeviceError`.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch
from torch import Tensor

from quantkit.errors import FormatError, QuantkitError
from quantkit.native.abi import Function, Operation
from quantkit.native.lib import FOLDER

VERSION = 1
FILE_NAME = "libquantkit_cuda.so"
BUILD_HINT = "build it on a machine with nvcc: make native-cuda"
ALIGNMENT_BYTES = 16  # of decoded values and of values to encode

_i32, _i64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_i32_out = ctypes.POINTER(ctypes.c_int32)

FUNCTIONS: dict[str, Function] = {
    "qk_cuda_abi_version": Function(_i32),
    "qk_cuda_last_error": Function(ctypes.c_char_p),
    "qk_cuda_block": Function(_i32, (_i32, _i32, _i32_out, _i32_out)),
    "qk_cuda_decode": Function(_i32, (_i32, _pointer, _pointer, _i32, _i64, _pointer)),
    "qk_cuda_encode": Function(
        _i32, (_i32, _pointer, _i32, _pointer, _pointer, _i64, _i64, _pointer)
    ),
}


class Status(IntEnum):
    """What a call returns."""

    OK = 0
    BAD_ARGUMENT = 1
    NO_SUCH_TYPE = 2
    FAILED = 3


class DeviceError(QuantkitError):
    """The CUDA library is missing or does not load, or the device refused its work."""


@dataclass(frozen=True)
class Loaded:
    """The library, or why there is none; `path` is where it was looked for."""

    path: Path
    library: ctypes.CDLL | None
    diagnosis: str


@functools.cache
def load(path: Path = FOLDER / FILE_NAME) -> Loaded:
    """The library, tried once a process and path. Loading needs no GPU."""
    if not path.is_file():
        return Loaded(path, None, f"{path} does not exist")
    try:
        library = ctypes.CDLL(str(path))
        for name, function in FUNCTIONS.items():
            symbol = getattr(library, name)
            symbol.restype = function.result
            symbol.argtypes = list(function.arguments)
    except (OSError, AttributeError) as error:
        return Loaded(path, None, f"{path} does not load: {error}")
    found = int(library.qk_cuda_abi_version())
    if found != VERSION:
        stale = f"{path} has ABI version {found}, this package needs {VERSION}"
        return Loaded(path, None, stale)
    return Loaded(path, library, str(path))


def block(operation: Operation, type_id: int) -> tuple[int, int] | None:
    """(elements, bytes) of a block where the library offers the operation, else None."""
    n_elements, n_bytes = ctypes.c_int32(), ctypes.c_int32()
    status = _library().qk_cuda_block(
        operation, type_id, ctypes.byref(n_elements), ctypes.byref(n_bytes)
    )
    return (n_elements.value, n_bytes.value) if status == Status.OK else None


def decode(type_id: int, data: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Decode whole blocks of any shape, uint8, to (n,) bfloat16 (nearest even) or float32.

    FormatError where the type has no decoder or the bytes are not whole blocks.
    """
    _assert_on_gpu(data, torch.uint8)
    assert dtype in (torch.bfloat16, torch.float32)
    n_elements, n_bytes = _block_or_raise(Operation.DECODE, type_id)
    if data.numel() % n_bytes:
        raise FormatError(
            "the data are not whole blocks",
            value=f"{data.numel()} bytes",
            rule=f"type {type_id} has blocks of {n_bytes} bytes",
        )
    out = torch.empty(data.numel() // n_bytes * n_elements, dtype=dtype, device=data.device)
    with torch.cuda.device(data.device):
        status = _library().qk_cuda_decode(
            type_id,
            data.data_ptr(),
            out.data_ptr(),
            int(dtype == torch.bfloat16),
            out.numel(),
            torch.cuda.current_stream().cuda_stream,
        )
    _check(status)
    return out


def encode(
    type_id: int,
    values: Tensor,
    importance: Tensor | None = None,
    *,
    known_finite: bool = False,
) -> Tensor:
    """Encode rows (rows, row_length) of float32 or bfloat16 to uint8 (rows, bytes of a row).

    `importance` (row_length,) float32 weights the channels, None all alike. FormatError where the
    type has no encoder, a row is not whole blocks, a value is not finite or an importance is
    negative or not finite; `known_finite` omits that last look, which waits for the device.
    """
    _assert_on_gpu(values, torch.float32, torch.bfloat16)
    n_elements, n_bytes = _block_or_raise(Operation.ENCODE, type_id)
    rows, row_length = values.shape
    if row_length % n_elements:
        raise FormatError(
            "a row does not fit the block",
            value=f"{row_length} values",
            rule=f"type {type_id} has blocks of {n_elements}",
        )
    if importance is not None:
        _assert_on_gpu(importance, torch.float32)
        assert importance.shape == (row_length,)
        assert importance.device == values.device
    if not known_finite:
        _check_numbers(values, importance)
    values, importance = _aligned(values), None if importance is None else _aligned(importance)
    shape = (rows, row_length // n_elements * n_bytes)
    out = torch.empty(shape, dtype=torch.uint8, device=values.device)
    with torch.cuda.device(values.device):
        status = _library().qk_cuda_encode(
            type_id,
            values.data_ptr(),
            int(values.dtype == torch.bfloat16),
            None if importance is None else importance.data_ptr(),
            out.data_ptr(),
            rows,
            row_length,
            torch.cuda.current_stream().cuda_stream,
        )
    _check(status)
    return out


def _check_numbers(values: Tensor, importance: Tensor | None) -> None:
    if values.numel() and not torch.stack(torch.aminmax(values)).isfinite().all():
        raise FormatError("a value is not finite", rule="values to encode are finite")
    if importance is None or not importance.numel():
        return
    low, high = torch.aminmax(importance)
    if not (low >= 0 and high.isfinite()):
        raise FormatError(
            "an importance is negative or not finite", rule="importance is finite and not negative"
        )


def _aligned(values: Tensor) -> Tensor:
    """A view into a larger tensor may start anywhere; a copy of it does not."""
    return values if values.data_ptr() % ALIGNMENT_BYTES == 0 else values.clone()


def _assert_on_gpu(tensor: Tensor, *dtypes: torch.dtype) -> None:
    assert tensor.is_cuda
    assert tensor.is_contiguous()
    assert tensor.dtype in dtypes


def _block_or_raise(operation: Operation, type_id: int) -> tuple[int, int]:
    found = block(operation, type_id)
    if found is None:
        raise FormatError(f"no {operation.name.lower()}r of this type on the GPU", value=type_id)
    return found


def _library() -> ctypes.CDLL:
    loaded = load()
    if loaded.library is None:
        raise DeviceError(
            "the CUDA library is not available",
            file=loaded.path,
            value=loaded.diagnosis,
            hint=BUILD_HINT,
        )
    return loaded.library


def _check(status: int) -> None:
    if status == Status.OK:
        return
    raise DeviceError(
        "the CUDA library could not do its work",
        value=f"{Status(status).name}: {_library().qk_cuda_last_error().decode()}",
    )
