"""The sweep: all tokens of all texts go through layer 0, then layer 1, and so on.

Each layer's weights are decoded once, serve every batch and every observer, and are dropped. The
memory is one layer's dense part, one expert and the activations, whatever the model's size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.errors import QuantkitError, TextError, UsageError
from quantkit.models.trunk import Observer, final_hidden, run_experts, run_mixer
from quantkit.progress import Progress
from quantkit.weights import ModelWeights

DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")
LOGIT_TILE_ELEMENTS = 1 << 26
"""Logits that exist at the same time (256 MiB of float32)."""


class LogitsSink(Protocol):
    """Takes the final scores, batch by batch, in order."""

    def logits(self, sequence: int, first: int, scores: Tensor) -> None:
        """Scores (n, vocab) of positions first, first + 1, ... of a sequence, float32."""


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is CUDA where there is one, else the CPU.

    UsageError for another kind of device, QuantkitError if torch cannot use it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not DEVICE.fullmatch(name):
        raise UsageError("unknown device", value=name, rule="auto, cpu, cuda or cuda:N")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise QuantkitError(
            "torch cannot use this device",
            value=name,
            rule=str(error).splitlines()[0],
            hint="use --device cpu, or install a torch build for your GPU",
        ) from error
    return device


def check_tokens(model: ModelWeights, batches: Sequence[Tensor]) -> None:
    """Raise TextError if a token is outside the model's vocabulary."""
    for batch in batches:
        lowest, highest = (int(batch.min()), int(batch.max())) if batch.numel() else (0, 0)
        if lowest < 0 or highest >= model.config.vocab_size:
            raise TextError(
                "a token that the model does not have",
                file=model.path,
                value=highest if lowest >= 0 else lowest,
                rule=f"token ids from 0 to below {model.config.vocab_size}",
                hint="the text was tokenized for another model",
            )


@torch.inference_mode()
def sweep(
    model: ModelWeights,
    batches: Sequence[Tensor],
    *,
    device: torch.device,
    observers: Sequence[Observer] = (),
    sink: LogitsSink | None = None,
    scored_from: int = 0,
    label: str = "sweep",
) -> None:
    """Run `batches` of tokens (B, T) through the model, every sequence from an empty state.

    Observers see each layer; `sink` gets the scores of positions `scored_from` onwards. Without a
    sink the head is not computed.
    """
    check_tokens(model, batches)
    config = model.config
    tokens = [batch.to(device) for batch in batches]
    states = [model.embedding_rows(batch).to(device) for batch in batches]
    if config.hyper:
        states = [state.repeat(1, 1, config.hyper.n_streams) for state in states]
    with Progress(label, config.n_layers + (sink is not None)) as progress:
        for number in range(config.n_layers):
            layer = model.layer(number, device)
            states = [
                run_mixer(state, batch, number, layer, config)
                for state, batch in zip(states, tokens, strict=True)
            ]
            states = run_experts(states, number, layer, config, observers)
            progress.step(note=f"layer {number + 1} of {config.n_layers}")
        if sink is not None:
            _head(model, states, device, sink, scored_from)
            progress.step(note="head")


def _head(
    model: ModelWeights,
    states: Sequence[Tensor],
    device: torch.device,
    sink: LogitsSink,
    scored_from: int,
) -> None:
    top = model.top_view(device)
    head = top["output"]
    rows = max(1, LOGIT_TILE_ELEMENTS // model.config.vocab_size)
    sequence = 0
    for batch in states:
        for state in batch:
            hidden = final_hidden(state[scored_from:], top, model.config)
            for start in range(0, len(hidden), rows):
                scores = F.linear(hidden[start : start + rows], head)
                sink.logits(sequence, scored_from + start, scores)
            sequence += 1
