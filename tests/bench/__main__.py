"""`python -m tests.bench [NAME...] [--json] [--folder DIR]`: figures of this machine, not a test.

Bounds that the project has set itself are shown beside their figures; the exit code is 0 all the
same, because a busy machine says nothing about the code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.bench import codecs, header, selection, splicing
from tests.bench.figures import table

BENCHES = {"header": header, "splice": splicing, "select": selection, "codecs": codecs}


def main() -> None:
    """Run the named benches, or all, and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(BENCHES)}; default all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--folder", type=Path, help="where to write the files that are timed")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    figures = []
    for name in arguments.names or BENCHES:
        print(f"{name} ...", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            figures += BENCHES[name].run(Path(folder))
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    machine["cores"] = str(os.cpu_count())
    if arguments.json:
        print(json.dumps({"machine": machine, "figures": [f.record() for f in figures]}, indent=2))
    else:
        print(" ".join(machine.values()))
        print(table(figures))


if __name__ == "__main__":
    main()
