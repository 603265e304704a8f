"""The stage: sweep the reference once, measure every source on the way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

from quantkit.artifacts.sensitivity import PART_UNITS, Sensitivity, Source
from quantkit.containers.gguf import GGUFFile, open_gguf
from quantkit.containers.gguf.contents import contents_of
from quantkit.errors import TextError
from quantkit.measure import sizes
from quantkit.measure.donor import check_geometry
from quantkit.measure.errors import BLOCK_TOKENS, DonorErrors
from quantkit.runtime import sweep
from quantkit.runtime.texts import Chunks, read_chunks
from quantkit.weights import ModelWeights, open_model
from quantkit.weights.identity import model_files
from quantkit.weights.tokenizer import load_tokenizer

MIN_TOKENS = 4096
"""Fewer do not reach the rarely chosen experts of a layer."""


def measure(
    reference: Path,
    sources: Mapping[str, Path],
    texts: Sequence[Path],
    *,
    context: int = 512,
    max_tokens: int = MIN_TOKENS,
    device: torch.device,
) -> Sensitivity:
    """Errors and sizes of `sources` (name -> GGUF; the first is the base) against `reference`.

    The reference is a GGUF or a checkpoint folder. Tokens come from the texts in turn, whole
    chunks of `context` until `max_tokens` are reached. Raises DonorError for a source that is not
    a quantization of the reference, TextError if the texts hold fewer than MIN_TOKENS.
    """
    model = open_model(reference)
    files = {name: open_gguf(path) for name, path in sources.items()}
    opened = {name: open_model(path) for name, path in sources.items()}
    for name, source in opened.items():
        check_geometry(name, source, model)
    chunks = _captured(reference, texts, context, max_tokens)
    observer = DonorErrors(model, opened, device)
    batches = [batch for text in chunks for batch in text.batches()]
    sweep(model, batches, device=device, observers=[observer], label="measure")

    base = next(iter(files.values()))
    n_layers = model.config.n_layers
    n_files = sum(len(file.shards) for file in files.values())
    swappable = sizes.expert_tensor_names(n_layers)
    return Sensitivity(
        architecture=model.config.arch,
        reference=model_files(reference),
        texts=tuple(text.file for text in chunks),
        parameters={
            "context": context,
            "n_tokens": sum(text.tokens.numel() for text in chunks),
            "block_tokens": BLOCK_TOKENS,
        },
        alignment=sizes.ALIGNMENT,
        header_bytes=sizes.header_bytes(base),
        overhead_bytes=sizes.overhead_bytes(n_files, n_layers * len(PART_UNITS)),
        fixed_tensors=tuple(
            sizes.tensor_size(e) for e in base.tensors.values() if e.name not in swappable
        ),
        sources=tuple(
            _source(name, file, observer, model, file.tensors if file is base else swappable)
            for name, file in files.items()
        ),
    )


def _source(
    name: str,
    file: GGUFFile,
    observer: DonorErrors,
    model: ModelWeights,
    usable: Collection[str],
) -> Source:
    """`usable` are the names of the tensors that a hybrid may take from this source."""
    layers = tuple(
        sizes.source_layer(file, layer, observer.found[name][layer])
        for layer in range(model.config.n_layers)
    )
    contents = contents_of(file, [tensor for tensor in file.tensors if tensor in usable])
    return Source(name, model_files(file.path), layers, contents)


def _captured(
    reference: Path, texts: Sequence[Path], context: int, max_tokens: int
) -> list[Chunks]:
    tokenizer = load_tokenizer(reference)
    found: list[Chunks] = []
    left = max_tokens
    for path in texts:
        if left <= 0:
            break
        found.append(read_chunks(path, tokenizer, context, -(-left // context)))
        left -= found[-1].tokens.numel()
    total = max_tokens - left
    if total < MIN_TOKENS:
        raise TextError(
            "too few tokens to measure on",
            file=", ".join(str(path) for path in texts),
            value=f"{total} tokens",
            rule=f"at least {MIN_TOKENS} tokens in whole chunks of {context}",
            hint="give longer texts, or raise --tokens",
        )
    return found
