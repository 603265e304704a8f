"""llama-perplexity as a peer: our figures in its digits, our files in its hands, its failures."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from quantkit.artifacts.kld import KldStatistics
from quantkit.errors import ContainerError, PeerError, RecipeError, TextError
from quantkit.gate import meter_llamacpp
from quantkit.gate.kld import score_log_probs
from quantkit.gate.llamacpp_report import parse_report
from quantkit.gate.logits_file import (
    LogitsFile,
    logits_writer,
    open_logits_file,
    pack_rows,
    scored_rows,
)
from quantkit.gate.meter_llamacpp import (
    MAX_ATTEMPTS,
    MIN_ATTEMPTS,
    LlamaPerplexity,
    find_llama_perplexity,
)
from quantkit.gate.records import Recorder, TokenRecords
from quantkit.gate.statistics import summarise
from tests.artifacts.examples import statistics
from tests.gate.conftest import SETTINGS, ExactPair
from tests.gate.exact_model import ExactModel, make_model
from tests.gate.llamacpp_lines import full_report, report_lines


def scored_logits(file: LogitsFile, model: ExactModel, chunk: int) -> torch.Tensor:
    first = file.n_ctx // 2
    return model.logits(file.tokens[chunk, first : first + file.n_rows])


def our_records(file: LogitsFile, model: ExactModel) -> TokenRecords:
    recorder = Recorder()
    for chunk in range(file.n_chunks):
        logits = scored_logits(file, model, chunk)
        recorder.add(chunk, score_log_probs(file.log_probs(chunk), logits, file.targets(chunk)))
    return recorder.records()


def program_output(peer: LlamaPerplexity, model: Path, reference: Path) -> str:
    """What the program prints, through the meter's own way of running it."""
    arguments = ["-m", str(model), "--kl-divergence-base", str(reference), "--kl-divergence"]
    return peer._run(
        arguments + SETTINGS.arguments(),
        finished=lambda text: "Same top p:" in text,
        share=lambda _: 0.0,
        label="test",
    )


@pytest.mark.peer
def test_our_rows_are_the_programs_bytes(exact_pair: ExactPair) -> None:
    file = open_logits_file(exact_pair.reference)
    assert (file.n_ctx, file.n_vocab) == (128, exact_pair.base.n_vocab)
    assert file.n_vocab % 2 == 1, "an odd vocabulary also tests the padding"
    assert file.clip_nats == 16
    for chunk in range(file.n_chunks):
        ours = pack_rows(scored_logits(file, exact_pair.base, chunk))
        used = 4 + file.n_vocab
        assert np.array_equal(ours[:, :used], file.rows[chunk, :, :used])


@pytest.mark.peer
def test_every_printed_digit_is_ours(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair
) -> None:
    file = open_logits_file(exact_pair.reference)
    ours = report_lines(summarise(our_records(file, exact_pair.candidate)))
    printed = program_output(llama_perplexity, exact_pair.candidate.path, exact_pair.reference)
    theirs = [line for line in printed.splitlines() if line in ours or ":" in line]
    assert theirs == ours


@pytest.mark.peer
def test_program_reads_our_file(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair, tmp_path: Path
) -> None:
    """The same report from a reference that quantkit wrote, of the other model."""
    file = open_logits_file(exact_pair.reference)
    mine = tmp_path / "mine.logits"
    with logits_writer(mine, file.tokens, file.n_vocab) as writer:
        for chunk in range(file.n_chunks):
            writer.add(scored_logits(file, exact_pair.candidate, chunk))
    printed = program_output(llama_perplexity, exact_pair.base.path, mine)
    ours = summarise(our_records(open_logits_file(mine), exact_pair.base))
    assert [line for line in printed.splitlines() if ":" in line] == report_lines(ours)


@pytest.mark.peer
def test_measured_figures_are_the_parsed_digits(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair
) -> None:
    found = llama_perplexity.measure(exact_pair.candidate.path, exact_pair.reference, SETTINGS)
    ours = summarise(our_records(open_logits_file(exact_pair.reference), exact_pair.candidate))
    assert (found.n_tokens, found.n_chunks) == (ours.n_tokens, ours.n_chunks)
    for name in ("kld_mean", "kld_se_tokens", "nll_mean", "ln_ppl_ratio_mean", "p_diff_rms"):
        assert getattr(found, name) == pytest.approx(getattr(ours, name), abs=1e-5)
    assert found.top1_agreement == pytest.approx(ours.top1_agreement, abs=1e-5)
    assert found.kld_percentiles == pytest.approx(ours.kld_percentiles, abs=1e-6)
    assert found.p_diff_percentiles == pytest.approx(ours.p_diff_percentiles, abs=1e-5)
    assert found.kld_se_chunks is None


