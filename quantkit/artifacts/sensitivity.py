"""`sensitivity.json`: what swapping each unit of each layer costs, in error and in bytes.

Written by `measure`, read by `select`, which needs nothing else: no weights, no GPU.

Size model. The hybrid is the base's file with some expert tensors replaced, so its exact size is

    header_bytes + overhead_bytes + sum(fixed tensors) + sum(chosen units)        [bytes]

Every tensor counts with its padding to the container's alignment. `header_bytes` is what the
container spends on the base's own key-values and tensor infos, padding included: it does not
depend on the choice, because a tensor info has the same length for every type. `overhead_bytes`
is what `splice` adds to the header for its provenance; it is a multiple of the alignment, and
`splice` fills its key-values up to exactly this length, so that the predicted size is the size of
the file (unsplit) and not an estimate.

Error. `relative_error` is sum |y_source - y_reference|^2 / sum |y_reference|^2 over the tokens, at
the output of the layer's mixture-of-experts block, with only this unit swapped (FLE report,
section 3). Its standard error is taken over blocks of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from quantkit.artifacts.schema import (
    MAX_COUNT,
    Blake3,
    Cosine,
    Count,
    HeaderBytes,
    Label,
    NonNegative,
    Positive,
    Problem,
    Scalar,
    duplicates,
)
from quantkit.artifacts.store import Artifact, FileId

GATE_UP = "gate_up"
DOWN = "down"
LAYER = "layer"
PART_UNITS = (GATE_UP, DOWN)
MEASURED_UNITS = (LAYER, GATE_UP, DOWN)


@dataclass(frozen=True)
class TensorSize:
    """A tensor as the hybrid's file would hold it; `bytes` includes the padding behind it."""

    name: Label
    qtype: Label
    row_length: Positive
    bytes: Count


@dataclass(frozen=True)
class UnitError:
    """Relative output error of one unit, and the lowest cosine of an expert with the reference's.

    `identity_cosine` is the donor-identity check: the minimum over the experts of the cosine
    between the donor's decoded weights and the reference's.
    """

    relative_error: NonNegative
    standard_error: NonNegative
    n_tokens: Positive
    n_blocks: Positive
    identity_cosine: Cosine


@dataclass(frozen=True)
class SourceLayer:
    """One layer of one source: tensors by unit ("gate_up", "down"), errors also for "layer"."""

    layer: Count
    tensors: dict[str, tuple[TensorSize, ...]]
    errors: dict[str, UnitError]

    def bytes_of(self, unit: str) -> int:
        """Bytes that the unit takes in the file; "layer" is the sum of both units."""
        units = PART_UNITS if unit == LAYER else (unit,)
        return sum(tensor.bytes for part in units for tensor in self.tensors[part])

    def tensors_of(self, unit: str) -> tuple[TensorSize, ...]:
        """Tensors of the unit; "layer" has those of both units, gate and up first."""
        units = PART_UNITS if unit == LAYER else (unit,)
        return tuple(tensor for part in units for tensor in self.tensors[part])

    def problems(self) -> Iterator[Problem]:
        for field, wanted in (("tensors", PART_UNITS), ("errors", MEASURED_UNITS)):
            found = sorted(getattr(self, field))
            if found != sorted(wanted):
                yield Problem(field, found, f"must have exactly: {', '.join(wanted)}")
        for unit, tensors in self.tensors.items():
            if not tensors:
                yield Problem(f"tensors.{unit}", tensors, "must have at least one tensor")


@dataclass(frozen=True)
class Contents:
    """What a hybrid may take from a model: hashes of its headers together and of each tensor."""

    header: Blake3
    tensors: dict[str, Blake3]


@dataclass(frozen=True)
class Source:
    """A model file (all its shards) that units can be taken from.

    Earlier versions wrote no `contents`.
    """

    name: Label
    files: tuple[FileId, ...]
    layers: tuple[SourceLayer, ...]
    contents: Contents | None = None

    @cached_property
    def by_layer(self) -> dict[int, SourceLayer]:
        return {layer.layer: layer for layer in self.layers}

    def problems(self) -> Iterator[Problem]:
        if not self.files:
            yield Problem("files", self.files, "must name at least one file")
        numbers = [layer.layer for layer in self.layers]
        if numbers != sorted(set(numbers)):
            yield Problem("layers", numbers, "layer numbers must rise, each once")


@dataclass(frozen=True)
class Sensitivity(Artifact):
    """Base and donors, layer by layer. The first source is the base: it has every MoE layer."""

    SCHEMA = "quantkit.sensitivity"
    VERSION = 1

    architecture: Label
    reference: tuple[FileId, ...]
    texts: tuple[FileId, ...]
    parameters: dict[str, Scalar]
    alignment: Positive
    header_bytes: Count
    overhead_bytes: HeaderBytes
    fixed_tensors: tuple[TensorSize, ...]
    sources: tuple[Source, ...]

    @property
    def base(self) -> Source:
        return self.sources[0]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of every hybrid that do not depend on the choice."""
        tensors = sum(tensor.bytes for tensor in self.fixed_tensors)
        return self.header_bytes + self.overhead_bytes + tensors

    def problems(self) -> Iterator[Problem]:
        if not self.sources or not self.sources[0].layers:
            yield Problem("sources", len(self.sources), "must start with the base and its layers")
            return
        for name in duplicates(source.name for source in self.sources):
            yield Problem("sources", name, "source names must differ")
        for field in ("header_bytes", "overhead_bytes"):
            if getattr(self, field) % self.alignment:
                yield Problem(
                    field, getattr(self, field), f"must be a multiple of {self.alignment}"
                )
        for tensor in self.fixed_tensors:
            yield from self._padding_problems("fixed_tensors", tensor)
        largest = self.fixed_bytes + sum(
            layer.bytes_of(LAYER) for source in self.sources for layer in source.layers
        )
        if largest > MAX_COUNT:
            yield Problem("sources", largest, f"all bytes together are at most {MAX_COUNT}")
        for index, source in enumerate(self.sources):
            yield from self._source_problems(f"sources[{index}]", source)

    def _source_problems(self, field: str, source: Source) -> Iterator[Problem]:
        for layer in source.layers:
            own = self.base.by_layer.get(layer.layer)
            if own is None:
                yield Problem(f"{field}.layers", layer.layer, "the base has no such MoE layer")
                continue
            for unit in PART_UNITS:
                found = [(tensor.name, tensor.row_length) for tensor in layer.tensors[unit]]
                wanted = [(tensor.name, tensor.row_length) for tensor in own.tensors[unit]]
                if found != wanted:
                    rule = f"names and row lengths must be the base's: {wanted}"
                    yield Problem(f"{field}.layers", found, rule)
                for tensor in layer.tensors[unit]:
                    yield from self._padding_problems(f"{field}.layers", tensor)

    def _padding_problems(self, field: str, tensor: TensorSize) -> Iterator[Problem]:
        if tensor.bytes % self.alignment:
            rule = f"bytes include the padding to {self.alignment}"
            yield Problem(field, f"{tensor.name}: {tensor.bytes}", rule)
