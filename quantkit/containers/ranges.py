"""Byte ranges of files: mapped for reading, or copied without passing through this process.

A quantized model is tens to hundreds of gigabytes that we mostly move unchanged. A `ByteRange`
names such bytes without touching them; `map_range` pages them in on demand, and `copy_range` has
the kernel move them (`copy_file_range`, which a file system may turn into shared extents), with
two slower ways behind it for systems and file system pairs that cannot.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quantkit.errors import ContainerError
from quantkit.files import open_input

if TYPE_CHECKING:
    import numpy as np

# Small enough for a responsive Ctrl-C and for readers that follow, large enough for full speed.
COPY_STEP_BYTES = 8 << 20
READ_STEP_BYTES = 1 << 20

_NOT_POSSIBLE_HERE = frozenset(
    {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}
)


class ByteRange(NamedTuple):
    """`nbytes` bytes of `path` from byte `offset` on."""

    path: Path
    offset: int
    nbytes: int


Copier = Callable[[int, int, int, int, int], int]


def map_range(source: ByteRange) -> np.ndarray:
    """The bytes as a read-only uint8 vector of shape (nbytes,), paged in when they are looked at.

    The mapping lives as long as the array; nothing is kept open besides it.
    """
    import numpy as np  # it takes long to load, and a verb that only copies never needs it

    if source.nbytes == 0:
        return np.frombuffer(b"", dtype=np.uint8)
    with open_input(source.path) as descriptor:
        check_inside(source, os.fstat(descriptor).st_size)
    mapped = np.memmap(
        source.path, dtype=np.uint8, mode="r", offset=source.offset, shape=(source.nbytes,)
    )
    return mapped.view(np.ndarray)


def read_range(source: ByteRange) -> bytes:
    """The bytes themselves; meant for small ranges."""
    with open_input(source.path) as descriptor:
        check_inside(source, os.fstat(descriptor).st_size)
        return os.pread(descriptor, source.nbytes, source.offset)


def iterate_range(source: ByteRange, step_bytes: int = READ_STEP_BYTES) -> Iterator[memoryview]:
    """The bytes in pieces of `step_bytes` (the last may be shorter), all in the same buffer."""
    buffer = memoryview(bytearray(min(step_bytes, max(source.nbytes, 1))))
    with open_input(source.path) as descriptor:
        position, end = source.offset, source.offset + source.nbytes
        while position < end:
            piece = buffer[: end - position]
            filled = 0
            while filled < len(piece):
                count = os.preadv(descriptor, [piece[filled:]], position + filled)
                if count == 0:
                    raise _shrunk(source, position + filled)
                filled += count
            yield piece
            position += filled


def check_inside(source: ByteRange, file_bytes: int) -> None:
    """Refuse a range that reaches past the end of its file."""
    if source.offset + source.nbytes > file_bytes:
        raise _shrunk(source, file_bytes)


def _shrunk(source: ByteRange, end: int) -> ContainerError:
    return ContainerError(
        "the file ends before the bytes that its header promised",
        file=source.path,
        value=f"{source.nbytes} bytes from {source.offset}, file ends at {end}",
        hint="the file changed after it was opened, or its download is incomplete",
    )


def _copy_in_kernel(source: int, target: int, count: int, start: int, to: int) -> int:
    return os.copy_file_range(source, target, count, start, to)


def _copy_by_sendfile(source: int, target: int, count: int, start: int, to: int) -> int:
    os.lseek(target, to, os.SEEK_SET)
    return os.sendfile(target, source, start, count)


def _copy_by_buffer(source: int, target: int, count: int, start: int, to: int) -> int:
    piece = os.pread(source, min(count, READ_STEP_BYTES), start)
    return os.pwrite(target, piece, to) if piece else 0


def default_copiers() -> tuple[Copier, ...]:
    """The ways to copy that this platform has, fastest first; the last one always works."""
    kernel = (_copy_in_kernel,) if hasattr(os, "copy_file_range") else ()
    sendfile = (_copy_by_sendfile,) if hasattr(os, "sendfile") else ()
    return (*kernel, *sendfile, _copy_by_buffer)


def copy_range(
    source: ByteRange,
    target: int,
    target_offset: int,
    *,
    on_bytes: Callable[[int], object] = lambda count: None,
    copiers: Sequence[Copier] | None = None,
) -> None:
    """Copy a range into the open file `target` at `target_offset`.

    `on_bytes` hears of every piece copied. A copier that the system refuses for this pair of
    files, or that moves nothing, is left for the next one; the last one moving nothing means that
    the source ended early (`ContainerError`).
    """
    ways = list(default_copiers() if copiers is None else copiers)
    done = 0
    with open_input(source.path) as descriptor:
        while done < source.nbytes:
            step = min(COPY_STEP_BYTES, source.nbytes - done)
            start, to = source.offset + done, target_offset + done
            try:
                count = ways[0](descriptor, target, step, start, to)
            except OSError as error:
                if len(ways) == 1 or error.errno not in _NOT_POSSIBLE_HERE:
                    raise
                count = 0
            if count == 0 and len(ways) == 1:
                raise _shrunk(source, start)
            if count == 0:
                ways.pop(0)
                continue
            done += count
            on_bytes(count)
