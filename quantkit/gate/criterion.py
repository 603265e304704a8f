"""The acceptance criterion: bars that are fixed, and hashed, before anything is measured.

A candidate is compared with a reference quantization (the baseline), both against the unquantized
model. As in the FLE report (section 2.3): on the selection text and on the check text the
candidate's mean KLD is at most two combined standard errors above the baseline's, its top-1
agreement at most 0.5 percentage points lower, and the held-out text confirms both.

A bar of two standard errors is easy to pass when the errors are large, so evidence has a bar too,
and a check that does not reach it is INCONCLUSIVE instead of PASS:

- fewer scored tokens than `min_tokens` or fewer chunks than `min_chunks` (the standard error
  itself is then a guess), or no standard error of the kind asked for;
- KLD: the allowed excess is more than `max_excess_share` of the baseline's KLD, and the interval
  of two standard errors around the difference does not stay below that share either;
- top-1: the interval of two standard errors is wider than `max_top1_halfwidth_points` to each
  side and contains the bar.

A KLD above its bar is a FAIL however wide the errors are: they have been allowed for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from quantkit.artifacts.schema import Check, NonNegative, Positive, Scalar, from_json, to_json
from quantkit.errors import ArtifactError, RecipeError

ERROR_KINDS = ("tokens", "chunks")

ErrorKind = Annotated[str, Check(f"must be one of {ERROR_KINDS}", ERROR_KINDS.__contains__)]


@dataclass(frozen=True)
class Criterion:
    """The bars; the defaults are the report's, with the evidence that they need.

    `standard_error` is "tokens" (what llama-perplexity prints; the smaller, so the stricter bar)
    or "chunks" (clustered).
    """

    kld_combined_standard_errors: NonNegative = 2.0
    top1_points_lower: NonNegative = 0.5
    standard_error: ErrorKind = "tokens"
    min_tokens: Positive = 1000
    min_chunks: Positive = 4
    max_excess_share: NonNegative = 0.25
    max_top1_halfwidth_points: NonNegative = 1.0

    def bars(self) -> dict[str, Scalar]:
        """Every bar by name, defaults included."""
        made: dict[str, Scalar] = to_json(self)
        return made

    @property
    def sha256(self) -> str:
        """Hash of the bars: sorted names, JSON without spaces."""
        text = json.dumps(self.bars(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def criterion_from_bars(bars: Mapping[str, object]) -> Criterion:
    """Bars of a recipe, the rest by default; RecipeError for an unknown name or a wrong value."""
    defaults = {field.name: field.default for field in dataclasses.fields(Criterion)}
    try:
        return from_json(Criterion, defaults | dict(bars), label="criterion")
    except ArtifactError as error:
        raise RecipeError(
            error.what,
            value=error.value,
            rule=error.rule,
            hint="correct the gate's bars in the recipe",
        ) from error
