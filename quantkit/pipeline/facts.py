"""Gather what a finished run left on disk, for its report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import quantkit
from quantkit.artifacts.gate import GateReport
from quantkit.artifacts.kld import TextKld
from quantkit.artifacts.selection import Selection
from quantkit.artifacts.sensitivity import Sensitivity
from quantkit.artifacts.store import FileId, load
from quantkit.pipeline.build import Builder
from quantkit.pipeline.criterion import CriterionRecord
from quantkit.pipeline.recipe import EMBEDDED
from quantkit.pipeline.steps import FileHashes
from quantkit.report.facts import BASE, DONOR, HYBRID, HybridFacts, ModelFacts, RunFacts
from quantkit.report.inspect import inspect_model


def gather(builder: Builder, hashes: FileHashes) -> RunFacts:
    """Load every artifact of the run; all its steps must be done."""
    recipe, space = builder.recipe, builder.space
    fields = recipe.fields
    hybrids = {
        hybrid.name: HybridFacts(
            load(Selection, space.selection(hybrid.name)),
            load(GateReport, space.gate(hybrid.name)),
        )
        for hybrid in fields.hybrids
    }
    criterion = load(CriterionRecord, space.criterion)
    return RunFacts(
        name=recipe.name,
        description=fields.description,
        recipe_name=recipe.path.name,
        recipe_text=recipe.text,
        model="the embedded model" if fields.model == EMBEDDED else recipe.model.name,
        reference=inspect_model(builder.reference),
        inputs=tuple(_inputs(builder, hashes)),
        models=(*_quantizations(builder, hashes), *_hybrids(builder, hashes, hybrids)),
        hybrids=hybrids,
        baseline=fields.gate.baseline,
        sensitivity=load(Sensitivity, space.sensitivity),
        bars=criterion.bars,
        bars_sha256=criterion.sha256,
        run_command=shlex.join(["quantkit", "run", str(recipe.path)]),
        tool_version=quantkit.__version__,
        is_embedded=fields.model == EMBEDDED,
        commands=builder.command_lines(),
    )


def _inputs(builder: Builder, hashes: FileHashes) -> Iterator[tuple[str, FileId]]:
    recipe = builder.recipe
    yield "recipe", hashes.identity(recipe.path)
    for path in builder.model_files():
        yield "model", hashes.identity(path)
    texts = {**recipe.gate_texts, "capture": recipe.capture_text}
    for role, path in texts.items():
        yield f"text, {role.replace('_', '-')}", hashes.identity(path)
    if recipe.model_is_checkpoint:
        yield "reference", hashes.identity(builder.reference)


def _files(builder: Builder, hashes: FileHashes, model: Path) -> tuple[FileId, ...]:
    return tuple(hashes.identity(path) for path in builder.files_of(model))


def _quantizations(builder: Builder, hashes: FileHashes) -> Iterator[ModelFacts]:
    for name, path in builder.sources.items():
        yield ModelFacts(
            name=name,
            kind=BASE if name == builder.recipe.fields.base else DONOR,
            files=_files(builder, hashes, path),
            inspection=inspect_model(path),
            statistics={
                role: load(TextKld, builder.space.kld(name, role)).statistics
                for role in builder.recipe.gate_texts
            },
        )


def _hybrids(
    builder: Builder, hashes: FileHashes, found: dict[str, HybridFacts]
) -> Iterator[ModelFacts]:
    for hybrid in builder.recipe.fields.hybrids:
        path, gate = builder.space.model(hybrid.name), found[hybrid.name].gate
        yield ModelFacts(
            name=hybrid.name,
            kind=HYBRID,
            files=_files(builder, hashes, path),
            inspection=inspect_model(path),
            statistics={text.role: text.candidate for text in gate.texts},
            verdict=gate.verdict,
            expected=hybrid.expect.upper(),
        )
