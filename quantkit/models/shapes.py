"""The shape that a model's configuration gives each role, to hold a file's tensors against."""

from __future__ import annotations

from math import prod

from quantkit.models.config import (
    AttentionConfig,
    DeltaNetConfig,
    HyperConnectionConfig,
    IndexerConfig,
    ModelConfig,
    MoeConfig,
    NgramConfig,
)
from quantkit.models.roles import NGRAM_TABLE

Shape = tuple[int, ...]


def role_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Effective shape (row-major) of every role that the configuration says something about.

    The n-gram table has at least that many rows: files pad it.
    """
    found: dict[str, Shape] = {
        "token_embd": (config.vocab_size, config.hidden),
        "output": (config.vocab_size, config.hidden),
        **dict.fromkeys(("attn_norm", "ffn_norm", "output_norm"), (config.hidden,)),
        **_attention(config.attention, config.hidden),
        **_moe(config.moe, config.hidden),
    }
    if config.indexer:
        found |= _indexer(config.indexer, config.hidden)
    if config.delta_net:
        found |= _delta_net(config.delta_net, config.hidden)
    if config.hyper:
        found |= _hyper(config.hyper, config.hidden)
    if config.ngram and config.hyper:
        found |= _ngram(config.ngram, config.hyper.n_streams, config.hidden)
    return found


def _attention(a: AttentionConfig, hidden: int) -> dict[str, Shape]:
    q, kv = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
    return {
        "attn_q": (2 * q if a.output_gate else q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_out": (hidden, q),
        "attn_q_norm": (a.head_dim,),
        "attn_k_norm": (a.head_dim,),
    }


def _indexer(i: IndexerConfig, hidden: int) -> dict[str, Shape]:
    return {
        "indexer_q": (i.n_heads * i.head_dim, hidden),
        "indexer_k": (i.head_dim, hidden),
        "indexer_q_norm": (i.head_dim,),
        "indexer_k_norm": (i.head_dim,),
    }


def _delta_net(g: DeltaNetConfig, hidden: int) -> dict[str, Shape]:
    values = g.n_value_heads * g.value_dim
    channels = 2 * g.n_key_heads * g.key_dim + values
    return {
        "gdn_qkv": (channels, hidden),
        "gdn_gate": (values, hidden),
        "gdn_conv": (channels, g.conv_kernel),
        "gdn_dt_bias": (g.n_value_heads,),
        "gdn_decay": (g.n_value_heads,),
        "gdn_beta": (g.n_value_heads, hidden),
        "gdn_alpha": (g.n_value_heads, hidden),
        "gdn_norm": (g.value_dim,),
        "gdn_out": (hidden, values),
    }


def _hyper(h: HyperConnectionConfig, hidden: int) -> dict[str, Shape]:
    wide = h.n_streams * hidden
    parts: dict[str, Shape] = {
        "norm": (wide,),
        "down": (h.low_rank, wide),
        "up": (wide, h.low_rank),
        "inject": (h.n_streams, wide),
    }
    places = ("output_hc", "hc_attn", "hc_ffn")
    return {f"{place}_{part}": shape for place in places for part, shape in parts.items()}


def _moe(m: MoeConfig, hidden: int) -> dict[str, Shape]:
    return {
        "router": (m.n_experts, hidden),
        "experts_gate": (m.n_experts, m.inner, hidden),
        "experts_up": (m.n_experts, m.inner, hidden),
        "experts_down": (m.n_experts, hidden, m.inner),
        "shared_gate_row": (1, hidden),
        "shared_gate": (m.shared_inner, hidden),
        "shared_up": (m.shared_inner, hidden),
        "shared_down": (hidden, m.shared_inner),
    }


def _ngram(n: NgramConfig, n_streams: int, hidden: int) -> dict[str, Shape]:
    wide, width = n_streams * hidden, n.n_heads * n.row_dim
    norms = ("ngram_norm_key", "ngram_norm_query", "ngram_norm_conv")
    rows = (a + b for a, b in zip(n.head_offsets, n.head_vocab_sizes, strict=True))
    return {
        NGRAM_TABLE.name: (max(rows), n.row_dim),
        "ngram_key": (wide, width),
        "ngram_value": (hidden, width),
        "ngram_conv": (wide, n.conv_kernel),
        **dict.fromkeys(norms, (wide,)),
    }


def _at_least_as_many_rows(found: Shape, wanted: Shape) -> bool:
    return len(found) == 2 and found[0] >= wanted[0] and found[1] == wanted[1]


def _same_without_unit_axes(found: Shape, wanted: Shape) -> bool:
    return [n for n in found if n != 1] == [n for n in wanted if n != 1]


def fits(role: str, found: Shape, wanted: Shape) -> bool:
    """Whether a stored shape is that of the role.

    Axes of length 1 come and go between containers, and a vector may be stored by streams.
    """
    if role == NGRAM_TABLE.name:
        return _at_least_as_many_rows(found, wanted)
    if len(wanted) == 1:
        return prod(found) == wanted[0]
    return _same_without_unit_axes(found, wanted)
