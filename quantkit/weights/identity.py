"""Which files a model is made of, and their hashes."""

from __future__ import annotations

from pathlib import Path

from quantkit.artifacts.store import FileId
from quantkit.containers.gguf import open_gguf
from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.containers.inputs import is_checkpoint
from quantkit.containers.safetensors import open_safetensors

CHECKPOINT_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""What decides about a checkpoint's results beside its tensors; other files may come and go."""
REMEMBERED_BYTES = 1 << 20
"""A smaller file is hashed each time: an edit may leave its size and, on a coarse clock, its time
as they were."""

_known: dict[tuple[Path, int, int], str] = {}


def file_id(path: Path) -> FileId:
    """Name, hash and size; a large file's hash is remembered while its size and time stay."""
    status = path.stat()
    if status.st_size < REMEMBERED_BYTES:
        return FileId(path.name, sha256_file(path), file_bytes(path))
    key = (path.resolve(), status.st_size, status.st_mtime_ns)
    if key not in _known:
        _known[key] = sha256_file(path)
    return FileId(path.name, _known[key], file_bytes(path))


def model_files(model: Path) -> tuple[FileId, ...]:
    """Identity of a model: every shard of a GGUF, or everything in a checkpoint that counts."""
    if is_checkpoint(model):
        tensors = {entry.path for entry in open_safetensors(model).tensors.values()}
        others = {path for name in CHECKPOINT_FILES if (path := model / name).is_file()}
        paths = sorted(tensors | others)
    else:
        paths = list(open_gguf(model).shards)
    return tuple(file_id(path) for path in paths)
