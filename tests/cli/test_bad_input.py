"""Bad input: exit 3, a message with file, value, rule and hint, and nothing half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from quantkit.containers.base import spec_of
from quantkit.containers.gguf import GGUFFile, TensorSpec, ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.values import key_of
from quantkit.qtypes import by_name
from tests.cli.conftest import CALIB, EMBEDDED, Files, Result, quantkit

TEXT = ["--text", CALIB / "capture.txt"]


def refused(result: Result, *words: str, folder: Path, before: Iterable[Path]) -> None:
    assert result.code == 3, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in (*words, "hint:"):
        assert word in result.stderr, f"{word!r} is not in:\n{result.stderr}"
    assert sorted(folder.iterdir()) == sorted(before), "something was left behind"


def rewritten(file: GGUFFile, out: Path, changed: dict[str, TensorSpec]) -> Path:
    specs = [changed.get(name, spec_of(entry)) for name, entry in file.tensors.items()]
    write_gguf(out, file.metadata.carried(), specs)
    return out


def test_truncated_file(files: Files, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    data = files.small.read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    sources = ["--source", f"base={files.base}", "--source", f"cut={cut}"]
    result = quantkit("measure", files.bf16, *sources, *TEXT, "--out", tmp_path / "s.json")
    refused(result, "cut.gguf", "tensor:", "rule:", folder=tmp_path, before=[cut])


def test_missing_shard(files: Files, tmp_path: Path) -> None:
    selection = tmp_path / "s.json"
    target = files.small.stat().st_size / 1e9 + 0.001
    quantkit("select", files.sensitivity, "--target-gb", target, "--out", selection)
    split = ["--split-max-size", "5M"]
    assert quantkit("splice", selection, tmp_path / "h.gguf", *files.sources, *split).code == 0
    shards = sorted(tmp_path.glob("h-*.gguf"))
    shards[1].unlink()
    before = list(tmp_path.iterdir())
    result = quantkit("inspect", shards[0])
    refused(result, shards[1].name, folder=tmp_path, before=before)


def test_donor_of_another_model(files: Files, tmp_path: Path) -> None:
    file = open_gguf(files.small)
    other = open_gguf(files.bf16)
    name = "blk.2.ffn_gate_exps.weight"
    foreign = other.tensors["blk.5.ffn_gate_exps.weight"]
    spec = TensorSpec(name, foreign.shape, foreign.qtype, foreign.byte_range)
    donor = rewritten(file, tmp_path / "foreign.gguf", {name: spec})
    sources = ["--source", f"base={files.base}", "--source", f"foreign={donor}"]
    result = quantkit("measure", files.bf16, *sources, *TEXT, "--out", tmp_path / "s.json")
    refused(result, "other experts", name, "cosine", "rule:", folder=tmp_path, before=[donor])


def test_donor_with_permuted_experts(files: Files, tmp_path: Path) -> None:
    file = open_gguf(files.small)
    changed = {}
    for part in ("gate", "up", "down"):
        entry = file.tensors[f"blk.3.ffn_{part}_exps.weight"]
        n_experts = entry.shape[0]
        slices = entry.parts()["data"].reshape(n_experts, -1)
        order = [1, 0, *range(2, n_experts)]
        data = slices[order].tobytes()
        changed[entry.name] = TensorSpec(
            entry.name, entry.shape, entry.qtype, lambda data=data: [data]
        )
    donor = rewritten(file, tmp_path / "permuted.gguf", changed)
    sources = ["--source", f"base={files.base}", "--source", f"permuted={donor}"]
    result = quantkit("measure", files.bf16, *sources, *TEXT, "--out", tmp_path / "s.json")
    refused(result, "permuted experts", "blk.3.", "rule:", folder=tmp_path, before=[donor])


def not_a_number(source: Path, out: Path, name: str) -> Path:
    """The model with one tensor that is all NaN."""
    file = open_gguf(source)
    entry = file.tensors[name]
    data = np.full(entry.shape, np.nan, np.float32).tobytes()
    spec = TensorSpec(name, entry.shape, by_name("F32"), lambda: [data])
    return rewritten(file, out, {name: spec})


ROUTER = "blk.3.ffn_gate_inp.weight"


@pytest.mark.parametrize("role", ["candidate", "baseline", "reference"])
def test_models_that_compute_nothing_are_named(role: str, files: Files, tmp_path: Path) -> None:
    models = {"candidate": files.small, "baseline": files.base, "reference": files.bf16}
    models[role] = not_a_number(models[role], tmp_path / "nan.gguf", ROUTER)
    words = ["--baseline", models["baseline"], "--reference", models["reference"]]
    words += ["--text", f"selection={CALIB / 'selection.txt'}", "--max-chunks", 2]
    out = ["--context", 64, "--out", tmp_path / "gate.json"]
    result = quantkit("gate", models["candidate"], *words, *out)
    assert result.code == 3, result.stderr
    for word in ("file:", "nan.gguf", "rule:", "hint:"):
        assert word in result.stderr
    assert not (tmp_path / "gate.json").exists()


@pytest.mark.parametrize("name", [ROUTER, "blk.3.ffn_down_exps.weight"])
def test_a_reference_that_computes_nothing_is_named(
    name: str, files: Files, tmp_path: Path
) -> None:
    model = not_a_number(files.bf16, tmp_path / "nan.gguf", name)
    result = quantkit("measure", model, *files.sources, *TEXT, "--out", tmp_path / "s.json")
    refused(result, "nan.gguf", "layer 3", "rule:", folder=tmp_path, before=[model])


def test_target_below_the_floor(files: Files, tmp_path: Path) -> None:
    select = ["select", files.sensitivity, "--target-gb", 0.001, "--out", tmp_path / "s.json"]
    refused(quantkit(*select), "1000000 bytes", "rule:", folder=tmp_path, before=[])


def test_text_shorter_than_one_chunk(files: Files, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too short to say anything.", encoding="utf-8")
    models = ["--baseline", files.base, "--reference", files.bf16, "--out", tmp_path / "gate.json"]
    result = quantkit("gate", files.small, *models, "--text", f"selection={short}")
    assert result.code == 3
    assert "too short" in result.stderr
    assert "short.txt" in result.stderr
    assert not (tmp_path / "gate.json").exists()


def smaller_vocabulary(source: Path, out: Path, n_tokens: int) -> Path:
    """The model with its last tokens cut off."""
    file = open_gguf(source)
    tokens = file.metadata["tokenizer.ggml.tokens"][:n_tokens]
    known = set(tokens)
    merges = [m for m in file.metadata["tokenizer.ggml.merges"] if m.replace(" ", "", 1) in known]
    values = {
        "tokenizer.ggml.tokens": (tokens, ValueType.STRING),
        "tokenizer.ggml.merges": (merges, ValueType.STRING),
        "tokenizer.ggml.token_type": (
            file.metadata["tokenizer.ggml.token_type"][:n_tokens],
            ValueType.INT32,
        ),
    }
    pairs = []
    for raw in file.metadata.carried():
        key = key_of(raw)
        if key in values:
            raw = pack_kv(key, ValueType.ARRAY, values[key][0], values[key][1])
        pairs.append(raw)
    specs = []
    for name, entry in file.tensors.items():
        if name in ("token_embd.weight", "output.weight"):
            data = entry.parts()["data"].reshape(entry.shape[0], -1)[:n_tokens].tobytes()
            shape = (n_tokens, entry.shape[1])
            specs.append(TensorSpec(name, shape, entry.qtype, lambda data=data: [data]))
        else:
            specs.append(spec_of(entry))
    write_gguf(out, pairs, specs)
    return out


def test_another_vocabulary(files: Files, tmp_path: Path) -> None:
    cut = smaller_vocabulary(files.base, tmp_path / "vocabulary.gguf", 4000)
    models = ["--baseline", files.base, "--reference", files.bf16, "--out", tmp_path / "gate.json"]
    result = quantkit("gate", cut, *models, *files.texts, "--max-chunks", 2)
    assert result.code == 3, result.stderr
    for word in ("vocabulary", "4000", "4096", "rule:", "hint:"):
        assert word in result.stderr
    assert not (tmp_path / "gate.json").exists()


def test_a_rule_that_no_tensor_is_left_for(files: Files, tmp_path: Path) -> None:
    result = quantkit("quantize", files.bf16, tmp_path / "o.gguf", "--rule", "token_embd=Q8_0")
    refused(result, "no tensor", "rule:", folder=tmp_path, before=[])


def test_checkpoint_without_a_shard(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED, folder)
    shards = sorted(folder.glob("model-*.safetensors"))
    shards[-1].unlink()
    result = quantkit("convert", folder, tmp_path / "o.gguf")
    refused(result, shards[-1].name, folder=tmp_path, before=[folder])


def test_checkpoint_of_an_unknown_architecture(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama9"}))
    result = quantkit("convert", folder, tmp_path / "o.gguf")
    refused(result, "llama9", "rule:", folder=tmp_path, before=[folder])


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        ([], 2, "exactly one of"),
        (["--target-gb", "1", "--max-error", "1"], 2, "exactly one of"),
        (["--target-gb", "1", "--unit", "tensor"], 2, "layer, split"),
    ],
)
def test_goals_that_select_cannot_aim_at(
    files: Files, tmp_path: Path, arguments: list[str], code: int, word: str
) -> None:
    out = ["--out", tmp_path / "s.json"]
    result = quantkit("select", files.sensitivity, *arguments, *out)
    assert result.code == code, result.stderr
    assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_folder_that_does_not_exist(files: Files, tmp_path: Path) -> None:
    result = quantkit("quantize", files.bf16, tmp_path / "no" / "o.gguf", "--rule", ".*=Q8_0")
    refused(result, "folder does not exist", folder=tmp_path, before=[])


def test_files_that_do_not_exist(tmp_path: Path) -> None:
    for arguments in (
        ["inspect", tmp_path / "no.gguf"],
        ["select", tmp_path / "no.json", "--target-gb", "1"],
        ["convert", tmp_path / "no", tmp_path / "o.gguf"],
        ["run", tmp_path / "no.yaml"],
    ):
        result = quantkit(*arguments)
        assert result.code == 3, (arguments, result.stderr)
        assert "no" in result.stderr
        assert "Traceback" not in result.stderr
