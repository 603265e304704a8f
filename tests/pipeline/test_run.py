"""A whole run: what it leaves, what it says, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantkit.artifacts.gate import GateReport
from quantkit.artifacts.provenance import Provenance
from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import load
from quantkit.containers.gguf import open_gguf
from quantkit.errors import ContainerError, PeerError, RecipeError, SelectionError
from quantkit.gate.meter_llamacpp import find_llama_perplexity
from quantkit.pipeline import load_recipe, plan_recipe, run_recipe
from quantkit.pipeline.criterion import CriterionRecord
from quantkit.pipeline.workspace import Workspace
from tests.pipeline.short import (
    CONTRADICTED,
    INCONCLUSIVE,
    ShortRun,
    contents,
    document,
    run_in,
    write_recipe,
)

STEPS = [
    "criterion",
    "convert embedded",
    "quantize q4_0",
    "quantize iq4_nl",
    "quantize q2_0",
    "measure",
    "select near",
    "select far",
    "splice near",
    "splice far",
    "reference log-probabilities",
    "gate near",
    "gate far",
    "kld q4_0",
    "kld iq4_nl",
    "kld q2_0",
    "report",
]


def test_a_run_does_every_step_and_ends_as_expected(shared: ShortRun) -> None:
    assert shared.ran.steps == STEPS
    assert shared.result.exit_code == 0
    verdicts = {model.name: model.verdict for model in shared.result.hybrids}
    assert verdicts == {"near": "PASS", "far": "FAIL"}


def test_the_hybrids_are_what_was_selected(shared: ShortRun) -> None:
    for name in ("near", "far"):
        chosen = load(Selection, shared.root / "selections" / f"{name}.json")
        path = shared.root / "models" / f"{name}.gguf"
        assert path.stat().st_size == chosen.predicted_file_bytes
        written = open_gguf(path).tensors
        types = {tensor: t for choice in chosen.choices for tensor, t in choice.types.items()}
        assert len(types) == 24
        assert {tensor: written[tensor].qtype.name for tensor in types} == types
        provenance = load(Provenance, path.with_name(f"{path.name}.provenance.json"))
        assert provenance.command[:2] == ("quantkit", "splice")
    near = load(Selection, shared.root / "selections" / "near.json")
    far = load(Selection, shared.root / "selections" / "far.json")
    assert near.predicted_file_bytes <= 16_500_000 == near.goal.target_bytes
    assert far.predicted_error <= 1.5 == far.goal.max_error


def test_the_bars_stand_on_disk_and_in_every_verdict(shared: ShortRun) -> None:
    fixed = load(CriterionRecord, shared.root / "criterion.json")
    assert fixed.bars["min_tokens"] == 100
    assert fixed.bars["kld_combined_standard_errors"] == 2.0
    for name in ("near", "far"):
        report = load(GateReport, shared.root / "gate" / f"{name}.json")
        assert (report.criterion, report.criterion_sha256) == (fixed.bars, fixed.sha256)


def test_json_and_table_have_the_artifacts_figures(shared: ShortRun) -> None:
    found = json.loads(json.dumps(shared.result.to_json()))
    assert found["exit_code"] == 0
    models = {model["name"]: model for model in found["models"]}
    assert list(models) == ["q4_0", "iq4_nl", "q2_0", "near", "far"]
    report = load(GateReport, shared.root / "gate" / "far.json")
    for text in report.texts:
        assert models["far"]["texts"][text.role]["kld_mean"] == text.candidate.kld_mean
        assert models["q4_0"]["texts"][text.role]["kld_mean"] == text.baseline.kld_mean
    assert models["far"]["bytes"] == (shared.root / "models" / "far.gguf").stat().st_size
    lines = shared.result.table.splitlines()
    assert [line.split()[0] for line in lines] == ["file", *models]
    assert lines[-1].endswith("FAIL as expected")


def _with_expectations(near: str, far: str) -> dict:
    recipe = document()
    for hybrid, expected in zip(recipe["hybrids"], (near, far), strict=True):
        hybrid["expect"] = expected
    return recipe


@pytest.mark.parametrize(("near", "far"), [("pass", "pass"), ("fail", "fail"), ("fail", "pass")])
def test_a_verdict_that_was_not_expected_ends_with_1(
    near: str, far: str, copied: ShortRun, tmp_path: Path
) -> None:
    path = write_recipe(tmp_path / "short.yaml", _with_expectations(near, far))
    ran = run_in(copied.folder, path)
    assert ran.steps == ["report"]
    assert ran.result.exit_code == CONTRADICTED
    wrong = next(model for model in ran.result.hybrids if not model.as_expected)
    assert (
        f"{wrong.verdict}, expected {wrong.expected}"
        in (copied.folder / ran.result.report_path).read_text()
    )


def test_too_little_evidence_ends_with_4(copied: ShortRun, tmp_path: Path) -> None:
    recipe = document()
    recipe["gate"]["bars"]["min_tokens"] = 1000
    ran = run_in(copied.folder, write_recipe(tmp_path / "short.yaml", recipe))
    assert ran.steps == ["criterion", "gate near", "gate far", "report"]
    assert {model.verdict for model in ran.result.hybrids} == {"INCONCLUSIVE"}
    assert ran.result.exit_code == INCONCLUSIVE


def test_a_contradiction_weighs_more_than_missing_evidence(
    copied: ShortRun, tmp_path: Path
) -> None:
    recipe = _with_expectations("pass", "pass")
    # Evidence for the far one only: its excess is far above the bar, the near one's is not.
    recipe["gate"]["bars"] |= {"max_excess_share": 0.0}
    ran = run_in(copied.folder, write_recipe(tmp_path / "short.yaml", recipe))
    assert [model.verdict for model in ran.result.hybrids] == ["INCONCLUSIVE", "FAIL"]
    assert ran.result.exit_code == CONTRADICTED


def test_a_target_below_the_floor_leaves_no_hybrid(copied: ShortRun, tmp_path: Path) -> None:
    recipe = document()
    recipe["hybrids"] = [{"name": "tiny", "target_gb": 0.001}]
    with pytest.raises(SelectionError, match="no hybrid of these sources is that small"):
        run_in(copied.folder, write_recipe(tmp_path / "short.yaml", recipe))
    left = [name for name in contents(copied.root) if "tiny" in name]
    assert left == []


def test_two_runs_in_one_folder_are_refused(copied: ShortRun) -> None:
    with (
        Workspace(copied.root).occupied([]),
        pytest.raises(RecipeError, match="another run is using this folder"),
    ):
        run_in(copied.folder, copied.recipe)


def test_an_unknown_meter_is_refused(shared: ShortRun) -> None:
    with pytest.raises(RecipeError, match="unknown meter"):
        run_recipe(load_recipe(shared.recipe), device="cpu", meter="ruler")


@pytest.mark.peer
def test_llamacpp_measures_anew_and_nothing_else(copied: ShortRun) -> None:
    try:
        find_llama_perplexity()
    except PeerError:
        pytest.skip("llama-perplexity is not installed")
    ran = run_in(copied.folder, copied.recipe, meter="llama.cpp")
    kinds = {step.split()[0] for step in ran.steps}
    assert kinds == {"reference", "gate", "kld", "report"}
    assert ran.result.exit_code == 0
    for ours, theirs in zip(copied.result.facts.models, ran.result.facts.models, strict=True):
        for role, statistics in ours.statistics.items():
            # Between two engines single tokens change experts; over 252 tokens that shows.
            other = theirs.statistics[role].kld_mean
            assert statistics.kld_mean == pytest.approx(other, rel=0.25, abs=2e-3)


def test_given_files_are_used_as_they_are(shared: ShortRun, tmp_path: Path) -> None:
    """A reference and donors that exist already: nothing is converted or quantized."""
    models = shared.root / "models"
    recipe = document()
    recipe["model"] = str(models / "reference.gguf")
    recipe["quantizations"] = [
        {"name": q["name"], "file": str(models / f"{q['name']}.gguf")}
        for q in recipe["quantizations"]
    ]
    ran = run_in(tmp_path, write_recipe(tmp_path / "short.yaml", recipe))
    assert not [step for step in ran.steps if step.startswith(("convert", "quantize"))]
    own, first = tmp_path / "runs" / "short", shared.root
    assert (own / "sensitivity.json").read_bytes() == (first / "sensitivity.json").read_bytes()
    for name in ("near", "far"):
        ours, theirs = (root / "models" / f"{name}.gguf" for root in (own, first))
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_donor_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    recipe = document()
    recipe["quantizations"][1] = {"name": "given", "file": "none.gguf"}
    with pytest.raises(ContainerError):
        run_in(tmp_path, write_recipe(tmp_path / "short.yaml", recipe))
    assert not (tmp_path / "runs").exists()


def test_a_run_does_not_write_over_its_inputs(copied: ShortRun, tmp_path: Path) -> None:
    recipe = document()
    given = copied.root / "models" / "q2_0.gguf"
    recipe["quantizations"][1] = {"name": "given", "file": str(given)}
    with pytest.raises(RecipeError, match="names a file that the run itself writes"):
        run_in(copied.folder, write_recipe(tmp_path / "short.yaml", recipe))


def test_the_plan_of_a_new_run_writes_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(write_recipe(tmp_path / "short.yaml", document()))
    planned = plan_recipe(recipe, device="cpu")
    assert [step.name for step in planned] == STEPS
    assert {step.state for step in planned} == {"would run"}
    assert [path.name for path in tmp_path.iterdir()] == ["short.yaml"]
    by_name = {step.name: step for step in planned}
    assert by_name["splice near"].bytes == 16_500_000
    assert "at most 16,500,000 bytes" in str(by_name["splice near"])


def test_the_plan_knows_sizes_beforehand(shared: ShortRun, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(shared.folder)
    planned = {s.name: s for s in plan_recipe(load_recipe(shared.recipe), device="cpu")}
    assert {step.state for step in planned.values()} == {"done before"}
    assert json.loads(json.dumps(planned["measure"].to_json()))["number"] == 6
    recipe = document()
    recipe["quantizations"][2]["rules"].insert(0, "output.weight=Q4_0")
    changed = load_recipe(write_recipe(tmp_path / "short.yaml", recipe))
    again = {s.name: s for s in plan_recipe(changed, device="cpu")}
    assert again["quantize q4_0"].state == "done before"
    step = again["quantize q2_0"]
    assert step.state == "would run"
    # The head has 4096 rows of 256 values, in blocks of 32 of 18 instead of 34 bytes.
    saved = 4096 * 256 // 32 * (34 - 18)
    header = step.bytes - (planned["quantize q2_0"].bytes - saved)
    assert 0 <= header <= 64, "the header names one rule more"
    assert again["measure"].state == "would run"
    assert again["kld q4_0"].state == "done before"
