"""Open a GGUF: metadata on demand, tensors as byte ranges over all shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.containers.base import TensorEntry
from quantkit.containers.gguf.header import PairSlot, parse_header
from quantkit.containers.gguf.layout import place_tensors
from quantkit.containers.gguf.split import SPLIT_PREFIX, find_model_file, open_shards
from quantkit.containers.gguf.values import ValueType, unpack_kv
from quantkit.containers.ranges import ByteRange, read_range

NOT_CARRIED = (SPLIT_PREFIX, "quantkit.")


class Metadata(Mapping[str, Any]):
    """The key-value pairs of a file, in file order; values are decoded at each access.

    Arrays come back as fresh lists: whoever needs a vocabulary twice keeps it.
    """

    def __init__(self, path: Path, slots: Mapping[str, PairSlot]) -> None:
        self._path = path
        self._slots = slots

    def __getitem__(self, key: str) -> Any:
        return unpack_kv(self.raw(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: object) -> bool:
        return key in self._slots

    def raw(self, key: str) -> bytes:
        """The pair exactly as in the file: key length, key, type, value."""
        slot = self._slots[key]
        if slot.raw is not None:
            return slot.raw
        return read_range(ByteRange(self._path, slot.start, slot.nbytes))

    def value_type(self, key: str) -> ValueType:
        """Type of the value; `ARRAY` for arrays, see `item_type`."""
        return self._slots[key].value_type

    def item_type(self, key: str) -> ValueType | None:
        """Type of the items of an array, None for a plain value."""
        return self._slots[key].item_type

    def array_length(self, key: str) -> int:
        """Number of items of an array (1 for a plain value), without decoding it."""
        return self._slots[key].n_items

    def carried(self) -> list[bytes]:
        """The raw pairs that a file made from this one keeps: all that describe the model.

        Left out are `split.*`, which describes the files, and `quantkit.*`, an older provenance.
        """
        return [self.raw(key) for key in self if not key.startswith(NOT_CARRIED)]


@dataclass(frozen=True)
class GGUFFile:
    """An opened model: `path` is its first shard, `tensors` is in file order over all shards.

    `version`, `alignment` and `metadata` are those of the first shard.
    """

    path: Path
    shards: tuple[Path, ...]
    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, TensorEntry]


def open_gguf(path: Path) -> GGUFFile:
    """Open a file, any shard of a split model, or a folder that holds one model.

    Only headers are read. Raises `ContainerError` for anything that is not a complete, consistent
    GGUF of version 2 or 3; tensor types that we do not know are carried as opaque bytes.
    """
    first = parse_header(find_model_file(Path(path)))
    # Before the other shards are looked for: shards joined with `cat` show here.
    entries = place_tensors(first)
    headers = open_shards(first, parse_header)
    for header in headers:
        entries += [] if header is first else place_tensors(header)
    # Shards keep their order, and `first` is the one that was named, not always shard 0.
    by_shard = {header.path: number for number, header in enumerate(headers)}
    entries.sort(key=lambda entry: by_shard[entry.path])
    main = headers[0]
    return GGUFFile(
        path=main.path,
        shards=tuple(by_shard),
        version=main.version,
        alignment=main.alignment,
        metadata=Metadata(main.path, main.pairs),
        tensors={entry.name: entry for entry in entries},
    )
