"""Geometry from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantkit.errors import ModelError
from quantkit.models import ngram_hash
from quantkit.models.arch import Architecture, architecture_of_hf
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
from quantkit.models.fields import MAX_LAYERS, Fields, shown

MIXERS = {
    "linear_attention": Mixer.GATED_DELTA_NET,
    "full_attention": Mixer.ATTENTION,
    "indexed_attention": Mixer.ATTENTION,
}
DEFAULT_ROTARY_FACTOR = {"qwen35moe": 0.25}
"""Share of a head that is rotated where a config does not say; all of it for the others."""
ALIASES = {"num_local_experts": "num_experts"}
"""Fields that transformers 5 saves under another name than the released checkpoints have."""
ONLY_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "indexer_kv_heads": 1,
}
"""Settings of which the mathematics here knows one value; a config without them means that one."""
ROPE_TYPES = ("default", "mrope")
DEFAULT_ROPE_SECTIONS = (11, 11, 10)
DEFAULT_INTERVAL = 4
DEFAULT_SEED = 1234
INDEXER_FIELDS = (
    "indexer_n_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)
"""All or none of them."""


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json`, text part of a multimodal one included.

    Raises ModelError for a missing field, one of another type or out of range, and an unknown
    architecture.
    """
    whole = _fields(hf)
    text = {**hf, **whole.section("text_config").entries()}
    for alias, field in ALIASES.items():
        if alias in text:
            text.setdefault(field, text[alias])
    arch = architecture_of_hf(_fields(text).text("model_type", default="none"))
    fields = _fields(text, arch.gguf)
    _refuse_unknown_settings(fields)
    return _read(fields, arch)


def _fields(found: Mapping[str, Any], arch: str | None = None) -> Fields:
    return Fields(
        found,
        source="config.json",
        needed_by=f"{arch} needs it",
        hint="use the config.json that belongs to this checkpoint",
    )


def _refuse_unknown_settings(fields: Fields) -> None:
    rope, text = _rope(fields), fields.entries()
    rope_type = rope.text("rope_type", default=rope.text("type", default="default"))
    found = [
        (field, text[field], f"only {value!r}")
        for field, value in ONLY_VALUES.items()
        if text.get(field) is not None and text[field] != value
    ]
    if rope_type not in ROPE_TYPES:
        found.append(("rope_type", rope_type, f"only {' or '.join(ROPE_TYPES)}"))
    for field, value, rule in found:
        raise ModelError(
            f"config.json has a setting that cannot be run faithfully ({field})",
            value=shown(value),
            rule=rule,
            hint="this variant of the architecture is not supported",
        )


def _rope(fields: Fields) -> Fields:
    return fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")


def _read(fields: Fields, arch: Architecture) -> ModelConfig:
    n_layers = fields.integer("num_hidden_layers", high=MAX_LAYERS)
    vocab_size = fields.integer("vocab_size")
    eos = _token_ids(fields, vocab_size)
    return ModelConfig(
        arch=arch.gguf,
        vocab_size=vocab_size,
        hidden=fields.integer("hidden_size"),
        n_layers=n_layers,
        context_length=fields.integer("max_position_embeddings"),
        rms_eps=fields.number("rms_norm_eps", above=0, high=1),
        mixers=_mixers(fields, arch, n_layers),
        attention=_attention(fields, arch),
        moe=_moe(fields, arch),
        tied_head=fields.flag("tie_word_embeddings", default=False),
        delta_net=_delta_net(fields) if arch.has_delta_net else None,
        indexer=_indexer(fields) if arch.has_indexer else None,
        hyper=_hyper(fields) if arch.has_hyper else None,
        ngram=_ngram(fields, n_layers, vocab_size, eos) if arch.has_ngram else None,
        n_mtp_layers=fields.integer("mtp_num_hidden_layers", low=0, high=MAX_LAYERS, default=0),
    )


def _token_ids(fields: Fields, vocab_size: int) -> int | None:
    """The first token that ends a text, after a look at every special token."""
    found: dict[str, tuple[int, ...]] = {}
    for key in ("bos_token_id", "pad_token_id", "eos_token_id"):
        if isinstance(fields.value(key), list):
            found[key] = fields.integers(key, high=vocab_size - 1)
        elif fields.has(key):
            found[key] = (fields.integer(key, low=0, high=vocab_size - 1),)
        if found.get(key) == ():
            raise fields.invalid(key, [], "a token, or a list of at least one")
    return found["eos_token_id"][0] if "eos_token_id" in found else None


def _mixers(fields: Fields, arch: Architecture, n_layers: int) -> tuple[Mixer, ...]:
    kinds = fields.texts("layer_types", default=())
    if not fields.has("layer_types"):
        default = DEFAULT_INTERVAL if arch.has_delta_net else 1
        interval = fields.integer("full_attention_interval", default=default)
        kinds = tuple(
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(n_layers)
        )
    known = [
        kind for kind, mixer in MIXERS.items() if mixer is Mixer.ATTENTION or arch.has_delta_net
    ]
    if len(kinds) != n_layers or not set(kinds) <= set(known):
        rule = f"one of {', '.join(known)} for each of {n_layers} layers"
        raise fields.invalid("layer_types", list(kinds), rule)
    return tuple(MIXERS[kind] for kind in kinds)


