"""What every importance file must hold, whatever its form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from quantkit.containers.imatrix.entries import Counts, Floats
from quantkit.errors import ContainerError

Numbers = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def require_sums(values: Floats, name: str, path: Path | None) -> None:
    """Raise ContainerError unless all values are finite and not negative."""
    # NaN makes both comparisons false.
    if values.size and values.min() >= 0 and values.max() < np.inf:
        return
    bad = np.flatnonzero(~((values >= 0) & (values < np.inf)))
    raise ContainerError(
        "an importance entry that is not a sum of squares" if bad.size else "an empty entry",
        file=path,
        tensor=name,
        value=f"{values.flat[bad[0]]} at {int(bad[0])}" if bad.size else "0 sums",
        rule="finite and not negative",
        hint="the run that made the file overflowed, or the file is damaged",
    )


def whole_counts(counts: Numbers, name: str, path: Path | None) -> Counts:
    """Counts as whole numbers; ContainerError for one that is not a number of tokens."""
    good = (counts >= 0) & (counts < 2**62)
    if not counts.size or not good.all():
        raise ContainerError(
            "an importance entry whose counts are not numbers of tokens",
            file=path,
            tensor=name,
            value=f"{counts[~good][0]}" if counts.size else "no counts",
            rule="finite and not negative",
            hint="the file is damaged",
        )
    return np.rint(counts).astype(np.int64)


def require_no_sums_where_cold(sums: Floats, counts: Counts, name: str, path: Path | None) -> None:
    """Raise ContainerError where something was summed over no token."""
    odd = np.flatnonzero((counts == 0) & (sums != 0).any(axis=1))
    if odd.size:
        raise ContainerError(
            "an importance entry with sums but no tokens",
            file=path,
            tensor=name,
            value=f"count 0 for expert {int(odd[0])}",
            rule="sums over no token are 0",
            hint="the file is damaged, or was merged by a tool that lost its counts",
        )
