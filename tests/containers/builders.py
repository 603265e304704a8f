"""GGUF files built with `struct` alone, so that the reader is not tested with our own writer.

Every field of the format can be set to something wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
TYPE_F32, TYPE_Q8_0, TYPE_IQ4_NL, TYPE_Q2_0 = 0, 8, 20, 42
TYPE_UNKNOWN = 9999


def string(value: bytes | str) -> bytes:
    """`u64 length, bytes`."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: bytes | str, type_id: int, body: bytes) -> bytes:
    """A key-value pair with a ready-made value."""
    return string(key) + struct.pack("<I", type_id) + body


def u32_pair(key: str, value: int) -> bytes:
    return pair(key, U32, struct.pack("<I", value))


def text_pair(key: str, value: bytes | str) -> bytes:
    return pair(key, STRING, string(value))


def strings_pair(key: str, values: Sequence[bytes | str]) -> bytes:
    body = struct.pack("<IQ", STRING, len(values)) + b"".join(map(string, values))
    return pair(key, ARRAY, body)


def split_pairs(number: int, count: int, n_tensors: int) -> list[bytes]:
    return [
        pair("split.no", U16, struct.pack("<H", number)),
        pair("split.count", U16, struct.pack("<H", count)),
        pair("split.tensors.count", I32, struct.pack("<i", n_tensors)),
    ]


@dataclass
class RawTensor:
    """One tensor; `ne` has the fastest axis first, `offset` overrides the right one."""

    name: bytes | str
    ne: tuple[int, ...]
    type_id: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class RawGGUF:
    """A file; each `None` means the right value."""

    pairs: list[bytes] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    n_pairs: int | None = None
    n_tensors: int | None = None

    def header(self) -> bytes:
        """Everything in front of the data, padding included."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        out = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_pairs)
        out += b"".join(self.pairs)
        offset = 0
        for tensor in self.tensors:
            n_dims = len(tensor.ne) if tensor.n_dims is None else tensor.n_dims
            out += string(tensor.name) + struct.pack("<I", n_dims)
            out += struct.pack(f"<{len(tensor.ne)}Q", *tensor.ne)
            written = offset if tensor.offset is None else tensor.offset
            out += struct.pack("<IQ", tensor.type_id, written)
            offset += len(self._padded(tensor.data))
        return self._padded(out)

    def bytes(self) -> bytes:
        """The whole file."""
        return self.header() + b"".join(self._padded(tensor.data) for tensor in self.tensors)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def _padded(self, data: bytes) -> bytes:
        return data + bytes(-len(data) % self.alignment)


def noise(seed: int, nbytes: int) -> bytes:
    """Reproducible bytes without structure."""
    return np.random.default_rng(seed).bytes(nbytes)


def small_model(seed: int = 0) -> RawGGUF:
    """Four tensors of plain, block and unknown types, and some metadata."""
    pairs = [
        text_pair("general.architecture", "qwen3moe"),
        u32_pair("qwen3moe.block_count", 1),
        strings_pair("tokenizer.ggml.tokens", ["a", "bc", "", "ü"]),
    ]
    tensors = [
        RawTensor("a.weight", (5, 3), TYPE_F32, noise(seed, 60)),
        RawTensor("b.weight", (32, 2, 2), TYPE_Q8_0, noise(seed + 1, 34 * 4)),
        RawTensor("c.weight", (7, 1), TYPE_UNKNOWN, noise(seed + 2, 64)),
        RawTensor("d.scalar", (), TYPE_F32, noise(seed + 3, 4)),
    ]
    return RawGGUF(pairs, tensors)


def write_big_vocabulary(path: Path, n_tokens: int = 250_000, n_merges: int | None = None) -> Path:
    """A GGUF with the tokenizer of a large model: tokens, types, merges, and one small tensor."""
    rng = np.random.default_rng(5)
    words = [b"t%x" % value for value in rng.integers(0, 1 << 40, n_tokens)]
    count = n_tokens - 1000 if n_merges is None else n_merges
    merges = [b"%s %s" % (words[i], words[i + 1]) for i in range(count)]
    types = struct.pack(f"<IQ{n_tokens}i", I32, n_tokens, *([1] * n_tokens))
    pairs = [
        text_pair("general.architecture", "qwen4exp"),
        strings_pair("tokenizer.ggml.tokens", words),
        pair("tokenizer.ggml.token_type", ARRAY, types),
        strings_pair("tokenizer.ggml.merges", merges),
    ]
    tensor = RawTensor("token_embd.weight", (32, 4), TYPE_Q8_0, noise(1, 34 * 4))
    return RawGGUF(pairs, [tensor]).write(path)
