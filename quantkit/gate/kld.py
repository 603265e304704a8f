"""Kullback-Leibler divergence of a candidate's next-token distribution, token by token.

    KLD = sum over the vocabulary of p_reference * (log p_reference - log p_candidate)   [nats]

Two definitions, because there are two kinds of reference:

`score_logits` compares live logits of two models. Everything is done in float64 and over the
whole vocabulary: identical logits give exactly 0, and no figure is below -1e-15.

`score_log_probs` compares with log-probabilities from llama-perplexity's file, as that program
does it (llama.cpp, tools/perplexity): terms with log p_reference > -16 only, in float32 with a
float64 sum, so that its printed digits are met. The dropped tail makes figures slightly too low
(an identical model can show -5e-5 on single tokens; the mean moves by less than 1 %).

Tensors are (rows, n_vocab) on any device; targets are int64 (rows,).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import threshold

from quantkit.errors import ModelError, TextError

LOG_PROB_FLOOR = -16.0
LOG_OF_NOTHING = -80.0  # adds below 1e-28 in all; exp of -inf takes the slow path on processors
BLOCK_VALUES = 1 << 19  # temporaries of a block (4 MB in float64) stay near the processor

Losses = NDArray[np.float64] | NDArray[np.float32]


@dataclass(frozen=True)
class TokenScores:
    """Per scored token: KLD and losses in nats, and whether both models' first choices agree.

    Losses keep the precision that they were computed in: float64 from `score_logits`, float32
    from `score_log_probs`.
    """

    kld: NDArray[np.float64]
    nll: Losses
    nll_reference: Losses
    same_top: NDArray[np.bool_]


def score_logits(
    reference: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor
) -> TokenScores:
    """Exact scores from two models' logits or log-probabilities (rows, n_vocab).

    Raises ModelError if a row of either has no finite distribution.
    """
    blocks = _blocks(reference, candidate, targets)
    return _joined(_score_exactly(*block) for block in blocks)


def score_log_probs(
    log_probs: torch.Tensor,
    candidate: torch.Tensor,
    targets: torch.Tensor,
    *,
    candidate_is_normalized: bool = False,
) -> TokenScores:
    """llama-perplexity's scores: reference from its file, candidate's logits, float32.

    `candidate_is_normalized` takes the candidate's rows as log-probabilities as they are; rows
    decoded from a file must not be normalized again, since their clipped tail would count.
    """
    blocks = _blocks(log_probs, candidate, targets)
    return _joined(_score_as_llamacpp(*block, candidate_is_normalized) for block in blocks)


def _blocks(
    reference: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The rows in blocks, on the candidate's device; TextError for another vocabulary."""
    if reference.shape[1] != candidate.shape[1]:
        raise TextError(
            "the model has another vocabulary than the reference",
            value=f"{candidate.shape[1]} tokens",
            rule=f"{reference.shape[1]} tokens",
            hint="compare models with the same tokenizer",
        )
    assert len(reference) == len(candidate) == len(targets) > 0
    step = max(1, BLOCK_VALUES // reference.shape[1])
    for start in range(0, len(reference), step):
        rows = slice(start, start + step)
        block = candidate[rows]
        yield reference[rows].to(block.device), block, targets[rows].to(block.device)


def _score_exactly(
    reference: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor
) -> TokenScores:
    same_top = reference.argmax(1) == candidate.argmax(1)
    reference, candidate = reference.double(), candidate.double()
    high, weight, total = _exponentials(reference)
    norm_reference = high + total.log()
    high, _, total_candidate = _exponentials(candidate)
    norm = high + total_candidate.log()
    terms = weight * (reference - candidate)
    ratio = terms.sum(1)
    if not bool(torch.isfinite(ratio).all()):
        # A token that the reference rules out (weight 0) adds nothing, whatever its log-ratio.
        ratio = torch.where(weight > 0, terms, 0.0).sum(1)
    return _checked(
        ratio / total - (norm_reference - norm),
        norm - _taken(candidate, targets),
        norm_reference - _taken(reference, targets),
        same_top,
    )


def _exponentials(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row maximum, exp(logits - maximum), and its row sum in float64."""
    high = logits.amax(1)
    weight = torch.exp(logits - high.unsqueeze(1))
    return high, weight, weight.sum(1, dtype=torch.float64)


def _score_as_llamacpp(
    log_probs: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor, normalized: bool
) -> TokenScores:
    candidate = candidate.float()
    norm = torch.zeros(len(candidate), device=candidate.device)
    if not normalized:
        high, _, total = _exponentials(candidate)
        norm = high + total.log().float()
    p = torch.exp(threshold(log_probs, LOG_PROB_FLOOR, LOG_OF_NOTHING))
    terms = p * ((log_probs - candidate) + norm.unsqueeze(1))
    return _checked(
        terms.sum(1, dtype=torch.float64),
        norm - _taken(candidate, targets),
        -_taken(log_probs, targets),
        candidate.argmax(1) == log_probs.argmax(1),
    )


def _taken(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return values.gather(1, targets.unsqueeze(1)).squeeze(1)


def _checked(
    kld: torch.Tensor, nll: torch.Tensor, nll_reference: torch.Tensor, same_top: torch.Tensor
) -> TokenScores:
    if not bool(torch.isfinite(kld + nll + nll_reference).all()):
        raise ModelError(
            "a model's logits give no probability distribution",
            rule="logits must be numbers, and no token that occurs may have probability 0",
            hint="the model is damaged, or its arithmetic overflows on this device",
        )
    return TokenScores(
        kld.cpu().numpy(),
        nll.cpu().numpy(),
        nll_reference.cpu().numpy(),
        same_top.cpu().numpy(),
    )


def _joined(parts: Iterable[TokenScores]) -> TokenScores:
    columns = zip(*((s.kld, s.nll, s.nll_reference, s.same_top) for s in parts), strict=True)
    return TokenScores(*(np.concatenate(column) for column in columns))
