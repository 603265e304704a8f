"""Artifacts on disk: a header that says what a file is, then its fields.

Every file starts with `schema`, `schema_version` and `tool_version`. A reader takes only the
schema and version that it was written for. Nothing in a file depends on the time, the folder or
the run, so the same inputs give the same bytes; a machine description may be stored (it is
evidence) but is left out of `content_sha256`, which identifies what was found, not where.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import quantkit
from quantkit.artifacts.schema import Count, FileName, Sha256, from_json, parse_json, to_json
from quantkit.errors import ArtifactError
from quantkit.files import read_regular, write_bytes_atomic

HEADER_FIELDS = ("schema", "schema_version", "tool_version")


@dataclass(frozen=True)
class FileId:
    """A file that went into a stage or came out of it; the name is without its folder."""

    name: FileName
    sha256: Sha256
    bytes: Count


@dataclass(frozen=True)
class Artifact:
    """Base of every file between stages; subclasses are frozen dataclasses with type hints."""

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int]
    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset()


A = TypeVar("A", bound=Artifact)


def _document(artifact: Artifact) -> dict[str, Any]:
    header = (artifact.SCHEMA, artifact.VERSION, quantkit.__version__)
    return dict(zip(HEADER_FIELDS, header, strict=True)) | to_json(artifact)


def dumps(artifact: Artifact) -> bytes:
    """The bytes of the artifact's file: UTF-8 JSON, two spaces of indent, a final newline.

    Raises ArtifactError if a field breaks the rules that `loads` applies.
    """
    document = _document(artifact)
    fields = {name: value for name, value in document.items() if name not in HEADER_FIELDS}
    from_json(type(artifact), fields, label=artifact.SCHEMA)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return _utf8(text + "\n")


def _utf8(text: str) -> bytes:
    """JSON in UTF-8; a file name's bytes that are no UTF-8 become the escapes that JSON has."""
    return text.encode("utf-8", "backslashreplace")


def loads(cls: type[A], data: bytes, file: Path | None = None) -> A:
    """Read `data` as the artifact `cls`; ArtifactError on any other schema, version or field."""
    document = parse_json(data, label=cls.SCHEMA, file=file)
    found = document.get("schema") if isinstance(document, dict) else None
    if found != cls.SCHEMA:
        raise ArtifactError(
            "this file is not the artifact that is needed here",
            file=file,
            value=found,
            rule=f"schema must be '{cls.SCHEMA}'",
            hint="check the order of the file arguments",
        )
    if document.get("schema_version") != cls.VERSION:
        raise ArtifactError(
            f"{cls.SCHEMA}: unknown schema version",
            file=file,
            value=document.get("schema_version"),
            rule=f"this quantkit ({quantkit.__version__}) reads version {cls.VERSION}",
            hint="write the file again with this version, or use the version that wrote it",
        )
    if not isinstance(document.get("tool_version"), str):
        raise ArtifactError(
            f"{cls.SCHEMA}: field 'tool_version' is not valid",
            file=file,
            value=document.get("tool_version"),
            rule="must be of type str",
            hint="write the file again with the stage that makes it",
        )
    fields = {name: value for name, value in document.items() if name not in HEADER_FIELDS}
    return from_json(cls, fields, label=cls.SCHEMA, file=file)


def load(cls: type[A], path: Path) -> A:
    """Read the artifact `cls` from `path`."""
    return load_with_id(cls, path)[0]


def load_with_id(cls: type[A], path: Path) -> tuple[A, FileId]:
    """Read the artifact and the identity (sha256, size) of exactly the bytes that were read."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise ArtifactError(
            f"{cls.SCHEMA}: cannot read the file",
            file=path,
            value=error.strerror,
            rule="must be an existing, readable file",
            hint="run the stage that writes it first, or correct the path",
        ) from error
    return loads(cls, data, path), FileId(path.name, hashlib.sha256(data).hexdigest(), len(data))


def save(artifact: Artifact, path: Path) -> FileId:
    """Write the artifact, completely or not at all; returns what was written.

    Raises ContainerError where it cannot be written.
    """
    data = dumps(artifact)
    write_bytes_atomic(path, data)
    return FileId(path.name, hashlib.sha256(data).hexdigest(), len(data))


def content_sha256(artifact: Artifact) -> str:
    """Hash of what the artifact says, without the fields that describe the machine."""
    document = _document(artifact)
    kept = {key: value for key, value in document.items() if key not in artifact.NOT_IDENTITY}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(_utf8(text)).hexdigest()
