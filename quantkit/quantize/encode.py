"""`quantize`: a GGUF or a checkpoint to a GGUF by rules; the rest is copied byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quantkit.artifacts.store import FileId
from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import gguf_file_bytes, write_gguf
from quantkit.containers.hashing import file_bytes
from quantkit.containers.imatrix import MeanSquares, read_importance
from quantkit.containers.writing import refuse_inputs
from quantkit.progress import Progress
from quantkit.quantize.keys import FILE_TYPE_KEY, quantized_pairs
from quantkit.quantize.plan import (
    DEFAULTS,
    FILE_TYPES,
    Encoding,
    Options,
    Plan,
    file_type,
    plan_encoding,
)
from quantkit.quantize.rules import Rule, is_kept_float
from quantkit.quantize.source import open_source
from quantkit.quantize.stream import Tally, TensorError, encoded
from quantkit.weights.identity import file_id

__all__ = [
    "FILE_TYPES",
    "FILE_TYPE_KEY",
    "Encoding",
    "Options",
    "Plan",
    "Quantized",
    "Rule",
    "encode_gguf",
    "encoded_bytes",
    "file_type",
    "is_kept_float",
    "make_plan",
    "plan_bytes",
]

HASH_PLACEHOLDER = "0" * 64


@dataclass(frozen=True)
class Quantized:
    """What was written: files, the plan behind them, and per encoded tensor what it cost.

    `cold` has the experts without importance of their own, by encoded tensor.
    """

    paths: tuple[Path, ...]
    plan: Plan
    errors: dict[str, TensorError]
    cold: dict[str, tuple[int, ...]]


def make_plan(
    source: Path,
    rules: Sequence[Rule],
    *,
    importance: Path | None = None,
    options: Options = DEFAULTS,
    name: str | None = None,
) -> Plan:
    """What `encode_gguf` would do; reads headers and the importance file."""
    found = None if importance is None else read_importance(importance)
    return plan_encoding(open_source(source, name), rules, found, options)


def encode_gguf(
    source: Path,
    out: Path,
    rules: Sequence[Rule],
    *,
    importance: Path | None = None,
    options: Options = DEFAULTS,
    name: str | None = None,
    n_threads: int | None = None,
) -> Quantized:
    """Write `source` (a GGUF or a checkpoint) to `out` with the types that `rules` give.

    Tensors keep their order, and those that keep their type their bytes. `importance` is a file
    as `capture` or llama-imatrix writes it; `name` is general.name of what a checkpoint becomes;
    `n_threads` changes the speed and not one byte, default: all processors. Raises what
    `plan_encoding` raises, and FormatError for weights that are not finite.
    """
    plan = make_plan(source, rules, importance=importance, options=options, name=name)
    refuse_inputs([out], [*plan.source.files, *([importance] if importance else [])])
    n_threads = n_threads or available_cores()
    tallies: dict[str, Tally] = {}
    cold: dict[str, tuple[int, ...]] = {}
    with ThreadPoolExecutor(n_threads) as pool:

        def pieces(e: Encoding) -> Iterator[memoryview]:
            means = _means(plan, e)
            tally = tallies[e.entry.name] = Tally(means is not None)
            if means and means.cold:
                cold[e.entry.name] = means.cold
            return encoded(e, means, tally, pool, n_threads)

        identity = None if importance is None else file_id(importance)
        pairs = quantized_pairs(plan, rules, _source_files(plan), identity)
        label = f"quantize {out.name}"
        paths = write_gguf(out, pairs, _specs(plan, pieces), progress_label=label)
    errors = {name: tally.error() for name, tally in tallies.items()}
    return Quantized(tuple(paths), plan, errors, cold)


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encoded_bytes(source: Path, rules: Sequence[Rule]) -> int:
    """Exact size of what `encode_gguf` would write; encodes nothing."""
    return plan_bytes(make_plan(source, rules), rules)


def plan_bytes(plan: Plan, rules: Sequence[Rule]) -> int:
    """Exact size of what a plan would write; hashes nothing."""
    importance = plan.importance.path if plan.importance else None
    pairs = quantized_pairs(
        plan,
        rules,
        [_unhashed(path) for path in plan.source.files],
        None if importance is None else _unhashed(importance),
    )
    return gguf_file_bytes(pairs, _specs(plan, lambda e: iter(())))


def _unhashed(path: Path) -> FileId:
    return FileId(path.name, HASH_PLACEHOLDER, 0)


def _source_files(plan: Plan) -> list[FileId]:
    """Identities of the source's files; of none where everything is copied anyway."""
    if all(e.is_copy for e in plan.encodings):
        return []
    files = plan.source.files
    found = []
    with Progress("hash source", sum(map(file_bytes, files))) as progress:
        for path in files:
            found.append(file_id(path))
            progress.step(found[-1].bytes)
    return found


def _means(plan: Plan, e: Encoding) -> MeanSquares | None:
    if plan.importance is None:
        return None
    return plan.importance.mean_squares(e.entry.name, e.entry.shape)


def _specs(plan: Plan, pieces: Callable[[Encoding], Iterator[memoryview]]) -> list[TensorSpec]:
    return [
        e.entry.spec
        if e.is_copy
        else TensorSpec(e.entry.name, e.entry.shape, e.qtype, partial(pieces, e))
        for e in plan.encodings
    ]
