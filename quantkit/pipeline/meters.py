"""The meter that a run asks for by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from quantkit.errors import RecipeError
from quantkit.gate.meter_llamacpp import LlamaCppSettings, find_llama_perplexity
from quantkit.gate.meters import LlamaCppMeter, Meter, SweepMeter
from quantkit.pipeline.schema import GateSettings


def _sweep(settings: GateSettings, device: torch.device) -> Meter:
    return SweepMeter(settings.context, settings.max_chunks, device)


def _llamacpp(settings: GateSettings, device: torch.device) -> Meter:
    chunks = settings.max_chunks
    extra = () if chunks is None else ("--chunks", str(chunks))
    n_ctx = settings.context
    run = LlamaCppSettings(n_ctx=n_ctx, n_batch=n_ctx, n_ubatch=n_ctx, extra=extra)
    return LlamaCppMeter(find_llama_perplexity(), run)


METERS: dict[str, Callable[[GateSettings, torch.device], Meter]] = {
    "quantkit": _sweep,
    "llama.cpp": _llamacpp,
}


def make_meter(name: str, settings: GateSettings, device: torch.device) -> Meter:
    """RecipeError for an unknown name, PeerError if llama.cpp is wanted and not installed."""
    if name not in METERS:
        raise RecipeError("unknown meter", value=name, rule=f"one of {', '.join(METERS)}")
    return METERS[name](settings, device)
