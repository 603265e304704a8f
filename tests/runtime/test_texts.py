"""Texts as whole chunks of tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from quantkit.errors import TextError
from quantkit.runtime.texts import BATCH_SEQUENCES, read_chunks
from quantkit.weights.tokenizer import encode_text, load_tokenizer
from tests.tiny import Zoo, sample_text


@pytest.fixture(scope="module")
def tokenizer(zoo: Zoo) -> Tokenizer:
    return load_tokenizer(zoo.checkpoint("qwen3moe"))


def test_chunks_are_the_tokens_in_order(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text(sample_text(200), encoding="utf-8")
    ids = encode_text(tokenizer, sample_text(200))
    found = read_chunks(path, tokenizer, 64)
    n_chunks = len(ids) // 64
    assert found.tokens.shape == (n_chunks, 64)
    assert found.context == 64
    assert found.tokens.flatten().tolist() == ids[: n_chunks * 64], "the rest is dropped"
    assert found.file.name == "t.txt"
    assert found.file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert torch.equal(read_chunks(path, tokenizer, 64, 3).tokens, found.tokens[:3])
    batches = read_chunks(path, tokenizer, 16).batches()
    assert {len(batch) for batch in batches[:-1]} == {BATCH_SEQUENCES}


def test_at_least_two_chunks(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a" * 199)
    with pytest.raises(TextError, match="too short") as caught:
        read_chunks(path, tokenizer, 100)
    assert caught.value.value == "199 tokens"
    assert caught.value.file == str(path)
    path.write_text("a" * 200)
    assert len(read_chunks(path, tokenizer, 100).tokens) == 2
    assert len(read_chunks(path, tokenizer, 100, 1).tokens) == 1


def test_unreadable_texts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes("Stra\u00dfe".encode("latin-1") * 100)
    for broken in (path, tmp_path / "none.txt", tmp_path):
        with pytest.raises(TextError, match="cannot read the text") as caught:
            read_chunks(broken, tokenizer, 8)
        assert caught.value.hint
