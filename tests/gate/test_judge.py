"""The criterion on figures at, above and below its bars, and with too little evidence."""

from __future__ import annotations

import dataclasses
import math

import pytest

from quantkit.artifacts.gate import FAIL, INCONCLUSIVE, PASS, ROLES, GateModel, GateText
from quantkit.artifacts.kld import KldStatistics, PairedDifference
from quantkit.artifacts.store import content_sha256, dumps, loads
from quantkit.errors import ArtifactError, RecipeError
from quantkit.gate.criterion import Criterion, criterion_from_bars
from quantkit.gate.judge import build_report, judge
from tests.artifacts.examples import MACHINE, file_id, statistics

SE = 0.001
BAR = 2 * math.sqrt(2) * SE
KLD, TOP1 = 0.03, 0.95


def text(
    excess: float = 0.0,
    points: float = 0.0,
    role: str = "selection",
    *,
    se: float | None = SE,
    top1_se: float | None = 0.001,
    n_tokens: int = 5100,
    n_chunks: int = 20,
    paired: PairedDifference | None = None,
) -> GateText:
    """A candidate `excess` nats above and `points` points off a baseline of 0.03 and 95 %."""

    def model(kld: float, top1: float) -> KldStatistics:
        return dataclasses.replace(
            statistics(kld, SE, top1),
            kld_se_tokens=se,
            top1_se_tokens=top1_se,
            n_tokens=n_tokens,
            n_chunks=n_chunks,
        )

    candidate = model(KLD + excess, TOP1 + points / 100)
    return GateText(file_id(f"{role}.txt"), role, candidate, model(KLD, TOP1), paired)


def verdicts(*texts: GateText, **bars: object) -> list[str]:
    """KLD and top-1 verdict of each text."""
    rows = judge(criterion_from_bars(bars), texts)
    return [row.verdict for row in rows if row.check != "text"]


@pytest.mark.parametrize(
    ("excess", "expected"),
    [(-0.01, PASS), (0, PASS), (BAR * 0.999, PASS), (BAR * 1.001, FAIL), (0.1, FAIL)],
)
def test_kld_bar_is_two_combined_standard_errors(excess: float, expected: str) -> None:
    assert verdicts(text(excess)) == [expected, PASS]


@pytest.mark.parametrize(
    ("points", "expected"), [(1, PASS), (0, PASS), (-0.5, PASS), (-0.51, FAIL), (-5, FAIL)]
)
def test_top1_bar_is_half_a_point(points: float, expected: str) -> None:
    assert verdicts(text(points=points)) == [PASS, expected]


def test_bars_come_from_the_recipe() -> None:
    assert verdicts(text(BAR * 1.4)) == [FAIL, PASS]
    assert verdicts(text(BAR * 1.4), kld_combined_standard_errors=3) == [PASS, PASS]
    assert verdicts(text(points=-0.8), top1_points_lower=1.0) == [PASS, PASS]
    chunks = dataclasses.replace(text(BAR * 1.4).candidate, kld_se_chunks=2 * SE)
    clustered = dataclasses.replace(text(BAR * 1.4), candidate=chunks)
    assert verdicts(clustered, standard_error="chunks") == [PASS, PASS]


def test_wide_errors_cannot_pass_a_candidate() -> None:
    """With errors as large as the KLD itself the bar alone would let a doubled KLD pass."""
    assert verdicts(text(0.03, se=0.02)) == [INCONCLUSIVE, PASS]
    assert verdicts(text(0.0, se=0.02)) == [INCONCLUSIVE, PASS]
    assert verdicts(text(0.06, se=0.02)) == [FAIL, PASS]
    better = -2 * math.sqrt(2) * 0.02
    assert verdicts(text(better, se=0.02)) == [PASS, PASS]


def test_wide_top1_intervals_decide_only_when_clear() -> None:
    assert verdicts(text(points=0.0, top1_se=0.01)) == [PASS, INCONCLUSIVE]
    assert verdicts(text(points=-1.0, top1_se=0.01)) == [PASS, INCONCLUSIVE]
    assert verdicts(text(points=-5.0, top1_se=0.01)) == [PASS, FAIL]
    assert verdicts(text(points=5.0, top1_se=0.01)) == [PASS, PASS]


