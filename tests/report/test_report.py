"""`report.md` and its picture: the figures are the artifacts', and nothing else."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from quantkit.artifacts.gate import GateReport
from quantkit.artifacts.kld import TextKld
from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import load
from quantkit.report.facts import DONOR, ModelFacts
from quantkit.report.plot import front, plot_size_kld
from quantkit.report.run_report import render_report
from quantkit.report.tables import figure, with_error
from tests.pipeline.short import ShortRun

PNG = b"\x89PNG\r\n\x1a\n"
ROLES = ("selection", "check", "held_out")


@pytest.fixture
def page(shared: ShortRun) -> str:
    return (shared.root / "report.md").read_text()


def _rows(page: str, section: str) -> list[list[str]]:
    """Cells of the first table of a section, without its head."""
    body = page.split(f"\n## {section}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_results_are_those_of_the_artifacts(page: str, shared: ShortRun) -> None:
    rows = {row[0]: row for row in _rows(page, "Results")}
    assert list(rows) == ["q4_0", "iq4_nl", "q2_0", "near", "far"]
    for name, row in rows.items():
        size = (shared.root / "models" / f"{name}.gguf").stat().st_size
        assert row[2] == f"{size / 1e6:.3f}"
        if name in ("near", "far"):
            gate = load(GateReport, shared.root / "gate" / f"{name}.json")
            found = {text.role: text.candidate for text in gate.texts}
            assert row[-1] == f"{gate.verdict} as expected"
        else:
            found = {
                role: load(TextKld, shared.root / "kld" / f"{name}.{role}.json").statistics
                for role in ROLES
            }
        for column, role in enumerate(ROLES):
            statistics = found[role]
            shown = with_error(statistics.kld_mean, statistics.kld_se_tokens)
            assert row[4 + column] == shown
            assert row[7 + column] == f"{100 * statistics.top1_agreement:.2f}"


@pytest.mark.parametrize("name", ["near", "far"])
def test_checks_are_those_of_the_gate(name: str, page: str, shared: ShortRun) -> None:
    gate = load(GateReport, shared.root / "gate" / f"{name}.json")
    rows = _rows(page, f"{name}: {gate.verdict}")
    assert len(rows) == len(gate.checks) == 6
    for row, check in zip(rows, gate.checks, strict=True):
        assert row[0] == check.check
        assert check.text in row[1]
        assert (row[2], row[4]) == (figure(check.figure), figure(check.bar))
        assert check.interval is not None
        assert row[3] == " .. ".join(figure(end) for end in check.interval)
        assert row[5:] == [check.unit, check.verdict]


def test_sources_by_layer_are_those_of_the_selections(page: str, shared: ShortRun) -> None:
    rows = _rows(page, "Sources by layer")
    assert [row[0] for row in rows] == [str(layer) for layer in range(8)]
    for column, name in enumerate(("near", "far"), 1):
        chosen = load(Selection, shared.root / "selections" / f"{name}.json")
        assert [row[column].split()[0] for row in rows] == [c.source for c in chosen.choices]


def test_criterion_and_files_have_their_hashes(page: str, shared: ShortRun) -> None:
    gate = load(GateReport, shared.root / "gate" / "near.json")
    bars = {row[0]: row[1] for row in _rows(page, "Criterion")}
    assert bars == {name: str(value) for name, value in gate.criterion.items()}
    assert gate.criterion_sha256 in page
    shown = dict(re.findall(r"\| (\S+) \| [\d,]+ \| `([0-9a-f]{64})`", page))
    for path in (shared.root / "models").glob("*.gguf"):
        assert shown[path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert shown["short.yaml"] == hashlib.sha256(shared.recipe.read_bytes()).hexdigest()
    for text in gate.texts:
        assert shown[text.text.name] == text.text.sha256


def test_the_page_holds_the_recipe_and_how_to_run_it(page: str, shared: ShortRun) -> None:
    assert shared.recipe.read_text().strip() in page
    assert f"quantkit run {shared.recipe}" in page
    assert "quantkit splice selections/far.json models/far.gguf" in page
    assert "## Limits" in page
    assert "![file size and KLD](size-kld.png)" in page


def test_a_page_of_the_same_facts_is_the_same(page: str, shared: ShortRun) -> None:
    assert render_report(shared.result.facts, "size-kld.png") == page


def test_an_unexpected_and_an_inconclusive_verdict_stand_out(shared: ShortRun) -> None:
    facts = shared.result.facts
    models = tuple(
        replace(model, verdict="INCONCLUSIVE") if model.name == "far" else model
        for model in facts.models
    )
    page = render_report(replace(facts, models=models), "x.png")
    assert "INCONCLUSIVE, expected FAIL" in page


def test_the_picture_is_whole_and_repeats_to_the_byte(shared: ShortRun, tmp_path: Path) -> None:
    data = (shared.root / "size-kld.png").read_bytes()
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1200, 750)
    assert b"tIME" not in data
    assert b"matplotlib" not in data
    pixels = matplotlib.image.imread(shared.root / "size-kld.png")
    assert pixels.shape[:2] == (height, width)
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50
    plot_size_kld(
        shared.result.facts.models, "PASS", "short: file size and KLD", tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes() == data


def test_every_marker_of_a_kind_is_drawn(shared: ShortRun, tmp_path: Path) -> None:
    """A verdict changes the colour of a hybrid, and nothing else of the picture's size."""
    models = shared.result.facts.models
    plot_size_kld(models, "PASS", "t", tmp_path / "one.png")
    plot_size_kld(models, "FAIL", "t", tmp_path / "other.png")
    one, other = (matplotlib.image.imread(tmp_path / f"{n}.png") for n in ("one", "other"))
    green, red = (0x1A, 0x8F, 0x4C), (0xC2, 0x35, 0x2B)
    for pixels in (one, other):
        for color in (green, red):
            near = np.abs(pixels[..., :3] - np.array(color) / 255).max(-1) < 0.02
            assert near.sum() > 50


