"""The stage: measure candidate and baseline on the texts, judge, report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quantkit.artifacts.gate import ROLES, GateModel, GateReport, GateText
from quantkit.artifacts.kld import KldStatistics
from quantkit.errors import RecipeError
from quantkit.gate.criterion import Criterion
from quantkit.gate.judge import build_report
from quantkit.gate.meters import CachedMeter, Meter, text_file
from quantkit.gate.statistics import paired_difference, summarise
from quantkit.runtime.machine import this_machine
from quantkit.weights.identity import model_files


def gate(
    candidate: Path,
    baseline: Path,
    reference: Path,
    texts: Mapping[str, Path],
    criterion: Criterion,
    *,
    meter: Meter,
    cache: Path,
) -> GateReport:
    """Judge `candidate` against the reference quantization `baseline`.

    `texts` maps a role (selection, check, held_out) to a text; `reference` is the unquantized
    model. The criterion is fixed before anything is measured. Raises RecipeError for an unknown
    role, TextError for a text or vocabulary that does not fit.
    """
    unknown = sorted(set(texts) - set(ROLES))
    if unknown:
        raise RecipeError(
            "a text with an unknown role", value=unknown[0], rule=f"one of {', '.join(ROLES)}"
        )
    cached = CachedMeter(meter, reference, tuple(texts.values()), cache)
    scores = [cached.score(model) for model in (candidate, baseline)]
    rows = tuple(
        GateText(
            text=text_file(path),
            role=role,
            candidate=summarise(ours),
            baseline=summarise(theirs),
            paired=paired_difference(ours, theirs),
        )
        for (role, path), ours, theirs in zip(texts.items(), *scores, strict=True)
    )
    return build_report(
        criterion,
        rows,
        candidate=GateModel(candidate.stem, model_files(candidate)),
        baseline=GateModel(baseline.stem, model_files(baseline)),
        reference=GateModel(reference.stem, model_files(reference)),
        meter=meter.name,
        settings=meter.settings(),
        machine=this_machine(),
    )


def measure_kld(
    model: Path, reference: Path, texts: Mapping[str, Path], *, meter: Meter, cache: Path
) -> dict[str, KldStatistics]:
    """Statistics of one model on every text, by role."""
    cached = CachedMeter(meter, reference, tuple(texts.values()), cache)
    return {
        role: summarise(records) for role, records in zip(texts, cached.score(model), strict=True)
    }
