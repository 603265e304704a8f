"""Rules to types, and what becomes of every tensor."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from quantkit import codecs
from quantkit.containers.base import TensorEntry, TensorSpec
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf, pack_kv, write_gguf
from quantkit.errors import FormatError, QuantkitError
from quantkit.qtypes import by_name
from quantkit.quantize import encode
from quantkit.quantize import source as source_module
from quantkit.quantize.encode import Rule, encode_gguf, encoded_bytes, is_kept_float, make_plan
from quantkit.weights import open_model
from tests.tiny import Zoo, relative_error, sample_tokens, sweep_logits

EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"


def types(file: GGUFFile, *rules: str) -> dict[str, str]:
    plan = make_plan(file.path, [Rule.parse(rule) for rule in rules])
    return {e.entry.name: e.qtype.name for e in plan.encodings}


@pytest.fixture
def file(zoo: Zoo) -> GGUFFile:
    return open_gguf(zoo.gguf("qwen4exp"))


def test_first_rule_that_matches_wins(file: GGUFFile) -> None:
    found = types(file, r"blk\.0\.ffn_up_exps\.weight=Q4_0", f"{EXPERTS}=Q8_0", ".*=Q5_0")
    assert found["blk.0.ffn_up_exps.weight"] == "Q4_0"
    assert found["blk.1.ffn_up_exps.weight"] == "Q8_0"
    assert found["blk.0.attn_qkv.weight"] == "Q5_0"


def test_patterns_match_whole_names(file: GGUFFile) -> None:
    """`ffn_down` alone would also hit the shared expert and the hyper-connections."""
    with pytest.raises(QuantkitError, match="no tensor is left for"):
        types(file, "ffn_down=Q8_0")
    found = types(file, r"blk\.1\.ffn_down_exps\.weight=Q8_0")
    assert [name for name, qtype in found.items() if qtype == "Q8_0"] == [
        "blk.1.ffn_down_exps.weight"
    ]


@pytest.mark.parametrize(
    ("rules", "unused"),
    [
        ((".*=Q8_0", f"{EXPERTS}=Q4_0"), EXPERTS),
        ((r"blk\.99\..*=Q8_0",), r"blk\.99\..*"),
        ((r"blk\.0\.ffn_gate_inp\.weight=Q8_0",), r"blk\.0\.ffn_gate_inp\.weight"),
    ],
)
def test_rule_without_a_tensor(file: GGUFFile, rules: tuple[str, ...], unused: str) -> None:
    """Shadowed by an earlier one, matching nothing, or matching only what stays F32."""
    with pytest.raises(QuantkitError, match="no tensor is left for") as caught:
        types(file, *rules)
    assert caught.value.value == unused
    assert caught.value.file == str(file.path)


def test_vectors_and_routers_stay(file: GGUFFile) -> None:
    found = types(file, ".*=Q8_0")
    for name, entry in file.tensors.items():
        kept = len(entry.shape) == 1 or "ffn_gate_inp" in name or "ssm_conv1d" in name
        assert (found[name] == "F32") == kept, name
        assert is_kept_float(name) <= (found[name] == "F32")


def test_rows_that_do_not_fit_fall_back(file: GGUFFile) -> None:
    """Rows of 96 are no multiple of 64, rows of 4 of nothing; as llama-quantize does it."""
    found = types(file, ".*=Q2_0")
    assert found["blk.0.ffn_gate_exps.weight"] == "Q2_0"
    assert found["blk.0.ffn_down_exps.weight"] == "Q4_0"
    assert found["per_layer_token_embd.weight"] == "Q4_0"
    # BF16 already; F16 would not be smaller.
    assert found["blk.1.ple_conv1d.weight"] == "BF16"


def test_no_fallback_names_the_tensor(file: GGUFFile) -> None:
    with pytest.raises(FormatError, match="do not fit Q1_0") as caught:
        types(file, f"{EXPERTS}=Q1_0")
    assert caught.value.tensor == "blk.0.ffn_down_exps.weight"
    assert caught.value.file == str(file.path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Q8_0", "not a rule"),
        ("=Q8_0", "not a rule"),
        ("(=Q8_0", "not a regular expression"),
        (".*=Q9_9", "unknown type"),
        (".*=IQ2_XXS", "a type that we cannot write"),
        (".*=I32", "a type that we cannot write"),
    ],
)
def test_broken_rules(text: str, words: str) -> None:
    with pytest.raises(QuantkitError, match=words) as caught:
        Rule.parse(text)
    assert caught.value.rule


def digest(entry: TensorEntry) -> str:
    return hashlib.sha256(entry.parts()["data"]).hexdigest()


def test_untouched_tensors_and_keys_are_copied(file: GGUFFile, tmp_path: Path) -> None:
    done = encode_gguf(file.path, tmp_path / "out.gguf", [Rule.parse(f"{EXPERTS}=IQ4_NL")])
    out = open_gguf(tmp_path / "out.gguf")
    assert list(out.tensors) == list(file.tensors)
    touched = {e.entry.name for e in done.plan.encodings if not e.is_copy}
    assert len(touched) == 12
    for name, entry in file.tensors.items():
        if name not in touched:
            assert digest(out.tensors[name]) == digest(entry)
    for key in file.metadata:
        if key != "general.file_type":
            assert out.metadata.raw(key) == file.metadata.raw(key)
    assert out.metadata["general.file_type"] == 25
    assert (tmp_path / "out.gguf").stat().st_size == encoded_bytes(
        file.path, [Rule.parse(f"{EXPERTS}=IQ4_NL")]
    )


def test_a_rule_for_the_own_type_copies(file: GGUFFile, tmp_path: Path) -> None:
    encode_gguf(file.path, tmp_path / "out.gguf", [Rule.parse(".*=BF16")])
    assert (tmp_path / "out.gguf").read_bytes() == file.path.read_bytes()


def test_encoded_values_are_the_codecs(
    file: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block of rows by block of rows, with the same bytes as all at once."""
    monkeypatch.setattr(source_module, "CHUNK_ELEMENTS", 1000)
    encode_gguf(file.path, tmp_path / "out.gguf", [Rule.parse(f"{EXPERTS}=Q4_0")])
    name = "blk.2.ffn_down_exps.weight"
    source, found = file.tensors[name], open_gguf(tmp_path / "out.gguf").tensors[name]
    values = codecs.decode(source.qtype, source.parts(), source.shape)
    wanted = codecs.encode(by_name("Q4_0"), values)["data"]
    assert found.qtype.name == "Q4_0"
    assert np.array_equal(found.parts()["data"], wanted)


