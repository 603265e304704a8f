"""Meters: who computes the log-probabilities, quantkit's sweep or an installed llama.cpp.

Both give per-token scores of a model on every text against the same reference, whose
log-probabilities are computed once and kept in the cache as llama-perplexity's files. Scores of a
model are kept too. Cache names are hashes of everything that the figures depend on, so a cached
file is never stale; a digest beside each file tells a damaged one, which is computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

import quantkit
from quantkit.artifacts.schema import Scalar
from quantkit.artifacts.store import FileId
from quantkit.errors import ModelError, TextError
from quantkit.files import make_folder
from quantkit.gate.cached_file import is_whole, seal
from quantkit.gate.kld import score_log_probs
from quantkit.gate.logits_file import LogitsFile, LogitsWriter, logits_writer, open_logits_file
from quantkit.gate.meter_llamacpp import LlamaCppSettings, LlamaPerplexity
from quantkit.gate.records import Recorder, TokenRecords, load_records, save_records
from quantkit.runtime import sweep
from quantkit.runtime.texts import Chunks, read_chunks
from quantkit.weights import ModelWeights, open_model
from quantkit.weights.identity import file_id, model_files
from quantkit.weights.tokenizer import load_tokenizer

CACHE_DIGITS = 24
CACHE_DIGEST = "[0-9a-f]" * CACHE_DIGITS
"""Pattern (of a glob or a regular expression) for the hash in a cached file's name."""


class Meter(Protocol):
    """Scores models on texts; both methods keep the order of the texts."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def settings(self) -> dict[str, Scalar]:
        """Everything beside model and text that the figures depend on."""

    def write_reference(self, model: Path, texts: Sequence[Path], outputs: Sequence[Path]) -> None:
        """Write the model's log-probabilities on each text."""

    def score(
        self, model: Path, texts: Sequence[Path], references: Sequence[LogitsFile]
    ) -> list[TokenRecords]:
        """Per-token scores of a model on each text."""


@dataclass(frozen=True)
class SweepMeter:
    """quantkit's own engine; all texts go through a model in one sweep."""

    context: int
    max_chunks: int | None
    device: torch.device
    name: str = "quantkit"

    def settings(self) -> dict[str, Scalar]:
        """Context, chunk limit and where it ran."""
        return {
            "context": self.context,
            "max_chunks": self.max_chunks or 0,
            "device": self.device.type,
            "version": quantkit.__version__,
        }

    def write_reference(self, model: Path, texts: Sequence[Path], outputs: Sequence[Path]) -> None:
        """Write the model's log-probabilities on each text, in one sweep."""
        weights = open_model(model)
        chunks = self._chunks(model, texts)
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    logits_writer(path, _as_tokens(text), weights.config.vocab_size)
                )
                for path, text in zip(outputs, chunks, strict=True)
            ]
            self._sweep(weights, chunks, _WriteRows(writers), f"reference {model.name}")

    def score(
        self, model: Path, texts: Sequence[Path], references: Sequence[LogitsFile]
    ) -> list[TokenRecords]:
        """Per-token scores of a model on each text, in one sweep."""
        weights = open_model(model)
        chunks = self._chunks(model, texts)
        for text, path, reference in zip(chunks, texts, references, strict=True):
            reference.require_vocabulary(weights.config.vocab_size, model)
            _require_same_tokens(reference, text, path, model)
        scorer = _ScoreRows(references)
        self._sweep(weights, chunks, scorer, f"gate {model.name}")
        return [recorder.records() for recorder in scorer.recorders]

    def _chunks(self, model: Path, texts: Sequence[Path]) -> list[Chunks]:
        tokenizer = load_tokenizer(model)
        return [read_chunks(text, tokenizer, self.context, self.max_chunks) for text in texts]

    def _sweep(
        self, weights: ModelWeights, chunks: list[Chunks], take: _TakeRows, label: str
    ) -> None:
        sweep(
            weights,
            [batch for text in chunks for batch in text.batches()],
            device=self.device,
            sink=_Router(chunks, self.context, take),
            scored_from=self.context // 2,
            label=label,
        )


_TakeRows = Callable[[int, int, int, Tensor], None]
"""(text, chunk, first scored row, scores)."""


