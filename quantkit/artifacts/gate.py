"""`gate.json`: the checks a candidate went through, each with figure, interval, bar and verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from quantkit.artifacts.kld import KldStatistics, PairedDifference
from quantkit.artifacts.machine import Machine
from quantkit.artifacts.schema import Check, Label, Problem, Scalar, Sha256
from quantkit.artifacts.store import Artifact, FileId
from quantkit.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_PASS

PASS = "PASS"
FAIL = "FAIL"
INCONCLUSIVE = "INCONCLUSIVE"
EXIT_CODES = {PASS: EXIT_PASS, FAIL: EXIT_GATE_FAILED, INCONCLUSIVE: EXIT_INCONCLUSIVE}

ROLES = ("selection", "check", "held_out")

Verdict = Annotated[str, Check(f"must be one of {tuple(EXIT_CODES)}", EXIT_CODES.__contains__)]
Role = Annotated[str, Check(f"must be one of {ROLES}", ROLES.__contains__)]


def combine(verdicts: Iterable[str]) -> str:
    """FAIL if any failed, else INCONCLUSIVE if any is or if there is none, else PASS."""
    found = set(verdicts)
    if FAIL in found:
        return FAIL
    return PASS if found == {PASS} else INCONCLUSIVE


@dataclass(frozen=True)
class CheckRow:
    """One row of the table.

    `figure` is compared with `bar`, both in `unit`; `interval` is the figure's own (two standard
    errors of the paired difference where tokens are known, of both models together otherwise).
    """

    check: Label
    text: str
    role: str
    figure: float | None
    interval: tuple[float, float] | None
    bar: float | None
    unit: str
    verdict: Verdict
    note: str


@dataclass(frozen=True)
class GateModel:
    """A model of the comparison by name and files."""

    name: Label
    files: tuple[FileId, ...]


@dataclass(frozen=True)
class GateText:
    """Statistics of candidate and reference quantization on one text, against the reference."""

    text: FileId
    role: Role
    candidate: KldStatistics
    baseline: KldStatistics
    paired: PairedDifference | None


@dataclass(frozen=True)
class GateReport(Artifact):
    """`reference` is the unquantized model, `baseline` the reference quantization to keep up with.

    `criterion` holds the bars as they stood before the run and `criterion_sha256` their hash.
    """

    SCHEMA = "quantkit.gate"
    VERSION = 1
    NOT_IDENTITY = frozenset({"machine"})

    verdict: Verdict
    criterion: dict[str, Scalar]
    criterion_sha256: Sha256
    candidate: GateModel
    baseline: GateModel
    reference: GateModel
    meter: Label
    settings: dict[str, Scalar]
    checks: tuple[CheckRow, ...]
    texts: tuple[GateText, ...]
    machine: Machine

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def problems(self) -> Iterator[Problem]:
        combined = combine(row.verdict for row in self.checks)
        if combined != self.verdict:
            yield Problem("verdict", self.verdict, f"the checks together give {combined}")
