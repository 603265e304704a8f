"""`criterion.json`: the bars of a run, on disk before its first measurement."""

from __future__ import annotations

from dataclasses import dataclass

from quantkit.artifacts.schema import Scalar, Sha256
from quantkit.artifacts.store import Artifact


@dataclass(frozen=True)
class CriterionRecord(Artifact):
    """Every bar by name, and their hash as it stands in the gate's report too."""

    SCHEMA = "quantkit.criterion"
    VERSION = 1

    bars: dict[str, Scalar]
    sha256: Sha256
