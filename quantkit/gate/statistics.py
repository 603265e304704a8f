"""Statistics of per-token scores, as llama-perplexity defines them, and clustered by chunk.

A mean's "±" is sqrt((E[x^2] - E[x]^2) / (n - 1)). Percentiles lie at p * (n - 1) of the sorted
values with linear interpolation, in float32, as are the values (llama.cpp, tools/perplexity).
Tokens of a chunk share their context, so the error over chunks is the one to trust where it is
larger: sqrt(C / (C - 1) * sum over chunks of (sum of deviations)^2) / n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantkit.artifacts.kld import KldStatistics, PairedDifference
from quantkit.errors import ArtifactError
from quantkit.gate.records import TokenRecords

FEW_TOKENS = 10  # up to here llama-perplexity gives no error of a mean
KLD_LEVELS = (0.0, 0.1, 1.0, 5.0, 10.0, 50.0, 90.0, 95.0, 99.0, 99.9, 100.0)
P_DIFF_LEVELS = (0.0, 0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0)
SAME_LOSS_NATS = 1e-3

Floats = NDArray[np.float64] | NDArray[np.float32]


def summarise(records: TokenRecords) -> KldStatistics:
    """All statistics of a text; needs at least one token."""
    kld, nll, base = records.kld, records.nll, records.nll_reference
    top = records.same_top.astype(np.float64)
    p_diff = _probability(nll) - _probability(base)
    p_square = np.square(p_diff).astype(np.float64)
    rms = math.sqrt(_mean(p_square))
    se_square = se_tokens(p_square)
    se, se_base, covariance = se_tokens(nll), se_tokens(base), _covariance(nll, base)
    correlation = ratio_se = None
    if se is not None and se_base is not None:
        ratio_se = math.sqrt(max(0.0, se**2 + se_base**2 - 2 * covariance))
        correlation = covariance / (se * se_base) if se * se_base > 0 else None
    return KldStatistics(
        n_tokens=records.n_tokens,
        n_chunks=records.n_chunks,
        kld_mean=_mean(kld),
        kld_se_tokens=se_tokens(kld),
        kld_se_chunks=se_chunks(kld, records.chunk),
        kld_percentiles=percentiles(kld, KLD_LEVELS),
        top1_agreement=_mean(top),
        top1_se_tokens=se_tokens(top),
        top1_se_chunks=se_chunks(top, records.chunk),
        nll_mean=_mean(nll),
        nll_se_tokens=se,
        nll_se_chunks=se_chunks(nll, records.chunk),
        nll_reference_mean=_mean(base),
        nll_reference_se_tokens=se_base,
        nll_correlation=correlation,
        ln_ppl_ratio_mean=_mean(nll) - _mean(base),
        ln_ppl_ratio_se_tokens=ratio_se,
        p_diff_mean=_mean(p_diff),
        p_diff_se_tokens=se_tokens(p_diff),
        p_diff_rms=rms,
        p_diff_rms_se_tokens=None if se_square is None or rms == 0 else 0.5 / rms * se_square,
        p_diff_percentiles=percentiles(p_diff, P_DIFF_LEVELS),
    )


def paired_difference(candidate: TokenRecords, baseline: TokenRecords) -> PairedDifference:
    """Candidate minus baseline, token by token; ArtifactError unless the tokens are the same."""
    same = np.array_equal(candidate.chunk, baseline.chunk) and np.allclose(
        candidate.nll_reference, baseline.nll_reference, rtol=0, atol=SAME_LOSS_NATS
    )
    if not same:
        raise ArtifactError(
            "the per-token scores of two models belong to different tokens",
            value=f"{candidate.n_tokens} and {baseline.n_tokens} tokens",
            rule="same text, same chunks, same reference log-probabilities",
            hint="measure both models against the same cached reference",
        )
    kld = candidate.kld - baseline.kld
    top = candidate.same_top.astype(np.float64) - baseline.same_top
    return PairedDifference(
        kld_mean=float(kld.mean()),
        kld_se_tokens=se_tokens(kld),
        kld_se_chunks=se_chunks(kld, candidate.chunk),
        top1_mean=float(top.mean()),
        top1_se_tokens=se_tokens(top),
        top1_se_chunks=se_chunks(top, candidate.chunk),
    )


def se_tokens(values: Floats) -> float | None:
    """Standard error of the mean over independent tokens; None for 10 or fewer.

    Squares are taken in the precision of the values, then averaged in float64.
    """
    if len(values) <= FEW_TOKENS:
        return None
    variance = _mean(values * values) - _mean(values) ** 2
    return math.sqrt(max(0.0, variance) / (len(values) - 1))


def se_chunks(values: Floats, chunk: NDArray[np.int32]) -> float | None:
    """Standard error of the mean with tokens clustered by chunk; None for a single chunk.

    `chunk` gives each value's chunk and never falls; chunks may differ in length.
    """
    starts = np.flatnonzero(np.r_[True, chunk[1:] != chunk[:-1]])
    if len(starts) < 2:
        return None
    sums = np.add.reduceat(values.astype(np.float64) - _mean(values), starts)
    scale = len(starts) / (len(starts) - 1)
    return math.sqrt(scale * float(np.square(sums).sum())) / len(values)


def percentiles(values: Floats, levels: Sequence[float]) -> dict[str, float]:
    """Level in percent, as text -> value; "0" is the minimum and "100" the maximum."""
    ordered = np.sort(values.astype(np.float32))
    return {f"{level:g}": _percentile(ordered, level) for level in levels}


def _percentile(ordered: NDArray[np.float32], level: float) -> float:
    if level == 50 and len(ordered) % 2 == 0:
        return float(
            np.float32(0.5) * (ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2])
        )
    place = np.float32(level / 100) * np.float32(len(ordered) - 1)
    low = min(int(place), len(ordered) - 1)
    part = place - np.float32(low)
    high = min(low + 1, len(ordered) - 1)
    return float((np.float32(1) - part) * ordered[low] + part * ordered[high])


def _probability(loss: Floats) -> Floats:
    """exp(-loss), rounded once to the precision of the loss."""
    exact: NDArray[np.float64] = np.exp(-loss.astype(np.float64))
    return exact.astype(np.float32) if loss.dtype == np.float32 else exact


def _mean(values: Floats) -> float:
    return float(values.mean(dtype=np.float64))


def _covariance(first: Floats, second: Floats) -> float:
    """Of the two means, that is, divided by n - 1 like a squared standard error."""
    return (_mean(first * second) - _mean(first) * _mean(second)) / max(1, len(first) - 1)
