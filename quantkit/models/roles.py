"""Roles: what a tensor is for, in words of ours, and its name and form in each container.

The mathematics asks for tensors by role and gets the *effective* value: full norm factors, decay
rates, value heads grouped by key head, plain matrices. `Role.hf_form` says how transformers'
stored value becomes the effective one, `Role.gguf_layout` how llama.cpp orders its value heads.
Names follow llama.cpp's `src/models/` and `conversion/`, and transformers' modules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """One tensor of a layer, or of the model where `per_layer` is false."""

    name: str
    gguf: str
    hf: str
    hf_form: str = "same"
    """Key of `transforms.HF_FORMS`."""
    hf_part: str = "all"
    """Key of `transforms.HF_PARTS`: the rows of the stored tensor that are this role."""
    gguf_layout: str = "same"
    """Key of `transforms.GGUF_LAYOUTS`."""
    float32: bool = False
    """Kept in F32 in a GGUF whatever the file's type."""
    per_layer: bool = True
    hf_single: str | None = None
    """Name of one expert's part where a checkpoint stores experts one by one (`{expert}`)."""

    def gguf_name(self, layer: int | None = None) -> str:
        """Full name in a GGUF."""
        return f"blk.{layer}.{self.gguf}" if self.per_layer else self.gguf


def _norm(name: str, gguf: str, hf: str, form: str = "plus_one", *, per_layer: bool = True) -> Role:
    return Role(name, gguf, hf, hf_form=form, float32=True, per_layer=per_layer)


def _hyper(name: str, gguf: str, hf: str, *, inject: bool, per_layer: bool) -> tuple[Role, ...]:
    roles = [
        _norm(f"{name}_norm", f"{gguf}_norm.weight", f"{hf}.hc_norm.weight", per_layer=per_layer),
        Role(
            f"{name}_down",
            f"{gguf}_down.weight",
            f"{hf}.input_mix_weight_down.weight",
            per_layer=per_layer,
        ),
        Role(
            f"{name}_up",
            f"{gguf}_up.weight",
            f"{hf}.input_mix_weight_up.weight",
            per_layer=per_layer,
        ),
    ]
    if inject:
        inject_name = f"{hf}.block_inject_weight.weight"
        roles.append(Role(f"{name}_inject", f"{gguf}_inject.weight", inject_name))
    return tuple(roles)


EMBEDDINGS = (
    Role("token_embd", "token_embd.weight", "embed_tokens.weight", per_layer=False),
    Role("output", "output.weight", "lm_head.weight", per_layer=False),
)

HYPER_OUTPUT = _hyper(
    "output_hc", "output_hc", "hyper_connection_mixer", inject=False, per_layer=False
)

HYPER_LAYER = (
    *_hyper("hc_attn", "hc_attn", "attn_hyper_connection", inject=True, per_layer=True),
    *_hyper("hc_ffn", "hc_ffn", "mlp_hyper_connection", inject=True, per_layer=True),
)


def layer_norms(ffn_gguf: str, form: str) -> tuple[Role, ...]:
    """The two norms of a plain residual layer."""
    return (
        _norm("attn_norm", "attn_norm.weight", "input_layernorm.weight", form),
        _norm("ffn_norm", ffn_gguf, "post_attention_layernorm.weight", form),
    )


def output_norm(form: str) -> tuple[Role, ...]:
    """The norm before the head of a plain residual model."""
    return (_norm("output_norm", "output_norm.weight", "norm.weight", form, per_layer=False),)


def attention(norm_form: str) -> tuple[Role, ...]:
    """Grouped-query attention with head norms."""
    return (
        Role("attn_q", "attn_q.weight", "self_attn.q_proj.weight"),
        Role("attn_k", "attn_k.weight", "self_attn.k_proj.weight"),
        Role("attn_v", "attn_v.weight", "self_attn.v_proj.weight"),
        Role("attn_out", "attn_output.weight", "self_attn.o_proj.weight"),
        _norm("attn_q_norm", "attn_q_norm.weight", "self_attn.q_norm.weight", norm_form),
        _norm("attn_k_norm", "attn_k_norm.weight", "self_attn.k_norm.weight", norm_form),
    )


