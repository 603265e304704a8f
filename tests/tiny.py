"""Small random models of every architecture, in every container, built in code.

transformers makes and saves them, so that neither the mathematics nor the names are tested with
our own. Values are those of bfloat16, so that a checkpoint, its GGUF and the float32 oracle hold
the same numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.qwen4_exp import Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from quantkit.quantize import convert_checkpoint
from quantkit.quantize.encode import Rule, encode_gguf
from quantkit.runtime import sweep
from quantkit.weights import ModelWeights, open_model
from quantkit.weights.tokenizer import SPLIT_REGEX

EMBEDDED = Path(__file__).parents[1] / "quantkit" / "data" / "embedded"
VOCAB_SIZE = 320
EOS = 0
CPU = torch.device("cpu")
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("Ġ", "a")]

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    # 96 is a multiple of 32 but not of 64: some block types do not fit the rows of `down`.
    "moe_intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "eos_token_id": EOS,
}
_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "shared_expert_intermediate_size": 64,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
_QWEN4: dict[str, Any] = {
    "hc_count": 4,
    "hc_lowrank": 32,
    "ple_layer_ids": [2],
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 97,
    "make_ngram_vocab_size_divisible_by": 64,
    "split_ngram_parts": 2,
    "indexer_n_heads": 8,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_KINDS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen4exp": (Qwen4ExpTextConfig, Qwen4ExpForCausalLM, _COMMON | _DELTA_NET | _QWEN4),
    "qwen35moe": (Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, _COMMON | _DELTA_NET),
    "qwen3moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        _COMMON | {"num_hidden_layers": 2, "norm_topk_prob": True},
    ),
}
ARCHITECTURES = tuple(_KINDS)
_PRE = {"qwen4exp": "qwen35", "qwen35moe": "qwen35", "qwen3moe": "qwen2"}


def _scale(name: str, parameter: Tensor) -> float:
    """Standard deviation: norms and vectors vary visibly, matrices keep the size of their input."""
    if parameter.ndim == 1:
        return 0.2
    if "embed" in name:
        return 1.0
    fan_in = parameter.shape[-1] * (parameter.shape[1] if name.endswith("conv1d.weight") else 1)
    return 1.5 / math.sqrt(fan_in)


def random_model(arch: str, seed: int = 0, **overrides: Any) -> nn.Module:
    """A transformers model with random values everywhere, each one that of a bfloat16."""
    config_class, model_class, settings = _KINDS[arch]
    torch.manual_seed(seed)
    model = model_class(config_class(**(settings | overrides))).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape) * _scale(name, parameter)
        centre = parameter if parameter.ndim == 1 else 0
        parameter.copy_((centre + noise).bfloat16().float())
    return model


def save_checkpoint(model: nn.Module, folder: Path, arch: str) -> Path:
    """The model as transformers saves it (experts one by one) in BF16, with a tokenizer."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    rewrite(folder, {n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors.items()})
    save_tokenizer(folder, arch)
    return folder


def rewrite(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Replace the tensors of a checkpoint of one file."""
    ready = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(ready, folder / "model.safetensors", {"format": "pt"})


def fuse_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The layout of multimodal releases: experts of a layer stacked, gate and up in one tensor."""
    found = dict(tensors)
    prefixes = {name.split("experts.")[0] for name in tensors if ".experts." in name}
    for prefix in prefixes:
        n_experts = sum(name.startswith(f"{prefix}experts.") for name in tensors) // 3
        stacks = {
            part: torch.stack(
                [found.pop(f"{prefix}experts.{e}.{part}_proj.weight") for e in range(n_experts)]
            )
            for part in ("gate", "up", "down")
        }
        found[f"{prefix}experts.gate_up_proj"] = torch.cat((stacks["gate"], stacks["up"]), dim=1)
        found[f"{prefix}experts.down_proj"] = stacks["down"]
    return found


def save_tokenizer(folder: Path, arch: str) -> None:
    """Byte-level BPE with a few merges, special tokens at both ends of the vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *letters, *("".join(merge) for merge in MERGES)]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    split = pre_tokenizers.Split(Regex(SPLIT_REGEX[_PRE[arch]]), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>", "pad_token": None, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def edit_config(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@cache
def sample_tokens(n_sequences: int, length: int, seed: int = 1) -> Tensor:
    """Random tokens (n_sequences, length) with some ends of text inside."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCAB_SIZE, (n_sequences, length), generator=generator)
    tokens[0, length // 3] = EOS
    tokens[-1, [length // 2, length // 2 + 1, length - 2]] = EOS
    return tokens


def sample_text(n_words: int, seed: int = 1) -> str:
    """Words of the letters that the tokenizer merges, and of others."""
    generator = torch.Generator().manual_seed(seed)
    words = ["the", "in", "an", "a", "then", "Straße", "x1", "\n", "tin", "inn"]
    picks = torch.randint(0, len(words), (n_words,), generator=generator).tolist()
    return " ".join(words[pick] for pick in picks)


class Logits:
    """A sink that keeps everything; `rows[i]` are the parts of sequence i with their positions."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[int, Tensor]]] = {}

    def logits(self, sequence: int, first: int, scores: Tensor) -> None:
        self.rows.setdefault(sequence, []).append((first, scores))

    def stacked(self) -> Tensor:
        """Scores (n_sequences, n_positions, vocab)."""
        joined = (torch.cat([part for _, part in parts]) for parts in self.rows.values())
        return torch.stack(list(joined))


def sweep_logits(model: Path | ModelWeights, tokens: Tensor, **settings: Any) -> Tensor:
    """Logits (B, T, vocab) of the sweep."""
    opened = open_model(model) if isinstance(model, Path) else model
    sink = Logits()
    sweep(opened, [tokens], device=CPU, sink=sink, **settings)
    return sink.stacked()


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|, over everything."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@dataclass(frozen=True)
class Zoo:
    """Every model by architecture and container, made once in `folder`."""

    folder: Path

    def checkpoint(self, arch: str, *, fused: bool = False, seed: int = 0) -> Path:
        """A transformers folder, experts one by one or fused."""
        path = self.folder / f"{arch}-{seed}-{'fused' if fused else 'single'}"
        if not path.exists():
            save_checkpoint(random_model(arch, seed), path, arch)
            if fused:
                rewrite(path, fuse_experts(load_file(path / "model.safetensors")))
        return path

    def gguf(self, arch: str, seed: int = 0) -> Path:
        """The BF16 GGUF that `convert` makes."""
        path = self.folder / f"{arch}-{seed}.gguf"
        if not path.exists():
            convert_checkpoint(self.checkpoint(arch, seed=seed), path)
        return path

    def quantized(self, arch: str, *rules: str, seed: int = 0) -> Path:
        """The GGUF with types by `rules` (pattern=TYPE)."""
        stem = "-".join(rule.rpartition("=")[2] for rule in rules)
        path = self.folder / f"{arch}-{seed}-{stem}.gguf"
        if not path.exists():
            encode_gguf(self.gguf(arch, seed), path, [Rule.parse(rule) for rule in rules])
        return path
