"""Geometry from and to GGUF metadata, with llama.cpp's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from quantkit.errors import ModelError
from quantkit.models.arch import Architecture, architecture
from quantkit.models.config import (
    MAX_NGRAM_HEADS,
    MAX_NGRAM_SIZE,
    MAX_ROPE_THETA,
    AttentionConfig,
    DeltaNetConfig,
    HyperConnectionConfig,
    IndexerConfig,
    Mixer,
    ModelConfig,
    MoeConfig,
    NgramConfig,
)
from quantkit.models.fields import MAX_LAYERS, MAX_SIZE, Fields

GATE_ACTIVATION = {"qwen4exp": "sigmoid", "qwen35moe": "silu"}
"""llama.cpp has no key for the output gate of Gated DeltaNet: it goes by the architecture."""
N_ROPE_SECTIONS = 4
EPSILON = "attention.layer_norm_rms_epsilon"
DEFAULT_INTERVAL = 4
"""Every fourth layer attends where a file does not say which."""


class Pair(NamedTuple):
    """A metadata entry to write; `kind` names a GGUF value type, `item` that of an array."""

    key: str
    kind: str
    value: Any
    item: str | None = None


def config_from_gguf(metadata: Mapping[str, Any], tensor_shapes: Mapping[str, Any]) -> ModelConfig:
    """Read the geometry; `tensor_shapes` (row-major, by name) settles what metadata leaves open.

    Raises ModelError for a missing key, one of another type or out of range, and an unknown
    architecture.
    """
    arch = architecture(_keys(metadata).text("general.architecture"))
    keys = _keys(metadata, arch.gguf)
    _refuse_scaled_rope(keys, arch.gguf)
    vocab_size = _vocab_size(tensor_shapes)
    n_layers, n_mtp_layers = _layer_counts(keys, arch.gguf, len(tensor_shapes))
    mixers = _mixers(keys, arch, n_layers)
    return ModelConfig(
        arch=arch.gguf,
        vocab_size=vocab_size,
        hidden=keys.integer("embedding_length"),
        n_layers=n_layers,
        context_length=keys.integer("context_length"),
        rms_eps=_float32_decimal(keys.number(EPSILON, above=0, high=1)),
        mixers=mixers,
        attention=_attention(keys, arch),
        moe=_moe(keys, arch),
        tied_head="output.weight" not in tensor_shapes,
        delta_net=_delta_net(keys, arch) if arch.has_delta_net else None,
        indexer=_indexer(keys, mixers) if arch.has_indexer else None,
        hyper=_hyper(keys) if arch.has_hyper else None,
        ngram=_ngram(keys, n_layers, vocab_size) if arch.has_ngram else None,
        n_mtp_layers=n_mtp_layers,
    )


def _keys(metadata: Mapping[str, Any], arch: str | None = None) -> Fields:
    return Fields(
        metadata,
        source="the metadata",
        noun="key",
        prefix="" if arch is None else f"{arch}.",
        needed_by=f"models of architecture {arch} need it",
        hint="the file is damaged, or its converter does not know this architecture",
    )


def _refuse_scaled_rope(keys: Fields, arch: str) -> None:
    scaling = keys.text("rope.scaling.type", default="none")
    if scaling != "none":
        raise ModelError(
            "the metadata asks for scaled rotary embeddings",
            value=f"{arch}.rope.scaling.type = {scaling}",
            rule="none",
            hint="this variant of the architecture is not supported",
        )


def _vocab_size(tensor_shapes: Mapping[str, Any]) -> int:
    shape = tuple(tensor_shapes["token_embd.weight"])
    if len(shape) != 2 or not 0 < shape[0] <= MAX_SIZE:
        raise ModelError(
            "an embedding that is none",
            tensor="token_embd.weight",
            value=list(shape),
            rule="a matrix with a row for each token",
            hint="the file is damaged; get it again",
        )
    return int(shape[0])


def _layer_counts(keys: Fields, arch: str, n_tensors: int) -> tuple[int, int]:
    """Layers of the trunk, and those of the multi-token prediction head behind them."""
    # A number that no file can reach has a message of its own.
    n_blocks = keys.integer("block_count", high=2**32 - 1)
    if n_blocks > n_tensors:
        raise ModelError(
            "the metadata claims more layers than there are tensors",
            value=f"{arch}.block_count = {n_blocks}",
            rule=f"at most {n_tensors}",
            hint="the file is damaged; get it again",
        )
    n_blocks = keys.integer("block_count", high=MAX_LAYERS)
    n_mtp_layers = keys.integer("nextn_predict_layers", low=0, high=n_blocks - 1, default=0)
    return n_blocks - n_mtp_layers, n_mtp_layers


def _float32_decimal(value: float) -> float:
    """The short decimal that a float32 stands for (1e-6, not 9.99999997e-07)."""
    return float(f"{value:.7g}")


def _mixers(keys: Fields, arch: Architecture, n_layers: int) -> tuple[Mixer, ...]:
    if not arch.has_delta_net:
        return (Mixer.ATTENTION,) * n_layers
    interval = keys.integer("full_attention_interval", default=DEFAULT_INTERVAL)
    default = tuple((i + 1) % interval != 0 for i in range(n_layers))
    recurrent = keys.flags("attention.recurrent_layers", first=n_layers, default=default)
    return tuple(Mixer.GATED_DELTA_NET if r else Mixer.ATTENTION for r in recurrent)


def _attention(keys: Fields, arch: Architecture) -> AttentionConfig:
    n_kv_heads = keys.integer("attention.head_count_kv")
    n_heads = keys.integer("attention.head_count", multiple_of=n_kv_heads)
    head_dim = keys.integer(
        "attention.key_length", default=keys.integer("embedding_length") // n_heads
    )
    return AttentionConfig(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        rotary_dim=keys.integer(
            "rope.dimension_count", low=2, high=head_dim, multiple_of=2, default=head_dim
        ),
        rope_theta=keys.number("rope.freq_base", above=0, high=MAX_ROPE_THETA),
        output_gate=arch.has_delta_net,
        rope_sections=keys.integers("rope.dimension_sections", default=()),
    )


def _moe(keys: Fields, arch: Architecture) -> MoeConfig:
    n_experts = keys.integer("expert_count")
    shared = "expert_shared_feed_forward_length"
    return MoeConfig(
        n_experts=n_experts,
        n_experts_used=keys.integer("expert_used_count", high=n_experts),
        inner=keys.integer("expert_feed_forward_length"),
        shared_inner=keys.integer(shared, low=0, default=0) if arch.has_shared_expert else 0,
        renormalize=True,
    )


def _delta_net(keys: Fields, arch: Architecture) -> DeltaNetConfig:
    n_key_heads = keys.integer("ssm.group_count")
    n_value_heads = keys.integer("ssm.time_step_rank", multiple_of=n_key_heads)
    return DeltaNetConfig(
        n_key_heads=n_key_heads,
        n_value_heads=n_value_heads,
        key_dim=keys.integer("ssm.state_size"),
        value_dim=keys.integer("ssm.inner_size", multiple_of=n_value_heads) // n_value_heads,
        conv_kernel=keys.integer("ssm.conv_kernel"),
        gate_activation=GATE_ACTIVATION[arch.gguf],
    )


def _indexer(keys: Fields, mixers: tuple[Mixer, ...]) -> IndexerConfig | None:
    ratios = keys.integers("attention.compress_ratios", first=len(mixers), default=())
    blocks = {r for r, mixer in zip(ratios, mixers, strict=False) if mixer is Mixer.ATTENTION}
    # Without ratios llama.cpp attends densely, whatever the other keys say.
    if blocks <= {0}:
        return None
    if len(blocks) > 1:
        rule = "one block size for all attention layers"
        raise keys.invalid("attention.compress_ratios", list(ratios), rule)
    block = blocks.pop()
    return IndexerConfig(
        n_heads=keys.integer("attention.indexer.head_count"),
        head_dim=keys.integer("attention.indexer.key_length"),
        budget=keys.integer("attention.indexer.top_k", multiple_of=block),
        block=block,
    )


def _hyper(keys: Fields) -> HyperConnectionConfig:
    return HyperConnectionConfig(
        # One stream has nothing to mix; transformers and llama.cpp refuse it.
        n_streams=keys.integer("hyper_connection.count", low=2),
        low_rank=keys.integer("hyper_connection.low_rank"),
    )


def _ngram(keys: Fields, n_layers: int, vocab_size: int) -> NgramConfig | None:
    layers = keys.integers("ple.layers", high=n_layers - 1, default=())
    if not layers:
        return None
    if len(layers) > 1:
        raise keys.invalid("ple.layers", list(layers), "one n-gram layer, as in llama.cpp")
    size = keys.integer("ple.ngram_size", low=2, high=MAX_NGRAM_SIZE)
    per_gram = keys.integer("ple.heads_per_ngram", high=MAX_NGRAM_HEADS // (size - 1))
    n_heads = (size - 1) * per_gram
    return NgramConfig(
        layer=layers[0],
        ngram_size=size,
        heads_per_ngram=per_gram,
        row_dim=keys.integer("embedding_length_per_layer_input"),
        conv_kernel=keys.integer("ple.conv_kernel"),
        eos_token_id=keys.integer("ple.eos_token_id", low=0, high=vocab_size - 1),
        multipliers=keys.integers("ple.layer_multipliers", low=1, high=2**63 - 1, first=size),
        head_offsets=keys.integers("ple.head_offsets", high=2**62, first=n_heads),
        head_vocab_sizes=keys.integers("ple.head_vocab_sizes", low=1, high=2**62, first=n_heads),
    )


def gguf_pairs(c: ModelConfig) -> list[Pair]:
    """The metadata that describes the geometry, in the order of llama.cpp's converter."""
    a, m = c.attention, c.moe
    pairs = [
        Pair("block_count", "UINT32", c.n_layers),
        Pair("context_length", "UINT32", c.context_length),
        Pair("embedding_length", "UINT32", c.hidden),
        Pair("attention.head_count", "UINT32", a.n_heads),
        Pair("attention.head_count_kv", "UINT32", a.n_kv_heads),
        Pair("rope.freq_base", "FLOAT32", a.rope_theta),
        Pair("attention.layer_norm_rms_epsilon", "FLOAT32", c.rms_eps),
        Pair("expert_count", "UINT32", m.n_experts),
        Pair("expert_used_count", "UINT32", m.n_experts_used),
        Pair("attention.key_length", "UINT32", a.head_dim),
        Pair("attention.value_length", "UINT32", a.head_dim),
        Pair("expert_feed_forward_length", "UINT32", m.inner),
        Pair("rope.dimension_count", "UINT32", a.rotary_dim),
        *_shared_pairs(c),
        *_delta_net_pairs(c),
        *_qwen4_pairs(c),
    ]
    return [pair._replace(key=f"{c.arch}.{pair.key}") for pair in pairs]


