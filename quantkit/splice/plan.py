"""Which tensor of the hybrid comes from which file.

The routed experts of a layer stand in a few stacked tensors (gate, up and down, or gate and up
fused). A choice takes a unit of them from a donor. The tensor names are matched as a whole:
`ffn_down` alone would also hit the shared expert and the hyper-connection of the same layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, LAYER, Contents
from quantkit.containers.base import TensorEntry, TensorSpec, spec_of
from quantkit.containers.gguf import GGUFFile
from quantkit.errors import ArtifactError, DonorError
from quantkit.models.companions import companion_names, companion_owner

EXPERT_TENSOR = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight$")
ARCHITECTURE_KEY = "general.architecture"
BASE_NAME = "base"

UNIT_KINDS = {
    LAYER: ("gate", "up", "gate_up", "down"),
    GATE_UP: ("gate", "up", "gate_up"),
    DOWN: ("down",),
}


@dataclass(frozen=True)
class UnitChoice:
    """Take `unit` ("layer", "gate_up" or "down") of layer `layer` from `source`."""

    layer: int
    unit: str
    source: str


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the hybrid and the name of the source that its bytes come from."""

    entry: TensorEntry
    source: str


@dataclass(frozen=True)
class SplicePlan:
    """The hybrid, tensor by tensor in file order.

    `donors` are those that are used. `overhead_bytes` is what the provenance adds to the header
    (None: as little as fits). `known_sha256` says what the source files were that were measured,
    `measured`, by source, what parts of them were; files of other sources are hashed whole.
    """

    base: GGUFFile
    base_name: str
    donors: dict[str, GGUFFile]
    choices: tuple[UnitChoice, ...]
    tensors: tuple[PlannedTensor, ...]
    overhead_bytes: int | None = None
    known_sha256: Mapping[Path, str] = field(default_factory=dict)
    measured: Mapping[str, Contents] = field(default_factory=dict)

    @property
    def sources(self) -> dict[str, GGUFFile]:
        """Every model that bytes or metadata come from, by name; the base first."""
        return {self.base_name: self.base, **self.donors}

    def measured_tensors(self) -> dict[str, str]:
        """The BLAKE3 that tensors had when they were measured, as far as it is known."""
        known = {name: contents.tensors for name, contents in self.measured.items()}
        return {
            t.entry.name: known[t.source][t.entry.name]
            for t in self.tensors
            if t.entry.name in known.get(t.source, {})
        }

    def unmeasured_files(self) -> list[Path]:
        """Files of sources of which something is taken whose hash is not known."""
        known = self.measured_tensors()
        sources = {t.source for t in self.tensors if t.entry.name not in known}
        sources |= set(self.sources) - set(self.measured)
        return [p for name in self.sources if name in sources for p in self.sources[name].shards]

    def specs(self) -> list[TensorSpec]:
        """What to write."""
        return [spec_of(tensor.entry) for tensor in self.tensors]


def plan_splice(
    base: GGUFFile,
    donors: Mapping[str, GGUFFile],
    choices: Sequence[UnitChoice],
    *,
    base_name: str = BASE_NAME,
    overhead_bytes: int | None = None,
    known_sha256: Mapping[Path, str] | None = None,
    measured: Mapping[str, Contents] | None = None,
) -> SplicePlan:
    """Resolve the choices to tensors; layers without a choice stay as they are in the base.

    Raises `ArtifactError` for choices that do not fit the base or contradict each other, and
    `DonorError` for a donor whose tensors are not those of the base in another type.
    """
    if base_name in donors:
        raise ArtifactError(
            "a donor has the name of the base",
            value=base_name,
            rule="source names differ",
            hint="give the donor another name",
        )
    sources = {base_name: base, **donors}
    assigned = _assign(base, sources, choices)
    used = {assigned[key] for key in assigned} - {base_name}
    for name in sorted(used):
        _check_architecture(base, donors[name])
    tensors = [
        PlannedTensor(entry, source)
        for source, entry in _tensors(base, base_name, sources, assigned)
    ]
    return SplicePlan(
        base=base,
        base_name=base_name,
        donors={name: donors[name] for name in sorted(used)},
        choices=tuple(sorted(choices, key=lambda c: (c.layer, c.unit))),
        tensors=tuple(tensors),
        overhead_bytes=overhead_bytes,
        known_sha256=dict(known_sha256 or {}),
        measured=dict(measured or {}),
    )


