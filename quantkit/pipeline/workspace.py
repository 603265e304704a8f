"""The folder that a run writes: where everything is, one run at a time, no leftovers.

criterion.json      the bars, written before anything is measured
models/             the reference (BF16), the quantizations, the hybrids with provenance
sensitivity.json    what swapping each layer costs
selections/         the choice for each hybrid
gate/, kld/         figures and verdicts
report.md, size-kld.png
state/              one record per finished step
cache/              log-probabilities of the reference and per-token scores
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quantkit.errors import RecipeError

FOLDERS = ("models", "selections", "gate", "kld", "state", "cache")
LEFTOVERS = (".*.partial", ".*.tmp")
CACHE_LEFTOVERS = "tmp*"
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

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Make the folders, keep other runs out, and sweep up after a killed one."""
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
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
            self._sweep_up()
            yield
        finally:
            os.close(descriptor)

    def _sweep_up(self) -> None:
        """Remove what writers that were killed left behind: nobody else writes here now."""
        places = [self.root, *(self.root / name for name in FOLDERS)]
        found = [path for place in places for mark in LEFTOVERS for path in place.glob(mark)]
        for path in [*found, *self.cache.glob(CACHE_LEFTOVERS)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
