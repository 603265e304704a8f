"""One timed copy in a process of its own: `python -m tests.bench.splice_child MODE BASE DONOR OUT`.

Prints seconds and the peak of resident memory, pages of mapped files included.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from quantkit.containers.base import spec_of
from quantkit.containers.gguf import open_gguf, write_gguf
from quantkit.splice import UnitChoice, plan_splice, write_splice

KIB = 1024


def main(mode: str, base_path: Path, donor_path: Path, out: Path) -> None:
    """Every second layer from the donor; `write` only copies, `splice` does all it does."""
    base, donor = open_gguf(base_path), open_gguf(donor_path)
    n_layers = len(base.tensors) // 3
    choices = [UnitChoice(layer, "layer", "donor") for layer in range(0, n_layers, 2)]
    plan = plan_splice(base, {"donor": donor}, choices)
    start = time.perf_counter()
    if mode == "write":
        write_gguf(out, base.metadata.carried(), [spec_of(t.entry) for t in plan.tensors])
    else:
        write_splice(plan, out)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / 1e6
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]))