@pytest.mark.parametrize("size", [{"n_tokens": 999}, {"n_chunks": 3}])
def test_short_texts_are_inconclusive(size: dict[str, int]) -> None:
    rows = judge(Criterion(), [text(**size), text(1.0, -50, **size)])  # type: ignore[arg-type]
    short = [row for row in rows if row.check != "text"]
    assert [row.verdict for row in short] == [INCONCLUSIVE] * 4
    assert all("use a longer text" in row.note for row in short)


def test_unknown_errors_are_inconclusive() -> None:
    rows = judge(Criterion(), [text(se=None, top1_se=None)])
    assert [row.verdict for row in rows[:2]] == [INCONCLUSIVE] * 2
    assert rows[0].bar is rows[0].interval is None
    assert "no standard error over tokens" in rows[0].note


def test_missing_roles_are_inconclusive() -> None:
    rows = judge(Criterion(), [text(role="selection")])
    assert [(row.role, row.verdict) for row in rows[2:]] == [
        ("check", INCONCLUSIVE),
        ("held_out", INCONCLUSIVE),
    ]
    full = judge(Criterion(), [text(role=role) for role in ROLES])
    assert [row.verdict for row in full] == [PASS] * 6


def test_held_out_text_must_confirm() -> None:
    texts = [text(role="selection"), text(role="check"), text(0.1, role="held_out")]
    assert report(texts).verdict == FAIL
    assert report(texts).exit_code == 1
    texts[2] = text(role="held_out")
    assert report(texts).exit_code == 0
    assert report(texts[:2]).exit_code == 4
    assert report([*texts, text(se=None, role="check")]).exit_code == 4


def report(texts: list[GateText]):  # type: ignore[no-untyped-def]
    model = GateModel("m", (file_id("m.gguf"),))
    return build_report(
        Criterion(),
        texts,
        candidate=model,
        baseline=model,
        reference=model,
        meter="sweep",
        settings={"n_ctx": 512},
        machine=MACHINE,
    )


def test_report_is_an_artifact_with_hashed_bars() -> None:
    made = report([text(role=role) for role in ROLES])
    assert loads(type(made), dumps(made)) == made
    assert made.criterion_sha256 == Criterion().sha256
    assert made.criterion["top1_points_lower"] == 0.5
    assert content_sha256(made) == content_sha256(report([text(role=role) for role in ROLES]))
    assert Criterion().sha256 != Criterion(top1_points_lower=0.6).sha256


def test_interval_is_that_of_the_paired_difference() -> None:
    paired = PairedDifference(0.001, 0.0001, 0.0002, -0.001, 0.0005, 0.0006)
    rows = judge(Criterion(), [text(0.001, -0.1, paired=paired)])
    assert rows[0].interval == pytest.approx((0.0008, 0.0012))
    assert rows[1].interval == pytest.approx((-0.2, 0.0))
    alone = judge(Criterion(), [text(0.001, -0.1)])
    assert alone[0].interval == pytest.approx((0.001 - BAR, 0.001 + BAR))


def test_models_measured_on_different_tokens_are_refused() -> None:
    made = text()
    shorter = dataclasses.replace(made.baseline, n_tokens=5000)
    with pytest.raises(ArtifactError, match="different tokens"):
        judge(Criterion(), [dataclasses.replace(made, baseline=shorter)])


@pytest.mark.parametrize(
    "bars",
    [
        {"kld": 2},
        {"kld_combined_standard_errors": "2"},
        {"kld_combined_standard_errors": -1},
        {"standard_error": "documents"},
        {"min_tokens": 0},
        {"min_chunks": 2.5},
        {"max_excess_share": math.nan},
    ],
)
def test_unusable_bars_are_recipe_errors(bars: dict[str, object]) -> None:
    with pytest.raises(RecipeError):
        criterion_from_bars(bars)
