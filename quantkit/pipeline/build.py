"""From a recipe to its steps, in order; each knows what it reads, writes and depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from quantkit.containers.gguf import open_gguf
from quantkit.containers.inputs import checkpoint_files
from quantkit.gate.meters import Meter
from quantkit.pipeline import stages
from quantkit.pipeline.commands import Command, Commands
from quantkit.pipeline.recipe import EMBEDDED, Recipe
from quantkit.pipeline.schema import Hybrid, Quantization
from quantkit.pipeline.steps import Step
from quantkit.pipeline.workspace import Workspace
from quantkit.quantize import converted_bytes
from quantkit.quantize.encode import Rule, encoded_bytes
from quantkit.select import bytes_from_gb


@dataclass(frozen=True)
class Builder:
    """Makes the steps of one recipe for one meter and device."""

    recipe: Recipe
    meter: Meter
    device: torch.device

    @property
    def space(self) -> Workspace:
        """Where the run writes."""
        return Workspace(self.recipe.work)

    @property
    def reference(self) -> Path:
        """The unquantized GGUF."""
        return self.space.reference if self.recipe.model_is_checkpoint else self.recipe.model

    @cached_property
    def sources(self) -> Mapping[str, Path]:
        """Name -> file of every whole quantization, the base first."""
        fields = self.recipe.fields
        ordered = sorted(fields.quantizations, key=lambda q: q.name != fields.base)
        return {q.name: self.recipe.file_of(q) or self.space.model(q.name) for q in ordered}

    @cached_property
    def commands(self) -> Commands:
        """The steps as command lines."""
        return Commands(self.recipe, self.space, self.reference, self.sources, self.meter.name)

    def command_lines(self) -> list[Command]:
        """The steps that have a verb of their own, in order."""
        fields, commands = self.recipe.fields, self.commands
        found = [commands.convert(self.model_name)] if self.recipe.model_is_checkpoint else []
        found += [commands.quantize(q) for q in fields.quantizations if q.file is None]
        found.append(commands.measure())
        for command in (commands.select, commands.splice, commands.gate):
            found += [command(hybrid) for hybrid in fields.hybrids]
        return found

    @property
    def model_name(self) -> str:
        """What the converted model is called."""
        given = self.recipe.fields.model
        return given if given == EMBEDDED else self.recipe.model.resolve().name

    def model_files(self) -> tuple[Path, ...]:
        """The files of the model that the recipe names."""
        if self.recipe.model_is_checkpoint:
            return checkpoint_files(self.recipe.model)
        return self.files_of(self.recipe.model)

    def steps(self) -> list[Step]:
        """All steps before the report."""
        fields = self.recipe.fields
        found = [self._criterion()]
        if self.recipe.model_is_checkpoint:
            found.append(self._convert())
        found += [self._quantize(q) for q in fields.quantizations if q.file is None]
        found.append(self._measure())
        for make in (self._select, self._splice):
            found += [make(hybrid) for hybrid in fields.hybrids]
        found.append(self._reference())
        found += [self._gate(hybrid) for hybrid in fields.hybrids]
        found += [self._kld(name) for name in self.sources]
        return found

    def _criterion(self) -> Step:
        criterion, out = self.recipe.criterion, self.space.criterion
        return Step(
            kind="criterion",
            subject="",
            parameters={"bars": criterion.bars()},
            inputs=(),
            outputs=(out,),
            work=partial(stages.write_criterion, criterion, out),
        )

    def _convert(self) -> Step:
        folder, out, name = self.recipe.model, self.space.reference, self.model_name
        return Step(
            kind="convert",
            subject=name,
            parameters={},
            inputs=self.model_files(),
            outputs=(out,),
            work=partial(stages.convert, folder, out, name),
            predicted_bytes=partial(converted_bytes, folder, name=name),
        )

    def _quantize(self, quantization: Quantization) -> Step:
        rules = [Rule.parse(text) for text in quantization.rules]
        out, reference = self.space.model(quantization.name), self.reference

        def predicted() -> int | None:
            return encoded_bytes(reference, rules) if reference.exists() else None

        return Step(
            kind="quantize",
            subject=quantization.name,
            parameters={"rules": list(quantization.rules)},
            inputs=self.files_of(reference),
            outputs=(out,),
            work=partial(stages.quantize, reference, out, rules),
            predicted_bytes=predicted,
        )

    def _measure(self) -> Step:
        settings, out = self.recipe.fields.measure, self.space.sensitivity
        text = self.recipe.capture_text
        return Step(
            kind="measure",
            subject="",
            parameters={
                "context": settings.context,
                "tokens": settings.tokens,
                "device": self.device.type,
                "sources": list(self.sources),
            },
            inputs=(*self.files_of(self.reference), *self._source_files(), text),
            outputs=(out,),
            work=partial(
                stages.measure_sources,
                self.reference,
                self.sources,
                text,
                settings,
                self.device,
                out,
            ),
        )

    def _select(self, hybrid: Hybrid) -> Step:
        command = self.commands.select(hybrid)
        out = self.space.selection(hybrid.name)
        unit = self.recipe.fields.select.unit
        target = None if hybrid.target_gb is None else bytes_from_gb(hybrid.target_gb)
        return Step(
            kind="select",
            subject=hybrid.name,
            parameters={"command": list(command)},
            inputs=(self.space.sensitivity,),
            outputs=(out,),
            work=partial(
                stages.select_hybrid,
                self.space.sensitivity,
                hybrid.name,
                unit,
                target,
                hybrid.max_error,
                command,
                out,
            ),
        )

    def _splice(self, hybrid: Hybrid) -> Step:
        command = self.commands.splice(hybrid)
        selection, out = self.space.selection(hybrid.name), self.space.model(hybrid.name)
        target = hybrid.target_gb
        return Step(
            kind="splice",
            subject=hybrid.name,
            parameters={"command": list(command)},
            inputs=(selection, *self._source_files()),
            outputs=(out, stages.provenance_of(out)),
            work=partial(stages.splice, selection, self.sources, command, out),
            predicted_bytes=lambda: None if target is None else bytes_from_gb(target),
            size_is_limit=True,
        )

    def _reference(self) -> Step:
        texts = self.recipe.gate_texts
        return Step(
            kind="reference",
            subject="log-probabilities",
            parameters=self._meter_parameters(),
            inputs=(*self.files_of(self.reference), *texts.values()),
            outputs=(),
            further_outputs=(self.space.cache, stages.LOG_PROBS),
            work=partial(
                stages.score_reference, self.reference, texts, self.meter, self.space.cache
            ),
        )

    def _gate(self, hybrid: Hybrid) -> Step:
        candidate, out = self.space.model(hybrid.name), self.space.gate(hybrid.name)
        baseline = self.sources[self.recipe.fields.gate.baseline]
        texts = self.recipe.gate_texts
        models = (candidate, baseline, self.reference)
        return Step(
            kind="gate",
            subject=hybrid.name,
            parameters=self._meter_parameters(),
            inputs=(
                *(file for model in models for file in self.files_of(model)),
                *texts.values(),
                self.space.criterion,
            ),
            outputs=(out,),
            work=partial(
                stages.gate_hybrid,
                models,
                texts,
                self.recipe.criterion,
                self.meter,
                self.space.cache,
                out,
            ),
        )

    def _kld(self, name: str) -> Step:
        texts = self.recipe.gate_texts
        outputs = {role: self.space.kld(name, role) for role in texts}
        return Step(
            kind="kld",
            subject=name,
            parameters=self._meter_parameters(),
            inputs=(
                *self.files_of(self.sources[name]),
                *self.files_of(self.reference),
                *texts.values(),
            ),
            outputs=tuple(outputs.values()),
            work=partial(
                stages.score_model,
                self.sources[name],
                self.reference,
                texts,
                self.meter,
                self.space.cache,
                outputs,
            ),
        )

    def _meter_parameters(self) -> Mapping[str, Any]:
        return {"meter": self.meter.name, "settings": self.meter.settings()}

    def _source_files(self) -> Sequence[Path]:
        return [file for path in self.sources.values() for file in self.files_of(path)]

    def files_of(self, model: Path) -> tuple[Path, ...]:
        """Every file of a GGUF; one that the run makes itself is not split."""
        return (model,) if model in self._made_models else open_gguf(model).shards

    @cached_property
    def _made_models(self) -> frozenset[Path]:
        fields, space = self.recipe.fields, self.space
        names = [q.name for q in fields.quantizations if q.file is None]
        names += [hybrid.name for hybrid in fields.hybrids]
        made = [space.reference] if self.recipe.model_is_checkpoint else []
        return frozenset([*made, *map(space.model, names)])
