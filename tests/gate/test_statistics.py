"""Statistics against their definitions, simulations and closed forms; records on disk."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from quantkit.errors import ArtifactError, TextError
from quantkit.gate.kld import score_log_probs
from quantkit.gate.logits_file import logits_writer, open_logits_file, scored_rows
from quantkit.gate.records import (
    Recorder,
    TokenRecords,
    compare_files,
    load_records,
    save_records,
)
from quantkit.gate.statistics import (
    paired_difference,
    percentiles,
    se_chunks,
    se_tokens,
    summarise,
)


def random_records(seed: int, n_chunks: int = 6, length: int = 50) -> TokenRecords:
    rng = np.random.default_rng(seed)
    n_tokens = n_chunks * length
    base = rng.exponential(2.0, n_tokens)
    return TokenRecords(
        np.repeat(np.arange(n_chunks, dtype=np.int32), length),
        rng.exponential(0.03, n_tokens),
        base + rng.normal(0, 0.1, n_tokens),
        base,
        rng.random(n_tokens) < 0.95,
    )


def test_figures_follow_their_definitions() -> None:
    records = random_records(0)
    found = summarise(records)
    n = records.n_tokens
    assert (found.n_tokens, found.n_chunks) == (300, 6)
    assert found.kld_mean == pytest.approx(records.kld.mean())
    spread = (records.kld**2).mean() - records.kld.mean() ** 2
    assert found.kld_se_tokens == pytest.approx(math.sqrt(spread / (n - 1)))
    share = records.same_top.mean()
    assert found.top1_agreement == pytest.approx(share)
    assert found.top1_se_tokens == pytest.approx(math.sqrt(share * (1 - share) / (n - 1)))
    assert found.ppl == pytest.approx(math.exp(records.nll.mean()))
    assert found.ppl_ratio == pytest.approx(found.ppl / found.ppl_reference)
    covariance = np.cov(records.nll, records.nll_reference, ddof=0)[0, 1] / (n - 1)
    assert found.nll_se_tokens is not None
    assert found.nll_reference_se_tokens is not None
    variance = found.nll_se_tokens**2 + found.nll_reference_se_tokens**2 - 2 * covariance
    assert found.ln_ppl_ratio_se_tokens == pytest.approx(math.sqrt(variance))
    correlation = covariance / (found.nll_se_tokens * found.nll_reference_se_tokens)
    assert found.nll_correlation == pytest.approx(correlation)
    p_diff = np.exp(-records.nll) - np.exp(-records.nll_reference)
    assert found.p_diff_mean == pytest.approx(p_diff.mean(), rel=1e-4)
    assert found.p_diff_rms == pytest.approx(math.sqrt((p_diff**2).mean()), rel=1e-5)


@settings(deadline=None)
@given(values=st.lists(st.floats(0, 10, width=32), min_size=1, max_size=300))
def test_percentiles_interpolate_linearly(values: list[float]) -> None:
    levels = (0.0, 0.1, 5.0, 50.0, 90.0, 99.9, 100.0)
    found = percentiles(np.array(values), levels)
    expected = np.percentile(np.array(values), levels, method="linear")
    assert list(found.values()) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert (found["0"], found["100"]) == (min(values), max(values))


def test_chunk_error_of_equal_chunks_is_that_of_their_means() -> None:
    records = random_records(1)
    means = records.kld.reshape(6, 50).mean(1)
    expected = means.std(ddof=1) / math.sqrt(6)
    assert se_chunks(records.kld, records.chunk) == pytest.approx(expected)


def test_errors_cover_the_truth_where_tokens_share_their_chunk() -> None:
    """Chunk effects as large as token noise: only the clustered error is honest."""
    rng = np.random.default_rng(2)
    chunk = np.repeat(np.arange(40, dtype=np.int32), 25)
    misses = {"chunks": 0, "tokens": 0}
    for _ in range(300):
        values = rng.normal(0, 1, 1000) + rng.normal(0, 1, 40)[chunk]
        errors = {"chunks": se_chunks(values, chunk), "tokens": se_tokens(values)}
        for kind, error in errors.items():
            assert error is not None
            misses[kind] += abs(values.mean()) > 2 * error
    assert misses["chunks"] / 300 < 0.09
    assert misses["tokens"] / 300 > 0.4


def test_too_few_values_have_no_error() -> None:
    assert se_tokens(np.arange(10.0)) is None
    assert se_tokens(np.arange(11.0)) is not None
    assert se_chunks(np.arange(20.0), np.zeros(20, np.int32)) is None


def test_identical_models_have_finite_statistics() -> None:
    records = random_records(3)
    same = dataclasses.replace(
        records,
        kld=np.zeros(300),
        nll=records.nll_reference,
        same_top=np.ones(300, bool),
    )
    found = summarise(same)
    assert found.kld_mean == found.ln_ppl_ratio_mean == found.p_diff_rms == 0
    assert found.p_diff_rms_se_tokens is None
    assert found.top1_agreement == 1
    assert found.nll_correlation == pytest.approx(1)


def test_paired_error_is_far_smaller_than_the_unpaired_one() -> None:
    base = random_records(4)
    other = dataclasses.replace(base, kld=base.kld * 1.02, same_top=base.same_top.copy())
    other.same_top[:3] ^= True
    found = paired_difference(other, base)
    assert found.kld_mean == pytest.approx(0.02 * base.kld.mean())
    assert found.kld_se_tokens == pytest.approx(0.02 * se_tokens(base.kld))
    assert found.top1_mean == pytest.approx(other.same_top.mean() - base.same_top.mean())
    mirrored = paired_difference(base, other)
    assert mirrored.kld_mean == -found.kld_mean


def test_pairing_refuses_other_tokens() -> None:
    base = random_records(5)
    for other in (
        random_records(6),
        random_records(5, n_chunks=5),
        dataclasses.replace(base, nll_reference=base.nll_reference + 0.01),
    ):
        with pytest.raises(ArtifactError, match="different tokens"):
            paired_difference(other, base)


def test_records_round_trip_and_are_the_same_bytes(tmp_path: Path) -> None:
    records = random_records(7)
    for name in ("a", "b"):
        save_records(records, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = load_records(tmp_path / "a")
    for field in dataclasses.fields(records):
        assert np.array_equal(getattr(again, field.name), getattr(records, field.name))


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_damaged_records_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    save_records(random_records(8), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactError):
        load_records(path)
    with pytest.raises(ArtifactError):
        load_records(tmp_path / "none")


@pytest.mark.parametrize(
    "column",
    [
        {"kld": np.zeros(300, np.float32)},
        {"kld": np.zeros((300, 1))},
        {"kld": np.zeros(299)},
        {"extra": np.zeros(300)},
    ],
)
def test_other_columns_are_refused(tmp_path: Path, column: dict[str, np.ndarray]) -> None:
    columns = {f.name: getattr(random_records(9), f.name) for f in dataclasses.fields(TokenRecords)}
    (tmp_path / "a").write_bytes(save(columns | column))
    with pytest.raises(ArtifactError, match="not a file of per-token scores"):
        load_records(tmp_path / "a")


def write_files(folder: Path, noise: float, n_vocab: int = 50) -> tuple[Path, Path, torch.Tensor]:
    """Two files of one text, and the second one's logits."""
    n_ctx, n_chunks = 32, 4
    generator = torch.Generator().manual_seed(1)
    shape = (n_chunks * scored_rows(n_ctx), n_vocab)
    logits = torch.randn(shape, generator=generator)
    noisy = logits + noise * torch.randn(shape, generator=generator)
    tokens = np.random.default_rng(1).integers(0, 50, (n_chunks, n_ctx), np.int32)
    paths = folder / "base", folder / "other"
    for path, values in zip(paths, (logits, noisy), strict=True):
        with logits_writer(path, tokens, n_vocab) as writer:
            writer.add(values)
    return *paths, noisy


