"""Hashes of whole files and of byte ranges, streamed through one small buffer.

SHA-256 names files: every tool and hub has it. BLAKE3 is for bytes that are hashed on their way:
as good for telling bytes apart, and several times as fast as SHA-256 (spec of BLAKE3, section 5).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from blake3 import blake3

from quantkit.containers.ranges import ByteRange, iterate_range
from quantkit.errors import ContainerError


def sha256_range(
    source: ByteRange, *, on_bytes: Callable[[int], object] = lambda count: None
) -> str:
    """Hex digest of a byte range; `on_bytes` hears of every piece hashed."""
    digest = hashlib.sha256()
    for piece in iterate_range(source):
        digest.update(piece)
        on_bytes(len(piece))
    return digest.hexdigest()


def sha256_file(path: Path, *, on_bytes: Callable[[int], object] = lambda count: None) -> str:
    """Hex digest of a whole file, as `sha256sum` prints it."""
    return sha256_range(ByteRange(path, 0, file_bytes(path)), on_bytes=on_bytes)


def blake3_ranges(
    sources: Iterable[ByteRange], *, on_bytes: Callable[[int], object] = lambda count: None
) -> str:
    """Hex digest of byte ranges, one after the other."""
    digest = blake3()
    for source in sources:
        for piece in iterate_range(source):
            digest.update(piece)
            on_bytes(len(piece))
    return digest.hexdigest()


def file_bytes(path: Path) -> int:
    """Size of an existing regular file in bytes; `ContainerError` when there is none."""
    if not path.is_file():
        raise ContainerError("no such file", file=path, hint="check the path")
    return path.stat().st_size
