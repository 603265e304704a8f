"""The header of one GGUF file: key-value pairs located, tensor records listed, nothing decoded.

Layout (ggml's docs/gguf.md, versions 2 and 3, little-endian):

    "GGUF"  u32 version  u64 n_tensors  u64 n_pairs
    n_pairs   x  key-value pair                       (see values.py)
    n_tensors x  string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset
    padding to the alignment, then the data; offsets count from there

A vocabulary holds half a million strings. They are stepped over here and decoded when somebody
asks, which keeps opening a file at a few hundredths of a second. Every length is checked against
the bytes that are left before it is used, so a hostile header can neither allocate nor loop long.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from quantkit.containers.gguf.values import ITEM_BYTES, U32, U64, ValueType, text
from quantkit.errors import ContainerError
from quantkit.files import open_input

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
MAX_NAME_BYTES = 63
MAX_DIMS = 4
MAX_ELEMENTS = 2**63 - 1

# Real files have at most some hundred pairs, some ten thousand tensors and 260,000 tokens.
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_STRINGS = 1 << 24
MAX_KEY_BYTES = 1 << 16
# Smaller pairs are kept in memory; bigger ones are read again when they are asked for.
KEPT_BYTES = 4096

_FOREIGN_STARTS = (
    (b"version https://git-lfs", "this is a Git LFS pointer; fetch the file itself: git lfs pull"),
    (b"lmgg", "a GGML file from before GGUF; convert the original model again"),
    (b"tjgg", "a GGJT file from before GGUF; convert the original model again"),
    (b"<", "this looks like a web page; the download needs a login or another address"),
    (b"PK\x03\x04", "this is a zip archive or a PyTorch checkpoint"),
    (b"\0\0\0\0", "the file is empty space; its download has not finished"),
)


class PairSlot(NamedTuple):
    """Where one key-value pair is: `nbytes` bytes at `start`, also as `raw` if it is small."""

    value_type: ValueType
    item_type: ValueType | None
    n_items: int
    start: int
    nbytes: int
    raw: bytes | None


class TensorRecord(NamedTuple):
    """One tensor as the header lists it; `ne` has the fastest axis first."""

    name: str
    ne: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True)
class Header:
    """The parsed header of one file."""

    path: Path
    file_bytes: int
    version: int
    alignment: int
    pairs: dict[str, PairSlot]
    tensors: list[TensorRecord]
    data_start: int


def padded(nbytes: int, alignment: int) -> int:
    """`nbytes` rounded up to a multiple of `alignment` (a power of two)."""
    return (nbytes + alignment - 1) & -alignment


def parse_header(path: Path) -> Header:
    """Parse the header of one file; `ContainerError` says what is wrong with it and where."""
    with open_input(path) as descriptor:
        file_bytes = os.fstat(descriptor).st_size
        if file_bytes < 24:
            start = os.pread(descriptor, 24, 0)
            raise _not_gguf(path, start)
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
            return _parse(path, mapped, file_bytes)


def _not_gguf(path: Path, start: bytes) -> ContainerError:
    hints = [hint for prefix, hint in _FOREIGN_STARTS if start.startswith(prefix)]
    short = start.startswith(MAGIC) or not start
    return ContainerError(
        "the file is too short to be a GGUF" if short else "not a GGUF file",
        file=path,
        value=start[:8],
        rule="a GGUF starts with the four bytes GGUF and a header of at least 24 bytes",
        hint=hints[0] if hints else "check that the right file was named and fully downloaded",
    )


def _parse(path: Path, mapped: mmap.mmap, file_bytes: int) -> Header:
    start = mapped[:24]
    if not start.startswith(MAGIC):
        raise _not_gguf(path, start)
    version, n_tensors, n_pairs = struct.unpack_from("<IQQ", start, 4)
    _check_version(path, version)
    cursor = _Cursor(path, mapped, file_bytes, 24)
    cursor.check_count("tensors", n_tensors, MAX_TENSORS, 24)
    cursor.check_count("key-value pairs", n_pairs, MAX_PAIRS, 13)
    pairs = _parse_pairs(cursor, n_pairs)
    alignment = _alignment(cursor, pairs)
    tensors = _parse_tensors(cursor, n_tensors)
    data_start = padded(cursor.position, alignment) if tensors else cursor.position
    return Header(path, file_bytes, version, alignment, pairs, tensors, data_start)


def _check_version(path: Path, version: int) -> None:
    if version in VERSIONS:
        return
    if version and version & 0xFFFF == 0:
        raise ContainerError(
            "a big-endian GGUF",
            file=path,
            value=f"version {version:#010x}",
            rule="only little-endian files are read",
            hint="convert it with gguf-convert-endian of the Python package gguf",
        )
    raise ContainerError(
        "a GGUF version that is not supported",
        file=path,
        value=version,
        rule=f"versions {', '.join(map(str, VERSIONS))} are read",
        hint="convert the original model again with a current converter",
    )


class _Cursor:
    """Reads forward through the mapped header; everything it returns lies inside the file."""

    def __init__(self, path: Path, mapped: mmap.mmap, file_bytes: int, position: int) -> None:
        self.path = path
        self.mapped = mapped
        self.file_bytes = file_bytes
        self.position = position

    def error(self, what: str, **facts: object) -> ContainerError:
        """A `ContainerError` about this file."""
        return ContainerError(what, file=self.path, **facts)  # type: ignore[arg-type]

    def need(self, nbytes: int, what: str) -> None:
        """Refuse to go on if fewer than `nbytes` bytes are left."""
        left = self.file_bytes - self.position
        if nbytes > left:
            raise self.error(
                f"the file ends inside its header, in {what}",
                value=f"{nbytes} bytes needed at byte {self.position}, {left} left",
                hint="the download is incomplete, or the header is damaged; fetch it again",
            )

    def check_count(self, what: str, count: int, limit: int, least_bytes: int) -> None:
        """Refuse counts that are absurd or that the rest of the file has no room for."""
        left = self.file_bytes - self.position
        if count > limit or count * least_bytes > left:
            raise self.error(
                f"an absurd number of {what}",
                value=count,
                rule=f"at most {min(limit, left // least_bytes)} here",
                hint="the header is damaged; fetch the file again",
            )

    def u32(self, what: str) -> int:
        """The next u32."""
        self.need(4, what)
        value: int = U32.unpack_from(self.mapped, self.position)[0]
        self.position += 4
        return value

    def u64(self, what: str) -> int:
        """The next u64."""
        self.need(8, what)
        value: int = U64.unpack_from(self.mapped, self.position)[0]
        self.position += 8
        return value

    def string(self, what: str, limit: int) -> str:
        """The next string, at most `limit` bytes long and not empty."""
        length = self.u64(what)
        if not 0 < length <= limit:
            raise self.error(
                f"the length of {what} is out of range",
                value=f"{length} bytes at byte {self.position - 8}",
                rule=f"1 to {limit} bytes",
                hint="the header is damaged, or was written by a tool that ignores the limit",
            )
        self.need(length, what)
        start = self.position
        self.position += length
        return text(self.mapped[start : self.position])

    def value_type(self, key: str) -> ValueType:
        """The next type id, which must be known."""
        type_id = self.u32(f"key {key!r}")
        if type_id not in _KNOWN_TYPES:
            raise self.error(
                f"metadata key {key!r} has an unknown type",
                value=type_id,
                rule=f"type ids 0 to {max(_KNOWN_TYPES)}",
                hint="the header is damaged, or newer than this program",
            )
        return ValueType(type_id)

    def skip_items(self, key: str, kind: ValueType, count: int) -> None:
        """Step over `count` items without decoding them."""
        if kind is not ValueType.STRING:
            self.need(count * ITEM_BYTES[kind], f"key {key!r}")
            self.position += count * ITEM_BYTES[kind]
            return
        self.check_count(f"strings in key {key!r}", count, MAX_STRINGS, 8)
        position, length_at, mapped = self.position, U64.unpack_from, self.mapped
        try:
            for _ in range(count):
                position += 8 + length_at(mapped, position)[0]
        except (struct.error, OverflowError):
            # A length led past the end; below, `need` turns that into an error with facts.
            position = max(position, self.file_bytes + 1)
        self.need(position - self.position, f"the strings of key {key!r}")
        self.position = position


_KNOWN_TYPES = frozenset(int(kind) for kind in ValueType)


def _parse_pairs(cursor: _Cursor, count: int) -> dict[str, PairSlot]:
    pairs: dict[str, PairSlot] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.string("a metadata key", MAX_KEY_BYTES)
        if key in pairs:
            raise cursor.error(
                f"metadata key {key!r} stands in the file twice",
                rule="keys are unique",
                hint="the tool that wrote the file is at fault; write it again",
            )
        kind, item_type, n_items = cursor.value_type(key), None, 1
        if kind is ValueType.ARRAY:
            item_type = cursor.value_type(key)
            n_items = cursor.u64(f"key {key!r}")
        if item_type is ValueType.ARRAY:
            raise cursor.error(f"metadata key {key!r} nests arrays", rule="arrays hold scalars")
        cursor.skip_items(key, kind if item_type is None else item_type, n_items)
        nbytes = cursor.position - start
        raw = cursor.mapped[start : cursor.position] if nbytes <= KEPT_BYTES else None
        pairs[key] = PairSlot(kind, item_type, n_items, start, nbytes, raw)
    return pairs


def _alignment(cursor: _Cursor, pairs: dict[str, PairSlot]) -> int:
    slot = pairs.get(ALIGNMENT_KEY)
    if slot is None:
        return DEFAULT_ALIGNMENT
    raw = slot.raw or b""
    value = U32.unpack_from(raw, slot.nbytes - 4)[0] if slot.nbytes >= 4 else 0
    if slot.value_type is not ValueType.UINT32 or value == 0 or value & (value - 1):
        raise cursor.error(
            "an alignment that is no alignment",
            value=f"{ALIGNMENT_KEY} = {value} ({slot.value_type.name})",
            rule="a UINT32 and a power of two",
            hint="the tool that wrote the file is at fault; write it again",
        )
    return value


def _parse_tensors(cursor: _Cursor, count: int) -> list[TensorRecord]:
    records: list[TensorRecord] = []
    names: set[str] = set()
    for index in range(count):
        name = cursor.string(f"the name of tensor {index}", MAX_NAME_BYTES)
        if name in names:
            raise cursor.error(
                "two tensors of the same name",
                tensor=name,
                rule="tensor names are unique",
                hint="the tool that wrote the file is at fault; write it again",
            )
        names.add(name)
        records.append(_parse_tensor(cursor, name))
    return records


def _parse_tensor(cursor: _Cursor, name: str) -> TensorRecord:
    what = f"the record of tensor {name!r}"
    n_dims = cursor.u32(what)
    if n_dims > MAX_DIMS:
        raise cursor.error(
            "too many dimensions", tensor=name, value=n_dims, rule=f"at most {MAX_DIMS}"
        )
    ne = tuple(cursor.u64(what) for _ in range(n_dims))
    if max(ne, default=1) > MAX_ELEMENTS or prod(d for d in ne if d) > MAX_ELEMENTS:
        raise cursor.error(
            "an absurd shape", tensor=name, value=list(ne), rule="fewer than 2^63 elements"
        )
    return TensorRecord(name, ne, cursor.u32(what), cursor.u64(what))
