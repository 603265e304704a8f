"""Codecs whose rows are runs of equal blocks: the loops over chunks and the importance weights.

Chunks bound the temporary memory, a few times the sizes below, whatever the tensor's size.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np

from quantkit.codecs.base import (
    DATA,
    Bytes,
    Codec,
    Doubles,
    Floats,
    data_part,
    require_magnitude,
    require_whole_rows,
)
from quantkit.errors import FormatError

DECODE_CHUNK_ELEMENTS = 1 << 17  # 512 KiB of output: stays in the second-level cache
ENCODE_CHUNK_ELEMENTS = 1 << 16  # the search re-reads a chunk for every candidate scale

# Every channel counts at least this fraction of the mean one. A channel that calibration never
# reached then decides nothing while others do, but is still rounded sensibly, and a block without
# any importance falls back to plain squared error instead of dividing by zero.
LEAST_RELATIVE_IMPORTANCE = 1e-6


class BlockCodec(Codec):
    """A type stored as `data`: blocks of `type_size` bytes, rows one after the other."""

    @abstractmethod
    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        """Decode (n, type_size) bytes into `out`, (n, block_size) float32."""

    def decode(self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> Floats:
        data = data_part(self.qtype, parts, shape)
        blocks = data.reshape(-1, self.qtype.type_size)
        out = np.empty((len(blocks), self.qtype.block_size), np.float32)
        step = max(1, DECODE_CHUNK_ELEMENTS // self.qtype.block_size)
        for start in range(0, len(blocks), step):
            chunk = out[start : start + step]
            with np.errstate(over="ignore", invalid="ignore"):
                self.decode_blocks(blocks[start : start + step], chunk)
                total = np.add.reduce(chunk, axis=None)
            # One sum finds NaN and infinity; it may also overflow, so the elements decide.
            if not math.isfinite(total):
                self._require_finite(chunk, start, shape)
        return out.reshape(shape)

    def _require_finite(self, chunk: Floats, start: int, shape: tuple[int, ...]) -> None:
        bad = np.flatnonzero(~np.isfinite(chunk))
        if not bad.size:
            return
        block_size = self.qtype.block_size
        position = np.unravel_index(start * block_size + int(bad[0]), shape)
        raise FormatError(
            f"a {self.qtype.name} block that decodes to {chunk.reshape(-1)[bad[0]]}",
            value=f"block {start + int(bad[0]) // block_size}, "
            f"index {tuple(int(i) for i in position)}",
            rule="every scale must be finite",
            hint="the file is damaged, or was written by a broken quantizer",
        )


class SearchingCodec(BlockCodec):
    """A block codec with an importance-aware encoder."""

    can_encode = True

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude that a block can store."""

    @abstractmethod
    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        """Encode (block_size, n) values to (n, type_size) bytes.

        `weight` has the shape of `values`; None means 1 everywhere.
        """

    def encode(self, values: Floats, importance: Doubles | None) -> dict[str, np.ndarray]:
        require_whole_rows(self.qtype, values.shape)
        blocks = values.reshape(-1, self.qtype.block_size)
        out = np.empty((len(blocks), self.qtype.type_size), np.uint8)
        if not len(blocks):
            return {DATA: out.reshape(-1)}
        for part, weights in _matrices(values, importance, self.qtype.block_size):
            self._encode_matrix(blocks, part, weights, out, values.shape)
        return {DATA: out.reshape(-1)}

    def _encode_matrix(
        self,
        blocks: Floats,
        part: range,
        weights: Floats | None,
        out: Bytes,
        shape: tuple[int, ...],
    ) -> None:
        block_size = self.qtype.block_size
        step = max(1, ENCODE_CHUNK_ELEMENTS // block_size)
        for start in range(part.start, part.stop, step):
            stop = min(start + step, part.stop)
            require_magnitude(
                blocks[start:stop],
                self.largest,
                self.qtype,
                first=start * block_size,
                shape=shape,
            )
            columns = as_columns(blocks[start:stop])
            weight = None
            if weights is not None:
                within_row = np.arange(start - part.start, stop - part.start) % len(weights)
                weight = as_columns(weights[within_row])
            out[start:stop] = self.encode_columns(columns, weight)[: stop - start]


def as_columns(blocks: Floats) -> Floats:
    """(n, block_size) as contiguous (block_size, n); one block is doubled.

    With a single column numpy would sum along memory, in another order than for many columns.
    """
    if len(blocks) == 1:
        blocks = np.repeat(blocks, 2, axis=0)
    return np.ascontiguousarray(blocks.T)


def _matrices(
    values: Floats, importance: Doubles | None, block_size: int
) -> Iterator[tuple[range, Floats | None]]:
    """(blocks of one matrix, its weights per block of a row) for each matrix that shares weights.

    Weights are (blocks per row, block_size), relative to the mean importance; None where nothing
    was ever measured, as for an expert that no token reached.
    """
    n_blocks = values.size // block_size
    if importance is None:
        yield range(n_blocks), None
        return
    groups = importance.reshape(-1, importance.shape[-1])
    per_group = n_blocks // len(groups)
    for index, group in enumerate(groups):
        part = range(index * per_group, (index + 1) * per_group)
        mean = float(group.mean())
        if mean == 0:
            yield part, None
            continue
        weights = (group / mean + LEAST_RELATIVE_IMPORTANCE).astype(np.float32)
        yield part, weights.reshape(-1, block_size)


def checked_importance(values: Floats, importance: np.ndarray | None) -> Doubles | None:
    """Importance as float64 of shape (row,) or (n_expert, row); FormatError when it is neither.

    It must be finite and not negative: the mean square of each input channel.
    """
    if importance is None:
        return None
    weights = np.asarray(importance, np.float64)
    row_length = values.shape[-1] if values.ndim else 1
    allowed: list[tuple[int, ...]] = [(row_length,)]
    if values.ndim == 3:
        allowed.append((values.shape[0], row_length))
    if weights.shape not in allowed:
        raise FormatError(
            "importance that does not fit the tensor",
            value=f"shape {weights.shape} for values of shape {values.shape}",
            rule=" or ".join(str(shape) for shape in allowed),
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        position = np.unravel_index(int(bad[0]), weights.shape)
        raise FormatError(
            "importance that is not a mean square",
            value=f"{weights.reshape(-1)[bad[0]]} at index {tuple(int(i) for i in position)}",
            rule="finite and not negative",
            hint="channels without any token should have importance 0",
        )
    return weights
