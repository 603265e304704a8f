"""The sweep's float32 logits against transformers, in every container and geometry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.qwen4_exp import Qwen4ExpForCausalLM

from quantkit.quantize import convert_checkpoint
from quantkit.weights.tokenizer import encode_text, load_tokenizer
from tests.tiny import (
    ARCHITECTURES,
    EMBEDDED,
    EOS,
    Zoo,
    edit_config,
    random_model,
    relative_error,
    rewrite,
    sample_tokens,
    save_checkpoint,
    sweep_logits,
)

MAX_ERROR = 1e-4
MAX_ROW_ERROR = 1e-3
"""One token's error: a wrong block, expert or n-gram row shows here and drowns in the mean."""


def reference_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(tokens).logits


def assert_parity(found: Tensor, wanted: Tensor) -> None:
    assert relative_error(found, wanted) <= MAX_ERROR
    rows = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert float(rows.max()) <= MAX_ROW_ERROR


@pytest.fixture(scope="module", params=ARCHITECTURES)
def case(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    return request.param, random_model(request.param)


# The indexer of the tiny model has a budget of 32 tokens in blocks of 4; chunks have 64 tokens.
@pytest.mark.parametrize("length", [1, 3, 33, 64, 131, 202])
def test_logits_from_every_container(case: tuple[str, nn.Module], zoo: Zoo, length: int) -> None:
    arch, model = case
    tokens = sample_tokens(2, length) if length > 3 else torch.tensor([[5, EOS, 7], [EOS, 1, 2]])
    tokens = tokens[:, :length]
    wanted = reference_logits(model, tokens)
    for path in (zoo.checkpoint(arch), zoo.checkpoint(arch, fused=True), zoo.gguf(arch)):
        assert_parity(sweep_logits(path, tokens), wanted)


ALL_ROTATED = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3moe", {"norm_topk_prob": False}),
    ("qwen3moe", {"head_dim": 48, "tie_word_embeddings": True}),
    ("qwen3moe", {"num_key_value_heads": 4, "num_experts_per_tok": 8}),
    ("qwen35moe", {"linear_key_head_dim": 24, "linear_value_head_dim": 40}),
    ("qwen35moe", {"layer_types": ["full_attention", "linear_attention"] * 2}),
    ("qwen35moe", {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 3}),
    ("qwen4exp", {"norm_topk_prob": False, "num_experts_per_tok": 1}),
    ("qwen4exp", {"output_gate_type": "silu"}),
    ("qwen4exp", {"output_gate_type": None}),
    ("qwen4exp", {"hc_count": 2, "hc_lowrank": 8}),
    ("qwen4exp", {"ngram_size": 4, "heads_per_ngram": 3, "ple_embed_dim": 144}),
    ("qwen4exp", {"ngram_size": 2, "ple_conv_kernel_size": 2, "ple_layer_ids": [1]}),
    ("qwen4exp", {"eos_token_id": [7, 0]}),
    ("qwen4exp", {"ple_layer_ids": [], "tie_word_embeddings": True}),
    ("qwen4exp", {"indexer_budget": 8, "indexer_compress_ratio": 8}),
    ("qwen4exp", {"indexer_budget": 66, "indexer_compress_ratio": 3}),
    (
        "qwen4exp",
        {
            "rope_parameters": ALL_ROTATED,
            "indexer_head_dim": 32,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "changes"), VARIANTS, ids=lambda value: str(value)[:50])
def test_logits_of_other_geometries(arch: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = random_model(arch, seed=3, **changes)
    save_checkpoint(model, tmp_path, arch)
    tokens = sample_tokens(2, 77)
    assert_parity(sweep_logits(tmp_path, tokens), reference_logits(model, tokens))


def test_sparse_attention_is_at_work() -> None:
    """With every token selected the oracle gives other logits, so that parity says something."""
    tokens = sample_tokens(1, 131)
    sparse = reference_logits(random_model("qwen4exp"), tokens)
    dense = reference_logits(random_model("qwen4exp", indexer_budget=4096), tokens)
    assert torch.equal(sparse[:, :35], dense[:, :35])
    assert relative_error(sparse[:, 40:], dense[:, 40:]) > 100 * MAX_ERROR


def test_full_attention_is_another_name_for_indexed(zoo: Zoo, tmp_path: Path) -> None:
    save_checkpoint(random_model("qwen4exp"), tmp_path, "qwen4exp")
    edit_config(tmp_path, layer_types=["linear_attention"] * 3 + ["full_attention"])
    tokens = sample_tokens(2, 50)
    assert torch.equal(
        sweep_logits(tmp_path, tokens), sweep_logits(zoo.checkpoint("qwen4exp"), tokens)
    )


@pytest.mark.parametrize("arch", ["qwen4exp", "qwen35moe"])
def test_multimodal_checkpoint(arch: str, zoo: Zoo, tmp_path: Path) -> None:
    """The text model inside a larger one: another prefix, a nested config, foreign tensors."""
    source = zoo.checkpoint(arch, fused=True)
    config = json.loads((source / "config.json").read_text())
    outer = {"model_type": config["model_type"].removesuffix("_text"), "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {
        name.replace("model.", "model.language_model."): value
        for name, value in load_file(source / "model.safetensors").items()
    }
    rewrite(tmp_path, tensors | {"model.visual.patch_embed.weight": torch.zeros(3, 3)})
    tokens = sample_tokens(2, 50)
    assert torch.equal(sweep_logits(tmp_path, tokens), sweep_logits(source, tokens))


@pytest.fixture(scope="module")
def embedded_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("embedded") / "embedded.gguf"
    return convert_checkpoint(EMBEDDED, out)[0]


def test_embedded_model(embedded_gguf: Path) -> None:
    """Real text and random tokens, beyond the indexer's budget.

    Its indexer has few heads: two blocks can tie at score 0, and which one is read is then up to
    the sort, so that single rows may differ in a way that says nothing.
    """
    model = Qwen4ExpForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32).eval()
    length = 2 * model.config.indexer_budget + 45
    text = (Path(__file__).parents[2] / "calib" / "check.txt").read_text(encoding="utf-8")
    words = torch.tensor(encode_text(load_tokenizer(EMBEDDED), text)[:length])
    generator = torch.Generator().manual_seed(1)
    noise = torch.randint(0, model.config.vocab_size, (length,), generator=generator)
    tokens = torch.stack((words, noise))
    tokens[:, length // 2] = model.config.eos_token_id
    wanted = reference_logits(model, tokens)
    for path in (EMBEDDED, embedded_gguf):
        found = sweep_logits(path, tokens)
        assert relative_error(found, wanted) <= MAX_ERROR
        rows = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)
        assert float(rows.quantile(0.98)) <= MAX_ERROR / 10
