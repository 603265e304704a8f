"""The tokenizer that a GGUF describes cuts texts as the checkpoint's own does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from quantkit.containers.base import TensorSpec, spec_of
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


Edit = Callable[[dict[str, Any]], object]
HOSTILE = [None, [], {}, "x", 5, True, [1], {"a": "b"}, [[1, 2]], [{"id": 1}], [None], 10**20]


def spec_of_places() -> Iterator[tuple[str, Edit]]:
    """Every place of tokenizer.json that is read, with every value that does not belong there."""
    places: list[tuple[str | int, ...]] = [
        ("model",), ("model", "type"), ("model", "vocab"), ("model", "vocab", "a"),
        ("model", "merges"), ("model", "merges", 0), ("added_tokens", 0), ("added_tokens",),
        ("added_tokens", 0, "id"), ("added_tokens", 0, "content"), ("added_tokens", 0, "special"),
        ("pre_tokenizer",), ("pre_tokenizer", "pretokenizers"),
        ("pre_tokenizer", "pretokenizers", 0), ("pre_tokenizer", "pretokenizers", 0, "pattern"),
        ("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"),
    ]  # fmt: skip
    for place in places:
        for value in HOSTILE:

            def edit(spec: dict[str, Any], place: Any = place, value: Any = value) -> None:
                *path, last = place
                inner: Any = spec
                for step in path:
                    inner = inner[step]
                inner[last] = value

            yield f"{'.'.join(map(str, place))}={value}", edit


HARMLESS = ("added_tokens.0.special=True", "added_tokens.0.special=None")
"""The second makes a token of the user's out of a special one, which is valid too."""


class TestDamagedCheckpoint:
    @pytest.fixture
    def folder(self, zoo: Zoo, tmp_path: Path) -> Path:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(zoo.checkpoint("qwen4exp") / name, tmp_path / name)
        return tmp_path

    def test_every_place(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        whole = path.read_text()
        for label, edit in spec_of_places():
            spec = json.loads(whole)
            edit(spec)
            path.write_text(json.dumps(spec))
            if label in HARMLESS:
                read_vocabulary(folder, VOCAB_SIZE)
                continue
            with pytest.raises(ModelError) as caught:
                read_vocabulary(folder, VOCAB_SIZE)
            assert "tokenizer" in str(caught.value.file), label

    @pytest.mark.parametrize(
        ("words", "edit"),
        [
            ("merges", lambda m: m.update(merges=[])),
            ("merges", lambda m: m.update(merges=m["merges"][:2])),
            ("merges", lambda m: m.pop("merges")),
            ("merges", lambda m: m["merges"].append("th q")),
            ("merges", lambda m: m["merges"].append("th")),
            ("merges", lambda m: m["merges"].append("t  he")),
            ("vocab", lambda m: m.update(vocab={})),
            ("vocab", lambda m: m["vocab"].update({"": 300})),
            ("vocab", lambda m: m["vocab"].update({"\ud800": 300})),
            ("vocab", lambda m: m["vocab"].update(zz=3)),
            ("vocab", lambda m: m["vocab"].update(zz=-1)),
        ],
    )
    def test_vocabulary(self, words: str, edit: Edit, folder: Path) -> None:
        path = folder / "tokenizer.json"
        spec = json.loads(path.read_text())
        edit(spec["model"])
        path.write_text(json.dumps(spec))
        with pytest.raises(ModelError, match=words) as caught:
            read_vocabulary(folder, VOCAB_SIZE)
        assert caught.value.file == str(path)
        assert caught.value.rule
        assert caught.value.hint

    @pytest.mark.parametrize("name", ["eos_token", "bos_token", "pad_token", "chat_template"])
    def test_settings(self, name: str, folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        for value in (5, True, {}, {"content": 5}, {"content": [1]}, "\ud800"):
            path.write_text(json.dumps({name: value}))
            with pytest.raises(ModelError) as caught:
                read_vocabulary(folder, VOCAB_SIZE)
            assert caught.value.file == str(path)
            assert name in caught.value.render()

    @pytest.mark.parametrize("token", [[], "<|nowhere|>", "a"])
    def test_end_of_text_that_is_no_added_token(self, token: Any, folder: Path) -> None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        with pytest.raises(ModelError, match="eos_token"):
            read_vocabulary(folder, VOCAB_SIZE)

    @pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
    def test_not_utf8(self, name: str, folder: Path) -> None:
        (folder / name).write_bytes(b"\xff\xfe")
        with pytest.raises(ModelError, match="cannot read") as caught:
            read_vocabulary(folder, VOCAB_SIZE)
        assert caught.value.file == str(folder / name)

    @pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b"{"])
    def test_broken_files(self, raw: bytes, folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_bytes(raw)
        for read in (load_tokenizer, lambda folder: read_vocabulary(folder, VOCAB_SIZE)):
            with pytest.raises(ModelError) as caught:
                read(folder)
            assert caught.value.file == str(path)


STRINGS = (ValueType.ARRAY, ValueType.STRING)
NUMBERS = (ValueType.ARRAY, ValueType.INT32)


@pytest.mark.parametrize(
    ("key", "kinds", "value"),
    [
        ("token_type", NUMBERS, [1, 1]),
        ("token_type", NUMBERS, [9] * VOCAB_SIZE),
        ("token_type", (ValueType.UINT32, None), 3),
        ("merges", STRINGS, ["th"]),
        ("merges", STRINGS, ["th qqq"]),
        ("merges", STRINGS, ["\udcff a"]),
        ("merges", NUMBERS, [1]),
        ("merges", None, None),
        ("tokens", None, None),
        ("tokens", STRINGS, []),
        ("tokens", STRINGS, ["a"] * VOCAB_SIZE),
        ("tokens", STRINGS, [f"t{i}" for i in range(VOCAB_SIZE - 1)] + ["\udcff"]),
        ("tokens", STRINGS, [f"t{i}" for i in range(VOCAB_SIZE - 1)] + [""]),
        ("tokens", NUMBERS, [1] * VOCAB_SIZE),
        ("pre", STRINGS, ["qwen2"]),
        ("pre", (ValueType.UINT32, None), 1),
        ("model", STRINGS, ["gpt2"]),
        ("model", None, None),
    ],
)
def test_damaged_metadata(
    key: str,
    kinds: tuple[ValueType, ValueType | None] | None,
    value: Any,
    zoo: Zoo,
    tmp_path: Path,
) -> None:
    file = open_gguf(zoo.gguf("qwen3moe"))
    full, out = f"tokenizer.ggml.{key}", tmp_path / "x.gguf"
    pairs = [raw for raw in file.metadata.carried() if key_of(raw) != full]
    if kinds is not None:
        pairs.append(pack_kv(full, kinds[0], value, kinds[1]))
    write_gguf(out, pairs, [spec_of(entry) for entry in file.tensors.values()])
    with pytest.raises(ModelError) as caught:
        load_tokenizer(out)
    assert caught.value.file == str(out)
    assert caught.value.hint


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
