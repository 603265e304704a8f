"""The tokenizer that a GGUF describes cuts texts as the checkpoint's own does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.values import key_of
from quantkit.errors import ModelError
from quantkit.quantize import convert_checkpoint
from quantkit.weights.tokenizer import encode_text, load_tokenizer, read_vocabulary
from tests.tiny import EMBEDDED, VOCAB_SIZE, Zoo

TEXTS = st.text(
    st.one_of(
        st.sampled_from("the an in\n\r\t  '’0129äßéÅ𝄞日本٣‰_-#()"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
)
SPECIAL = ["<|endoftext|>", "<|im_end|>", "<think>", "'ll", "'S", " \n\n x", "é", "x̄"]

Pair = tuple[Tokenizer, Tokenizer]


@pytest.fixture(scope="module")
def tiny_pair(zoo: Zoo) -> Pair:
    return load_tokenizer(zoo.checkpoint("qwen4exp")), load_tokenizer(zoo.gguf("qwen4exp"))


@pytest.fixture(scope="module")
def qwen2_pair(zoo: Zoo) -> Pair:
    return load_tokenizer(zoo.checkpoint("qwen3moe")), load_tokenizer(zoo.gguf("qwen3moe"))


@pytest.fixture(scope="module")
def embedded_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    out = tmp_path_factory.mktemp("embedded") / "model.gguf"
    convert_checkpoint(EMBEDDED, out)
    return load_tokenizer(EMBEDDED), load_tokenizer(out)


@given(parts=st.lists(st.one_of(TEXTS, st.sampled_from(SPECIAL)), max_size=4))
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize("name", ["tiny_pair", "qwen2_pair", "embedded_pair"])
def test_same_tokens(name: str, parts: list[str], request: pytest.FixtureRequest) -> None:
    own, rebuilt = request.getfixturevalue(name)
    text = "".join(parts)
    assert encode_text(rebuilt, text) == encode_text(own, text)
    assert rebuilt.get_vocab_size() >= own.get_vocab_size()


def test_calibration_texts(embedded_pair: Pair) -> None:
    own, rebuilt = embedded_pair
    for path in sorted((Path(__file__).parents[2] / "calib").glob("*.txt")):
        text = path.read_text(encoding="utf-8")[:30_000]
        ids = encode_text(own, text)
        assert encode_text(rebuilt, text) == ids
        assert rebuilt.decode(ids) == text


def test_added_tokens_are_taken_whole(tiny_pair: Pair) -> None:
    """Also those that are not special, as `<think>` in released models."""
    for tokenizer in tiny_pair:
        ids = encode_text(tokenizer, "an<think>in<|im_end|>")
        assert [tokenizer.id_to_token(i) for i in ids] == ["an", "<think>", "in", "<|im_end|>"]


def test_no_token_is_added(tiny_pair: Pair) -> None:
    for tokenizer in tiny_pair:
        assert encode_text(tokenizer, "") == []
        assert encode_text(tokenizer, "the") == [tokenizer.token_to_id("the")]


class TestVocabulary:
    @pytest.fixture
    def folder(self, zoo: Zoo, tmp_path: Path) -> Path:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(zoo.checkpoint("qwen4exp") / name, tmp_path / name)
        return tmp_path

    def test_special_tokens_by_content_or_record(self, folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        settings_ = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}
        path.write_text(json.dumps(settings_))
        found = read_vocabulary(folder, VOCAB_SIZE)
        assert found.tokens[found.eos_token_id or 0] == "<|im_end|>"
        assert (found.padding_token_id, found.bos_token_id) == (0, None)
        assert found.chat_template is None

    def test_template_in_a_file_of_its_own(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("{{ own }}")
        assert read_vocabulary(folder, VOCAB_SIZE).chat_template == "{{ own }}"

    def test_merges_as_pairs_or_strings(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        spec = json.loads(path.read_text())
        wanted = read_vocabulary(folder, VOCAB_SIZE)
        spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
        path.write_text(json.dumps(spec))
        assert read_vocabulary(folder, VOCAB_SIZE) == wanted

    def test_without_settings(self, folder: Path) -> None:
        (folder / "tokenizer_config.json").unlink()
        assert read_vocabulary(folder, VOCAB_SIZE).eos_token_id is None


@pytest.mark.parametrize(
    ("key", "value"), [("tokenizer.ggml.model", "llama"), ("tokenizer.ggml.pre", "gpt-2")]
)
def test_other_tokenizers_are_refused(key: str, value: str, zoo: Zoo, tmp_path: Path) -> None:
    file = open_gguf(zoo.gguf("qwen3moe"))
    pair = pack_kv(key, ValueType.STRING, value)
    pairs = [pair if key_of(raw) == key else raw for raw in file.metadata.carried()]
    specs = [TensorSpec(e.name, e.shape, e.qtype, e.byte_range) for e in file.tensors.values()]
    write_gguf(tmp_path / "x.gguf", pairs, specs)
    with pytest.raises(ModelError, match="cannot rebuild") as caught:
        load_tokenizer(tmp_path / "x.gguf")
    assert value in str(caught.value.value)
    assert caught.value.hint