def _assign(
    base: GGUFFile, sources: Mapping[str, GGUFFile], choices: Sequence[UnitChoice]
) -> dict[str, str]:
    """Expert tensor name of the base -> source name."""
    names: dict[tuple[int, str], str] = {}
    for name in base.tensors:
        if match := EXPERT_TENSOR.fullmatch(name):
            names[int(match[1]), match[2]] = name
    layers = sorted({layer for layer, _ in names})
    assigned: dict[str, str] = {}
    for choice in choices:
        if choice.unit not in UNIT_KINDS:
            raise _bad_choice(base, choice, choice.unit, f"units are {', '.join(UNIT_KINDS)}")
        if choice.source not in sources:
            known = ", ".join(sorted(sources))
            raise _bad_choice(base, choice, choice.source, f"sources are {known}")
        keys = [(choice.layer, kind) for kind in UNIT_KINDS[choice.unit]]
        found = [names[key] for key in keys if key in names]
        if not found:
            rule = f"layers with routed experts: {_ranges(layers) or 'none'}"
            raise _bad_choice(base, choice, choice.layer, rule)
        for name in found:
            if name in assigned:
                raise _bad_choice(base, choice, name, "each tensor is chosen once")
            assigned[name] = choice.source
    return assigned


def _bad_choice(base: GGUFFile, choice: UnitChoice, value: object, rule: str) -> ArtifactError:
    return ArtifactError(
        f"a choice that does not fit the base: layer {choice.layer}, unit {choice.unit!r}",
        file=base.path,
        value=value,
        rule=rule,
        hint="select again with this base, or name the base that the selection was made for",
    )


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def _check_architecture(base: GGUFFile, donor: GGUFFile) -> None:
    wanted, found = (model.metadata.get(ARCHITECTURE_KEY) for model in (base, donor))
    if wanted is not None and found is not None and wanted != found:
        raise DonorError(
            "a donor of another architecture",
            file=donor.path,
            value=found,
            rule=f"{ARCHITECTURE_KEY} of the base is {wanted}",
            hint="a donor is a quantization of the same model as the base",
        )


def _tensors(
    base: GGUFFile,
    base_name: str,
    sources: Mapping[str, GGUFFile],
    assigned: Mapping[str, str],
) -> Iterator[tuple[str, TensorEntry]]:
    for name, entry in base.tensors.items():
        owner = _owner(name)
        if assigned.get(owner, base_name) == base_name:
            yield base_name, entry
        elif owner == name:
            source = assigned[name]
            yield source, _donor_tensor(base, sources[source], entry)
            for companion in _companions(name, sources[source]):
                yield source, companion


def _owner(name: str) -> str:
    """The expert weight that a tensor goes with: its own name, or that of what it scales."""
    weight = companion_owner(name)
    return weight if weight and EXPERT_TENSOR.fullmatch(weight) else name


def expert_companions(names: Iterable[str]) -> list[str]:
    """Those of `names` that scale an expert weight."""
    return [name for name in names if _owner(name) != name]


def _companions(weight: str, donor: GGUFFile) -> list[TensorEntry]:
    return [donor.tensors[name] for name in companion_names(weight) if name in donor.tensors]


def _donor_tensor(base: GGUFFile, donor: GGUFFile, wanted: TensorEntry) -> TensorEntry:
    found = donor.tensors.get(wanted.name)
    if found is None:
        raise DonorError(
            "a donor without a tensor of the base",
            file=donor.path,
            tensor=wanted.name,
            rule=f"a donor has the expert tensors of the base {base.path.name}",
            hint="the donor was made from another model, or fuses gate and up differently",
        )
    if found.shape != wanted.shape:
        raise DonorError(
            "a donor whose experts have another shape",
            file=found.path,
            tensor=wanted.name,
            value=f"{list(found.shape)} in the donor",
            rule=f"{list(wanted.shape)} in the base {base.path.name}",
            hint="the donor is another model, or was pruned; use donors made from the same weights",
        )
    return found
