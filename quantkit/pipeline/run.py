"""Run a recipe, step by step, and tell what came out of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantkit.artifacts.gate import INCONCLUSIVE
from quantkit.artifacts.store import load
from quantkit.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_PASS, ArtifactError
from quantkit.pipeline.build import Builder
from quantkit.pipeline.criterion import CriterionRecord
from quantkit.pipeline.meters import make_meter
from quantkit.pipeline.recipe import Recipe
from quantkit.pipeline.reporting import Reporter
from quantkit.pipeline.safety import require_free_names, written_files
from quantkit.pipeline.steps import FileHashes, Ledger, Step
from quantkit.progress import log
from quantkit.report.facts import HYBRID, ModelFacts, RunFacts
from quantkit.report.run_report import run_table
from quantkit.runtime import pick_device


@dataclass(frozen=True)
class RunResult:
    """What a finished run found; `table` is for people, `to_json` for programs."""

    facts: RunFacts
    report_path: Path
    plot_path: Path

    @property
    def hybrids(self) -> tuple[ModelFacts, ...]:
        """The hybrids with their verdicts."""
        return tuple(model for model in self.facts.models if model.kind == HYBRID)

    @property
    def exit_code(self) -> int:
        """0: every verdict is the expected one; 1: one contradicts; 4: one is inconclusive."""
        wrong = {model.verdict for model in self.hybrids if not model.as_expected}
        if not wrong:
            return EXIT_PASS
        return EXIT_INCONCLUSIVE if wrong == {INCONCLUSIVE} else EXIT_GATE_FAILED

    @property
    def table(self) -> str:
        """One row a model."""
        return run_table(self.facts)

    def to_json(self) -> dict[str, Any]:
        """Models with sizes, figures and verdicts, and the files that hold the rest."""
        return {
            "recipe": self.facts.name,
            "exit_code": self.exit_code,
            "criterion_sha256": self.facts.bars_sha256,
            "report": str(self.report_path),
            "plot": str(self.plot_path),
            "models": [_model_json(model) for model in self.facts.models],
        }


def _model_json(model: ModelFacts) -> dict[str, Any]:
    return {
        "name": model.name,
        "kind": model.kind,
        "bytes": model.bytes,
        "bpw": model.inspection.bpw,
        "verdict": model.verdict,
        "expected": model.expected,
        "texts": {
            role: {
                "kld_mean": s.kld_mean,
                "kld_se_tokens": s.kld_se_tokens,
                "kld_se_chunks": s.kld_se_chunks,
                "top1_agreement": s.top1_agreement,
            }
            for role, s in model.statistics.items()
        },
    }


def run_recipe(
    recipe: Recipe, *, device: torch.device | str = "auto", meter: str = "quantkit"
) -> RunResult:
    """Do what is missing of a recipe, in its folder; steps that are done are left alone.

    `meter` is "quantkit" or "llama.cpp". Raises the stages' errors; what was finished before one
    stays finished. RecipeError while another run uses the folder.
    """
    builder = make_builder(recipe, device, meter)
    hashes = FileHashes()
    reporter = Reporter(builder, hashes)
    steps = reporter.all_steps()
    require_free_names(recipe, steps, builder.space)
    with builder.space.occupied(written_files(steps, builder.space)):
        ledger = Ledger(builder.space.record, hashes)
        _tell_new_bars(builder)
        for number, step in enumerate(steps, 1):
            _do(ledger, step, f"[{number}/{len(steps)}]")
        return RunResult(reporter.facts, builder.space.report, builder.space.plot)


def make_builder(recipe: Recipe, device: torch.device | str, meter: str) -> Builder:
    """The steps' builder for a meter by name and a device by name or as torch has it."""
    chosen = pick_device(device) if isinstance(device, str) else device
    return Builder(recipe, make_meter(meter, recipe.fields.gate, chosen), chosen)


def _tell_new_bars(builder: Builder) -> None:
    """Bars that change after a look at the figures are no longer fixed in advance: say so."""
    try:
        former = load(CriterionRecord, builder.space.criterion)
    except ArtifactError:
        return
    bars = builder.recipe.criterion
    if former.sha256 != bars.sha256:
        log(
            f"the bars are not those of the last run in {builder.space.root}: "
            f"sha256 {bars.sha256[:12]}, before {former.sha256[:12]}"
        )


def _do(ledger: Ledger, step: Step, label: str) -> None:
    """Do a step unless it is done, and say which on stderr."""
    if ledger.is_done(step):
        log(f"{label} {step.name}: done before")
        return
    log(f"{label} {step.name}")
    start = time.monotonic()
    ledger.run(step)
    log(f"{label} {step.name}: {time.monotonic() - start:.1f} s")
