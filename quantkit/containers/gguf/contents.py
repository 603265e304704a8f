"""Hashes of what a GGUF holds: they tell a part of a model without the rest."""

from __future__ import annotations

from collections.abc import Iterable

from quantkit.artifacts.sensitivity import Contents
from quantkit.containers.gguf.read import GGUFFile
from quantkit.containers.hashing import blake3_ranges, file_bytes
from quantkit.containers.ranges import ByteRange
from quantkit.progress import Progress


def header_blake3(model: GGUFFile) -> str:
    """Hex digest of all that stands before the tensors, shard after shard."""
    ends = {path: file_bytes(path) for path in model.shards}
    for entry in model.tensors.values():
        ends[entry.path] = min(ends[entry.path], entry.offset)
    return blake3_ranges(ByteRange(path, 0, end) for path, end in ends.items())


def contents_of(model: GGUFFile, names: Iterable[str]) -> Contents:
    """The header's hash and those of the tensors `names`, which are read."""
    entries = [model.tensors[name] for name in names]
    with Progress(f"hash {model.path.name}", sum(entry.nbytes for entry in entries)) as progress:
        tensors = {
            entry.name: blake3_ranges([entry.byte_range], on_bytes=progress.step)
            for entry in entries
        }
    return Contents(header_blake3(model), tensors)
