"""The stage: sweep a model over texts and keep what its matrices see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import quantkit
from quantkit.artifacts.store import FileId
from quantkit.capture.importance import WatchedModel
from quantkit.containers.gguf import ValueType, pack_kv
from quantkit.containers.imatrix import Importance, write_importance
from quantkit.runtime import sweep
from quantkit.runtime.texts import Chunks, read_chunks
from quantkit.weights import open_model
from quantkit.weights.identity import model_files
from quantkit.weights.tokenizer import load_tokenizer

KEYS_VERSION = 1


@dataclass(frozen=True)
class Captured:
    """An importance file's content, and what it was taken from."""

    importance: Importance
    model: tuple[FileId, ...]
    texts: tuple[FileId, ...]
    n_tokens: int


class _Nowhere:
    """The head's scores are not wanted, only that it is reached."""

    def logits(self, sequence: int, first: int, scores: Tensor) -> None:
        pass


def capture_importance(
    model: Path,
    texts: Sequence[Path],
    *,
    context: int = 512,
    max_tokens: int | None = None,
    device: torch.device,
) -> Captured:
    """Mean squares of the inputs of every matrix of `model` over `texts`, with counts.

    The model is a GGUF or a checkpoint folder. Tokens come from the texts in turn, whole chunks of
    `context`, each from an empty state, until `max_tokens` are reached (None: all). Raises
    TextError for a text of less than two chunks, ModelError where activations are not finite.
    """
    chunks = capture_chunks(model, texts, context, max_tokens)
    watched = WatchedModel.of(open_model(model))
    batches = [batch for text in chunks for batch in text.batches()]
    with watched.products:
        sweep(watched, batches, device=device, sink=_Nowhere(), label="capture")
        watched.finish(None)
    n_tokens = sum(text.tokens.numel() for text in chunks)
    importance = Importance(
        watched.entries,
        tuple(text.file.name for text in chunks),
        chunk_count=n_tokens // context,
        chunk_size=context,
    )
    files = tuple(text.file for text in chunks)
    return Captured(importance, model_files(model), files, n_tokens)


def capture_chunks(
    model: Path, texts: Sequence[Path], context: int, max_tokens: int | None
) -> list[Chunks]:
    """The chunks that would be swept."""
    tokenizer = load_tokenizer(model)
    found: list[Chunks] = []
    left = max_tokens
    for path in texts:
        if left is not None and left <= 0:
            break
        found.append(read_chunks(path, tokenizer, context, left and -(-left // context)))
        left = None if left is None else left - found[-1].tokens.numel()
    return found


def write_captured(captured: Captured, out: Path, form: str) -> None:
    """Write the importance file; its GGUF form also says by `quantkit.*` keys where it is from."""
    files = (("source", captured.model), ("text", captured.texts))
    extra = [
        pack_kv("quantkit.schema_version", ValueType.UINT32, KEYS_VERSION),
        pack_kv("quantkit.tool_version", ValueType.STRING, quantkit.__version__),
        *(
            pack_kv(f"quantkit.{kind}.{key}", ValueType.ARRAY, values, ValueType.STRING)
            for kind, found in files
            for key, values in (
                ("files", [file.name for file in found]),
                ("sha256", [file.sha256 for file in found]),
            )
        ),
    ]
    write_importance(captured.importance, out, form=form, extra=extra)
