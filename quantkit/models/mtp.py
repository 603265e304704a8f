"""The multi-token prediction head of `qwen4_exp`: one more layer that predicts a token further on.

It reads the trunk's last state (all streams, before the final mixer) and the embedding of the
token that came next, runs one sparse-attention layer with experts, and mixes with its own final
mixer; embedding and head are the trunk's. transformers ignores these tensors; the form is that of
the released checkpoint as SGLang runs it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from quantkit.models.layers.norm import rms_norm

MTP_PREFIX = "mtp."
MTP_LAYER_PREFIX = "mtp.layers.0."
MTP_INPUT_NAMES = {
    "norm_embedding": "pre_fc_norm_embedding.weight",
    "norm_hidden": "pre_fc_norm_hidden.weight",
    "fc_embedding": "fc_embedding.weight",
    "fc_hidden": "fc_hidden.weight",
}
"""transformers names of `MtpInputWeights`, behind `MTP_PREFIX`; the norms are stored as w - 1."""


class MtpInputWeights(NamedTuple):
    """Norm factors (H) and (S*H), projections (H, H)."""

    norm_embedding: Tensor
    norm_hidden: Tensor
    fc_embedding: Tensor
    fc_hidden: Tensor


def mtp_input(
    state: Tensor, next_embedding: Tensor, w: MtpInputWeights, n_streams: int, eps: float
) -> Tensor:
    """The layer's first state (..., S*H) from the trunk's and the next token's embedding (..., H).

    The norm runs over all streams together, unlike the grouped norms of the hyper-connections.
    """
    embedding = F.linear(rms_norm(next_embedding, w.norm_embedding, eps), w.fc_embedding)
    streams = rms_norm(state, w.norm_hidden, eps).unflatten(-1, (n_streams, -1))
    return (F.linear(streams, w.fc_hidden) + embedding.unsqueeze(-2)).flatten(-2)
