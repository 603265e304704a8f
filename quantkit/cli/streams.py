"""Standard output and error that never decide about a verb's exit code by accident.

A reader may go away (`| head`), a disk may be full, a stream may be closed or know ASCII only. What
cannot be said on stderr is lost and nothing else; stdout may lose its reader, but output that could
not be written for another reason is an error.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

STDOUT = "<stdout>"


class _Output(io.FileIO):
    """A descriptor that takes everything once writing to it has failed."""

    def __init__(self, descriptor: int, *, is_data: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._is_data = is_data
        self._gone = False

    def write(self, data: Any) -> int:
        """Write, or pretend to; OSError that names stdout if data is lost that somebody wants."""
        try:
            return len(data) if self._gone else super().write(data)
        except OSError as error:
            self._gone = True
            if self._is_data and error.errno != errno.EPIPE:
                raise OSError(error.errno, error.strerror, STDOUT) from None
            return len(data)


def secure_streams() -> None:
    """Replace sys.stdout and sys.stderr; call once, before anything is printed."""
    for descriptor in (0, 1, 2):
        _require_open(descriptor)
    sys.stdout = _text(1, sys.stdout, is_data=True)
    sys.stderr = _text(2, sys.stderr, is_data=False)


def _require_open(descriptor: int) -> None:
    """A closed one would go to the next file that is opened, and receive what we print."""
    try:
        os.fstat(descriptor)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _text(descriptor: int, former: TextIO | None, *, is_data: bool) -> TextIO:
    # Names from the file system may hold what no encoding has.
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, is_data=is_data)),
        encoding=former.encoding if former else "utf-8",
        errors="backslashreplace",
        line_buffering=not is_data,
    )