def test_quantized_files_can_be_encoded_again(zoo: Zoo, tmp_path: Path) -> None:
    source = zoo.quantized("qwen3moe", f"{EXPERTS}=Q8_0")
    encode_gguf(source, tmp_path / "out.gguf", [Rule.parse(f"{EXPERTS}=F32")])
    tokens = sample_tokens(2, 20)
    found = sweep_logits(tmp_path / "out.gguf", tokens)
    assert relative_error(found, sweep_logits(source, tokens)) < 1e-6


def test_shards_become_one_file(zoo: Zoo, tmp_path: Path) -> None:
    whole = zoo.gguf("qwen3moe")
    source = open_gguf(whole)
    specs = [TensorSpec(e.name, e.shape, e.qtype, e.byte_range) for e in source.tensors.values()]
    pairs = source.metadata.carried()
    shards = write_gguf(tmp_path / "s.gguf", pairs, specs, split_max_bytes=500_000)
    assert len(shards) > 2
    rules = [Rule.parse(f"{EXPERTS}=Q8_0")]
    encode_gguf(shards[0], tmp_path / "a.gguf", rules)
    encode_gguf(whole, tmp_path / "b.gguf", rules)
    a, b = (open_gguf(tmp_path / f"{name}.gguf") for name in "ab")
    assert {n: digest(e) for n, e in a.tensors.items()} == {
        n: digest(e) for n, e in b.tensors.items()
    }
    assert a.metadata["quantkit.source.files"] == [path.name for path in shards]
    assert b.metadata["quantkit.source.files"] == [whole.name]


def test_label_is_the_type_of_most_weights(file: GGUFFile) -> None:
    def label(*rules: str) -> int:
        return encode.file_type(make_plan(file.path, [*map(Rule.parse, rules)]).encodings)

    assert label(f"{EXPERTS}=MXFP4", ".*=Q8_0") == 38
    assert label("output\\.weight=Q8_0") == 32


def test_file_types_are_llamacpps() -> None:
    """The numbers of enum llama_ftype (include/llama.h) that gguf-py also has."""
    gguf = pytest.importorskip("gguf")
    known = {
        t.name.removeprefix("MOSTLY_").removeprefix("ALL_"): int(t) for t in gguf.LlamaFileType
    }
    shared = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "Q3_K": "Q3_K_M"}
    for name, number in encode.FILE_TYPES.items():
        theirs = known.get(shared.get(name, name))
        assert theirs in (None, number), name
    assert sum(name in known for name in encode.FILE_TYPES) > 15


def test_error_grows_as_bits_fall(zoo: Zoo) -> None:
    tokens = sample_tokens(2, 60)
    wanted = sweep_logits(zoo.gguf("qwen3moe"), tokens)
    errors = [
        relative_error(sweep_logits(zoo.quantized("qwen3moe", f"{EXPERTS}={q}"), tokens), wanted)
        for q in ("Q8_0", "IQ4_NL", "Q2_0")
    ]
    assert 0 < errors[0] < errors[1] < errors[2]


def test_no_trace_after_a_failure(file: GGUFFile, tmp_path: Path) -> None:
    """A tensor of a type that nobody can decode: named error, no output."""
    opaque = TensorSpec("x.weight", (4, 32), by_name("Q8_0"), lambda: [bytes(136)])
    source = tmp_path / "in.gguf"
    write_gguf(source, [pack_kv("general.architecture", ValueType.STRING, "x")], [opaque])
    raw = bytearray(source.read_bytes())
    raw[raw.index(b"x.weight") + 8 + 4 + 16] = 200
    source.write_bytes(raw)
    with pytest.raises(QuantkitError):
        encode_gguf(source, tmp_path / "out.gguf", [Rule.parse(".*=Q4_0")])
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_encoded_model_opens(zoo: Zoo) -> None:
    model = open_model(zoo.quantized("qwen4exp", f"{EXPERTS}=Q2_0", ".*=Q8_0"))
    assert model.layers[0]["experts_gate"].qtype.name == "Q2_0"
    assert model.layers[0]["experts_down"].qtype.name == "Q4_0"
