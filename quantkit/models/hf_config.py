"""Geometry from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantkit.errors import ModelError
from quantkit.models import ngram_hash
from quantkit.models.arch import architecture_of_hf
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
}
"""Settings of which the mathematics here knows one value; a config without them means that one."""
ROPE_TYPES = ("default", "mrope")
DEFAULT_ROPE_SECTIONS = (11, 11, 10)


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """Read a `config.json`, text part of a multimodal one included; ModelError if incomplete."""
    text = {**hf, **hf.get("text_config", {})}
    for alias, field in ALIASES.items():
        if alias in text:
            text.setdefault(field, text[alias])
    arch = architecture_of_hf(text.get("model_type", "none"))
    _refuse_unknown_settings(text)
    try:
        return _read(text, arch.gguf)
    except KeyError as missing:
        raise ModelError(
            "config.json lacks a field",
            value=missing.args[0],
            rule=f"{arch.gguf} needs it",
            hint="use the config.json that belongs to this checkpoint",
        ) from missing


def _refuse_unknown_settings(text: Mapping[str, Any]) -> None:
    rope = _rope(text)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
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
            value=value,
            rule=rule,
            hint="this variant of the architecture is not supported",
        )


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    return text.get("rope_parameters") or text.get("rope_scaling") or {}


def _read(text: Mapping[str, Any], arch: str) -> ModelConfig:
    n_layers = text["num_hidden_layers"]
    hybrid = "linear_num_key_heads" in text
    interval = text.get("full_attention_interval", 4) if hybrid else 1
    default_types = [
        "full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(n_layers)
    ]
    mixers = tuple(MIXERS[kind] for kind in text.get("layer_types") or default_types)
    return ModelConfig(
        arch=arch,
        vocab_size=text["vocab_size"],
        hidden=text["hidden_size"],
        n_layers=n_layers,
        context_length=text["max_position_embeddings"],
        rms_eps=text["rms_norm_eps"],
        mixers=mixers,
        attention=_attention(text, arch, output_gate=hybrid),
        moe=MoeConfig(
            n_experts=text["num_experts"],
            n_experts_used=text["num_experts_per_tok"],
            inner=text["moe_intermediate_size"],
            shared_inner=text.get("shared_expert_intermediate_size", 0),
            # Only qwen3_moe has the switch; the others always renormalise.
            renormalize=text.get("norm_topk_prob", arch != "qwen3moe"),
        ),
        tied_head=text.get("tie_word_embeddings", False),
        delta_net=_delta_net(text) if hybrid else None,
        indexer=_indexer(text),
        hyper=_hyper(text),
        ngram=_ngram(text),
        n_mtp_layers=text.get("mtp_num_hidden_layers", 0),
    )


def _attention(text: Mapping[str, Any], arch: str, *, output_gate: bool) -> AttentionConfig:
    rope = _rope(text)
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor"))
    if factor is None:
        factor = DEFAULT_ROTARY_FACTOR.get(arch, 1.0)
    rotary_dim = int(head_dim * factor)
    return AttentionConfig(
        n_heads=text["num_attention_heads"],
        n_kv_heads=text["num_key_value_heads"],
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else text["rope_theta"]),
        output_gate=output_gate,
        rope_sections=_rope_sections(rope, rotary_dim),
    )


def _rope_sections(rope: Mapping[str, Any], rotary_dim: int) -> tuple[int, ...]:
    """Pairs for time, height and width; llama.cpp wants no more of them than a head has."""
    n_pairs = rotary_dim // 2
    sections = tuple(rope.get("mrope_section", DEFAULT_ROPE_SECTIONS))
    if sum(sections) <= n_pairs:
        return sections
    return (n_pairs - 2 * (n_pairs // 3), n_pairs // 3, n_pairs // 3)


def _delta_net(text: Mapping[str, Any]) -> DeltaNetConfig:
    return DeltaNetConfig(
        n_key_heads=text["linear_num_key_heads"],
        n_value_heads=text["linear_num_value_heads"],
        key_dim=text["linear_key_head_dim"],
        value_dim=text["linear_value_head_dim"],
        conv_kernel=text["linear_conv_kernel_dim"],
        gate_activation=text.get("output_gate_type") or text.get("hidden_act", "silu"),
    )


def _indexer(text: Mapping[str, Any]) -> IndexerConfig | None:
    if text.get("indexer_n_heads") is None:
        return None
    return IndexerConfig(
        n_heads=text["indexer_n_heads"],
        head_dim=text["indexer_head_dim"],
        budget=text["indexer_budget"],
        block=text["indexer_compress_ratio"],
    )


def _hyper(text: Mapping[str, Any]) -> HyperConnectionConfig | None:
    if "hc_count" not in text:
        return None
    return HyperConnectionConfig(n_streams=text["hc_count"], low_rank=text["hc_lowrank"])


def _ngram(text: Mapping[str, Any]) -> NgramConfig | None:
    layers = text.get("ple_layer_ids") or []
    if not layers:
        return None
    if len(layers) > 1:
        raise ModelError(
            "more than one n-gram layer",
            value=layers,
            rule="one n-gram layer, as in every released model and in llama.cpp",
            hint="this checkpoint cannot be handled yet",
        )
    eos = text["eos_token_id"]
    n_heads = (text["ngram_size"] - 1) * text["heads_per_ngram"]
    sizes = ngram_hash.head_vocab_sizes(text["ngram_vocab_size_base"], n_heads)
    return NgramConfig(
        layer=layers[0] - 1,
        ngram_size=text["ngram_size"],
        heads_per_ngram=text["heads_per_ngram"],
        row_dim=(text.get("ple_embed_dim") or text["hidden_size"]) // n_heads,
        conv_kernel=text["ple_conv_kernel_size"],
        eos_token_id=eos[0] if isinstance(eos, list) else eos,
        multipliers=ngram_hash.multipliers(
            text["vocab_size"], text["ngram_size"], text.get("seed", 1234)
        ),
        head_offsets=ngram_hash.head_offsets(sizes),
        head_vocab_sizes=sizes,
    )
