"""Read and write an importance file in either form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quantkit.containers.gguf.header import MAGIC
from quantkit.containers.imatrix.entries import Importance
from quantkit.containers.imatrix.gguf_form import read_gguf_form, write_gguf_form
from quantkit.containers.imatrix.legacy import read_legacy, write_legacy
from quantkit.errors import ContainerError
from quantkit.files import open_input

FORMATS = ("gguf", "dat")


def read_importance(path: Path) -> Importance:
    """Read the importance file at `path`, in whichever form it is.

    Raises ContainerError, which names file and entry, for anything that is not one: damage,
    another kind of file, sums or counts that are not finite or negative.
    """
    with open_input(path) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        start = stream.read(len(MAGIC))
    return read_gguf_form(path) if start == MAGIC else read_legacy(path)


def write_importance(
    importance: Importance, path: Path, *, form: str = "gguf", extra: Sequence[bytes] = ()
) -> None:
    """Write `importance` in `form` (one of FORMATS), entries by name; same content, same bytes.

    `extra` are packed key-value pairs for the GGUF form. Raises ContainerError where the form
    cannot hold the content.
    """
    if form == "dat":
        write_legacy(importance, path)
        return
    scaled = [name for name, entry in importance.entries.items() if entry.scaled]
    if scaled:
        raise ContainerError(
            "an importance entry without counts",
            file=importance.path,
            tensor=scaled[0],
            rule="the GGUF form needs the tokens that each expert saw; a .dat does not have them",
            hint="capture again, or keep the .dat",
        )
    write_gguf_form(importance, path, extra)
