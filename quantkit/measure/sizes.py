"""What each tensor of a hybrid would cost in the file, to the byte."""

from __future__ import annotations

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, SourceLayer, TensorSize, UnitError
from quantkit.containers.base import TensorEntry, spec_of
from quantkit.containers.gguf import GGUFFile, gguf_header_bytes
from quantkit.models.roles import EXPERT_ROLES, EXPERTS

ALIGNMENT = 32
"""What the writer pads every tensor to."""
UNIT_ROLES = {GATE_UP: ("experts_gate", "experts_up"), DOWN: ("experts_down",)}
PROVENANCE_STEP_BYTES = 4096
PROVENANCE_BYTES = 1024
PROVENANCE_BYTES_PER_FILE = 512
PROVENANCE_BYTES_PER_UNIT = 64
_GGUF_NAMES = {role.name: role for role in EXPERTS if role.name in EXPERT_ROLES}


def tensor_size(entry: TensorEntry) -> TensorSize:
    """Name, type, row length and padded bytes of a tensor."""
    padded = -(-entry.nbytes // ALIGNMENT) * ALIGNMENT
    row = entry.shape[-1] if entry.shape else 1
    return TensorSize(entry.name, entry.qtype.name, row, padded)


def source_layer(file: GGUFFile, layer: int, errors: dict[str, UnitError]) -> SourceLayer:
    """One layer of one source: its expert tensors by unit, and their errors."""
    tensors = {
        unit: tuple(
            tensor_size(file.tensors[_GGUF_NAMES[role].gguf_name(layer)]) for role in role_names
        )
        for unit, role_names in UNIT_ROLES.items()
    }
    return SourceLayer(layer, tensors, errors)


def expert_tensor_names(n_layers: int) -> set[str]:
    """Names of every tensor that a selection may swap."""
    return {role.gguf_name(i) for role in _GGUF_NAMES.values() for i in range(n_layers)}


def header_bytes(base: GGUFFile) -> int:
    """Bytes in front of the tensors of a hybrid, before `splice` adds its provenance."""
    specs = [spec_of(entry) for entry in base.tensors.values()]
    return gguf_header_bytes(base.metadata.carried(), specs)


def overhead_bytes(n_files: int, n_units: int) -> int:
    """Room for the provenance of any selection over this many source files and units."""
    needed = (
        PROVENANCE_BYTES + PROVENANCE_BYTES_PER_FILE * n_files + PROVENANCE_BYTES_PER_UNIT * n_units
    )
    return -(-needed // PROVENANCE_STEP_BYTES) * PROVENANCE_STEP_BYTES
