"""Write a GGUF, whole or split, from ready-made key-value pairs and byte sources.

The bytes of the pairs are written as given; only what belongs to the file itself is ours: the
alignment is always 32 (llama.cpp's own tools misread files with another one), and `split.*` is
what this file's shards need. Everything is planned before the first byte is written, so that the
exact size is known and every name, shape and size is checked while nothing exists yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quantkit.containers.base import TensorSpec, check_spec
from quantkit.containers.gguf.header import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_NAME_BYTES,
    padded,
)
from quantkit.containers.gguf.split import MAX_SHARDS, SPLIT_PREFIX, shard_path, split_keys
from quantkit.containers.gguf.values import U32, U64, ValueType, key_of, pack_kv, pack_string
from quantkit.containers.ranges import ByteRange
from quantkit.containers.writing import refuse_inputs, write_all, write_source
from quantkit.errors import ContainerError
from quantkit.files import atomic_paths
from quantkit.progress import Progress

WRITTEN_VERSION = 3


@dataclass(frozen=True)
class ShardPlan:
    """One file to write: its complete header, and where each tensor's bytes go."""

    path: Path
    header: bytes
    tensors: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    nbytes: int


def write_gguf(
    path: Path,
    metadata: Sequence[bytes],
    tensors: Sequence[TensorSpec],
    *,
    split_max_bytes: int | None = None,
    progress_label: str | None = None,
) -> list[Path]:
    """Write a GGUF; returns the files, which appear together or not at all.

    `metadata` are packed pairs (`Metadata.raw`, `pack_kv`). `split_max_bytes` bounds the tensor
    bytes of a shard, as `llama-gguf-split --split-max-size` does; a model that fits in one shard
    becomes one plain file. Raises `ContainerError` for specs that break GGUF's rules, and when an
    output would replace one of its inputs.
    """
    plan = plan_gguf(path, metadata, tensors, split_max_bytes=split_max_bytes)
    finals = [shard.path for shard in plan]
    refuse_inputs(finals, (s.source.path for s in tensors if isinstance(s.source, ByteRange)))
    with atomic_paths(finals) as temporary:
        write_planned(plan, temporary, progress_label=progress_label)
    return finals


def gguf_file_bytes(
    metadata: Sequence[bytes], tensors: Sequence[TensorSpec], split_max_bytes: int | None = None
) -> int:
    """Exact size in bytes of what `write_gguf` would write, all shards together."""
    plan = plan_gguf(Path("model.gguf"), metadata, tensors, split_max_bytes=split_max_bytes)
    return sum(shard.nbytes for shard in plan)


def gguf_header_bytes(metadata: Sequence[bytes], tensors: Sequence[TensorSpec]) -> int:
    """Bytes in front of the data of an unsplit file: pairs, tensor records and padding."""
    return len(plan_gguf(Path("model.gguf"), metadata, tensors)[0].header)


def plan_gguf(
    path: Path,
    metadata: Sequence[bytes],
    tensors: Sequence[TensorSpec],
    *,
    split_max_bytes: int | None = None,
) -> list[ShardPlan]:
    """Check everything and lay out the files, without touching the disk."""
    pairs = _own_pairs(metadata)
    _check_tensors(tensors)
    groups = list(_groups(tensors, split_max_bytes))
    if len(groups) == 1:
        return [_plan_shard(path, pairs, tensors)]
    if len(groups) > MAX_SHARDS:
        raise ContainerError(
            "too many shards",
            value=len(groups),
            rule=f"at most {MAX_SHARDS}",
            hint="allow larger shards",
        )
    return [
        _plan_shard(
            shard_path(path, number, len(groups)),
            [*(pairs if number == 0 else []), *split_keys(number, len(groups), len(tensors))],
            group,
        )
        for number, group in enumerate(groups)
    ]


def write_planned(
    plan: Sequence[ShardPlan],
    paths: Sequence[Path],
    *,
    progress_label: str | None = None,
    on_written: Callable[[int, int], object] = lambda number, end: None,
) -> None:
    """Write each planned shard to the path beside it, which is created or overwritten.

    `on_written(number, end)` hears that all bytes of shard `number` before `end` are in the file.
    """
    with Progress(progress_label or "write", sum(shard.nbytes for shard in plan)) as progress:

        def on_end(number: int, before: int, end: int) -> None:
            on_written(number, end)
            if progress_label:
                progress.step(before + end - progress.done)

        before = 0
        for number, (shard, path) in enumerate(zip(plan, paths, strict=True)):
            _write_shard(shard, path, partial(on_end, number, before))
            before += shard.nbytes


