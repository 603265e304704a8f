"""Verdicts: each text against the criterion, one row per check, and the report.

Rows show the difference to the baseline with an interval of two standard errors. Where both
models' scores are known token by token the interval is that of the paired difference, which is
usually far narrower. The verdict follows the criterion as it is written, on the two means; the
interval only decides whether there is enough evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quantkit.artifacts.gate import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    ROLES,
    CheckRow,
    GateModel,
    GateReport,
    GateText,
    combine,
)
from quantkit.artifacts.kld import KldStatistics, PairedDifference
from quantkit.artifacts.machine import Machine
from quantkit.artifacts.schema import Scalar
from quantkit.errors import ArtifactError
from quantkit.gate.criterion import Criterion

INTERVAL_STANDARD_ERRORS = 2.0
POINTS = 100.0
ROUND_DIGITS = 9  # a difference of exactly the bar must not fail on its last binary digit


@dataclass(frozen=True)
class _Outcome:
    verdict: str
    note: str = ""


def judge(criterion: Criterion, texts: Sequence[GateText]) -> tuple[CheckRow, ...]:
    """Two rows per text, and one INCONCLUSIVE row for each role that no text has."""
    for text in texts:
        _require_same_tokens(text)
    rows = [
        row for text in texts for row in (_kld_row(criterion, text), _top1_row(criterion, text))
    ]
    measured = {text.role for text in texts}
    for role in ROLES:
        if role not in measured:
            note = f"the criterion needs a {role.replace('_', '-')} text"
            rows.append(CheckRow("text", "", role, None, None, None, "", INCONCLUSIVE, note))
    return tuple(rows)


def build_report(
    criterion: Criterion,
    texts: Sequence[GateText],
    *,
    candidate: GateModel,
    baseline: GateModel,
    reference: GateModel,
    meter: str,
    settings: Mapping[str, Scalar],
    machine: Machine,
) -> GateReport:
    """The report with all rows and the combined verdict; its `exit_code` is the process's."""
    rows = judge(criterion, texts)
    return GateReport(
        verdict=combine(row.verdict for row in rows),
        criterion=criterion.bars(),
        criterion_sha256=criterion.sha256,
        candidate=candidate,
        baseline=baseline,
        reference=reference,
        meter=meter,
        settings=dict(settings),
        checks=rows,
        texts=tuple(texts),
        machine=machine,
    )


def _require_same_tokens(text: GateText) -> None:
    counts = [(model.n_tokens, model.n_chunks) for model in (text.candidate, text.baseline)]
    if counts[0] != counts[1]:
        raise ArtifactError(
            "candidate and baseline were measured on different tokens",
            file=text.text.name,
            value=f"(tokens, chunks): {counts[0]} and {counts[1]}",
            rule="same text, same context length",
            hint="measure both again with the same settings",
        )


def _kld_row(criterion: Criterion, text: GateText) -> CheckRow:
    errors = [_se("kld", model, criterion) for model in (text.candidate, text.baseline)]
    combined = _combined(errors)
    difference = text.candidate.kld_mean - text.baseline.kld_mean
    bar = None if combined is None else criterion.kld_combined_standard_errors * combined
    outcome = _too_little(criterion, text)
    if outcome is None and bar is not None:
        outcome = _kld_outcome(criterion, text, difference, bar)
    return CheckRow(
        check="mean KLD above the baseline",
        text=text.text.name,
        role=text.role,
        figure=difference,
        interval=_interval(difference, _paired_se("kld", text.paired, criterion), combined),
        bar=bar,
        unit="nats/token",
        verdict=outcome.verdict if outcome else INCONCLUSIVE,
        note=outcome.note if outcome else _no_error(criterion),
    )


def _kld_outcome(criterion: Criterion, text: GateText, difference: float, bar: float) -> _Outcome:
    if difference > bar:
        return _Outcome(FAIL)
    allowed = criterion.max_excess_share * abs(text.baseline.kld_mean)
    if bar <= allowed or difference + bar <= allowed:
        return _Outcome(PASS)
    return _Outcome(
        INCONCLUSIVE,
        f"the allowed excess is more than {criterion.max_excess_share:.0%} of the baseline's "
        f"KLD ({allowed:.3g}); use a longer text",
    )


def _top1_row(criterion: Criterion, text: GateText) -> CheckRow:
    errors = [_se("top1", model, criterion) for model in (text.candidate, text.baseline)]
    paired = _paired_se("top1", text.paired, criterion)
    difference = text.candidate.top1_agreement - text.baseline.top1_agreement
    figure = round(POINTS * difference, ROUND_DIGITS)
    interval = _interval(figure, _scaled(paired), _scaled(_combined(errors)))
    bar = -criterion.top1_points_lower
    outcome = _too_little(criterion, text)
    if outcome is None and interval is not None:
        outcome = _top1_outcome(criterion, figure, interval, bar)
    return CheckRow(
        check="top-1 agreement above the baseline",
        text=text.text.name,
        role=text.role,
        figure=figure,
        interval=interval,
        bar=bar,
        unit="points",
        verdict=outcome.verdict if outcome else INCONCLUSIVE,
        note=outcome.note if outcome else _no_error(criterion),
    )


def _top1_outcome(
    criterion: Criterion, figure: float, interval: tuple[float, float], bar: float
) -> _Outcome:
    low, high = interval
    halfwidth = (high - low) / 2
    if halfwidth > criterion.max_top1_halfwidth_points and low < bar <= high:
        return _Outcome(
            INCONCLUSIVE,
            f"known to ±{halfwidth:.2f} points only, more than "
            f"{criterion.max_top1_halfwidth_points:g}; use a longer text",
        )
    return _Outcome(PASS if figure >= bar else FAIL)


def _too_little(criterion: Criterion, text: GateText) -> _Outcome | None:
    n_tokens, n_chunks = text.candidate.n_tokens, text.candidate.n_chunks
    if n_tokens >= criterion.min_tokens and n_chunks >= criterion.min_chunks:
        return None
    return _Outcome(
        INCONCLUSIVE,
        f"{n_tokens} scored tokens in {n_chunks} chunks, at least {criterion.min_tokens} in "
        f"{criterion.min_chunks} needed; use a longer text",
    )


def _no_error(criterion: Criterion) -> str:
    return f"no standard error over {criterion.standard_error} is known"


def _se(figure: str, model: KldStatistics, criterion: Criterion) -> float | None:
    found: float | None = getattr(model, f"{figure}_se_{criterion.standard_error}")
    return found


def _paired_se(figure: str, paired: PairedDifference | None, criterion: Criterion) -> float | None:
    if paired is None:
        return None
    found: float | None = getattr(paired, f"{figure}_se_{criterion.standard_error}")
    return found


def _combined(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(errors) else None


def _scaled(error: float | None) -> float | None:
    return None if error is None else POINTS * error


def _interval(
    figure: float, paired: float | None, combined: float | None
) -> tuple[float, float] | None:
    error = combined if paired is None else paired
    if error is None:
        return None
    half = INTERVAL_STANDARD_ERRORS * error
    return figure - half, figure + half
