"""`convert` refuses what llama.cpp would load and compute otherwise, or not load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from quantkit.containers.gguf import open_gguf
from quantkit.errors import ModelError
from quantkit.quantize import convert_checkpoint
from quantkit.quantize.convert import converted_bytes
from tests.tiny import (
    VOCAB_SIZE,
    Zoo,
    edit_config,
    random_model,
    rewrite,
    save_checkpoint,
    save_tokenizer,
)


class TestRefused:
    """What llama.cpp would load and compute otherwise, or not load."""

    @pytest.mark.parametrize(
        ("arch", "field", "value"),
        [
            ("qwen3moe", "norm_topk_prob", False),
            ("qwen4exp", "output_gate_type", "silu"),
            ("qwen35moe", "linear_value_head_dim", 32),
            ("qwen4exp", "ple_embed_dim", 64),
        ],
    )
    def test_settings(self, arch: str, field: str, value: Any, tmp_path: Path) -> None:
        save_checkpoint(random_model(arch, **{field: value}), tmp_path / "model", arch)
        with pytest.raises(ModelError) as caught:
            convert_checkpoint(tmp_path / "model", tmp_path / "out.gguf")
        assert field in caught.value.what
        assert caught.value.value == value
        assert caught.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["model"]

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("num_hidden_layers", 2),
            ("num_hidden_layers", 0),
            ("ple_layer_ids", []),
            ("indexer_n_heads", None),
            ("indexer_compress_ratio", 0),
            ("indexer_compress_ratio", -4),
            ("rms_norm_eps", float("nan")),
            ("rms_norm_eps", -1e-6),
            ("num_experts_per_tok", 0),
            ("eos_token_id", -1),
            ("hc_count", None),
            ("linear_num_key_heads", None),
            ("heads_per_ngram", 10**30),
        ],
    )
    def test_configurations_that_cannot_be(
        self, field: str, value: Any, zoo: Zoo, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(zoo.checkpoint("qwen4exp"), tmp_path / "model")
        edit_config(folder, **{field: value})
        with pytest.raises(ModelError) as caught:
            converted_bytes(folder)
        assert str(folder) in str(caught.value.file)
        assert caught.value.rule
        assert caught.value.hint

    def test_head_that_the_configuration_gives_up(self, zoo: Zoo, tmp_path: Path) -> None:
        """Tied to the embedding, a stored head may only be its copy."""
        folder = shutil.copytree(zoo.checkpoint("qwen3moe"), tmp_path / "model")
        edit_config(folder, tie_word_embeddings=True)
        with pytest.raises(ModelError, match="a head of its own") as caught:
            converted_bytes(folder)
        assert caught.value.tensor == "lm_head.weight"
        tensors = load_file(folder / "model.safetensors")
        rewrite(folder, tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
        convert_checkpoint(folder, tmp_path / "out.gguf")
        assert "output.weight" not in open_gguf(tmp_path / "out.gguf").tensors

    def test_unit_axes_elsewhere(self, zoo: Zoo, tmp_path: Path) -> None:
        """The kernel of a depthwise convolution, and a single row, in the forms that exist."""
        folder = shutil.copytree(zoo.checkpoint("qwen4exp"), tmp_path / "model")
        tensors = load_file(folder / "model.safetensors")
        for name, tensor in tensors.items():
            if name.endswith("conv1d.weight"):
                tensors[name] = tensor.squeeze(1)
            if name.endswith("shared_expert_gate.weight"):
                tensors[name] = tensor.flatten()
        rewrite(folder, tensors)
        convert_checkpoint(folder, tmp_path / "out.gguf", name=zoo.checkpoint("qwen4exp").name)
        assert (tmp_path / "out.gguf").read_bytes() == zoo.gguf("qwen4exp").read_bytes()

    def test_not_a_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="not a transformers checkpoint"):
            convert_checkpoint(tmp_path, tmp_path / "out.gguf")

    @pytest.mark.parametrize("arch", ["qwen3moe"])
    def test_tokenizer_of_another_kind(self, arch: str, tmp_path: Path) -> None:
        folder = save_checkpoint(random_model(arch), tmp_path / "model", arch)
        path = folder / "tokenizer.json"
        spec = json.loads(path.read_text())
        changes: list[tuple[str, dict[str, Any]]] = [
            ("cannot convert", spec | {"model": {"type": "Unigram", "vocab": []}}),
            ("no name for", spec | {"pre_tokenizer": {"type": "Whitespace"}}),
        ]
        for words, changed in changes:
            path.write_text(json.dumps(changed))
            with pytest.raises(ModelError, match=words):
                convert_checkpoint(folder, tmp_path / "out.gguf")
        save_tokenizer(folder, arch)
        spec["added_tokens"].append(spec["added_tokens"][0] | {"id": VOCAB_SIZE, "content": "<x>"})
        path.write_text(json.dumps(spec))
        with pytest.raises(ModelError, match="more tokens than the embedding"):
            convert_checkpoint(folder, tmp_path / "out.gguf")
        assert not (tmp_path / "out.gguf").exists()
