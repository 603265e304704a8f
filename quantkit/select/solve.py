"""From measured sensitivities to a selection: the best file of a size, or the smallest good one.

The predicted error of a hybrid is the sum of its units' relative output errors, each measured
alone. It ranks candidates; what a hybrid is worth is decided by the gate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from quantkit.artifacts.schema import MAX_NUMBER
from quantkit.artifacts.selection import Choice, Extreme, Goal, Selection, SelectionSource
from quantkit.artifacts.sensitivity import Contents, Sensitivity
from quantkit.artifacts.store import FileId
from quantkit.errors import SelectionError
from quantkit.models.companions import companion_owner
from quantkit.select.candidates import (
    Candidate,
    Slot,
    error_exponent,
    error_units,
    ordered_sources,
    slots_of,
)
from quantkit.select.explain import floor_reasons, size_text
from quantkit.select.knapsack import Solution, minimise

BYTES_PER_GB = 10**9
NUMBER = re.compile(r"[0-9]{1,40}(\.[0-9]{0,40})?(e[+-]?[0-9]{1,9})?", re.ASCII | re.IGNORECASE)
MIN_GB, MAX_GB = Decimal("1e-9"), Decimal(9_000_000)
"""One byte, and what a file system can hold (below 2**53 bytes)."""


@dataclass(frozen=True)
class Bounds:
    """What the sources allow: the smallest file, and the smallest one of least error."""

    floor: Extreme
    ceiling: Extreme
    floor_reasons: tuple[str, ...]


def bytes_from_gb(gb: float | str) -> int:
    """Whole bytes of a decimal size (1 GB = 1e9 bytes), rounded down; SelectionError below 1."""
    n_bytes = 0
    if NUMBER.fullmatch(str(gb)):
        # Compared before it is multiplied: the exponent may be anything.
        size = Decimal(str(gb))
        n_bytes = int(size * BYTES_PER_GB) if MIN_GB <= size <= MAX_GB else 0
    if n_bytes < 1:
        raise SelectionError(
            "not a usable file size",
            value=f"{gb} GB",
            rule=f"a number of GB (1e9 bytes), {MIN_GB} to {MAX_GB}",
            hint="give the size of the whole file, for example 88.87",
        )
    return n_bytes


def bounds_of(sensitivity: Sensitivity, unit_mode: str) -> Bounds:
    """Floor and ceiling of the file size that these sources allow, and what makes the floor."""
    slots = slots_of(sensitivity, unit_mode)
    lightest = [min(slot.candidates, key=lambda c: (c.bytes, c.relative_error)) for slot in slots]
    finest = [min(slot.candidates, key=lambda c: (c.relative_error, c.bytes)) for slot in slots]
    return Bounds(
        floor=_extreme(sensitivity, lightest),
        ceiling=_extreme(sensitivity, finest),
        floor_reasons=floor_reasons(sensitivity, slots, lightest),
    )


def select(
    sensitivity: Sensitivity,
    sensitivity_file: FileId,
    *,
    name: str,
    unit_mode: str = "layer",
    target_bytes: int | None = None,
    max_error: float | None = None,
    command: Sequence[str] = (),
) -> Selection:
    """The optimal selection for exactly one goal.

    With `target_bytes` the sum of errors is least among all hybrids whose file has at most that
    many bytes; equal errors go to the smaller file. With `max_error` the file is the smallest
    whose sum of errors is at most that (to within 1e-12 of it); equal sizes go to the smaller
    error. Remaining ties go to the base, then to the donor whose name comes first.
    Raises SelectionError when the sources cannot meet the goal.
    """
    goal = _checked_goal(target_bytes, max_error)
    slots = slots_of(sensitivity, unit_mode)
    bounds = bounds_of(sensitivity, unit_mode)
    solution = _solve(slots, goal, sensitivity.fixed_bytes)
    if solution is None:
        raise _unreachable(goal, bounds)
    picked = [slot.candidates[pick] for slot, pick in zip(slots, solution.picks, strict=True)]
    reached = _extreme(sensitivity, picked)
    return Selection(
        name=name,
        unit=unit_mode,
        goal=goal,
        sources=tuple(SelectionSource(s.name, s.files) for s in ordered_sources(sensitivity)),
        predicted_file_bytes=reached.file_bytes,
        predicted_error=reached.error,
        predicted_standard_error=math.hypot(*(c.standard_error for c in picked)),
        optimality_gap=_gap_of(solution, slots, goal),
        fixed_bytes=sensitivity.fixed_bytes,
        overhead_bytes=sensitivity.overhead_bytes,
        floor=bounds.floor,
        ceiling=bounds.ceiling,
        floor_reasons=bounds.floor_reasons,
        choices=tuple(_choice(slot, c) for slot, c in zip(slots, picked, strict=True)),
        sensitivity=sensitivity_file,
        command=tuple(command),
        contents=dict(_contents(sensitivity, picked)),
    )


def _contents(
    sensitivity: Sensitivity, picked: Sequence[Candidate]
) -> Iterator[tuple[str, Contents]]:
    """By source, the hashes of what the hybrid takes from it."""
    chosen = {t.name: candidate.source for candidate in picked for t in candidate.tensors}
    for source in sensitivity.sources:
        measured = source.contents.tensors if source.contents else {}
        owners = {name: companion_owner(name) or name for name in measured}
        taken = {
            name: digest
            for name, digest in measured.items()
            if chosen.get(owners[name], sensitivity.base.name) == source.name
        }
        if source.contents and taken:
            yield source.name, Contents(source.contents.header, taken)


def _checked_goal(target_bytes: int | None, max_error: float | None) -> Goal:
    goal = Goal(target_bytes, max_error)
    for problem in goal.problems():
        raise SelectionError("two goals, or none", value=problem.value, rule=problem.rule)
    if max_error is not None and not (0 <= max_error <= MAX_NUMBER):
        raise SelectionError(
            "not a usable error bound", value=max_error, rule=f"0 to {MAX_NUMBER:g}"
        )
    return goal


def _solve(slots: Sequence[Slot], goal: Goal, fixed_bytes: int) -> Solution | None:
    exponent = error_exponent(slots)
    options = [
        [(error_units(c.relative_error, exponent), c.bytes) for c in slot.candidates]
        for slot in slots
    ]
    if goal.target_bytes is not None:
        return minimise(options, goal.target_bytes - fixed_bytes)
    assert goal.max_error is not None
    # Each error was rounded to a whole unit, so a sum may be off by half a unit per slot.
    largest = math.fsum(max(c.relative_error for c in slot.candidates) for slot in slots)
    limit = error_units(min(goal.max_error, largest), exponent) + len(slots)
    return minimise([[(size, error) for error, size in group] for group in options], limit)


def _gap_of(solution: Solution, slots: Sequence[Slot], goal: Goal) -> float:
    if goal.target_bytes is None:
        return float(solution.gap)
    return math.ldexp(solution.gap, -error_exponent(slots))


def _extreme(sensitivity: Sensitivity, picked: Sequence[Candidate]) -> Extreme:
    return Extreme(
        file_bytes=sensitivity.fixed_bytes + sum(c.bytes for c in picked),
        error=math.fsum(c.relative_error for c in picked),
    )


def _choice(slot: Slot, candidate: Candidate) -> Choice:
    return Choice(
        layer=slot.layer,
        unit=slot.unit,
        source=candidate.source,
        types={tensor.name: tensor.qtype for tensor in candidate.tensors},
        relative_error=candidate.relative_error,
        standard_error=candidate.standard_error,
        bytes=candidate.bytes,
    )


def _unreachable(goal: Goal, bounds: Bounds) -> SelectionError:
    if goal.target_bytes is not None:
        floor = bounds.floor.file_bytes
        return SelectionError(
            "no hybrid of these sources is that small",
            value=f"{goal.target_bytes} bytes ({size_text(goal.target_bytes)})",
            rule=f"the smallest file has {floor} bytes ({size_text(floor)})",
            hint="raise the target or add a smaller donor; the floor is made of:\n  "
            + "\n  ".join(bounds.floor_reasons),
        )
    return SelectionError(
        "no hybrid of these sources has so small an error",
        value=goal.max_error,
        rule=f"the least summed error is {bounds.ceiling.error:.6g}, "
        f"in a file of {size_text(bounds.ceiling.file_bytes)}",
        hint="raise the bound or add a finer donor",
    )