def _shared_pairs(c: ModelConfig) -> list[Pair]:
    if not c.moe.shared_inner:
        return []
    return [Pair("expert_shared_feed_forward_length", "UINT32", c.moe.shared_inner)]


def _delta_net_pairs(c: ModelConfig) -> list[Pair]:
    g = c.delta_net
    if g is None:
        return []
    sections = [*c.attention.rope_sections, 0, 0, 0, 0][:N_ROPE_SECTIONS]
    recurrent = [mixer is Mixer.GATED_DELTA_NET for mixer in c.mixers]
    interval = recurrent.index(False) + 1 if False in recurrent else c.n_layers + 1
    return [
        Pair("rope.dimension_sections", "ARRAY", sections, "INT32"),
        Pair("ssm.conv_kernel", "UINT32", g.conv_kernel),
        Pair("ssm.state_size", "UINT32", g.key_dim),
        Pair("ssm.group_count", "UINT32", g.n_key_heads),
        Pair("ssm.time_step_rank", "UINT32", g.n_value_heads),
        Pair("ssm.inner_size", "UINT32", g.value_dim * g.n_value_heads),
        Pair("attention.recurrent_layers", "ARRAY", recurrent, "BOOL"),
        Pair("full_attention_interval", "UINT32", interval),
    ]


