"""Opening a GGUF with the tokenizer of a large model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantkit.containers.gguf import open_gguf
from tests.bench.figures import Figure, best_seconds
from tests.containers.builders import write_big_vocabulary

N_TOKENS = 250_000
MAX_SECONDS = 0.2


def run(folder: Path) -> Iterator[Figure]:
    """The header alone, and with every token decoded."""
    path = write_big_vocabulary(folder / "vocabulary.gguf", N_TOKENS)
    size = f"{path.stat().st_size / 1e6:.1f} MB, {N_TOKENS} tokens"
    opened = best_seconds(lambda: open_gguf(path), 5)
    yield Figure("open a header", opened, "s", MAX_SECONDS, note=size)

    def with_tokens() -> int:
        return len(open_gguf(path).metadata["tokenizer.ggml.tokens"])

    yield Figure("open a header and decode its tokens", best_seconds(with_tokens, 3), "s")
