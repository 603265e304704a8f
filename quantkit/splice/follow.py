"""What follows a splice while it is being written: hashes that prove its bytes, early syncing.

Two threads open the new files by themselves. One reads them back, from the system's cache as long
as they are not on the disk yet, and hashes every tensor and every file in the same pass. A tensor
must have the hash that it had when its source was measured, or else the one that its source has
now. The other thread has the system bring to the disk what is written, which otherwise begins
when all is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

from blake3 import blake3

from quantkit.artifacts.provenance import WrittenFile
from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import open_gguf
from quantkit.containers.gguf.write import ShardPlan
from quantkit.containers.hashing import blake3_ranges
from quantkit.containers.ranges import READ_STEP_BYTES, ByteRange, iterate_range
from quantkit.errors import ArtifactError, ContainerError, QuantkitError
from quantkit.files import open_input
from quantkit.splice.trail import Trail

SYNC_STEP_BYTES = 16 << 20


class Followers:
    """Threads behind the writer of `files`; `shards` says what those hold and their final names.

    All tensors must be byte ranges of files. `measured` has the hashes that are known of them.
    """

    def __init__(
        self, shards: Sequence[ShardPlan], files: Sequence[Path], measured: Mapping[str, str]
    ) -> None:
        self._shards = shards
        self._files = files
        self._measured = measured
        self._starts = list(accumulate((shard.nbytes for shard in shards), initial=0))
        self._trail = Trail()
        self.files: list[WrittenFile] = []
        self.tensors: dict[str, str] = {}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Around the writing; afterwards `files` and the hashes of `tensors` are complete.

        Raises `ArtifactError` if a source is not what was measured, `ContainerError` if a tensor
        differs from its source. An error of the writer, or Ctrl-C, stops the threads at their next
        step.
        """
        with ThreadPoolExecutor(max_workers=2) as pool:
            try:
                steps = (self._hash_files, self._sync_files)
                threads = [pool.submit(self._trail.run, step) for step in steps]
                yield
                wait(threads)
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
            whole, position = blake3(), 0
            for spec, offset in zip(shard.tensors, shard.offsets, strict=True):
                for piece in self._pieces(path, start, position, offset):
                    whole.update(piece)
                own, position = blake3(), offset + spec.nbytes
                for piece in self._pieces(path, start, offset, position):
                    whole.update(piece)
                    own.update(piece)
                self.tensors[spec.name] = own.hexdigest()
                self._check_tensor(spec, shard.path, ByteRange(path, offset, spec.nbytes))
            for piece in self._pieces(path, start, position, shard.nbytes):
                whole.update(piece)
            self.files.append(WrittenFile(shard.path.name, whole.hexdigest(), shard.nbytes))

    def _pieces(self, path: Path, start: int, begin: int, end: int) -> Iterator[memoryview]:
        """Bytes [begin, end) of a file that starts at `start`, as they become readable."""
        for first, last in self._trail.spans(start + begin, start + end):
            yield from iterate_range(ByteRange(path, first - start, last - first))

    def _check_tensor(self, spec: TensorSpec, final: Path, written: ByteRange) -> None:
        assert isinstance(spec.source, ByteRange)
        found = self.tensors[spec.name]
        expected = self._measured.get(spec.name) or blake3_ranges([spec.source])
        if found != expected:
            raise _not_copied(spec.name, final, written, spec.source) or ArtifactError(
                "a source that is not the file it was measured as",
                file=spec.source.path,
                tensor=spec.name,
                value=f"blake3 {found}",
                rule=f"blake3 {expected}",
                hint="name the measured file, or measure and select again with this one",
            )

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


def _not_copied(
    name: str, final: Path, written: ByteRange, source: ByteRange
) -> QuantkitError | None:
    """What to say of the first byte of a tensor that is not its source's; None without one."""
    pairs = zip(iterate_range(written), iterate_range(source), strict=True)
    for number, (piece, original) in enumerate(pairs):
        if piece == original:
            continue
        at = next(i for i, (a, b) in enumerate(zip(piece, original, strict=True)) if a != b)
        return ContainerError(
            "a written tensor that differs from its source",
            file=final,
            tensor=name,
            value=f"{piece[at]:#04x} in byte {number * READ_STEP_BYTES + at} of the tensor",
            rule=f"{original[at]:#04x}, as in {source.path}",
            hint="a source changed during the copy, or the disk or memory is faulty",
        )
    return None
