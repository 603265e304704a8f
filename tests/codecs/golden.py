"""Golden blocks: what ggml made of a few rows, and what it decodes from them.

One JSON file per type under tests/golden/codecs. `python -m tests.codecs.golden PRODUCER` writes
them again with the library named by QUANTKIT_GGML_LIBRARY; PRODUCER says which build that is.
Blocks come from ggml's quantizer (Gaussian values; zeros; one outlier) and from random bytes with
a scale that is finite, the first of them subnormal where the scale is a half.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from quantkit.qtypes import QTYPES, QType
from tests.ggml import Ggml, find_ggml

FOLDER = Path(__file__).parents[1] / "golden" / "codecs"
# ggml quantizes activations to these on the fly; no file holds them.
ACTIVATIONS = {"Q8_1", "Q8_K"}
STORED_TYPES = [
    q
    for q in QTYPES
    if q.gguf_id is not None
    and (q.block_size > 1 or q.name in ("F16", "BF16"))
    and q.name not in ACTIVATIONS
]
SUBNORMAL_HALF = np.array([0x0003], "<u2").view(np.uint8)


@dataclass(frozen=True)
class Golden:
    """Blocks and their values; both as base64 of little-endian bytes, with their sha256."""

    type: str
    producer: str
    blocks: str
    blocks_sha256: str
    values: str
    values_sha256: str

    @classmethod
    def made(cls, qtype: QType, producer: str, blocks: np.ndarray, values: np.ndarray) -> Golden:
        raw, decoded = blocks.tobytes(), values.astype("<f4").tobytes()
        return cls(
            type=qtype.name,
            producer=producer,
            blocks=base64.b64encode(raw).decode(),
            blocks_sha256=hashlib.sha256(raw).hexdigest(),
            values=base64.b64encode(decoded).decode(),
            values_sha256=hashlib.sha256(decoded).hexdigest(),
        )

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """(bytes of the blocks, float32 values), checked against their hashes."""
        raw, decoded = base64.b64decode(self.blocks), base64.b64decode(self.values)
        assert hashlib.sha256(raw).hexdigest() == self.blocks_sha256
        assert hashlib.sha256(decoded).hexdigest() == self.values_sha256
        return np.frombuffer(raw, np.uint8), np.frombuffer(decoded, "<f4")


def path_of(qtype: QType) -> Path:
    return FOLDER / f"{qtype.name}.json"


def load(qtype: QType) -> Golden:
    return Golden(**json.loads(path_of(qtype).read_text(encoding="utf-8")))


def _rows(row_length: int) -> np.ndarray:
    rng = np.random.default_rng(2026)
    values = (0.05 * rng.standard_normal((2, row_length))).astype(np.float32)
    values[1, row_length // 2 :] = 0
    values[1, 3] = 4
    return values


def _blocks(ggml: Ggml, qtype: QType) -> np.ndarray:
    row_length = max(qtype.block_size, 64)
    quantized = ggml.encode(qtype, _rows(row_length), np.ones(row_length, np.float32))
    rng = np.random.default_rng(qtype.gguf_id)
    drawn = rng.integers(0, 256, (64, qtype.type_size), dtype=np.uint8)
    if qtype.block_size > 1 and qtype.name not in ("IQ1_M", "MXFP4", "NVFP4"):
        offset = {"Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "TQ1_0": 52, "TQ2_0": 64}
        start = offset.get(qtype.name, 0)
        drawn[0, start : start + 2] = SUBNORMAL_HALF
    finite = [b for b in drawn if np.isfinite(ggml.decode(qtype, b)).all()]
    return np.concatenate([quantized, *finite[:2]])


def main(producer: str) -> None:
    """Write every file."""
    ggml = find_ggml()
    assert ggml is not None, "libggml-base not found"
    FOLDER.mkdir(parents=True, exist_ok=True)
    for qtype in STORED_TYPES:
        blocks = _blocks(ggml, qtype)
        values = ggml.decode(qtype, blocks)
        assert values is not None
        named = f"{producer}, {ggml.decoder_name(qtype)}"
        golden = Golden.made(qtype, named, blocks, values)
        path_of(qtype).write_text(json.dumps(asdict(golden), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
