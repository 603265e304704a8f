"""What each tensor of a hybrid would cost in the file, to the byte.

An expert weight costs what stands in the file because of it: its own bytes, and for a type with
scales in tensors of their own (NVFP4) theirs and the records of those tensors in the header. Only
companions come and go with a choice, so the records of all other tensors are in `header_bytes`.
A companion's record counts with the padding that keeps sizes additive (`models.companions`).
"""

from __future__ import annotations

from dataclasses import replace

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, SourceLayer, TensorSize, UnitError
from quantkit.containers.base import TensorEntry, spec_of
from quantkit.containers.gguf import GGUFFile, gguf_header_bytes
from quantkit.models.companions import ALIGNMENT, companion_names, padded_record_bytes
from quantkit.models.roles import EXPERT_ROLES, EXPERTS

UNIT_ROLES = {GATE_UP: ("experts_gate", "experts_up"), DOWN: ("experts_down",)}
PROVENANCE_STEP_BYTES = 4096
PROVENANCE_BYTES = 1024
PROVENANCE_BYTES_PER_FILE = 512
PROVENANCE_BYTES_PER_UNIT = 64
_GGUF_NAMES = {role.name: role for role in EXPERTS if role.name in EXPERT_ROLES}
_EXPERT_SUFFIXES = tuple(f".{role.gguf}" for role in _GGUF_NAMES.values())


def _padded(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def tensor_size(entry: TensorEntry) -> TensorSize:
    """Name, type, row length and padded bytes of a tensor."""
    row = entry.shape[-1] if entry.shape else 1
    return TensorSize(entry.name, entry.qtype.name, row, _padded(entry.nbytes))


def companions(file: GGUFFile, weight: str) -> list[TensorEntry]:
    """The scales that stand beside an expert weight."""
    return [file.tensors[name] for name in companion_names(weight) if name in file.tensors]


def _weight_size(file: GGUFFile, name: str) -> TensorSize:
    """An expert weight with its companions."""
    size = tensor_size(file.tensors[name])
    beside = companions(file, name)
    more = sum(_padded(entry.nbytes) + padded_record_bytes(entry.name) for entry in beside)
    return replace(size, bytes=size.bytes + more)


def source_layer(file: GGUFFile, layer: int, errors: dict[str, UnitError]) -> SourceLayer:
    """One layer of one source: its expert tensors by unit, and their errors."""
    tensors = {
        unit: tuple(_weight_size(file, _GGUF_NAMES[role].gguf_name(layer)) for role in role_names)
        for unit, role_names in UNIT_ROLES.items()
    }
    return SourceLayer(layer, tensors, errors)


def expert_tensor_names(n_layers: int) -> set[str]:
    """Names of every tensor that a selection may swap, companions too."""
    weights = {role.gguf_name(i) for role in _GGUF_NAMES.values() for i in range(n_layers)}
    return weights | {name for weight in weights for name in companion_names(weight)}


def header_bytes(base: GGUFFile) -> int:
    """Bytes in front of the tensors of a hybrid, before `splice` adds its provenance.

    Records of the experts' companions are not in it, they come with the units.
    """
    experts = (name for name in base.tensors if name.endswith(_EXPERT_SUFFIXES))
    own = {entry.name for name in experts for entry in companions(base, name)}
    specs = [spec_of(entry) for entry in base.tensors.values() if entry.name not in own]
    return gguf_header_bytes(base.metadata.carried(), specs)


def overhead_bytes(n_files: int, n_units: int) -> int:
    """Room for the provenance of any selection over this many source files and units."""
    needed = (
        PROVENANCE_BYTES + PROVENANCE_BYTES_PER_FILE * n_files + PROVENANCE_BYTES_PER_UNIT * n_units
    )
    return -(-needed // PROVENANCE_STEP_BYTES) * PROVENANCE_STEP_BYTES
