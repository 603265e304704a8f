"""Decoding and encoding, in MB of float32 a second on one core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quantkit.codecs import can_decode, can_encode, decode, encode
from quantkit.errors import FormatError
from quantkit.qtypes import QTYPES, QType
from tests.bench.figures import Figure, best_seconds

SHAPE = (2048, 2048)
REPEATS = 3


def _data(qtype: QType, values: np.ndarray) -> np.ndarray:
    """Encoded values, or random blocks without those whose scale is no number."""
    if can_encode(qtype):
        return encode(qtype, values)["data"]
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (256, qtype.type_size), dtype=np.uint8)
    kept = [block for block in drawn if _is_finite(qtype, block)]
    n_blocks = values.size // qtype.block_size
    return np.resize(np.concatenate(kept), n_blocks * qtype.type_size)


def _is_finite(qtype: QType, block: np.ndarray) -> bool:
    try:
        return bool(np.isfinite(decode(qtype, {"data": block}, (qtype.block_size,))).all())
    except FormatError:
        return False


def run(folder: Path) -> Iterator[Figure]:
    """Every block type of GGUF, and the plain floats."""
    values = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    megabytes = values.nbytes / 1e6
    for qtype in QTYPES:
        wanted = qtype.block_size > 1 or qtype.name in ("F16", "BF16")
        if qtype.gguf_id is None or not wanted or not can_decode(qtype):
            continue
        parts = {"data": _data(qtype, values)}
        seconds = best_seconds(lambda q=qtype, p=parts: decode(q, p, SHAPE), REPEATS)
        yield Figure(f"decode {qtype.name}", megabytes / seconds, "MB/s")
        if can_encode(qtype):
            seconds = best_seconds(lambda q=qtype: encode(q, values), REPEATS)
            yield Figure(f"encode {qtype.name}", megabytes / seconds, "MB/s")
