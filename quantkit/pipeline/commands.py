"""What a step would be on the command line, with paths as seen from the run's folder.

Recorded in the artifacts and shown in the report, so that any step can be repeated on its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantkit.pipeline.recipe import Recipe
from quantkit.pipeline.schema import Hybrid, Quantization
from quantkit.pipeline.workspace import Workspace

PROGRAM = "quantkit"
Command = tuple[str, ...]


@dataclass(frozen=True)
class Commands:
    """Command lines of one recipe's steps; `sources` are the quantizations, the base first."""

    recipe: Recipe
    space: Workspace
    reference: Path
    sources: Mapping[str, Path]
    meter: str

    def convert(self, name: str) -> Command:
        """Checkpoint to GGUF."""
        folder, out = self._paths(self.recipe.model, self.space.reference)
        return (PROGRAM, "convert", folder, out, "--name", name)

    def quantize(self, quantization: Quantization) -> Command:
        """The reference to a quantization."""
        paths = self._paths(self.reference, self.space.model(quantization.name))
        return (PROGRAM, "quantize", *paths, *_each("--rule", quantization.rules))

    def measure(self) -> Command:
        """Reference and sources to sensitivities."""
        settings = self.recipe.fields.measure
        reference, text, out = self._paths(
            self.reference, self.recipe.capture_text, self.space.sensitivity
        )
        return (
            *(PROGRAM, "measure", reference, *self._sources(), "--text", text, "--out", out),
            *("--context", str(settings.context), "--tokens", str(settings.tokens)),
        )

    def select(self, hybrid: Hybrid) -> Command:
        """Sensitivities to a selection."""
        if hybrid.target_gb is not None:
            goal = ("--target-gb", str(hybrid.target_gb))
        else:
            goal = ("--max-error", str(hybrid.max_error))
        sensitivity, out = self._paths(self.space.sensitivity, self.space.selection(hybrid.name))
        unit = self.recipe.fields.select.unit
        return (
            *(PROGRAM, "select", sensitivity, *goal),
            *("--unit", unit, "--name", hybrid.name, "--out", out),
        )

    def splice(self, hybrid: Hybrid) -> Command:
        """A selection to a hybrid."""
        paths = self._paths(self.space.selection(hybrid.name), self.space.model(hybrid.name))
        return (PROGRAM, "splice", *paths, *self._sources())

    def gate(self, hybrid: Hybrid) -> Command:
        """A hybrid to its verdict."""
        settings = self.recipe.fields.gate
        space = self.space
        candidate, baseline, reference, cache, out = self._paths(
            space.model(hybrid.name),
            self.sources[settings.baseline],
            self.reference,
            space.cache,
            space.gate(hybrid.name),
        )
        texts = (f"{role}={self._path(path)}" for role, path in self.recipe.gate_texts.items())
        bars = (f"{name}={value}" for name, value in self.recipe.criterion.bars().items())
        limit = () if settings.max_chunks is None else ("--max-chunks", str(settings.max_chunks))
        return (
            *(PROGRAM, "gate", candidate, "--baseline", baseline, "--reference", reference),
            *(*_each("--text", texts), *_each("--bar", bars)),
            *("--context", str(settings.context), *limit, "--meter", self.meter),
            *("--cache", cache, "--out", out),
        )

    def _sources(self) -> Command:
        pairs = (f"{name}={self._path(path)}" for name, path in self.sources.items())
        return _each("--source", pairs)

    def _paths(self, *paths: Path) -> Command:
        return tuple(self._path(path) for path in paths)

    def _path(self, path: Path) -> str:
        return os.path.relpath(path, self.space.root)


def _each(option: str, values: Iterable[str]) -> Command:
    return tuple(part for value in values for part in (option, value))
