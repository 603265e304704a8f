"""The recipe of a training corpus: sources, the texts to keep out, the split, the tokenizer.

```yaml
schema: quantkit.corpus/1
keep_out: [../../calib/selection.yaml, ...]   # no document shares 12 words in a row with these
heldout_share: 0.015                          # of the documents of each source, at least one
heldout_max_document_bytes: 65536
min_document_bytes: 200
vocab_size: 4096
context_length: 2048
sources:
  python3.11-doc: {kind: deb, package: ..., revision: ..., archive_sha256: ..., include: [...]}
outputs: {train.npy: 51d2...}                 # sha256 of what the recipe must produce
```
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quantkit.artifacts.schema import Label, Positive, Sha256, Share
from quantkit.capture.texts.manifest import Source, load_yaml, parse, with_defaults

SCHEMA = "quantkit.corpus/1"


@dataclass(frozen=True)
class CorpusRecipe:
    """What a training corpus is made of; `keep_out` are manifests, relative to the recipe."""

    keep_out: tuple[Label, ...]
    heldout_share: Share
    heldout_max_document_bytes: Positive
    min_document_bytes: Positive
    vocab_size: Positive
    context_length: Positive
    sources: dict[str, Source]
    outputs: dict[str, Sha256]
    folder: Label


def load_recipe(path: Path) -> CorpusRecipe:
    """Read and check a recipe. Raises TextError with the field that breaks the schema."""
    raw = {"outputs": {}} | load_yaml(path, SCHEMA) | {"folder": str(path.parent)}
    if isinstance(raw.get("sources"), dict):
        raw["sources"] = {str(n): with_defaults(Source, s) for n, s in raw["sources"].items()}
    return parse(CorpusRecipe, raw, path)