def test_two_files_give_what_live_logits_give(tmp_path: Path) -> None:
    base_path, other_path, noisy = write_files(tmp_path, 0.2)
    base, other = open_logits_file(base_path), open_logits_file(other_path)
    recorder = Recorder()
    for chunk, rows in enumerate(noisy.split(base.n_rows)):
        log_probs = base.log_probs(chunk)
        recorder.add(chunk, score_log_probs(log_probs, rows, base.targets(chunk)))
    live, stored = recorder.records(), compare_files(base, other)
    assert np.array_equal(live.chunk, stored.chunk)
    assert stored.kld == pytest.approx(live.kld, abs=2e-4)
    assert stored.kld.mean() == pytest.approx(live.kld.mean(), abs=1e-5)
    assert stored.nll == pytest.approx(live.nll, abs=2e-4)
    assert np.abs(compare_files(base, base).kld).max() < 1e-6


def test_files_of_other_texts_are_not_compared(tmp_path: Path) -> None:
    base_path, other_path, _ = write_files(tmp_path, 0.2)
    tokens = np.zeros((4, 32), np.int32)
    with logits_writer(other_path, tokens, 50) as writer:
        writer.add(torch.zeros(4 * scored_rows(32), 50))
    with pytest.raises(TextError, match="another text"):
        compare_files(open_logits_file(base_path), open_logits_file(other_path))
    with logits_writer(other_path, tokens, 51) as writer:
        writer.add(torch.zeros(4 * scored_rows(32), 51))
    with pytest.raises(TextError, match="another vocabulary"):
        compare_files(open_logits_file(base_path), open_logits_file(other_path))
