"""What `inspect` finds in a model file, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.artifacts.schema import to_json
from quantkit.report.tables import percent, text_table


@dataclass(frozen=True)
class TypeRow:
    """All tensors of one type."""

    qtype: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True)
class GroupRow:
    """All tensors of one purpose; `types` maps type to bytes. A fused tensor counts in each."""

    group: str
    tensors: int
    parameters: int
    bytes: int
    types: dict[str, int]


@dataclass(frozen=True)
class LayerTypes:
    """Types of a layer's routed experts; `mixed` where they are not all the same."""

    layer: int
    gate: str
    up: str
    down: str
    mixed: bool


@dataclass(frozen=True)
class FileType:
    """`general.file_type` and the type that holds most weights; `agrees` None if not comparable."""

    number: int
    stated: str | None
    actual: str
    agrees: bool | None


@dataclass(frozen=True)
class Geometry:
    """`active_bytes_per_token` are the weights read to decode one token.

    They are the chosen experts, one row of the embedding and the rows of the n-gram table that
    the token hashes to, and all other tensors once.
    """

    n_layers: int
    context_length: int
    n_experts: int
    n_experts_used: int
    active_bytes_per_token: int


@dataclass(frozen=True)
class Inspection:
    """One model. Bytes: `header_bytes` + `padding_bytes` + those of all `types` = `bytes`.

    `groups`, `layers` and `geometry` need a complete model of a known architecture; `note` says
    why they are missing. `parameters` leaves out integer constants. `provenance` holds what this
    tool wrote into the file; `provenance_note` says what of it cannot be read.
    """

    path: str
    container: str
    files: tuple[str, ...]
    bytes: int
    header_bytes: int
    padding_bytes: int
    architecture: str | None
    name: str | None
    parameters: int
    bpw: float
    parameters_without_table: int
    bpw_without_table: float
    label: str
    types: tuple[TypeRow, ...]
    groups: tuple[GroupRow, ...]
    layers: tuple[LayerTypes, ...]
    file_type: FileType | None
    geometry: Geometry | None
    provenance: dict[str, Any]
    note: str | None
    provenance_note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found: dict[str, Any] = to_json(self)
        return found

    def render(self) -> str:
        """For people, one screen."""
        parts = [_heading(self), _summary(self), _types(self)]
        if self.groups:
            parts.append(_groups(self))
        if self.layers:
            parts.append(_layers(self.layers))
        if self.provenance:
            parts.append(_provenance(self.provenance))
        if self.provenance_note is not None:
            parts.append(f"provenance: {self.provenance_note}")
        return "\n\n".join(parts)


def _heading(found: Inspection) -> str:
    files = "" if len(found.files) == 1 else f", {len(found.files)} files"
    return f"{found.path}  ({found.container}{files}, {found.bytes:,} bytes)"


def _summary(found: Inspection) -> str:
    rows = [
        ("model", found.name or "unnamed"),
        ("architecture", found.architecture or "unknown"),
        ("parameters", _parameters(found)),
        ("bits per weight", _bpw(found)),
        ("label", found.label),
    ]
    if found.file_type is not None:
        rows.append(("file type", _file_type(found.file_type)))
    if found.geometry is not None:
        geometry = found.geometry
        rows += [
            ("layers", str(geometry.n_layers)),
            ("context", f"{geometry.context_length:,} tokens"),
            ("experts", f"{geometry.n_experts_used} of {geometry.n_experts} used"),
            ("read per token", f"{geometry.active_bytes_per_token:,} bytes"),
        ]
    if found.note is not None:
        rows.append(("roles", f"unknown: {found.note}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _has_table(found: Inspection) -> bool:
    return found.parameters_without_table != found.parameters


def _parameters(found: Inspection) -> str:
    own = f"{found.parameters:,}"
    if not _has_table(found):
        return own
    return f"{own}, {found.parameters_without_table:,} without the n-gram table"


def _bpw(found: Inspection) -> str:
    own = f"{found.bpw:.3f}"
    return (
        f"{own}, {found.bpw_without_table:.3f} without the n-gram table"
        if _has_table(found)
        else own
    )


def _file_type(found: FileType) -> str:
    stated = found.stated or f"number {found.number}"
    if found.agrees is None:
        return f"metadata says {stated}, most weights are {found.actual}"
    if found.agrees:
        return stated
    return f"metadata says {stated}, but most weights are {found.actual}"


def _types(found: Inspection) -> str:
    rows = [
        [
            row.qtype,
            str(row.tensors),
            f"{row.parameters:,}",
            f"{row.bytes:,}",
            _share(row.bytes, found),
        ]
        for row in found.types
    ]
    rows.append(["header", "", "", f"{found.header_bytes:,}", _share(found.header_bytes, found)])
    rows.append(["padding", "", "", f"{found.padding_bytes:,}", _share(found.padding_bytes, found)])
    return text_table("lrrrr", ["type", "tensors", "weights", "bytes", "% of file"], rows)


def _groups(found: Inspection) -> str:
    rows = [
        [
            row.group,
            str(row.tensors),
            f"{row.parameters:,}",
            f"{row.bytes:,}",
            _share(row.bytes, found),
            _shares(row.types),
        ]
        for row in found.groups
    ]
    head = ["role", "tensors", "weights", "bytes", "% of file", "types"]
    return text_table("lrrrrl", head, rows)


def _share(n_bytes: int, found: Inspection) -> str:
    return percent(n_bytes / found.bytes if found.bytes else 0)


def _shares(types: Mapping[str, int]) -> str:
    """Types by falling bytes; with their shares where there are several."""
    total = sum(types.values())
    ranked = sorted(types.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) == 1:
        return ranked[0][0]
    return ", ".join(f"{name} {n_bytes / total:.1%}" for name, n_bytes in ranked)


def _layers(layers: Iterable[LayerTypes]) -> str:
    """Neighbouring layers with the same types share a line."""
    runs: list[list[LayerTypes]] = []
    for layer in layers:
        if runs and _same_types(runs[-1][-1], layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    rows = []
    for run in runs:
        first, last = run[0], run[-1]
        number = str(first.layer) if first is last else f"{first.layer}-{last.layer}"
        rows.append([number, first.gate, first.up, first.down, "mixed" if first.mixed else ""])
    return text_table("lllll", ["layer", "gate", "up", "down", ""], rows)


def _same_types(a: LayerTypes, b: LayerTypes) -> bool:
    return (a.gate, a.up, a.down) == (b.gate, b.up, b.down)


def _provenance(found: Mapping[str, Any]) -> str:
    lines = [f"made by quantkit {found.get('tool_version', '')} from"]
    columns = ("source.names", "source.files", "source.sha256")
    rows = zip(*(found.get(column, []) for column in columns), strict=False)
    lines += [f"  {name}: {file}  sha256 {digest}" for name, file, digest in rows]
    for layer, units in sorted(found.get("selection", {}).items(), key=lambda item: int(item[0])):
        chosen = ", ".join(f"{unit} from {source}" for unit, source in sorted(units.items()))
        lines.append(f"  layer {layer}: {chosen}")
    return "\n".join(lines)
