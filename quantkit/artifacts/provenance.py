"""`provenance.json`: where every byte of a written model comes from.

Written beside the model by `splice`, `prune` and `quantize`. It names bytes (hashes), not
recipes: the same recipe built with another compiler can give other bytes. What was written has
BLAKE3 hashes (`b3sum`), which keep up with the copy; files that went in have SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantkit.artifacts.schema import Blake3, Count, FileName, Label, Problem, Scalar, duplicates
from quantkit.artifacts.store import Artifact, FileId


@dataclass(frozen=True)
class WrittenFile:
    """A file of the model; the name is without its folder."""

    name: FileName
    blake3: Blake3
    bytes: Count


@dataclass(frozen=True)
class ProvenanceSource:
    """A model that tensors were taken from; the first one is the base."""

    name: Label
    files: tuple[FileId, ...]


@dataclass(frozen=True)
class TensorOrigin:
    """One tensor of the output: the source that its bytes come from and their hash, unpadded.

    `copied` is False where the stage changed the bytes (pruned or encoded them).
    """

    name: Label
    qtype: Label
    bytes: Count
    blake3: Blake3
    source: Label
    copied: bool


@dataclass(frozen=True)
class Provenance(Artifact):
    """`operation` is the verb; `inputs` are its artifacts (selection, scores), not the models."""

    SCHEMA = "quantkit.provenance"
    VERSION = 2

    operation: Label
    outputs: tuple[WrittenFile, ...]
    sources: tuple[ProvenanceSource, ...]
    inputs: tuple[FileId, ...]
    parameters: dict[str, Scalar]
    tensors: tuple[TensorOrigin, ...]
    command: tuple[str, ...]

    def problems(self) -> Iterator[Problem]:
        known = {source.name for source in self.sources}
        for index, tensor in enumerate(self.tensors):
            if tensor.source not in known:
                rule = f"must be one of the sources: {', '.join(sorted(known))}"
                yield Problem(f"tensors[{index}].source", tensor.source, rule)
        for name in duplicates(tensor.name for tensor in self.tensors):
            yield Problem("tensors", name, "each tensor is listed once")
