"""Whatever becomes of stdout and stderr: the exit code is the verb's, and JSON is JSON."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from quantkit.cli.common import emit
from quantkit.containers.base import spec_of
from quantkit.containers.gguf import ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.values import key_of
from tests.cli.conftest import CALIB, EXPERTS, Files, command, environment, quantkit

NAME_KEY = "general.name"


def shell(arguments: list[object], rest: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{shlex.join(command(arguments))} {rest}"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


MISTAKES: dict[str, tuple[list[object], int]] = {
    "bad input": (["inspect", "none.gguf"], 3),
    "usage": (["select"], 2),
    "our usage": (["select", "none.json"], 2),
    "no verb": (["frobnicate"], 2),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("rest", ["2>/dev/full", "2>&-", "2>/dev/null", "2>&- >&-"])
def test_errors_that_nobody_can_hear(name: str, rest: str) -> None:
    arguments, code = MISTAKES[name]
    done = shell(arguments, rest)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


CHECK: list[object] = ["calib", "check", CALIB / "check.yaml"]
GOOD: list[list[object]] = [["--help"], ["--version"], CHECK, [*CHECK, "--json"]]


@pytest.mark.parametrize("arguments", GOOD, ids=lambda words: words[0])
def test_output_that_nobody_reads(arguments: list[object]) -> None:
    done = shell(arguments, "| head -0; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, "")
    assert shell(arguments, ">&-").returncode == 0


@pytest.mark.parametrize("arguments", GOOD, ids=lambda words: words[0])
def test_output_that_cannot_be_written(arguments: list[object]) -> None:
    done = shell(arguments, ">/dev/full")
    assert done.returncode == 3
    assert "No space left" in done.stderr
    assert "<stdout>" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_verdict_survives_its_reader(files: Files, tmp_path: Path) -> None:
    models = ["--baseline", files.base, "--reference", files.bf16, *files.texts]
    out = ["--max-chunks", "6", "--out", tmp_path / "gate.json"]
    done = shell(["gate", files.small, *models, *out], "| head -0; exit ${PIPESTATUS[0]}")
    assert done.returncode == 1, done.stderr
    assert json.loads((tmp_path / "gate.json").read_text())["verdict"] == "FAIL"


def changed(source: Path, out: Path, pair: bytes) -> Path:
    """The model with another value of one key."""
    file = open_gguf(source)
    key = key_of(pair)
    pairs = [pair if key_of(raw) == key else raw for raw in file.metadata.carried()]
    write_gguf(out, pairs, [spec_of(entry) for entry in file.tensors.values()])
    return out


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_names_that_stdout_cannot_print(encoding: str, files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "grün"
    folder.mkdir()
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.gguf"))
    changed(files.small, odd, pack_kv(NAME_KEY, ValueType.STRING, "m\udcff ü"))
    for extra in ([], ["--json"], ["--dry-run"], ["--dry-run", "--json"]):
        done = subprocess.run(
            command(["inspect", odd, *extra]),
            capture_output=True,
            env=environment() | {"PYTHONIOENCODING": encoding},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode(encoding)
        if "--json" in extra:
            assert "bad\\udcff.gguf" in text
            assert json.loads(text)


def test_names_that_are_no_text_in_artifacts(files: Files, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.gguf"))
    odd.write_bytes(files.small.read_bytes())
    sources = ["--source", f"base={files.base}", "--source", f"odd={odd}"]
    out, chosen, hybrid = (tmp_path / name for name in ("s.json", "c.json", "h.gguf"))
    measure = ["measure", files.bf16, *sources, "--text", CALIB / "capture.txt", "--out", out]
    result = quantkit(*measure, "--json")
    assert result.code == 0, result.stderr
    assert "bad\\udcff.gguf" in out.read_text("utf-8")
    result = quantkit("select", out, "--max-error", 1e6, "--out", chosen, "--json")
    assert result.code == 0, result.stderr
    result = quantkit("splice", chosen, hybrid, *sources)
    assert result.code == 0, result.stderr
    assert quantkit("inspect", hybrid, "--json").code == 0


def test_figures_that_are_no_numbers_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    emit(True, {"a": float("nan"), "b": [float("inf"), (1.5,)], "c": {"d": float("-inf")}}, "")
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, [1.5]], "c": {"d": None}}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_nothing_behind(how: signal.Signals, files: Files, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    process = subprocess.Popen(
        command(["quantize", files.bf16, out, "--rule", f"{EXPERTS}=Q4_0", "--rule", ".*=Q8_0"]),
        stderr=subprocess.PIPE,
        env=environment(),
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and not list(tmp_path.iterdir()):
        time.sleep(0.005)
    process.send_signal(how)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 128 + how, log
    assert list(tmp_path.iterdir()) == []


def test_the_package_is_a_program() -> None:
    program = [command([])[0], "-m", "quantkit", "--version"]
    assert subprocess.run(program, capture_output=True, env=environment(), check=False).stdout


def test_shards_that_exceed_the_target_are_told(files: Files, tmp_path: Path) -> None:
    selection = tmp_path / "s.json"
    target = files.small.stat().st_size + 8192
    quantkit("select", files.sensitivity, "--target-gb", target / 1e9, "--out", selection)
    goal = json.loads(selection.read_text())["goal"]["target_bytes"]
    splice = ["splice", selection, tmp_path / "h.gguf", *files.sources, "--json"]
    for extra in (["--dry-run"], []):
        result = quantkit(*splice, "--split-max-size", "10K", *extra)
        assert result.code == 0, result.stderr
        over = json.loads(result.stdout)["over_target_bytes"]
        assert over > 0
        assert f"{over:,} bytes larger than the target" in result.stderr
    assert sum(path.stat().st_size for path in tmp_path.glob("h-*.gguf")) == goal + over
