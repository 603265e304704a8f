"""A whole recipe on the embedded model, cut short: few tokens, so the bars ask for little."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from quantkit.pipeline import RunResult, load_recipe, run_recipe

CALIB = Path(__file__).parents[2] / "calib"
EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"
NAME = "short"

CONTRADICTED, INCONCLUSIVE = 1, 4


def document() -> dict[str, Any]:
    """The recipe; one hybrid close to its base, and one nearly all in two bits."""
    return {
        "schema": "quantkit.recipe/1",
        "name": NAME,
        "model": "embedded",
        "texts": {
            "selection": str(CALIB / "selection.txt"),
            "check": str(CALIB / "check.yaml"),
            "held_out": str(CALIB / "heldout.txt"),
            "capture": str(CALIB / "capture.txt"),
        },
        "quantizations": [
            {"name": "q4_0", "rules": [f"{EXPERTS}=Q4_0", ".*=Q8_0"]},
            {"name": "iq4_nl", "rules": [f"{EXPERTS}=IQ4_NL", ".*=Q8_0"]},
            {"name": "q2_0", "rules": [f"{EXPERTS}=Q2_0", ".*=Q8_0"]},
        ],
        "base": "q4_0",
        "select": {"unit": "layer"},
        "hybrids": [
            {"name": "near", "target_gb": 0.0165, "expect": "pass"},
            {"name": "far", "max_error": 1.5, "expect": "fail"},
        ],
        "gate": {
            "baseline": "q4_0",
            "context": 128,
            "max_chunks": 4,
            "bars": {
                "min_tokens": 100,
                "top1_points_lower": 5.0,
                "max_excess_share": 2.0,
                "max_top1_halfwidth_points": 10.0,
            },
        },
    }


def write_recipe(path: Path, recipe: dict[str, Any]) -> Path:
    """The recipe as a file."""
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")
    return path


@dataclass(frozen=True)
class Ran:
    """One run: what it gave, and the steps that it did (not those that were done before)."""

    result: RunResult
    steps: list[str]


def run_in(folder: Path, recipe: Path, meter: str = "quantkit") -> Ran:
    """Run a recipe with `folder` as the current folder."""
    stderr = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(stderr):
        result = run_recipe(load_recipe(recipe), device="cpu", meter=meter)
    finished = [line for line in stderr.getvalue().splitlines() if line.startswith("[")]
    steps = [line.partition("] ")[2] for line in finished]
    return Ran(result, [step for step in steps if ":" not in step])


@dataclass(frozen=True)
class ShortRun:
    """A finished run: `folder` holds runs/short, `recipe` is its file."""

    folder: Path
    recipe: Path
    ran: Ran

    @property
    def root(self) -> Path:
        return self.folder / "runs" / NAME

    @property
    def result(self) -> RunResult:
        return self.ran.result


_shared: list[ShortRun] = []


def short_run(factory: pytest.TempPathFactory) -> ShortRun:
    """The run that all tests of a session share, whatever their package; nobody changes it."""
    if not _shared:
        _shared.append(_run(factory))
    return _shared[0]


def _run(factory: pytest.TempPathFactory) -> ShortRun:
    place = factory.mktemp("short")
    folder = place / "whole"
    folder.mkdir()
    recipe = write_recipe(place / "short.yaml", document())
    return ShortRun(folder, recipe, run_in(folder, recipe))


def contents(root: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
