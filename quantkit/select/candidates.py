"""What can be chosen: for every unit of every layer, the sources that have it.

The order of sources is the base, then the donors by name, whatever their order in the file, so
that ties are decided the same way each time: for the base, whose bytes need no donor, then for
the first name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quantkit.artifacts.selection import UNITS_OF
from quantkit.artifacts.sensitivity import Sensitivity, Source, TensorSize

ERROR_BITS = 52


@dataclass(frozen=True)
class Candidate:
    """One source for one slot; `bytes` includes the padding of every tensor."""

    source: str
    bytes: int
    relative_error: float
    standard_error: float
    tensors: tuple[TensorSize, ...]


@dataclass(frozen=True)
class Slot:
    """A unit of a layer and its candidates, the base's first."""

    layer: int
    unit: str
    candidates: tuple[Candidate, ...]


def ordered_sources(sensitivity: Sensitivity) -> list[Source]:
    """The base, then the donors by name."""
    donors = sorted(sensitivity.sources[1:], key=lambda source: source.name)
    return [sensitivity.base, *donors]


def slots_of(sensitivity: Sensitivity, unit_mode: str) -> list[Slot]:
    """Slots by layer, gate and up before down; a donor that lacks a layer is no candidate there."""
    sources = ordered_sources(sensitivity)
    return [
        Slot(layer.layer, unit, tuple(_candidates(sources, layer.layer, unit)))
        for layer in sensitivity.base.layers
        for unit in UNITS_OF[unit_mode]
    ]


def _candidates(sources: Sequence[Source], number: int, unit: str) -> list[Candidate]:
    found = []
    for source in sources:
        layer = source.by_layer.get(number)
        if layer is not None:
            error = layer.errors[unit]
            made = Candidate(
                source.name,
                layer.bytes_of(unit),
                error.relative_error,
                error.standard_error,
                layer.tensors_of(unit),
            )
            found.append(made)
    return found


def error_exponent(slots: Sequence[Slot]) -> int:
    """k such that errors times 2**k, rounded, are integers whose largest sum is below 2**52.

    One unit is at most 2**-51 of the largest possible sum of errors: finer than a sum of
    floating-point errors is defined, and far below any standard error.
    """
    largest = sum(max(c.relative_error for c in slot.candidates) for slot in slots)
    _, exponent = math.frexp(largest)
    return ERROR_BITS - 1 - exponent


def error_units(error: float, exponent: int) -> int:
    """The error as an integer number of units of 2**-exponent."""
    return round(math.ldexp(error, exponent))
