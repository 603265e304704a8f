"""llama-perplexity where it is installed, and two models whose logits are known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from quantkit.errors import PeerError
from quantkit.gate.meter_llamacpp import (
    PROGRAM_VARIABLE,
    LlamaCppSettings,
    LlamaPerplexity,
    find_llama_perplexity,
)
from tests.gate.exact_model import ExactModel, make_model, make_text

SETTINGS = LlamaCppSettings(n_ctx=128, n_batch=128, n_ubatch=128, n_threads=1)


@dataclass(frozen=True)
class ExactPair:
    """A base model, a candidate with a noisy head, a text, and the base's file by the program."""

    base: ExactModel
    candidate: ExactModel
    text: Path
    reference: Path


@pytest.fixture(scope="session")
def llama_perplexity() -> LlamaPerplexity:
    try:
        return find_llama_perplexity()
    except PeerError:
        pytest.skip(f"llama-perplexity is neither in PATH nor in {PROGRAM_VARIABLE}")


@pytest.fixture(scope="session")
def exact_pair(
    llama_perplexity: LlamaPerplexity, tmp_path_factory: pytest.TempPathFactory
) -> ExactPair:
    folder = tmp_path_factory.mktemp("exact")
    base = make_model(folder / "base.gguf", seed=1)
    candidate = make_model(folder / "candidate.gguf", seed=1, noise=3)
    text = folder / "text.txt"
    text.write_text(make_text(seed=1, length=4000))
    reference = folder / "base.logits"
    llama_perplexity.write_log_probs(base.path, text, reference, SETTINGS)
    return ExactPair(base, candidate, text, reference)
