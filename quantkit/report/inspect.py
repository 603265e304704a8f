"""`inspect`: what a model file holds, from its header alone.

Roles come from the architecture tables, so a model of an unknown architecture, or one that lacks
tensors, still gets its types counted. Works on GGUF and on checkpoints.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from quantkit.containers.base import TensorEntry
from quantkit.containers.gguf import open_gguf
from quantkit.containers.hashing import file_bytes
from quantkit.containers.safetensors import open_safetensors
from quantkit.errors import ContainerError, ModelError
from quantkit.models.config import ModelConfig
from quantkit.models.fields import Fields, is_text
from quantkit.models.roles import EXPERT_ROLES
from quantkit.quantize.encode import FILE_TYPE_KEY, FILE_TYPES
from quantkit.report.inspection import FileType, Geometry, GroupRow, Inspection, LayerTypes, TypeRow
from quantkit.weights import ModelWeights, TensorHandle, open_model
from quantkit.weights.checkpoint import read_json

SAFETENSORS = ".safetensors"
CHECKPOINT = "safetensors"
PROVENANCE_PREFIX = "quantkit."
PROVENANCE_PADDING = "quantkit.padding"
INTEGER_TYPES = {"I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL"}
TABLE_GROUP = "n-gram table"
MTP, OTHER = "multi-token prediction", "norms and other"

GROUPS: tuple[tuple[str, str], ...] = (
    ("experts, gate", r"experts_gate"),
    ("experts, up", r"experts_up"),
    ("experts, down", r"experts_down"),
    ("shared expert", r"shared_\w+"),
    ("router", r"router"),
    ("attention", r"attn_(q|k|v|out|q_norm|k_norm)|indexer_\w+"),
    ("gated delta net", r"gdn_\w+"),
    ("hyper-connections", r"(hc|output_hc)_\w+"),
    (TABLE_GROUP, r"ngram_table"),
    ("n-gram layer", r"ngram_\w+"),
    ("embedding", r"token_embd"),
    ("head", r"output"),
)
"""Group -> roles (`models.roles`), the first match counts; all other roles are norms."""
ORDER = (*(group for group, _ in GROUPS), OTHER, MTP)
EXPERT_GROUPS = ("experts, gate", "experts, up", "experts, down")


@dataclass
class _Tally:
    """Sums over the tensors of a type or group."""

    names: set[str] = field(default_factory=set)
    parameters: int = 0
    types: Counter[str] = field(default_factory=Counter)

    @property
    def bytes(self) -> int:
        return self.types.total()

    def add(self, entry: TensorEntry, n_elements: int, n_bytes: int) -> None:
        self.names.add(entry.name)
        self.types[entry.qtype.name] += n_bytes
        if entry.qtype.name not in INTEGER_TYPES:
            self.parameters += n_elements


@dataclass(frozen=True)
class _Opened:
    """A container of either kind."""

    container: str
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, Any]


def inspect_model(path: Path) -> Inspection:
    """Types, bytes by role, bits per weight and geometry of a GGUF or a checkpoint.

    Only headers are read. Raises ContainerError for a file that is not what its format promises.
    """
    opened = _open(path)
    model, note = _model(path, opened)
    by_type: dict[str, _Tally] = {}
    for entry in opened.tensors.values():
        tally = by_type.setdefault(entry.qtype.name, _Tally())
        tally.add(entry, entry.n_elements, entry.nbytes)
    groups = {} if model is None else _groups(model, opened.tensors)
    weights = sum(tally.bytes for tally in by_type.values())
    total = sum(file_bytes(file) for file in opened.files)
    header = sum(_header_bytes(file, opened.tensors) for file in opened.files)
    parameters = sum(tally.parameters for tally in by_type.values())
    table = groups.get(TABLE_GROUP, _Tally())
    provenance, provenance_note = _provenance(opened.metadata)
    return Inspection(
        path=str(path),
        container=opened.container,
        files=tuple(file.name for file in opened.files),
        bytes=total,
        header_bytes=header,
        padding_bytes=total - header - weights,
        architecture=_architecture(path, opened, model),
        name=_text(opened.metadata.get("general.name")),
        parameters=parameters,
        bpw=_bpw(weights, parameters),
        parameters_without_table=parameters - table.parameters,
        bpw_without_table=_bpw(weights - table.bytes, parameters - table.parameters),
        label=_label(groups, by_type),
        types=_type_rows(by_type),
        groups=_group_rows(groups),
        layers=() if model is None else tuple(_layers(model)),
        file_type=_file_type(opened),
        geometry=None if model is None else _geometry(model),
        provenance=provenance,
        note=note,
        provenance_note=provenance_note,
    )


def _type_rows(by_type: Mapping[str, _Tally]) -> tuple[TypeRow, ...]:
    rows = (TypeRow(name, len(t.names), t.parameters, t.bytes) for name, t in by_type.items())
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.qtype)))


def _group_rows(groups: Mapping[str, _Tally]) -> tuple[GroupRow, ...]:
    return tuple(
        GroupRow(group, len(t.names), t.parameters, t.bytes, dict(sorted(t.types.items())))
        for group in ORDER
        if (t := groups.get(group)) is not None
    )


def _geometry(model: ModelWeights) -> Geometry:
    config = model.config
    return Geometry(
        n_layers=config.n_layers,
        context_length=config.context_length,
        n_experts=config.moe.n_experts,
        n_experts_used=config.moe.n_experts_used,
        active_bytes_per_token=_active_bytes(model),
    )


def _open(path: Path) -> _Opened:
    holds_safetensors = path.is_dir() and any(path.glob(f"*{SAFETENSORS}"))
    if path.suffix == SAFETENSORS or holds_safetensors:
        model = open_safetensors(path)
        files = tuple(sorted({entry.path for entry in model.tensors.values()}))
        if not files:
            raise ContainerError(
                "a checkpoint without tensors",
                file=model.path,
                rule="at least one tensor",
                hint="the file is damaged or its download incomplete; fetch it again",
            )
        return _Opened(CHECKPOINT, files, model.tensors, {})
    file = open_gguf(path)
    return _Opened(f"GGUF version {file.version}", file.shards, file.tensors, file.metadata)


def _model(path: Path, opened: _Opened) -> tuple[ModelWeights | None, str | None]:
    """The model by roles, or why there is none."""
    if opened.container == CHECKPOINT and not (path / "config.json").is_file():
        return None, "no config.json"
    try:
        return open_model(path), None
    except ModelError as error:
        detail = error.tensor or error.value
        return None, error.what if detail is None else f"{error.what} ({detail})"


def _groups(model: ModelWeights, tensors: Mapping[str, TensorEntry]) -> dict[str, _Tally]:
    found: dict[str, _Tally] = {}
    covered: Counter[str] = Counter()
    for role, handle in _handles(model):
        tally = found.setdefault(_group_of(role), _Tally())
        for piece in handle.pieces:
            tally.add(piece.entry, prod(piece.shape), piece.nbytes)
            covered[piece.entry.name] += piece.nbytes
        for entry in handle.companions:
            tally.add(entry, entry.n_elements, entry.nbytes)
            covered[entry.name] += entry.nbytes
    for entry in tensors.values():
        if not covered[entry.name]:
            group = MTP if _is_mtp(entry.name, model.config) else OTHER
            found.setdefault(group, _Tally()).add(entry, entry.n_elements, entry.nbytes)
    return found


def _handles(model: ModelWeights) -> Iterator[tuple[str, TensorHandle]]:
    for handles in (model.top, *model.layers):
        yield from handles.items()


def _group_of(role: str) -> str:
    return next((group for group, roles in GROUPS if re.fullmatch(roles, role)), OTHER)


def _is_mtp(name: str, config: ModelConfig) -> bool:
    block = re.match(r"blk\.(\d+)\.", name)
    return "mtp." in name or (block is not None and int(block[1]) >= config.n_layers)


def _layers(model: ModelWeights) -> Iterator[LayerTypes]:
    for number, handles in enumerate(model.layers):
        gate, up, down = (handles[role].qtype.name for role in EXPERT_ROLES)
        yield LayerTypes(number, gate, up, down, mixed=len({gate, up, down}) > 1)


def _active_bytes(model: ModelWeights) -> int:
    """Bytes of the weights that one decoded token needs."""
    moe = model.config.moe
    total = 0
    for role, handle in _handles(model):
        if role in EXPERT_ROLES:
            total += handle.nbytes * moe.n_experts_used // moe.n_experts
        elif role == "ngram_table":
            assert model.config.ngram is not None
            total += handle.nbytes // handle.shape[0] * model.config.ngram.n_heads
        elif role == "token_embd" and not model.config.tied_head:
            total += handle.nbytes // handle.shape[0]
        else:
            total += handle.nbytes
    return total


def _header_bytes(file: Path, tensors: Mapping[str, TensorEntry]) -> int:
    offsets = [entry.offset for entry in tensors.values() if entry.path == file]
    return min(offsets, default=file_bytes(file))


def _bpw(n_bytes: int, parameters: int) -> float:
    return 8 * n_bytes / parameters if parameters else 0.0


def _label(groups: Mapping[str, _Tally], by_type: Mapping[str, _Tally]) -> str:
    """Bits per weight and types of what makes the size: the experts, or all tensors."""
    experts = [groups[group] for group in EXPERT_GROUPS if group in groups]
    what, tallies = ("experts ", experts) if experts else ("", list(by_type.values()))
    types = sum((tally.types for tally in tallies), Counter[str]())
    ranked = sorted(types.items(), key=lambda item: (-item[1], item[0]))
    shares = ", ".join(f"{name} {n_bytes / types.total():.0%}" for name, n_bytes in ranked)
    bpw = _bpw(types.total(), sum(tally.parameters for tally in tallies))
    return f"{what}{bpw:.2f} bits per weight ({shares})"


def _file_type(opened: _Opened) -> FileType | None:
    number = opened.metadata.get(FILE_TYPE_KEY)
    if type(number) is not int:
        return None
    actual = _main_type(list(opened.tensors.values()))
    stated = next((name for name, known in FILE_TYPES.items() if known == number), None)
    comparable = stated is not None and actual in FILE_TYPES
    return FileType(number, stated, actual, stated == actual if comparable else None)


def _main_type(entries: Sequence[TensorEntry]) -> str:
    """The type that holds most weights of the matrices."""
    weights: Counter[str] = Counter()
    for entry in entries:
        if len(entry.shape) >= 2:
            weights[entry.qtype.name] += entry.n_elements
    return min(weights, key=lambda name: (-weights[name], name), default="none")


def _architecture(path: Path, opened: _Opened, model: ModelWeights | None) -> str | None:
    if model is not None:
        return model.config.arch
    if (path / "config.json").is_file():
        return _text(read_json(path / "config.json").get("model_type"))
    return _text(opened.metadata.get("general.architecture"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _provenance(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """What this tool wrote into the file, and what of it cannot be read: the model is no worse."""
    keys = Fields(metadata, source="the metadata", noun="key", prefix=PROVENANCE_PREFIX)
    found: dict[str, Any] = {}
    notes: list[str] = []
    for key in metadata:
        name = key.removeprefix(PROVENANCE_PREFIX)
        if name == key or key == PROVENANCE_PADDING:
            continue
        try:
            found[name] = PROVENANCE_READERS.get(name, _provenance_value)(keys, name)
        except ModelError as error:
            notes.append(f"{error.what} ({error.value}; {error.rule})")
    columns = [found[name] for name in SOURCE_COLUMNS if name in found]
    if len({len(column) for column in columns}) > 1:
        notes.append("the lists of source files have different lengths")
    return found, "; ".join(notes) or None


def _provenance_value(keys: Fields, name: str) -> Any:
    """A text, a number or a list of texts: what every version of this tool writes."""
    value = keys.value(name)
    if isinstance(value, list):
        return list(keys.texts(name))
    return keys.text(name) if isinstance(value, str) else keys.integer(name, low=0)


def _selection(keys: Fields, name: str) -> dict[str, dict[str, str]]:
    text = keys.text(name)
    try:
        layers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise keys.invalid(name, text, f"JSON ({error})") from error
    usable = isinstance(layers, dict) and all(
        layer.isdecimal()
        and len(layer) <= LAYER_DIGITS
        and isinstance(units, dict)
        and all(map(is_text, units.values()))
        for layer, units in layers.items()
    )
    if not usable:
        raise keys.invalid(name, text, "JSON: layer number -> unit -> source")
    return dict(layers)


LAYER_DIGITS = 9
SOURCE_COLUMNS = ("source.names", "source.files", "source.sha256")
PROVENANCE_READERS: dict[str, Callable[[Fields, str], Any]] = {
    "selection": _selection,
    "tool_version": lambda keys, name: keys.text(name),
    **{column: lambda keys, name: list(keys.texts(name)) for column in SOURCE_COLUMNS},
}


__all__ = ["Inspection", "inspect_model"]
