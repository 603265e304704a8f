"""`convert`: names, shapes, types and metadata against what llama.cpp's loader asks for.

The lists are written out from llama.cpp (src/models/*.cpp, dimensions fastest first), not derived
from our roles.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quantkit import codecs
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf
from quantkit.quantize import convert_checkpoint
from quantkit.quantize.convert import converted_bytes
from tests.tiny import (
    MERGES,
    VOCAB_SIZE,
    Zoo,
    edit_config,
    random_model,
    save_checkpoint,
)

E, V, HC, LR, N_EXPERT, FF, FF_SH = 128, VOCAB_SIZE, 4, 32, 8, 96, 64
HEADS, KV_HEADS, HEAD = 4, 2, 32
D_STATE, K_HEADS, V_HEADS, CONV = 16, 2, 6, 4
KEY_DIM, VALUE_DIM = D_STATE * K_HEADS, D_STATE * V_HEADS
IDX_HEADS, IDX = 8, 16
PLE_ROWS = 448  # 97 + 101 + 103 + 107 = 408 rows, padded to 64

Ne = tuple[int, ...]
FLOAT32 = {
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a",
}  # fmt: skip

MOE: dict[str, Ne] = {
    "ffn_gate_inp.weight": (E, N_EXPERT),
    "ffn_gate_exps.weight": (E, FF, N_EXPERT),
    "ffn_up_exps.weight": (E, FF, N_EXPERT),
    "ffn_down_exps.weight": (FF, E, N_EXPERT),
}
SHARED: dict[str, Ne] = {
    "ffn_gate_inp_shexp.weight": (E,),
    "ffn_gate_shexp.weight": (E, FF_SH),
    "ffn_up_shexp.weight": (E, FF_SH),
    "ffn_down_shexp.weight": (FF_SH, E),
}
ATTENTION: dict[str, Ne] = {
    "attn_k.weight": (E, KV_HEADS * HEAD),
    "attn_v.weight": (E, KV_HEADS * HEAD),
    "attn_output.weight": (HEADS * HEAD, E),
    "attn_q_norm.weight": (HEAD,),
    "attn_k_norm.weight": (HEAD,),
}
PLAIN_Q: dict[str, Ne] = {"attn_q.weight": (E, HEADS * HEAD)}
GATED_Q: dict[str, Ne] = {"attn_q.weight": (E, 2 * HEADS * HEAD)}
INDEXER: dict[str, Ne] = {
    "indexer.q_proj.weight": (E, IDX_HEADS * IDX),
    "indexer.k_proj.weight": (E, IDX),
    "indexer.q_norm.weight": (IDX,),
    "indexer.k_norm.weight": (IDX,),
}
DELTA_NET: dict[str, Ne] = {
    "attn_qkv.weight": (E, 2 * KEY_DIM + VALUE_DIM),
    "attn_gate.weight": (E, VALUE_DIM),
    "ssm_conv1d.weight": (CONV, 2 * KEY_DIM + VALUE_DIM),
    "ssm_dt.bias": (V_HEADS,),
    "ssm_a": (V_HEADS,),
    "ssm_beta.weight": (E, V_HEADS),
    "ssm_alpha.weight": (E, V_HEADS),
    "ssm_norm.weight": (D_STATE,),
    "ssm_out.weight": (VALUE_DIM, E),
}
HYPER: dict[str, Ne] = {
    f"hc_{place}_{part}.weight": ne
    for place in ("attn", "ffn")
    for part, ne in {
        "norm": (HC * E,),
        "down": (HC * E, LR),
        "up": (LR, HC * E),
        "inject": (HC * E, HC),
    }.items()
}
PLE: dict[str, Ne] = {
    "ple_key.weight": (E, HC * E),
    "ple_value.weight": (E, E),
    "ple_norm_key.weight": (HC * E,),
    "ple_norm_query.weight": (HC * E,),
    "ple_norm_conv.weight": (HC * E,),
    "ple_conv1d.weight": (4, HC * E),
}
TOP: dict[str, Ne] = {"token_embd.weight": (E, V), "output.weight": (E, V)}


def blocks(*layers: dict[str, Ne]) -> dict[str, Ne]:
    return {f"blk.{i}.{name}": ne for i, layer in enumerate(layers) for name, ne in layer.items()}


def expected_tensors(arch: str) -> dict[str, Ne]:
    if arch == "qwen3moe":
        norms: dict[str, Ne] = {"attn_norm.weight": (E,), "ffn_norm.weight": (E,)}
        layer = PLAIN_Q | ATTENTION | MOE | norms
        return TOP | {"output_norm.weight": (E,)} | blocks(layer, layer)
    if arch == "qwen35moe":
        norms = {"attn_norm.weight": (E,), "post_attention_norm.weight": (E,)}
        linear, full = (m | MOE | SHARED | norms for m in (DELTA_NET, GATED_Q | ATTENTION))
        return TOP | {"output_norm.weight": (E,)} | blocks(linear, linear, linear, full)
    linear, full = (m | MOE | SHARED | HYPER for m in (DELTA_NET, GATED_Q | ATTENTION | INDEXER))
    output: dict[str, Ne] = {
        "output_hc_norm.weight": (HC * E,),
        "output_hc_down.weight": (HC * E, LR),
        "output_hc_up.weight": (LR, HC * E),
        "per_layer_token_embd.weight": (HC * E // 16, PLE_ROWS),
    }
    return TOP | output | blocks(linear, linear | PLE, linear, full)


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen35moe", "qwen4exp"])
def test_tensors_are_those_that_llamacpp_loads(arch: str, zoo: Zoo) -> None:
    """The exact set: llama.cpp refuses a missing tensor and a surplus one."""
    file = open_gguf(zoo.gguf(arch))
    found = {name: tuple(reversed(entry.shape)) for name, entry in file.tensors.items()}
    assert found == expected_tensors(arch)
    for name, entry in file.tensors.items():
        vector = len(entry.shape) == 1
        wanted = "F32" if vector or name.partition("blk.")[2][2:] in FLOAT32 else "BF16"
        assert entry.qtype.name == wanted, name


U32, I32, F32, STRING, BOOL, U64 = (
    ValueType.UINT32, ValueType.INT32, ValueType.FLOAT32, ValueType.STRING, ValueType.BOOL,
    ValueType.UINT64,
)  # fmt: skip

COMMON: dict[str, tuple[ValueType, Any]] = {
    "context_length": (U32, 4096),
    "embedding_length": (U32, E),
    "attention.head_count": (U32, HEADS),
    "attention.head_count_kv": (U32, KV_HEADS),
    "attention.key_length": (U32, HEAD),
    "attention.value_length": (U32, HEAD),
    "attention.layer_norm_rms_epsilon": (F32, np.float32(1e-6)),
    "expert_count": (U32, N_EXPERT),
    "expert_used_count": (U32, 2),
    "expert_feed_forward_length": (U32, FF),
}
LINEAR: dict[str, tuple[ValueType, Any]] = {
    "block_count": (U32, 4),
    "expert_shared_feed_forward_length": (U32, FF_SH),
    "rope.dimension_count": (U32, 8),
    "ssm.conv_kernel": (U32, CONV),
    "ssm.state_size": (U32, D_STATE),
    "ssm.group_count": (U32, K_HEADS),
    "ssm.time_step_rank": (U32, V_HEADS),
    "ssm.inner_size": (U32, VALUE_DIM),
    "full_attention_interval": (U32, 4),
    "attention.recurrent_layers": (BOOL, [True, True, True, False]),
}
KEYS: dict[str, dict[str, tuple[ValueType, Any]]] = {
    "qwen3moe": {
        "block_count": (U32, 2),
        "rope.dimension_count": (U32, HEAD),
        "rope.freq_base": (F32, np.float32(1e4)),
    },
    "qwen35moe": LINEAR
    | {"rope.dimension_sections": (I32, [2, 1, 1, 0]), "rope.freq_base": (F32, np.float32(1e4))},
    "qwen4exp": LINEAR
    | {
        "rope.dimension_sections": (I32, [2, 1, 1, 0]),
        "rope.freq_base": (F32, np.float32(1e6)),
        "hyper_connection.count": (U32, HC),
        "hyper_connection.low_rank": (U32, LR),
        "attention.indexer.head_count": (U32, IDX_HEADS),
        "attention.indexer.key_length": (U32, IDX),
        "attention.indexer.top_k": (U32, 32),
        "attention.compress_ratios": (I32, [0, 0, 0, 4]),
        "ple.layers": (I32, [1]),
        "ple.ngram_size": (U32, 3),
        "ple.heads_per_ngram": (U32, 2),
        "ple.conv_kernel": (U32, 4),
        "ple.eos_token_id": (U32, 0),
        "embedding_length_per_layer_input": (U32, 32),
        "ple.head_offsets": (U64, [0, 97, 198, 301]),
        "ple.head_vocab_sizes": (U64, [97, 101, 103, 107]),
    },
}


def array_type(file: GGUFFile, key: str) -> ValueType:
    """Element type of an array, from the raw bytes."""
    raw = file.metadata.raw(key)
    start = 8 + len(key.encode()) + 4
    return ValueType(struct.unpack_from("<I", raw, start)[0])


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen35moe", "qwen4exp"])
def test_metadata_is_what_llamacpp_reads(arch: str, zoo: Zoo) -> None:
    file = open_gguf(zoo.gguf(arch))
    wanted = {f"{arch}.{key}": value for key, value in (COMMON | KEYS[arch]).items()}
    for key, (value_type, value) in wanted.items():
        stored = file.metadata.value_type(key)
        found = array_type(file, key) if stored is ValueType.ARRAY else stored
        assert (key, found) == (key, value_type)
        assert file.metadata[key] == value, key
    own = {key for key in file.metadata if key.startswith(f"{arch}.")}
    assert own - set(wanted) == (
        {"qwen4exp.ple.layer_multipliers"} if arch == "qwen4exp" else set()
    )


def test_hash_constants_keep_every_bit(zoo: Zoo) -> None:
    """45 to 60 bits wide: a float on the way would round them."""
    stored = load_file(zoo.checkpoint("qwen4exp") / "model.safetensors")
    constant = "model.layers.1.ple.ple_embedding.layer_multipliers"
    wanted = stored[constant].tolist()
    assert any(float(value) != value or int(float(value)) != value for value in wanted)
    file = open_gguf(zoo.gguf("qwen4exp"))
    key = "qwen4exp.ple.layer_multipliers"
    assert file.metadata[key] == wanted
    assert file.metadata.raw(key).endswith(struct.pack(f"<{len(wanted)}Q", *wanted))


def test_stored_constants_win_over_the_formula(zoo: Zoo, tmp_path: Path) -> None:
    """A table was made with the constants beside it, whatever the seed in config.json says."""
    save_checkpoint(random_model("qwen4exp"), tmp_path / "model", "qwen4exp")
    edit_config(tmp_path / "model", seed=99)
    convert_checkpoint(tmp_path / "model", tmp_path / "out.gguf")
    key = "qwen4exp.ple.layer_multipliers"
    wanted = open_gguf(zoo.gguf("qwen4exp")).metadata[key]
    assert open_gguf(tmp_path / "out.gguf").metadata[key] == wanted


def test_general_and_tokenizer_keys(zoo: Zoo) -> None:
    metadata = open_gguf(zoo.gguf("qwen4exp")).metadata
    assert metadata["general.architecture"] == "qwen4exp"
    assert metadata["general.file_type"] == 32
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    assert metadata["tokenizer.ggml.pre"] == "qwen35"
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.ggml.eos_token_id"] == 0
    assert "tokenizer.ggml.bos_token_id" not in metadata
    assert metadata["tokenizer.ggml.merges"] == [" ".join(merge) for merge in MERGES]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert (len(tokens), len(types)) == (V, V)
    n_used = 1 + 256 + len(MERGES)
    assert (tokens[0], types[0]) == ("<|endoftext|>", 3)
    assert (tokens[n_used], types[n_used]) == ("<|im_end|>", 3)
    assert (tokens[n_used + 1], types[n_used + 1]) == ("<think>", 4)
    assert set(types[1:n_used]) == {1}
    assert set(types[n_used + 2 :]) == {5}, "rows of the embedding without a token"
    assert len(set(tokens)) == V
    assert metadata["tokenizer.chat_template"] == "{{ messages }}"


def decoded(file: GGUFFile, name: str) -> Tensor:
    entry = file.tensors[name]
    return torch.from_numpy(np.array(codecs.decode(entry.qtype, entry.parts(), entry.shape)))


class TestTransforms:
    """Values against the checkpoint's, with the converter's transforms written out."""

    @pytest.fixture
    def pair(self, zoo: Zoo) -> tuple[dict[str, Tensor], GGUFFile]:
        tensors = load_file(zoo.checkpoint("qwen4exp", fused=True) / "model.safetensors")
        floats = {name: value.float() for name, value in tensors.items()}
        return floats, open_gguf(zoo.gguf("qwen4exp"))

    @pytest.mark.parametrize(
        ("stored", "name"),
        [
            ("model.layers.0.mlp_hyper_connection.hc_norm.weight", "blk.0.hc_ffn_norm.weight"),
            ("model.hyper_connection_mixer.hc_norm.weight", "output_hc_norm.weight"),
            ("model.layers.3.self_attn.q_norm.weight", "blk.3.attn_q_norm.weight"),
            ("model.layers.3.self_attn.indexer.k_layernorm.weight", "blk.3.indexer.k_norm.weight"),
            ("model.layers.1.ple.norm_conv.weight", "blk.1.ple_norm_conv.weight"),
        ],
    )
    def test_norms_are_stored_as_one_plus(
        self, pair: tuple[dict[str, Tensor], GGUFFile], stored: str, name: str
    ) -> None:
        tensors, file = pair
        assert torch.equal(decoded(file, name), tensors[stored] + 1)

    def test_gated_norm_is_stored_as_it_is(self, pair: tuple[dict[str, Tensor], GGUFFile]) -> None:
        tensors, file = pair
        stored = tensors["model.layers.0.linear_attn.norm.weight"]
        assert torch.equal(decoded(file, "blk.0.ssm_norm.weight"), stored)

    def test_value_heads_are_tiled(self, pair: tuple[dict[str, Tensor], GGUFFile]) -> None:
        tensors, file = pair
        prefix = "model.layers.0.linear_attn."
        order = [0, 3, 1, 4, 2, 5]
        decay = -tensors[prefix + "A_log"].exp()
        assert torch.equal(decoded(file, "blk.0.ssm_a"), decay[order])
        assert torch.equal(decoded(file, "blk.0.ssm_dt.bias"), tensors[prefix + "dt_bias"][order])
        out = tensors[prefix + "out_proj.weight"].unflatten(1, (V_HEADS, D_STATE))[:, order]
        assert torch.equal(decoded(file, "blk.0.ssm_out.weight"), out.flatten(1))
        qkv = tensors[prefix + "in_proj_qkv.weight"]
        values = qkv[2 * KEY_DIM :].unflatten(0, (V_HEADS, D_STATE))[order].flatten(0, 1)
        found = decoded(file, "blk.0.attn_qkv.weight")
        assert torch.equal(found, torch.cat((qkv[: 2 * KEY_DIM], values)))

    def test_fused_tensors_are_split(self, pair: tuple[dict[str, Tensor], GGUFFile]) -> None:
        tensors, file = pair
        gate_up = tensors["model.layers.2.mlp.experts.gate_up_proj"]
        assert torch.equal(decoded(file, "blk.2.ffn_gate_exps.weight"), gate_up[:, :FF])
        assert torch.equal(decoded(file, "blk.2.ffn_up_exps.weight"), gate_up[:, FF:])
        index = tensors["model.layers.3.self_attn.indexer.index_qk_proj.weight"]
        n_query = IDX_HEADS * IDX
        assert torch.equal(decoded(file, "blk.3.indexer.q_proj.weight"), index[:n_query])
        assert torch.equal(decoded(file, "blk.3.indexer.k_proj.weight"), index[n_query:])

    def test_table_is_joined(self, pair: tuple[dict[str, Tensor], GGUFFile]) -> None:
        tensors, file = pair
        name = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_{}.weight"
        shards = [tensors[name.format(number)] for number in range(2)]
        assert torch.equal(decoded(file, "per_layer_token_embd.weight"), torch.cat(shards))


def test_same_bytes_every_time(zoo: Zoo, tmp_path: Path) -> None:
    """Also from the fused layout, and as many as were promised."""
    wanted = zoo.gguf("qwen4exp").read_bytes()
    for fused in (False, True):
        folder, out = zoo.checkpoint("qwen4exp", fused=fused), tmp_path / f"{fused}.gguf"
        name = zoo.checkpoint("qwen4exp").name
        assert convert_checkpoint(folder, out, name=name) == [out]
        assert out.read_bytes() == wanted
        assert converted_bytes(folder, name=name) == len(wanted)
