"""The codecs beside ggml and gguf-py: speed in MB of float32 a second, and what encoding loses.

One thread is timed in processor seconds, so that a busy machine does not count, several in
seconds of the clock; the contestants take turns, and the best of each counts. ggml's library is
the one that QUANTKIT_GGML_LIBRARY names; without it its columns stay empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

import quantkit
from quantkit.codecs import can_encode, decode, encode
from quantkit.codecs.base import codec_for
from quantkit.codecs.blocks import BlockCodec
from quantkit.containers.safetensors import open_safetensors
from quantkit.native import cpu
from quantkit.qtypes import QTYPES, QType
from tests.bench.figures import Figure
from tests.codecs.golden import STORED_TYPES
from tests.ggml import Ggml, find_ggml

DECODED = 1 << 23  # elements: 32 MiB, more than caches hold
ENCODED_SHAPE = (512, 1024)
DECODE_REPEATS = 5
MANY_REPEATS = 6  # a second thread is often taken away on a shared machine
ENCODE_REPEATS = 4
MANY_THREADS = 2
MIN_OF_GGML = 1.0
MIN_OF_GGUF_PY = 5.0
MAX_ERROR_OF_GGML = 1.0


@dataclass(frozen=True)
class DecodeRow:
    """Megabytes of float32 a second; None where a peer is missing or cannot.

    `many_threads` allocates its result, as gguf-py does; `reused` writes to memory touched before.
    """

    qtype: QType
    one_thread: float
    many_threads: float
    reused: float
    ggml: float | None
    gguf_py: float | None

    @property
    def of_ggml(self) -> float | None:
        """One thread of ours over ggml's one."""
        return None if self.ggml is None else self.one_thread / self.ggml

    @property
    def of_gguf_py(self) -> float | None:
        """Several threads of ours over gguf-py."""
        return None if self.gguf_py is None else self.many_threads / self.gguf_py


@dataclass(frozen=True)
class EncodeRow:
    """Speed on one thread, and the weighted squared error relative to the values' own."""

    qtype: QType
    values: str
    weighted: bool
    speed: float
    error: float
    ggml_speed: float | None
    ggml_error: float | None

    @property
    def of_ggml(self) -> float | None:
        """Our speed over ggml's."""
        return None if self.ggml_speed is None else self.speed / self.ggml_speed

    @property
    def error_of_ggml(self) -> float | None:
        """Our error over ggml's."""
        return None if self.ggml_error is None else self.error / self.ggml_error


