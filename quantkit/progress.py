"""Progress on stderr for everything that takes longer than two seconds.

stdout belongs to data. On a terminal the line is rewritten in place; in a log a line is printed
at most every ten seconds, so that a CI log shows life without filling up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TextIO, TypeVar

T = TypeVar("T")

QUIET_SECONDS = 2.0
TERMINAL_INTERVAL_SECONDS = 0.1
LOG_INTERVAL_SECONDS = 10.0


def log(message: str) -> None:
    """Print one line to stderr."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """A counter with an estimate of the time left: `with Progress("sweep", 8) as p: p.step()`.

    `total` and the steps are in any one unit (layers, bytes, chunks); nothing is printed before
    two seconds have passed.
    """

    def __init__(self, label: str, total: float, stream: TextIO | None = None) -> None:
        self.label = label
        self.total = total
        self.done = 0.0
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._last_print = self._start
        self._printed = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._printed and self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def step(self, amount: float = 1, note: str = "") -> None:
        """Count `amount` more as done; `note` is shown behind the estimate."""
        self.done += amount
        now = time.monotonic()
        interval = TERMINAL_INTERVAL_SECONDS if self._terminal else LOG_INTERVAL_SECONDS
        due = now - self._last_print >= interval or (self._printed and self.done >= self.total)
        if now - self._start < QUIET_SECONDS or not due:
            return
        self._last_print = now
        self._printed = True
        self._write(now - self._start, note)

    def _write(self, elapsed: float, note: str) -> None:
        share = min(1.0, self.done / self.total) if self.total else 1.0
        left = elapsed * (1 - share) / share if share else 0.0
        text = f"{self.label}: {share:4.0%}, {elapsed:.0f} s, about {left:.0f} s left"
        text = f"{text} ({note})" if note else text
        self._stream.write(f"\r\x1b[K{text}" if self._terminal else f"{text}\n")
        self._stream.flush()


def track(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """Yield `items` unchanged while a `Progress` counts them."""
    with Progress(label, total) as progress:
        for item in items:
            yield item
            progress.step()
