"""Encode one tensor block by block, in threads, and measure what that costs.

Blocks and their order do not depend on the number of threads, so neither do the bytes nor the
errors. In memory are a few blocks for each thread, whatever the tensor's size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantkit import codecs
from quantkit.containers.imatrix import MeanSquares
from quantkit.errors import FormatError
from quantkit.qtypes import QType
from quantkit.quantize.plan import Encoding
from quantkit.quantize.source import Block, Floats

EXTRA_BLOCKS = 1
"""Blocks that wait for the file while every thread has one of its own."""


class Sums(NamedTuple):
    """Sums of squares over weights: of the change, of the values, and both weighted."""

    change: float = 0.0
    value: float = 0.0
    weighted_change: float = 0.0
    weighted_value: float = 0.0


@dataclass(frozen=True)
class TensorError:
    """`relative` is sum (x - y)^2 / sum x^2; `weighted` the same with importance as weights."""

    relative: float
    weighted: float | None


@dataclass
class Tally:
    """Sums over the blocks of a tensor, in their order."""

    weighted: bool
    sums: list[Sums] = field(default_factory=list)

    def error(self) -> TensorError:
        """Relative errors of what was added; a tensor of zeros has none."""
        total = [sum(column) for column in zip(*self.sums, strict=True)] or [0.0] * 4
        relative = total[0] / total[1] if total[1] else 0.0
        weighted = total[2] / total[3] if total[3] else 0.0
        return TensorError(relative, weighted if self.weighted else None)


def encoded(
    e: Encoding, means: MeanSquares | None, tally: Tally, pool: ThreadPoolExecutor, n_threads: int
) -> Iterator[memoryview]:
    """The bytes of `e` in its new type, in order; what they cost goes to `tally`."""
    waiting: deque[Future[tuple[memoryview, Sums]]] = deque()

    def first() -> memoryview:
        data, sums = waiting.popleft().result()
        tally.sums.append(sums)
        return data

    try:
        for block in e.entry.blocks():
            waiting.append(pool.submit(_encode, e, block, _row(e, means, block)))
            if len(waiting) > n_threads + EXTRA_BLOCKS:
                yield first()
        while waiting:
            yield first()
    finally:
        for future in waiting:
            future.cancel()


def _row(e: Encoding, means: MeanSquares | None, block: Block) -> Floats | None:
    """Importance (columns,) of the expert that the block belongs to."""
    if means is None:
        return None
    expert = block.first // e.entry.rows_per_matrix if len(means.values) > 1 else 0
    return means.values[expert]


def _encode(e: Encoding, block: Block, importance: Floats | None) -> tuple[memoryview, Sums]:
    try:
        values = block.load()
        _require_finite(values, e, block)
        data = codecs.encode(e.qtype, values, importance, threads=1)["data"]
    except FormatError as error:
        error.file, error.tensor = str(e.entry.path), e.entry.name
        raise
    sums = _sums(e.qtype, values, data, importance)
    return np.ascontiguousarray(data).data, sums


def _require_finite(values: Floats, e: Encoding, block: Block) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:
        return
    flat = block.first * e.entry.shape[-1] + int(bad[0])
    index = tuple(int(i) for i in np.unravel_index(flat, e.entry.shape))
    raise FormatError(
        "a weight that is not finite",
        value=f"{values.flat[bad[0]]} at index {index}",
        rule="finite weights",
        hint="the file is damaged, or the model overflowed when it was saved",
    )


def _sums(qtype: QType, values: Floats, data: np.ndarray, importance: Floats | None) -> Sums:
    decoded = codecs.decode(qtype, {"data": data}, values.shape, threads=1)
    change, value = _column_squares(decoded - values), _column_squares(values)
    sums = Sums(float(change.sum()), float(value.sum()))
    if importance is None:
        return sums
    weights = importance.astype(np.float64)
    return sums._replace(
        weighted_change=float(change @ weights), weighted_value=float(value @ weights)
    )


def _column_squares(values: Floats) -> npt.NDArray[np.float64]:
    # Not a matrix product: those may sum in another order with another number of threads.
    return np.einsum("ij,ij->j", values, values, dtype=np.float64)
