"""What `quantize` reads: a GGUF, or a transformers checkpoint through the forms of `convert`.

A checkpoint's tensors are what its BF16 GGUF would hold, made piece by piece, so that going
straight to the types gives the same bytes as converting first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantkit import codecs
from quantkit.containers.base import TensorEntry, TensorSpec, spec_of
from quantkit.containers.gguf import open_gguf
from quantkit.containers.safetensors import open_safetensors
from quantkit.qtypes import QType
from quantkit.quantize import convert

Floats = npt.NDArray[np.float32]
CHUNK_ELEMENTS = 1 << 20
"""Weights that are decoded and encoded at a time: 4 MiB of float32."""


@dataclass(frozen=True)
class Block:
    """Rows `first` .. `first + count` of a tensor (all axes but the last flattened)."""

    first: int
    count: int
    load: Callable[[], Floats]
    """The values (count, columns); may run in any thread."""


@dataclass(frozen=True)
class SourceTensor:
    """A tensor to read: as bytes (`spec`), or as values block by block."""

    spec: TensorSpec
    path: Path
    entry: TensorEntry | None = None
    """Where the bytes lie, unless they are made (from a checkpoint)."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Row-major."""
        return self.spec.shape

    @property
    def qtype(self) -> QType:
        return self.spec.qtype

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    @property
    def rows_per_matrix(self) -> int:
        """Rows of one expert, or of the whole tensor where it has no experts."""
        return self.shape[-2] if len(self.shape) > 2 else prod(self.shape[:-1])

    def blocks(self) -> Iterator[Block]:
        """All rows in order; no block reaches over the border of an expert."""
        if self.entry is None:
            yield from self._made_blocks()
            return
        for first, count in self._cuts(0, prod(self.shape[:-1])):
            yield Block(first, count, self._reader(self.entry, first, count))

    def _reader(self, entry: TensorEntry, first: int, count: int) -> Callable[[], Floats]:
        row_bytes = self.qtype.nbytes(self.shape[-1])

        def load() -> Floats:
            data = entry.parts()["data"][first * row_bytes : (first + count) * row_bytes]
            return self._decoded(data, count)

        return load

    def _made_blocks(self) -> Iterator[Block]:
        assert callable(self.spec.source)
        row_bytes = self.qtype.nbytes(self.shape[-1])
        start = 0
        for piece in self.spec.source():
            data = np.frombuffer(piece, np.uint8)
            n_rows = len(data) // row_bytes
            for first, count in self._cuts(start, start + n_rows):
                own = data[(first - start) * row_bytes : (first - start + count) * row_bytes]
                yield Block(first, count, partial(self._decoded, own, count))
            start += n_rows

    def _decoded(self, data: npt.NDArray[np.uint8], count: int) -> Floats:
        # One thread each: there are as many blocks at work as there are threads.
        shape = (count, self.shape[-1])
        return codecs.decode(self.qtype, {"data": data}, shape, threads=1)

    def _cuts(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(first row, rows) of blocks that fill [start, stop)."""
        matrix = max(1, self.rows_per_matrix)
        step = max(1, CHUNK_ELEMENTS // self.shape[-1])
        while start < stop:
            border = (start // matrix + 1) * matrix
            count = min(step, stop - start, border - start)
            yield start, count
            start += count


@dataclass(frozen=True)
class Source:
    """A model to quantize: its files, packed key-value pairs, and tensors in file order."""

    path: Path
    files: tuple[Path, ...]
    pairs: tuple[bytes, ...]
    tensors: dict[str, SourceTensor]


def open_source(path: Path, name: str | None = None) -> Source:
    """Open a GGUF (any shard, or a folder of shards) or the folder of a checkpoint.

    `name` becomes a checkpoint's general.name; default: the folder's. Raises ContainerError for a
    damaged file, ModelError for a checkpoint that llama.cpp could not run.
    """
    if (path / "config.json").is_file():
        pairs, specs = convert.plan_conversion(path, name)
        files = sorted({entry.path for entry in open_safetensors(path).tensors.values()})
        made = {spec.name: SourceTensor(spec, path) for spec in specs}
        return Source(path, tuple(files), tuple(pairs), made)
    file = open_gguf(path)
    tensors = {
        entry.name: SourceTensor(spec_of(entry), entry.path, entry)
        for entry in file.tensors.values()
    }
    return Source(file.path, file.shards, tuple(file.metadata.carried()), tensors)
