"""Models in several files, as `llama-gguf-split` writes them.

Shard names count from 1 (`<prefix>-00001-of-00004.gguf`), the key `split.no` counts from 0. Each
shard has `split.no` and `split.count` (u16) and `split.tensors.count` (i32, over all shards);
everything else of the metadata is in the first shard only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from quantkit.containers.gguf.header import Header
from quantkit.containers.gguf.values import ValueType, pack_kv, unpack_kv
from quantkit.errors import ContainerError

SPLIT_PREFIX = "split."
NO_KEY, COUNT_KEY, TENSORS_KEY = "split.no", "split.count", "split.tensors.count"
MAX_SHARDS = 0xFFFF

_SHARD_NAME = re.compile(r"^(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.S)
_RAW_PART = re.compile(r"\.(?:part\d+of\d+|part[-_.]?\w{1,3}|split-[a-z]{1,2}|\d{3})$", re.I)


def shard_path(path: Path, number: int, count: int) -> Path:
    """Shard `number` (from 0) of the `count` that `path` would be cut into."""
    stem = path.name.removesuffix(".gguf")
    return path.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}.gguf")


def split_keys(number: int, count: int, n_tensors: int) -> list[bytes]:
    """The three key-value pairs of shard `number` (from 0), in the order of llama-gguf-split."""
    return [
        pack_kv(NO_KEY, ValueType.UINT16, number),
        pack_kv(TENSORS_KEY, ValueType.INT32, n_tensors),
        pack_kv(COUNT_KEY, ValueType.UINT16, count),
    ]


def find_model_file(path: Path) -> Path:
    """The file to open for a path given by a user: a GGUF, or a folder that holds one model."""
    if path.is_dir():
        return _only_model(path)
    if _RAW_PART.search(path.name):
        whole = _RAW_PART.sub("", path.name)
        raise ContainerError(
            "a raw part of a file that was cut into pieces",
            file=path,
            rule="a GGUF split by llama-gguf-split has names like model-00001-of-00004.gguf",
            hint=f"join the pieces in order first: cat {whole}.* > {whole}",
        )
    return path


def _only_model(folder: Path) -> Path:
    files = sorted(p for p in folder.glob("*.gguf") if not p.name.startswith("."))
    models: dict[str, Path] = {}
    for file in files:
        match = _SHARD_NAME.match(file.name)
        models.setdefault(match["prefix"] + match["count"] if match else file.name, file)
    if len(models) == 1:
        return next(iter(models.values()))
    below = sorted({str(p.parent.relative_to(folder)) for p in folder.glob("*/*.gguf")})
    parts = sorted(p.name for p in folder.iterdir() if _RAW_PART.search(p.name))
    hint = (
        f"name one of: {', '.join(p.name for p in models.values())}"
        if models
        else f"join the raw parts first (cat, in order): {', '.join(parts)}"
        if parts
        else f"name a folder below it: {', '.join(below)}"
        if below
        else "check the path"
    )
    raise ContainerError(
        "several models in one folder" if models else "no GGUF in this folder",
        file=folder,
        rule="a folder stands for the one model in it",
        hint=hint,
    )


def sibling_shards(path: Path) -> list[Path]:
    """The other files that a shard's name says belong to its model; none for other names."""
    match = _SHARD_NAME.match(path.name)
    if match is None:
        return []
    whole = path.with_name(match["prefix"] + ".gguf")
    count = int(match["count"])
    shards = (shard_path(whole, number, count) for number in range(min(count, MAX_SHARDS)))
    return [shard for shard in shards if shard != path and shard.is_file()]


def open_shards(first: Header, parse: Callable[[Path], Header]) -> list[Header]:
    """All shards of the model that `first` belongs to, in order, checked against each other."""
    count = _value(first, COUNT_KEY, 1)
    if count <= 1:
        return [first]
    match = _SHARD_NAME.match(first.path.name)
    if match is None or int(match["count"]) != count:
        raise ContainerError(
            "a shard whose file name does not say which one it is",
            file=first.path,
            value=f"split.no = {_value(first, NO_KEY, -1)}, split.count = {count}",
            rule=f"<name>-<number>-of-{count:05d}.gguf, numbers from 00001",
            hint="give the shards their original names back, or merge them with "
            "llama-gguf-split --merge",
        )
    whole = first.path.with_name(match["prefix"] + ".gguf")
    paths = [shard_path(whole, number, count) for number in range(count)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ContainerError(
            f"{len(missing)} of {count} shards are missing",
            file=first.path.parent / missing[0],
            value=_listed(missing),
            rule="all shards of a model are in one folder",
            hint="fetch the missing files into the same folder",
        )
    headers = [first if path == first.path else parse(path) for path in paths]
    for number, header in enumerate(headers):
        _check_shard(header, number, count)
    _check_tensors(headers)
    return headers


def _value(header: Header, key: str, default: int) -> int:
    slot = header.pairs.get(key)
    if slot is None:
        return default
    value = unpack_kv(slot.raw) if slot.raw is not None else None
    if not isinstance(value, int):
        raise ContainerError(
            f"metadata key {key!r} is no number", file=header.path, value=slot.value_type.name
        )
    return value


def _check_shard(header: Header, number: int, count: int) -> None:
    found = (_value(header, NO_KEY, -1), _value(header, COUNT_KEY, -1))
    if found != (number, count):
        raise ContainerError(
            "a shard that is not the one its name says",
            file=header.path,
            value=f"split.no = {found[0]}, split.count = {found[1]}",
            rule=f"split.no = {number} (names count from 1), split.count = {count}",
            hint="the file was renamed or belongs to another model; fetch it again",
        )


def _check_tensors(headers: list[Header]) -> None:
    seen: dict[str, Path] = {}
    for header in headers:
        for record in header.tensors:
            if record.name in seen:
                raise ContainerError(
                    "a tensor that stands in two shards",
                    file=header.path,
                    tensor=record.name,
                    value=f"also in {seen[record.name].name}",
                    rule="tensor names are unique in a model",
                    hint="the shards belong to different models; fetch them again",
                )
            seen[record.name] = header.path
    promised = _value(headers[0], TENSORS_KEY, -1)
    if promised != len(seen):
        raise ContainerError(
            "the shards do not hold as many tensors as the first one says",
            file=headers[0].path,
            value=f"{len(seen)} tensors",
            rule=f"{TENSORS_KEY} = {promised}",
            hint="the shards belong to different models; fetch them again",
        )


def _listed(names: Iterable[str], limit: int = 8) -> str:
    shown = list(names)
    rest = len(shown) - limit
    return ", ".join(shown[:limit]) + (f" and {rest} more" if rest > 0 else "")
