"""Two models have one identity exactly when nothing that decides about results differs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from quantkit.weights.identity import file_id, model_files
from tests.tiny import Zoo

COUNTS = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "model.safetensors.index.json",
]  # fmt: skip


@pytest.fixture
def folder(zoo: Zoo, tmp_path: Path) -> Path:
    path = shutil.copytree(zoo.checkpoint("qwen3moe"), tmp_path / "model")
    names = dict.fromkeys(load_file(path / "model.safetensors"), "model.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    for name in COUNTS:
        if not (path / name).exists():
            (path / name).write_text("{}")
    return path


@pytest.mark.parametrize("name", COUNTS)
def test_every_file_that_decides_counts(name: str, folder: Path) -> None:
    before = model_files(folder)
    assert name in {file.name for file in before}
    (folder / name).write_text((folder / name).read_text() + "\n")
    after = model_files(folder)
    assert {a.name for a, b in zip(before, after, strict=True) if a != b} == {name}
    if name not in ("config.json", "model.safetensors.index.json"):
        (folder / name).unlink()
        assert model_files(folder) != after


def test_tensors_count_and_other_files_do_not(folder: Path) -> None:
    before = model_files(folder)
    assert "model.safetensors" in {file.name for file in before}
    (folder / "README.md").write_text("words")
    (folder / "gate.json").write_text("{}")
    assert model_files(folder) == before


def test_an_edit_within_the_clocks_step_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("a")
    status = path.stat()
    first = file_id(path)
    path.write_text("b")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_id(path).sha256 != first.sha256
