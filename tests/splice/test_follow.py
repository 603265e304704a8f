"""What follows the writer of a hybrid: nothing wrong escapes it, and it ends with the writer."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from threading import active_count
from typing import BinaryIO

import pytest
from blake3 import blake3

from quantkit.artifacts.provenance import Provenance
from quantkit.artifacts.store import load
from quantkit.containers import ranges
from quantkit.containers.gguf import open_gguf
from quantkit.containers.gguf.contents import contents_of
from quantkit.containers.ranges import Copier
from quantkit.errors import ContainerError
from quantkit.splice import follow, trail, write_splice
from quantkit.splice.plan import SplicePlan

from .conftest import leave_nothing


def copier(then: Callable[[int, int, int], None]) -> tuple[Copier]:
    """The plain way to copy in small steps; `then(target, start, end)` follows each of them."""

    def copy(source: int, target: int, count: int, start: int, to: int) -> int:
        piece = os.pread(source, min(count, 1000), start)
        os.pwrite(target, piece, to)
        then(target, to, to + len(piece))
        return len(piece)

    return (copy,)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some kilobytes are followed as closely as those of many gigabytes."""
    monkeypatch.setattr(ranges, "COPY_STEP_BYTES", 3000)
    monkeypatch.setattr(trail, "WINDOW_BYTES", 5000)
    monkeypatch.setattr(trail, "BATCH_BYTES", 1111)
    monkeypatch.setattr(follow, "SYNC_STEP_BYTES", 20_000)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("limit", [None, 40_000, 1])
def test_following_closely_gives_the_same_hashes(
    plan: SplicePlan, out: Path, limit: int | None
) -> None:
    result = write_splice(plan, out, split_max_bytes=limit)
    for path, output in zip(result.paths, result.outputs, strict=True):
        data = path.read_bytes()
        assert (output.blake3, output.bytes) == (blake3(data).hexdigest(), len(data))
    sources = {tensor.entry.name: tensor.entry for tensor in plan.tensors}
    for origin in load(Provenance, result.provenance_path).tensors:
        data = sources[origin.name].parts()["data"].tobytes()
        assert origin.blake3 == blake3(data).hexdigest()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("where", [0, 1234, -1])
@pytest.mark.parametrize("name", ["blk.0.ffn_up_exps.weight", "blk.2.hc_ffn_down.weight"])
@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("hashed", [False, True])
def test_damage_on_the_way_is_found(
    plan: SplicePlan,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    where: int,
    limit: int | None,
    hashed: bool,
) -> None:
    if hashed:
        measured = {name: contents_of(m, m.tensors) for name, m in plan.sources.items()}
        plan = dataclasses.replace(plan, measured=measured)
    reference = write_splice(plan, out, split_max_bytes=limit)
    entry = open_gguf(reference.paths[0]).tensors[name]
    for path in out.parent.iterdir():
        path.unlink()
    byte = entry.offset + where % entry.nbytes

    def flip_a_bit(target: int, start: int, end: int) -> None:
        written = Path(f"/proc/self/fd/{target}").resolve()
        if start <= byte < end and written.name == entry.path.name:
            with written.open("r+b") as file:
                file.seek(byte)
                value = file.read(1)[0]
                file.seek(byte)
                file.write(bytes([value ^ 4]))

    monkeypatch.setattr(ranges, "default_copiers", lambda: copier(flip_a_bit))
    with pytest.raises(ContainerError, match="differs from its source") as caught:
        write_splice(plan, out, split_max_bytes=limit)
    assert caught.value.tensor == name
    assert caught.value.file == str(entry.path)
    assert f"in byte {where % entry.nbytes} of the tensor" in str(caught.value)
    leave_nothing(out.parent)


@pytest.mark.usefixtures("small_steps")
def test_damaged_header_is_found(
    plan: SplicePlan, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = b"blk.1.ffn_up_exps.weight"

    def swap_axes(target: int, start: int, end: int) -> None:
        written = Path(f"/proc/self/fd/{target}").resolve()
        with written.open("r+b") as file:
            at = file.read().index(name) + len(name) + 12  # number of axes, first axis
            file.seek(at)
            axes = struct.pack("<2Q", *sorted(struct.unpack("<2Q", _read_at(file, at, 16))))
            file.seek(at)
            file.write(axes)

    monkeypatch.setattr(ranges, "default_copiers", lambda: copier(swap_axes))
    with pytest.raises(ContainerError, match="described otherwise"):
        write_splice(plan, out)
    leave_nothing(out.parent)


def _read_at(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    return file.read(count)


@pytest.mark.usefixtures("small_steps")
def test_interrupted_in_the_middle_of_the_copy(
    plan: SplicePlan, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(target: int, start: int, end: int) -> None:
        if start > 100_000:
            signal.raise_signal(signal.SIGINT)

    threads = active_count()
    monkeypatch.setattr(ranges, "default_copiers", lambda: copier(interrupt))
    with pytest.raises(KeyboardInterrupt):
        write_splice(plan, out)
    assert active_count() == threads
    leave_nothing(out.parent)


@pytest.mark.usefixtures("small_steps")
def test_a_disk_that_is_full_before_the_end(
    plan: SplicePlan, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says so once, to the first who syncs: the thread behind the writer."""
    errors = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]

    def fsync(descriptor: int) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ContainerError, match="No space left"):
        write_splice(plan, out)
    leave_nothing(out.parent)
