"""What every container has in common: tensors are names for byte ranges, never values.

Shapes are row-major (numpy and torch order, the fastest axis last). GGUF lists its axes the other
way round (`ne`); the reader and the writer of GGUF turn them at the border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.containers.hashing import sha256_range
from quantkit.containers.ranges import ByteRange, map_range
from quantkit.errors import ContainerError
from quantkit.qtypes import QType

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ByteRange", "ByteSource", "TensorEntry", "TensorSpec", "spec_of"]

ByteSource = ByteRange | Callable[[], Iterable[bytes | bytearray | memoryview]]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of an opened container: `nbytes` bytes at `offset` of the shard `path`."""

    name: str
    shape: tuple[int, ...]
    qtype: QType
    path: Path
    offset: int
    nbytes: int

    @property
    def byte_range(self) -> ByteRange:
        """Where the bytes are."""
        return ByteRange(self.path, self.offset, self.nbytes)

    @property
    def n_elements(self) -> int:
        """Number of weights (1 for a scalar)."""
        return prod(self.shape)

    def parts(self) -> dict[str, np.ndarray]:
        """`{"data": ...}`: the raw bytes as a read-only memory-mapped uint8 vector (nbytes,)."""
        return {"data": map_range(self.byte_range)}

    def sha256(self) -> str:
        """Hex digest of the bytes, read from the file."""
        return sha256_range(self.byte_range)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to write: its bytes are a range of a file, or what a function yields.

    The function is called once while writing and must yield exactly `nbytes` bytes.
    """

    name: str
    shape: tuple[int, ...]
    qtype: QType
    source: ByteSource

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; a type we do not know has as many as its source."""
        if isinstance(self.source, ByteRange) and self.qtype.is_opaque:
            return self.source.nbytes
        if self.qtype.is_opaque:
            raise ContainerError(
                "the size of a tensor of an unknown type can only come from a file",
                tensor=self.name,
                value=self.qtype.name,
                hint="copy such tensors as byte ranges",
            )
        return self.qtype.nbytes(prod(self.shape))


def spec_of(entry: TensorEntry, name: str | None = None) -> TensorSpec:
    """The spec that copies `entry`, under another name if one is given."""
    return TensorSpec(name or entry.name, entry.shape, entry.qtype, entry.byte_range)


def check_spec(spec: TensorSpec) -> None:
    """Refuse a spec whose rows do not fill blocks or whose source has another size."""
    qtype = spec.qtype
    row = spec.shape[-1] if spec.shape else 1
    if not qtype.is_opaque and not qtype.fits_row(row):
        raise ContainerError(
            "rows that do not fill whole blocks",
            tensor=spec.name,
            value=f"{qtype.name} with {row} elements a row",
            rule=f"the row length is a multiple of {qtype.block_size}",
            hint="choose a type with a smaller block",
        )
    if isinstance(spec.source, ByteRange) and spec.source.nbytes != spec.nbytes:
        raise ContainerError(
            "source bytes that do not fit the shape",
            file=spec.source.path,
            tensor=spec.name,
            value=f"{spec.source.nbytes} bytes",
            rule=f"{qtype.name} {list(spec.shape)} takes {spec.nbytes} bytes",
        )
