"""The embedded model as a trainable module over quantkit's own layer mathematics.

Parameters are held by role in transformers' stored form, so that export is a renaming. What
differs from inference: experts run densely (24 small experts fused into one wide product are
faster on a GPU than any routing, and the unchosen ones are multiplied by zero), attention keeps
its probabilities for the indexer to learn from, and the MTP head is trained beside the trunk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quantkit.models import arch, roles
from quantkit.models.config import Mixer, ModelConfig
from quantkit.models.layers.attention import (
    AttentionWeights,
    IndexerWeights,
    block_scores,
    index_keys,
    project_heads,
    selected_tokens,
)
from quantkit.models.layers.hyper_connection import read_streams, write_streams
from quantkit.models.layers.moe import shared_expert
from quantkit.models.layers.ngram import NgramWeights, ngram_inject, ngram_rows
from quantkit.models.mtp import MtpInputWeights, mtp_input
from quantkit.models.roles import Role
from quantkit.models.shapes import Shape, role_shapes
from quantkit.models.transforms import HF_FORMS
from quantkit.models.trunk import (
    ATTENTION,
    INDEXER,
    NGRAM,
    embed,
    final_hidden,
    hyper_weights,
    mix_tokens,
    shared_weights,
)

INIT_STD = 0.02
TABLE_ROWS = 128


class Losses(NamedTuple):
    """Means over the batch, in nats per token (or per query for the indexer)."""

    trunk: Tensor
    mtp: Tensor
    balance: Tensor
    indexer: Tensor


def stored_shapes(c: ModelConfig) -> dict[str, Shape]:
    """Shape of every role as transformers stores it: convolutions have a unit axis in the middle.

    The n-gram table is padded to whole blocks of rows, as `make_ngram_vocab_size_divisible_by`
    asks for.
    """
    shapes = role_shapes(c)
    for role in ("gdn_conv", "ngram_conv"):
        channels, kernel = shapes[role]
        shapes[role] = (channels, 1, kernel)
    rows, width = shapes["ngram_table"]
    shapes["ngram_table"] = (-(-rows // TABLE_ROWS) * TABLE_ROWS, width)
    return shapes


def initial_value(role: Role, shape: Shape, c: ModelConfig) -> Tensor:
    """The starting value of a parameter, in transformers' stored form."""
    assert c.delta_net
    if role.hf_form == "plus_one" or role.name == "ngram_conv":
        return torch.zeros(shape)
    if role.name in ("gdn_norm", "gdn_dt_bias"):
        return torch.ones(shape)
    if role.name == "gdn_decay":
        return torch.empty(shape).uniform_(0.01, 16).log()
    if role.name == "gdn_conv":
        return torch.empty(shape).uniform_(-1, 1) * c.delta_net.conv_kernel**-0.5
    # What writes into the residual starts smaller, as 2 x layers of them add up (GPT-2).
    writes = role.name in ("gdn_out", "attn_out", "experts_down", "shared_down", "ngram_value")
    return torch.randn(shape) * INIT_STD * ((2 * c.n_layers) ** -0.5 if writes else 1.0)


class Block(nn.Module):
    """One layer's parameters; `self[role]` is the effective value."""

    def __init__(self, found: tuple[Role, ...], c: ModelConfig) -> None:
        super().__init__()
        shapes = stored_shapes(c)
        self.forms = {role.name: HF_FORMS[role.hf_form] for role in found}
        self.stored = nn.ParameterDict(
            {r.name: nn.Parameter(initial_value(r, shapes[r.name], c)) for r in found}
        )

    def __getitem__(self, role: str) -> Tensor:
        return self.forms[role](self.stored[role])


