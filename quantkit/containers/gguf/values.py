"""GGUF metadata values: the type table, and the bytes of one key-value pair.

A pair is `u64 key length, key, u32 type, value`; a string is `u64 length, bytes`; an array is
`u32 item type, u64 count, items` (specification: docs/gguf.md of ggml, version 3; version 2 has
the same layout). All integers are little-endian. Strings are UTF-8 by the specification, but
tokenizers exist that put other bytes there: those survive as surrogate escapes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from quantkit.errors import ContainerError

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class ValueType(IntEnum):
    """The type ids of metadata values."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# Type -> struct code of one item; strings and arrays have no fixed width.
ITEM_CODE = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
ITEM_BYTES = {kind: struct.calcsize("<" + code) for kind, code in ITEM_CODE.items()}


def text(raw: bytes | memoryview) -> str:
    """Bytes of a GGUF string as text; bytes that are not UTF-8 become surrogate escapes."""
    return str(raw, "utf-8", "surrogateescape")


def pack_string(value: str) -> bytes:
    """`u64 length, bytes`, the inverse of `text`."""
    raw = value.encode("utf-8", "surrogateescape")
    return U64.pack(len(raw)) + raw


def pack_kv(
    key: str, value_type: ValueType, value: Any, item_type: ValueType | None = None
) -> bytes:
    """One key-value pair as it stands in a file; `item_type` is for arrays.

    Raises `ContainerError` for an empty key, a value that its type cannot hold, and nested arrays.
    """
    if not key:
        raise ContainerError("a metadata key may not be empty", value=value)
    try:
        body = (
            _pack_array(item_type, value)
            if value_type is ValueType.ARRAY
            else _pack_items(value_type, [value])
        )
    except (struct.error, AttributeError, TypeError, OverflowError) as error:
        kind = value_type.name if item_type is None else f"{value_type.name} of {item_type.name}"
        raise ContainerError(
            f"a value that the type of metadata key {key!r} cannot hold",
            value=value,
            rule=f"{kind}: {error}",
        ) from error
    return pack_string(key) + U32.pack(value_type) + body


def _pack_array(item_type: ValueType | None, items: Sequence[Any]) -> bytes:
    if item_type is None or item_type is ValueType.ARRAY:
        raise TypeError("an array needs an item type, which may not be an array")
    return U32.pack(item_type) + U64.pack(len(items)) + _pack_items(item_type, items)


def _pack_items(kind: ValueType, items: Sequence[Any]) -> bytes:
    if kind is ValueType.STRING:
        return b"".join(map(pack_string, items))
    return struct.pack(f"<{len(items)}{ITEM_CODE[kind]}", *items)


def unpack_kv(raw: bytes) -> Any:
    """The value of one well-formed pair: int, float, bool, str, or a list of one of them."""
    position = U64.size + U64.unpack_from(raw)[0]
    kind = ValueType(U32.unpack_from(raw, position)[0])
    position += U32.size
    if kind is not ValueType.ARRAY:
        return _unpack_items(raw, position, kind, 1)[0]
    item_type = ValueType(U32.unpack_from(raw, position)[0])
    count = U64.unpack_from(raw, position + U32.size)[0]
    return _unpack_items(raw, position + U32.size + U64.size, item_type, count)


def _unpack_items(raw: bytes, position: int, kind: ValueType, count: int) -> list[Any]:
    if kind is ValueType.STRING:
        return _unpack_strings(raw, position, count)
    return list(struct.unpack_from(f"<{count}{ITEM_CODE[kind]}", raw, position))


def _unpack_strings(raw: bytes, position: int, count: int) -> list[str]:
    length_at = U64.unpack_from
    strings = []
    for _ in range(count):
        start = position + 8
        position = start + length_at(raw, position)[0]
        strings.append(raw[start:position].decode("utf-8", "surrogateescape"))
    return strings


def key_of(raw: bytes) -> str:
    """The key of one packed pair."""
    return text(raw[U64.size : U64.size + U64.unpack_from(raw)[0]])
