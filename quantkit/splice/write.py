"""Write a planned hybrid and prove that it holds its sources' bytes.

The files are written under a temporary name. While the kernel copies, other threads read back what
is there already, compare it with the sources and hash it (`follow`). Only when all of it is proved
do the files get their names. Every page is touched while it is still cached, so a model that is
larger than the memory is read once and written once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from quantkit.artifacts.schema import Scalar
from quantkit.artifacts.store import FileId, dumps
from quantkit.containers.gguf.write import ShardPlan, plan_gguf, write_planned
from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.containers.writing import refuse_inputs
from quantkit.errors import ArtifactError
from quantkit.files import atomic_paths
from quantkit.progress import Progress
from quantkit.splice.follow import Followers
from quantkit.splice.plan import SplicePlan
from quantkit.splice.provenance import HASH_PLACEHOLDER, provenance_artifact, provenance_keys

PROVENANCE_SUFFIX = ".provenance.json"
MAX_HASH_THREADS = 4


@dataclass(frozen=True)
class SpliceResult:
    """What was written: the model's files with their hashes, and the provenance beside them."""

    paths: tuple[Path, ...]
    outputs: tuple[FileId, ...]
    provenance_path: Path

    @property
    def nbytes(self) -> int:
        """Size of the model in bytes, all shards together."""
        return sum(output.bytes for output in self.outputs)


def output_paths(
    plan: SplicePlan, out: Path, *, split_max_bytes: int | None = None
) -> tuple[Path, ...]:
    """Every file that `write_splice` would write: the model's, then the provenance."""
    placeholders = dict.fromkeys(_source_paths(plan), HASH_PLACEHOLDER)
    shards = _plan_files(plan, out, placeholders, split_max_bytes)
    return (*(shard.path for shard in shards), out.with_name(out.name + PROVENANCE_SUFFIX))


def predicted_bytes(plan: SplicePlan, *, split_max_bytes: int | None = None) -> int:
    """Exact size in bytes of what `write_splice` would write, without reading any tensor."""
    placeholders = dict.fromkeys(_source_paths(plan), HASH_PLACEHOLDER)
    shards = _plan_files(plan, Path("model.gguf"), placeholders, split_max_bytes)
    return sum(shard.nbytes for shard in shards)


def write_splice(
    plan: SplicePlan,
    out: Path,
    *,
    split_max_bytes: int | None = None,
    inputs: Sequence[FileId] = (),
    parameters: Mapping[str, Scalar] | None = None,
    command: Sequence[str] = (),
    check_sources: bool = False,
) -> SpliceResult:
    """Write the hybrid to `out` (or its shards) and `<out>.provenance.json`, all or nothing.

    `inputs`, `parameters` and `command` are recorded in the JSON: the artifacts that led here and
    how. Hashes of source files that the plan knows are taken from it unless `check_sources`, which
    reads them again. Raises `ContainerError` if a tensor of the output differs from its source.
    """
    provenance_path = out.with_name(out.name + PROVENANCE_SUFFIX)
    source_files = _identify_sources(plan, check_sources)
    sha256 = {path: identity.sha256 for path, identity in source_files.items()}
    shards = _plan_files(plan, out, sha256, split_max_bytes)
    finals = [*(shard.path for shard in shards), provenance_path]
    refuse_inputs(finals, source_files)
    with atomic_paths(finals) as temporary:
        followers = Followers(shards, temporary[:-1])
        with followers.following():
            write_planned(
                shards,
                temporary[:-1],
                progress_label="splice",
                on_written=followers.on_written,
            )
        outputs = [
            FileId(shard.path.name, digest, shard.nbytes)
            for shard, digest in zip(shards, followers.file_sha256, strict=True)
        ]
        artifact = provenance_artifact(
            plan,
            outputs=outputs,
            source_files=source_files,
            tensor_sha256=followers.tensor_sha256,
            inputs=inputs,
            parameters=parameters or {},
            command=command,
        )
        temporary[-1].write_bytes(dumps(artifact))
    return SpliceResult(tuple(finals[:-1]), tuple(outputs), provenance_path)


def _source_paths(plan: SplicePlan) -> list[Path]:
    return [path for model in plan.sources.values() for path in model.shards]


def _plan_files(
    plan: SplicePlan, out: Path, sha256: Mapping[Path, str], split_max_bytes: int | None
) -> list[ShardPlan]:
    metadata = [*plan.base.metadata.carried(), *provenance_keys(plan, sha256)]
    return plan_gguf(out, metadata, plan.specs(), split_max_bytes=split_max_bytes)


def _identify_sources(plan: SplicePlan, check: bool) -> dict[Path, FileId]:
    paths = _source_paths(plan)
    sizes = {path: file_bytes(path) for path in paths}
    digests = dict(plan.known_sha256)
    unknown = [path for path in paths if check or path not in digests]
    total = sum(sizes[path] for path in unknown)
    with _hash_threads() as pool, _shared_progress("hash sources", total) as on_bytes:
        hashed = {path: pool.submit(sha256_file, path, on_bytes=on_bytes) for path in unknown}
        for path, future in hashed.items():
            digest = future.result()
            if digests.setdefault(path, digest) != digest:
                raise ArtifactError(
                    "a source that is not the file it was measured as",
                    file=path,
                    value=f"sha256 {digest}",
                    rule=f"sha256 {digests[path]}",
                    hint="measure and select again with the files as they are now",
                )
    return {path: FileId(path.name, digests[path], sizes[path]) for path in paths}


@contextmanager
def _hash_threads() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(max_workers=min(MAX_HASH_THREADS, os.cpu_count() or 1))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _shared_progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A progress line that several threads may count on."""
    lock = Lock()
    with Progress(label, total_bytes) as progress:

        def on_bytes(count: int) -> None:
            with lock:
                progress.step(count)

        yield on_bytes
