"""A small training corpus: two documentation packages, one of code, two kept-out texts."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from quantkit.capture.texts import dump_manifest, pin_manifest
from quantkit.capture.texts.manifest import DocumentRef, Manifest, Source
from tests.capture.helpers import make_deb

PAGES = 40
KEPT_OUT_PAGE = 7
LICENCE_BLOCK = "# This licence text is long enough to be a block that stays once. " * 5
# Long enough to count as a block, and one word short of a run.
NOTICE = "This notice stands on every page, between two paragraphs of it."


@dataclass(frozen=True)
class SmallCorpus:
    """A recipe on disk, the folder of its packages, and the text of a kept-out document."""

    recipe: Path
    debs: Path
    kept_out: str


def prose(seed: str, words: int = 120) -> str:
    """Sentences of made-up words; no 12 of them in a row are the same for two seeds."""
    rng = random.Random(seed)
    letters = "aeiouäöbdfgklmnprst"
    made = ["".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(words)]
    return " ".join(made)


def page(seed: str) -> bytes:
    """A page with furniture, a notice that all pages share and two paragraphs of its own."""
    body = f"<h1>{seed}</h1><p>{prose(seed)}</p><p>{NOTICE}</p><p>{prose(seed + 'x')}</p>"
    return f"<html><body><nav>menu</nav>{body}</body></html>".encode()


def module(seed: str) -> bytes:
    """A Python file under a licence that all of them repeat."""
    return f"{LICENCE_BLOCK}\n\n# {prose(seed)}\nx = '{seed}'\n\nif x:\n    pass\n".encode()


@pytest.fixture
def small_corpus(tmp_path: Path) -> SmallCorpus:
    debs = tmp_path / "debs"
    debs.mkdir()
    sources = {
        "guide": ("en", "html", {f"doc/{i}.html": page(f"guide {i}") for i in range(PAGES)}),
        "handbuch": ("de", "html", {f"doc/{i}.html": page(f"handbuch {i}") for i in range(PAGES)}),
        "library": ("code", "python", {f"lib/{i}.py": module(f"lib {i}") for i in range(PAGES)}),
    }
    entries = {}
    for package, (language, extract, files) in sources.items():
        deb = make_deb(debs, files | {"doc/index.html": b"<p>index</p>"}, package=package)
        entries[package] = {
            "kind": "deb",
            "package": package,
            "revision": "1.0-1",
            "archive_sha256": hashlib.sha256(deb.read_bytes()).hexdigest(),
            "licence": "MIT",
            "language": language,
            "extract": extract,
            "include": ["doc/*.html", "lib/*.py"],
            "exclude": ["**/index.html"],
        }
    kept_out = _write_text(tmp_path, "kept", "guide", f"doc/{KEPT_OUT_PAGE}.html", debs)
    recipe = {
        "schema": "quantkit.corpus/1",
        "keep_out": ["kept.yaml"],
        "heldout_share": 0.1,
        "heldout_max_document_bytes": 10_000,
        "min_document_bytes": 100,
        "vocab_size": 400,
        "context_length": 128,
        "sources": entries,
    }
    path = tmp_path / "corpus.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), "utf-8")
    return SmallCorpus(path, debs, kept_out)


def _write_text(folder: Path, name: str, package: str, path: str, debs: Path) -> str:
    source = Source("deb", package, "MIT", "html")
    draft = Manifest(name, "en", "kept out", {"pages": source}, (DocumentRef("pages", path),))
    pinned, built = pin_manifest(draft, deb_dirs=[debs])
    (folder / f"{name}.yaml").write_text(dump_manifest(pinned), "utf-8")
    (folder / f"{name}.txt").write_text(built.text, "utf-8")
    return built.text