def dense_experts(x: Tensor, w: Block, c: ModelConfig) -> tuple[Tensor, Tensor]:
    """Routed experts of `x` (N, H) as one wide MLP, and Switch's load-balance term."""
    m = c.moe
    probabilities = torch.softmax(F.linear(x, w["router"]).float(), dim=-1)
    weights, chosen = probabilities.topk(m.n_experts_used, dim=-1)
    weights = weights / weights.sum(-1, keepdim=True)
    dense = torch.zeros_like(probabilities).scatter(-1, chosen, weights).to(x.dtype)
    inner = F.silu(F.linear(x, w["experts_gate"].flatten(0, 1)))
    inner = inner * F.linear(x, w["experts_up"].flatten(0, 1))
    inner = (inner.unflatten(-1, (m.n_experts, m.inner)) * dense.unsqueeze(-1)).flatten(-2)
    down = w["experts_down"].transpose(0, 1).flatten(1)
    load = (dense > 0).float().mean(0) / m.n_experts_used
    balance = m.n_experts * (load * probabilities.mean(0)).sum()
    return F.linear(inner, down), balance


def attention_with_indexer(
    x: Tensor, w: Block, c: ModelConfig, sparse: bool
) -> tuple[Tensor, Tensor]:
    """Attention of `x` (B, T, H), dense or over the indexer's choice, and the indexer's loss.

    The indexer learns the share of the dense attention (mean over heads) that falls on each
    whole block, by KL; its input is detached, so it never pulls on the trunk.
    """
    assert c.indexer
    n = x.shape[1]
    q, k, v, gate = project_heads(
        x, AttentionWeights(*(w[r] for r in ATTENTION)), c.attention, c.rms_eps
    )
    repeat = c.attention.n_heads // c.attention.n_kv_heads
    k, v = (t.repeat_interleave(repeat, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).float() * c.attention.head_dim**-0.5
    causal = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    dense = scores.softmax(-1)

    rotary = (c.attention.rotary_dim, c.attention.rope_theta)
    index_weights = IndexerWeights(*(w[r] for r in INDEXER))
    index = index_keys(x.detach(), index_weights, c.indexer, rotary, c.rms_eps)
    index_scores = block_scores(index, 0, n, c.indexer.block).float()
    whole = index_scores.shape[-1] * c.indexer.block
    target = dense.detach().mean(1)[..., :whole].unflatten(-1, (-1, c.indexer.block)).sum(-1)
    # The first queries see no whole block; leave their rows out before any logarithm.
    rows = slice(c.indexer.block, None)
    complete = index_scores[:, rows] > float("-inf")
    target = target[:, rows] * complete
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-9)
    log_choice = index_scores[:, rows].log_softmax(-1).masked_fill(~complete, 0.0)
    loss = (torch.xlogy(target, target) - target * log_choice).sum(-1).mean()

    if sparse:
        visible = selected_tokens(index_scores.detach(), 0, n, c.indexer)
        dense = scores.masked_fill(~visible.unsqueeze(1), float("-inf")).softmax(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", dense.to(v.dtype), v) * torch.sigmoid(gate)
    return F.linear(out.flatten(-2), w["attn_out"]), loss


class EmbeddedModel(nn.Module):
    """Trunk and MTP head; `forward` gives the losses of a batch of windows.

    In training mode what a token mixer writes into the residual is dropped out with
    `mixer_dropout`, and a token's n-gram rows all together with `ngram_dropout`: the table is what
    memorises first. What the experts write is left alone: dropout there trains a robustness to
    just the error that quantized experts make.
    """

    def __init__(
        self, c: ModelConfig, *, mixer_dropout: float = 0.0, ngram_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.c = c
        self.mixer_dropout, self.ngram_dropout = mixer_dropout, ngram_dropout
        self.top = Block(arch.model_roles(c), c)
        self.layers = nn.ModuleList(Block(arch.layer_roles(c, i), c) for i in range(c.n_layers))
        mtp_layer = c.mixers.index(Mixer.ATTENTION)
        self.mtp_layer = mtp_layer
        self.mtp = Block((*arch.layer_roles(c, mtp_layer), *roles.HYPER_OUTPUT), c)
        streams = role_shapes(c)["hc_attn_norm"][0]
        self.mtp_input = nn.ParameterDict(
            {
                "norm_embedding": nn.Parameter(torch.zeros(c.hidden)),
                "norm_hidden": nn.Parameter(torch.zeros(streams)),
                "fc_embedding": nn.Parameter(torch.randn(c.hidden, c.hidden) * INIT_STD),
                "fc_hidden": nn.Parameter(torch.randn(c.hidden, c.hidden) * INIT_STD),
            }
        )

    def run_layer(
        self, state: Tensor, rows: Tensor | None, w: Block, layer: int, sparse: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """State after one layer, its balance term, its indexer loss."""
        c = self.c
        assert c.hyper
        assert c.ngram
        n_streams, eps = c.hyper.n_streams, c.rms_eps
        if rows is not None:
            weights = NgramWeights(*(w[r] for r in NGRAM))
            keep = F.dropout(torch.ones_like(rows[..., :1]), self.ngram_dropout, self.training)
            rows = rows * (keep > 0)
            state = state + ngram_inject(state, rows, weights, c.ngram, n_streams, eps)
        x, write = read_streams(state, hyper_weights(w, "hc_attn"), n_streams, eps)
        indexer_loss = state.new_zeros((), dtype=torch.float32)
        if c.mixers[layer] is Mixer.ATTENTION:
            y, indexer_loss = attention_with_indexer(x, w, c, sparse)
        else:
            y = mix_tokens(x, layer, w, c)
        assert write is not None
        state = write_streams(state, F.dropout(y, self.mixer_dropout, self.training), write)
        x, write = read_streams(state, hyper_weights(w, "hc_ffn"), n_streams, eps)
        flat = x.flatten(0, 1)
        y, balance = dense_experts(flat, w, c)
        y = y + shared_expert(flat, shared_weights(w))
        assert write is not None
        return write_streams(state, y.view_as(x), write), balance, indexer_loss

    def trunk(self, tokens: Tensor, sparse: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Last state (B, T, S*H) of `tokens` (B, T), summed balance and indexer losses."""
        c = self.c
        assert c.ngram
        state = embed(tokens, self.top["token_embd"], c)
        hashed = ngram_rows(tokens, c.ngram)
        balance = state.new_zeros((), dtype=torch.float32)
        indexer = balance
        for i, w in enumerate(self.layers):
            rows = None
            if i == c.ngram.layer:
                rows = F.embedding(hashed, self.top["ngram_table"]).flatten(-2)
            state, b, j = self.run_layer(state, rows, w, i, sparse)
            balance, indexer = balance + b, indexer + j
        return state, balance / c.n_layers, indexer

    def logits(self, state: Tensor, w: Block) -> Tensor:
        """Scores (..., vocab) with the trunk's head behind `w`'s final mixer."""
        return F.linear(final_hidden(state, w, self.c), self.top["output"])

    def forward(self, window: Tensor, sparse: bool) -> Losses:
        """Losses of `window` (B, T + 2): T positions, their next tokens and the ones after."""
        tokens, following, second = window[:, :-2], window[:, 1:-1], window[:, 2:]
        state, balance, indexer = self.trunk(tokens, sparse)
        trunk = self.cross_entropy(self.logits(state, self.top), following)

        # The head must not pull on the trunk: its inputs and the shared head are detached.
        assert self.c.hyper
        w = MtpInputWeights(
            1 + self.mtp_input["norm_embedding"],
            1 + self.mtp_input["norm_hidden"],
            self.mtp_input["fc_embedding"],
            self.mtp_input["fc_hidden"],
        )
        next_embedding = F.embedding(following, self.top["token_embd"]).detach()
        state = mtp_input(state.detach(), next_embedding, w, self.c.hyper.n_streams, self.c.rms_eps)
        state, mtp_balance, mtp_indexer = self.run_layer(
            state, None, self.mtp, self.mtp_layer, sparse
        )
        hidden = final_hidden(state, self.mtp, self.c)
        mtp = self.cross_entropy(F.linear(hidden, self.top["output"].detach()), second)
        return Losses(trunk, mtp, balance + mtp_balance, indexer + mtp_indexer)

    @staticmethod
    def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
        """Mean over all positions."""
        return F.cross_entropy(logits.flatten(0, -2).float(), target.flatten().long())
