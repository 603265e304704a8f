"""Writing a hybrid against `cp` of the same bytes, each in a process of its own.

`cp` leaves the bytes to the page cache; quantkit waits until they are on the disk, so that `cp`
is timed with a `sync` of its file, too. The runs alternate, and the best of each counts. Sources
are in the page cache for both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import ValueType, pack_kv, write_gguf
from quantkit.qtypes import by_name
from tests.bench.figures import Figure, best_seconds

MODEL_BYTES = int(os.environ.get("QUANTKIT_BENCH_MB", "512")) * 10**6
N_LAYERS, N_EXPERTS, MODEL, INNER = 8, 32, 1024, 512
REPEATS = 3
MIN_SHARE_OF_CP = 0.9
MAX_MEMORY_MB = 300.0
MODES = {"write": "write_gguf, copy alone", "splice": "write_splice, hashed and verified"}


def make_model(path: Path, seed: int) -> Path:
    """A model of about MODEL_BYTES whose experts are nearly all of it."""
    q8 = by_name("Q8_0")
    layer_bytes = 3 * q8.nbytes(N_EXPERTS * MODEL * INNER)
    n_layers = max(2, round(MODEL_BYTES / layer_bytes))
    noise = np.random.default_rng(seed).bytes(q8.nbytes(N_EXPERTS * MODEL * INNER))
    shapes = {
        "gate": (N_EXPERTS, INNER, MODEL),
        "up": (N_EXPERTS, INNER, MODEL),
        "down": (N_EXPERTS, MODEL, INNER),
    }
    specs = [
        TensorSpec(f"blk.{layer}.ffn_{kind}_exps.weight", shape, q8, lambda: [noise])
        for layer in range(n_layers)
        for kind, shape in shapes.items()
    ]
    architecture = pack_kv("general.architecture", ValueType.STRING, "qwen3moe")
    return write_gguf(path, [architecture], specs)[0]


def _child(mode: str, base: Path, donor: Path, out: Path) -> dict[str, float]:
    """Seconds and peak memory of one run in a fresh process."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.splice_child",
        mode,
        *map(str, (base, donor, out)),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def _copy(source: Path, out: Path, *, sync: bool) -> float:
    def once() -> None:
        subprocess.run(["cp", source, out], check=True)
        if sync:
            subprocess.run(["sync", out], check=True)

    seconds = best_seconds(once, 1)
    out.unlink()
    return seconds


def run(folder: Path) -> Iterator[Figure]:
    """Speed relative to `cp`, and memory."""
    base, donor = make_model(folder / "base.gguf", 0), make_model(folder / "donor.gguf", 1)
    out, gigabytes = folder / "out.gguf", base.stat().st_size / 1e9
    copied: list[float] = []
    synced: list[float] = []
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(REPEATS):
        copied.append(_copy(base, out, sync=False))
        synced.append(_copy(base, out, sync=True))
        for mode, found in runs.items():
            found.append(_child(mode, base, donor, out))
            out.unlink()
    yield Figure("cp", gigabytes / min(copied), "GB/s", note=f"{gigabytes:.2f} GB, to the cache")
    yield Figure("cp and sync", gigabytes / min(synced), "GB/s", note="to the disk")
    for mode, label in MODES.items():
        seconds = min(one["seconds"] for one in runs[mode])
        peak = max(one["peak_mb"] for one in runs[mode])
        yield Figure(label, gigabytes / seconds, "GB/s", note="to the disk")
        share = min(synced) / seconds
        bound = MIN_SHARE_OF_CP if mode == "write" else None
        yield Figure(f"{label}: share of cp and sync", share, "", bound, at_most=False)
        yield Figure(f"{label}: peak memory", peak, "MB", MAX_MEMORY_MB)
