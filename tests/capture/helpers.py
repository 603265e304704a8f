"""Packages made for the tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

AR_MAGIC = b"!<arch>\n"


def tar_bytes(files: Mapping[str, bytes], mode: str = "w:xz") -> bytes:
    """A tar archive with names as dpkg writes them: folders and files under `./`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        root = tarfile.TarInfo("./")
        root.type = tarfile.DIRTYPE
        tar.addfile(root)
        for name, content in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def ar_bytes(members: Mapping[str, bytes]) -> bytes:
    """An ar archive in the common format: 60-byte headers, members padded to even sizes."""
    parts = [AR_MAGIC]
    for name, content in members.items():
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


def deb_bytes(files: Mapping[str, bytes], mode: str = "w:xz", suffix: str = ".xz") -> bytes:
    """A Debian package with the members in dpkg's order."""
    return ar_bytes(
        {
            "debian-binary": b"2.0\n",
            "control.tar.xz": tar_bytes({"control": b"Package: made\n"}),
            f"data.tar{suffix}": tar_bytes(files, mode),
        }
    )


def make_deb(
    folder: Path, files: Mapping[str, bytes], package: str = "made", version: str = "1.0-1"
) -> Path:
    """Write a package; a colon of the version becomes %3a, as apt-get download names it."""
    path = folder / f"{package}_{version.replace(':', '%3a')}_all.deb"
    path.write_bytes(deb_bytes(files))
    return path
