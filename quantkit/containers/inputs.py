"""Which files a path given by a user stands for, found by their names alone."""

from __future__ import annotations

from pathlib import Path

from quantkit.containers.gguf.split import sibling_shards

CHECKPOINT_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
"""What a checkpoint of transformers consists of: configuration, tensors, tokenizer."""


def is_checkpoint(path: Path) -> bool:
    """Whether the path is the folder of a transformers checkpoint."""
    return (path / "config.json").is_file()


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """The files of a checkpoint by name."""
    found = (path for pattern in CHECKPOINT_FILES for path in folder.glob(pattern))
    return tuple(sorted(path for path in found if path.is_file()))


def input_files(path: Path) -> tuple[Path, ...]:
    """Every file that is read for a path: a checkpoint's, all shards of a GGUF, or the file itself.

    Nothing is opened, and nothing has to be there.
    """
    if is_checkpoint(path):
        return checkpoint_files(path)
    if path.is_dir():
        return tuple(sorted(path.glob("*.gguf")))
    return (path, *sibling_shards(path))
