"""`inspect` on the embedded model, its quantizations and hybrids, and on files it knows less of."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest

from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import load
from quantkit.containers.base import spec_of
from quantkit.containers.gguf import TensorSpec, ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.values import key_of
from quantkit.containers.safetensors import open_safetensors
from quantkit.errors import ContainerError
from quantkit.pipeline.recipe import EMBEDDED_FOLDER
from quantkit.qtypes import by_name
from quantkit.report.inspect import inspect_model
from quantkit.report.inspection import Inspection
from tests.pipeline.short import ShortRun

MODELS = ("reference", "q4_0", "iq4_nl", "q2_0", "near", "far")


def _add_up(found: Inspection) -> None:
    """Every byte of the file is accounted for, once."""
    tensor_bytes = sum(row.bytes for row in found.types)
    assert found.header_bytes + found.padding_bytes + tensor_bytes == found.bytes
    assert sum(row.parameters for row in found.types) == found.parameters
    assert found.bpw == pytest.approx(8 * tensor_bytes / found.parameters)
    if found.groups:
        assert sum(row.bytes for row in found.groups) == tensor_bytes
        assert sum(row.parameters for row in found.groups) == found.parameters
        for row in found.groups:
            assert sum(row.types.values()) == row.bytes


@pytest.mark.parametrize("name", MODELS)
def test_the_bytes_of_a_gguf_add_up(name: str, shared: ShortRun) -> None:
    path = shared.root / "models" / f"{name}.gguf"
    found = inspect_model(path)
    _add_up(found)
    assert found.bytes == path.stat().st_size
    entries = open_gguf(path).tensors.values()
    assert sum(row.tensors for row in found.types) == len(entries)
    assert found.header_bytes == min(entry.offset for entry in entries)
    # A tensor starts on a multiple of 32, so at most 31 bytes are lost behind each.
    assert 0 <= found.padding_bytes < 32 * len(entries)
    assert found.architecture == "qwen4exp"
    assert found.name == "embedded"
    assert found.note is None


def test_the_bytes_of_a_checkpoint_add_up() -> None:
    found = inspect_model(EMBEDDED_FOLDER)
    _add_up(found)
    shards = sorted(EMBEDDED_FOLDER.glob("*.safetensors"))
    assert found.files == tuple(path.name for path in shards)
    assert found.bytes == sum(path.stat().st_size for path in shards)
    entries = open_safetensors(EMBEDDED_FOLDER).tensors.values()
    assert found.parameters == sum(
        prod(entry.shape) for entry in entries if entry.qtype.name == "BF16"
    )
    assert {row.qtype for row in found.types} == {"BF16", "I64"}
    assert found.bpw == pytest.approx(16, abs=1e-3)
    groups = {row.group: row for row in found.groups}
    assert "multi-token prediction" in groups


def test_checkpoint_and_gguf_have_the_same_groups(shared: ShortRun) -> None:
    """The converted model lacks the MTP head and integer constants, and nothing else."""
    ours = {row.group: row.parameters for row in inspect_model(EMBEDDED_FOLDER).groups}
    theirs = {row.group: row.parameters for row in inspect_model(_path(shared, "reference")).groups}
    assert ours.pop("multi-token prediction") > 0
    assert ours.pop("norms and other", 0) == theirs.pop("norms and other", 0)
    assert ours == theirs


def _path(shared: ShortRun, name: str) -> Path:
    return shared.root / "models" / f"{name}.gguf"


def test_geometry_and_groups_of_the_embedded_model(shared: ShortRun) -> None:
    config = json.loads((EMBEDDED_FOLDER / "config.json").read_text())
    found = inspect_model(_path(shared, "q4_0"))
    geometry = found.geometry
    assert geometry is not None
    assert geometry.n_layers == config["num_hidden_layers"]
    assert geometry.context_length == config["max_position_embeddings"]
    assert geometry.n_experts == config["num_experts"]
    assert geometry.n_experts_used == config["num_experts_per_tok"]
    groups = {row.group: row for row in found.groups}
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    weights = geometry.n_layers * geometry.n_experts * hidden * inner
    for name in ("experts, gate", "experts, up", "experts, down"):
        assert groups[name].parameters == weights
        assert groups[name].types == {"Q4_0": weights // 32 * 18}
    assert groups["embedding"].parameters == config["vocab_size"] * hidden
    assert groups["head"].parameters == config["vocab_size"] * hidden
    table = groups["n-gram table"]
    assert found.parameters_without_table == found.parameters - table.parameters
    rest = sum(row.bytes for row in found.types) - table.bytes
    assert found.bpw_without_table == pytest.approx(8 * rest / found.parameters_without_table)
    assert found.label == "experts 4.50 bits per weight (Q4_0 100%)"


def test_bytes_read_per_token(shared: ShortRun) -> None:
    """From the tensors' names and sizes, without roles."""
    path = _path(shared, "far")
    config = json.loads((EMBEDDED_FOLDER / "config.json").read_text())
    used, of = config["num_experts_per_tok"], config["num_experts"]
    rows = (config["ngram_size"] - 1) * config["heads_per_ngram"]
    expected = 0
    for name, entry in open_gguf(path).tensors.items():
        share = {"token_embd.weight": 1, "per_layer_token_embd.weight": rows}.get(name)
        if "_exps." in name:
            expected += entry.nbytes * used // of
        elif share is not None:
            expected += entry.nbytes * share // entry.shape[0]
        else:
            expected += entry.nbytes
    geometry = inspect_model(path).geometry
    assert geometry is not None
    assert geometry.active_bytes_per_token == expected


