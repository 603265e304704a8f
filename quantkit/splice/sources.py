"""Hashes of whole source files, each read once; for sources whose parts were never hashed.

A selection of an earlier version says what the files were that were measured. They are proved to be
these by threads that read them while the copy runs: nothing gets its name before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.errors import ArtifactError
from quantkit.progress import Progress

MAX_HASH_THREADS = 4
POLL_SECONDS = 0.2


class _StoppedError(Exception):
    """Raised in a thread when nobody wants its hash any more."""


class _Hashing:
    """The hashes of files, being computed in threads."""

    def __init__(self, paths: Iterable[Path], pool: ThreadPoolExecutor) -> None:
        self._sizes = {path: file_bytes(path) for path in paths}
        self._lock = Lock()
        self._done = 0
        self.stopped = False
        self._futures: dict[Path, Future[str]] = {
            path: pool.submit(sha256_file, path, on_bytes=self._count) for path in self._sizes
        }

    def _count(self, n_bytes: int) -> None:
        if self.stopped:
            raise _StoppedError
        with self._lock:
            self._done += n_bytes

    def results(self) -> dict[Path, str]:
        """Every file's hash, as soon as all are there; the first error, if there is one."""
        waiting = set(self._futures.values())
        with Progress("hash sources", sum(self._sizes.values())) as progress:
            while waiting:
                finished, waiting = wait(waiting, POLL_SECONDS)
                for future in finished:
                    future.result()
                progress.step(self._done - progress.done)
        return {path: future.result() for path, future in self._futures.items()}


@contextmanager
def _hashing(paths: Iterable[Path]) -> Iterator[_Hashing]:
    """Hash files in threads, which end with the body, at the latest at their next piece."""
    pool = ThreadPoolExecutor(max_workers=min(MAX_HASH_THREADS, os.cpu_count() or 1))
    hashing = _Hashing(paths, pool)
    try:
        yield hashing
    finally:
        hashing.stopped = True
        pool.shutdown(cancel_futures=True)


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """The files' hashes, read now."""
    with _hashing(paths) as hashing:
        return hashing.results()


@contextmanager
def proving(expected: Mapping[Path, str]) -> Iterator[None]:
    """Around a copy: the files are read meanwhile; ArtifactError if one has another hash."""
    with _hashing(expected) as hashing:
        yield
        for path, digest in hashing.results().items():
            if digest != expected[path]:
                raise ArtifactError(
                    "a source that is not the file it was measured as",
                    file=path,
                    value=f"sha256 {digest}",
                    rule=f"sha256 {expected[path]}",
                    hint="name the measured file, or measure and select again with this one",
                )