_INDEX_QK = "self_attn.indexer.index_qk_proj.weight"
INDEXER = (
    Role("indexer_q", "indexer.q_proj.weight", _INDEX_QK, hf_part="indexer_q"),
    Role("indexer_k", "indexer.k_proj.weight", _INDEX_QK, hf_part="indexer_k"),
    _norm("indexer_q_norm", "indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight"),
    _norm("indexer_k_norm", "indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight"),
)

DELTA_NET = (
    Role(
        "gdn_qkv", "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", gguf_layout="qkv_value_rows"
    ),
    Role("gdn_gate", "attn_gate.weight", "linear_attn.in_proj_z.weight", gguf_layout="value_rows"),
    Role(
        "gdn_conv",
        "ssm_conv1d.weight",
        "linear_attn.conv1d.weight",
        hf_form="squeeze",
        gguf_layout="qkv_value_rows",
        float32=True,
    ),
    Role("gdn_dt_bias", "ssm_dt.bias", "linear_attn.dt_bias", gguf_layout="heads", float32=True),
    Role(
        "gdn_decay",
        "ssm_a",
        "linear_attn.A_log",
        hf_form="negative_exp",
        gguf_layout="heads",
        float32=True,
    ),
    Role("gdn_beta", "ssm_beta.weight", "linear_attn.in_proj_b.weight", gguf_layout="heads"),
    Role("gdn_alpha", "ssm_alpha.weight", "linear_attn.in_proj_a.weight", gguf_layout="heads"),
    _norm("gdn_norm", "ssm_norm.weight", "linear_attn.norm.weight", "same"),
    Role("gdn_out", "ssm_out.weight", "linear_attn.out_proj.weight", gguf_layout="value_columns"),
)

_GATE_UP = "mlp.experts.gate_up_proj"
_SINGLE = "mlp.experts.{expert}"
EXPERTS = (
    Role("router", "ffn_gate_inp.weight", "mlp.gate.weight", float32=True),
    Role(
        "experts_gate",
        "ffn_gate_exps.weight",
        _GATE_UP,
        hf_part="gate",
        hf_single=f"{_SINGLE}.gate_proj.weight",
    ),
    Role(
        "experts_up",
        "ffn_up_exps.weight",
        _GATE_UP,
        hf_part="up",
        hf_single=f"{_SINGLE}.up_proj.weight",
    ),
    Role(
        "experts_down",
        "ffn_down_exps.weight",
        "mlp.experts.down_proj",
        hf_single=f"{_SINGLE}.down_proj.weight",
    ),
)
SHARED_EXPERT = (
    Role(
        "shared_gate_row",
        "ffn_gate_inp_shexp.weight",
        "mlp.shared_expert_gate.weight",
        float32=True,
    ),
    Role("shared_gate", "ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    Role("shared_up", "ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    Role("shared_down", "ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
)

NGRAM = (
    Role("ngram_key", "ple_key.weight", "ple.key_proj.weight"),
    Role("ngram_value", "ple_value.weight", "ple.value_proj.weight"),
    _norm("ngram_norm_key", "ple_norm_key.weight", "ple.norm_key.weight"),
    _norm("ngram_norm_query", "ple_norm_query.weight", "ple.norm_query.weight"),
    _norm("ngram_norm_conv", "ple_norm_conv.weight", "ple.norm_conv.weight"),
    Role("ngram_conv", "ple_conv1d.weight", "ple.conv1d.weight", hf_form="squeeze"),
)

NGRAM_TABLE = Role(
    "ngram_table",
    "per_layer_token_embd.weight",
    "layers.{ngram_layer}.ple.ple_embedding.ngram_embedding.weight",
    per_layer=False,
)
"""In a checkpoint also as `ngram_embedding.shard_<n>.weight`, rows concatenated in order."""

EXPERT_ROLES = ("experts_gate", "experts_up", "experts_down")
