"""`capture` and `quantize --importance` as a user calls them, on the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quantkit.cli.main import build_app
from quantkit.containers.gguf import open_gguf
from quantkit.containers.hashing import sha256_file
from quantkit.containers.imatrix import read_importance
from tests.cli.conftest import CALIB, EMBEDDED, EXPERTS, quantkit

pytestmark = pytest.mark.e2e

TEXT = ["--text", CALIB / "capture.txt", "--tokens", "600", "--context", "64"]


def in_process(*arguments: object) -> Result:
    """For what ends before it does anything: a process would take longer to start."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(build_app(words), words)


@pytest.fixture(scope="module")
def importance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("capture") / "importance.gguf"
    result = quantkit("capture", EMBEDDED, *TEXT, "--out", out, "--json")
    assert result.code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["written"] == [
        {"path": str(out), "bytes": out.stat().st_size, "sha256": sha256_file(out)}
    ]
    read = read_importance(out)
    assert data["tokens"] == 640 == read.chunk_count * read.chunk_size
    assert data["entries"] == len(read.entries)
    cold = {name: tuple(experts) for name, experts in data["cold_experts"].items()}
    assert cold == read.cold_experts()
    return out


def test_dry_run_reads_only_the_texts(tmp_path: Path) -> None:
    out = tmp_path / "i.gguf"
    result = in_process("capture", EMBEDDED, *TEXT, "--out", out, "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["tokens"] == {"capture.txt": 640}
    assert list(tmp_path.iterdir()) == []


def test_both_forms_hold_the_same(importance: Path, tmp_path: Path) -> None:
    out = tmp_path / "i.dat"
    result = quantkit("capture", EMBEDDED, *TEXT, "--out", out, "--form", "dat")
    assert result.code == 0, result.stderr
    assert "640 tokens in 10 chunks of 64" in result.stdout
    assert set(read_importance(out).entries) == set(read_importance(importance).entries)


def test_quantize_with_importance(importance: Path, tmp_path: Path) -> None:
    """From the checkpoint, with every tensor's type, bytes and errors."""
    out = tmp_path / "q.gguf"
    used = ["--rule", f"{EXPERTS}=IQ4_NL", "--importance", importance]
    plan = in_process("quantize", EMBEDDED, out, *used, "--dry-run", "--json")
    result = quantkit("quantize", EMBEDDED, out, *used, "--json")
    assert (plan.exit_code, result.code) == (0, 0), plan.stderr + result.stderr
    planned, data = json.loads(plan.stdout), json.loads(result.stdout)
    assert planned["would_write"] == {str(out): out.stat().st_size}
    file = open_gguf(out)
    for row in data["tensors"]:
        tensor = file.tensors[row["name"]]
        assert (row["to"], row["bytes"]) == (tensor.qtype.name, tensor.nbytes)
        if row["to"] == "IQ4_NL":
            assert 0 < row["weighted_error"] < 0.02
        else:
            assert row["reason"]
            assert row["relative_error"] is None
    assert len(file.tensors) == len(data["tensors"]) == len(planned["tensors"])
    assert data["without_importance"] == []


def test_a_user_sees_every_tensor_and_what_needs_attention(tmp_path: Path) -> None:
    words = ["--rule", f"{EXPERTS}=Q2_0", "--rule", "nothing=Q8_0", "--allow-unused-rules"]
    result = in_process("quantize", EMBEDDED, tmp_path / "q.gguf", *words, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "unused rule nothing=Q8_0: matches no tensor" in result.stdout
    assert "BF16 -> Q2_0" in result.stdout
    assert "(no rule matches)" in result.stdout
    assert "would write" in result.stdout


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        (["--rule", ".*=Q8_0", "--importance", "no.gguf"], 3, "no such file"),
        (["--rule", ".*=Q8_0", "--importance", EMBEDDED / "config.json"], 3, "importance file"),
        (["--rule", ".*=Q8_0", "--threads", "0"], 2, "threads"),
        (["--rule", "nothing=Q8_0"], 3, "matches no tensor"),
        ([], 2, "rule"),
    ],
)
def test_bad_arguments_of_quantize(
    tmp_path: Path, words: list[object], code: int, found: str
) -> None:
    result = in_process("quantize", EMBEDDED, tmp_path / "q.gguf", *words)
    assert result.exit_code == code, result.stderr
    assert found in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        (["--text", "no.txt"], 3, "cannot read the text"),
        (["--text", CALIB / "capture.txt", "--form", "json"], 2, "form"),
        (["--text", CALIB / "capture.txt", "--tokens", "0"], 2, "tokens"),
        ([], 2, "text"),
    ],
)
def test_bad_arguments_of_capture(
    tmp_path: Path, words: list[object], code: int, found: str
) -> None:
    result = in_process("capture", EMBEDDED, "--out", tmp_path / "i.gguf", *words)
    assert result.exit_code == code, result.stderr
    assert found in result.stderr
    assert list(tmp_path.iterdir()) == []
