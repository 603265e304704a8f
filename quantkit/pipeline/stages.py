"""What each step does: call one stage and save its artifact. No step knows a stage's inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from quantkit.artifacts.kld import TextKld
from quantkit.artifacts.selection import Selection
from quantkit.artifacts.sensitivity import Sensitivity
from quantkit.artifacts.store import load_with_id, save
from quantkit.containers.gguf import open_gguf
from quantkit.gate.criterion import Criterion
from quantkit.gate.meters import CACHE_DIGEST, CachedMeter, Meter, text_file
from quantkit.gate.run import gate, measure_kld
from quantkit.measure import measure
from quantkit.pipeline.criterion import CriterionRecord
from quantkit.pipeline.schema import MeasureSettings
from quantkit.quantize import convert_checkpoint
from quantkit.quantize.encode import Rule, encode_gguf
from quantkit.runtime.machine import this_machine
from quantkit.select import select
from quantkit.splice import plan_from_selection, write_splice
from quantkit.splice.write import PROVENANCE_SUFFIX
from quantkit.weights.identity import model_files

LOG_PROBS = f"*-{CACHE_DIGEST}.logits"
"""How the meters name the reference's log-probabilities in the cache."""

Texts = Mapping[str, Path]


def provenance_of(model: Path) -> Path:
    """The provenance beside a spliced model."""
    return model.with_name(model.name + PROVENANCE_SUFFIX)


def write_criterion(criterion: Criterion, out: Path) -> None:
    """Fix the bars."""
    save(CriterionRecord(criterion.bars(), criterion.sha256), out)


def convert(folder: Path, out: Path, name: str) -> None:
    """Checkpoint to GGUF."""
    convert_checkpoint(folder, out, name=name)


def quantize(reference: Path, out: Path, rules: Sequence[Rule]) -> None:
    """Reference to a whole quantization."""
    encode_gguf(reference, out, rules)


def measure_sources(
    reference: Path,
    sources: Mapping[str, Path],
    text: Path,
    settings: MeasureSettings,
    device: torch.device,
    out: Path,
) -> None:
    """What swapping each layer for each source costs."""
    found = measure(
        reference,
        sources,
        [text],
        context=settings.context,
        max_tokens=settings.tokens,
        device=device,
    )
    save(found, out)


def select_hybrid(
    sensitivity: Path,
    name: str,
    unit: str,
    target_bytes: int | None,
    max_error: float | None,
    command: Sequence[str],
    out: Path,
) -> None:
    """The best source of every unit."""
    found, identity = load_with_id(Sensitivity, sensitivity)
    chosen = select(
        found,
        identity,
        name=name,
        unit_mode=unit,
        target_bytes=target_bytes,
        max_error=max_error,
        command=command,
    )
    save(chosen, out)


def splice(selection: Path, sources: Mapping[str, Path], command: Sequence[str], out: Path) -> None:
    """Write a hybrid."""
    chosen, identity = load_with_id(Selection, selection)
    opened = {name: open_gguf(path) for name, path in sources.items()}
    base = opened.pop(chosen.base.name)
    plan = plan_from_selection(chosen, base, opened)
    write_splice(plan, out, inputs=[identity], command=command)


def score_reference(reference: Path, texts: Texts, meter: Meter, cache: Path) -> None:
    """The reference's log-probabilities, all texts in one sweep."""
    CachedMeter(meter, reference, tuple(texts.values()), cache).reference_files()


def gate_hybrid(
    models: tuple[Path, Path, Path],
    texts: Texts,
    criterion: Criterion,
    meter: Meter,
    cache: Path,
    out: Path,
) -> None:
    """Judge candidate against baseline; `models` are those two and the reference."""
    candidate, baseline, reference = models
    save(gate(candidate, baseline, reference, texts, criterion, meter=meter, cache=cache), out)


def score_model(
    model: Path,
    reference: Path,
    texts: Texts,
    meter: Meter,
    cache: Path,
    outputs: Mapping[str, Path],
) -> None:
    """The figures of a whole quantization, one artifact a text."""
    found = measure_kld(model, reference, texts, meter=meter, cache=cache)
    for role, path in outputs.items():
        save(
            TextKld(
                model=model_files(model),
                reference=model_files(reference),
                text=text_file(texts[role]),
                meter=meter.name,
                settings=meter.settings(),
                statistics=found[role],
                machine=this_machine(),
            ),
            path,
        )
