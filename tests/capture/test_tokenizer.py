"""The tokenizer: lossless, the same in transformers and llama.cpp."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from quantkit.capture.texts import load_text
from quantkit.capture.texts.tokenizer import (
    PRE_TOKENIZER,
    SPECIAL_TOKENS,
    TOKENIZER_FILES,
    save_tokenizer,
    train_tokenizer,
)
from quantkit.weights.tokenizer import read_vocabulary

CALIB = Path(__file__).parents[2] / "calib"
VOCAB_SIZE = 600
ODD = (
    "a  b\t\tc \n\n  d\r\n\r\n I'LL it's don’t ſ's 'ſ K 1234567 ½²① नमस्ते e\u0301x u\u0308 "
    '你好　世界 \u200b x\u00a0\u00a0y 😀👍🏽 \\" <p> \x00\x7f   \n \n\t\n .'
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [load_text(CALIB / f"{name}.yaml") for name in ("check", "heldout")]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str]) -> Tokenizer:
    return train_tokenizer(texts, VOCAB_SIZE)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(tokenizer, [path / name for name in TOKENIZER_FILES], context_length=256)
    return path


def test_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]


@given(text=st.text())
def test_lossless(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_training_is_deterministic(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert train_tokenizer(texts, VOCAB_SIZE).to_str() == tokenizer.to_str()


def test_transformers_loads_it(tokenizer: Tokenizer, folder: Path, texts: list[str]) -> None:
    loaded = PreTrainedTokenizerFast.from_pretrained(folder)
    assert len(loaded) == VOCAB_SIZE
    assert loaded.eos_token_id == loaded.pad_token_id == 0
    assert loaded.bos_token is None
    assert loaded.model_max_length == 256
    for text in (texts[0], ODD):
        assert loaded(text)["input_ids"] == tokenizer.encode(text, add_special_tokens=False).ids
        assert loaded.decode(loaded(text)["input_ids"]) == text
    turn = [{"role": "user", "content": "hi"}]
    chat = loaded.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert loaded(chat)["input_ids"][0] == 1


@pytest.mark.peer
def test_llama_cpp_makes_the_same_tokens(
    tokenizer: Tokenizer, folder: Path, texts: list[str], tmp_path: Path
) -> None:
    program = shutil.which("llama-tokenize")
    if program is None:
        pytest.skip("llama-tokenize is not on the PATH")
    model, text_file = tmp_path / "vocab.gguf", tmp_path / "text.txt"
    _write_vocabulary(model, folder)
    text = "\n".join([*texts, ODD.replace("\x00", "")])
    text_file.write_bytes(text.encode())
    flags = ["--ids", "--log-disable", "--no-escape", "--no-bos", "--no-parse-special"]
    command = [program, "--model", str(model), "--file", str(text_file), *flags]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert ast.literal_eval(result.stdout.strip().splitlines()[-1]) == expected


def _write_vocabulary(path: Path, folder: Path) -> None:
    vocabulary = read_vocabulary(folder, VOCAB_SIZE)
    assert vocabulary.pre == PRE_TOKENIZER
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.token_types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    # llama.cpp reads the sizes of a model even when it only wants the vocabulary.
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