def best_of_each(
    actions: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Shortest time of each of some actions that take turns."""
    best = dict.fromkeys(actions, float("inf"))
    for _ in range(repeats):
        for name, action in actions.items():
            start = clock()
            action()
            best[name] = min(best[name], clock() - start)
    return best


def random_blocks(qtype: QType) -> np.ndarray:
    """Bytes of many different blocks whose values are finite."""
    rng = np.random.default_rng(0)
    if qtype.block_size == 1:
        return encode(qtype, rng.standard_normal(1 << 16).astype(np.float32))["data"]
    drawn = rng.integers(0, 256, (4096, qtype.type_size), dtype=np.uint8)
    codec = codec_for(qtype)
    assert isinstance(codec, BlockCodec)
    values = np.empty((len(drawn), qtype.block_size), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        codec.decode_blocks(drawn, values)
    return drawn[np.isfinite(values).all(axis=1)].reshape(-1)


def decode_rows() -> Iterator[DecodeRow]:
    """Every type that files hold, random blocks.

    One thread writes to memory that it has touched before, as ggml does; against gguf-py both
    allocate their results.
    """
    ggml = find_ggml()
    megabytes = 4 * DECODED / 1e6
    out = np.zeros(DECODED, np.float32)
    for qtype in STORED_TYPES:
        data = np.resize(random_blocks(qtype), qtype.nbytes(DECODED))
        parts = {"data": data}
        alone: dict[str, Callable[[], object]] = {
            "ours": lambda q=qtype, d=data: cpu.try_decode(q.gguf_id, d, out, threads=1)
        }
        if ggml is not None:
            alone["ggml"] = lambda q=qtype, d=data: ggml.decode(q, d, out)
        one = best_of_each(alone, DECODE_REPEATS, time.thread_time)
        together: dict[str, Callable[[], object]] = {
            "ours": lambda q=qtype, p=parts: decode(q, p, (DECODED,), threads=MANY_THREADS),
            "reused": lambda q=qtype, d=data: cpu.try_decode(
                q.gguf_id, d, out, threads=MANY_THREADS
            ),
        }
        peer = gguf.GGMLQuantizationType.__members__.get(qtype.name)
        if peer in gguf.quants._type_traits:
            rows = data.reshape(-1, qtype.nbytes(max(qtype.block_size, 1024)))
            together["gguf-py"] = lambda r=rows, p=peer: gguf.quants.dequantize(r, p)
        many = best_of_each(together, MANY_REPEATS, time.perf_counter)
        yield DecodeRow(
            qtype,
            megabytes / one["ours"],
            megabytes / many["ours"],
            megabytes / many["reused"],
            megabytes / one["ggml"] if "ggml" in one else None,
            megabytes / many["gguf-py"] if "gguf-py" in many else None,
        )


def embedded_values() -> np.ndarray:
    """Trained weights of the embedded model with rows of 256: its MTP experts."""
    folder = Path(quantkit.__file__).parent / "data" / "embedded"
    entry = open_safetensors(folder).tensors["mtp.layers.0.mlp.experts.gate_up_proj"]
    values = decode(entry.qtype, entry.parts(), entry.shape)
    return values.reshape(-1, ENCODED_SHAPE[1])[: ENCODED_SHAPE[0]]


def encoded_values() -> dict[str, np.ndarray]:
    """What is encoded: synthetic and trained weights."""
    rng = np.random.default_rng(3)
    gaussian = 0.02 * rng.standard_normal(ENCODED_SHAPE)
    heavy = 0.02 * rng.standard_t(3, ENCODED_SHAPE)
    return {
        "gaussian": gaussian.astype(np.float32),
        "heavy-tailed": heavy.astype(np.float32),
        "embedded": embedded_values(),
    }


def relative_error(values: np.ndarray, decoded: np.ndarray, weights: np.ndarray | None) -> float:
    """Weighted squared error over the weighted square."""
    weight = 1.0 if weights is None else weights.astype(np.float64)
    change = (weight * (values.astype(np.float64) - decoded) ** 2).sum()
    return float(change / (weight * values.astype(np.float64) ** 2).sum())


def encode_row(
    qtype: QType, kind: str, values: np.ndarray, weights: np.ndarray | None, ggml: Ggml | None
) -> EncodeRow:
    """One type on one set of values."""
    data = encode(qtype, values, weights, threads=1)["data"]
    error = relative_error(values, decode(qtype, {"data": data}, values.shape), weights)
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: encode(qtype, values, weights, threads=1)
    }
    if ggml is not None:
        contestants["ggml"] = lambda: ggml.encode(qtype, values, weights)
    seconds = best_of_each(contestants, ENCODE_REPEATS, time.thread_time)
    speeds = {name: values.nbytes / 1e6 / best for name, best in seconds.items()}
    peer_error = None
    if ggml is not None:
        decoded = ggml.decode(qtype, ggml.encode(qtype, values, weights))
        assert decoded is not None
        peer_error = relative_error(values, decoded.reshape(values.shape), weights)
    weighted = weights is not None
    return EncodeRow(qtype, kind, weighted, speeds["ours"], error, speeds.get("ggml"), peer_error)


def encode_rows() -> Iterator[EncodeRow]:
    """Every block type that is written, with and without importance."""
    ggml = find_ggml()
    spread = np.random.default_rng(4).standard_normal(ENCODED_SHAPE[1])
    importance = np.exp(1.5 * spread).astype(np.float32)
    for qtype in QTYPES:
        if qtype.block_size == 1 or qtype.gguf_id is None or not can_encode(qtype):
            continue
        for name, values in encoded_values().items():
            for weights in (None, importance):
                yield encode_row(qtype, name, values, weights, ggml)


def run(folder: Path) -> Iterator[Figure]:
    """Both tables as figures, with the bounds that the project has set itself."""
    for row in decode_rows():
        name = row.qtype.name
        yield Figure(f"decode {name}", row.one_thread, "MB/s")
        if row.of_ggml is not None:
            yield Figure(f"decode {name} / ggml", row.of_ggml, "x", MIN_OF_GGML, at_most=False)
        if row.of_gguf_py is not None:
            bound = MIN_OF_GGUF_PY if row.qtype.block_size > 1 else None
            note = f"{MANY_THREADS} threads"
            figure = Figure(
                f"decode {name} / gguf-py", row.of_gguf_py, "x", bound, at_most=False, note=note
            )
            yield figure
    for coded in encode_rows():
        weighted = ", weighted" if coded.weighted else ""
        label = f"encode {coded.qtype.name}, {coded.values}{weighted}"
        yield Figure(label, coded.speed, "MB/s", note=f"relative error {coded.error:.4g}")
        if coded.of_ggml is not None and coded.error_of_ggml is not None:
            yield Figure(f"{label}: speed / ggml", coded.of_ggml, "x", MIN_OF_GGML, at_most=False)
            yield Figure(f"{label}: error / ggml", coded.error_of_ggml, "x", MAX_ERROR_OF_GGML)
