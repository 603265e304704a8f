"""The C ABI, one row per function: what `csrc/include/quantkit.h` declares, for ctypes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

VERSION = 3

_i32, _i64, _f32 = ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_pointer = ctypes.c_void_p
_i32_out = ctypes.POINTER(ctypes.c_int32)


class Status(IntEnum):
    """What a call returns."""

    OK = 0
    BAD_ARGUMENT = 1
    NO_SUCH_TYPE = 2
    NO_SUCH_VARIANT = 3
    NOT_FINITE = 4
    INTERNAL = 5


class Operation(IntEnum):
    """What `qk_cpu_block` is asked about."""

    DECODE = 0
    ENCODE = 1


@dataclass(frozen=True)
class Function:
    """Result and argument types of a C function."""

    result: Any
    arguments: tuple[Any, ...] = ()


FUNCTIONS: dict[str, Function] = {
    "qk_abi_version": Function(_i32),
    "qk_last_error": Function(ctypes.c_char_p),
    "qk_last_index": Function(_i64),
    "qk_cpu_set_variant": Function(_i32, (_i32,)),
    "qk_cpu_variant": Function(ctypes.c_char_p),
    "qk_cpu_block": Function(_i32, (_i32, _i32, _i32_out, _i32_out)),
    "qk_cpu_decode": Function(_i32, (_i32, _pointer, _pointer, _i32, _i32, _i64, _i32)),
    "qk_cpu_encode": Function(_i32, (_i32, _pointer, _pointer, _f32, _pointer, _i64, _i64, _i32)),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of `library` its types; AttributeError names one that is missing."""
    for name, function in FUNCTIONS.items():
        symbol = getattr(library, name)
        symbol.restype = function.result
        symbol.argtypes = list(function.arguments)
