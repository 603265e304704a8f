"""The documents of a training corpus: read, keep out, split, deduplicate.

Everything follows from the recipe and the packages: the split and the order depend on nothing but
the documents' keys, so a document stays on its side when others come or go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from quantkit.capture.texts.build import Document, check_disjoint, load_text, read_documents
from quantkit.capture.texts.dedup import Deduplicator
from quantkit.capture.texts.manifest import Source
from quantkit.capture.texts.overlap import run_set, shares_run
from quantkit.capture.texts.recipe import CorpusRecipe
from quantkit.capture.texts.sources import Located, Wanted, locate, match_path
from quantkit.containers.hashing import sha256_file
from quantkit.errors import TextError
from quantkit.progress import track

CODE = "code"


class Size(NamedTuple):
    """How much text: documents, and their bytes in UTF-8."""

    documents: int
    bytes: int


@dataclass(frozen=True)
class Corpus:
    """The documents of both sides in training order, and what the sources gave before that.

    `found` and `kept` are the sizes of each source before and after the documents that share a
    run of words with a kept-out text were dropped.
    """

    train: tuple[Document, ...]
    heldout: tuple[Document, ...]
    found: dict[str, Size]
    kept: dict[str, Size]


def read_corpus(recipe: CorpusRecipe, deb_dirs: Sequence[Path]) -> Corpus:
    """Build both sides of a training corpus.

    Raises TextError for a package that is missing or is another one than the recipe's, and for
    kept-out texts that differ from their manifests or overlap.
    """
    keep_out = {name: load_text(Path(recipe.folder) / name) for name in recipe.keep_out}
    check_disjoint(keep_out)
    runs = run_set(keep_out.values())
    found, kept, documents = {}, {}, []
    for name, source in track(recipe.sources.items(), "read the sources", len(recipe.sources)):
        own = read_documents(name, source, _locate_exactly(source, deb_dirs), _selector(source))
        apart = [document for document in own if not shares_run(document.text, runs)]
        found[name], kept[name] = _size(own), _size(apart)
        documents += apart
    chosen = choose_heldout(documents, recipe)
    held = [document for document in documents if document.key in chosen]
    rest = [document for document in documents if document.key not in chosen]
    # The held-out documents come first: what both sides repeat is missing from the training side.
    cleaner = Deduplicator()
    heldout = _finish(held, cleaner, runs, recipe)
    train = _finish(rest, cleaner, runs, recipe)
    return Corpus(train, heldout, found, kept)


def key_fraction(purpose: str, key: str) -> float:
    """A number in [0, 1) that depends on nothing but the purpose and the document's key."""
    digest = hashlib.sha256(f"{purpose}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose_heldout(documents: Iterable[Document], recipe: CorpusRecipe) -> frozenset[str]:
    """Keys of the held-out documents: `heldout_share` of each source's, at least one of each."""
    by_source: dict[str, list[Document]] = {}
    for document in documents:
        by_source.setdefault(document.source, []).append(document)
    chosen: set[str] = set()
    for own in by_source.values():
        count = max(1, round(recipe.heldout_share * len(own)))
        own.sort(key=lambda document: key_fraction("split", document.key))
        eligible = [d.key for d in own if d.nbytes <= recipe.heldout_max_document_bytes]
        chosen.update(eligible[:count])
    return frozenset(chosen)


def _finish(
    documents: Iterable[Document],
    cleaner: Deduplicator,
    runs: frozenset[str],
    recipe: CorpusRecipe,
) -> tuple[Document, ...]:
    """One side without its repetitions, in training order."""
    finished = []
    for document in documents:
        is_code = recipe.sources[document.source].language == CODE
        clean = replace(document, text=cleaner.clean(document.text, code=is_code))
        # Without the blocks between them two words may have become neighbours.
        if clean.nbytes >= recipe.min_document_bytes and not shares_run(clean.text, runs):
            finished.append(clean)
    return tuple(sorted(finished, key=lambda document: key_fraction("order", document.key)))


def _locate_exactly(source: Source, deb_dirs: Sequence[Path]) -> Located:
    located = locate(source.kind, source.package, deb_dirs)
    if source.archive_sha256 and located.archive is not None:
        actual = sha256_file(located.archive)
        expected = source.archive_sha256
    else:
        actual, expected = located.revision, source.revision
    if actual != expected:
        raise TextError(
            f"{source.package} is not the package of the recipe",
            file=located.archive,
            value=f"{actual} ({located.revision})",
            rule=f"{expected} ({source.revision})",
            hint="Debian keeps every revision at snapshot.debian.org",
        )
    return located


def _selector(source: Source) -> Wanted:
    def wanted(path: str) -> bool:
        included = not source.include or match_path(path, source.include)
        return included and not match_path(path, source.exclude)

    return wanted


def _size(documents: Sequence[Document]) -> Size:
    return Size(len(documents), sum(document.nbytes for document in documents))
