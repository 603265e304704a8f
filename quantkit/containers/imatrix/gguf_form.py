"""The GGUF form of llama.cpp (tools/imatrix, common/imatrix-loader.cpp).

general.type          "imatrix"
imatrix.datasets      strings, the texts
imatrix.chunk_count   u32
imatrix.chunk_size    u32, tokens
NAME.in_sum2          F32 (n_experts or 1, channels): sums of squares
NAME.counts           F32 (n_experts or 1, 1): tokens
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from quantkit.containers.base import TensorEntry, TensorSpec
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.imatrix.checks import (
    require_no_sums_where_cold,
    require_sums,
    whole_counts,
)
from quantkit.containers.imatrix.entries import Entry, Floats, Importance
from quantkit.errors import ContainerError
from quantkit.qtypes import by_name

TYPE_KEY, TYPE = "general.type", "imatrix"
DATASETS, CHUNK_COUNT, CHUNK_SIZE = (
    f"imatrix.{key}" for key in ("datasets", "chunk_count", "chunk_size")
)
SUMS, COUNTS = ".in_sum2", ".counts"
F32 = by_name("F32")
T = TypeVar("T")


def read_gguf_form(path: Path) -> Importance:
    """Read the GGUF at `path`; ContainerError if it is no importance file or a value is bad."""
    file = open_gguf(path)
    if file.metadata.get(TYPE_KEY) != TYPE:
        raise ContainerError(
            "not an importance file",
            file=path,
            value=f"{TYPE_KEY} = {file.metadata.get(TYPE_KEY)!r}",
            rule=f"{TYPE_KEY} = {TYPE!r}",
            hint="give the file that `capture` or llama-imatrix wrote",
        )
    suffixed = {name: entry for name, entry in file.tensors.items() if name.endswith(SUMS)}
    names = sorted(name.removesuffix(SUMS) for name in suffixed)
    if not names:
        raise ContainerError("an importance file without entries", file=path, rule=f"NAME{SUMS}")
    return Importance(
        {name: _entry(file, name) for name in names},
        tuple(map(str, _value(file, DATASETS, list, []))),
        _value(file, CHUNK_COUNT, int, 0),
        _value(file, CHUNK_SIZE, int, 0),
        path,
    )


def _value(file: GGUFFile, key: str, kind: type[T], missing: T) -> T:
    found = file.metadata.get(key, missing)
    if not isinstance(found, kind):
        raise ContainerError(
            f"metadata key {key!r} of another type",
            file=file.path,
            value=found,
            rule=kind.__name__,
        )
    return found


def _floats(entry: TensorEntry) -> Floats:
    if entry.qtype != F32:
        raise ContainerError(
            "an importance entry of another type",
            file=entry.path,
            tensor=entry.name,
            value=entry.qtype.name,
            rule="F32",
        )
    return entry.parts()["data"].view(np.float32)


def _entry(file: GGUFFile, name: str) -> Entry:
    if name + COUNTS not in file.tensors:
        raise ContainerError(
            "an importance entry without its counts",
            file=file.path,
            tensor=name + SUMS,
            rule=f"{name}{COUNTS} stands beside it",
            hint="the file is damaged; make it again",
        )
    sums = _floats(file.tensors[name + SUMS])
    require_sums(sums, name + SUMS, file.path)
    counts = whole_counts(_floats(file.tensors[name + COUNTS]), name + COUNTS, file.path)
    if len(sums) % len(counts):
        raise ContainerError(
            "an importance entry whose sums and counts do not fit together",
            file=file.path,
            tensor=name,
            value=f"{len(sums)} sums, {len(counts)} counts",
            rule="as many sums for each count",
        )
    sums = sums.reshape(len(counts), -1)
    require_no_sums_where_cold(sums, counts, name, file.path)
    return Entry(sums, counts)


def write_gguf_form(importance: Importance, path: Path, extra: Sequence[bytes]) -> None:
    """Write `importance` to `path`; `extra` are further packed key-value pairs."""
    pairs = [
        pack_kv(TYPE_KEY, ValueType.STRING, TYPE),
        pack_kv(DATASETS, ValueType.ARRAY, list(importance.datasets), ValueType.STRING),
        pack_kv(CHUNK_COUNT, ValueType.UINT32, importance.chunk_count),
        pack_kv(CHUNK_SIZE, ValueType.UINT32, importance.chunk_size),
        *extra,
    ]
    specs = []
    for name, entry in sorted(importance.entries.items()):
        for suffix, values in ((SUMS, entry.sums), (COUNTS, entry.counts[:, None])):
            specs.append(TensorSpec(name + suffix, values.shape, F32, _source(values)))
    write_gguf(path, pairs, specs)


def _source(values: np.ndarray) -> Callable[[], Iterator[memoryview]]:
    return partial(_bytes, values)


def _bytes(values: np.ndarray) -> Iterator[memoryview]:
    yield np.ascontiguousarray(values, np.float32).data
