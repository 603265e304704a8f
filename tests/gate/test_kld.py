"""Scores against closed forms, float64 sums written out, and planted noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import ModelError, TextError
from quantkit.gate import kld
from quantkit.gate.kld import score_log_probs, score_logits


def random_logits(seed: int, rows: int, n_vocab: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, n_vocab, generator=torch.Generator().manual_seed(seed)) * scale


def written_out(reference: torch.Tensor, candidate: torch.Tensor) -> np.ndarray:
    """KLD in float64, one definition after the other."""
    p, q = (
        np.exp(x.numpy().astype(np.float64) - x.numpy().max(1, keepdims=True))
        for x in (reference, candidate)
    )
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    return (p * np.log(p / q)).sum(1)


def test_two_tokens_by_hand() -> None:
    """p = (3/4, 1/4), q = (1/2, 1/2): KLD = log 2 - H(1/4)."""
    reference = torch.tensor([[math.log(3.0), 0.0]])
    candidate = torch.tensor([[7.0, 7.0]])
    scores = score_logits(reference, candidate, torch.tensor([1]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert scores.kld[0] == pytest.approx(math.log(2) - entropy, rel=1e-7)
    assert scores.nll[0] == pytest.approx(math.log(2), rel=1e-12)
    assert scores.nll_reference[0] == pytest.approx(math.log(4), rel=1e-7)
    assert scores.same_top[0]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n_vocab=st.integers(2, 400),
    scale=st.floats(0.01, 20),
    shift=st.floats(-500, 500),
)
def test_agrees_with_the_sum_written_out(
    seed: int, n_vocab: int, scale: float, shift: float
) -> None:
    reference = random_logits(seed, 3, n_vocab, scale)
    candidate = random_logits(seed + 1, 3, n_vocab, scale) + shift
    targets = torch.randint(n_vocab, (3,), generator=torch.Generator().manual_seed(seed))
    scores = score_logits(reference, candidate, targets)
    assert scores.kld == pytest.approx(written_out(reference, candidate), rel=1e-6, abs=1e-9)
    assert (scores.kld >= -1e-12).all()


@pytest.mark.parametrize("n_vocab", [2, 1000, 250_000])
def test_identical_logits_give_exactly_zero(n_vocab: int) -> None:
    logits = random_logits(0, 3, n_vocab, 10.0)
    scores = score_logits(logits, logits.clone(), torch.tensor([0, 1, 1]))
    assert (scores.kld == 0).all()
    assert scores.same_top.all()
    assert (scores.nll == scores.nll_reference).all()


def test_constant_shift_changes_nothing() -> None:
    logits = random_logits(1, 4, 1000)
    scores = score_logits(logits, logits + 64.0, torch.zeros(4, dtype=torch.int64))
    assert np.abs(scores.kld).max() < 1e-10


@pytest.mark.parametrize("noise", [1e-3, 1e-2, 1e-1])
def test_planted_noise_is_found_at_its_size(noise: float) -> None:
    """Independent noise of standard deviation s costs s^2/2 * (1 - sum p^2) to second order."""
    logits = random_logits(2, 64, 5000, 1.0)
    noisy = logits + noise * random_logits(3, 64, 5000, 1.0)
    scores = score_logits(logits, noisy, torch.zeros(64, dtype=torch.int64))
    p = torch.softmax(logits.double(), 1)
    expected = noise**2 / 2 * float((1 - p.square().sum(1)).mean())
    assert scores.kld.mean() == pytest.approx(expected, rel=0.05)


def test_blocks_do_not_change_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, candidate = random_logits(4, 9, 300), random_logits(5, 9, 300)
    targets = torch.arange(9)
    whole = score_logits(reference, candidate, targets)
    monkeypatch.setattr(kld, "BLOCK_VALUES", 700)
    parts = score_logits(reference, candidate, targets)
    for name in ("kld", "nll", "nll_reference", "same_top"):
        assert (getattr(whole, name) == getattr(parts, name)).all()


def test_tokens_that_the_reference_rules_out_add_nothing() -> None:
    reference = torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, -math.inf]])
    candidate = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -math.inf]])
    scores = score_logits(reference, candidate, torch.tensor([0, 0]))
    assert scores.kld == pytest.approx([math.log(1.5), 0.0], abs=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_without_a_distribution_are_refused(bad: float) -> None:
    logits = random_logits(6, 2, 10)
    broken = logits.clone()
    broken[1, 3] = bad
    targets = torch.tensor([0, 3])
    with pytest.raises(ModelError, match="no probability distribution"):
        score_logits(logits, broken, targets)
    with pytest.raises(ModelError):
        score_log_probs(torch.log_softmax(logits, 1), broken, targets)


def test_other_vocabulary_is_refused() -> None:
    with pytest.raises(TextError, match="another vocabulary"):
        score_logits(random_logits(0, 2, 10), random_logits(0, 2, 11), torch.tensor([0, 0]))


def test_ties_go_to_the_lower_token() -> None:
    reference = torch.tensor([[1.0, 1.0, 0.0]])
    candidate = torch.tensor([[1.0, 1.0, 1.0]])
    later = torch.tensor([[0.0, 1.0, 1.0]])
    targets = torch.tensor([0])
    assert score_logits(reference, candidate, targets).same_top[0]
    assert not score_logits(reference, later, targets).same_top[0]


def test_peer_definition_drops_the_tail_only() -> None:
    """Both definitions agree where no log-probability is below -16."""
    reference, candidate = random_logits(7, 32, 2000, 1.0), random_logits(8, 32, 2000, 1.0)
    targets = torch.arange(32)
    exact = score_logits(reference, candidate, targets)
    log_probs = torch.log_softmax(reference.double(), 1).float()
    peer = score_log_probs(log_probs, candidate, targets)
    assert log_probs.min() > -16
    assert peer.kld == pytest.approx(exact.kld, abs=2e-6)
    assert peer.nll == pytest.approx(exact.nll, abs=2e-6)
    log_probs[:, 5] = -16.0
    without = score_log_probs(log_probs, candidate, targets)
    kept = torch.arange(2000) != 5
    q = torch.log_softmax(candidate.double(), 1)[:, kept]
    p = log_probs.double()[:, kept]
    assert without.kld == pytest.approx((p.exp() * (p - q)).sum(1).numpy(), abs=2e-6)


def test_normalized_rows_are_taken_as_they_are() -> None:
    log_probs = torch.log_softmax(random_logits(9, 4, 100), 1)
    lifted = log_probs + 0.25
    scores = score_log_probs(log_probs, lifted, torch.arange(4), candidate_is_normalized=True)
    assert scores.kld == pytest.approx(np.full(4, -0.25), abs=1e-5)
