"""The one form in memory: per weight the sums of squares of its input channels, and counts.

An expert tensor has one row of sums and one count for every expert; an expert that no token
reached is *cold*. Its channels get the mean over all tokens of the others, which weighs like a
typical expert of that layer; where all are cold every channel counts the same. llama.cpp takes
ones for a cold expert, which is the same as no importance at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantkit.errors import ContainerError

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Entry:
    """Sums of squares (n, channels) and the tokens summed over (n); n experts, or 1.

    `scaled` marks an entry of a legacy file: its sums are means times a number of chunks, one
    count stands for all experts, and cold experts hold ones.
    """

    sums: Floats
    counts: Counts
    scaled: bool = False


@dataclass(frozen=True)
class MeanSquares:
    """Mean square (n, channels) of each input channel; `cold` experts have a stand-in."""

    values: Floats
    cold: tuple[int, ...]


@dataclass(frozen=True)
class Importance:
    """An importance file: entries by weight name, and the texts that they were taken from.

    `chunk_size` is in tokens; 0 where the file does not say, as in the legacy form.
    """

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    path: Path | None = None

    def mean_squares(self, name: str, shape: tuple[int, ...]) -> MeanSquares | None:
        """Mean squares for the weight `name` of row-major `shape`; None where it has no entry.

        Raises ContainerError for an entry of another shape.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        n = shape[0] if len(shape) == 3 else 1
        per_expert = entry.sums.shape == (n, shape[-1])
        if not per_expert and (len(entry.counts) != 1 or entry.sums.size != n * shape[-1]):
            raise ContainerError(
                "an importance entry that does not fit the tensor",
                file=self.path,
                tensor=name,
                value=_described(entry),
                rule=_described_shape(n, shape[-1]),
                hint="the file was made for another model, or experts were pruned since",
            )
        counts = entry.counts if per_expert else np.repeat(entry.counts, n)
        return _means(entry.sums.reshape(n, shape[-1]), counts, entry.scaled)

    def cold_experts(self) -> dict[str, tuple[int, ...]]:
        """Experts that no token reached, by weight name; weights without any are left out."""
        cold = {name: tuple(np.flatnonzero(e.counts == 0)) for name, e in self.entries.items()}
        return {name: tuple(map(int, experts)) for name, experts in cold.items() if experts}


def _described(entry: Entry) -> str:
    n, channels = entry.sums.shape
    return f"{len(entry.counts)} counts, {n * channels} sums"


def _described_shape(n: int, channels: int) -> str:
    return f"{channels} channels" if n == 1 else f"{n} experts of {channels} channels"


def _means(sums: Floats, counts: Counts, scaled: bool) -> MeanSquares:
    """Divide where there is something to divide by, and stand in for the rest."""
    warm = counts > 0
    means = np.ones(sums.shape, np.float32)
    np.divide(sums, counts[:, None], out=means, where=warm[:, None], casting="same_kind")
    if scaled and len(sums) > 1:
        warm = warm & (means != 1).any(axis=1)
    if warm.any() and not warm.all():
        total = sums[warm].sum(axis=0, dtype=np.float64)
        means[~warm] = (total / counts[warm].sum()).astype(np.float32)
    return MeanSquares(means, tuple(map(int, np.flatnonzero(~warm))))
