"""`convert`: a transformers checkpoint as a BF16 GGUF that llama.cpp loads.

Tensors are decoded, brought into llama.cpp's form and encoded piece by piece, so that the largest
thing in memory is one dense tensor or one expert. The multi-token prediction head and a vision
tower stay out: llama.cpp reads them from files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quantkit import codecs
from quantkit.containers.gguf import (
    TensorSpec,
    ValueType,
    gguf_file_bytes,
    pack_kv,
    write_gguf,
)
from quantkit.containers.safetensors import open_safetensors
from quantkit.errors import ModelError
from quantkit.models.arch import layer_roles, model_roles
from quantkit.models.config import ModelConfig
from quantkit.models.gguf_config import GATE_ACTIVATION, Pair, gguf_pairs
from quantkit.models.roles import EXPERT_ROLES, Role
from quantkit.models.transforms import to_gguf_layout
from quantkit.qtypes import QType, by_name
from quantkit.weights import ModelWeights, TensorHandle, open_model
from quantkit.weights.tokenizer import Vocabulary, read_vocabulary

BF16, F32 = by_name("BF16"), by_name("F32")
FILE_TYPE_BF16 = 32
QUANTIZATION_VERSION = 2
HEAD_NAME = "lm_head.weight"
TABLE_ROWS = 1 << 18
"""Rows of the n-gram table that are converted at a time."""


def convert_checkpoint(folder: Path, out: Path, *, name: str | None = None) -> list[Path]:
    """Write the checkpoint in `folder` to `out`; returns the files.

    Raises ModelError for an architecture or a setting that llama.cpp could not run faithfully.
    """
    pairs, specs = plan_conversion(folder, name)
    return write_gguf(out, pairs, specs, progress_label="convert")


def converted_bytes(folder: Path, *, name: str | None = None) -> int:
    """Exact size of what `convert_checkpoint` would write; decodes nothing."""
    return gguf_file_bytes(*plan_conversion(folder, name))


def plan_conversion(folder: Path, name: str | None) -> tuple[list[bytes], list[TensorSpec]]:
    """Packed metadata and tensors of the BF16 GGUF of a checkpoint; ModelError as above."""
    if not (folder / "config.json").is_file():
        raise ModelError(
            "not a transformers checkpoint",
            file=folder,
            rule="a folder with config.json, tokenizer.json and safetensors",
            hint="give the folder that the model was downloaded to",
        )
    model = open_model(folder)
    _check_faithful(model)
    _check_tied_head(model)
    vocabulary = read_vocabulary(folder, model.config.vocab_size)
    pairs = metadata_pairs(model.config, vocabulary, name or folder.resolve().name)
    return pairs, tensor_specs(model)


def _check_faithful(model: ModelWeights) -> None:
    for field, value, rule in _unfaithful(model.config):
        raise ModelError(
            f"llama.cpp cannot run this model as its config.json says ({field})",
            file=model.path / "config.json",
            value=value,
            rule=rule,
            hint="llama.cpp would compute something else or not load it, so no file is written",
        )


def _check_tied_head(model: ModelWeights) -> None:
    """A head that config.json gives up for the embedding may be stored, but only as its copy."""
    tensors = open_safetensors(model.path).tensors
    head, embedding = tensors.get(HEAD_NAME), model.top["token_embd"].pieces[0].entry
    if not model.config.tied_head or head is None:
        return
    if head.nbytes != embedding.nbytes or head.sha256() != embedding.sha256():
        raise ModelError(
            "a head of its own in a checkpoint whose config.json ties it to the embedding",
            file=head.path,
            tensor=head.name,
            value="tie_word_embeddings is true",
            rule=f"the bytes of {embedding.name}, or no such tensor",
            hint="use the config.json that belongs to this checkpoint",
        )


def _unfaithful(c: ModelConfig) -> Iterator[tuple[str, object, str]]:
    """(field of config.json, value, what llama.cpp's graphs of this architecture presume)."""
    if not c.moe.renormalize:
        yield "norm_topk_prob", False, "llama.cpp always renormalises the chosen experts"
    if c.delta_net:
        gate, wanted = c.delta_net.gate_activation, GATE_ACTIVATION[c.arch]
        if gate != wanted:
            yield "output_gate_type", gate, f"{c.arch} means {wanted}"
        if c.delta_net.value_dim != c.delta_net.key_dim:
            rule = f"as wide as a key head, {c.delta_net.key_dim}"
            yield "linear_value_head_dim", c.delta_net.value_dim, rule
    if c.ngram and c.ngram.row_dim * c.ngram.n_heads != c.hidden:
        width = c.ngram.row_dim * c.ngram.n_heads
        yield "ple_embed_dim", width, f"the hidden size, {c.hidden}"


def metadata_pairs(config: ModelConfig, vocabulary: Vocabulary, name: str) -> list[bytes]:
    """All key-value pairs of the file, packed."""
    v = vocabulary
    pairs = [
        Pair("general.architecture", "STRING", config.arch),
        Pair("general.type", "STRING", "model"),
        Pair("general.name", "STRING", name),
        Pair("general.file_type", "UINT32", FILE_TYPE_BF16),
        Pair("general.quantization_version", "UINT32", QUANTIZATION_VERSION),
        *gguf_pairs(config),
        Pair("tokenizer.ggml.model", "STRING", "gpt2"),
        Pair("tokenizer.ggml.pre", "STRING", v.pre),
        Pair("tokenizer.ggml.tokens", "ARRAY", v.tokens, "STRING"),
        Pair("tokenizer.ggml.token_type", "ARRAY", v.token_types, "INT32"),
        Pair("tokenizer.ggml.merges", "ARRAY", v.merges, "STRING"),
        Pair("tokenizer.ggml.add_bos_token", "BOOL", False),
    ]
    for key in ("eos", "bos", "padding"):
        number = getattr(v, f"{key}_token_id")
        if number is not None:
            pairs.append(Pair(f"tokenizer.ggml.{key}_token_id", "UINT32", number))
    if v.chat_template is not None:
        pairs.append(Pair("tokenizer.chat_template", "STRING", v.chat_template))
    return [
        pack_kv(p.key, ValueType[p.kind], p.value, ValueType[p.item] if p.item else None)
        for p in pairs
    ]


def tensor_specs(model: ModelWeights) -> list[TensorSpec]:
    """Every tensor of the file, with the function that makes its bytes."""
    c = model.config
    specs = [_spec(role, None, model.top[role.name], c) for role in model_roles(c)]
    for i, handles in enumerate(model.layers):
        specs += [_spec(role, i, handles[role.name], c) for role in layer_roles(c, i)]
    return specs


def _spec(role: Role, layer: int | None, handle: TensorHandle, config: ModelConfig) -> TensorSpec:
    shape = handle.shape
    # Axes of length 1 come and go between checkpoints; `weights.fit` has compared the others.
    if role.hf_form == "squeeze":
        shape = (prod(shape[:-1]), shape[-1])
    if role.name == "shared_gate_row":
        shape = (prod(shape),)
    qtype = F32 if role.float32 or len(shape) == 1 else BF16
    return TensorSpec(role.gguf_name(layer), shape, qtype, _bytes(role, handle, qtype, config))


def _bytes(
    role: Role, handle: TensorHandle, qtype: QType, config: ModelConfig
) -> Callable[[], Iterator[memoryview]]:
    def pieces() -> Iterator[Tensor]:
        if role.name in EXPERT_ROLES:
            yield from (handle.expert(e) for e in range(config.moe.n_experts))
        elif role.name == "ngram_table":
            for start in range(0, handle.shape[0], TABLE_ROWS):
                stop = min(start + TABLE_ROWS, handle.shape[0])
                yield handle.rows(torch.arange(start, stop))
        else:
            yield to_gguf_layout(handle.value(), role.gguf_layout, config)

    def encoded() -> Iterator[memoryview]:
        for values in pieces():
            array = np.ascontiguousarray(values.numpy(), dtype=np.float32)
            yield codecs.encode(qtype, array)["data"].data

    return encoded
