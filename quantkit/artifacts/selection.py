"""`selections/<name>.json`: which source each unit of each layer is taken from, and why.

Written by `select`, read by `splice` and by people. A name that is not the base's means that the
unit's tensors are copied from that donor; everything else in the file is the base's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from quantkit.artifacts.schema import (
    Check,
    Count,
    HeaderBytes,
    Label,
    NonNegative,
    Problem,
    duplicates,
)
from quantkit.artifacts.sensitivity import LAYER, MEASURED_UNITS, PART_UNITS, Contents
from quantkit.artifacts.store import Artifact, FileId

UNITS_OF = {"layer": (LAYER,), "split": PART_UNITS}

UnitMode = Annotated[str, Check("must be 'layer' or 'split'", UNITS_OF.__contains__)]
UnitName = Annotated[str, Check(f"must be one of {MEASURED_UNITS}", MEASURED_UNITS.__contains__)]


@dataclass(frozen=True)
class Goal:
    """Exactly one is set: least error within `target_bytes`, or least bytes within `max_error`."""

    target_bytes: Count | None
    max_error: NonNegative | None

    def problems(self) -> Iterator[Problem]:
        if (self.target_bytes is None) == (self.max_error is None):
            value = (self.target_bytes, self.max_error)
            yield Problem("target_bytes", value, "exactly one of target_bytes and max_error is set")


@dataclass(frozen=True)
class SelectionSource:
    """A source by name, with the identity of its files; the base comes first."""

    name: Label
    files: tuple[FileId, ...]


@dataclass(frozen=True)
class Choice:
    """The source of one unit of one layer; `types` maps tensor name to quantization type."""

    layer: Count
    unit: UnitName
    source: Label
    types: dict[str, str]
    relative_error: NonNegative
    standard_error: NonNegative
    bytes: Count


@dataclass(frozen=True)
class Extreme:
    """The smallest file that these sources allow, or the smallest one of least error."""

    file_bytes: Count
    error: NonNegative


@dataclass(frozen=True)
class Selection(Artifact):
    """`predicted_file_bytes` is exact for an unsplit file (see `sensitivity`).

    `predicted_error` is the sum of the choices' relative errors; `predicted_standard_error` treats
    the choices as independent. `optimality_gap` is 0 for a proved optimum, else the most that the
    goal's figure (error or bytes) could still be improved. `floor_reasons` says in words what
    makes the floor. `contents` has, by source, the hashes of what is taken from it, by which
    `splice` knows what was measured; for a source without them it hashes the files whole.
    """

    SCHEMA = "quantkit.selection"
    VERSION = 1

    name: Label
    unit: UnitMode
    goal: Goal
    sources: tuple[SelectionSource, ...]
    predicted_file_bytes: Count
    predicted_error: NonNegative
    predicted_standard_error: NonNegative
    optimality_gap: NonNegative
    fixed_bytes: Count
    overhead_bytes: HeaderBytes
    floor: Extreme
    ceiling: Extreme
    floor_reasons: tuple[str, ...]
    choices: tuple[Choice, ...]
    sensitivity: FileId
    command: tuple[str, ...]
    contents: dict[str, Contents] = field(default_factory=dict)

    @property
    def base(self) -> SelectionSource:
        return self.sources[0]

    def problems(self) -> Iterator[Problem]:
        if not self.sources:
            yield Problem("sources", self.sources, "must start with the base")
            return
        for name in duplicates(source.name for source in self.sources):
            yield Problem("sources", name, "source names must differ")
        known = {source.name for source in self.sources}
        units = UNITS_OF[self.unit]
        for index, choice in enumerate(self.choices):
            if choice.source not in known:
                rule = f"must be one of the sources: {', '.join(sorted(known))}"
                yield Problem(f"choices[{index}].source", choice.source, rule)
            if choice.unit not in units:
                rule = f"unit mode '{self.unit}' chooses {', '.join(units)}"
                yield Problem(f"choices[{index}].unit", choice.unit, rule)
        places = [f"layer {choice.layer} {choice.unit}" for choice in self.choices]
        for place in duplicates(places):
            yield Problem("choices", place, "each unit of each layer is chosen once")
        total = self.fixed_bytes + sum(choice.bytes for choice in self.choices)
        if total != self.predicted_file_bytes:
            rule = f"must be fixed_bytes plus the choices' bytes: {total}"
            yield Problem("predicted_file_bytes", self.predicted_file_bytes, rule)
        target = self.goal.target_bytes
        if target is not None and self.predicted_file_bytes > target:
            yield Problem("predicted_file_bytes", self.predicted_file_bytes, f"at most {target}")
