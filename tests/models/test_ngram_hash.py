"""The constants of the n-gram hash against the buffers that transformers makes and stores."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    Qwen4ExpTextNGramEmbedding,
    _build_layer_multipliers,
)

from quantkit.models import ngram_hash
from quantkit.models.hf_config import config_from_hf
from tests.tiny import EMBEDDED, random_model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ngram_size": 4, "heads_per_ngram": 3, "ple_embed_dim": 144},
        {"seed": 99, "ngram_vocab_size_base": 500},
        {"ngram_vocab_size_base": 101},
        {"vocab_size": 256},
    ],
)
def test_constants_are_the_buffers(changes: dict[str, Any]) -> None:
    config = random_model("qwen4exp", **changes).config
    module = Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, 1)
    found = config_from_hf(config.to_dict()).ngram
    assert found is not None
    assert list(found.multipliers) == module.layer_multipliers.tolist()
    assert list(found.head_offsets) == module.ngram_heads_offsets.tolist()
    assert list(found.head_vocab_sizes) == module.ngram_heads_vocab_sizes.tolist()


@given(
    vocab_size=st.integers(1, 2**20),
    ngram_size=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    module=st.integers(0, 3),
)
@settings(max_examples=50)
def test_multipliers(vocab_size: int, ngram_size: int, seed: int, module: int) -> None:
    found = ngram_hash.multipliers(vocab_size, ngram_size, seed, module)
    assert list(found) == _build_layer_multipliers(vocab_size, ngram_size, module, seed).tolist()
    assert all(m % 2 == 1 for m in found)
    assert all(m * (vocab_size - 1) < 2**63 for m in found)


def test_later_modules_go_on_with_the_next_primes() -> None:
    first, second = (ngram_hash.head_vocab_sizes(90, 3, module) for module in (0, 1))
    assert (first, second) == ((97, 101, 103), (107, 109, 113))
    assert ngram_hash.head_vocab_sizes(2, 4) == (2, 3, 5, 7)
    assert ngram_hash.head_offsets(second) == (0, 107, 216)


def test_embedded_model_stores_the_derived_constants() -> None:
    config = config_from_hf(json.loads((EMBEDDED / "config.json").read_text())).ngram
    assert config is not None
    stored = {
        name.rpartition(".")[2]: value.tolist()
        for path in EMBEDDED.glob("*.safetensors")
        for name, value in load_file(path).items()
        if "layer_multipliers" in name or "ngram_heads_" in name
    }
    assert stored == {
        "layer_multipliers": list(config.multipliers),
        "ngram_heads_offsets": list(config.head_offsets),
        "ngram_heads_vocab_sizes": list(config.head_vocab_sizes),
    }
