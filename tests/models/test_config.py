"""Geometry from config.json and from GGUF metadata, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers.models.qwen3_moe import Qwen3MoeConfig

from quantkit.containers.gguf import open_gguf
from quantkit.errors import ModelError
from quantkit.models.config import Mixer, ModelConfig
from quantkit.models.gguf_config import config_from_gguf, gguf_pairs
from quantkit.models.hf_config import config_from_hf
from tests.tiny import ARCHITECTURES, Zoo, random_model


def hf_config(arch: str, **changes: Any) -> dict[str, Any]:
    return dict(random_model(arch).config.to_dict()) | changes


def as_metadata(config: ModelConfig) -> dict[str, Any]:
    return {"general.architecture": config.arch} | {p.key: p.value for p in gguf_pairs(config)}


def names(*more: str) -> dict[str, tuple[int, ...]]:
    """Enough tensor names for a plausible file of a vocabulary of 320."""
    return dict.fromkeys([*map(str, range(99)), "output.weight", *more], (1,)) | {
        "token_embd.weight": (320, 128)
    }


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_metadata_says_what_config_json_says(arch: str, zoo: Zoo) -> None:
    wanted = config_from_hf(hf_config(arch))
    assert config_from_gguf(as_metadata(wanted), names()) == wanted
    file = open_gguf(zoo.gguf(arch))
    shapes = {name: entry.shape for name, entry in file.tensors.items()}
    assert config_from_gguf(file.metadata, shapes) == wanted


def test_geometry_of_the_tiny_model() -> None:
    """Field by field, so that reading wrong twice in the same way is seen."""
    c = config_from_hf(hf_config("qwen4exp"))
    assert (c.vocab_size, c.hidden, c.n_layers, c.context_length) == (320, 128, 4, 4096)
    assert c.mixers == (Mixer.GATED_DELTA_NET,) * 3 + (Mixer.ATTENTION,)
    a, m = c.attention, c.moe
    assert (a.n_heads, a.n_kv_heads, a.head_dim, a.rotary_dim, a.rope_theta) == (4, 2, 32, 8, 1e6)
    assert a.output_gate
    assert (m.n_experts, m.n_experts_used, m.inner, m.shared_inner) == (8, 2, 96, 64)
    for part in (c.delta_net, c.indexer, c.hyper, c.ngram):
        assert part is not None
    g, i, n = c.delta_net, c.indexer, c.ngram
    assert (g.n_key_heads, g.n_value_heads, g.key_dim, g.value_dim, g.conv_kernel) == (
        2, 6, 16, 16, 4,
    )  # fmt: skip
    assert (i.n_heads, i.head_dim, i.budget, i.block) == (8, 16, 32, 4)
    assert (c.hyper.n_streams, c.hyper.low_rank) == (4, 32)
    assert (n.layer, n.ngram_size, n.heads_per_ngram, n.row_dim, n.n_heads) == (1, 3, 2, 32, 4)
    assert n.head_vocab_sizes == (97, 101, 103, 107)
    assert n.head_offsets == (0, 97, 198, 301)


def test_both_names_of_the_expert_count() -> None:
    """transformers 5 saves `num_local_experts`, the released checkpoints have `num_experts`."""
    saved = Qwen3MoeConfig(num_experts=16).to_dict()
    assert config_from_hf(saved).moe.n_experts == 16
    released = {k: v for k, v in saved.items() if k != "num_local_experts"} | {"num_experts": 16}
    assert config_from_hf(released).moe.n_experts == 16


def test_released_qwen3_moe_config() -> None:
    """The fields that Qwen3-30B-A3B was released with: rope settings at the top level."""
    config = config_from_hf(
        {
            "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "mlp_only_layers": [],
            "max_position_embeddings": 40960, "moe_intermediate_size": 768, "norm_topk_prob": True,
            "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
            "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 1000000.0, "tie_word_embeddings": False,
            "use_sliding_window": False, "vocab_size": 151936,
        }
    )  # fmt: skip
    assert config.attention.rope_theta == 1e6
    assert config.attention.rotary_dim == 128
    assert config.moe.renormalize
    assert config.delta_net is None
    assert config.mixers == (Mixer.ATTENTION,) * 48


@pytest.mark.parametrize(
    ("arch", "field", "value"),
    [
        ("qwen3moe", "attention_bias", True),
        ("qwen3moe", "hidden_act", "gelu"),
        ("qwen3moe", "use_sliding_window", True),
        ("qwen3moe", "mlp_only_layers", [0]),
        ("qwen3moe", "decoder_sparse_step", 2),
        ("qwen35moe", "rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
        ("qwen3moe", "rope_parameters", {"type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ],
)
def test_settings_we_cannot_run_are_refused(arch: str, field: str, value: Any) -> None:
    with pytest.raises(ModelError, match="cannot be run faithfully") as caught:
        config_from_hf(hf_config(arch, **{field: value}))
    assert caught.value.rule
    assert caught.value.hint


@pytest.mark.parametrize("missing", ["num_experts", "hidden_size", "linear_key_head_dim"])
def test_missing_field(missing: str) -> None:
    config = hf_config("qwen4exp")
    del config[missing]
    with pytest.raises(ModelError, match="lacks a field") as caught:
        config_from_hf(config)
    assert caught.value.value == missing


UNUSABLE = [None, "x", {}, [], [0], 0, -1, 1.5, True, math.nan, math.inf, 10**30]
COUNTS = [
    "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "num_experts",
    "num_experts_per_tok", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads",
    "hc_count", "hc_lowrank", "linear_num_key_heads", "linear_num_value_heads",
    "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "ngram_size",
    "heads_per_ngram", "ngram_vocab_size_base", "ple_conv_kernel_size", "indexer_n_heads",
    "indexer_head_dim", "indexer_budget", "indexer_compress_ratio",
]  # fmt: skip


@pytest.mark.parametrize("field", COUNTS)
def test_counts_that_are_none(field: str) -> None:
    config = hf_config("qwen4exp")
    for value in UNUSABLE:
        with pytest.raises(ModelError) as caught:
            config_from_hf(config | {field: value})
        assert field in caught.value.render()
        assert caught.value.rule
        assert caught.value.hint


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("rms_norm_eps", ["x", 0, -1e-6, math.nan, math.inf, 2.0, True, [1e-6]]),
        ("num_experts_per_tok", [9]),
        ("num_hidden_layers", [3, 8]),
        ("layer_types", ["x", {}, [], [1], ["full_attention"], ["linear_attention"] * 3 + ["x"]]),
        ("full_attention_interval", [0, -1, "x"]),
        ("eos_token_id", [-1, 320, [], [-1], [0, "x"], "x", {}, True]),
        ("bos_token_id", [-1, 320, "x"]),
        ("pad_token_id", [-1, [5, -2]]),
        ("text_config", ["x", 0, [], [{}]]),
        ("model_type", ["x", 0, [], ["qwen4_exp"], {}, None]),
        ("num_key_value_heads", [3]),
        ("linear_num_value_heads", [5]),
        ("indexer_budget", [30]),
        ("indexer_kv_heads", [2, "x"]),
        ("ple_layer_ids", [0, "x", [0], [5], ["a"], [None], {}]),
        ("heads_per_ngram", [65, 10**30]),
        ("seed", ["x", 1.5, 10**30]),
        ("tie_word_embeddings", ["x", 0, 1, []]),
        ("norm_topk_prob", ["x", 0, 1]),
        ("rope_parameters", ["x", 0, [], {"rope_type": []}, {"rope_theta": "x"}]),
        ("rope_parameters", [{"rope_theta": value} for value in (0, -1, math.nan, None)]),
        ("output_gate_type", ["x", 0, []]),
        ("hidden_act", [0, [], "gelu"]),
        ("head_dim", [1, 0]),
    ],
)
def test_settings_out_of_range(field: str, values: list[Any]) -> None:
    config = hf_config("qwen4exp")
    config.pop("rope_theta", None)
    if field == "full_attention_interval":
        del config["layer_types"]
    for value in values:
        with pytest.raises(ModelError) as caught:
            config_from_hf(config | {field: value})
        assert caught.value.rule, value
        assert caught.value.hint, value


@pytest.mark.parametrize("factor", [0, -0.5, 1.5, 0.01, 3 / 32, "x", math.nan])
def test_share_of_a_head_that_cannot_be_rotated(factor: Any) -> None:
    rope = {"rope_theta": 1e4, "partial_rotary_factor": factor}
    with pytest.raises(ModelError, match="partial_rotary_factor"):
        config_from_hf(hf_config("qwen4exp", rope_parameters=rope))


def test_null_text_part_is_none() -> None:
    config = hf_config("qwen4exp")
    assert config_from_hf(config | {"text_config": None}) == config_from_hf(config)


def test_several_ends_of_text() -> None:
    found = config_from_hf(hf_config("qwen4exp", eos_token_id=[7, 3]))
    assert found.ngram is not None
    assert found.ngram.eos_token_id == 7


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {}])
def test_unknown_architecture(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="unknown architecture") as caught:
        config_from_hf(config)
    assert "qwen4_exp" in (caught.value.rule or "")


def test_two_ngram_layers() -> None:
    with pytest.raises(ModelError, match="more than one n-gram layer"):
        config_from_hf(hf_config("qwen4exp", ple_layer_ids=[1, 2]))


class TestMetadata:
    @pytest.fixture
    def metadata(self) -> dict[str, Any]:
        return as_metadata(config_from_hf(hf_config("qwen4exp")))

    def test_mtp_layers_are_not_trunk_layers(self, metadata: dict[str, Any]) -> None:
        metadata |= {"qwen4exp.block_count": 5, "qwen4exp.nextn_predict_layers": 1}
        metadata["qwen4exp.attention.recurrent_layers"] += [False]
        config = config_from_gguf(metadata, names())
        assert (config.n_layers, len(config.mixers), config.n_mtp_layers) == (4, 4, 1)

    def test_layer_kinds_from_the_interval(self, metadata: dict[str, Any]) -> None:
        del metadata["qwen4exp.attention.recurrent_layers"]
        config = config_from_gguf(metadata, names())
        assert config == config_from_hf(hf_config("qwen4exp"))

    def test_no_ratios_mean_dense_attention(self, metadata: dict[str, Any]) -> None:
        del metadata["qwen4exp.attention.compress_ratios"]
        assert config_from_gguf(metadata, names()).indexer is None

    def test_no_head_of_its_own_means_tied(self, metadata: dict[str, Any]) -> None:
        shapes = names()
        del shapes["output.weight"]
        assert config_from_gguf(metadata, shapes).tied_head

    def test_long_arrays_are_cut(self, metadata: dict[str, Any]) -> None:
        """llama.cpp keeps arrays of fixed size; files may carry zeros behind the values."""
        wanted = config_from_gguf(metadata, names())
        for key in ("layer_multipliers", "head_offsets", "head_vocab_sizes"):
            metadata[f"qwen4exp.ple.{key}"] = [*metadata[f"qwen4exp.ple.{key}"], 0, 0]
        assert config_from_gguf(metadata, names()) == wanted

    def test_missing_key(self, metadata: dict[str, Any]) -> None:
        del metadata["qwen4exp.expert_used_count"]
        with pytest.raises(ModelError, match="lacks a key") as caught:
            config_from_gguf(metadata, names())
        assert caught.value.value == "qwen4exp.expert_used_count"

    def test_scaled_rope(self, metadata: dict[str, Any]) -> None:
        metadata["qwen4exp.rope.scaling.type"] = "none"
        config_from_gguf(metadata, names())
        metadata["qwen4exp.rope.scaling.type"] = "yarn"
        with pytest.raises(ModelError, match="scaled rotary"):
            config_from_gguf(metadata, names())

    def test_count_of_layers_that_cannot_be(self, metadata: dict[str, Any]) -> None:
        metadata["qwen4exp.block_count"] = 2**32 - 1
        with pytest.raises(ModelError, match="more layers than there are tensors"):
            config_from_gguf(metadata, names())


NOT_A_COUNT: list[Any] = ["x", "", 0, -1, 1.5, math.nan, True, [1, 2, 3], [], ["a"]]
GGUF_COUNTS = [
    "block_count", "context_length", "embedding_length", "attention.head_count",
    "attention.head_count_kv", "expert_count", "expert_used_count", "attention.key_length",
    "expert_feed_forward_length", "rope.dimension_count", "ssm.conv_kernel", "ssm.state_size",
    "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size", "full_attention_interval",
    "hyper_connection.count", "hyper_connection.low_rank", "attention.indexer.head_count",
    "attention.indexer.key_length", "attention.indexer.top_k", "ple.ngram_size",
    "ple.heads_per_ngram", "ple.conv_kernel", "embedding_length_per_layer_input",
]  # fmt: skip


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    return as_metadata(config_from_hf(hf_config("qwen4exp")))


class TestDamagedMetadata:
    """Each key alone: another type, zero, negative, NaN, another length."""

    @staticmethod
    def refused(good: dict[str, Any], key: str, value: Any) -> None:
        with pytest.raises(ModelError) as caught:
            config_from_gguf(good | {f"qwen4exp.{key}": value}, names())
        assert key in caught.value.render(), value
        assert caught.value.hint

    @pytest.mark.parametrize("key", GGUF_COUNTS)
    def test_counts(self, key: str, good: dict[str, Any]) -> None:
        assert f"qwen4exp.{key}" in good
        for value in NOT_A_COUNT:
            self.refused(good, key, value)

    @pytest.mark.parametrize("key", ["rope.freq_base", "attention.layer_norm_rms_epsilon"])
    def test_numbers(self, key: str, good: dict[str, Any]) -> None:
        for value in ("x", 0.0, -1.0, math.nan, math.inf, True, [1.0]):
            self.refused(good, key, value)

    @pytest.mark.parametrize(
        "key",
        [
            "attention.recurrent_layers", "attention.compress_ratios", "ple.layers",
            "ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes",
            "rope.dimension_sections",
        ],
    )  # fmt: skip
    def test_lists(self, key: str, good: dict[str, Any]) -> None:
        for value in ("x", 0, math.nan, True, ["a"], [-1] * 9, [math.nan] * 9, [2**64] * 9):
            self.refused(good, key, value)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("attention.recurrent_layers", [True] * 3),
            ("attention.compress_ratios", [0, 0, 0]),
            ("ple.layer_multipliers", [3, 5]),
            ("ple.head_offsets", [0, 97, 198]),
            ("ple.head_vocab_sizes", []),
            ("ple.layers", [4]),
            ("ple.layers", [0, 1]),
            ("ple.eos_token_id", 320),
            ("expert_used_count", 9),
            ("attention.head_count", 5),
            ("ssm.time_step_rank", 7),
            ("ssm.inner_size", 97),
            ("rope.dimension_count", 33),
            ("rope.dimension_count", 64),
            ("nextn_predict_layers", 4),
            ("hyper_connection.count", 1),
            ("attention.indexer.top_k", 30),
            ("ple.heads_per_ngram", 10**6),
        ],
    )
    def test_lengths_and_bounds(self, key: str, value: Any, good: dict[str, Any]) -> None:
        self.refused(good, key, value)

    def test_ratios_that_differ(self, good: dict[str, Any]) -> None:
        mixers = [True, False, True, False]
        changed = good | {"qwen4exp.attention.recurrent_layers": mixers}
        self.refused(changed, "attention.compress_ratios", [0, 4, 0, 8])

    @pytest.mark.parametrize("value", [["qwen4exp"], 3, "", "\udcff"])
    def test_architecture(self, value: Any, good: dict[str, Any]) -> None:
        with pytest.raises(ModelError):
            config_from_gguf(good | {"general.architecture": value}, names())

    @pytest.mark.parametrize("shape", [(), (320,), (0, 128), (1, 2, 3)])
    def test_embedding(self, shape: tuple[int, ...], good: dict[str, Any]) -> None:
        with pytest.raises(ModelError) as caught:
            config_from_gguf(good, names() | {"token_embd.weight": shape})
        assert caught.value.tensor == "token_embd.weight"

    @pytest.mark.parametrize("arch", ["qwen35moe", "qwen3moe"])
    def test_keys_of_another_architecture_mean_nothing(self, arch: str) -> None:
        config = config_from_hf(hf_config(arch))
        surplus = {"hyper_connection.count": 4, "ple.layers": [1], "attention.compress_ratios": 3}
        metadata = as_metadata(config) | {f"{arch}.{k}": v for k, v in surplus.items()}
        assert config_from_gguf(metadata, names()) == config


def test_epsilon_is_the_decimal_that_was_meant() -> None:
    """float32 in a file, the decimal in config.json: both must give one geometry."""
    config = config_from_hf(hf_config("qwen3moe"))
    metadata = as_metadata(config)
    stored = float(torch.tensor(1e-6, dtype=torch.float32))
    metadata["qwen3moe.attention.layer_norm_rms_epsilon"] = stored
    assert stored != 1e-6
    assert config_from_gguf(metadata, names()) == config