def _own_pairs(metadata: Sequence[bytes]) -> list[bytes]:
    pairs: dict[str, bytes] = {}
    for raw in metadata:
        key = key_of(raw)
        if key in pairs:
            raise ContainerError(
                f"metadata key {key!r} is given twice", rule="keys are unique in a GGUF"
            )
        pairs[key] = raw
    if ALIGNMENT_KEY in pairs:
        pairs[ALIGNMENT_KEY] = pack_kv(ALIGNMENT_KEY, ValueType.UINT32, DEFAULT_ALIGNMENT)
    return [raw for key, raw in pairs.items() if not key.startswith(SPLIT_PREFIX)]


def _check_tensors(tensors: Sequence[TensorSpec]) -> None:
    names: set[str] = set()
    for spec in tensors:
        check_spec(spec)
        problem = _name_or_shape_problem(spec)
        if spec.name in names:
            problem = ("two tensors of the same name", "tensor names are unique")
        if problem:
            raise ContainerError(problem[0], tensor=spec.name, rule=problem[1])
        names.add(spec.name)


def _name_or_shape_problem(spec: TensorSpec) -> tuple[str, str] | None:
    if not 0 < len(_encoded(spec.name)) <= MAX_NAME_BYTES:
        return "a tensor name that GGUF cannot hold", f"1 to {MAX_NAME_BYTES} bytes"
    if len(spec.shape) > MAX_DIMS:
        return f"a tensor of {len(spec.shape)} dimensions", f"at most {MAX_DIMS}"
    if spec.qtype.gguf_id is None:
        return f"GGUF has no type for {spec.qtype.name}", "see the type table for what it has"
    return None


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _groups(tensors: Sequence[TensorSpec], limit: int | None) -> Iterator[list[TensorSpec]]:
    """Consecutive tensors of at most `limit` padded bytes; a larger one stands alone."""
    group: list[TensorSpec] = []
    used = 0
    for spec in tensors:
        nbytes = padded(spec.nbytes, DEFAULT_ALIGNMENT)
        if group and limit is not None and used + nbytes > limit:
            yield group
            group, used = [], 0
        group.append(spec)
        used += nbytes
    yield group


def _plan_shard(path: Path, pairs: Sequence[bytes], tensors: Sequence[TensorSpec]) -> ShardPlan:
    records: list[bytes] = []
    relative: list[int] = []
    end = 0
    for spec in tensors:
        records.append(_pack_record(spec, end))
        relative.append(end)
        end += padded(spec.nbytes, DEFAULT_ALIGNMENT)
    start = MAGIC + U32.pack(WRITTEN_VERSION) + U64.pack(len(tensors)) + U64.pack(len(pairs))
    header = b"".join((start, *pairs, *records))
    header += bytes(padded(len(header), DEFAULT_ALIGNMENT) - len(header))
    offsets = tuple(len(header) + offset for offset in relative)
    return ShardPlan(path, header, tuple(tensors), offsets, len(header) + end)


def _pack_record(spec: TensorSpec, offset: int) -> bytes:
    assert spec.qtype.gguf_id is not None
    axes = b"".join(U64.pack(axis) for axis in reversed(spec.shape))
    n_dims, type_id = U32.pack(len(spec.shape)), U32.pack(spec.qtype.gguf_id)
    return pack_string(spec.name) + n_dims + axes + type_id + U64.pack(offset)


def _write_shard(shard: ShardPlan, path: Path, on_end: Callable[[int], object]) -> None:
    """Write the file; `on_end` hears how far it is complete."""

    def write_tensor(spec: TensorSpec, end: int) -> None:
        def on_bytes(count: int) -> None:
            nonlocal end
            end += count
            on_end(end)

        write_source(spec, descriptor, end, on_bytes)

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, shard.header, 0)
        on_end(len(shard.header))
        for spec, offset in zip(shard.tensors, shard.offsets, strict=True):
            write_tensor(spec, offset)
        # Padding is never written: the file grows over it, and what was skipped reads as zeros.
        os.ftruncate(descriptor, shard.nbytes)
        on_end(shard.nbytes)
    finally:
        os.close(descriptor)
