"""Gated residual with several streams (a hyper-connection, arXiv:2409.19606; Qwen's form).

A token's state is `n_streams` vectors laid side by side (..., n_streams * hidden). Reading mixes
them into one vector with a low-rank input-dependent gate; writing adds the block's output to each
stream with its own weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.models.layers.norm import grouped_rms_norm


class HyperWeights(NamedTuple):
    """`norm` (S*H), `down` (R, S*H), `up` (S*H, R), `inject` (S, S*H) or None for the last one."""

    norm: Tensor
    down: Tensor
    up: Tensor
    inject: Tensor | None


def read_streams(
    state: Tensor, w: HyperWeights, n_streams: int, eps: float
) -> tuple[Tensor, Tensor | None]:
    """Mix the streams: the block's input (..., H), and the write weights (..., S) if any."""
    normed = grouped_rms_norm(state, w.norm, n_streams, eps)
    low = F.silu(F.linear(normed, w.down) / n_streams)
    gate = torch.sigmoid(F.linear(low, w.up))
    mixed = (gate * normed).unflatten(-1, (n_streams, -1)).mean(-2)
    if w.inject is None:
        return mixed, None
    return mixed, 2 * torch.sigmoid(F.linear(normed, w.inject) / n_streams)


def write_streams(state: Tensor, block_output: Tensor, weights: Tensor) -> Tensor:
    """Add `block_output` (..., H) to every stream, scaled by `weights` (..., S)."""
    return state + (weights.unsqueeze(-1) * block_output.unsqueeze(-2)).flatten(-2)