def test_a_hybrid_shows_its_layers_and_where_they_come_from(shared: ShortRun) -> None:
    chosen = load(Selection, shared.root / "selections" / "far.json")
    found = inspect_model(_path(shared, "far"))
    types = {"q4_0": "Q4_0", "iq4_nl": "IQ4_NL", "q2_0": "Q2_0"}
    assert len({choice.source for choice in chosen.choices}) > 1
    for layer, choice in zip(found.layers, chosen.choices, strict=True):
        assert layer.layer == choice.layer
        assert {layer.gate, layer.up, layer.down} == {types[choice.source]}
        assert not layer.mixed
    assert found.provenance["source.names"][0] == "q4_0"
    for choice in chosen.choices:
        units = found.provenance["selection"].get(str(choice.layer))
        assert units == (None if choice.source == "q4_0" else {"layer": choice.source})
    assert "padding" not in found.provenance
    text = found.render()
    assert "made by quantkit" in text
    assert chosen.sources[0].files[0].sha256 in text


def test_mixed_layers_and_a_wrong_file_type_are_marked(shared: ShortRun, tmp_path: Path) -> None:
    source = open_gguf(_path(shared, "q4_0"))
    other = open_gguf(_path(shared, "iq4_nl")).tensors
    swapped = "blk.3.ffn_down_exps.weight"
    tensors = [
        TensorSpec(e.name, e.shape, e.qtype, e.byte_range)
        for e in (other[n] if n == swapped else e for n, e in source.tensors.items())
    ]
    stated = pack_kv("general.file_type", ValueType.UINT32, 2)
    pairs = [
        stated if key == "general.file_type" else source.metadata.raw(key)
        for key in source.metadata
    ]
    write_gguf(tmp_path / "mixed.gguf", pairs, tensors)
    found = inspect_model(tmp_path / "mixed.gguf")
    _add_up(found)
    assert [layer.layer for layer in found.layers if layer.mixed] == [3]
    assert found.layers[3].down == "IQ4_NL"
    assert found.file_type is not None
    assert (found.file_type.stated, found.file_type.actual) == ("Q4_0", "Q8_0")
    assert found.file_type.agrees is False
    text = found.render()
    assert "metadata says Q4_0, but most weights are Q8_0" in text
    assert [line.split()[0] for line in text.splitlines() if line.endswith("mixed")] == ["3"]


def test_json_is_plain_and_complete(shared: ShortRun) -> None:
    found = inspect_model(_path(shared, "near"))
    document = json.loads(json.dumps(found.to_json()))
    assert document["bytes"] == found.bytes
    assert document["geometry"]["n_experts_used"] == 4
    assert document["groups"][0]["types"] == found.groups[0].types


def _unknown(path: Path, *, arch: str | None = "mystery", **tensors: tuple[int, ...]) -> Path:
    pairs = [] if arch is None else [pack_kv("general.architecture", ValueType.STRING, arch)]
    shapes = tensors or {"a.weight": (4, 64)}

    def zeros(nbytes: int):
        return lambda: iter([bytes(nbytes)])

    q8 = by_name("Q8_0")
    specs = [
        TensorSpec(name, shape, q8, zeros(q8.nbytes(prod(shape)))) for name, shape in shapes.items()
    ]
    write_gguf(path, pairs, specs)
    return path


@pytest.mark.parametrize("arch", ["mystery", None, "qwen4exp"])
def test_a_model_we_do_not_know_gets_its_types_counted(arch: str | None, tmp_path: Path) -> None:
    found = inspect_model(_unknown(tmp_path / "m.gguf", arch=arch))
    _add_up(found)
    assert found.architecture == arch
    assert (found.groups, found.layers, found.geometry) == ((), (), None)
    assert found.types[0].qtype == "Q8_0"
    assert found.types[0].bytes == 4 * 64 // 32 * 34
    assert found.label == "8.50 bits per weight (Q8_0 100%)"
    assert found.note
    assert f"unknown: {found.note}" in found.render()


def test_safetensors_without_a_config(tmp_path: Path) -> None:
    file = sorted(EMBEDDED_FOLDER.glob("*.safetensors"))[0]
    alone = tmp_path / "part.safetensors"
    alone.write_bytes(file.read_bytes())
    for path in (alone, tmp_path):
        found = inspect_model(path)
        _add_up(found)
        assert found.bytes == file.stat().st_size
        assert found.note == "no config.json"


