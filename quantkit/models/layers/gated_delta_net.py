"""Gated DeltaNet: a recurrent state of one key-by-value matrix per head (arXiv:2412.06464).

For each token t the state S (key_dim, value_dim) decays by a_t = exp(g_t), forgets what it holds
under key k_t and writes value v_t there with strength b_t:

    S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T        o_t = S_t^T q_t

`delta_rule_recurrent` is that sentence; `delta_rule_chunked` gives the same result with matrix
products over chunks (the WY form: inside a chunk all corrections solve one unit lower triangular
system), and is what the sweep uses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.models.config import DeltaNetConfig
from quantkit.models.layers.norm import rms_norm

CHUNK = 64
L2_EPS = 1e-6


class DeltaNetWeights(NamedTuple):
    """Projections of one layer; value heads grouped by key head (transformers' order).

    `qkv` (2*Kh*Kd + Vh*Vd, H), `gate` (Vh*Vd, H), `conv` (channels of qkv, kernel),
    `dt_bias` (Vh), `decay` (Vh, negative rates), `beta`, `alpha` (Vh, H), `norm` (Vd),
    `out` (H, Vh*Vd).
    """

    qkv: Tensor
    gate: Tensor
    conv: Tensor
    dt_bias: Tensor
    decay: Tensor
    beta: Tensor
    alpha: Tensor
    norm: Tensor
    out: Tensor


def causal_conv(x: Tensor, kernel: Tensor, dilation: int = 1) -> Tensor:
    """Depthwise causal convolution of `x` (B, T, C) with `kernel` (C, K), from zeros."""
    channels, width = kernel.shape
    padded = F.pad(x.transpose(1, 2), ((width - 1) * dilation, 0))
    out = F.conv1d(padded, kernel.unsqueeze(1), groups=channels, dilation=dilation)
    return out.transpose(1, 2)


def delta_rule_recurrent(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor
) -> Tensor:
    """The definition, token by token; for tests. Shapes as in `delta_rule_chunked`."""
    state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[2]):
        state = state * log_decay[:, :, t, None, None].exp()
        held = torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        correction = beta[:, :, t, None] * (v[:, :, t] - held)
        state = state + k[:, :, t, :, None] * correction[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return torch.stack(outputs, dim=2)


def delta_rule_chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
    """Outputs (B, heads, T, Vd) for q, k (B, heads, T, Kd), v (B, heads, T, Vd), gates (B, h, T).

    `log_decay` must not be positive. Padding at the end has beta 0 and decay 1, which leaves the
    state as it is.
    """
    n_tokens = q.shape[2]
    pad = -n_tokens % CHUNK
    q, k, v = (F.pad(x, (0, 0, 0, pad)).unflatten(2, (-1, CHUNK)) for x in (q, k, v))
    log_decay, beta = (F.pad(x, (0, pad)).unflatten(2, (-1, CHUNK)) for x in (log_decay, beta))

    total = log_decay.cumsum(-1)
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    # exp only of differences i >= j, which are never positive, so nothing overflows.
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~causal, float("-inf")).exp()
    from_start = total.exp().unsqueeze(-1)
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)

    k_beta = k * beta.unsqueeze(-1)
    system = (k_beta @ k.transpose(-1, -2)) * between
    right = torch.cat((v * beta.unsqueeze(-1), k_beta * from_start), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_values, read_keys = solved.split([v.shape[-1], k.shape[-1]], dim=-1)

    inside = (q @ k.transpose(-1, -2)) * between
    q_start, k_end = q * from_start, (k * to_end).transpose(-1, -2)
    chunk_decay = total[..., -1].exp()[..., None, None]
    state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for c in range(q.shape[2]):
        values = new_values[:, :, c] - read_keys[:, :, c] @ state
        outputs.append(q_start[:, :, c] @ state + inside[:, :, c] @ values)
        state = state * chunk_decay[:, :, c] + k_end[:, :, c] @ values
    return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :n_tokens]


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def gated_delta_net(x: Tensor, w: DeltaNetWeights, cfg: DeltaNetConfig, eps: float) -> Tensor:
    """One layer's token mixer: `x` (B, T, H) to (B, T, H), from an empty state."""
    key_width = cfg.n_key_heads * cfg.key_dim
    value_width = cfg.n_value_heads * cfg.value_dim
    mixed = F.silu(causal_conv(F.linear(x, w.qkv), w.conv))
    q, k, v = mixed.split([key_width, key_width, value_width], dim=-1)
    repeat = cfg.n_value_heads // cfg.n_key_heads

    q = _unit(q.unflatten(-1, (cfg.n_key_heads, -1))).repeat_interleave(repeat, dim=2)
    k = _unit(k.unflatten(-1, (cfg.n_key_heads, -1))).repeat_interleave(repeat, dim=2)
    v = v.unflatten(-1, (cfg.n_value_heads, -1))
    beta = torch.sigmoid(F.linear(x, w.beta)).transpose(1, 2).float()
    log_decay = w.decay.float() * F.softplus(F.linear(x, w.alpha).float() + w.dt_bias.float())

    q, k, v = (t.transpose(1, 2).float() for t in (q, k, v))
    # The recurrence is float32 whatever the caller's autocast says: its errors accumulate.
    with torch.autocast(x.device.type, enabled=False):
        out = delta_rule_chunked(q * cfg.key_dim**-0.5, k, v, log_decay.transpose(1, 2), beta)

    out = rms_norm(out.transpose(1, 2), w.norm.float(), eps)
    gate = F.linear(x, w.gate).unflatten(-1, (cfg.n_value_heads, -1)).float()
    gate = torch.sigmoid(gate) if cfg.gate_activation == "sigmoid" else F.silu(gate)
    return F.linear((out * gate).flatten(-2).to(x.dtype), w.out)
