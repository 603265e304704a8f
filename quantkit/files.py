"""Files: read only what is one, and write them completely or not at all.

A path given by a user may name a pipe or a device, which would hang or never end, so inputs are
opened without waiting and refused unless they are regular files.

Everything is written inside a hidden folder next to the final place (`.<name>.partial/`), under its
final name, so that a set of shards can be opened and checked before it exists for anybody else.
Then each file is fsynced and renamed, the first of the set last, and the folder is fsynced. A
failure, or Ctrl-C, removes the hidden folder; one left behind by a killed process is emptied by
the next attempt, and a lock on it keeps two processes from writing the same file at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quantkit.errors import ContainerError

_INPUT_PROBLEMS = {
    errno.ENOENT: ("no such file", "check the path"),
    errno.ENOTDIR: ("no such file", "check the path; one of its folders is a file"),
    errno.EACCES: ("the file may not be read", "check its permissions"),
    errno.EISDIR: ("a folder where a file is needed", "name the file inside it"),
    errno.ELOOP: ("a symbolic link that leads nowhere", "check where the link points"),
    errno.EINVAL: ("not a regular file", "pipes and devices cannot be read; write a file first"),
}
_OUTPUT_PROBLEMS = {
    errno.ENOSPC: "free space there, or write somewhere else",
    errno.EDQUOT: "the quota is used up; free space there, or write somewhere else",
    errno.EFBIG: "this file system cannot hold a file of this size; write smaller shards",
    errno.EACCES: "write to a folder that you may write to",
    errno.EROFS: "the file system is read-only; write somewhere else",
}


def _open_regular(path: Path) -> int:
    """A read-only descriptor; OSError for what is not there, may not be read or is no file."""
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a path with a NUL byte", str(path))
    # A pipe that nobody writes to would make a plain open wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


@contextmanager
def open_input(path: Path) -> Iterator[int]:
    """A read-only file descriptor of an existing regular file, or `ContainerError`."""
    try:
        descriptor = _open_regular(path)
    except OSError as error:
        if error.errno not in _INPUT_PROBLEMS:
            raise
        what, hint = _INPUT_PROBLEMS[error.errno]
        raise ContainerError(what, file=path, hint=hint) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular(path: Path) -> bytes:
    """All bytes of a regular file; OSError for anything else, for callers with words of their own.

    Meant for small files.
    """
    with os.fdopen(_open_regular(path), "rb") as stream:
        return stream.read()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; `ContainerError` where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ContainerError(
            f"could not make the folder: {error.strerror}",
            file=folder,
            rule="a folder that exists, or can be made",
            hint="name a folder that you may write to",
        ) from error


def staging_folder(final: Path) -> Path:
    """Where a file, or a set that starts with it, stands until it is complete."""
    return final.with_name(f".{final.name}.partial")


@contextmanager
def atomic_paths(finals: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """Temporary paths for a set of files of one folder that appear together or not at all.

    The body writes every path it got; leaving it normally fsyncs and renames them, replacing what
    was there. The first path is renamed last, so whoever sees it sees the whole set.
    """
    folder = finals[0].parent
    _check_targets(finals)
    staging = staging_folder(finals[0])
    with _output_errors(finals[0], staging), _locked(staging, finals[0]):
        try:
            _empty(staging)
            temporary = tuple(staging / final.name for final in finals)
            yield temporary
            for path in temporary:
                _fsync(path)
            for path, final in reversed(list(zip(temporary, finals, strict=True))):
                os.replace(path, final)
            _fsync(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """A temporary path (same file name) that becomes `final` if the body succeeds."""
    with atomic_paths([final]) as paths:
        yield paths[0]


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write a file that is there completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text; what a file name has that is no UTF-8 becomes an escape."""
    write_bytes_atomic(path, text.encode("utf-8", "backslashreplace"))


def write_json_atomic(path: Path, value: object) -> None:
    """Write JSON with the keys in the given order; the same value gives the same bytes."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomic(path, text + "\n")


def _check_targets(finals: Sequence[Path]) -> None:
    folder = finals[0].parent
    if any(final.parent != folder for final in finals):
        raise ValueError("a set of files that appear together must share one folder")
    if not folder.is_dir():
        raise ContainerError(
            "no such folder to write to", file=folder, hint=f"make it first: mkdir -p {folder}"
        )
    for final in finals:
        if final.is_dir():
            raise ContainerError(
                "a folder stands where a file is to be written",
                file=final,
                hint="name a file inside it, or another path",
            )


@contextmanager
def _output_errors(final: Path, staging: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        elsewhere = error.filename is not None and str(staging) not in str(error.filename)
        if elsewhere or error.errno not in _OUTPUT_PROBLEMS:
            raise
        raise ContainerError(
            f"could not write: {error.strerror}",
            file=final,
            hint=_OUTPUT_PROBLEMS[error.errno],
        ) from error


@contextmanager
def _locked(folder: Path, final: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _lock(descriptor):
            raise ContainerError(
                "another process is writing this file",
                file=final,
                hint="wait for it, or write under another name",
            )
        yield
    finally:
        os.close(descriptor)


def _lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # A folder that its owner removed between our open and our lock has no links left.
    return os.fstat(folder).st_nlink > 0


def _empty(folder: Path) -> None:
    for leftover in folder.iterdir():
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
