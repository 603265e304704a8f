"""The form before GGUF, `.dat`, which older tools and many published files have.

All numbers little-endian, no padding:

    i32 n_entries
    n_entries x  i32 name length, name, i32 n_calls, i32 n_values, f32 values[n_values]
    i32 n_chunks, i32 length, dataset name                            (optional)

A value is the mean square times `n_calls`; experts follow each other without counts of their own,
and cold ones hold ones (llama.cpp, common/imatrix-loader.cpp and tools/imatrix/imatrix.cpp).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from quantkit.containers.imatrix.checks import require_sums, whole_counts
from quantkit.containers.imatrix.entries import Entry, Floats, Importance
from quantkit.errors import ContainerError
from quantkit.files import read_regular, write_bytes_atomic

I32 = struct.Struct("<i")
MAX_NAME_BYTES = 1 << 12


class _Cursor:
    """Reads fields one after the other; a length that the file cannot hold is an error."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.position = data, path, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, nbytes: int, what: str) -> bytes:
        if not 0 <= nbytes <= self.left:
            raise ContainerError(
                "not an importance file, or a truncated one",
                file=self.path,
                value=f"{what} of {nbytes} bytes at {self.position}, {self.left} left",
                rule="a GGUF with general.type = imatrix, or llama.cpp's older .dat",
                hint="check the path, or fetch the file again",
            )
        self.position += nbytes
        return self.data[self.position - nbytes : self.position]

    def number(self, what: str, least: int, most: int) -> int:
        found = I32.unpack(self.take(I32.size, what))[0]
        if not least <= found <= most:
            raise ContainerError(
                "not an importance file, or a damaged one",
                file=self.path,
                value=f"{what} {found} at {self.position - I32.size}",
                rule=f"from {least} to {most}",
                hint="check the path, or fetch the file again",
            )
        return int(found)

    def text(self, nbytes: int, what: str) -> str:
        return self.take(nbytes, what).decode("utf-8", "surrogateescape")


def read_legacy(path: Path) -> Importance:
    """Read the `.dat` at `path`; ContainerError if it is none or a value is bad."""
    cursor = _Cursor(read_regular(path), path)
    entries: dict[str, Entry] = {}
    for _ in range(cursor.number("number of entries", 1, cursor.left // 16 + 1)):
        name = cursor.text(cursor.number("name length", 1, MAX_NAME_BYTES), "name")
        if name in entries:
            raise ContainerError("an entry that stands twice", file=path, tensor=name)
        n_calls = cursor.number("number of calls", 0, 2**31 - 1)
        n_values = cursor.number("number of values", 1, max(1, cursor.left // 4))
        values = np.frombuffer(cursor.take(4 * n_values, "values"), "<f4")
        require_sums(values, name, path)
        # Without calls the values are means already.
        counts = whole_counts(np.array([max(1, n_calls)], np.float64), name, path)
        entries[name] = Entry(values.astype(np.float32)[None], counts, scaled=True)
    chunk_count = 0
    datasets: tuple[str, ...] = ()
    if cursor.left:
        chunk_count = cursor.number("number of chunks", 0, 2**31 - 1)
        length = cursor.number("length of the dataset's name", 0, cursor.left)
        datasets = (cursor.text(length, "name of the dataset"),) if length else ()
    return Importance(dict(sorted(entries.items())), datasets, chunk_count, 0, path)


def write_legacy(importance: Importance, path: Path) -> None:
    """Write the `.dat`; it keeps no counts, and of the texts only the last one's name."""
    size = max(1, importance.chunk_size)
    entries = {n: e for n, e in importance.entries.items() if e.scaled or e.counts.any()}
    parts = [I32.pack(len(entries))]
    for name, entry in sorted(entries.items()):
        n_calls = int(entry.counts.max())
        if not entry.scaled:
            n_calls = -(-n_calls // size)
        raw = name.encode("utf-8", "surrogateescape")
        values = entry.sums if entry.scaled else _scaled(entry, n_calls)
        parts += [I32.pack(len(raw)), raw, I32.pack(n_calls), I32.pack(values.size)]
        parts.append(values.astype("<f4").tobytes())
    dataset = (importance.datasets or ("",))[-1].encode("utf-8", "surrogateescape")
    parts += [I32.pack(importance.chunk_count), I32.pack(len(dataset)), dataset]
    write_bytes_atomic(path, b"".join(parts))


def _scaled(entry: Entry, n_calls: int) -> Floats:
    """Means times `n_calls`; ones stand for what no token reached."""
    means = np.ones(entry.sums.shape, np.float64)
    warm = (entry.counts > 0)[:, None]
    np.divide(entry.sums, entry.counts[:, None], out=means, where=warm)
    return (means * n_calls).astype(np.float32)
