"""Write a planned hybrid and prove that it holds its sources' bytes.

The files are written under a temporary name. While the kernel copies, other threads read back what
is there already and hash it (`follow`): a tensor with the hash that it had when it was measured
proves the copy and the source at once. Sources of which no such hashes are known are hashed whole
(`sources`). Only when all of it is proved do the files get their names. Every page of the new files
is touched while it is still cached, so they are not read from the disk again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from quantkit.artifacts.provenance import WrittenFile
from quantkit.artifacts.schema import Scalar
from quantkit.artifacts.store import FileId, dumps
from quantkit.containers.gguf.write import ShardPlan, plan_gguf, write_planned
from quantkit.containers.hashing import file_bytes
from quantkit.containers.writing import refuse_inputs
from quantkit.files import atomic_paths
from quantkit.splice.follow import Followers
from quantkit.splice.plan import SplicePlan
from quantkit.splice.provenance import HASH_PLACEHOLDER, provenance_artifact, provenance_keys
from quantkit.splice.sources import hash_files, proving

PROVENANCE_SUFFIX = ".provenance.json"


@dataclass(frozen=True)
class SpliceResult:
    """What was written: the model's files with their hashes, and the provenance beside them."""

    paths: tuple[Path, ...]
    outputs: tuple[WrittenFile, ...]
    provenance_path: Path
    provenance: WrittenFile

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
) -> SpliceResult:
    """Write the hybrid to `out` (or its shards) and `<out>.provenance.json`, all or nothing.

    `inputs`, `parameters` and `command` are recorded in the JSON: the artifacts that led here and
    how. Raises `ArtifactError` if a source has another hash than the plan knows of its part or of
    the whole, and `ContainerError` if a tensor of the output differs from its source.
    """
    provenance_path = out.with_name(out.name + PROVENANCE_SUFFIX)
    known = plan.known_sha256
    sha256 = hash_files(path for path in _source_paths(plan) if path not in known) | dict(known)
    source_files = {path: FileId(path.name, sha256[path], file_bytes(path)) for path in sha256}
    shards = _plan_files(plan, out, sha256, split_max_bytes)
    finals = [*(shard.path for shard in shards), provenance_path]
    refuse_inputs(finals, source_files)
    with atomic_paths(finals) as temporary:
        followers = Followers(shards, temporary[:-1], plan.measured_tensors())
        whole = {path: known[path] for path in plan.unmeasured_files() if path in known}
        with proving(whole), followers.following():
            write_planned(
                shards,
                temporary[:-1],
                progress_label="splice",
                on_written=followers.on_written,
            )
        artifact = provenance_artifact(
            plan,
            outputs=followers.files,
            source_files=source_files,
            tensor_blake3=followers.tensors,
            inputs=inputs,
            parameters=parameters or {},
            command=command,
        )
        data = dumps(artifact)
        temporary[-1].write_bytes(data)
    beside = WrittenFile(provenance_path.name, blake3(data).hexdigest(), len(data))
    return SpliceResult(tuple(finals[:-1]), tuple(followers.files), provenance_path, beside)


def _source_paths(plan: SplicePlan) -> list[Path]:
    return [path for model in plan.sources.values() for path in model.shards]


def _plan_files(
    plan: SplicePlan, out: Path, sha256: Mapping[Path, str], split_max_bytes: int | None
) -> list[ShardPlan]:
    metadata = [*plan.base.metadata.carried(), *provenance_keys(plan, sha256)]
    return plan_gguf(out, metadata, plan.specs(), split_max_bytes=split_max_bytes)
