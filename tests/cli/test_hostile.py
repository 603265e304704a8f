"""Inputs that somebody made to hurt: numbers, names, pipes and devices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import CALIB, EMBEDDED, Files, quantkit
from tests.cli.test_bad_input import TEXT, refused


def put(document: Any, path: tuple[Any, ...], value: object) -> None:
    *parents, last = path
    for key in parents:
        document = document[key]
    document[last] = value


LAYER = ("sources", 0, "layers", 0)
ERROR = (*LAYER, "errors", "down", "relative_error")
BYTES = (*LAYER, "tensors", "down", 0, "bytes")
NUMBERS: dict[str, tuple[tuple[Any, ...], object]] = {
    "an integer for a float": (ERROR, 10**400),
    "errors whose sum overflows": (ERROR, 1e308),
    "bytes beyond the solver": (BYTES, 2**53),
    "bytes whose sum is beyond it": (BYTES, 2**53 - 32),
    "a huge header": (("header_bytes",), 32 * 10**400),
    "huge room for the provenance": (("overhead_bytes",), 2**53),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_no_measurement_gives(name: str, files: Files, tmp_path: Path) -> None:
    document = json.loads(files.sensitivity.read_text())
    put(document, *NUMBERS[name])
    changed = tmp_path / "sensitivity.json"
    changed.write_text(json.dumps(document))
    result = quantkit("select", changed, "--target-gb", 0.016, "--out", tmp_path / "s.json")
    refused(result, "is not valid", "rule:", folder=tmp_path, before=[changed])


def test_a_huge_overhead_in_a_selection(files: Files, tmp_path: Path) -> None:
    selection = tmp_path / "s.json"
    quantkit("select", files.sensitivity, "--target-gb", 1, "--out", selection)
    document = json.loads(selection.read_text())
    selection.write_text(json.dumps(document | {"overhead_bytes": 2**53 - 32}))
    result = quantkit("splice", selection, tmp_path / "h.gguf", *files.sources)
    refused(result, "overhead_bytes", "rule:", folder=tmp_path, before=[selection])


@pytest.mark.parametrize("name", ["../../../etc/passwd", "a\0b", "..", ""])
@pytest.mark.parametrize("verb", ["check", "build"])
def test_a_manifest_that_names_a_file_elsewhere(verb: str, name: str, tmp_path: Path) -> None:
    manifest = yaml.safe_load((CALIB / "check.yaml").read_text())
    path = tmp_path / "check.yaml"
    path.write_text(yaml.safe_dump(manifest | {"name": name}))
    result = quantkit("calib", verb, path)
    assert result.code == 3, result.stderr
    assert "field 'name'" in result.stderr


RECIPE_PATHS: list[tuple[Any, ...]] = [
    ("model",),
    ("work",),
    ("texts", "capture"),
    ("quantizations", 0, "file"),
]
RECIPE_NUMBERS: list[tuple[tuple[Any, ...], object]] = [
    (("hybrids", 0, "target_gb"), 10**400),
    (("hybrids", 0, "target_gb"), 1e308),
    (("hybrids", 0, "target_gb"), 5e-324),
    (("measure", "tokens"), 10**400),
    (("gate", "context"), 10**30),
]


@pytest.mark.parametrize(
    ("path", "value"), [*((path, "a\0b") for path in RECIPE_PATHS), *RECIPE_NUMBERS], ids=str
)
def test_recipes(path: tuple[Any, ...], value: object, tmp_path: Path) -> None:
    recipe = yaml.safe_load((CALIB.parent / "recipes" / "tiny-hybrid.yaml").read_text())
    recipe.setdefault("measure", {})
    if path[0] == "quantizations":
        recipe["quantizations"][0].pop("rules")
    put(recipe, path, value)
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    result = quantkit("run", tmp_path / "r.yaml", cwd=tmp_path)
    assert result.code == 3, result.stderr
    assert str(path[-1]) in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["r.yaml"]


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
def test_pipes_and_devices_are_no_inputs(kind: str, files: Files, tmp_path: Path) -> None:
    given, out = Path(kind), tmp_path / "out"
    if kind == "pipe":
        given = tmp_path / kind
        os.mkfifo(given)
    models = ["--baseline", files.base, "--reference", files.bf16]
    for arguments in (
        ["inspect", given],
        ["run", given],
        ["calib", "check", given],
        ["select", given, "--target-gb", 1, "--out", out],
        ["splice", given, out, *files.sources],
        ["quantize", given, out, "--rule", ".*=Q8_0"],
        ["measure", files.bf16, *files.sources, "--text", given, "--out", out],
        ["measure", given, *files.sources, *TEXT, "--out", out],
        ["gate", files.small, *models, "--text", f"selection={given}", "--out", out],
    ):
        result = quantkit(*arguments)
        assert result.code == 3, (arguments, result.stderr)
        assert str(given) in result.stderr


def test_a_checkpoint_is_no_donor(files: Files, tmp_path: Path) -> None:
    sources = ["--source", f"base={files.base}", "--source", f"hf={EMBEDDED}"]
    result = quantkit("measure", files.bf16, *sources, *TEXT, "--out", tmp_path / "s.json")
    refused(result, "no GGUF in this folder", folder=tmp_path, before=[])
