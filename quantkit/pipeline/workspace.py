"""The folder that a run writes: where everything is, one run at a time, no leftovers.

criterion.json      the bars, written before anything is measured
models/             the reference (BF16), the quantizations, the hybrids with provenance
sensitivity.json    what swapping each layer costs
selections/         the choice for each hybrid
gate/, kld/         figures and verdicts
report.md, size-kld.png
state/              one record per finished step, and a mark that the folder is a run's
cache/              log-probabilities of the reference and per-token scores
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import RecipeError
from quantkit.files import make_folder, staging_folder
from quantkit.gate.meter_llamacpp import SCRATCH_PREFIX
from quantkit.gate.meters import CACHE_DIGEST

FOLDERS = ("models", "selections", "gate", "kld", "state", "cache")
MARKER = "made-by-quantkit"
CACHE_LEFTOVER = re.compile(rf"\..+-{CACHE_DIGEST}\.\w+(\.sha256)?\.partial|\{SCRATCH_PREFIX}.*")
REFERENCE = "reference"


@dataclass(frozen=True)
class Workspace:
    """Paths below `root`."""

    root: Path

    @property
    def criterion(self) -> Path:
        return self.root / "criterion.json"

    @property
    def reference(self) -> Path:
        return self.model(REFERENCE)

    @property
    def sensitivity(self) -> Path:
        return self.root / "sensitivity.json"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def report(self) -> Path:
        return self.root / "report.md"

    @property
    def plot(self) -> Path:
        return self.root / "size-kld.png"

    def model(self, name: str) -> Path:
        """A GGUF that the run makes."""
        return self.root / "models" / f"{name}.gguf"

    def selection(self, name: str) -> Path:
        """The choice for a hybrid."""
        return self.root / "selections" / f"{name}.json"

    def gate(self, name: str) -> Path:
        """The verdict on a hybrid."""
        return self.root / "gate" / f"{name}.json"

    def kld(self, name: str, role: str) -> Path:
        """The figures of a whole quantization on one text."""
        return self.root / "kld" / f"{name}.{role}.json"

    def record(self, step: str) -> Path:
        """The record of a finished step."""
        return self.root / "state" / f"{step.replace(' ', '-')}.json"

    @property
    def private_folders(self) -> tuple[Path, ...]:
        """Folders that hold nothing but the run's own files."""
        return self.root / "state", self.cache

    @property
    def is_own(self) -> bool:
        """Whether a run has used this folder before."""
        return self._marker.is_file() or self.record("criterion").is_file()

    @property
    def _marker(self) -> Path:
        return self.root / "state" / MARKER

    @contextmanager
    def occupied(self, written: Iterable[Path]) -> Iterator[None]:
        """Make the folders, keep other runs out, and sweep up after a killed one.

        `written` are the files that the run writes: nothing but their unfinished forms is removed.
        """
        for name in FOLDERS:
            make_folder(self.root / name)
        descriptor = os.open(self.root / "state", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RecipeError(
                    "another run is using this folder",
                    file=self.root,
                    hint="wait for it, or give the recipe another `work` folder",
                ) from None
            if not self._marker.exists():
                self._marker.touch()
            self._sweep_up(written)
            yield
        finally:
            os.close(descriptor)

    def _sweep_up(self, written: Iterable[Path]) -> None:
        """Remove what writers that were killed left behind: nobody else writes here now."""
        cached = (path for path in self.cache.iterdir() if CACHE_LEFTOVER.fullmatch(path.name))
        for folder in [*map(staging_folder, written), *cached]:
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)
