"""The verb `splice` without the start of the interpreter, in a process of its own.

`python -m tests.bench.splice_child ARGUMENTS` prints the seconds.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time

import quantkit.cli.splice  # noqa: F401
from quantkit.cli.main import build_app

if __name__ == "__main__":
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        build_app(["splice"])(["splice", *sys.argv[1:]], standalone_mode=False)
    print(time.perf_counter() - start)
