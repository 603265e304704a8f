"""Root-mean-square norms. `gamma` is the full factor (converters' `1 + w` already applied)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    """Normalise the last axis of `x` (..., n) and scale by `gamma` (n)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gamma


def grouped_rms_norm(x: Tensor, gamma: Tensor, n_groups: int, eps: float) -> Tensor:
    """Normalise each of `n_groups` equal parts of the last axis on its own."""
    parts = x.unflatten(-1, (n_groups, -1))
    parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    return parts.flatten(-2) * gamma
