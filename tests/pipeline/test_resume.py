"""Killed anywhere, changed anywhere: only what is missing is done, and the bytes are the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import ArtifactError
from quantkit.pipeline import load_recipe, run_recipe
from quantkit.pipeline.steps import FileHashes, Ledger, Step
from tests.pipeline.short import ShortRun, contents, document, run_in, write_recipe

ROOT = Path(__file__).parents[2]
PROGRAM = (
    "import sys; from pathlib import Path; from quantkit.pipeline import load_recipe, run_recipe;"
    "sys.exit(run_recipe(load_recipe(Path(sys.argv[1])), device='cpu').exit_code)"
)
KILLED_AT = ((4, signal.SIGKILL), (6, signal.SIGKILL), (9, signal.SIGINT), (13, signal.SIGKILL))
"""Number of the step that is under way, and what ends the process."""


def start(folder: Path, recipe: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(recipe)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def end_at(process: subprocess.Popen[str], number: int, how: signal.Signals, delay: float) -> bool:
    """End the process some time after a step has begun; False if it finished before."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[") and int(line[1:].partition("/")[0]) >= number:
            time.sleep(delay)
            process.send_signal(how)
            break
    process.stderr.read()
    return process.wait(60) != 0


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(
    shared: ShortRun, tmp_path: Path
) -> None:
    folder = shared.folder.parent / "killed"
    folder.mkdir()
    dice = random.Random(7)
    for number, how in KILLED_AT:
        assert end_at(start(folder, shared.recipe), number, how, dice.uniform(0, 0.15))
    ran = run_in(folder, shared.recipe)
    assert "criterion" not in ran.steps
    assert "report" in ran.steps
    whole, pieces = contents(shared.root), contents(folder / "runs" / "short")
    assert pieces.keys() == whole.keys()
    assert [name for name in whole if pieces[name] != whole[name]] == []


