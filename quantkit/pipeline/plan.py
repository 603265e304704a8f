"""What a run would do, without doing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantkit.artifacts.schema import to_json
from quantkit.containers.hashing import file_bytes
from quantkit.pipeline.recipe import Recipe
from quantkit.pipeline.reporting import Reporter
from quantkit.pipeline.run import make_builder
from quantkit.pipeline.safety import require_free_names
from quantkit.pipeline.steps import FileHashes, Ledger, Step

DONE, TO_DO = "done before", "would run"


@dataclass(frozen=True)
class PlannedStep:
    """One step of a run; `bytes` of its first file is None where it is not known beforehand."""

    number: int
    total: int
    name: str
    state: str
    writes: tuple[str, ...]
    bytes: int | None
    bytes_is_limit: bool

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found: dict[str, Any] = to_json(self)
        return found

    def __str__(self) -> str:
        size = ""
        if self.bytes is not None:
            size = f", {'at most ' if self.bytes_is_limit else ''}{self.bytes:,} bytes"
        files = f" -> {self.writes[0]}{size}" if self.writes else ""
        return f"[{self.number}/{self.total}] {self.name}: {self.state}{files}"


def plan_recipe(
    recipe: Recipe, *, device: torch.device | str = "auto", meter: str = "quantkit"
) -> list[PlannedStep]:
    """Every step with its state and the size of its file; reads and hashes, writes nothing.

    A step that reads what an earlier step would make counts as one that would run, although it is
    skipped in a run if its inputs come out as they were.
    """
    builder = make_builder(recipe, device, meter)
    hashes = FileHashes()
    ledger = Ledger(builder.space.record, hashes)
    steps = Reporter(builder, hashes).all_steps()
    require_free_names(recipe, steps, builder.space)
    remade: set[Path] = set()
    planned = []
    for number, step in enumerate(steps, 1):
        done = remade.isdisjoint(step.inputs) and ledger.is_done(step)
        if not done:
            remade.update(step.outputs)
        planned.append(_described(step, done, remade, number, len(steps)))
    return planned


def _described(step: Step, done: bool, remade: set[Path], number: int, total: int) -> PlannedStep:
    size = None
    if done:
        size = file_bytes(step.outputs[0]) if step.outputs else None
    elif step.size_is_limit or remade.isdisjoint(step.inputs):
        size = step.predicted_bytes()
    return PlannedStep(
        number=number,
        total=total,
        name=step.name,
        state=DONE if done else TO_DO,
        writes=tuple(str(path) for path in step.outputs),
        bytes=size,
        bytes_is_limit=not done and step.size_is_limit,
    )