def test_a_file_without_tensors_and_one_that_is_no_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "empty.gguf", [], [])
    found = inspect_model(tmp_path / "empty.gguf")
    assert found.header_bytes + found.padding_bytes == found.bytes
    assert (found.parameters, found.bpw) == (0, 0.0)
    assert found.render()
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ContainerError):
        inspect_model(tmp_path / "text.gguf")
    with pytest.raises(ContainerError):
        inspect_model(tmp_path / "nowhere.gguf")


def test_nothing_is_decoded(shared: ShortRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> np.ndarray:
        raise AssertionError("inspect reads headers only")

    monkeypatch.setattr("quantkit.codecs.decode", refuse)
    monkeypatch.setattr("quantkit.weights.handle.codecs.decode", refuse)
    assert inspect_model(_path(shared, "near")).groups


def _with_keys(source: Path, out: Path, *pairs: bytes) -> Path:
    """A copy with these pairs in place of those of the same names."""
    file = open_gguf(source)
    names = [key_of(pair) for pair in pairs]
    kept = [file.metadata.raw(key) for key in file.metadata if key not in names]
    write_gguf(out, [*kept, *pairs], [spec_of(entry) for entry in file.tensors.values()])
    return out


@pytest.mark.parametrize(
    ("key", "kind", "value", "item"),
    [
        ("selection", ValueType.STRING, "abc", None),
        ("selection", ValueType.STRING, "[" * 100_000, None),
        ("selection", ValueType.STRING, '{"a": {}}', None),
        ("selection", ValueType.STRING, '{"0": "q4"}', None),
        ("selection", ValueType.STRING, '{"0": {"down": 3}}', None),
        ("selection", ValueType.STRING, '{"' + "9" * 5000 + '": {}}', None),
        ("selection", ValueType.UINT32, 0, None),
        ("selection", ValueType.ARRAY, [1, 2], ValueType.INT32),
        ("source.names", ValueType.UINT32, 0, None),
        ("source.names", ValueType.FLOAT32, float("nan"), None),
        ("source.names", ValueType.ARRAY, ["one"], ValueType.STRING),
        ("source.files", ValueType.ARRAY, [1.5], ValueType.FLOAT32),
        ("tool_version", ValueType.ARRAY, [True], ValueType.BOOL),
        ("other", ValueType.FLOAT64, float("nan"), None),
    ],
)
def test_bad_provenance_is_a_note(
    key: str,
    kind: ValueType,
    value: object,
    item: ValueType | None,
    shared: ShortRun,
    tmp_path: Path,
) -> None:
    pair = pack_kv(f"quantkit.{key}", kind, value, item)
    found = inspect_model(_with_keys(_path(shared, "far"), tmp_path / "x.gguf", pair))
    assert found.note is None
    assert found.geometry is not None
    assert found.provenance_note
    assert found.provenance_note in found.render()
    assert inspect_model(_path(shared, "far")).provenance_note is None
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("key", "kind", "value", "item"),
    [
        ("general.name", ValueType.ARRAY, [1], ValueType.INT32),
        ("general.name", ValueType.FLOAT32, float("nan"), None),
        ("general.file_type", ValueType.STRING, "x", None),
        ("general.file_type", ValueType.FLOAT32, float("nan"), None),
        ("general.architecture", ValueType.ARRAY, ["qwen4exp"], ValueType.STRING),
        ("qwen4exp.context_length", ValueType.STRING, "abc", None),
        ("qwen4exp.expert_used_count", ValueType.ARRAY, [1], ValueType.INT32),
        ("qwen4exp.hyper_connection.count", ValueType.UINT32, 0, None),
    ],
)
def test_keys_of_another_type(
    key: str,
    kind: ValueType,
    value: object,
    item: ValueType | None,
    shared: ShortRun,
    tmp_path: Path,
) -> None:
    pair = pack_kv(key, kind, value, item)
    found = inspect_model(_with_keys(_path(shared, "q2_0"), tmp_path / "x.gguf", pair))
    _add_up(found)
    assert found.render()
    json.dumps(found.to_json(), allow_nan=False)
    if not key.startswith("general.") or key == "general.architecture":
        assert key in str(found.note)


def test_scales_belong_to_their_weights(shared: ShortRun, tmp_path: Path) -> None:
    file = open_gguf(_path(shared, "q2_0"))
    specs = [spec_of(entry) for entry in file.tensors.values()]
    data = np.ones(24, np.float32).tobytes()
    name = "blk.0.ffn_down_exps.scale"
    specs.append(TensorSpec(name, (24,), by_name("F32"), lambda: [data]))
    write_gguf(tmp_path / "x.gguf", file.metadata.carried(), specs)
    found, plain = inspect_model(tmp_path / "x.gguf"), inspect_model(_path(shared, "q2_0"))
    _add_up(found)
    down, before = (
        next(row for row in i.groups if row.group == "experts, down") for i in (found, plain)
    )
    assert down.types == before.types | {"F32": 96}
    assert down.tensors == before.tensors + 1


def test_an_index_that_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ContainerError, match="without tensors"):
        inspect_model(tmp_path)
