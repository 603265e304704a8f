"""Writing a hybrid against `cp` of the same bytes, each in a process of its own.

`cp` leaves the bytes to the page cache; quantkit waits until they are on the disk, so that `cp`
is timed with a `sync` of its file, too. The verb is timed as a user calls it, with all its checks,
and once more without the start of the interpreter, which takes as long as the copy of some hundred
megabytes. The runs alternate, and the best of each counts. Sources are in the page cache for all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quantkit.artifacts.selection import Choice, Extreme, Goal, Selection, SelectionSource
from quantkit.artifacts.sensitivity import Contents
from quantkit.artifacts.store import FileId, save
from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.contents import contents_of
from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.qtypes import by_name
from quantkit.splice import UnitChoice, plan_splice, predicted_bytes
from tests.bench.figures import Figure

MODEL_BYTES = int(os.environ.get("QUANTKIT_BENCH_MB", "2000")) * 10**6
N_EXPERTS, MODEL, INNER = 32, 1024, 512
OVERHEAD_BYTES = 8192
REPEATS = 5
MIN_SHARE_OF_CP = 0.9
MAX_MEMORY_MB = 300.0
KIB = 1024
# A process of its own, because a peak counts what the process held that started it.
LAUNCHER = """
import resource, subprocess, sys, time
start = time.perf_counter()
printed = subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stdout
print(time.perf_counter() - start)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(printed)
"""


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


def make_selection(path: Path, base_path: Path, donor_path: Path, *, hashed: bool) -> Path:
    """Every second layer from the donor; `hashed`: with the hashes that `measure` takes."""
    models = {"base": open_gguf(base_path), "donor": open_gguf(donor_path)}
    layers = range(len(models["base"].tensors) // 3)
    picked = {layer: ("donor", "base")[layer % 2] for layer in layers}
    units = [UnitChoice(layer, "layer", name) for layer, name in picked.items()]
    plan = plan_splice(
        models["base"], {"donor": models["donor"]}, units, overhead_bytes=OVERHEAD_BYTES
    )
    size = predicted_bytes(plan)
    layer_bytes = sum(entry.nbytes for entry in models["base"].tensors.values()) // len(layers)
    contents: dict[str, Contents] = {}
    if hashed:
        contents = {name: contents_of(model, model.tensors) for name, model in models.items()}
    selection = Selection(
        name="bench",
        unit="layer",
        goal=Goal(size, None),
        sources=tuple(
            SelectionSource(name, (FileId(m.path.name, sha256_file(m.path), file_bytes(m.path)),))
            for name, m in models.items()
        ),
        predicted_file_bytes=size,
        predicted_error=0.0,
        predicted_standard_error=0.0,
        optimality_gap=0.0,
        fixed_bytes=size - layer_bytes * len(layers),
        overhead_bytes=OVERHEAD_BYTES,
        floor=Extreme(size, 0.0),
        ceiling=Extreme(size, 0.0),
        floor_reasons=(),
        choices=tuple(
            Choice(layer, "layer", name, {}, 0.0, 0.0, layer_bytes)
            for layer, name in picked.items()
        ),
        sensitivity=FileId("none.json", "0" * 64, 0),
        command=(),
        contents=contents,
    )
    save(selection, path)
    return path


def _timed(command: list[str | Path]) -> tuple[float, float, str]:
    """Seconds of a process from its start to its end, peak of resident MB, and its output."""
    launch = [sys.executable, "-I", "-S", "-c", LAUNCHER, *command]
    done = subprocess.run(launch, check=True, stdout=subprocess.PIPE, text=True)
    seconds, peak, printed = done.stdout.split("\n", 2)
    return float(seconds), float(peak) * KIB / 1e6, printed


def run(folder: Path) -> Iterator[Figure]:
    """Speed relative to `cp`, and memory."""
    base, donor = make_model(folder / "base.gguf", 0), make_model(folder / "donor.gguf", 1)
    chosen = {
        hashed: make_selection(folder / f"{hashed}.json", base, donor, hashed=hashed)
        for hashed in (True, False)
    }
    out, gigabytes = folder / "out.gguf", base.stat().st_size / 1e9
    sources = ["--source", f"base={base}", "--source", f"donor={donor}"]
    python = [sys.executable, "-m"]
    child = [*python, "tests.bench.splice_child"]
    synced = ["sh", "-c", 'cp "$0" "$1" && sync "$1"', base, out]
    commands: dict[str, list[str | Path]] = {
        "cp": ["cp", base, out],
        "cp and sync": synced,
        "quantkit splice": [*python, "quantkit", "splice", chosen[True], out, *sources],
        "splice without interpreter start": [*child, chosen[True], out, *sources],
        "splice, sources hashed whole": [*child, chosen[False], out, *sources],
    }
    best = dict.fromkeys(commands, float("inf"))
    peak = dict.fromkeys(commands, 0.0)
    for _ in range(REPEATS):
        for name, command in commands.items():
            seconds, memory, printed = _timed(command)
            if "tests.bench.splice_child" in command:
                seconds = float(printed)
            best[name], peak[name] = min(best[name], seconds), max(peak[name], memory)
            out.unlink()
    for name, seconds in best.items():
        yield Figure(name, gigabytes / seconds, "GB/s", note=f"{gigabytes:.2f} GB")
        if name.startswith("cp"):
            continue
        share = best["cp and sync"] / seconds
        bound = MIN_SHARE_OF_CP if name == "quantkit splice" else None
        yield Figure(f"{name}: share of cp and sync", share, "", bound, at_most=False)
        yield Figure(f"{name}: peak memory", peak[name], "MB", MAX_MEMORY_MB)
