"""Routed experts with a shared expert (softmax router, top-k, optional renormalisation)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.models.config import MoeConfig


class Route(NamedTuple):
    """For each token its experts (N, k) and the weights that are applied to them (N, k)."""

    experts: Tensor
    weights: Tensor


class ExpertWeights(NamedTuple):
    """One gated MLP: `gate`, `up` (inner, H) and `down` (H, inner)."""

    gate: Tensor
    up: Tensor
    down: Tensor


class SharedWeights(NamedTuple):
    """The shared expert and, where the model has one, the row that gates it (1, H)."""

    mlp: ExpertWeights
    gate_row: Tensor | None


def route(x: Tensor, router: Tensor, cfg: MoeConfig) -> Route:
    """Choose experts for `x` (N, H) with `router` (n_experts, H)."""
    probabilities = torch.softmax(F.linear(x, router).float(), dim=-1)
    weights, experts = probabilities.topk(cfg.n_experts_used, dim=-1)
    if cfg.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Route(experts, weights.to(x.dtype))


def expert_mlp(x: Tensor, w: ExpertWeights) -> Tensor:
    """SwiGLU: (N, H) to (N, H)."""
    return F.linear(F.silu(F.linear(x, w.gate)) * F.linear(x, w.up), w.down)


def routed_experts(
    x: Tensor, chosen: Route, expert: Callable[[int], ExpertWeights], n_experts: int
) -> Tensor:
    """Sum of the chosen experts' weighted outputs; each expert is fetched once, if it is used."""
    out = torch.zeros_like(x)
    flat = chosen.experts.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=n_experts).tolist()
    k = chosen.experts.shape[1]
    start = 0
    for number, count in enumerate(counts):
        slots = order[start : start + count]
        start += count
        if not count:
            continue
        tokens = slots // k
        y = expert_mlp(x[tokens], expert(number)) * chosen.weights.flatten()[slots, None]
        out.index_add_(0, tokens, y)
    return out


def shared_expert(x: Tensor, w: SharedWeights) -> Tensor:
    """The expert that every token uses, scaled by its own sigmoid gate if it has one."""
    y = expert_mlp(x, w.mlp)
    if w.gate_row is None:
        return y
    return torch.sigmoid(F.linear(x, w.gate_row)) * y