@pytest.mark.peer
def test_two_files_agree_with_the_program(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair
) -> None:
    """Per-token figures without live logits; there are only 20 different contexts, so that the
    rounding of the second file hardly averages out.
    """
    reference = open_logits_file(exact_pair.reference)
    before = sorted(exact_pair.reference.parent.iterdir())
    records = llama_perplexity.score_tokens(
        exact_pair.candidate.path, exact_pair.text, reference, SETTINGS
    )
    assert sorted(exact_pair.reference.parent.iterdir()) == before
    found = summarise(records)
    live = llama_perplexity.measure(exact_pair.candidate.path, exact_pair.reference, SETTINGS)
    assert found.kld_mean == pytest.approx(live.kld_mean, abs=3e-5)
    assert found.top1_agreement == pytest.approx(live.top1_agreement, abs=2e-3)
    assert found.kld_se_chunks is not None


@pytest.mark.peer
def test_identical_model(llama_perplexity: LlamaPerplexity, exact_pair: ExactPair) -> None:
    found = llama_perplexity.measure(exact_pair.base.path, exact_pair.reference, SETTINGS)
    assert abs(found.kld_mean) < 5e-5
    assert found.top1_agreement == 1
    assert llama_perplexity.settings_record(SETTINGS)["version"]


@pytest.mark.peer
def test_other_vocabulary_is_refused_though_the_program_goes_on(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair, tmp_path: Path
) -> None:
    other = make_model(tmp_path / "other.gguf", seed=1, n_extra=3)
    with pytest.raises(TextError, match="inconsistent vocabulary"):
        llama_perplexity.measure(other.path, exact_pair.reference, SETTINGS)


