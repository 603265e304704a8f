"""What a run's report is made from: finished artifacts and the headers of the models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quantkit.artifacts.gate import GateReport
from quantkit.artifacts.kld import KldStatistics
from quantkit.artifacts.schema import Scalar
from quantkit.artifacts.selection import Selection
from quantkit.artifacts.sensitivity import Sensitivity
from quantkit.artifacts.store import FileId
from quantkit.report.inspection import Inspection

BASE, DONOR, HYBRID = "base", "donor", "hybrid"

Statistics = Mapping[str, KldStatistics]
"""Role of the text -> figures on it."""


@dataclass(frozen=True)
class ModelFacts:
    """A quantization or hybrid of the run; `verdict` and `expected` only for a hybrid."""

    name: str
    kind: str
    files: tuple[FileId, ...]
    inspection: Inspection
    statistics: Statistics
    verdict: str | None = None
    expected: str | None = None

    @property
    def bytes(self) -> int:
        """Size of the model, all files together."""
        return sum(file.bytes for file in self.files)

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one that the recipe expects."""
        return self.verdict == self.expected

    def mean_kld(self) -> tuple[float, float]:
        """Mean over all scored tokens of all texts, and its standard error (over chunks)."""
        total = sum(s.n_tokens for s in self.statistics.values())
        mean = sum(s.n_tokens * s.kld_mean for s in self.statistics.values()) / total
        errors = (s.n_tokens * chunk_error(s) for s in self.statistics.values())
        return mean, math.hypot(*errors) / total


def chunk_error(statistics: KldStatistics) -> float:
    """Standard error of the mean KLD: over chunks, over tokens where chunks are not known."""
    known = (statistics.kld_se_chunks, statistics.kld_se_tokens)
    return next((error for error in known if error is not None), 0.0)


@dataclass(frozen=True)
class HybridFacts:
    """How a hybrid was chosen and judged."""

    selection: Selection
    gate: GateReport


@dataclass(frozen=True)
class RunFacts:
    """One finished run. `models`: the base, the donors, the hybrids; `hybrids` by name.

    `inputs` are the recipe's own files (model, texts, donors that were given) by what they are.
    """

    name: str
    description: str
    recipe_name: str
    recipe_text: str
    model: str
    reference: Inspection
    inputs: Sequence[tuple[str, FileId]]
    models: tuple[ModelFacts, ...]
    hybrids: Mapping[str, HybridFacts]
    baseline: str
    sensitivity: Sensitivity
    bars: Mapping[str, Scalar]
    bars_sha256: str
    run_command: str
    tool_version: str
    is_embedded: bool
    commands: Sequence[Sequence[str]]

    @property
    def any_gate(self) -> GateReport:
        """A gate report: meter, settings and machine are the same in all."""
        return next(iter(self.hybrids.values())).gate
