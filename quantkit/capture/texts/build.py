"""Rebuild a text from its manifest, and prove that it is the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from quantkit.capture.texts.extract import extract
from quantkit.capture.texts.manifest import DocumentRef, Manifest, Source, load_manifest
from quantkit.capture.texts.overlap import RUN_WORDS, shared_runs
from quantkit.capture.texts.sources import Located, Wanted, locate
from quantkit.errors import TextError
from quantkit.files import read_regular

# Between two documents of a text: one blank line more than between two paragraphs.
DOCUMENT_GAP = "\n\n"
SECTION_MARK = "#"


@dataclass(frozen=True)
class Document:
    """A document as extracted: its source's name, its path there, its normalised text."""

    source: str
    path: str
    text: str

    @property
    def key(self) -> str:
        """The document's identity whatever its content: `source/path`."""
        return f"{self.source}/{self.path}"

    @property
    def sha256(self) -> str:
        """Of the text in UTF-8."""
        return text_sha256(self.text)

    @property
    def nbytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode())


@dataclass(frozen=True)
class BuiltText:
    """A text with its documents in order; `text` is what the models read."""

    text: str
    documents: tuple[Document, ...]
    revisions: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Of the text in UTF-8."""
        return text_sha256(self.text)

    @property
    def nbytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode())


def text_sha256(text: str) -> str:
    """The sha256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_documents(name: str, source: Source, located: Located, wanted: Wanted) -> list[Document]:
    """The documents in the `wanted` files of a source, ordered by path.

    A page that the source cuts at its headings gives the documents `path#0`, `path#1`, ...
    """
    documents = []
    for path, data in located.read(wanted):
        for number, text in enumerate(extract(source.extract, data, source.split_level)):
            section = f"{SECTION_MARK}{number}" if source.split_level else ""
            documents.append(Document(name, f"{path}{section}", text))
    return documents


def assemble(manifest: Manifest, deb_dirs: Sequence[Path]) -> BuiltText:
    """A manifest's text as this machine has it, no hash checked.

    Raises TextError for a source or a document that is missing.
    """
    located, found = {}, {}
    for name, source in manifest.sources.items():
        located[name] = locate(source.kind, source.package, deb_dirs)
        files = {_file_of(ref, source) for ref in manifest.documents if ref.source == name}
        for document in read_documents(name, source, located[name], files.__contains__):
            found[name, document.path] = document
    for ref in manifest.documents:
        if (ref.source, ref.path) not in found:
            raise _no_document(manifest, ref, located[ref.source])
    documents = tuple(found[ref.source, ref.path] for ref in manifest.documents)
    text = DOCUMENT_GAP.join(document.text for document in documents)
    return BuiltText(text, documents, {name: place.revision for name, place in located.items()})


def build_text(manifest: Manifest, *, deb_dirs: Sequence[Path] = ()) -> BuiltText:
    """Build a manifest's text from what is installed, and check every hash.

    `deb_dirs` are folders with .deb files, looked at before the installed packages. Raises
    TextError for a source or document that is missing and for a document or text that differs.
    """
    built = assemble(manifest, deb_dirs)
    for ref, document in zip(manifest.documents, built.documents, strict=True):
        if document.sha256 != ref.sha256:
            raise _document_differs(manifest, ref, document, built.revisions[ref.source])
    verify(manifest, built.text)
    return built


def load_text(manifest_path: Path) -> str:
    """The text that lies beside a manifest (`<name>.txt`), checked against it.

    Raises TextError for a manifest that breaks its schema and for a missing or altered text.
    """
    manifest = load_manifest(manifest_path)
    path = manifest_path.with_name(f"{manifest.name}.txt")
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TextError(
            "cannot read the text",
            file=path,
            value=str(error),
            rule="the text of a manifest lies beside it, in UTF-8",
            hint="build it from the manifest",
        ) from error
    verify(manifest, text, path)
    return text


def verify(manifest: Manifest, text: str, file: Path | None = None) -> None:
    """Check that a text is the one its manifest describes. Raises TextError with both hashes."""
    actual = text_sha256(text)
    if actual != manifest.sha256:
        raise TextError(
            f"text {manifest.name} differs from its manifest",
            file=file,
            value=f"sha256 {actual}, {len(text.encode())} bytes",
            rule=f"sha256 {manifest.sha256}, {manifest.bytes} bytes",
            hint="restore the committed text; figures of two texts cannot be compared",
        )


def check_disjoint(texts: Mapping[str, str], words: int = RUN_WORDS) -> None:
    """Check that no two of the named texts share a run of `words` words. Raises TextError."""
    for (name_a, a), (name_b, b) in combinations(texts.items(), 2):
        shared = shared_runs(a, b, words)
        if shared:
            raise TextError(
                f"the texts {name_a} and {name_b} overlap",
                value=f"{len(shared)} shared runs, the first: {shared[0]}",
                rule=f"no run of {words} words in two texts",
                hint="replace the documents that hold the run in one of the two",
            )


def _file_of(ref: DocumentRef, source: Source) -> str:
    return ref.path.rpartition(SECTION_MARK)[0] if source.split_level else ref.path


def _no_document(manifest: Manifest, ref: DocumentRef, located: Located) -> TextError:
    source = manifest.sources[ref.source]
    hint = _revision_hint(source, located.revision) or (
        "container images often leave /usr/share/doc out of what they install; "
        f"apt-get download {source.package}, and name the folder with --deb-dir"
    )
    return TextError(
        f"text {manifest.name}: a document is missing",
        file=located.archive,
        value=ref.path,
        rule=f"{source.package} {source.revision} holds it, sha256 {ref.sha256}",
        hint=hint,
    )


def _document_differs(
    manifest: Manifest, ref: DocumentRef, document: Document, revision: str
) -> TextError:
    source = manifest.sources[ref.source]
    return TextError(
        f"text {manifest.name}: document {ref.path} differs from the manifest",
        value=f"sha256 {document.sha256} ({source.package} {revision})",
        rule=f"sha256 {ref.sha256} ({source.package} {source.revision})",
        hint=_revision_hint(source, revision)
        or f"the files of {source.package} were changed after it was packaged; reinstall it",
    )


def _revision_hint(source: Source, revision: str) -> str | None:
    if revision == source.revision:
        return None
    return (
        f"{source.package} is {revision} here and {source.revision} in the manifest: "
        "use the committed text, or build where that revision is"
    )
