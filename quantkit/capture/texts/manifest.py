"""Manifests: which documents of which package revisions make a text, and their hashes.

```yaml
schema: quantkit.text/1
name: selection
language: en
description: Topics of the Python language reference
sources:
  topics: {kind: pydoc-topics, package: python, revision: 3.11.7, licence: PSF-2.0, extract: text}
documents:
  - {source: topics, path: assignment, sha256: 0f...}
sha256: 5c...        # of the whole text, and its bytes in UTF-8
bytes: 58648
```

A draft has no `sha256` and `bytes`, and may leave out `revision`; `pin_manifest` fills them in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml

from quantkit.artifacts.schema import Check, FileName, Label, Problem, from_json, is_sha256
from quantkit.capture.texts.extract import EXTRACTORS
from quantkit.capture.texts.sources import KINDS
from quantkit.errors import ArtifactError, TextError
from quantkit.files import read_regular

SCHEMA = "quantkit.text/1"
UNPINNED = ""

D = TypeVar("D")
Sha256OrDraft = Annotated[
    str, Check("64 lower-case hexadecimal digits", lambda v: v == UNPINNED or is_sha256(v))
]
Kind = Annotated[str, Check(f"one of {', '.join(KINDS)}", KINDS.__contains__)]
Extraction = Annotated[str, Check(f"one of {', '.join(EXTRACTORS)}", EXTRACTORS.__contains__)]
HeadingLevel = Annotated[int, Check("a heading level, 0 to 6", range(7).__contains__)]


@dataclass(frozen=True)
class Source:
    """One package that documents come from.

    `licence` is an SPDX identifier. `split_level` n cuts HTML pages at their headings h1 ... hn,
    0 not at all. `archive_sha256` is the hash of the .deb. `include` and `exclude` are path
    patterns; no `include` means every file.
    """

    kind: Kind
    package: Label
    licence: Label
    extract: Extraction
    revision: str = UNPINNED
    language: str = ""
    split_level: HeadingLevel = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    archive_sha256: Sha256OrDraft = UNPINNED


@dataclass(frozen=True)
class DocumentRef:
    """A document of a text: a path inside a source (`file#n` is section n of a cut page)."""

    source: str
    path: Label
    sha256: Sha256OrDraft = UNPINNED


@dataclass(frozen=True)
class Manifest:
    """What a text is made of; `sha256` and `bytes` are those of the whole text in UTF-8."""

    name: FileName
    language: Label
    description: Label
    sources: dict[str, Source]
    documents: tuple[DocumentRef, ...]
    sha256: Sha256OrDraft = UNPINNED
    bytes: int = 0

    def problems(self) -> Iterator[Problem]:
        """Rules over several fields (read by the schema reader)."""
        if not self.documents:
            yield Problem("documents", [], "at least one document")
        for number, ref in enumerate(self.documents):
            if ref.source not in self.sources:
                known = ", ".join(self.sources)
                yield Problem(f"documents[{number}].source", ref.source, f"one of {known}")


def load_manifest(path: Path, *, draft: bool = False) -> Manifest:
    """Read and check a manifest; only a `draft` may lack hashes and revisions. Raises TextError."""
    raw = with_defaults(Manifest, load_yaml(path, SCHEMA))
    raw["sources"] = _each(Source, raw.get("sources"))
    raw["documents"] = _each(DocumentRef, raw.get("documents"))
    manifest = parse(Manifest, raw, path)
    if not draft:
        _check_pinned(manifest, path)
    return manifest


def load_yaml(path: Path, schema: str) -> dict[str, Any]:
    """The fields of a YAML mapping that says `schema: <schema>`, without that line.

    Raises TextError for a file that is missing, is not YAML or has another schema.
    """
    try:
        data = yaml.safe_load(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise TextError(
            "cannot read the manifest", file=path, value=str(error), rule="a YAML file in UTF-8"
        ) from error
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if found != schema:
        raise TextError("not the file that is needed here", file=path, value=found, rule=schema)
    return {key: value for key, value in data.items() if key != "schema"}


def with_defaults(cls: type, raw: Any) -> Any:
    """`raw` with the defaults of the dataclass `cls` for the fields that it leaves out."""
    if not isinstance(raw, dict):
        return raw
    given = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    return plain | raw


def parse(cls: type[D], raw: dict[str, Any], path: Path) -> D:
    """Decode `raw` to the dataclass `cls`; TextError names the first field that breaks a rule."""
    try:
        return from_json(cls, raw, label=path.name, file=path)
    except ArtifactError as error:
        raise TextError(
            error.what,
            file=path,
            value=error.value,
            rule=error.rule,
            hint="a version such as 3.10 needs quotes in YAML"
            if ".revision'" in error.what
            else None,
        ) from error


def _each(cls: type, raw: Any) -> Any:
    if isinstance(raw, dict):
        return {str(name): with_defaults(cls, item) for name, item in raw.items()}
    return [with_defaults(cls, item) for item in raw] if isinstance(raw, list) else raw


def _check_pinned(manifest: Manifest, path: Path) -> None:
    unpinned = [f"documents: {ref.path}" for ref in manifest.documents if not ref.sha256]
    unpinned += [f"sources: {n}: revision" for n, s in manifest.sources.items() if not s.revision]
    unpinned += [] if manifest.sha256 and manifest.bytes > 0 else ["sha256 and bytes"]
    if unpinned:
        raise TextError(
            "the manifest is a draft",
            file=path,
            value=unpinned[0],
            rule="every document, source and the whole text have their hash, revision and size",
            hint="pin it: build the text once and write the manifest with what was found",
        )
