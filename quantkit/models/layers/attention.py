"""Grouped-query softmax attention with optional output gate and optional sparse selection."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.models.config import AttentionConfig, IndexerConfig
from quantkit.models.layers.norm import rms_norm
from quantkit.models.layers.rope import apply_rope, rope_table

QUERY_TILE = 512
"""Queries whose scores exist at the same time; bounds memory to tile x context per head."""


class AttentionWeights(NamedTuple):
    """`q` (heads * head_dim, or twice that with a gate, H), `k`, `v`, `out`, head norms."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    q_norm: Tensor
    k_norm: Tensor


class IndexerWeights(NamedTuple):
    """`q` (heads * head_dim, H), `k` (head_dim, H) and the norms of both (head_dim)."""

    q: Tensor
    k: Tensor
    q_norm: Tensor
    k_norm: Tensor


class IndexKeys(NamedTuple):
    """The index of one batch: queries (B, T, heads, d) and one key per whole block (B, n, d)."""

    queries: Tensor
    block_keys: Tensor


def index_keys(
    x: Tensor, w: IndexerWeights, cfg: IndexerConfig, rotary: tuple[int, float], eps: float
) -> IndexKeys:
    """Project `x` (B, T, H); a block's key is the mean of its raw keys, rotated at its start."""
    n_tokens = x.shape[1]
    n_blocks = n_tokens // cfg.block
    positions = torch.arange(n_tokens, device=x.device)
    queries = F.linear(x, w.q).unflatten(-1, (cfg.n_heads, cfg.head_dim))
    queries = apply_rope(rms_norm(queries, w.q_norm, eps), rope_table(positions, *rotary))
    raw = F.linear(x, w.k)[:, : n_blocks * cfg.block]
    pooled = raw.unflatten(1, (n_blocks, cfg.block)).mean(2)
    starts = torch.arange(n_blocks, device=x.device) * cfg.block
    pooled = rms_norm(pooled, w.k_norm, eps).unsqueeze(2)
    return IndexKeys(queries, apply_rope(pooled, rope_table(starts, *rotary)).squeeze(2))


def block_scores(index: IndexKeys, start: int, stop: int, block: int) -> Tensor:
    """Scores (B, stop - start, n_blocks) of whole blocks; -inf where a block is not complete yet.

    Heads are rectified before they are summed, as in DeepSeek's lightning indexer.
    """
    queries = index.queries[:, start:stop]
    dots = torch.einsum("bthd,bnd->bthn", queries, index.block_keys)
    scores = F.relu(dots).sum(2) * queries.shape[-1] ** -0.5
    complete = (torch.arange(start, stop, device=scores.device) + 1) // block
    blocks = torch.arange(index.block_keys.shape[1], device=scores.device)
    return scores.masked_fill(blocks[None, :] >= complete[:, None], float("-inf"))


def selected_tokens(scores: Tensor, start: int, n_tokens: int, cfg: IndexerConfig) -> Tensor:
    """Boolean (B, rows, n_tokens): the best blocks within the budget, and the incomplete tail.

    Does not include causality inside the tail; the caller's causal mask adds that.
    """
    n_rows, n_blocks = scores.shape[1:]
    keep = min(cfg.budget // cfg.block, n_blocks)
    positions = torch.arange(start, start + n_rows, device=scores.device)
    tail_start = (positions + 1) // cfg.block * cfg.block
    tokens = torch.arange(n_tokens, device=scores.device)
    mask = (tokens[None, :] >= tail_start[:, None]).expand(scores.shape[0], -1, -1)
    if not keep:
        return mask
    best = scores.topk(keep, dim=-1)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen.scatter_(-1, best.indices, best.values > float("-inf"))
    whole = chosen.repeat_interleave(cfg.block, dim=-1)
    return mask | F.pad(whole, (0, n_tokens - whole.shape[-1]))


def project_heads(
    x: Tensor, w: AttentionWeights, cfg: AttentionConfig, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Rotated queries and keys, values, and the output gate: each (B, T, heads, head_dim)."""
    q = F.linear(x, w.q).unflatten(-1, (cfg.n_heads, -1))
    gate = None
    if cfg.output_gate:
        q, gate = q.chunk(2, dim=-1)
    k = F.linear(x, w.k).unflatten(-1, (cfg.n_kv_heads, -1))
    v = F.linear(x, w.v).unflatten(-1, (cfg.n_kv_heads, -1))
    positions = torch.arange(x.shape[1], device=x.device)
    table = rope_table(positions, cfg.rotary_dim, cfg.rope_theta)
    q = apply_rope(rms_norm(q, w.q_norm, eps), table)
    k = apply_rope(rms_norm(k, w.k_norm, eps), table)
    return q, k, v, gate


def attention(
    x: Tensor,
    w: AttentionWeights,
    cfg: AttentionConfig,
    eps: float,
    sparse: tuple[IndexerWeights, IndexerConfig] | None = None,
) -> Tensor:
    """Causal attention of `x` (B, T, H); with `sparse`, each query sees only its selection."""
    n_tokens = x.shape[1]
    q, k, v, gate = project_heads(x, w, cfg, eps)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    # Within the budget every complete block is selected: dense attention, no index needed.
    index = None
    if sparse is not None and n_tokens > sparse[1].budget:
        index = index_keys(x, *sparse, (cfg.rotary_dim, cfg.rope_theta), eps)
    positions = torch.arange(n_tokens, device=x.device)
    tiles = []
    for start in range(0, n_tokens, QUERY_TILE):
        stop = min(start + QUERY_TILE, n_tokens)
        mask = positions[None, :stop] <= positions[start:stop, None]
        if index is not None and sparse is not None:
            scores = block_scores(index, start, stop, sparse[1].block)
            mask = mask & selected_tokens(scores, start, n_tokens, sparse[1])[:, :, :stop]
            mask = mask.unsqueeze(1)
        tiles.append(
            F.scaled_dot_product_attention(
                q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], attn_mask=mask, enable_gqa=True
            )
        )
    out = torch.cat(tiles, dim=2).transpose(1, 2)
    if gate is not None:
        out = out * torch.sigmoid(gate)
    return F.linear(out.flatten(-2), w.out)
