"""How far a model's next-token distribution is from a reference's, on one text.

The statistics have the names and definitions of llama-perplexity's `--kl-divergence` report
(llama.cpp, tools/perplexity), so that a figure here can be held against a figure there; standard
errors over chunks are added, because tokens of one chunk are not independent. Losses are in nats
a token, agreements and probability differences are shares (1 = 100 %).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantkit.artifacts.machine import Machine
from quantkit.artifacts.schema import Label, NonNegative, Positive, Scalar, Share
from quantkit.artifacts.store import Artifact, FileId


@dataclass(frozen=True)
class KldStatistics:
    """Statistics over the scored tokens of a text; `reference` is the model compared with.

    `_se_tokens` is llama-perplexity's "±": tokens as independent draws; None for 10 tokens or
    fewer (it prints 0 there). `_se_chunks` clusters by chunk; None for fewer than 2 chunks, or
    where the meter does not report single tokens. Percentiles are keyed "0" (minimum) .. "100"
    (maximum). `p_diff` is the candidate's minus the reference's probability of the true token.
    """

    n_tokens: Positive
    n_chunks: Positive
    kld_mean: float
    kld_se_tokens: NonNegative | None
    kld_se_chunks: NonNegative | None
    kld_percentiles: dict[str, float]
    top1_agreement: Share
    top1_se_tokens: NonNegative | None
    top1_se_chunks: NonNegative | None
    nll_mean: float
    nll_se_tokens: NonNegative | None
    nll_se_chunks: NonNegative | None
    nll_reference_mean: float
    nll_reference_se_tokens: NonNegative | None
    nll_correlation: float | None
    ln_ppl_ratio_mean: float
    ln_ppl_ratio_se_tokens: NonNegative | None
    p_diff_mean: float
    p_diff_se_tokens: NonNegative | None
    p_diff_rms: NonNegative
    p_diff_rms_se_tokens: NonNegative | None
    p_diff_percentiles: dict[str, float]

    @property
    def ppl(self) -> float:
        """Perplexity of the candidate."""
        return math.exp(self.nll_mean)

    @property
    def ppl_reference(self) -> float:
        """Perplexity of the reference; biased where its log-probabilities were clipped."""
        return math.exp(self.nll_reference_mean)

    @property
    def ppl_ratio(self) -> float:
        return math.exp(self.ln_ppl_ratio_mean)


@dataclass(frozen=True)
class PairedDifference:
    """Candidate minus reference quantization over the same tokens, against the same reference."""

    kld_mean: float
    kld_se_tokens: NonNegative | None
    kld_se_chunks: NonNegative | None
    top1_mean: float
    top1_se_tokens: NonNegative | None
    top1_se_chunks: NonNegative | None


@dataclass(frozen=True)
class TextKld(Artifact):
    """One model against the reference on one text, with what is needed to measure it again."""

    SCHEMA = "quantkit.kld"
    VERSION = 1
    NOT_IDENTITY = frozenset({"machine"})

    model: tuple[FileId, ...]
    reference: tuple[FileId, ...]
    text: FileId
    meter: Label
    settings: dict[str, Scalar]
    statistics: KldStatistics
    machine: Machine
