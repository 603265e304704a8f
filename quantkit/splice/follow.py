"""What follows a splice while it is being written: proof of the bytes, hashes, early syncing.

Three threads open the new files by themselves. One hashes them as a whole. One reads every tensor
from the new file and again from its source and compares the two byte by byte. Equal bytes have
equal hashes, so one SHA-256, of the bytes read back, is the hash of the tensor in both files;
hashing the source as well would say the same at many times the cost of the comparison. The third
has the system bring to the disk what is written, which otherwise begins when all is done. What is
not on the disk yet is read back from the system's cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quantkit.containers.gguf import open_gguf
from quantkit.containers.gguf.write import ShardPlan
from quantkit.containers.ranges import ByteRange, iterate_range
from quantkit.errors import ContainerError
from quantkit.files import open_input
from quantkit.splice.trail import Trail

# A piece stays in the second-level cache between the read, the comparison and the hash.
PIECE_BYTES = 256 << 10
SYNC_STEP_BYTES = 256 << 20
WHOLE, TENSORS = range(2)


class Followers:
    """Threads behind the writer of `files`; `shards` says what those hold and their final names.

    All tensors must be byte ranges of files.
    """

    def __init__(self, shards: Sequence[ShardPlan], files: Sequence[Path]) -> None:
        self._shards = shards
        self._files = files
        self._starts = list(accumulate((shard.nbytes for shard in shards), initial=0))
        self._trail = Trail(readers=2)
        self.file_sha256: list[str] = []
        self.tensor_sha256: dict[str, str] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Around the writing; afterwards `file_sha256` and `tensor_sha256` are complete.

        Raises `ContainerError` if a tensor differs from its source. An error of the writer, or
        Ctrl-C, stops the threads at their next step.
        """
        with ThreadPoolExecutor(max_workers=3) as pool:
            try:
                syncing = pool.submit(self._trail.run, self._sync_files)
                reading = [pool.submit(self._trail.run, self._hash_files)]
                reading += [pool.submit(self._trail.run, self._compare_tensors)]
                yield
                wait([*reading, syncing])
            finally:
                self._trail.close()
        # Also that of a sync: the system reports it once, so no later one would tell.
        self._trail.raise_failure()
        self._check_headers()

    def on_written(self, number: int, end: int) -> None:
        """File `number` is complete up to byte `end`; raises if something is wrong already."""
        self._trail.advance(self._starts[number] + end)

    def _hash_files(self) -> None:
        for start, shard, path in zip(self._starts[:-1], self._shards, self._files, strict=True):
            digest = hashlib.sha256()
            for begin, end in self._trail.spans(WHOLE, start, start + shard.nbytes):
                for piece in iterate_range(
                    ByteRange(path, begin - start, end - begin), PIECE_BYTES
                ):
                    digest.update(piece)
            self.file_sha256.append(digest.hexdigest())

    def _compare_tensors(self) -> None:
        for start, shard, path in zip(self._starts[:-1], self._shards, self._files, strict=True):
            for spec, offset in zip(shard.tensors, shard.offsets, strict=True):
                assert isinstance(spec.source, ByteRange)
                copy = _Copy(spec.name, shard.path, path, offset, spec.source)
                digest = hashlib.sha256()
                first = start + offset
                for begin, end in self._trail.spans(TENSORS, first, first + spec.nbytes):
                    for piece in copy.proven(begin - first, end - first):
                        digest.update(piece)
                self.tensor_sha256[spec.name] = digest.hexdigest()

    def _sync_files(self) -> None:
        for start, shard, path in zip(self._starts[:-1], self._shards, self._files, strict=True):
            for end in range(SYNC_STEP_BYTES, shard.nbytes, SYNC_STEP_BYTES):
                self._trail.wait_for(start + end)
                with open_input(path) as descriptor:
                    os.fsync(descriptor)

    def _check_headers(self) -> None:
        """The reader, who knows nothing of the plan, must find what was planned."""
        found = open_gguf(self._files[0]).tensors
        for shard, path in zip(self._shards, self._files, strict=True):
            for spec, offset in zip(shard.tensors, shard.offsets, strict=True):
                entry = found[spec.name]
                read = (entry.path, entry.offset, entry.shape, entry.qtype)
                if read != (path, offset, spec.shape, spec.qtype):
                    raise ContainerError(
                        "a written tensor that is described otherwise than it was planned",
                        file=shard.path,
                        tensor=spec.name,
                        value=f"{entry.qtype.name} {list(entry.shape)} at {entry.offset}",
                        rule=f"{spec.qtype.name} {list(spec.shape)} at {offset}",
                        hint="the disk or memory is faulty",
                    )


class _Copy(NamedTuple):
    """A written tensor: at `offset` of `path`, which will be `final`, from `source`."""

    name: str
    final: Path
    path: Path
    offset: int
    source: ByteRange

    def proven(self, begin: int, end: int) -> Iterator[memoryview]:
        """Bytes [begin, end) of the tensor as they were read back, equal to the source's."""
        written = ByteRange(self.path, self.offset + begin, end - begin)
        wanted = ByteRange(self.source.path, self.source.offset + begin, end - begin)
        pairs = zip(
            iterate_range(written, PIECE_BYTES), iterate_range(wanted, PIECE_BYTES), strict=True
        )
        for piece, original in pairs:
            equal = np.frombuffer(piece, np.uint8) == np.frombuffer(original, np.uint8)
            if not equal.all():
                at = begin + int(equal.argmin())
                raise self._differs(at, piece[at - begin], original[at - begin])
            yield piece
            begin += len(piece)

    def _differs(self, at: int, found: int, wanted: int) -> ContainerError:
        return ContainerError(
            "a written tensor that differs from its source",
            file=self.final,
            tensor=self.name,
            value=f"{found:#04x} in byte {at} of the tensor",
            rule=f"{wanted:#04x}, as in {self.source.path}",
            hint="a source changed during the copy, or the disk or memory is faulty",
        )
