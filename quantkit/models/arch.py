"""The architectures: which roles each has. A new one is a row here, plus mathematics it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from quantkit.errors import ModelError
from quantkit.models import roles
from quantkit.models.config import Mixer, ModelConfig
from quantkit.models.roles import Role


@dataclass(frozen=True)
class Architecture:
    """The tensors of one architecture and the names it goes by."""

    gguf: str
    hf_model_types: tuple[str, ...]
    model_roles: tuple[Role, ...]
    layer_roles: tuple[Role, ...]
    attention_roles: tuple[Role, ...]
    delta_net_roles: tuple[Role, ...] = ()
    ngram_roles: tuple[Role, ...] = ()
    tokenizer_pre: str = "qwen2"
    """llama.cpp's name of the pre-tokenizer that models of this kind ship with."""

    @property
    def has_delta_net(self) -> bool:
        """Gated DeltaNet in most layers, and attention with an output gate in the others."""
        return bool(self.delta_net_roles)

    @property
    def has_hyper(self) -> bool:
        """Hyper-connections in place of layer norms."""
        return roles.HYPER_OUTPUT[0] in self.model_roles

    @property
    def has_indexer(self) -> bool:
        """Attention may be sparse."""
        return roles.INDEXER[0] in self.attention_roles

    @property
    def has_ngram(self) -> bool:
        """A layer may have a hashed n-gram embedding."""
        return bool(self.ngram_roles)

    @property
    def has_shared_expert(self) -> bool:
        """A layer may have a shared expert."""
        return roles.SHARED_EXPERT[0] in self.layer_roles


ARCHITECTURES = (
    Architecture(
        "qwen4exp",
        ("qwen4_exp_text", "qwen4_exp"),
        model_roles=(*roles.EMBEDDINGS, *roles.HYPER_OUTPUT),
        layer_roles=(*roles.HYPER_LAYER, *roles.EXPERTS, *roles.SHARED_EXPERT),
        attention_roles=(*roles.attention("plus_one"), *roles.INDEXER),
        delta_net_roles=roles.DELTA_NET,
        ngram_roles=roles.NGRAM,
        tokenizer_pre="qwen35",
    ),
    Architecture(
        "qwen35moe",
        ("qwen3_5_moe_text", "qwen3_5_moe"),
        model_roles=(*roles.EMBEDDINGS, *roles.output_norm("plus_one")),
        layer_roles=(
            *roles.layer_norms("post_attention_norm.weight", "plus_one"),
            *roles.EXPERTS,
            *roles.SHARED_EXPERT,
        ),
        attention_roles=roles.attention("plus_one"),
        delta_net_roles=roles.DELTA_NET,
        tokenizer_pre="qwen35",
    ),
    Architecture(
        "qwen3moe",
        ("qwen3_moe",),
        model_roles=(*roles.EMBEDDINGS, *roles.output_norm("same")),
        layer_roles=(*roles.layer_norms("ffn_norm.weight", "same"), *roles.EXPERTS),
        attention_roles=roles.attention("same"),
    ),
)

_BY_GGUF = {arch.gguf: arch for arch in ARCHITECTURES}
_BY_HF = {name: arch for arch in ARCHITECTURES for name in arch.hf_model_types}


def architecture(gguf_name: str) -> Architecture:
    """The architecture of that `general.architecture`; ModelError if there is none."""
    return _find(_BY_GGUF, gguf_name)


def architecture_of_hf(model_type: str) -> Architecture:
    """The architecture of that transformers `model_type`; ModelError if there is none."""
    return _find(_BY_HF, model_type)


def _find(table: dict[str, Architecture], name: str) -> Architecture:
    if name not in table:
        raise ModelError(
            f"unknown architecture '{name}'",
            value=name,
            rule=f"known are {', '.join(sorted(table))}",
            hint="check that the file is one of these models; others are not supported yet",
        )
    return table[name]


def model_roles(config: ModelConfig) -> tuple[Role, ...]:
    """Roles outside the layers, without a head of its own where the embedding is the head."""
    found = architecture(config.arch).model_roles
    if config.tied_head:
        found = tuple(role for role in found if role.name != "output")
    return (*found, roles.NGRAM_TABLE) if config.ngram else found


def layer_roles(config: ModelConfig, layer: int) -> tuple[Role, ...]:
    """Roles of one layer, the token mixer's first."""
    arch = architecture(config.arch)
    delta_net = config.mixers[layer] is Mixer.GATED_DELTA_NET
    mixer = arch.delta_net_roles if delta_net else arch.attention_roles
    if config.indexer is None:
        mixer = tuple(role for role in mixer if role not in roles.INDEXER)
    own = arch.layer_roles
    if not config.moe.shared_inner:
        own = tuple(role for role in own if role not in roles.SHARED_EXPERT)
    ngram = arch.ngram_roles if config.ngram and config.ngram.layer == layer else ()
    return (*mixer, *own, *ngram)