@dataclass(frozen=True)
class _Router:
    """Sends the sweep's rows to the text and chunk that they belong to."""

    chunks: list[Chunks]
    context: int
    take: _TakeRows

    def logits(self, sequence: int, first: int, scores: Tensor) -> None:
        text = 0
        while sequence >= len(self.chunks[text].tokens):
            sequence -= len(self.chunks[text].tokens)
            text += 1
        # The last position of a chunk has no next token to score.
        scores = scores[: self.context - 1 - first]
        if len(scores):
            self.take(text, sequence, first - self.context // 2, scores)


@dataclass(frozen=True)
class _WriteRows:
    writers: list[LogitsWriter]

    def __call__(self, text: int, chunk: int, row: int, scores: Tensor) -> None:
        self.writers[text].add(scores)


@dataclass(frozen=True)
class _ScoreRows:
    references: Sequence[LogitsFile]
    recorders: list[Recorder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorders.extend(Recorder() for _ in self.references)

    def __call__(self, text: int, chunk: int, row: int, scores: Tensor) -> None:
        reference = self.references[text]
        rows = slice(row, row + len(scores))
        log_probs = reference.log_probs(chunk, rows.start, rows.stop).to(scores.device)
        targets = reference.targets(chunk)[rows].to(scores.device)
        self.recorders[text].add(chunk, score_log_probs(log_probs, scores, targets))


def _as_tokens(chunks: Chunks) -> np.ndarray:
    return chunks.tokens.numpy().astype(np.int32)


def _require_same_tokens(reference: LogitsFile, chunks: Chunks, text: Path, model: Path) -> None:
    """The model's own tokenizer must cut the text as the reference's did."""
    tokens = _as_tokens(chunks)
    if tokens.shape == reference.tokens.shape and not np.array_equal(tokens, reference.tokens):
        raise TextError(
            "the model splits the text into other tokens than the reference",
            file=model,
            value=f"text {text.name}",
            rule="candidate and reference have the same vocabulary and tokenizer",
            hint="compare quantizations of one model; this file has another tokenizer",
        )
    reference.require_tokens(tokens, text)


@dataclass(frozen=True)
class LlamaCppMeter:
    """An installed llama-perplexity, one text at a time."""

    program: LlamaPerplexity
    run: LlamaCppSettings
    name: str = "llama.cpp"

    def settings(self) -> dict[str, Scalar]:
        """Arguments and version of the program."""
        return self.program.settings_record(self.run)

    def write_reference(self, model: Path, texts: Sequence[Path], outputs: Sequence[Path]) -> None:
        """Write the model's log-probabilities on each text."""
        for text, output in zip(texts, outputs, strict=True):
            self.program.write_log_probs(model, text, output, self.run)

    def score(
        self, model: Path, texts: Sequence[Path], references: Sequence[LogitsFile]
    ) -> list[TokenRecords]:
        """Per-token scores of a model on each text."""
        return [
            self.program.score_tokens(model, text, reference, self.run)
            for text, reference in zip(texts, references, strict=True)
        ]


@dataclass(frozen=True)
class CachedMeter:
    """A meter with one reference model, and a folder that remembers."""

    meter: Meter
    reference: Path
    texts: tuple[Path, ...]
    folder: Path

    def score(self, model: Path) -> list[TokenRecords]:
        """Per-token scores of a model on every text, from the cache where they are known."""
        identity = model_files(model)
        places = [self._place(text, "scores", identity) for text in self.texts]
        if not all(map(is_whole, places)):
            with _naming(model):
                found = self.meter.score(model, self.texts, self.reference_files())
            for place, records in zip(places, found, strict=True):
                save_records(records, place)
                seal(place)
        return [load_records(place) for place in places]

    def reference_files(self) -> list[LogitsFile]:
        """The reference's log-probabilities on every text, computed on the first call."""
        places = [self._place(text, "logits", ()) for text in self.texts]
        missing = [i for i, place in enumerate(places) if not is_whole(place)]
        if missing:
            make_folder(self.folder)
            with _naming(self.reference):
                self.meter.write_reference(
                    self.reference, [self.texts[i] for i in missing], [places[i] for i in missing]
                )
            for i in missing:
                seal(places[i])
        return [open_logits_file(place) for place in places]

    def _place(self, text: Path, kind: str, identity: Sequence[FileId]) -> Path:
        key = {
            "meter": self.meter.name,
            "settings": self.meter.settings(),
            "reference": [file.sha256 for file in model_files(self.reference)],
            "text": text_file(text).sha256,
            "model": [file.sha256 for file in identity],
        }
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:CACHE_DIGITS]
        return self.folder / f"{text.stem}-{digest}.{kind}"


@contextmanager
def _naming(model: Path) -> Iterator[None]:
    """Say which model it was that an error is about."""
    try:
        yield
    except ModelError as error:
        error.file = error.file or str(model)
        raise


def text_file(text: Path) -> FileId:
    """Identity of a text; TextError if there is none."""
    if not text.is_file():
        raise TextError("no such text", file=text, hint="check the path, or build it with calib")
    return file_id(text)
