"""Every verb: help, JSON, dry run, exit codes and what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import load
from quantkit.cli.main import VERBS
from quantkit.containers.hashing import sha256_file
from tests.cli.conftest import CALIB, EXPERTS, Files, command, environment, quantkit

VERB_WORDS = [[verb] for verb in VERBS if verb != "calib"] + [
    ["calib", "build"],
    ["calib", "check"],
]


@pytest.mark.parametrize("words", VERB_WORDS, ids=" ".join)
def test_help_has_an_example_and_the_common_options(words: list[str]) -> None:
    result = quantkit(*words, "--help")
    assert result.code == 0
    assert f"quantkit {' '.join(words)}" in result.stdout or "quantkit calib" in result.stdout
    assert "--json" in result.stdout
    assert "--dry-run" in result.stdout


def test_top_level_help_lists_every_verb() -> None:
    result = quantkit("--help")
    assert result.code == 0
    assert all(verb in result.stdout for verb in VERBS)


def test_no_arguments_and_a_wrong_verb_are_usage_errors() -> None:
    assert quantkit().code == 2
    assert quantkit("frobnicate").code == 2
    assert quantkit("select").code == 2


def test_select_does_not_import_torch() -> None:
    code = (
        "import sys; from quantkit.cli.main import build_app; build_app(['select']);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([command([])[0], "-c", code], env=environment(), check=False)
    assert done.returncode == 0


def test_written_files_are_reported_with_their_hash(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "again.gguf"
    rules = ["--rule", f"{EXPERTS}=IQ4_NL", "--rule", ".*=Q8_0"]
    result = quantkit("quantize", files.bf16, out, *rules, "--json")
    assert result.code == 0, result.stderr
    (record,) = json.loads(result.stdout)["written"]
    assert record == {
        "path": str(out),
        "bytes": out.stat().st_size,
        "sha256": sha256_file(out),
    }
    assert record["sha256"] == sha256_file(files.base), "same inputs, same bytes"


def test_dry_runs_write_nothing_and_predict_the_size(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "never.gguf"
    rules = ["--rule", f"{EXPERTS}=IQ4_NL", "--rule", ".*=Q8_0"]
    result = quantkit("quantize", files.bf16, out, *rules, "--dry-run", "--json")
    assert json.loads(result.stdout)["would_write"] == {str(out): files.base.stat().st_size}
    embedded = CALIB.parent / "quantkit" / "data" / "embedded"
    result = quantkit("convert", embedded, out, "--name", "embedded", "--dry-run", "--json")
    assert json.loads(result.stdout)["would_write"] == {str(out): files.bf16.stat().st_size}
    assert list(tmp_path.iterdir()) == []


def test_inspect_gives_the_sizes_of_the_file(files: Files) -> None:
    result = quantkit("inspect", files.base, "--json")
    assert result.code == 0, result.stderr
    assert "IQ4_NL" in result.stdout
    assert quantkit("inspect", files.base).code == 0


def test_select_splice_gate(files: Files, tmp_path: Path) -> None:
    selection, hybrid = tmp_path / "s.json", tmp_path / "h.gguf"
    target = (files.base.stat().st_size + files.small.stat().st_size) / 2e9
    select = ["select", files.sensitivity, "--target-gb", target, "--out", selection]
    result = quantkit(*select)
    assert result.code == 0, result.stderr
    chosen = load(Selection, selection)
    assert {choice.source for choice in chosen.choices} == {"base", "small"}

    result = quantkit("splice", selection, hybrid, *files.sources)
    assert result.code == 0, result.stderr
    assert hybrid.stat().st_size == chosen.predicted_file_bytes <= target * 1e9

    models = ["--baseline", files.base, "--reference", files.bf16]
    report = tmp_path / "gate.json"
    result = quantkit(
        "gate", hybrid, *models, *files.texts, "--max-chunks", 6, "--out", report, "--json"
    )
    assert result.code == 1, result.stderr
    assert json.loads(result.stdout)["report"]["verdict"] == "FAIL"

    loose = ["--bar", "kld_combined_standard_errors=1000", "--bar", "max_excess_share=1000"]
    loose += ["--bar", "top1_points_lower=100", "--bar", "max_top1_halfwidth_points=100"]
    cache = ["--cache", tmp_path / "gate-cache", "--out", tmp_path / "loose.json"]
    args = ["gate", hybrid, *models, *files.texts, "--max-chunks", 6, *loose, *cache]
    assert quantkit(*args).code == 0
    few = ["--bar", "min_chunks=100"]
    args = ["gate", hybrid, *models, *files.texts, "--max-chunks", 6, *few, *cache]
    assert quantkit(*args).code == 4


def test_splice_writes_shards(files: Files, tmp_path: Path) -> None:
    selection = tmp_path / "s.json"
    small = files.small.stat().st_size / 1e9 + 0.001
    assert (
        quantkit(
            "select", files.sensitivity, "--target-gb", small, "--unit", "layer", "--out", selection
        ).code
        == 0
    )
    result = quantkit(
        "splice", selection, tmp_path / "h.gguf", *files.sources, "--split-max-size", "5M", "--json"
    )
    assert result.code == 0, result.stderr
    shards = sorted(tmp_path.glob("h-*-of-*.gguf"))
    assert len(shards) >= 3
    assert quantkit("inspect", shards[1]).code == 0


def test_smallest_file_under_an_error_bound(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "e.json"
    result = quantkit("select", files.sensitivity, "--max-error", 0.5, "--out", out, "--json")
    assert result.code == 0, result.stderr
    chosen = load(Selection, out)
    assert chosen.predicted_error <= 0.5
    assert chosen.predicted_file_bytes < files.base.stat().st_size + chosen.overhead_bytes


def test_calib_check_passes_on_the_committed_texts() -> None:
    result = quantkit("calib", "check", *sorted(CALIB.glob("*.yaml")))
    assert result.code == 0, result.stderr


def test_ctrl_c_ends_with_130_and_leaves_nothing(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "sensitivity.json"
    texts = ["--text", CALIB / "capture.txt", "--text", CALIB / "selection.txt"]
    arguments = ["measure", files.bf16, *files.sources, *texts, "--tokens", 16384, "--out", out]
    process = subprocess.Popen(
        command(arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    time.sleep(4)
    assert process.poll() is None, "it ended before it could be interrupted"
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    assert b"Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