@pytest.mark.peer
def test_short_text_is_refused(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair, tmp_path: Path
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("a" * 200)
    with pytest.raises(TextError, match="you need at least 256 tokens"):
        llama_perplexity.write_log_probs(exact_pair.base.path, text, tmp_path / "out", SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["short.txt"]


@pytest.mark.peer
def test_broken_model_is_a_peer_error(
    llama_perplexity: LlamaPerplexity, exact_pair: ExactPair, tmp_path: Path
) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(exact_pair.base.path.read_bytes()[:1000])
    with pytest.raises(PeerError, match="exit code 1"):
        llama_perplexity.measure(model, exact_pair.reference, SETTINGS)


def write_reference(path: Path, n_chunks: int = 20, n_ctx: int = 128) -> Path:
    tokens = np.zeros((n_chunks, n_ctx), np.int32)
    with logits_writer(path, tokens, 4) as writer:
        writer.add(torch.zeros(n_chunks * scored_rows(n_ctx), 4))
    return path


def stand_in(folder: Path, script: str) -> LlamaPerplexity:
    """A program that fails in ways the real one cannot be made to fail on demand."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\ncd {shlex.quote(str(folder))}\necho run >> runs\n{script}\n")
    program.chmod(0o755)
    return LlamaPerplexity(program, "stand-in")


def n_runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


def a_report(n_chunks: int = 20) -> KldStatistics:
    levels = ("0", "0.1", "1", "5", "10", "25", "50", "75", "90", "95", "99", "99.9", "100")
    spread = {level: 0.001 * number for number, level in enumerate(levels)}
    kld = {level: value for level, value in spread.items() if level not in ("25", "75")}
    return dataclasses.replace(
        statistics(), n_chunks=n_chunks, kld_percentiles=kld, p_diff_percentiles=spread
    )


def test_lost_last_lines_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, model = write_reference(tmp_path / "base"), tmp_path / "m.gguf"
    model.touch()
    text = full_report(a_report())
    (tmp_path / "whole").write_text(text)
    (tmp_path / "lost").write_text(text[: text.index("Mean    Δp")])
    once = stand_in(tmp_path, "[ $(wc -l < runs) -gt 1 ] && cat whole || cat lost")
    assert once.measure(model, reference, SETTINGS).kld_mean == pytest.approx(0.03)
    assert n_runs(tmp_path) == 2
    (tmp_path / "runs").unlink()
    always = stand_in(tmp_path, "cat lost; echo the last words >&2")
    with pytest.raises(PeerError, match=r"exit code 0[\s\S]*the last words"):
        always.measure(model, reference, SETTINGS)
    assert n_runs(tmp_path) == MAX_ATTEMPTS
    (tmp_path / "runs").unlink()
    monkeypatch.setattr(meter_llamacpp, "RETRY_SECONDS", 0.0)
    with pytest.raises(PeerError):
        always.measure(model, reference, SETTINGS)
    assert n_runs(tmp_path) == MIN_ATTEMPTS


def test_complaints_are_believed_before_figures(tmp_path: Path) -> None:
    reference, model = write_reference(tmp_path / "base"), tmp_path / "m.gguf"
    model.touch()
    (tmp_path / "whole").write_text(full_report(a_report()))
    program = stand_in(tmp_path, "cat whole; echo 'E x: failed reading log-probs for chunk 3' >&2")
    with pytest.raises(ContainerError, match="failed reading log-probs"):
        program.measure(model, reference, SETTINGS)
    assert n_runs(tmp_path) == 1


def test_unfinished_file_is_not_kept(tmp_path: Path) -> None:
    model, text = tmp_path / "m.gguf", tmp_path / "t.txt"
    for path in (model, text):
        path.touch()
    whole = write_reference(tmp_path / "whole")
    program = stand_in(tmp_path, 'head -c 3000 whole > "$6"')
    with pytest.raises(PeerError, match="did not finish"):
        program.write_log_probs(model, text, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()
    program = stand_in(tmp_path, 'cat whole > "$6"')
    program.write_log_probs(model, text, tmp_path / "out", SETTINGS)
    assert (tmp_path / "out").read_bytes() == whole.read_bytes()


def test_reference_is_checked_before_the_program_runs(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    program = stand_in(tmp_path, "exit 1")
    reference = write_reference(tmp_path / "base")
    with pytest.raises(TextError, match="another context length"):
        program.measure(model, reference, dataclasses.replace(SETTINGS, n_ctx=64, n_batch=64))
    short = write_reference(tmp_path / "short", n_chunks=1)
    with pytest.raises(TextError, match="too few tokens"):
        program.measure(model, short, SETTINGS)
    reference.write_bytes(reference.read_bytes()[:-9])
    with pytest.raises(ContainerError, match="cut off"):
        program.measure(model, reference, SETTINGS)
    with pytest.raises(PeerError, match="no such file"):
        program.measure(tmp_path / "none", reference, SETTINGS)
    assert not (tmp_path / "runs").exists()


def test_batch_that_the_program_would_abort_on() -> None:
    with pytest.raises(RecipeError):
        dataclasses.replace(SETTINGS, n_ctx=512, n_batch=700).arguments()
    assert "-b 2048" in " ".join(dataclasses.replace(SETTINGS, n_batch=2048).arguments())


def test_program_that_is_missing_or_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTKIT_LLAMA_PERPLEXITY", str(tmp_path / "none"))
    with pytest.raises(PeerError, match="was not found"):
        find_llama_perplexity()
    silent = stand_in(tmp_path, "exit 0").program
    with pytest.raises(PeerError, match="does not say its version"):
        find_llama_perplexity(silent)
    speaks = stand_in(tmp_path, "echo 'version: 1.2 (build 3)' >&2").program
    monkeypatch.setenv("QUANTKIT_LLAMA_PERPLEXITY", str(speaks))
    assert find_llama_perplexity().version == "1.2 (build 3)"


def test_printed_digits_are_parsed_back() -> None:
    expected = a_report()
    found = parse_report(full_report(expected), 20, expected.n_tokens)
    for field in dataclasses.fields(found):
        value, wanted = getattr(found, field.name), getattr(expected, field.name)
        if field.name.endswith("_se_chunks"):
            assert value is None
        else:
            assert value == pytest.approx(wanted, abs=6e-6), field.name


def test_not_a_number_errors_are_unknown() -> None:
    text = full_report(a_report()).replace("0.200 %\nSame", "-nan %\nSame")
    assert "nan" in text
    assert parse_report(text, 20, 5100).p_diff_rms_se_tokens is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Mean    KLD:", "Mean    KLX:"),
        ("Median  KLD:", "Median  Klm:"),
        ("Mean PPL(Q)  ", "Mean PPL(R)  "),
        ("Maximum Δp:", "Maximum dp:"),
        ("Same top p: 95.000", "Same top p: many"),
        ("Mean    KLD:   0.030000", "Mean    KLD:        nan"),
        ("Mean    KLD:", "Mean    KLD:   0.1 ± 0.1\nMean    KLD:"),
        ("\n   7 ", "\n   8 "),
        ("\n  20 ", "\n  xx "),
    ],
)
def test_reports_with_a_missing_or_doubled_line(old: str, new: str) -> None:
    text = full_report(a_report())
    assert old in text
    with pytest.raises(PeerError, match="not complete"):
        parse_report(text.replace(old, new, 1), 20, 5100)
