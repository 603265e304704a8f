"""The hashed n-gram embedding ("PLE"): rows of one big table, gated into every residual stream.

Each token hashes itself with its predecessors (bigram, trigram, ...) to one row per head. An
end-of-text token ends the context: everything at or before it reads as end-of-text, but the token
itself still sees what came before it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.models.config import NgramConfig
from quantkit.models.layers.gated_delta_net import causal_conv
from quantkit.models.layers.norm import grouped_rms_norm


class NgramWeights(NamedTuple):
    """`key` (S*H, D), `value` (H, D), norms (S*H) and `conv` (S*H, kernel)."""

    key: Tensor
    value: Tensor
    norm_key: Tensor
    norm_query: Tensor
    norm_conv: Tensor
    conv: Tensor


def ngram_rows(tokens: Tensor, cfg: NgramConfig) -> Tensor:
    """Table rows (B, T, n_heads) for `tokens` (B, T); sequences start with an empty context.

    int64 products wrap nowhere: the multipliers are below 2^63 / vocabulary by construction.
    """
    tokens = tokens.long()
    context = [tokens]
    cut = torch.zeros_like(tokens, dtype=torch.bool)
    for shift in range(1, cfg.ngram_size):
        earlier = F.pad(tokens, (shift, 0), value=cfg.eos_token_id)[:, : tokens.shape[1]]
        cut = cut | (earlier == cfg.eos_token_id)
        context.append(earlier.masked_fill(cut, cfg.eos_token_id))
    mixed = context[0] * cfg.multipliers[0]
    heads = []
    for shift in range(1, cfg.ngram_size):
        mixed = mixed ^ (context[shift] * cfg.multipliers[shift])
        own = slice((shift - 1) * cfg.heads_per_ngram, shift * cfg.heads_per_ngram)
        sizes = torch.tensor(cfg.head_vocab_sizes[own], device=tokens.device)
        offsets = torch.tensor(cfg.head_offsets[own], device=tokens.device)
        heads.append(torch.remainder(mixed.unsqueeze(-1), sizes) + offsets)
    return torch.cat(heads, dim=-1)


def ngram_inject(
    state: Tensor, embedding: Tensor, w: NgramWeights, cfg: NgramConfig, n_streams: int, eps: float
) -> Tensor:
    """What the module adds to the streams `state` (B, T, S*H), from `embedding` (B, T, D)."""
    hidden = state.shape[-1] // n_streams
    key = grouped_rms_norm(F.linear(embedding, w.key), w.norm_key, n_streams, eps)
    query = grouped_rms_norm(state, w.norm_query, n_streams, eps)
    dot = (key * query).unflatten(-1, (n_streams, hidden)).sum(-1, keepdim=True)
    dot = dot / math.sqrt(hidden)
    # A signed square root before the sigmoid; the floor keeps its slope finite at zero.
    gate = torch.sigmoid(dot.abs().clamp_min(1e-6).sqrt() * dot.sign())
    gated = (gate * F.linear(embedding, w.value).unsqueeze(-2)).flatten(-2)
    local = grouped_rms_norm(gated, w.norm_conv, n_streams, eps)
    return gated + F.silu(causal_conv(local, w.conv, dilation=cfg.ngram_size))
