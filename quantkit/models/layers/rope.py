"""Rotary position embedding, half-split ("NeoX") layout, over the first part of a head.

The multimodal variant with interleaved sections is the same function for text, where all three
position axes are equal.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_table(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (n_positions, rotary_dim / 2), in float32."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device)
    inverse_frequency = 1.0 / (theta ** (exponents / rotary_dim))
    angles = positions.to(torch.float32)[:, None] * inverse_frequency
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate `x` (..., n_positions, heads, head_dim); dimensions past the table's are kept."""
    cos, sin = (t[:, None, :].to(x.dtype) for t in table)
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
