"""Open safetensors files, alone or sharded with an index.

A file is `u64 header length, JSON header, data`. The header maps each name to `dtype`, `shape` and
`data_offsets` [begin, end) relative to the data, plus optional text pairs in `__metadata__`. The
ranges cover the data without holes or overlaps (safetensors format, README of
huggingface/safetensors). A model in several files has `model.safetensors.index.json` beside them,
whose `weight_map` names the file of each tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from quantkit.containers.base import TensorEntry
from quantkit.errors import ContainerError, FormatError
from quantkit.files import open_input
from quantkit.qtypes import QType, by_safetensors_dtype

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
METADATA_KEY = "__metadata__"
# The limit of the reference implementation.
MAX_HEADER_BYTES = 100_000_000
MAX_ELEMENTS = 2**63 - 1

_FETCH_AGAIN = "the file is damaged or its download incomplete; fetch it again"


@dataclass(frozen=True)
class SafetensorsModel:
    """An opened model: `files` in order of their names, `tensors` in the order of their bytes.

    `metadata` joins the `__metadata__` of all files; `index_metadata` is that of the index.
    """

    path: Path
    files: tuple[Path, ...]
    metadata: dict[str, str]
    index_metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


def open_safetensors(path: Path) -> SafetensorsModel:
    """Open a file, an index, or a folder that holds either; only headers are read.

    Raises `ContainerError` for damaged files, missing shards and an index that does not match;
    dtypes that we do not know are carried as opaque bytes.
    """
    path = _find(Path(path))
    if path.suffix == ".json":
        return _open_indexed(path)
    metadata, entries = _read_file(path)
    return SafetensorsModel(path, (path,), metadata, {}, {e.name: e for e in entries})


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in (INDEX_NAME, SINGLE_NAME):
        if (path / name).is_file():
            return path / name
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    raise ContainerError(
        "several safetensors files without an index" if files else "no safetensors file here",
        file=path,
        value=", ".join(file.name for file in files[:8]) or None,
        rule=f"a folder holds {INDEX_NAME} with its shards, or one file",
        hint=f"fetch {INDEX_NAME} too, or name the file" if files else "check the path",
    )


def _open_indexed(index: Path) -> SafetensorsModel:
    weight_map, index_metadata = _read_index(index)
    files = tuple(index.with_name(name) for name in sorted(set(weight_map.values())))
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ContainerError(
            f"{len(missing)} of {len(files)} shards are missing",
            file=index.with_name(missing[0]),
            value=", ".join(missing[:8]),
            rule=f"the shards that {index.name} names are in its folder",
            hint="fetch the missing files into the same folder",
        )
    metadata: dict[str, str] = {}
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        file_metadata, entries = _read_file(file)
        metadata.update(file_metadata)
        for entry in entries:
            if entry.name in tensors:
                raise ContainerError(
                    "a tensor that stands in two shards",
                    file=file,
                    tensor=entry.name,
                    value=f"also in {tensors[entry.name].path.name}",
                    rule="tensor names are unique in a model",
                    hint="the shards belong to different models; fetch them again",
                )
            tensors[entry.name] = entry
    _check_index(index, weight_map, tensors)
    return SafetensorsModel(index, files, metadata, index_metadata, tensors)


def _read_index(index: Path) -> tuple[dict[str, str], dict[str, Any]]:
    with open_input(index) as descriptor:
        raw = os.pread(descriptor, MAX_HEADER_BYTES, 0)
    content = _parse_json(index, raw)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(name, str) and name == Path(name).name and name not in ("", "..")
        for name in weight_map.values()
    ):
        raise ContainerError(
            "an index without a usable weight_map",
            file=index,
            rule="weight_map gives for each tensor the name of a file in the same folder",
            hint=_FETCH_AGAIN,
        )
    metadata = content.get("metadata")
    return weight_map, metadata if isinstance(metadata, dict) else {}


def _check_index(
    index: Path, weight_map: Mapping[str, str], tensors: Mapping[str, TensorEntry]
) -> None:
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path.name != file:
            where = f"in {tensors[name].path.name}" if name in tensors else "in no shard"
            raise ContainerError(
                "a tensor that is not in the shard that the index names",
                file=index.with_name(file),
                tensor=name,
                value=where,
                rule=f"{index.name} and the shards agree",
                hint="index and shards are of different revisions; fetch them again",
            )


def _read_file(path: Path) -> tuple[dict[str, str], list[TensorEntry]]:
    with open_input(path) as descriptor:
        file_bytes = os.fstat(descriptor).st_size
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if file_bytes < 8 or length > min(MAX_HEADER_BYTES, file_bytes - 8):
            raise ContainerError(
                "not a safetensors file, or its header is cut off",
                file=path,
                value=f"header of {length} bytes in a file of {file_bytes}",
                rule=f"at most {MAX_HEADER_BYTES} and inside the file",
                hint=_FETCH_AGAIN,
            )
        header = _parse_json(path, os.pread(descriptor, length, 8))
    metadata = header.pop(METADATA_KEY, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ContainerError(
            f"{METADATA_KEY} is no map of texts", file=path, value=metadata, hint=_FETCH_AGAIN
        )
    entries = [_entry(path, 8 + length, name, record) for name, record in header.items()]
    # An empty tensor shares its offset with its neighbour and comes first.
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _check_cover(path, 8 + length, file_bytes, entries)
    return metadata, entries


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ContainerError(
                "a name that stands in the header twice",
                file=path,
                tensor=twice,
                rule="names are unique",
                hint=_FETCH_AGAIN,
            )
        return result

    try:
        content = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ContainerError(
            "not JSON where JSON must be", file=path, value=str(error), hint=_FETCH_AGAIN
        ) from error
    if not isinstance(content, dict):
        raise ContainerError("not a JSON object", file=path, value=type(content).__name__)
    return content


def _is_counts(value: object, length: int | None = None) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and all(type(item) is int and 0 <= item <= MAX_ELEMENTS for item in value)
        and length in (None, len(value))
    )


def _entry(path: Path, data_start: int, name: str, record: Any) -> TensorEntry:
    fields = record if isinstance(record, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _is_counts(shape) and _is_counts(offsets, 2)):
        raise ContainerError(
            "a tensor record that is none",
            file=path,
            tensor=name,
            value=record,
            rule="dtype, shape and data_offsets [begin, end]",
            hint=_FETCH_AGAIN,
        )
    qtype, n_elements = _type(dtype), prod(shape)
    begin, end = offsets
    fits = begin <= end and n_elements <= MAX_ELEMENTS
    if not qtype.is_opaque:
        fits = fits and (end - begin) * qtype.block_size == n_elements * qtype.type_size
    if not fits:
        raise ContainerError(
            "offsets that do not fit the shape",
            file=path,
            tensor=name,
            value=f"bytes {begin} to {end}",
            rule=f"the bytes of {dtype} {shape}",
            hint=_FETCH_AGAIN,
        )
    return TensorEntry(name, tuple(shape), qtype, path, data_start + begin, end - begin)


def _type(dtype: str) -> QType:
    try:
        return by_safetensors_dtype(dtype)
    except FormatError:
        return QType(dtype, 0, 0, None, safetensors_dtype=dtype)


def _check_cover(path: Path, data_start: int, file_bytes: int, entries: list[TensorEntry]) -> None:
    expected = data_start
    for entry in entries:
        if entry.offset != expected:
            overlaps = entry.offset < expected
            raise ContainerError(
                "a tensor that overlaps the one before it" if overlaps else "a hole in the data",
                file=path,
                tensor=entry.name,
                value=f"offset {entry.offset - data_start}",
                rule=f"offset {expected - data_start}: tensors follow each other without gaps",
                hint=_FETCH_AGAIN,
            )
        expected += entry.nbytes
        if expected > file_bytes:
            raise ContainerError(
                "the file ends inside a tensor",
                file=path,
                tensor=entry.name,
                value=f"{expected - file_bytes} bytes of it are missing (file: {file_bytes})",
                rule=f"the tensor ends at byte {expected}",
                hint=_FETCH_AGAIN,
            )
    if expected != file_bytes:
        raise ContainerError(
            "bytes behind the last tensor",
            file=path,
            value=f"{file_bytes - expected} bytes",
            rule="the tensors cover the data",
            hint=_FETCH_AGAIN,
        )
