"""A tensor by role: where its stored pieces are, and how to decode all of it or a part.

A role may be one stored tensor, some rows of one (fused projections), a stack of them (experts
stored one by one) or their concatenation (a sharded table). Decoding happens on demand and only
for what is asked: one expert, some rows, or everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

import numpy as np
import torch
from torch import Tensor

from quantkit import codecs
from quantkit.containers.base import TensorEntry
from quantkit.errors import FormatError
from quantkit.qtypes import QType


def _same(value: Tensor) -> Tensor:
    return value


def _tensor(values: np.ndarray) -> Tensor:
    """A tensor over `values`, copied where they are a read-only view of the file."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


@contextmanager
def naming(entry: TensorEntry) -> Iterator[None]:
    """Name file and tensor in a FormatError, which codecs cannot know."""
    try:
        yield
    except FormatError as error:
        error.file, error.tensor = str(entry.path), entry.name
        raise


def _decode(entry: TensorEntry, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    with naming(entry):
        return codecs.decode(entry.qtype, {"data": data}, shape)


def decode_rows(entry: TensorEntry, first: int, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """Decode `count` consecutive rows (all axes but the last flattened) as float32 of `shape`."""
    row_bytes = entry.nbytes // max(1, prod(entry.shape[:-1]))
    data = entry.parts()["data"][first * row_bytes : (first + count) * row_bytes]
    return _decode(entry, data, shape)


@dataclass(frozen=True)
class Piece:
    """Rows `rows` of axis -2 of a stored tensor; None is all of it."""

    entry: TensorEntry
    rows: range | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece."""
        if self.rows is None:
            return self.entry.shape
        return (*self.entry.shape[:-2], len(self.rows), self.entry.shape[-1])

    @property
    def nbytes(self) -> int:
        """Stored bytes of the piece."""
        return self.entry.nbytes // prod(self.entry.shape[:-1]) * prod(self.shape[:-1])

    def decode(self) -> np.ndarray:
        """All values, float32."""
        if self.rows is None:
            return _decode(self.entry, self.entry.parts()["data"], self.entry.shape)
        if len(self.shape) == 2:
            return decode_rows(self.entry, self.rows.start, len(self.rows), self.shape)
        return np.stack([self.slice(i) for i in range(self.shape[0])])

    def slice(self, index: int) -> np.ndarray:
        """Values of slice `index` of axis 0 of a 3-D piece, as (rows, columns)."""
        stride = self.entry.shape[-2]
        rows = self.rows or range(stride)
        return decode_rows(self.entry, index * stride + rows.start, len(rows), self.shape[1:])

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Values of scattered `rows` (n,) of a 2-D piece, as (n, columns)."""
        n_rows, columns = self.shape
        stored = self.entry.parts()["data"].reshape(n_rows, -1)[rows]
        return _decode(self.entry, stored.ravel(), (len(rows), columns))


@dataclass(frozen=True)
class TensorHandle:
    """One role of one layer. `stacked` tells a stack of pieces from a concatenation."""

    role: str
    pieces: tuple[Piece, ...]
    stacked: bool = False
    effective: Callable[[Tensor], Tensor] = field(default=_same)
    """Stored values -> effective values, of the whole tensor."""
    scale: TensorEntry | None = None
    """What decoded values are multiplied by: one factor, or one for each expert (axis 0)."""
    unused: tuple[TensorEntry, ...] = ()
    """Tensors that belong to this one and do not change its values."""

    @property
    def qtype(self) -> QType:
        """Type of the stored values (of the first piece; pieces are alike)."""
        return self.pieces[0].entry.qtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Stored shape."""
        first = self.pieces[0].shape
        if self.stacked:
            return (len(self.pieces), *first)
        if len(self.pieces) == 1:
            return first
        return (sum(piece.shape[0] for piece in self.pieces), *first[1:])

    @property
    def companions(self) -> tuple[TensorEntry, ...]:
        """Tensors beside the weight that are of no use without it."""
        return self.unused if self.scale is None else (self.scale, *self.unused)

    @property
    def nbytes(self) -> int:
        """Stored bytes, with those of the companions."""
        pieces = sum(piece.nbytes for piece in self.pieces)
        return pieces + sum(entry.nbytes for entry in self.companions)

    def _factors(self) -> np.ndarray:
        assert self.scale is not None
        found = _decode(self.scale, self.scale.parts()["data"], self.scale.shape).reshape(-1)
        if not np.isfinite(found).all():
            raise FormatError(
                "a scale that is not finite",
                file=self.scale.path,
                tensor=self.scale.name,
                value=float(found[~np.isfinite(found)][0]),
                rule="one finite factor for the tensor or for each expert",
                hint="the file is damaged or was quantized wrongly; get it again",
            )
        return found

    def _scaled(self, stored: np.ndarray) -> np.ndarray:
        """All stored values times their factors."""
        if self.scale is None:
            return stored
        factors = self._factors()
        return stored * factors.reshape(-1, *(1 for _ in stored.shape[1:]))

    def value(self) -> Tensor:
        """The effective value, float32, on the CPU."""
        parts = [piece.decode() for piece in self.pieces]
        if self.stacked:
            stored = np.stack(parts)
        else:
            stored = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self.effective(_tensor(self._scaled(stored)))

    def expert(self, number: int) -> Tensor:
        """One expert (rows, columns) of an expert tensor, float32."""
        if self.stacked:
            return _tensor(self.pieces[number].decode())
        stored = self.pieces[0].slice(number)
        if self.scale is None:
            return _tensor(stored)
        factors = self._factors()
        return _tensor(stored * factors[number if len(factors) > 1 else 0])

    def rows(self, rows: Tensor) -> Tensor:
        """Scattered rows (n,) of a table as (n, columns), float32; each is decoded once."""
        unique, inverse = np.unique(rows.cpu().numpy(), return_inverse=True)
        out = np.empty((len(unique), self.shape[1]), dtype=np.float32)
        start = 0
        for piece in self.pieces:
            stop = start + piece.shape[0]
            own = slice(*np.searchsorted(unique, (start, stop)))
            if own.stop > own.start:
                out[own] = piece.take(unique[own] - start)
            start = stop
        out = self._scaled(out)
        return torch.from_numpy(out)[torch.from_numpy(inverse.reshape(-1))]
