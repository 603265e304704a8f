"""The embedded model through the verbs, once for all tests of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "quantkit" / "data" / "embedded"
CALIB = ROOT / "calib"
EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"
ROLES = {"selection": "selection", "check": "check", "held_out": "heldout"}


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str


def command(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "quantkit.cli.main", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"}


def quantkit(*arguments: object, cwd: Path | None = None, **variables: str) -> Result:
    """Run the program as a user would; one that waits for ever fails."""
    done = subprocess.run(
        command(arguments),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment() | variables,
        check=False,
        timeout=300,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Files:
    folder: Path
    bf16: Path
    base: Path
    small: Path
    sensitivity: Path

    @property
    def sources(self) -> list[str]:
        return ["--source", f"base={self.base}", "--source", f"small={self.small}"]

    @property
    def texts(self) -> list[str]:
        return [
            word
            for role, name in ROLES.items()
            for word in ("--text", f"{role}={CALIB / name}.txt")
        ]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """BF16, a base (IQ4_NL experts), a small donor (Q2_0 experts), and their sensitivities."""
    folder = tmp_path_factory.mktemp("cli")
    made = Files(
        folder,
        *(folder / f"{name}.gguf" for name in ("bf16", "base", "small")),
        folder / "sensitivity.json",
    )
    steps: list[list[object]] = [["convert", EMBEDDED, made.bf16]]
    for path, qtype in ((made.base, "IQ4_NL"), (made.small, "Q2_0")):
        rules = ["--rule", f"{EXPERTS}={qtype}", "--rule", ".*=Q8_0"]
        steps.append(["quantize", made.bf16, path, *rules])
    text = ["--text", CALIB / "capture.txt"]
    steps.append(["measure", made.bf16, *made.sources, *text, "--out", made.sensitivity])
    for step in steps:
        result = quantkit(*step)
        assert result.code == 0, result.stderr
    return made
