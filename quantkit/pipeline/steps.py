"""Steps: what makes a step's result, and whether that result is still there.

A step's key is a hash of its kind, its parameters, the names and hashes of the files it reads and
the version of quantkit. When it has finished, `state/<step>.json` records the key and the hash of
every file that it wrote; it is done as long as both still hold. So a run that was killed goes on
where it stopped, a change in the recipe costs only what depends on it, and a step whose inputs
were made again with the same bytes is not repeated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quantkit
from quantkit.artifacts.schema import Label, Sha256
from quantkit.artifacts.store import Artifact, FileId, load, save
from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.errors import ArtifactError
from quantkit.progress import Progress, log

HASH_PROGRESS_BYTES = 1 << 30
"""Smaller files are hashed without a progress line."""


@dataclass(frozen=True)
class StepRecord(Artifact):
    """A finished step, as it stands in the folder `state`."""

    SCHEMA = "quantkit.step"
    VERSION = 1

    step: Label
    key: Sha256
    inputs: tuple[FileId, ...]
    outputs: tuple[FileId, ...]


@dataclass(frozen=True)
class Step:
    """`work` makes all of `outputs` from `inputs`; everything else it depends on is a parameter.

    `predicted_bytes` tells the size of the first output beforehand, None where it is not known;
    it may read what `inputs` hold.
    """

    kind: str
    subject: str
    parameters: Mapping[str, Any]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    work: Callable[[], None]
    predicted_bytes: Callable[[], int | None] = lambda: None
    size_is_limit: bool = False
    """The file will have at most the predicted bytes, perhaps fewer."""
    further_outputs: tuple[Path, str] | None = None
    """A folder and a pattern: files that are outputs too, named by whoever writes them."""

    @property
    def name(self) -> str:
        """Unique within a run."""
        return f"{self.kind} {self.subject}".strip()

    def existing_outputs(self) -> tuple[Path, ...]:
        """The outputs that are there, in a fixed order."""
        more: list[Path] = []
        if self.further_outputs is not None:
            folder, pattern = self.further_outputs
            more = sorted(folder.glob(pattern))
        return (*(path for path in self.outputs if path.is_file()), *more)


class FileHashes:
    """Hashes of files, each computed once as long as size and time of the file stay the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int, int], str] = {}

    def identity(self, path: Path) -> FileId:
        """Name, hash and size of a file; ContainerError if it is not there."""
        size = file_bytes(path)
        key = (path.resolve(), size, path.stat().st_mtime_ns)
        if key not in self._known:
            self._known[key] = self._sha256(path, size)
        return FileId(path.name, self._known[key], size)

    def forget(self, path: Path) -> None:
        """Hash this file again: a clock tick is too coarse to tell two quick writes apart."""
        place = path.resolve()
        self._known = {key: value for key, value in self._known.items() if key[0] != place}

    @staticmethod
    def _sha256(path: Path, size: int) -> str:
        if size < HASH_PROGRESS_BYTES:
            return sha256_file(path)
        with Progress(f"hash {path.name}", size) as progress:
            return sha256_file(path, on_bytes=progress.step)


class Ledger:
    """Which steps are done; reads and writes their records."""

    def __init__(self, record_path: Callable[[str], Path], hashes: FileHashes) -> None:
        self._record_path = record_path
        self._hashes = hashes

    def is_done(self, step: Step) -> bool:
        """Whether the step ran with these parameters and inputs and its outputs are unchanged."""
        record = self._read(step)
        if record is None or record.key != self._key(step):
            return False
        there = step.existing_outputs()
        if [path.name for path in there] != [known.name for known in record.outputs]:
            return False
        return all(
            self._holds(path, known) for path, known in zip(there, record.outputs, strict=True)
        )

    def run(self, step: Step) -> None:
        """Do the step from a clean start and record it.

        Its former outputs go first, so that nothing half done is ever built upon.
        """
        key = self._key(step)
        self._record_path(step.name).unlink(missing_ok=True)
        for path in step.existing_outputs():
            self._hashes.forget(path)
            path.unlink()
        step.work()
        identity = self._hashes.identity
        record = StepRecord(
            step=step.name,
            key=key,
            inputs=tuple(identity(path) for path in step.inputs),
            outputs=tuple(identity(path) for path in step.existing_outputs()),
        )
        save(record, self._record_path(step.name))

    def _read(self, step: Step) -> StepRecord | None:
        path = self._record_path(step.name)
        if not path.is_file():
            return None
        try:
            return load(StepRecord, path)
        except ArtifactError as error:
            log(f"{step.name} is done again, its record cannot be read: {error.what}")
            return None

    def _holds(self, path: Path, known: FileId) -> bool:
        # The size first: it is known without reading the file.
        return path.stat().st_size == known.bytes and self._hashes.identity(path) == known

    def _key(self, step: Step) -> str:
        inputs = [self._hashes.identity(path) for path in step.inputs]
        document = {
            "tool_version": quantkit.__version__,
            "kind": step.kind,
            "subject": step.subject,
            "parameters": dict(step.parameters),
            "inputs": [[file.name, file.sha256] for file in inputs],
        }
        text = json.dumps(document, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
