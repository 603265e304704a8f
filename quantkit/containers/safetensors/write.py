"""Write safetensors, one file or shards with an index.

Within a file the tensors stand by falling element size, then by name, so that every one is aligned
to its elements; the header is padded with spaces to a multiple of eight bytes. The order and the
JSON depend only on what is given, so the same tensors give the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.containers.base import TensorSpec, check_spec
from quantkit.containers.ranges import ByteRange
from quantkit.containers.safetensors.read import INDEX_NAME, METADATA_KEY, SINGLE_NAME
from quantkit.containers.writing import refuse_inputs, write_all, write_source
from quantkit.errors import ContainerError
from quantkit.files import atomic_paths
from quantkit.progress import Progress

HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class _FilePlan:
    path: Path
    header: bytes
    tensors: tuple[TensorSpec, ...]


def write_safetensors(
    path: Path,
    tensors: Sequence[TensorSpec],
    *,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int | None = None,
    progress_label: str | None = None,
) -> list[Path]:
    """Write a file (`*.safetensors`) or a model folder; returns the files, an index last.

    In a folder the model becomes `model.safetensors`, or shards of at most `max_shard_bytes`
    tensor bytes with their index; a tensor larger than that stands alone. `metadata` goes to
    `__metadata__` of every file. Nothing is there before everything is.
    """
    _check(tensors)
    plans = _plan(Path(path), tensors, dict(metadata or {}), max_shard_bytes)
    finals = [plan.path for plan in plans]
    index = _index(plans) if len(plans) > 1 else None
    # The index leads the set: it appears last, when all it names is there.
    outputs = [finals[0].with_name(INDEX_NAME), *finals] if index else finals
    refuse_inputs(outputs, (s.source.path for s in tensors if isinstance(s.source, ByteRange)))
    with atomic_paths(outputs) as temporary:
        if index:
            temporary[0].write_bytes(index)
        total = sum(spec.nbytes for spec in tensors)
        with Progress(progress_label or "write", total) as progress:
            for plan, file in zip(plans, temporary[-len(plans) :], strict=True):
                _write_file(plan, file, progress if progress_label else None)
    return [*finals, outputs[0]] if index else finals


def _check(tensors: Sequence[TensorSpec]) -> None:
    names: set[str] = set()
    for spec in tensors:
        check_spec(spec)
        if spec.name in names or spec.name == METADATA_KEY:
            raise ContainerError(
                "two tensors of the same name" if spec.name in names else "a reserved name",
                tensor=spec.name,
                rule="tensor names are unique",
            )
        if spec.qtype.safetensors_dtype is None:
            raise ContainerError(
                f"safetensors has no dtype for {spec.qtype.name}",
                tensor=spec.name,
                hint="block types are stored as their parts",
            )
        names.add(spec.name)


def _plan(
    path: Path, tensors: Sequence[TensorSpec], metadata: dict[str, str], limit: int | None
) -> list[_FilePlan]:
    if path.suffix == ".safetensors":
        if limit is not None:
            raise ContainerError(
                "shards need a folder", file=path, hint="name a folder instead of a file"
            )
        return [_plan_file(path, tensors, metadata)]
    groups = list(_groups(tensors, limit))
    if len(groups) == 1:
        return [_plan_file(path / SINGLE_NAME, tensors, metadata)]
    stem, count = Path(SINGLE_NAME).stem, len(groups)
    return [
        _plan_file(path / f"{stem}-{number:05d}-of-{count:05d}.safetensors", group, metadata)
        for number, group in enumerate(groups, start=1)
    ]


def _groups(tensors: Sequence[TensorSpec], limit: int | None) -> Iterator[list[TensorSpec]]:
    group: list[TensorSpec] = []
    used = 0
    for spec in tensors:
        if group and limit is not None and used + spec.nbytes > limit:
            yield group
            group, used = [], 0
        group.append(spec)
        used += spec.nbytes
    yield group


def _plan_file(path: Path, tensors: Sequence[TensorSpec], metadata: dict[str, str]) -> _FilePlan:
    ordered = sorted(tensors, key=lambda spec: (-spec.qtype.type_size, spec.name))
    content: dict[str, Any] = {METADATA_KEY: dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for spec in ordered:
        begin, end = end, end + spec.nbytes
        content[spec.name] = {
            "dtype": spec.qtype.safetensors_dtype,
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return _FilePlan(path, len(text).to_bytes(8, "little") + text, tuple(ordered))


def _index(plans: Sequence[_FilePlan]) -> bytes:
    files = {spec.name: plan.path.name for plan in plans for spec in plan.tensors}
    total = sum(spec.nbytes for plan in plans for spec in plan.tensors)
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))}
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _write_file(plan: _FilePlan, path: Path, progress: Progress | None) -> None:
    def on_bytes(count: int) -> None:
        if progress is not None:
            progress.step(count)

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        write_all(descriptor, plan.header, 0)
        offset = len(plan.header)
        for spec in plan.tensors:
            write_source(spec, descriptor, offset, on_bytes)
            offset += spec.nbytes
    finally:
        os.close(descriptor)
