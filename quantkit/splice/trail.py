"""A writer and the thread that reads its files right behind it.

Reading back what was just written costs a second pass over the disk once a file outgrows the
memory. A `Trail` keeps the reader within a few megabytes of the writer, so that it finds the bytes
in the page cache, mostly even in the processor's, and holds the writer back when the reader falls
behind. Positions count over all files of a set, one file after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Condition

# How far the writer may be ahead: enough to keep both sides busy, little enough to stay cached.
WINDOW_BYTES = 32 << 20
BATCH_BYTES = 4 << 20


class TrailClosedError(Exception):
    """Raised behind a writer that gave up; nobody outside sees it."""


class Trail:
    """Positions of a writer and of the reader behind it, in bytes of the whole set.

    Further threads may `wait_for` the writer; it never waits for them.
    """

    def __init__(self) -> None:
        self._change = Condition()
        self._written = 0
        self._read = 0
        self._closed = False
        self._error: BaseException | None = None

    def advance(self, written: int) -> None:
        """The writer says that all bytes before `written` can be read; waits for the reader.

        Raises what a thread behind it failed with.
        """
        with self._change:
            self._written = max(self._written, written)
            self._change.notify_all()
            self._change.wait_for(lambda: self._error or self._keeping_up())
            if self._error:
                raise self._error

    def _keeping_up(self) -> bool:
        return self._written - self._read <= WINDOW_BYTES

    def spans(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Parts of [start, end) as they become readable; asking for the next one ends the last."""
        while start < end:
            self._passed(start)
            written = self.wait_for(start + 1)
            stop = min(end, written, start + BATCH_BYTES)
            yield start, stop
            start = stop
        self._passed(end)

    def _passed(self, position: int) -> None:
        with self._change:
            self._read = position
            self._change.notify_all()

    def wait_for(self, position: int) -> int:
        """Wait until all before `position` can be read; returns up to where that is so."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._written >= position)
            if self._closed:
                raise TrailClosedError
            return self._written

    def run(self, follower: Callable[[], None]) -> None:
        """Run a thread's work; if it fails, the writer hears of it at its next step."""
        try:
            follower()
        except TrailClosedError:
            pass
        except BaseException as error:
            with self._change:
                self._error = self._error or error
                self._change.notify_all()

    def raise_failure(self) -> None:
        """Raise what a thread failed with, if one did."""
        with self._change:
            if self._error:
                raise self._error

    def close(self) -> None:
        """Send the threads home, for a writer that does not get to the end."""
        with self._change:
            self._closed = True
            self._change.notify_all()