def _moe(fields: Fields, arch: Architecture) -> MoeConfig:
    n_experts = fields.integer("num_experts")
    shared = "shared_expert_intermediate_size"
    return MoeConfig(
        n_experts=n_experts,
        n_experts_used=fields.integer("num_experts_per_tok", high=n_experts),
        inner=fields.integer("moe_intermediate_size"),
        shared_inner=fields.integer(shared, low=0, default=0) if arch.has_shared_expert else 0,
        # Only qwen3_moe has the switch; the others always renormalise.
        renormalize=fields.flag("norm_topk_prob", default=arch.gguf != "qwen3moe"),
    )


def _attention(fields: Fields, arch: Architecture) -> AttentionConfig:
    rope = _rope(fields)
    n_kv_heads = fields.integer("num_key_value_heads")
    n_heads = fields.integer("num_attention_heads", multiple_of=n_kv_heads)
    head_dim = fields.integer("head_dim", default=fields.integer("hidden_size") // n_heads)
    rotary_dim = _rotary_dim(fields, rope, arch, head_dim)
    theta = rope if rope.has("rope_theta") else fields
    return AttentionConfig(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta.number("rope_theta", above=0, high=MAX_ROPE_THETA),
        output_gate=arch.has_delta_net,
        rope_sections=_rope_sections(rope, rotary_dim),
    )


def _rotary_dim(fields: Fields, rope: Fields, arch: Architecture, head_dim: int) -> int:
    key = "partial_rotary_factor"
    place = rope if rope.has(key) else fields
    factor = place.number(key, above=0, high=1, default=DEFAULT_ROTARY_FACTOR.get(arch.gguf, 1.0))
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2:
        raise place.invalid(key, factor, f"an even number of the {head_dim} values of a head")
    return rotary_dim


def _rope_sections(rope: Fields, rotary_dim: int) -> tuple[int, ...]:
    """Pairs for time, height and width; llama.cpp wants no more of them than a head has."""
    n_pairs = rotary_dim // 2
    sections = rope.integers("mrope_section", default=DEFAULT_ROPE_SECTIONS)
    if sum(sections) <= n_pairs:
        return sections
    return (n_pairs - 2 * (n_pairs // 3), n_pairs // 3, n_pairs // 3)


def _delta_net(fields: Fields) -> DeltaNetConfig:
    n_key_heads = fields.integer("linear_num_key_heads")
    gate = "output_gate_type" if fields.has("output_gate_type") else "hidden_act"
    return DeltaNetConfig(
        n_key_heads=n_key_heads,
        n_value_heads=fields.integer("linear_num_value_heads", multiple_of=n_key_heads),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim"),
        gate_activation=fields.text(gate, choices=("sigmoid", "silu"), default="silu"),
    )


def _indexer(fields: Fields) -> IndexerConfig | None:
    if not any(fields.has(key) for key in INDEXER_FIELDS):
        return None
    block = fields.integer("indexer_compress_ratio")
    return IndexerConfig(
        n_heads=fields.integer("indexer_n_heads"),
        head_dim=fields.integer("indexer_head_dim"),
        budget=fields.integer("indexer_budget", multiple_of=block),
        block=block,
    )


def _hyper(fields: Fields) -> HyperConnectionConfig:
    return HyperConnectionConfig(
        # One stream has nothing to mix; transformers and llama.cpp refuse it.
        n_streams=fields.integer("hc_count", low=2),
        low_rank=fields.integer("hc_lowrank"),
    )


def _ngram(
    fields: Fields, n_layers: int, vocab_size: int, eos_token_id: int | None
) -> NgramConfig | None:
    layers = fields.integers("ple_layer_ids", low=1, high=n_layers, default=())
    if not layers:
        return None
    if len(layers) > 1:
        raise ModelError(
            "more than one n-gram layer",
            value=shown(list(layers)),
            rule="one n-gram layer, as in every released model and in llama.cpp",
            hint="this checkpoint cannot be handled yet",
        )
    if eos_token_id is None:
        raise fields.missing("eos_token_id")
    ngram_size = fields.integer("ngram_size", low=2, high=MAX_NGRAM_SIZE)
    per_gram = fields.integer("heads_per_ngram", high=MAX_NGRAM_HEADS // (ngram_size - 1))
    n_heads = (ngram_size - 1) * per_gram
    sizes = ngram_hash.head_vocab_sizes(fields.integer("ngram_vocab_size_base"), n_heads)
    seed = fields.integer("seed", low=-(2**63), high=2**63 - 1, default=DEFAULT_SEED)
    return NgramConfig(
        layer=layers[0] - 1,
        ngram_size=ngram_size,
        heads_per_ngram=per_gram,
        row_dim=fields.integer("ple_embed_dim", default=fields.integer("hidden_size")) // n_heads,
        conv_kernel=fields.integer("ple_conv_kernel_size"),
        eos_token_id=eos_token_id,
        multipliers=ngram_hash.multipliers(vocab_size, ngram_size, seed),
        head_offsets=ngram_hash.head_offsets(sizes),
        head_vocab_sizes=sizes,
    )
