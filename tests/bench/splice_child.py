"""One timed copy in a process of its own: `python -m tests.bench.splice_child write BASE OUT`.

`splice ARGUMENTS` is the verb without the start of the interpreter. Prints the seconds.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path

import quantkit.cli.splice  # noqa: F401
from quantkit.cli.main import build_app
from quantkit.containers.base import spec_of
from quantkit.containers.gguf import open_gguf, write_gguf


def _write(base_path: str, out: str) -> None:
    """Only the copy."""
    base = open_gguf(Path(base_path))
    specs = [spec_of(entry) for entry in base.tensors.values()]
    write_gguf(Path(out), base.metadata.carried(), specs)


def _splice(*arguments: str) -> None:
    app = build_app(["splice"])
    with contextlib.redirect_stdout(io.StringIO()):
        app(["splice", *arguments], standalone_mode=False)


if __name__ == "__main__":
    start = time.perf_counter()
    {"write": _write, "splice": _splice}[sys.argv[1]](*sys.argv[2:])
    print(time.perf_counter() - start)
