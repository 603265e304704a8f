"""llama-perplexity's log-probability file (`--kl-divergence-base`), read and written to the byte.

Layout, little-endian, without padding between parts (llama.cpp, tools/perplexity):

    8 bytes   "_logits_"
    int32     n_ctx, n_vocab, n_chunks
    int32     tokens[n_chunks][n_ctx]          as tokenized, before any begin-of-text substitution
    rows      uint16[n_chunks][n_rows][width]  width = n_vocab rounded up to even, plus 4

A row is float32 scale, float32 least log-probability, then one uint16 q per token of the
vocabulary: log p = scale * q + least. Only the second half of a chunk is scored, without its last
position: n_rows = n_ctx - 1 - n_ctx // 2, and row j predicts tokens[n_ctx // 2 + 1 + j]. Values
more than 16 nats below the row's largest are stored as if they were exactly 16 below; the fork
ik_llama.cpp clips at 24 in the same layout, which only the data can tell (`clip_nats`).

The header comes first, so an aborted run leaves a short file: the size is checked before use.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from quantkit.errors import ContainerError, ModelError, TextError
from quantkit.files import atomic_path, open_input

MAGIC = b"_logits_"
HEADER = struct.Struct("<8siii")
ROW_HEADER_VALUES = 4  # two float32 as four uint16
LEVELS = 65535
CLIP_NATS = 16.0
FORK_CLIP_NATS = 24.0
CLIP_TOLERANCE_NATS = 0.01
MAX_SIDE = 1 << 30
BLOCK_VALUES = 1 << 19  # about 2 MB of float32 at a time

Tokens = NDArray[np.int32]


def scored_rows(n_ctx: int) -> int:
    """Positions of a chunk that are scored: its second half without the last one."""
    return n_ctx - 1 - n_ctx // 2


def row_width(n_vocab: int) -> int:
    """Length of a stored row in uint16 values."""
    return 2 * ((n_vocab + 1) // 2) + ROW_HEADER_VALUES


def split_chunks(tokens: Tokens, n_ctx: int, text: Path | str | None = None) -> Tokens:
    """(n_chunks, n_ctx): the text's whole chunks; TextError if there is not even one."""
    n_chunks = len(tokens) // n_ctx
    if n_chunks < 1:
        raise TextError(
            "the text is shorter than one chunk",
            file=text,
            value=f"{len(tokens)} tokens",
            rule=f"at least {n_ctx} tokens",
            hint="use a longer text or a smaller context",
        )
    return np.ascontiguousarray(tokens[: n_chunks * n_ctx].reshape(n_chunks, n_ctx), np.int32)


