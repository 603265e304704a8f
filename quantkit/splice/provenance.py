"""What a hybrid says about itself: `quantkit.*` keys inside, a provenance JSON beside it.

Inside stand only facts that do not depend on when and where the file was made, so that the same
inputs give the same bytes:

    quantkit.schema_version   u32       version of these keys
    quantkit.tool_version     string    version of quantkit
    quantkit.source.names     strings   one entry per source file: the source it belongs to
    quantkit.source.files     strings   its file name
    quantkit.source.sha256    strings   its hash, as it was measured
    quantkit.selection        string    JSON: layer -> unit -> source (the base is left out)
    quantkit.padding          u8[]      fills the header

The padding brings these keys to a length that was fixed before anything was chosen. The size of
the file is then the base's header, that length and the sizes of the tensors, which lets `select`
meet a target to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import quantkit
from quantkit.artifacts.provenance import Provenance, ProvenanceSource, TensorOrigin, WrittenFile
from quantkit.artifacts.schema import Scalar
from quantkit.artifacts.store import FileId
from quantkit.containers.gguf import ValueType, pack_kv
from quantkit.errors import ArtifactError
from quantkit.models.companions import header_slack_bytes
from quantkit.splice.plan import SplicePlan, expert_companions

KEYS_VERSION = 1
OVERHEAD_STEP_BYTES = 4096
HASH_PLACEHOLDER = "0" * 64
OPERATION = "splice"


def selection_json(plan: SplicePlan) -> str:
    """The donors' choices as compact JSON: `{"3":{"down":"iq4_nl","gate_up":"iq3_s"}}`."""
    layers: dict[str, dict[str, str]] = {}
    for choice in plan.choices:
        if choice.source != plan.base_name:
            layers.setdefault(str(choice.layer), {})[choice.unit] = choice.source
    return json.dumps(layers, separators=(",", ":"), ensure_ascii=False)


def provenance_keys(plan: SplicePlan, sha256: Mapping[Path, str]) -> list[bytes]:
    """The packed `quantkit.*` pairs; `sha256` has the hash of every source file.

    Raises `ArtifactError` if they do not fit in the length that the plan prescribes.
    """
    rows = [(name, path) for name, model in plan.sources.items() for path in model.shards]
    pairs = [
        pack_kv("quantkit.schema_version", ValueType.UINT32, KEYS_VERSION),
        pack_kv("quantkit.tool_version", ValueType.STRING, quantkit.__version__),
        _strings("quantkit.source.names", (name for name, _ in rows)),
        _strings("quantkit.source.files", (path.name for _, path in rows)),
        _strings("quantkit.source.sha256", (sha256[path] for _, path in rows)),
        pack_kv("quantkit.selection", ValueType.STRING, selection_json(plan)),
    ]
    return [*pairs, _padding(sum(map(len, pairs)), plan)]


def _strings(key: str, values: Iterable[str]) -> bytes:
    return pack_kv(key, ValueType.ARRAY, list(values), ValueType.STRING)


def _padding_pair(nbytes: int) -> bytes:
    return pack_kv("quantkit.padding", ValueType.ARRAY, bytes(nbytes), ValueType.UINT8)


def _padding(used_bytes: int, plan: SplicePlan) -> bytes:
    needed = used_bytes + len(_padding_pair(0))
    wanted = plan.overhead_bytes
    if wanted is None:
        wanted = -(-needed // OVERHEAD_STEP_BYTES) * OVERHEAD_STEP_BYTES
    else:
        # A prediction adds up units, each with the records of its companions in whole steps.
        wanted += header_slack_bytes(expert_companions(t.entry.name for t in plan.tensors))
    if needed > wanted:
        raise ArtifactError(
            "the provenance does not fit in the header space that the selection reserves",
            file=plan.base.path,
            value=f"{needed} bytes",
            rule=f"overhead_bytes = {wanted}",
            hint="measure again with this version, or give the donors shorter names",
        )
    return _padding_pair(wanted - needed)


def provenance_artifact(
    plan: SplicePlan,
    *,
    outputs: Sequence[WrittenFile],
    source_files: Mapping[Path, FileId],
    tensor_blake3: Mapping[str, str],
    inputs: Sequence[FileId],
    parameters: Mapping[str, Scalar],
    command: Sequence[str],
) -> Provenance:
    """The artifact that stands beside the hybrid."""
    return Provenance(
        operation=OPERATION,
        outputs=tuple(outputs),
        sources=tuple(
            ProvenanceSource(name, tuple(source_files[path] for path in model.shards))
            for name, model in plan.sources.items()
        ),
        inputs=tuple(inputs),
        parameters=dict(parameters),
        tensors=tuple(
            TensorOrigin(
                name=tensor.entry.name,
                qtype=tensor.entry.qtype.name,
                bytes=tensor.entry.nbytes,
                blake3=tensor_blake3[tensor.entry.name],
                source=tensor.source,
                copied=True,
            )
            for tensor in plan.tensors
        ),
        command=tuple(command),
    )
