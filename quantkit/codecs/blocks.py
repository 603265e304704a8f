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
    Halves,
    beyond_magnitude,
    bfloat_bits,
    data_part,
    new_output,
    require_magnitude,
    require_whole_rows,
)
from quantkit.errors import FormatError
from quantkit.native import cpu

DECODE_CHUNK_ELEMENTS = 1 << 17  # 512 KiB of output: stays in the second-level cache
ENCODE_CHUNK_ELEMENTS = 1 << 16  # the search re-reads a chunk for every candidate scale

# Every channel counts at least this fraction of the mean one. A channel that calibration never
# reached then decides nothing while others do, but is still rounded sensibly, and a block without
# any importance falls back to plain squared error instead of dividing by zero.
LEAST_RELATIVE_IMPORTANCE = 1e-6


class BlockCodec(Codec):
    """A type stored as `data`: blocks of `type_size` bytes, rows one after the other.

    The native library decodes where it can; `decode_blocks` is the reference that it is held to.
    """

    @property
    def is_native(self) -> bool:
        return cpu.can_decode(self.qtype.gguf_id)

    @abstractmethod
    def decode_blocks(self, blocks: Bytes, out: Floats) -> None:
        """Decode (n, type_size) bytes into `out`, (n, block_size) float32."""

    def decode(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Floats:
        data = data_part(self.qtype, parts, shape)
        out = new_output(math.prod(shape), np.float32)
        suspect = cpu.try_decode(self.qtype.gguf_id, data, out, fresh=True, threads=threads)
        if suspect is None:
            self._decode_by_reference(data, out, shape)
        elif suspect:
            self._require_finite(out.reshape(-1, self.qtype.block_size), 0, shape)
        return out.reshape(shape)

    def decode_bfloat(
        self, parts: Mapping[str, np.ndarray], shape: tuple[int, ...], threads: int | None = None
    ) -> Halves:
        data = data_part(self.qtype, parts, shape)
        out = new_output(math.prod(shape), np.uint16)
        suspect = cpu.try_decode(self.qtype.gguf_id, data, out, fresh=True, threads=threads)
        if suspect is None or suspect:  # by way of float32, which names the block at fault
            return bfloat_bits(self.decode(parts, shape, threads))
        return out.reshape(shape)

    def _decode_by_reference(self, data: Bytes, flat: Floats, shape: tuple[int, ...]) -> None:
        blocks = data.reshape(-1, self.qtype.type_size)
        out = flat.reshape(-1, self.qtype.block_size)
        step = max(1, DECODE_CHUNK_ELEMENTS // self.qtype.block_size)
        for start in range(0, len(blocks), step):
            chunk = out[start : start + step]
            with np.errstate(over="ignore", invalid="ignore"):
                self.decode_blocks(blocks[start : start + step], chunk)
                total = np.add.reduce(chunk, axis=None)
            # One sum finds NaN and infinity; it may also overflow, so the elements decide.
            if not math.isfinite(total):
                self._require_finite(chunk, start, shape)

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


class EncodingCodec(BlockCodec):
    """A block codec with an importance-aware encoder, native where the library has one."""

    @property
    def is_native(self) -> bool:
        operation = cpu.can_encode if self.can_encode else cpu.can_decode
        return operation(self.qtype.gguf_id)

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude that a block can store."""

    @abstractmethod
    def encode_matrix(
        self,
        blocks: Floats,
        weights: Floats | None,
        out: Bytes,
        first: int,
        shape: tuple[int, ...],
    ) -> None:
        """The reference: encode (n, block_size) blocks of whole rows into `out`, (n, type_size).

        `weights` (row,) belongs to every row, None means 1 everywhere. `first` is the number of
        blocks[0] in the tensor of `shape`, for errors.
        """

    def encode(
        self, values: Floats, importance: Doubles | None, threads: int | None = None
    ) -> dict[str, np.ndarray]:
        require_whole_rows(self.qtype, values.shape)
        blocks = values.reshape(-1, self.qtype.block_size)
        out = np.empty((len(blocks), self.qtype.type_size), np.uint8)
        if not len(blocks):
            return {DATA: out.reshape(-1)}
        native = cpu.can_encode(self.qtype.gguf_id)
        for part, weights in matrices(values, importance, self.qtype.block_size):
            matrix, packed = blocks[part.start : part.stop], out[part.start : part.stop]
            if native:
                rows = np.ascontiguousarray(matrix).reshape(-1, values.shape[-1])
                self._encode_natively(rows, weights, packed, part.start, values.shape, threads)
            else:
                self.encode_matrix(matrix, weights, packed, part.start, values.shape)
        return {DATA: out.reshape(-1)}

    def _encode_natively(
        self,
        rows: Floats,
        weights: Floats | None,
        out: Bytes,
        first: int,
        shape: tuple[int, ...],
        threads: int | None,
    ) -> None:
        assert self.qtype.gguf_id is not None
        bad = cpu.encode(
            self.qtype.gguf_id, rows, weights, out, largest=self.largest, threads=threads
        )
        if bad is not None:
            index = first * self.qtype.block_size + bad
            value = rows.reshape(-1)[bad]
            raise beyond_magnitude(value, index, self.largest, self.qtype, shape)


class SearchingCodec(EncodingCodec):
    """An encoder whose reference searches many blocks at once, one in each column."""

    @property
    def can_encode(self) -> bool:
        return True

    @abstractmethod
    def encode_columns(self, values: Floats, weight: Floats | None) -> Bytes:
        """Encode (block_size, n) values to (n, type_size) bytes.

        `weight` has the shape of `values`; None means 1 everywhere.
        """

    def encode_matrix(
        self,
        blocks: Floats,
        weights: Floats | None,
        out: Bytes,
        first: int,
        shape: tuple[int, ...],
    ) -> None:
        block_size = self.qtype.block_size
        of_row = None if weights is None else weights.reshape(-1, block_size)
        step = max(1, ENCODE_CHUNK_ELEMENTS // block_size)
        for start in range(0, len(blocks), step):
            chunk = blocks[start : start + step]
            where = (first + start) * block_size
            require_magnitude(chunk, self.largest, self.qtype, first=where, shape=shape)
            weight = None
            if of_row is not None:
                within_row = np.arange(start, start + len(chunk)) % len(of_row)
                weight = as_columns(of_row[within_row])
            packed = self.encode_columns(as_columns(chunk), weight)
            out[start : start + step] = packed[: len(chunk)]


def as_columns(blocks: Floats) -> Floats:
    """(n, block_size) as contiguous (block_size, n); one block is doubled.

    With a single column numpy would sum along memory, in another order than for many columns.
    """
    if len(blocks) == 1:
        blocks = np.repeat(blocks, 2, axis=0)
    return np.ascontiguousarray(blocks.T)


def matrices(
    values: Floats, importance: Doubles | None, block_size: int
) -> Iterator[tuple[range, Floats | None]]:
    """(blocks of one matrix, weights (row,) of its rows) for each matrix that shares weights.

    Weights are relative to the mean importance; None where nothing was ever measured, as for an
    expert that no token reached.
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
        yield part, (group / mean + LEAST_RELATIVE_IMPORTANCE).astype(np.float32)


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