def test_a_finished_run_does_nothing_again(copied: ShortRun) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.root.rglob("*") if path.is_file()}
    assert run_in(copied.folder, copied.recipe).steps == []
    after = {path: path.stat().st_mtime_ns for path in copied.root.rglob("*") if path.is_file()}
    assert after == before


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[str, Callable[[Path], object], list[str]]] = {
    "a donor is gone": ("models/iq4_nl.gguf", Path.unlink, ["quantize iq4_nl"]),
    "a hybrid has a wrong bit": ("models/far.gguf", _flip, ["splice far"]),
    "the provenance is gone": ("models/far.gguf.provenance.json", Path.unlink, ["splice far"]),
    "figures were edited": ("kld/q2_0.check.json", _flip, ["kld q2_0"]),
    "a record is gone": ("state/measure.json", Path.unlink, ["measure"]),
    "a record is torn": ("state/gate-far.json", lambda p: os.truncate(p, 40), ["gate far"]),
    "the plot is gone": ("size-kld.png", Path.unlink, ["report"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_missing_or_damaged_is_made_again(name: str, copied: ShortRun) -> None:
    whole = contents(copied.root)
    file, damage, steps = DAMAGE[name]
    damage(copied.root / file)
    assert run_in(copied.folder, copied.recipe).steps == steps
    assert contents(copied.root) == whole


def test_reference_log_probabilities_are_made_again_together(copied: ShortRun) -> None:
    """All texts go through one sweep: the bytes must not depend on which of them was missing."""
    whole = contents(copied.root)
    next((copied.root / "cache").glob("check-*.logits")).unlink()
    assert run_in(copied.folder, copied.recipe).steps == ["reference log-probabilities"]
    assert contents(copied.root) == whole


def _zeros(path: Path) -> None:
    """Every figure becomes 0: a file of the right form, and the best of all verdicts."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:start] + bytes(len(data) - start))


CACHE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeros": _zeros,
    "one bit": _flip,
    "no digest": lambda path: path.with_name(f"{path.name}.sha256").unlink(),
    "no digest but another text": lambda p: p.with_name(f"{p.name}.sha256").write_text("\xff"),
}


@pytest.mark.parametrize("name", CACHE_DAMAGE)
def test_damaged_scores_are_computed_again(
    name: str, copied: ShortRun, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = contents(copied.root)
    for path in (copied.root / "cache").glob("*.scores"):
        CACHE_DAMAGE[name](path)
    (copied.root / "gate" / "far.json").unlink()
    with contextlib.chdir(copied.folder):
        run_recipe(load_recipe(copied.recipe), device="cpu")
    after = contents(copied.root)
    assert after["gate/far.json"] == whole["gate/far.json"]
    assert "it is computed again" in capfd.readouterr().err


def test_leftovers_of_killed_writers_are_swept_up(copied: ShortRun) -> None:
    whole = contents(copied.root)
    cached = f"cache/.check-{'0a' * 12}"
    for name in (
        "models/.far.gguf.partial",
        "state/.measure.json.partial",
        f"{cached}.logits.partial",
        f"{cached}.scores.partial",
        "cache/.llama-perplexity-abc",
    ):
        (copied.root / name).mkdir()
        (copied.root / name / "file").write_text("half")
    assert run_in(copied.folder, copied.recipe).steps == []
    assert contents(copied.root) == whole


def test_files_that_a_run_has_not_made_are_left_alone(copied: ShortRun) -> None:
    mine = [".mine.tmp", ".mine.partial", "cache/tmp_notes.txt", "cache/base.logits", "cache/.y"]
    for name in mine:
        (copied.root / name).write_text("mine")
    (copied.root / "models" / ".mine.gguf.partial").mkdir()
    run_in(copied.folder, copied.recipe)
    assert [(copied.root / name).read_text() for name in mine] == ["mine"] * len(mine)
    assert (copied.root / "models" / ".mine.gguf.partial").is_dir()


def _target(recipe: dict[str, Any]) -> None:
    recipe["hybrids"][0]["target_gb"] = 0.0162


def _bar(recipe: dict[str, Any]) -> None:
    recipe["gate"]["bars"]["top1_points_lower"] = 6.0


def _chunks(recipe: dict[str, Any]) -> None:
    recipe["gate"]["max_chunks"] = 5


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], list[str]]] = {
    "a target": (_target, ["select near", "splice near", "gate near", "report"]),
    "a bar": (_bar, ["criterion", "gate near", "gate far", "report"]),
    "the chunks": (
        _chunks,
        [
            "reference log-probabilities",
            "gate near",
            "gate far",
            "kld q4_0",
            "kld iq4_nl",
            "kld q2_0",
            "report",
        ],
    ),
    "a description": (lambda r: r.update(description="said anew"), ["report"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_costs_only_what_depends_on_it(
    name: str, copied: ShortRun, tmp_path: Path
) -> None:
    change, steps = CHANGES[name]
    recipe = document()
    change(recipe)
    path = write_recipe(tmp_path / "short.yaml", recipe)
    assert run_in(copied.folder, path).steps == steps
    assert run_in(copied.folder, path).steps == []


def test_bars_that_change_after_the_figures_are_told(
    copied: ShortRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = document()
    _bar(recipe)
    path = write_recipe(tmp_path / "short.yaml", recipe)
    with contextlib.chdir(copied.folder):
        run_recipe(load_recipe(path), device="cpu")
    assert "the bars are not those of the last run" in capfd.readouterr().err


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(lambda name: tmp_path / f"{name}.record", FileHashes())


def _writer(folder: Path) -> Callable[[], None]:
    def work() -> None:
        (folder / "out").write_text("1")

    return work


def _step(tmp_path: Path, work: Callable[[], None], **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "kind": "copy",
        "subject": "",
        "parameters": {"a": 1},
        "inputs": (tmp_path / "in",),
        "outputs": (tmp_path / "out",),
        "work": work,
    }
    return Step(**(fields | changes))


def test_a_step_that_fails_leaves_neither_record_nor_former_output(
    ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("1")
    good = _step(tmp_path, _writer(tmp_path))
    ledger.run(good)
    assert ledger.is_done(good)

    def fail() -> None:
        assert not (tmp_path / "out").exists()
        raise ArtifactError("no")

    bad = _step(tmp_path, fail, parameters={"a": 2})
    assert not ledger.is_done(bad)
    with pytest.raises(ArtifactError):
        ledger.run(bad)
    assert not ledger.is_done(good)


@pytest.mark.parametrize("field", ["kind", "subject", "parameters"])
def test_everything_that_makes_a_step_is_in_its_key(
    field: str, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("1")
    step = _step(tmp_path, _writer(tmp_path))
    ledger.run(step)
    other = {"kind": "move", "subject": "it", "parameters": {"a": 2}}[field]
    changed = _step(tmp_path, _writer(tmp_path), **{field: other})
    record = tmp_path / f"{step.name}.record"
    (tmp_path / f"{changed.name}.record").write_bytes(record.read_bytes())
    assert ledger.is_done(step)
    assert not ledger.is_done(changed)


def test_inputs_and_version_are_in_the_key(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("1")
    step = _step(tmp_path, _writer(tmp_path))
    ledger.run(step)
    with monkeypatch.context() as patch:
        patch.setattr("quantkit.__version__", "9.9")
        assert not ledger.is_done(step)
    assert ledger.is_done(step)
    (tmp_path / "in").write_text("2")
    os.utime(tmp_path / "in", ns=(1, 1))
    assert not ledger.is_done(step)
