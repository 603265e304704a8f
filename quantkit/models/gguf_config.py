"""Geometry from and to GGUF metadata, with llama.cpp's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from quantkit.errors import ModelError
from quantkit.models.arch import architecture
from quantkit.models.config import (
    AttentionConfig,
    DeltaNetConfig,
    HyperConnectionConfig,
    IndexerConfig,
    Mixer,
    ModelConfig,
    MoeConfig,
    NgramConfig,
)

GATE_ACTIVATION = {"qwen4exp": "sigmoid", "qwen35moe": "silu"}
"""llama.cpp has no key for the output gate of Gated DeltaNet: it goes by the architecture."""
N_ROPE_SECTIONS = 4


class Pair(NamedTuple):
    """A metadata entry to write; `kind` names a GGUF value type, `item` that of an array."""

    key: str
    kind: str
    value: Any
    item: str | None = None


def config_from_gguf(metadata: Mapping[str, Any], tensor_shapes: Mapping[str, Any]) -> ModelConfig:
    """Read the geometry; `tensor_shapes` (row-major, by name) settles what metadata leaves open.

    Raises ModelError for a missing key or an unknown architecture.
    """
    arch = architecture(metadata["general.architecture"]).gguf
    get = _getter(metadata, arch)
    _check_plausible(get, arch, len(tensor_shapes))
    n_layers = get("block_count") - get("nextn_predict_layers", 0)
    hybrid = f"{arch}.ssm.conv_kernel" in metadata
    head_dim = get("attention.key_length", get("embedding_length") // get("attention.head_count"))
    return ModelConfig(
        arch=arch,
        vocab_size=tensor_shapes["token_embd.weight"][0],
        hidden=get("embedding_length"),
        n_layers=n_layers,
        context_length=get("context_length"),
        rms_eps=_float32_decimal(get("attention.layer_norm_rms_epsilon")),
        mixers=_mixers(get, n_layers, hybrid),
        attention=AttentionConfig(
            n_heads=get("attention.head_count"),
            n_kv_heads=get("attention.head_count_kv"),
            head_dim=head_dim,
            rotary_dim=get("rope.dimension_count", head_dim),
            rope_theta=float(get("rope.freq_base")),
            output_gate=hybrid,
            rope_sections=tuple(get("rope.dimension_sections", ())),
        ),
        moe=MoeConfig(
            n_experts=get("expert_count"),
            n_experts_used=get("expert_used_count"),
            inner=get("expert_feed_forward_length"),
            shared_inner=get("expert_shared_feed_forward_length", 0),
            renormalize=True,
        ),
        tied_head="output.weight" not in tensor_shapes,
        delta_net=_delta_net(get, arch) if hybrid else None,
        indexer=_indexer(get),
        hyper=_hyper(get),
        ngram=_ngram(get),
        n_mtp_layers=get("nextn_predict_layers", 0),
    )


Getter = Callable[..., Any]
_REQUIRED = object()


def _getter(metadata: Mapping[str, Any], arch: str) -> Getter:
    def get(key: str, default: Any = _REQUIRED) -> Any:
        full = f"{arch}.{key}"
        if full in metadata:
            return metadata[full]
        if default is _REQUIRED:
            raise ModelError(
                "the metadata lacks a key",
                value=full,
                rule=f"models of architecture {arch} need it",
                hint="the file was written by a converter that does not know this architecture",
            )
        return default

    return get


def _check_plausible(get: Getter, arch: str, n_tensors: int) -> None:
    """Refuse what the mathematics here does not know, and a count of layers that cannot be."""
    scaling = get("rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(
            "the metadata asks for scaled rotary embeddings",
            value=f"{arch}.rope.scaling.type = {scaling}",
            rule="none",
            hint="this variant of the architecture is not supported",
        )
    if get("block_count") > n_tensors:
        raise ModelError(
            "the metadata claims more layers than there are tensors",
            value=f"{arch}.block_count = {get('block_count')}",
            rule=f"at most {n_tensors}",
            hint="the file is damaged; get it again",
        )


def _float32_decimal(value: float) -> float:
    """The short decimal that a float32 stands for (1e-6, not 9.99999997e-07)."""
    return float(f"{value:.7g}")


def _mixers(get: Getter, n_layers: int, hybrid: bool) -> tuple[Mixer, ...]:
    if not hybrid:
        return (Mixer.ATTENTION,) * n_layers
    interval = get("full_attention_interval", 4)
    default = [(i + 1) % interval != 0 for i in range(n_layers)]
    recurrent = get("attention.recurrent_layers", default)[:n_layers]
    return tuple(Mixer.GATED_DELTA_NET if r else Mixer.ATTENTION for r in recurrent)


def _delta_net(get: Getter, arch: str) -> DeltaNetConfig:
    n_value_heads = get("ssm.time_step_rank")
    return DeltaNetConfig(
        n_key_heads=get("ssm.group_count"),
        n_value_heads=n_value_heads,
        key_dim=get("ssm.state_size"),
        value_dim=get("ssm.inner_size") // n_value_heads,
        conv_kernel=get("ssm.conv_kernel"),
        gate_activation=GATE_ACTIVATION[arch],
    )


def _indexer(get: Getter) -> IndexerConfig | None:
    # Without ratios llama.cpp attends densely, whatever the other keys say.
    blocks = set(get("attention.compress_ratios", [])) - {0}
    if len(blocks) != 1:
        return None
    return IndexerConfig(
        n_heads=get("attention.indexer.head_count"),
        head_dim=get("attention.indexer.key_length"),
        budget=get("attention.indexer.top_k"),
        block=blocks.pop(),
    )


def _hyper(get: Getter) -> HyperConnectionConfig | None:
    count = get("hyper_connection.count", 0)
    if not count:
        return None
    return HyperConnectionConfig(n_streams=count, low_rank=get("hyper_connection.low_rank"))


def _ngram(get: Getter) -> NgramConfig | None:
    layers = get("ple.layers", [])
    if not layers:
        return None
    size, per_gram = get("ple.ngram_size"), get("ple.heads_per_ngram")
    n_heads = (size - 1) * per_gram
    return NgramConfig(
        layer=layers[0],
        ngram_size=size,
        heads_per_ngram=per_gram,
        row_dim=get("embedding_length_per_layer_input"),
        conv_kernel=get("ple.conv_kernel"),
        eos_token_id=get("ple.eos_token_id"),
        multipliers=tuple(get("ple.layer_multipliers")[:size]),
        head_offsets=tuple(get("ple.head_offsets")[:n_heads]),
        head_vocab_sizes=tuple(get("ple.head_vocab_sizes")[:n_heads]),
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
