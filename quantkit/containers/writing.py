"""What the writers of all containers share: bytes from their source to an open file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from quantkit.containers.base import ByteRange, TensorSpec
from quantkit.containers.ranges import copy_range
from quantkit.errors import ContainerError


def overwritten(outputs: Iterable[Path], inputs: Iterable[Path]) -> tuple[Path, Path] | None:
    """The first output that is one of the inputs, and that input; under whatever names."""
    known = {place: path for path in sorted(set(inputs)) if (place := _place(path))}
    for output in outputs:
        place = _place(output)
        if place in known:
            return output, known[place]
    return None


def _place(path: Path) -> tuple[int, int] | None:
    """What a file is whatever leads to it (links, another case); None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse outputs that are one of the inputs, under whatever name."""
    found = overwritten(outputs, inputs)
    if found:
        raise ContainerError(
            "the output would overwrite one of its inputs",
            file=found[0],
            value=f"input {found[1]}",
            rule="inputs are never touched",
            hint="write under another name",
        )


def write_source(
    spec: TensorSpec, descriptor: int, offset: int, on_bytes: Callable[[int], object]
) -> None:
    """Bring the bytes of `spec` to `offset` of the open file; `on_bytes` hears of the progress."""
    if isinstance(spec.source, ByteRange):
        copy_range(spec.source, descriptor, offset, on_bytes=on_bytes)
        return
    done = 0
    for piece in spec.source():
        view = memoryview(piece).cast("B")
        if done + len(view) <= spec.nbytes:
            write_all(descriptor, view, offset + done)
            on_bytes(len(view))
        done += len(view)
        if done > spec.nbytes:
            break
    if done != spec.nbytes:
        raise ContainerError(
            "a tensor source that yields another number of bytes than the shape takes",
            tensor=spec.name,
            value=f"{done} bytes" if done < spec.nbytes else f"at least {done} bytes",
            rule=f"{spec.qtype.name} {list(spec.shape)} takes {spec.nbytes} bytes",
        )


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, however often the system takes only part of it."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
