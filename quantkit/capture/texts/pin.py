"""Turn a draft into a manifest: look up revisions, sizes and hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from quantkit.capture.texts.build import BuiltText, assemble
from quantkit.capture.texts.manifest import SCHEMA, DocumentRef, Manifest, Source

LINE_WIDTH = 100


def pin_manifest(draft: Manifest, *, deb_dirs: Sequence[Path] = ()) -> tuple[Manifest, BuiltText]:
    """The manifest of the text that this machine builds from `draft`, and that text.

    Raises TextError for a source or document that is missing.
    """
    built = assemble(draft, deb_dirs)
    pinned = replace(
        draft,
        sources={n: replace(s, revision=built.revisions[n]) for n, s in draft.sources.items()},
        documents=tuple(DocumentRef(d.source, d.path, d.sha256) for d in built.documents),
        sha256=built.sha256,
        bytes=built.nbytes,
    )
    return pinned, built


def dump_manifest(manifest: Manifest) -> str:
    """The YAML of a manifest, fields at their defaults left out; the same manifest, same bytes."""
    data = {"schema": SCHEMA} | _plain(manifest)
    data["sources"] = {name: _plain(source) for name, source in manifest.sources.items()}
    data["documents"] = [_plain(document) for document in manifest.documents]
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=LINE_WIDTH)


def _plain(item: Manifest | Source | DocumentRef) -> dict[str, Any]:
    values = ((f, getattr(item, f.name)) for f in fields(item))
    kept = {f.name: value for f, value in values if value != f.default}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in kept.items()}