def _at(model: ModelFacts, n_bytes: int, kld: float) -> ModelFacts:
    file = replace(model.files[0], bytes=n_bytes)
    statistics = {role: replace(s, kld_mean=kld) for role, s in model.statistics.items()}
    return replace(model, files=(file,), statistics=statistics)


def test_the_line_joins_donors_that_no_other_beats(shared: ShortRun) -> None:
    donor = next(model for model in shared.result.facts.models if model.kind == DONOR)
    points = [(30, 0.1), (10, 0.5), (20, 0.2), (25, 0.3), (30, 0.2), (40, 0.1)]
    found = front([_at(donor, size, kld) for size, kld in points])
    assert [(m.bytes, round(m.mean_kld()[0], 6)) for m in found] == [
        (10, 0.5),
        (20, 0.2),
        (30, 0.1),
    ]


def test_many_files_at_one_place_still_give_a_picture(shared: ShortRun, tmp_path: Path) -> None:
    donor = next(model for model in shared.result.facts.models if model.kind == DONOR)
    crowd = [replace(_at(donor, 10**9 + i, 0.01), name=f"donor-{i}") for i in range(20)]
    plot_size_kld(crowd, "PASS", "crowd", tmp_path / "crowd.png")
    assert (tmp_path / "crowd.png").read_bytes().startswith(PNG)


def test_the_mean_over_texts_weighs_tokens(shared: ShortRun) -> None:
    model = shared.result.facts.models[0]
    mean, error = model.mean_kld()
    parts = [load(TextKld, shared.root / "kld" / f"q4_0.{role}.json").statistics for role in ROLES]
    counts = np.array([part.n_tokens for part in parts])
    weights = counts / counts.sum()
    assert mean == pytest.approx(float(weights @ [part.kld_mean for part in parts]))
    own = np.array([part.kld_se_chunks for part in parts])
    assert error == pytest.approx(float(np.sqrt(((weights * own) ** 2).sum())))
