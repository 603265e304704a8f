"""How stored values become effective ones, and the reverse, as tables of small functions.

llama.cpp's converter stores value heads of Gated DeltaNet *tiled* (first head of every key group,
then the second, ...) where transformers groups them by key head; everything that runs over value
heads is permuted with them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quantkit.models.config import DeltaNetConfig, ModelConfig


def _negative_exp(stored: Tensor) -> Tensor:
    return -stored.float().exp()


HF_FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "same": lambda stored: stored,
    "plus_one": lambda stored: stored.float() + 1.0,
    "negative_exp": _negative_exp,
    "squeeze": lambda stored: stored.reshape(-1, stored.shape[-1]),
}
"""transformers' stored value -> effective value."""


def _indexer_query_rows(config: ModelConfig) -> int:
    assert config.indexer is not None
    return config.indexer.n_heads * config.indexer.head_dim


HF_PARTS: dict[str, Callable[[ModelConfig], slice]] = {
    "all": lambda config: slice(None),
    "gate": lambda config: slice(0, config.moe.inner),
    "up": lambda config: slice(config.moe.inner, 2 * config.moe.inner),
    "indexer_q": lambda config: slice(0, _indexer_query_rows(config)),
    "indexer_k": lambda config: slice(_indexer_query_rows(config), None),
}
"""Rows (second to last axis) of a fused transformers tensor that belong to one role."""


def tiled_head_order(cfg: DeltaNetConfig) -> Tensor:
    """`order[j]` is the grouped index of the head that llama.cpp stores at place `j`."""
    heads = torch.arange(cfg.n_value_heads).reshape(cfg.n_key_heads, -1)
    return heads.T.flatten()


def _element_order(cfg: DeltaNetConfig, head_dim: int) -> Tensor:
    order = tiled_head_order(cfg)
    return (order[:, None] * head_dim + torch.arange(head_dim)).flatten()


def _qkv_order(cfg: DeltaNetConfig) -> Tensor:
    keys = 2 * cfg.n_key_heads * cfg.key_dim
    return torch.cat((torch.arange(keys), keys + _element_order(cfg, cfg.value_dim)))


GGUF_LAYOUTS: dict[str, tuple[int, Callable[[DeltaNetConfig], Tensor]] | None] = {
    "same": None,
    "heads": (0, lambda cfg: _element_order(cfg, 1)),
    "value_rows": (0, lambda cfg: _element_order(cfg, cfg.value_dim)),
    "value_columns": (1, lambda cfg: _element_order(cfg, cfg.value_dim)),
    "qkv_value_rows": (0, _qkv_order),
}
"""Axis and order: `gguf = effective.index_select(axis, order)`; None where both agree."""


def to_gguf_layout(effective: Tensor, layout: str, config: ModelConfig) -> Tensor:
    """Reorder an effective value as llama.cpp stores it."""
    entry = GGUF_LAYOUTS[layout]
    if entry is None or config.delta_net is None:
        return effective
    axis, order = entry
    return effective.index_select(axis, order(config.delta_net))


def from_gguf_layout(stored: Tensor, layout: str, config: ModelConfig) -> Tensor:
    """Undo `to_gguf_layout`."""
    entry = GGUF_LAYOUTS[layout]
    if entry is None or config.delta_net is None:
        return stored
    axis, order = entry
    return stored.index_select(axis, torch.argsort(order(config.delta_net)).to(stored.device))
