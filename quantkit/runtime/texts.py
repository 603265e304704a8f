"""Texts as chunks of tokens, cut the way llama-perplexity cuts them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from quantkit.artifacts.store import FileId
from quantkit.errors import TextError
from quantkit.files import read_regular
from quantkit.weights.tokenizer import encode_text

BATCH_SEQUENCES = 8
"""Sequences that go through a token mixer together."""


@dataclass(frozen=True)
class Chunks:
    """Whole chunks (n, context) of a text; the rest of the text is dropped."""

    file: FileId
    tokens: Tensor

    @property
    def context(self) -> int:
        """Tokens of a chunk."""
        return self.tokens.shape[1]

    def batches(self) -> list[Tensor]:
        """The chunks in batches (B, context)."""
        return list(self.tokens.split(BATCH_SEQUENCES))


def read_chunks(
    path: Path, tokenizer: Tokenizer, context: int, max_chunks: int | None = None
) -> Chunks:
    """Tokenize the UTF-8 text at `path` and cut it; TextError if it has no two whole chunks.

    Two, because llama-perplexity asks for that many, and because one chunk has no standard error.
    """
    try:
        raw = read_regular(path)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(
            "cannot read the text",
            file=path,
            value=str(error),
            rule="an existing file in UTF-8",
            hint="check the path, or convert the text to UTF-8",
        ) from error
    ids = encode_text(tokenizer, text)
    n_chunks = len(ids) // context
    if n_chunks < 2:
        raise TextError(
            "the text is too short",
            file=path,
            value=f"{len(ids)} tokens",
            rule=f"at least two chunks of {context} tokens",
            hint="use a longer text or a shorter --context",
        )
    n_chunks = min(n_chunks, max_chunks or n_chunks)
    tokens = torch.tensor(ids[: n_chunks * context]).view(n_chunks, context)
    return Chunks(FileId(path.name, hashlib.sha256(raw).hexdigest(), len(raw)), tokens)
