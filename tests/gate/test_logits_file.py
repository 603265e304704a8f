"""Round trips, sizes, and every way a log-probability file can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import ContainerError, ModelError, TextError
from quantkit.gate.logits_file import (
    HEADER,
    LogitsFile,
    expected_bytes,
    logits_writer,
    open_logits_file,
    pack_rows,
    row_width,
    scored_rows,
    split_chunks,
)

N_CTX, N_CHUNKS = 8, 3


def write(path: Path, n_vocab: int = 33, scale: float = 3.0) -> torch.Tensor:
    """A file of random rows; returns the logits, (n_chunks, n_rows, n_vocab)."""
    generator = torch.Generator().manual_seed(n_vocab)
    shape = (N_CHUNKS, scored_rows(N_CTX), n_vocab)
    logits = torch.randn(shape, generator=generator) * scale
    tokens = np.arange(N_CHUNKS * N_CTX, dtype=np.int32).reshape(N_CHUNKS, N_CTX) % n_vocab
    with logits_writer(path, tokens, n_vocab) as writer:
        for chunk in logits:
            writer.add(chunk[:1])
            writer.add(chunk[1:])
    return logits


@settings(deadline=None, max_examples=60)
@given(n_vocab=st.integers(1, 300), scale=st.floats(0, 30), seed=st.integers(0, 99))
def test_decoded_rows_are_within_half_a_step(n_vocab: int, scale: float, seed: int) -> None:
    logits = torch.randn(4, n_vocab, generator=torch.Generator().manual_seed(seed)) * scale
    packed = pack_rows(logits)
    assert packed.shape == (4, row_width(n_vocab))
    decoded = LogitsFile(Path("x"), n_vocab, np.zeros((1, 10), np.int32), packed[None]).log_probs(0)
    exact = torch.log_softmax(logits.double(), 1)
    clipped = torch.maximum(exact, exact.amax(1, keepdim=True) - 16)
    spread = (clipped.amax(1) - clipped.amin(1)).max()
    assert (decoded - clipped).abs().max() <= spread / 65535 / 2 + 8e-6


@pytest.mark.parametrize("n_vocab", [1, 2, 33, 256])
def test_round_trip(tmp_path: Path, n_vocab: int) -> None:
    path = tmp_path / "a.logits"
    logits = write(path, n_vocab)
    found = open_logits_file(path)
    assert (found.n_ctx, found.n_vocab, found.n_chunks, found.n_rows) == (8, n_vocab, 3, 3)
    assert path.stat().st_size == expected_bytes(path)
    for chunk in range(N_CHUNKS):
        exact = torch.log_softmax(logits[chunk].double(), 1)
        near = exact > exact.amax(1, keepdim=True) - 16
        assert (found.log_probs(chunk) - exact)[near].abs().max() < 2e-4
        # The second half of the chunk but its last position predicts tokens 5, 6 and 7.
        expected = [(8 * chunk + place) % n_vocab for place in (5, 6, 7)]
        assert found.targets(chunk).tolist() == expected
        joined = torch.cat([block for _, block in found.blocks(chunk)])
        assert torch.equal(joined, found.log_probs(chunk))
    again = tmp_path / "b.logits"
    write(again, n_vocab)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("n_ctx", "rows"), [(3, 1), (4, 1), (5, 2), (512, 255), (2048, 1023), (513, 256)]
)
def test_scored_rows(n_ctx: int, rows: int) -> None:
    assert scored_rows(n_ctx) == rows


def test_clip_is_told_from_the_data(tmp_path: Path) -> None:
    """A wide row of this writer spans 16 nats; the fork's span 24 in the same layout."""
    path = tmp_path / "a.logits"
    write(path, scale=20.0)
    found = open_logits_file(path)
    assert found.clip_nats == 16
    rows = found.rows.copy()
    rows[1, 2, :2] = np.array([24 / 65535], "<f4").view("<u2")
    assert LogitsFile(path, found.n_vocab, found.tokens, rows).clip_nats == 24
    write(path, scale=0.5)
    assert open_logits_file(path).clip_nats == 16


def damage(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def test_every_truncation_is_named_with_its_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.logits"
    write(path)
    data = path.read_bytes()
    for size in range(0, len(data), 37):
        path.write_bytes(data[:size])
        with pytest.raises(ContainerError) as caught:
            open_logits_file(path)
        assert caught.value.file == str(path)
    path.write_bytes(data[:-1])
    with pytest.raises(ContainerError, match=r"cut off[\s\S]*2 of 3 chunks"):
        open_logits_file(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(ContainerError, match="too long"):
        open_logits_file(path)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, b"_logitz_", "not a log-probability file"),
        (8, struct.pack("<i", 2), "impossible n_ctx"),
        (8, struct.pack("<i", -8), "impossible n_ctx"),
        (12, struct.pack("<i", 0), "impossible n_vocab"),
        (12, struct.pack("<i", 2**31 - 1), "impossible n_vocab"),
        (16, struct.pack("<i", -1), "impossible n_chunks"),
        (16, struct.pack("<i", 2**30), "cut off"),
        (HEADER.size, struct.pack("<i", 33), "token outside its vocabulary"),
        (HEADER.size, struct.pack("<i", -1), "token outside its vocabulary"),
    ],
)
def test_bad_headers(tmp_path: Path, place: int, value: bytes, words: str) -> None:
    path = tmp_path / "a.logits"
    write(path)
    damage(path, lambda data: data.__setitem__(slice(place, place + len(value)), value))
    with pytest.raises(ContainerError, match=words):
        open_logits_file(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_damaged_row(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "a.logits"
    write(path)
    row = HEADER.size + 4 * N_CTX * N_CHUNKS
    damage(path, lambda data: data.__setitem__(slice(row, row + 4), struct.pack("<f", bad)))
    with pytest.raises(ContainerError, match="row of the log-probability file is damaged"):
        open_logits_file(path).log_probs(0)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no such file"):
        open_logits_file(tmp_path / "none")


def test_unfinished_body_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.logits"
    tokens = np.zeros((1, N_CTX), np.int32)
    with pytest.raises(AssertionError), logits_writer(path, tokens, 5) as writer:
        writer.add(torch.zeros(1, 5))
    with pytest.raises(ModelError), logits_writer(path, tokens, 5) as writer:
        writer.add(torch.full((3, 5), torch.nan))
    assert list(tmp_path.iterdir()) == []


def test_equal_logits_have_scale_zero() -> None:
    assert (pack_rows(torch.full((1, 6), 2.5))[:, 4:] == 0).all()


def test_impossible_tokens_are_stored_at_the_clip() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf]])
    assert pack_rows(logits)[0, 4:7].tolist() == [61439, 65535, 0]


def test_text_shorter_than_a_chunk() -> None:
    with pytest.raises(TextError, match="7 tokens") as caught:
        split_chunks(np.arange(7, dtype=np.int32), 8, "short.txt")
    assert caught.value.file == "short.txt"
    assert split_chunks(np.arange(23, dtype=np.int32), 8).tolist() == [
        list(range(8)),
        list(range(8, 16)),
    ]


def test_other_vocabulary_and_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.logits"
    write(path)
    found = open_logits_file(path)
    found.require_vocabulary(33, "model.gguf")
    found.require_tokens(found.tokens)
    with pytest.raises(TextError, match="another vocabulary"):
        found.require_vocabulary(34, "model.gguf")
    with pytest.raises(TextError, match="another text or context length"):
        found.require_tokens(found.tokens[:2])
    with pytest.raises(TextError):
        found.require_tokens(found.tokens[:, ::-1])
