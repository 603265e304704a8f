"""One layer of any known architecture, and what comes before the first and after the last.

The state of a token is its residual: one vector, or several streams side by side where the
architecture has hyper-connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.models.config import Mixer, ModelConfig
from quantkit.models.layers.attention import AttentionWeights, IndexerWeights, attention
from quantkit.models.layers.gated_delta_net import DeltaNetWeights, gated_delta_net
from quantkit.models.layers.hyper_connection import HyperWeights, read_streams, write_streams
from quantkit.models.layers.moe import (
    ExpertWeights,
    Route,
    SharedWeights,
    route,
    routed_experts,
    shared_expert,
)
from quantkit.models.layers.ngram import NgramWeights, ngram_inject, ngram_rows
from quantkit.models.layers.norm import rms_norm

ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_out", "attn_q_norm", "attn_k_norm")
INDEXER = ("indexer_q", "indexer_k", "indexer_q_norm", "indexer_k_norm")
DELTA_NET = tuple(f"gdn_{field}" for field in DeltaNetWeights._fields)
NGRAM = tuple(f"ngram_{field}" for field in NgramWeights._fields)


class Weights(Protocol):
    """Effective values by role, of one layer or of the model."""

    def __getitem__(self, role: str) -> Tensor: ...


class LayerWeights(Weights, Protocol):
    """A layer's weights; experts and n-gram rows are fetched as they are needed."""

    def expert(self, number: int) -> ExpertWeights: ...

    def ngram_rows(self, rows: Tensor) -> Tensor: ...


class Observer(Protocol):
    """Sees the MoE block of every layer: input (N, H), route, output (N, H)."""

    def moe(self, layer: int, x: Tensor, chosen: Route, output: Tensor) -> None: ...


def hyper_weights(w: Weights, name: str, *, inject: bool = True) -> HyperWeights:
    """The four (or three) tensors of one hyper-connection."""
    return HyperWeights(
        w[f"{name}_norm"],
        w[f"{name}_down"],
        w[f"{name}_up"],
        w[f"{name}_inject"] if inject else None,
    )


def shared_weights(w: Weights) -> SharedWeights:
    """The shared expert of a layer."""
    mlp = ExpertWeights(w["shared_gate"], w["shared_up"], w["shared_down"])
    return SharedWeights(mlp, w["shared_gate_row"].reshape(1, -1))


def embed(tokens: Tensor, token_embd: Tensor, config: ModelConfig) -> Tensor:
    """The first state (B, T, H or S*H) of `tokens` (B, T)."""
    state = F.embedding(tokens, token_embd)
    return state.repeat(1, 1, config.hyper.n_streams) if config.hyper else state


def moe_block(x: Tensor, w: LayerWeights, config: ModelConfig) -> tuple[Tensor, Route]:
    """Routed and shared experts of `x` (N, H)."""
    chosen = route(x, w["router"], config.moe)
    y = routed_experts(x, chosen, w.expert, config.moe.n_experts)
    if config.moe.shared_inner:
        y = y + shared_expert(x, shared_weights(w))
    return y, chosen


def mix_tokens(x: Tensor, layer: int, w: Weights, config: ModelConfig) -> Tensor:
    """The layer's token mixer: (B, T, H) to (B, T, H)."""
    if config.mixers[layer] is Mixer.GATED_DELTA_NET:
        assert config.delta_net is not None
        weights = DeltaNetWeights(*(w[role] for role in DELTA_NET))
        return gated_delta_net(x, weights, config.delta_net, config.rms_eps)
    sparse = None
    if config.indexer is not None and x.shape[1] > config.indexer.budget:
        sparse = (IndexerWeights(*(w[role] for role in INDEXER)), config.indexer)
    attention_weights = AttentionWeights(*(w[role] for role in ATTENTION))
    return attention(x, attention_weights, config.attention, config.rms_eps, sparse)


def run_mixer(
    state: Tensor, tokens: Tensor, layer: int, w: LayerWeights, config: ModelConfig
) -> Tensor:
    """First half of a layer: n-gram rows and token mixer, on `state` (B, T, ...) of `tokens`."""
    if config.ngram and config.ngram.layer == layer:
        assert config.hyper is not None
        rows = w.ngram_rows(ngram_rows(tokens, config.ngram)).flatten(-2)
        weights = NgramWeights(*(w[role] for role in NGRAM))
        n_streams = config.hyper.n_streams
        added = ngram_inject(state, rows, weights, config.ngram, n_streams, config.rms_eps)
        state = state + added
    x, write = _read(state, w, "attn", config)
    return _write(state, mix_tokens(x, layer, w, config), write)


def run_experts(
    states: Sequence[Tensor],
    layer: int,
    w: LayerWeights,
    config: ModelConfig,
    observers: Sequence[Observer] = (),
) -> list[Tensor]:
    """Second half of a layer, on the tokens of all batches at once.

    Experts work token by token, so that one pass over them serves every batch.
    """
    reads = [_read(state, w, "ffn", config) for state in states]
    flat = torch.cat([x.flatten(0, 1) for x, _ in reads])
    y, chosen = moe_block(flat, w, config)
    for observer in observers:
        observer.moe(layer, flat, chosen, y)
    parts = y.split([x.shape[0] * x.shape[1] for x, _ in reads])
    return [
        _write(state, part.view_as(x), write)
        for state, part, (x, write) in zip(states, parts, reads, strict=True)
    ]


def final_hidden(state: Tensor, w: Weights, config: ModelConfig) -> Tensor:
    """What the head multiplies: (..., H)."""
    if config.hyper is None:
        return rms_norm(state, w["output_norm"], config.rms_eps)
    weights = hyper_weights(w, "output_hc", inject=False)
    return read_streams(state, weights, config.hyper.n_streams, config.rms_eps)[0]


def _read(
    state: Tensor, w: Weights, place: str, config: ModelConfig
) -> tuple[Tensor, Tensor | None]:
    if config.hyper is None:
        return rms_norm(state, w[f"{place}_norm"], config.rms_eps), None
    weights = hyper_weights(w, f"hc_{place}")
    return read_streams(state, weights, config.hyper.n_streams, config.rms_eps)


def _write(state: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
    return state + y if weights is None else write_streams(state, y, weights)
