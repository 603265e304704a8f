"""Round trips, determinism, and every way a file can be wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from quantkit.artifacts.gate import FAIL, INCONCLUSIVE, PASS, GateReport, combine
from quantkit.artifacts.machine import describe_machine
from quantkit.artifacts.selection import Selection
from quantkit.artifacts.sensitivity import Sensitivity
from quantkit.artifacts.store import (
    Artifact,
    content_sha256,
    dumps,
    load,
    load_with_id,
    loads,
    save,
)
from quantkit.errors import ArtifactError, ContainerError, QuantkitError
from tests.artifacts.examples import examples, sensitivity, source_layer

BY_SCHEMA = {artifact.SCHEMA: artifact for artifact in examples()}
LATER_FIELDS: dict[str, Any] = {"contents": {}}


@pytest.fixture(params=BY_SCHEMA.values(), ids=BY_SCHEMA.keys())
def artifact(request: pytest.FixtureRequest) -> Artifact:
    made: Artifact = request.param
    return made


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a JSON document, containers included."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = [path] if path else []
    for key, item in items if isinstance(value, dict | list) else ():
        found += paths_of(item, (*path, key)) if isinstance(item, dict | list) else [(*path, key)]
    return found


def changed(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return copy


def test_round_trip_keeps_every_field_and_byte(artifact: Artifact, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    written = save(artifact, path)
    again, found = load_with_id(type(artifact), path)
    assert again == artifact
    assert found == written
    assert path.read_bytes() == dumps(again)
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert written.bytes == path.stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_every_field_is_required_and_typed(artifact: Artifact) -> None:
    """Drop each place, and put a wrong type in each; neither ever loads.

    Free-form maps (parameters, percentiles) may lose an entry, so only named fields are dropped.
    Those that earlier versions did not write have a default.
    """
    document = json.loads(dumps(artifact))
    fields = {f.name for f in dataclasses.fields(artifact)} - LATER_FIELDS.keys()
    dropped = 0
    for path in paths_of(document):
        wrong = changed(document, path, lambda parent, key: parent.__setitem__(key, {"a": [1]}))
        with pytest.raises(ArtifactError):
            loads(type(artifact), json.dumps(wrong).encode())
        if len(path) == 1 and path[0] in fields:
            without = changed(document, path, lambda parent, key: parent.pop(key))
            with pytest.raises(ArtifactError) as caught:
                loads(type(artifact), json.dumps(without).encode())
            assert f"'{path[0]}'" in str(caught.value)
            dropped += 1
    assert dropped == len(fields)


def test_earlier_versions_did_not_write_every_field() -> None:
    for cls in (Selection, Sensitivity):
        document = json.loads(dumps(BY_SCHEMA[cls.SCHEMA]))
        made = loads(cls, json.dumps(_without(document, LATER_FIELDS)).encode())
        assert all(getattr(made, name, value) == value for name, value in LATER_FIELDS.items())
        if isinstance(made, Sensitivity):
            assert [source.contents for source in made.sources] == [None, None]


def _without(value: Any, names: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, names) for key, item in value.items() if key not in names}
    return [_without(item, names) for item in value] if isinstance(value, list) else value


def test_unknown_fields_are_named_with_their_path(artifact: Artifact) -> None:
    document = json.loads(dumps(artifact)) | {"colour": 1}
    with pytest.raises(ArtifactError, match="field 'colour'"):
        loads(type(artifact), json.dumps(document).encode(), Path("x.json"))


def test_nested_field_is_named_by_its_path() -> None:
    document = json.loads(dumps(BY_SCHEMA[Sensitivity.SCHEMA]))
    document["sources"][1]["layers"][0]["errors"]["down"]["relative_error"] = "0.1"
    with pytest.raises(ArtifactError) as caught:
        loads(Sensitivity, json.dumps(document).encode(), Path("s.json"))
    text = str(caught.value)
    assert "sources[1].layers[0].errors.down.relative_error" in text
    assert "file: s.json" in text
    assert "rule: must be of type float" in text
    assert "hint: " in text


@pytest.mark.parametrize(
    ("field", "value"),
    [("schema", "quantkit.other"), ("schema_version", 99), ("tool_version", None)],
)
def test_other_schema_or_version_is_refused(artifact: Artifact, field: str, value: object) -> None:
    document = json.loads(dumps(artifact)) | {field: value}
    with pytest.raises(ArtifactError):
        loads(type(artifact), json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"{" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"schema": "quantkit.gate", "schema": "quantkit.gate"}',
        b'{"schema": NaN}',
        b"1" * 5000,
    ],
    ids=["empty", "list", "number", "not-utf8", "open", "deep", "twice", "nan", "huge-int"],
)
def test_hostile_json_raises_the_named_error(data: bytes, artifact: Artifact) -> None:
    with pytest.raises(ArtifactError):
        loads(type(artifact), data)


def test_truncated_at_any_byte_is_refused(artifact: Artifact) -> None:
    data = dumps(artifact)
    for end in range(0, len(data) - 2, max(1, len(data) // 50)):
        with pytest.raises(ArtifactError):
            loads(type(artifact), data[:end])


def test_missing_file_and_folder_say_what_to_do(artifact: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="hint:"):
        load(type(artifact), tmp_path / "none.json")
    with pytest.raises(ContainerError, match="hint:"):
        save(artifact, tmp_path / "none" / "a.json")


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    save(BY_SCHEMA[Selection.SCHEMA], path)
    before = path.read_bytes()
    good = BY_SCHEMA[Selection.SCHEMA]
    bad = dataclasses.replace(good, predicted_error=float("nan"))  # type: ignore[call-arg]
    with pytest.raises(ArtifactError):
        save(bad, path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_identity_ignores_the_machine_only() -> None:
    report = BY_SCHEMA[GateReport.SCHEMA]
    assert isinstance(report, GateReport)
    elsewhere = dataclasses.replace(report, machine=describe_machine(["cuda:0"], {"torch": "9"}))
    assert dumps(elsewhere) != dumps(report)
    assert content_sha256(elsewhere) == content_sha256(report)
    other = dataclasses.replace(report, meter="llama.cpp")
    assert content_sha256(other) != content_sha256(report)


def test_machine_description_is_stable() -> None:
    assert describe_machine() == describe_machine()
    assert describe_machine().processor


def test_unit_values_add_up() -> None:
    made = sensitivity({"base": [source_layer(0, (640, 0.1), (320, 0.2))]})
    layer = made.base.by_layer[0]
    assert layer.bytes_of("layer") == layer.bytes_of("gate_up") + layer.bytes_of("down") == 960
    assert [t.name.split("_")[1] for t in layer.tensors_of("layer")] == ["gate", "up", "down"]
    assert made.fixed_bytes == 1024 + 256 + 4096


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("header_bytes",), 1000, "multiple of 32"),
        (("overhead_bytes",), 8, "multiple of 32"),
        (("fixed_tensors", 0, "bytes"), 33, "padding"),
        (("sources", 1, "name"), "base", "must differ"),
        (("sources", 1, "layers", 1, "layer"), 0, "must rise"),
        (("sources", 1, "layers", 1, "layer"), 7, "no such MoE layer"),
        (("sources", 0, "layers"), [], "must start with the base"),
        (("sources", 0, "files"), [], "at least one file"),
        (("sources", 1, "layers", 0, "tensors", "down", 0, "row_length"), 512, "the base's"),
        (("sources", 1, "layers", 0, "tensors", "down", 0, "bytes"), 7, "padding"),
        (("sources", 1, "layers", 0, "tensors", "down"), [], "at least one tensor"),
        (("sources", 1, "layers", 0, "errors", "down", "relative_error"), -0.1, "must be 0 to"),
        (("sources", 1, "layers", 0, "errors", "down", "identity_cosine"), 1.5, "-1 and 1"),
        (("sources", 0, "files", 0, "sha256"), "ABC", "64 lower-case"),
        (("sources", 0, "files", 0, "name"), "/a/b.gguf", "without its folder"),
    ],
)
def test_sensitivity_rules(path: tuple[Any, ...], value: Any, words: str) -> None:
    document = json.loads(dumps(BY_SCHEMA[Sensitivity.SCHEMA]))
    bad = changed(document, path, lambda parent, key: parent.__setitem__(key, value))
    with pytest.raises(ArtifactError, match=words):
        loads(Sensitivity, json.dumps(bad).encode())


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("goal", "max_error"), 0.1, "exactly one"),
        (("goal", "target_bytes"), None, "exactly one"),
        (("goal", "target_bytes"), 5823, "at most 5823"),
        (("unit",), "both", "'layer' or 'split'"),
        (("unit",), "split", "unit mode 'split'"),
        (("choices", 0, "source"), "nobody", "one of the sources"),
        (("choices", 1, "layer"), 0, "chosen once"),
        (("choices", 1, "bytes"), 225, "must be fixed_bytes plus"),
    ],
)
def test_selection_rules(path: tuple[Any, ...], value: Any, words: str) -> None:
    document = json.loads(dumps(BY_SCHEMA[Selection.SCHEMA]))
    bad = changed(document, path, lambda parent, key: parent.__setitem__(key, value))
    with pytest.raises(ArtifactError, match=words):
        loads(Selection, json.dumps(bad).encode())


def test_verdict_must_follow_from_the_checks() -> None:
    document = json.loads(dumps(BY_SCHEMA[GateReport.SCHEMA])) | {"verdict": "FAIL"}
    with pytest.raises(ArtifactError, match="together give PASS"):
        loads(GateReport, json.dumps(document).encode())


def test_combined_verdict() -> None:
    assert combine([PASS, PASS]) == PASS
    assert combine([PASS, INCONCLUSIVE]) == INCONCLUSIVE
    assert combine([INCONCLUSIVE, FAIL, PASS]) == FAIL
    assert combine([]) == INCONCLUSIVE


def test_errors_end_with_the_bad_input_code() -> None:
    with pytest.raises(QuantkitError) as caught:
        loads(Selection, b"{}")
    assert caught.value.exit_code == 3