@dataclass(frozen=True)
class LogitsFile:
    """An open file; rows stay on disk until they are asked for."""

    path: Path
    n_vocab: int
    tokens: Tokens
    rows: NDArray[np.uint16]

    @property
    def n_chunks(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def n_ctx(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def n_rows(self) -> int:
        return int(self.rows.shape[1])

    @cached_property
    def clip_nats(self) -> float:
        """16 (llama.cpp) or 24 (ik_llama.cpp): where the widest row says the writer clipped."""
        scale = self.rows[..., :2].view("<f4")
        widest = float(scale.max()) * LEVELS
        return CLIP_NATS if widest <= CLIP_NATS + CLIP_TOLERANCE_NATS else FORK_CLIP_NATS

    def targets(self, chunk: int) -> torch.Tensor:
        """int64 (n_rows,): the true next token of every scored row."""
        first = self.n_ctx // 2 + 1
        return torch.from_numpy(self.tokens[chunk, first : first + self.n_rows].astype(np.int64))

    def log_probs(self, chunk: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """float32 (rows, n_vocab): the decoded rows [start, stop) of a chunk.

        ContainerError if a row's scale or offset is not a finite number.
        """
        rows = self.rows[chunk, start:stop]
        scale, least = np.split(np.ascontiguousarray(rows[:, :ROW_HEADER_VALUES]).view("<f4"), 2, 1)
        if not (np.isfinite(scale).all() and np.isfinite(least).all() and (scale >= 0).all()):
            raise ContainerError(
                "a row of the log-probability file is damaged",
                file=self.path,
                value=f"chunk {chunk}",
                rule="scale and least log-probability must be finite, scale 0 or more",
                hint="write the file again",
            )
        levels = rows[:, ROW_HEADER_VALUES : ROW_HEADER_VALUES + self.n_vocab]
        values = levels.astype(np.float32)
        values *= scale
        values += least
        return torch.from_numpy(values)

    def blocks(self, chunk: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """The rows of a chunk in blocks of about 2 MB: (which rows, their log-probabilities)."""
        step = max(1, BLOCK_VALUES // self.n_vocab)
        for start in range(0, self.n_rows, step):
            rows = slice(start, min(start + step, self.n_rows))
            yield rows, self.log_probs(chunk, rows.start, rows.stop)

    def require_vocabulary(self, n_vocab: int, model: Path | str) -> None:
        """TextError unless `model` has as many tokens as the model that wrote this file."""
        if n_vocab != self.n_vocab:
            raise TextError(
                "the model has another vocabulary than the reference's log-probabilities",
                file=model,
                value=f"{n_vocab} tokens",
                rule=f"{self.n_vocab} tokens, as in {self.path}",
                hint="compare models with the same tokenizer, or compute the reference again",
            )

    def require_tokens(self, tokens: Tokens, text: Path | str | None = None) -> None:
        """TextError unless the file was made from these chunks, (n_chunks, n_ctx)."""
        if tokens.shape != self.tokens.shape or not np.array_equal(tokens, self.tokens):
            chunks, n_ctx = tokens.shape
            raise TextError(
                "the log-probability file was made from another text or context length",
                file=self.path,
                value=f"{self.n_chunks} chunks of {self.n_ctx} tokens",
                rule=f"{chunks} chunks of {n_ctx} tokens, those of {text or 'the text'}",
                hint="compute the reference again for this text",
            )


def open_logits_file(path: Path) -> LogitsFile:
    """Map the file; ContainerError if it is not one, is damaged, or was cut off."""
    try:
        with open_input(path) as descriptor:
            size = os.fstat(descriptor).st_size
            start = os.pread(descriptor, HEADER.size, 0)
    except OSError as error:
        raise ContainerError(
            "cannot read the log-probability file", file=path, value=error.strerror
        ) from error
    if len(start) < HEADER.size or not start.startswith(MAGIC):
        raise ContainerError(
            "not a log-probability file",
            file=path,
            value=start[:8],
            rule=f"starts with {MAGIC.decode()} and {HEADER.size - len(MAGIC)} bytes of counts",
            hint="such files are written by llama-perplexity --kl-divergence-base, or by quantkit",
        )
    _, n_ctx, n_vocab, n_chunks = HEADER.unpack(start)
    counts = {"n_ctx": n_ctx, "n_vocab": n_vocab, "n_chunks": n_chunks}
    for name, count in counts.items():
        if not (3 if name == "n_ctx" else 1) <= count <= MAX_SIDE:
            raise ContainerError(
                f"the log-probability file has an impossible {name}", file=path, value=count
            )
    _check_size(path, size, n_ctx, n_vocab, n_chunks)
    shape = (n_chunks, scored_rows(n_ctx), row_width(n_vocab))
    tokens = np.memmap(path, "<i4", "r", HEADER.size, (n_chunks, n_ctx))
    rows = np.memmap(path, "<u2", "r", HEADER.size + 4 * n_ctx * n_chunks, shape)
    if tokens.min() < 0 or tokens.max() >= n_vocab:
        raise ContainerError(
            "the log-probability file has a token outside its vocabulary",
            file=path,
            value=int(tokens.max() if tokens.max() >= n_vocab else tokens.min()),
            rule=f"token ids from 0 to {n_vocab - 1}",
        )
    return LogitsFile(path, n_vocab, np.asarray(tokens), np.asarray(rows))


def expected_bytes(path: Path) -> int | None:
    """Size that the counts at the start of an unfinished file announce; None before them."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        start = stream.read(HEADER.size)
    return _total_bytes(*HEADER.unpack(start)[1:]) if len(start) == HEADER.size else None


def _total_bytes(n_ctx: int, n_vocab: int, n_chunks: int) -> int:
    return HEADER.size + (4 * n_ctx + _chunk_bytes(n_ctx, n_vocab)) * n_chunks


def _chunk_bytes(n_ctx: int, n_vocab: int) -> int:
    return 2 * row_width(n_vocab) * scored_rows(n_ctx)


def _check_size(path: Path, size: int, n_ctx: int, n_vocab: int, n_chunks: int) -> None:
    expected = _total_bytes(n_ctx, n_vocab, n_chunks)
    if size != expected:
        rows_bytes = max(0, size - HEADER.size - 4 * n_ctx * n_chunks)
        whole = rows_bytes // _chunk_bytes(n_ctx, n_vocab)
        raise ContainerError(
            "the log-probability file was cut off" if size < expected else "the file is too long",
            file=path,
            value=f"{size} bytes, {min(whole, n_chunks)} of {n_chunks} chunks",
            rule=f"{expected} bytes: {n_chunks} chunks of {n_ctx} tokens, vocabulary {n_vocab}",
            hint="the run that wrote it did not finish; write it again",
        )


class LogitsWriter:
    """Takes the scored rows in order, any number at a time; made by `logits_writer`."""

    def __init__(self, stream: BinaryIO, tokens: Tokens, n_vocab: int) -> None:
        self._stream = stream
        self._n_vocab = n_vocab
        self.rows_left = tokens.shape[0] * scored_rows(tokens.shape[1])
        stream.write(HEADER.pack(MAGIC, tokens.shape[1], n_vocab, tokens.shape[0]))
        stream.write(np.ascontiguousarray(tokens, "<i4").tobytes())

    def add(self, logits: torch.Tensor) -> None:
        """Append rows, float32 (rows, n_vocab), logits or log-probabilities, on any device."""
        assert logits.shape[1] == self._n_vocab
        step = max(1, BLOCK_VALUES // self._n_vocab)
        for block in logits.split(step):
            self._stream.write(pack_rows(block).tobytes())
        self.rows_left -= logits.shape[0]


@contextmanager
def logits_writer(path: Path, tokens: Tokens, n_vocab: int) -> Iterator[LogitsWriter]:
    """Write a file that exists only when the body has added every scored row.

    `tokens` is (n_chunks, n_ctx). The tail below 16 nats is clipped, as llama.cpp does it.
    """
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        writer = LogitsWriter(stream, tokens, n_vocab)
        yield writer
        assert writer.rows_left == 0, f"{writer.rows_left} scored rows are missing"


def pack_rows(logits: torch.Tensor) -> NDArray[np.uint16]:
    """uint16 (rows, row_width): logits, float32 (rows, n_vocab), as stored.

    In float32, in the order of operations of llama.cpp's writer, so that equal logits give equal
    bytes. Raises ModelError for logits that are not finite.
    """
    logits = logits.float()
    high = logits.amax(1, keepdim=True)
    low = torch.maximum(logits.amin(1, keepdim=True), high - CLIP_NATS)
    total = torch.exp(logits - high).sum(1, keepdim=True, dtype=torch.float64).log().float()
    if not bool(torch.isfinite(total + low).all()):
        raise ModelError(
            "the model's logits are not finite",
            rule="every logit of a scored row must be a finite number",
            hint="the model is damaged, or its arithmetic overflows on this device",
        )
    least = low - high - total
    scale = (high - low) / LEVELS
    inverse = torch.where(scale > 0, 1 / scale, 0)
    levels = torch.round(inverse * (logits - low).clamp_min(0)).to(torch.int32)
    packed = np.zeros((logits.shape[0], row_width(logits.shape[1])), "<u2")
    head = torch.cat((scale, least), 1).cpu().numpy().astype("<f4")
    packed[:, :ROW_HEADER_VALUES] = head.view("<u2")
    packed[:, ROW_HEADER_VALUES : ROW_HEADER_VALUES + logits.shape[1]] = levels.cpu().numpy()
    return packed
