"""Train the embedded model: `python recipes/embedded/train.py --data DIR --out DIR`.

DIR holds what `corpus.yaml` builds: train.npy (token ids), heldout.npz (token ids and bytes of
each held-out document). One GPU. The last quarter of the steps runs with the sparse attention
that the model will have when it is used; before that attention is dense and the indexer only
learns from it. Writes the checkpoint, log.csv and result.json.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from export import round_to_bf16, save_checkpoint
from model import EmbeddedModel
from muon import Muon
from torch import Tensor

from quantkit.models.hf_config import config_from_hf

MTP_WEIGHT = 1.0
BALANCE_WEIGHT = 0.01
INDEXER_WEIGHT = 1.0
NOT_ORTHOGONAL = (
    "token_embd",
    "output",
    "ngram_table",
    "router",
    "conv",
    "shared_gate_row",
    "indexer",
)


def arguments() -> argparse.Namespace:
    """The settings of a run; the defaults are those of the shipped model."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--config", type=Path, default=Path(__file__).parent / "config.json")
    p.add_argument("--steps", type=int, default=1550)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--sequence", type=int, default=1024)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--sparse-share", type=float, default=0.25)
    p.add_argument("--optimizer", choices=("adamw", "muon"), default="muon")
    p.add_argument("--weight-decay", type=float, default=0.4)
    p.add_argument("--mixer-dropout", type=float, default=0.0)
    p.add_argument("--ngram-dropout", type=float, default=0.4)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--eval-every", type=int, default=500)
    return p.parse_args()


def optimizers(model: EmbeddedModel, args: argparse.Namespace) -> list[torch.optim.Optimizer]:
    """AdamW for vectors and tables, and Muon for the matrices if asked for."""
    matrices, tables, vectors = [], [], []
    for name, p in model.named_parameters():
        if p.ndim < 2:
            vectors.append(p)
        elif any(part in name for part in NOT_ORTHOGONAL):
            tables.append(p)
        else:
            matrices.append(p)
    plain = [{"params": vectors + tables, "weight_decay": 0.0}]
    if args.optimizer == "adamw":
        plain.append({"params": matrices, "weight_decay": args.weight_decay})
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(plain, lr=args.lr, betas=(0.9, 0.95), fused=True)
    ]
    if args.optimizer == "muon":
        found.append(Muon(matrices, lr=args.lr, weight_decay=args.weight_decay))
    return found


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine to 2 % of the peak."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def heldout_loss(model: EmbeddedModel, data: Path, sequence: int) -> dict[str, float]:
    """Nats per byte by source and overall, in windows that overlap by half.

    Every token but those of the first half window is scored with at least half a window before
    it; documents follow each other with an end-of-text between them, and its loss counts.
    """
    held = np.load(data / "heldout.npz", allow_pickle=False)
    tokens = torch.from_numpy(held["tokens"].astype(np.int64)).cuda()
    half = sequence // 2
    n_windows = (len(tokens) - 1) // half - 1
    starts = torch.arange(n_windows, device="cuda") * half
    windows = tokens[starts[:, None] + torch.arange(sequence + 1, device="cuda")]
    losses = torch.zeros(len(tokens), device="cuda")
    model.eval()
    for part in range(0, n_windows, 32):
        batch = windows[part : part + 32]
        with torch.autocast("cuda", torch.bfloat16):
            state, _, _ = model.trunk(batch[:, :-1], sparse=True)
            logits = model.logits(state, model.top)
        found = F.cross_entropy(
            logits.flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="none"
        ).view(batch.shape[0], sequence)
        for row, start in zip(found, starts[part : part + 32].tolist(), strict=True):
            first = 0 if start == 0 else half
            losses[start + 1 + first : start + 1 + sequence] = row[first:]
    model.train()
    end = (n_windows + 1) * half + 1
    bounds = held["offsets"].tolist()
    sources, n_bytes = held["source"], held["nbytes"]
    totals: dict[str, list[float]] = {}
    for i, source in enumerate(sources.tolist()):
        if bounds[i + 1] > end:
            continue
        for key in (source, "all"):
            entry = totals.setdefault(key, [0.0, 0.0])
            entry[0] += float(losses[bounds[i] : bounds[i + 1]].double().sum())
            entry[1] += float(n_bytes[i])
    return {key: nats / size for key, (nats, size) in totals.items()}


def batches(args: argparse.Namespace) -> Tensor:
    """The whole training set on the GPU; windows are drawn from it at random places."""
    return torch.from_numpy(np.load(args.data / "train.npy").astype(np.int32)).cuda()


def train(model: EmbeddedModel, args: argparse.Namespace) -> list[dict[str, float]]:
    """Run all steps; returns the log."""
    tokens = batches(args)
    generator = torch.Generator(device="cuda").manual_seed(args.seed)
    window = torch.arange(args.sequence + 2, device="cuda")
    running = optimizers(model, args)
    forward = torch.compile(model, dynamic=False) if args.compile else model
    sparse_from = int(args.steps * (1 - args.sparse_share))
    log: list[dict[str, float]] = []
    start = time.monotonic()
    for step in range(args.steps):
        lr = learning_rate(step, args)
        for optimizer in running:
            for group in optimizer.param_groups:
                group["lr"] = lr
        places = torch.randint(
            len(tokens) - len(window), (args.batch, 1), device="cuda", generator=generator
        )
        with torch.autocast("cuda", torch.bfloat16):
            losses = forward(tokens[places + window], step >= sparse_from)
        loss = losses.trunk + MTP_WEIGHT * losses.mtp
        loss = loss + BALANCE_WEIGHT * losses.balance + INDEXER_WEIGHT * losses.indexer
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in running:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == args.steps - 1:
            row = {"step": step, "seconds": round(time.monotonic() - start, 1), "lr": lr}
            row |= {name: float(value) for name, value in losses._asdict().items()}
            log.append(row)
            print(" ".join(f"{k}={v:.4g}" for k, v in row.items()), flush=True)
        if step and step % args.eval_every == 0:
            print("held-out", heldout_loss(model, args.data, args.sequence), flush=True)
    return log


def main() -> None:
    """Train, evaluate what will be shipped, write."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    config = config_from_hf(json.loads(args.config.read_text()))
    model = EmbeddedModel(
        config, mixer_dropout=args.mixer_dropout, ngram_dropout=args.ngram_dropout
    ).cuda()
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"{n_parameters / 1e6:.2f} M parameters", flush=True)
    start = time.monotonic()
    log = train(model, args)
    seconds = time.monotonic() - start
    round_to_bf16(model)
    result = {
        "parameters": n_parameters,
        "steps": args.steps,
        "tokens": args.steps * args.batch * args.sequence,
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        "heldout_nats_per_byte": heldout_loss(model, args.data, args.sequence),
        "data_sha256": {
            name: hashlib.sha256((args.data / name).read_bytes()).hexdigest()
            for name in ("train.npy", "heldout.npz")
        },
        "settings": {k: v for k, v in vars(args).items() if not isinstance(v, Path)},
    }
    print(json.dumps(result, indent=1), flush=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    with (args.out / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(log[0]))
        writer.writeheader()
        writer.writerows(log)
    save_checkpoint(model, args.out)


if __name__ == "__main__":
    main()
