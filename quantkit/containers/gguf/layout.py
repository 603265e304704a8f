"""From the tensor records of a header to byte ranges, with the rules of GGUF's data section.

Tensors stand one after the other in header order, each padded to the alignment: the offset of a
tensor is the sum of the padded sizes before it (llama.cpp refuses anything else). That rule also
gives the size of a tensor whose type we do not know: it reaches to the next offset, or to the end
of the file, and can be carried along without understanding it.
"""

from __future__ import annotations

from math import prod

from quantkit.containers.base import TensorEntry
from quantkit.containers.gguf.header import MAGIC, Header, TensorRecord, padded
from quantkit.containers.ranges import ByteRange, read_range
from quantkit.errors import ContainerError
from quantkit.qtypes import QType, by_gguf_id

_FETCH_AGAIN = "the download is incomplete; fetch the file again"
_WRITER_FAULT = "the tool that wrote the file is at fault; write it again"


def place_tensors(header: Header) -> list[TensorEntry]:
    """The tensors of one file as byte ranges, in header order; checks every rule above."""
    entries: list[TensorEntry] = []
    expected = 0
    for index, record in enumerate(header.tensors):
        qtype = by_gguf_id(record.type_id)
        _check_row(header, record, qtype)
        _check_offset(header, record, expected)
        nbytes = _nbytes(header, index, qtype)
        start = header.data_start + record.offset
        if start + nbytes > header.file_bytes or (nbytes == 0 and prod(record.ne) > 0):
            raise _truncated(header, record, start + nbytes)
        expected = record.offset + padded(nbytes, header.alignment)
        shape = tuple(reversed(record.ne))
        entries.append(TensorEntry(record.name, shape, qtype, header.path, start, nbytes))
    _check_last_opaque(header, entries)
    _check_not_joined(header, entries)
    return entries


def _check_row(header: Header, record: TensorRecord, qtype: QType) -> None:
    row = record.ne[0] if record.ne else 1
    if not qtype.is_opaque and not qtype.fits_row(row):
        raise ContainerError(
            "rows that do not fill whole blocks",
            file=header.path,
            tensor=record.name,
            value=f"{qtype.name} with {row} elements a row",
            rule=f"the row length is a multiple of {qtype.block_size}",
            hint=_WRITER_FAULT,
        )


def _check_offset(header: Header, record: TensorRecord, expected: int) -> None:
    if record.offset == expected:
        return
    off_grid = record.offset % header.alignment != 0
    what = (
        f"an offset that is not a multiple of the alignment {header.alignment}"
        if off_grid
        else "a tensor that overlaps the one before it"
        if record.offset < expected
        else "a hole in the data section before a tensor"
    )
    raise ContainerError(
        what,
        file=header.path,
        tensor=record.name,
        value=f"offset {record.offset}",
        rule=f"offset {expected}: the tensors before it, each padded to {header.alignment}",
        hint=_WRITER_FAULT,
    )


def _nbytes(header: Header, index: int, qtype: QType) -> int:
    record = header.tensors[index]
    if not qtype.is_opaque:
        return qtype.nbytes(prod(record.ne))
    if prod(record.ne) == 0:
        return 0
    if index + 1 < len(header.tensors):
        following = header.tensors[index + 1]
        if following.offset <= record.offset:
            _check_offset(header, following, record.offset + header.alignment)
        return following.offset - record.offset
    return max(0, header.file_bytes - header.data_start - record.offset)


def _truncated(header: Header, record: TensorRecord, end: int) -> ContainerError:
    return ContainerError(
        "the file ends inside a tensor",
        file=header.path,
        tensor=record.name,
        value=f"{end - header.file_bytes} bytes of it are missing (file: {header.file_bytes})"
        if end > header.file_bytes
        else f"all of it is missing (file: {header.file_bytes} bytes)",
        rule=f"the tensor ends at byte {end}" if end > header.file_bytes else None,
        hint=_FETCH_AGAIN,
    )


def _check_last_opaque(header: Header, entries: list[TensorEntry]) -> None:
    """A last tensor of an unknown type reaches to the end of the file, wherever that is.

    Whether the file is cut short, or has something behind the tensor, shows only beside another
    tensor of the same type and row length.
    """
    if not entries or not entries[-1].qtype.is_opaque or entries[-1].nbytes == 0:
        return
    last = entries[-1]
    peers = (e for e in entries[:-1] if e.qtype == last.qtype and e.shape[-1:] == last.shape[-1:])
    peer = max(peers, key=lambda e: e.n_elements, default=None)
    if peer is None or peer.n_elements == 0:
        return
    least = (peer.nbytes - header.alignment + 1) * last.n_elements // peer.n_elements
    most = padded(peer.nbytes * last.n_elements // peer.n_elements, header.alignment)
    if least <= last.nbytes <= most:
        return
    short = last.nbytes < least
    raise ContainerError(
        "the file ends inside a tensor" if short else "more bytes than the last tensor has",
        file=header.path,
        tensor=last.name,
        value=f"{last.nbytes} bytes",
        rule=f"{least} to {most}: {peer.name} of the same type and row takes {peer.nbytes}",
        hint=_FETCH_AGAIN if short else "was something joined to this file with cat?",
    )


def _check_not_joined(header: Header, entries: list[TensorEntry]) -> None:
    """Shards joined with `cat` parse as the first one, with the rest as a silent tail."""
    end = entries[-1].offset + entries[-1].nbytes if entries else header.data_start
    for start in {end, padded(end, header.alignment)}:
        inside = start + len(MAGIC) <= header.file_bytes
        if inside and read_range(ByteRange(header.path, start, len(MAGIC))) == MAGIC:
            raise ContainerError(
                "a second GGUF begins inside this file",
                file=header.path,
                value=f"magic GGUF at byte {start} of {header.file_bytes}",
                rule="one file holds one GGUF",
                hint="shards must not be joined with cat; keep them apart and open the first one, "
                "or merge them with llama-gguf-split --merge",
            )