def _qwen4_pairs(c: ModelConfig) -> list[Pair]:
    pairs: list[Pair] = []
    if c.hyper:
        pairs += [
            Pair("hyper_connection.count", "UINT32", c.hyper.n_streams),
            Pair("hyper_connection.low_rank", "UINT32", c.hyper.low_rank),
        ]
    if c.indexer:
        ratios = [c.indexer.block if m is Mixer.ATTENTION else 0 for m in c.mixers]
        pairs += [
            Pair("attention.indexer.head_count", "UINT32", c.indexer.n_heads),
            Pair("attention.indexer.key_length", "UINT32", c.indexer.head_dim),
            Pair("attention.indexer.top_k", "UINT32", c.indexer.budget),
            Pair("attention.compress_ratios", "ARRAY", ratios, "INT32"),
        ]
    if c.ngram:
        n = c.ngram
        pairs += [
            Pair("ple.layers", "ARRAY", [n.layer], "INT32"),
            Pair("ple.ngram_size", "UINT32", n.ngram_size),
            Pair("ple.heads_per_ngram", "UINT32", n.heads_per_ngram),
            Pair("ple.conv_kernel", "UINT32", n.conv_kernel),
            Pair("ple.eos_token_id", "UINT32", n.eos_token_id),
            Pair("embedding_length_per_layer_input", "UINT32", n.row_dim),
            Pair("ple.layer_multipliers", "ARRAY", list(n.multipliers), "UINT64"),
            Pair("ple.head_offsets", "ARRAY", list(n.head_offsets), "UINT64"),
            Pair("ple.head_vocab_sizes", "ARRAY", list(n.head_vocab_sizes), "UINT64"),
        ]
    return pairs
