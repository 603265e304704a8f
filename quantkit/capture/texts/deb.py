"""Read the files of a Debian binary package without installing it.

A .deb is an `ar` archive with three members: `debian-binary`, `control.tar.*` and `data.tar.*`
(deb(5)). Only the data member is needed here. Its names start with `./`.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from quantkit.errors import TextError

AR_MAGIC = b"!<arch>\n"
AR_HEADER_BYTES = 60
AR_HEADER_END = b"`\n"
AR_NAME = slice(0, 16)
AR_SIZE = slice(48, 58)
# zstd, which Ubuntu uses, came to Python's library with 3.14; Debian packages are xz.
TAR_MODES: MappingProxyType[str, Literal["r:", "r:gz", "r:xz", "r:bz2"]] = MappingProxyType(
    {"": "r:", ".gz": "r:gz", ".xz": "r:xz", ".bz2": "r:bz2"}
)


def ar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of an `ar` archive, in file order.

    Raises TextError for a file that is not an archive or ends inside a member.
    """
    data = path.read_bytes()
    if not data.startswith(AR_MAGIC):
        raise TextError(
            "not a Debian package",
            file=path,
            value=data[: len(AR_MAGIC)],
            rule="a .deb is an ar archive and starts with '!<arch>'",
        )
    position = len(AR_MAGIC)
    while position < len(data):
        header = data[position : position + AR_HEADER_BYTES]
        size_field = header[AR_SIZE].strip()
        start = position + AR_HEADER_BYTES
        if not header.endswith(AR_HEADER_END) or not size_field.isdigit():
            raise _damaged(path, f"no member header at byte {position}")
        end = start + int(size_field)
        if end > len(data):
            raise _damaged(path, f"{len(data)} bytes, a member ends at {end}")
        yield header[AR_NAME].decode("ascii", "replace").strip().rstrip("/"), data[start:end]
        position = end + end % 2


def deb_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (path inside the package, content) of the `wanted` regular files, in archive order.

    Paths are relative to the file system's root (`usr/share/doc/...`). Raises TextError for a
    file that is no package and for a compression that this Python cannot read.
    """
    for name, content in ar_members(path):
        if name.startswith("data.tar"):
            yield from _tar_files(path, name, content, wanted)
            return
    raise _damaged(path, "no member data.tar")


def _tar_files(
    path: Path, name: str, content: bytes, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, bytes]]:
    mode = TAR_MODES.get(name.removeprefix("data.tar"))
    if mode is None:
        raise TextError(
            "unsupported compression of a Debian package",
            file=path,
            value=name,
            rule=f"data.tar, or data.tar with {', '.join(filter(None, TAR_MODES))}",
            hint="install the package and leave out --deb-dir",
        )
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode=mode) as tar:
            for member in tar:
                inside = member.name.removeprefix("./")
                handle = tar.extractfile(member) if member.isreg() and wanted(inside) else None
                if handle is not None:
                    yield inside, handle.read()
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise _damaged(path, f"{name}: {error}") from error


def _damaged(path: Path, value: str) -> TextError:
    return TextError(
        "damaged Debian package",
        file=path,
        value=value,
        rule="an ar archive with a whole member data.tar.*",
        hint="download the package again and compare its sha256 with the recipe's",
    )
