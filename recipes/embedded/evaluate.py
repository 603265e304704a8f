"""Held-out loss of a checkpoint in nats per byte, by source, with the product's own sweep.

`python recipes/embedded/evaluate.py CHECKPOINT --data DIR [--context 512]`: windows of the context
length overlap by half, so that every token but the first half window's is scored with at least
half a window before it. Documents follow each other with an end-of-text between them, and its
loss counts. `--documents N` takes the first N.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.runtime import pick_device, sweep
from quantkit.weights import open_model

WINDOWS_PER_SWEEP = 64
BATCH = 8


class TokenLosses:
    """Sink: the loss of each next token of some windows."""

    def __init__(self, windows: Tensor) -> None:
        self.windows = windows
        self.found = torch.zeros(windows.shape[0], windows.shape[1] - 1)

    def logits(self, sequence: int, first: int, scores: Tensor) -> None:
        """Score the tokens that follow positions first, first + 1, ..."""
        target = self.windows[sequence, first + 1 : first + 1 + len(scores)]
        loss = F.cross_entropy(scores.float().cpu(), target, reduction="none")
        self.found[sequence, first : first + len(scores)] = loss


def token_losses(checkpoint: Path, tokens: Tensor, context: int, device: str) -> Tensor:
    """Loss of every token (0 for the first, and for a rest shorter than half a window)."""
    model = open_model(checkpoint)
    half = context // 2
    n_windows = (len(tokens) - 1) // half - 1
    windows = tokens.unfold(0, context + 1, half)[:n_windows]
    losses = torch.zeros(len(tokens))
    for part in range(0, n_windows, WINDOWS_PER_SWEEP):
        some = windows[part : part + WINDOWS_PER_SWEEP]
        sink = TokenLosses(some)
        batches = list(some[:, :-1].split(BATCH))
        sweep(model, batches, device=pick_device(device), sink=sink, label=f"window {part}")
        for row, found in enumerate(sink.found):
            start = (part + row) * half
            first = 0 if start == 0 else half
            losses[start + 1 + first : start + 1 + context] = found[first:]
    return losses


def main() -> None:
    """Print the losses as JSON."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("checkpoint", type=Path)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--documents", type=int)
    p.add_argument("--device", default="auto")
    args = p.parse_args()
    held = np.load(args.data / "heldout.npz", allow_pickle=False)
    bounds = held["offsets"].tolist()[: args.documents and args.documents + 1]
    tokens = torch.from_numpy(held["tokens"][: bounds[-1]].astype(np.int64))
    losses = token_losses(args.checkpoint, tokens, args.context, args.device).double()
    totals: dict[str, list[float]] = {}
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if not losses[stop - 1]:
            continue  # the rest behind the last window
        for key in (str(held["source"][i]), "all"):
            entry = totals.setdefault(key, [0.0, 0.0])
            entry[0] += float(losses[start:stop].sum())
            entry[1] += float(held["nbytes"][i])
    found = {key: round(nats / size, 4) for key, (nats, size) in sorted(totals.items())}
    print(json.dumps({"context": args.context, "nats_per_byte": found}, indent=1))


if __name__ == "__main__":
    main()
