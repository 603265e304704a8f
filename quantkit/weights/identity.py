"""Which files a model is made of, and their hashes."""

from __future__ import annotations

from pathlib import Path

from quantkit.artifacts.store import FileId
from quantkit.containers.gguf import open_gguf
from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.containers.safetensors import open_safetensors

_known: dict[tuple[Path, int, int], str] = {}


def file_id(path: Path) -> FileId:
    """Name, hash and size; the hash is remembered while size and time of the file stay the same."""
    status = path.stat()
    key = (path.resolve(), status.st_size, status.st_mtime_ns)
    if key not in _known:
        _known[key] = sha256_file(path)
    return FileId(path.name, _known[key], file_bytes(path))


def model_files(model: Path) -> tuple[FileId, ...]:
    """Identity of a model: every shard of a GGUF, or every tensor file of a checkpoint."""
    if (model / "config.json").is_file():
        paths = sorted({entry.path for entry in open_safetensors(model).tensors.values()})
    else:
        paths = list(open_gguf(model).shards)
    return tuple(file_id(path) for path in paths)
