"""No verb writes over a file that it was given, and bad outputs are refused before any work."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quantkit.containers.base import spec_of
from quantkit.containers.gguf import open_gguf, write_gguf
from quantkit.containers.hashing import sha256_file
from tests.cli.conftest import CALIB, EMBEDDED, Files, quantkit

TEXT = "capture.txt"


@pytest.fixture
def place(files: Files, tmp_path: Path) -> Path:
    """Every kind of input, under short names."""
    for name in ("bf16", "base", "small"):
        shutil.copy(getattr(files, name), tmp_path)
    shutil.copytree(EMBEDDED, tmp_path / "hf")
    shutil.copy(CALIB / TEXT, tmp_path)
    shutil.copy(CALIB / "check.yaml", tmp_path / "check.txt")
    shutil.copy(files.sensitivity, tmp_path / "sens.json")
    selected = quantkit("select", "sens.json", *TARGET, "--out", "sel.json", cwd=tmp_path)
    assert selected.code == 0, selected.stderr
    file = open_gguf(files.small)
    specs = [spec_of(entry) for entry in file.tensors.values()]
    write_gguf(tmp_path / "cut.gguf", file.metadata.carried(), specs, split_max_bytes=6_000_000)
    (tmp_path / "link.gguf").symlink_to("base.gguf")
    return tmp_path


TARGET = ["--target-gb", "0.02"]
SOURCES = ["--source", "base=base.gguf", "--source", "small=small.gguf"]
GATE = ["gate", "small.gguf", "--baseline", "base.gguf", "--reference", "hf"]
GATE += ["--text", f"selection={TEXT}", "--max-chunks", "2", "--context", "64"]
MEASURE = ["measure", "bf16.gguf", *SOURCES, "--text", TEXT, "--out"]
QUANTIZE = ["--rule", ".*=Q8_0"]
SHARD1, SHARD2 = (f"cut-0000{n}-of-00003.gguf" for n in (1, 2))
TENSORS = "hf/model-00001-of-00003.safetensors"
CASES = [
    (["splice", "sel.json", "sel.json", *SOURCES], "sel.json"),
    (["splice", "sel.json", "base.gguf", *SOURCES], "base.gguf"),
    (["splice", "sel.json", "link.gguf", *SOURCES], "base.gguf"),
    (["splice", "sel.json", SHARD2, *SOURCES, "--source", f"x={SHARD1}"], SHARD2),
    (["select", "sens.json", *TARGET, "--out", "sens.json"], "sens.json"),
    (["convert", "hf", TENSORS], TENSORS),
    (["convert", "hf", "hf/config.json"], "hf/config.json"),
    (["convert", "hf", "hf/tokenizer.json"], "hf/tokenizer.json"),
    (["quantize", "bf16.gguf", "bf16.gguf", *QUANTIZE], "bf16.gguf"),
    (["quantize", SHARD1, SHARD2, *QUANTIZE], SHARD2),
    ([*MEASURE, "bf16.gguf"], "bf16.gguf"),
    ([*MEASURE, "small.gguf"], "small.gguf"),
    ([*MEASURE, TEXT], TEXT),
    ([*GATE, "--out", "small.gguf"], "small.gguf"),
    ([*GATE, "--out", "base.gguf"], "base.gguf"),
    ([*GATE, "--out", "hf/config.json"], "hf/config.json"),
    ([*GATE, "--out", TEXT], TEXT),
    (["calib", "build", "check.txt"], "check.txt"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "victim"), CASES, ids=lambda v: v if isinstance(v, str) else v[0]
)
def test_inputs_are_never_written_over(arguments: list[str], victim: str, place: Path) -> None:
    before = {path: sha256_file(path) for path in place.rglob("*") if path.is_file()}
    for extra in ([], ["--dry-run"]):
        result = quantkit(*arguments, *extra, cwd=place)
        assert result.code == 3, result.stderr
        for word in ("overwrite one of its inputs", "file:", "value:", "rule:", "hint:", victim):
            assert word in result.stderr
    after = {path: sha256_file(path) for path in place.rglob("*") if path.is_file()}
    assert after == before
    assert (place / "link.gguf").is_symlink()


def test_provenance_that_would_replace_the_selection(place: Path) -> None:
    selection = (place / "sel.json").rename(place / "h.gguf.provenance.json")
    result = quantkit("splice", selection.name, "h.gguf", *SOURCES, cwd=place)
    assert result.code == 3
    assert "overwrite one of its inputs" in result.stderr
    assert not (place / "h.gguf").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [*GATE, "--out"],
        [*MEASURE],
        ["select", "sens.json", *TARGET, "--out"],
        ["quantize", "bf16.gguf", *QUANTIZE],
        ["convert", "hf"],
        ["splice", "sel.json", *SOURCES],
    ],
    ids=lambda words: words[0],
)
def test_a_folder_as_output_is_refused_at_once(arguments: list[str], place: Path) -> None:
    for extra in ([], ["--dry-run"]):
        result = quantkit(*arguments, "hf", *extra, cwd=place)
        assert result.code == 3, result.stderr
        assert "the output is a folder" in result.stderr
        assert not list(place.glob("*cache*"))


def test_a_default_output_folder_is_made(files: Files, tmp_path: Path) -> None:
    sensitivity = files.sensitivity
    assert quantkit("select", sensitivity, *TARGET, "--dry-run", cwd=tmp_path).code == 0
    assert list(tmp_path.iterdir()) == []
    assert quantkit("select", sensitivity, *TARGET, cwd=tmp_path).code == 0
    assert (tmp_path / "selections" / "sensitivity.json").is_file()


def test_two_manifests_of_one_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(CALIB / "check.yaml", other)
    result = quantkit("calib", "build", CALIB / "check.yaml", other / "check.yaml", "--out", other)
    assert result.code == 2
    assert "two manifests of one name" in result.stderr
