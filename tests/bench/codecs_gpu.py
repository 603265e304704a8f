"""`python -m tests.bench.codecs_gpu`: the CUDA codecs beside the CPU's, on a machine with a GPU.

First equality, bit for bit, of every decoder and encoder with the CPU library; then the speed of
decoding to bf16, in bytes read and written, beside the device's own copies, and of encoding, in
weights a second. `--llama-quantize PROGRAM` times it on random BF16 weights with 16 threads on
this machine, by the time that it prints itself, with its files in memory.
Needs torch and numpy only; exit code 1 when any bit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from quantkit.native import cpu, cuda
from quantkit.native.abi import Operation
from quantkit.qtypes import QTYPES, QType

DECODED = 1 << 29  # weights: a gigabyte of bf16, far more than caches hold
ENCODED_SHAPE = (32768, 4096)
CHECKED_SHAPE = (64, 2048)
MIN_COPY_SHARE = 0.75
MIN_RATIO = {"IQ4_NL": 50.0, "IQ4_XS": 50.0}  # of llama-quantize
MIN_OTHER_RATIO = 20.0
PEER_TYPES = ("Q8_0", "Q6_K", "Q4_K", "IQ4_XS", "IQ4_NL")
PEER_FILE_TYPES = {"Q4_K": "Q4_K_S"}
PEER_THREADS = 16
PEER_LAYERS, PEER_WIDTH, PEER_HIDDEN = 8, 2048, 8192


@dataclass
class Row:
    """One type; a speed is None where there is no such operation."""

    name: str
    equal: list[str]
    decode_gb: float | None = None
    copy_share: float | None = None
    encode_gweights: float | None = None
    peer_gweights: float | None = None


def main() -> None:
    """Check and time the types asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.codecs_gpu", description=__doc__)
    parser.add_argument("--types", nargs="*", help="names of types; default all")
    parser.add_argument("--llama-quantize", type=Path, help="the program to compare with")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    types = [q for q in QTYPES if cpu.can_decode(q.gguf_id)]
    if arguments.types:
        types = [q for q in types if q.name in arguments.types]
    started = time.perf_counter()
    print(
        f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores, {cpu.variant()}", flush=True
    )
    rows = {q.name: Row(q.name, check(q)) for q in types}
    wrong = [row for row in rows.values() if "differs" in " ".join(row.equal)]
    print(f"equality with the CPU: {time.perf_counter() - started:.0f} s, wrong: {len(wrong)}")
    for row in wrong:
        print(f"  {row.name}: {', '.join(row.equal)}", flush=True)
    copy_gb = copy_rate()
    print(f"device copy {copy_gb:.0f} GB/s (read and written)", flush=True)
    for qtype in types:
        time_type(qtype, rows[qtype.name], copy_gb)
    print(table(list(rows.values())), flush=True)
    if arguments.llama_quantize:
        compare_with_peer(arguments.llama_quantize, rows)
    if arguments.json:
        figures = {"copy_gb": copy_gb, "types": [asdict(row) for row in rows.values()]}
        arguments.json.write_text(json.dumps(figures, indent=1))
    print(f"all in {time.perf_counter() - started:.0f} s")
    sys.exit(bool(wrong))


def gguf_id(qtype: QType) -> int:
    assert qtype.gguf_id is not None
    return qtype.gguf_id


# Equality.


def check(qtype: QType) -> list[str]:
    """What was compared, each with its verdict."""
    found = [check_decoder(qtype, np.float32), check_decoder(qtype, np.uint16)]
    if cuda.block(Operation.ENCODE, gguf_id(qtype)):
        found += check_encoder(qtype)
    elif cpu.can_encode(qtype.gguf_id):
        found.append("encoder missing")
    return found


def check_decoder(qtype: QType, dtype: type) -> str:
    rng = np.random.default_rng(1)
    n_blocks = (8192 * 600 + 256 * 3) // qtype.block_size
    data = rng.integers(0, 256, n_blocks * qtype.type_size, dtype=np.uint8)
    expected = np.empty(n_blocks * qtype.block_size, dtype)
    cpu.decode(gguf_id(qtype), data, expected)
    wanted = torch.float32 if dtype is np.float32 else torch.bfloat16
    what = f"decode {str(wanted)[6:]}"
    # At an aligned and at another address.
    for offset in (0, 4):
        space = torch.empty(data.size + offset, dtype=torch.uint8, device="cuda")
        blocks = space[offset:].copy_(torch.from_numpy(data))
        ours = cuda.decode(gguf_id(qtype), blocks, wanted)
        bits = torch.int32 if dtype is np.float32 else torch.int16
        theirs = torch.from_numpy(expected.view(np.int32 if dtype is np.float32 else np.int16))
        theirs = theirs.cuda()
        both_nan = ours.isnan() & theirs.view(wanted).isnan()
        n_wrong = int(((ours.view(bits) != theirs) & ~both_nan).sum())
        if n_wrong:
            return f"{what} differs in {n_wrong} of {ours.numel()} at offset {offset}"
    return f"{what} equal"


def check_encoder(qtype: QType) -> list[str]:
    rng = np.random.default_rng(2)
    rows, row_length = CHECKED_SHAPE
    heavy = rng.standard_t(2, CHECKED_SHAPE).astype(np.float32)
    kinds = {
        "gaussian": rng.standard_normal(CHECKED_SHAPE).astype(np.float32),
        "heavy": heavy,
        "sparse": np.where(rng.random(CHECKED_SHAPE) < 0.7, np.float32(0), heavy),
        "zeros": np.zeros(CHECKED_SHAPE, np.float32),
        "small": heavy * np.float32(1e-7),
        "subnormal": heavy * np.float32(1e-40),
        "large": heavy.clip(-30, 30) * np.float32(1e36),
    }
    uneven = rng.random(row_length, dtype=np.float32) ** 4
    weightings = {"even": None, "uneven": uneven, "some": np.where(uneven < 0.1, 0, uneven)}
    found = []
    for kind, values in kinds.items():
        for weighting, weights in weightings.items():
            expected = np.empty((rows, row_length // qtype.block_size * qtype.type_size), np.uint8)
            importance = None if weights is None else weights.astype(np.float32)
            cpu.encode(gguf_id(qtype), values, importance, expected)
            on_gpu = None if importance is None else torch.from_numpy(importance).cuda()
            ours = cuda.encode(gguf_id(qtype), torch.from_numpy(values).cuda(), on_gpu)
            wrong = (ours.cpu().numpy() != expected).reshape(-1, qtype.type_size).any(axis=1)
            if wrong.any():
                case = f"{kind}, {weighting} weights"
                found.append(f"encode differs in {wrong.sum()} of {wrong.size} blocks ({case})")
    return found or ["encode equal"]


# Speed.


def seconds(call: Callable[[], object], repeats: int = 5, calls: int = 10) -> float:
    """Of one call on the device, the best of several runs, after one that does not count.

    A run is some calls in a row, so that the device works while the host prepares the next.
    """
    call()
    best = float("inf")
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        stop.record()
        stop.synchronize()
        best = min(best, start.elapsed_time(stop) / 1e3 / calls)
    return best


def copy_rate() -> float:
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source)) / 1e9


def time_type(qtype: QType, row: Row, copy_gb: float) -> None:
    """Fill in the speeds of a type."""
    n_bytes = DECODED // qtype.block_size * qtype.type_size
    data = torch.randint(0, 256, (n_bytes,), dtype=torch.uint8, device="cuda")

    def decode() -> None:
        cuda.decode(gguf_id(qtype), data)

    elapsed = seconds(decode)
    row.decode_gb = (n_bytes + 2 * DECODED) / elapsed / 1e9
    row.copy_share = row.decode_gb / copy_gb
    if not cuda.block(Operation.ENCODE, gguf_id(qtype)):
        return
    values = torch.randn(ENCODED_SHAPE, device="cuda") * 0.02
    importance = torch.rand(ENCODED_SHAPE[1], device="cuda")

    def encode() -> None:
        cuda.encode(gguf_id(qtype), values, importance, known_finite=True)

    row.encode_gweights = values.numel() / seconds(encode, repeats=2, calls=1) / 1e9


def table(rows: list[Row]) -> str:
    head = f"{'type':<8} {'decode GB/s':>12} {'of copy':>8} {'encode Gw/s':>12}  equality"
    lines = [head]
    for row in rows:
        copy_share = row.copy_share or 0
        share = f"{copy_share:.0%}{'' if copy_share >= MIN_COPY_SHARE else ' <'}"
        speed = "" if row.encode_gweights is None else f"{row.encode_gweights:.2f}"
        wrong = "; ".join(verdict for verdict in row.equal if "equal" not in verdict)
        lines.append(
            f"{row.name:<8} {row.decode_gb or 0:>12.0f} {share:>8} {speed:>12}  "
            f"{wrong or 'all equal'}"
        )
    return "\n".join(lines)


# llama-quantize.


def compare_with_peer(program: Path, rows: dict[str, Row]) -> None:
    """Time llama-quantize on a model of random weights, type by type."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as home:
        model = Path(home) / "model.gguf"
        n_weights = write_model(model)
        print(f"llama-quantize, {PEER_THREADS} threads, {n_weights / 1e9:.2f} G weights:")
        for name in PEER_TYPES:
            row = rows.get(name)
            if row is None or row.encode_gweights is None:
                continue
            taken = peer_seconds(program, model, name)
            row.peer_gweights = n_weights / taken / 1e9
            ratio = row.encode_gweights / row.peer_gweights
            least = MIN_RATIO.get(name, MIN_OTHER_RATIO)
            verdict = "" if ratio >= least else f", under {least:.0f}"
            print(
                f"  {name:<7} {taken:6.2f} s {row.peer_gweights:6.3f} Gw/s: x {ratio:.0f}{verdict}"
            )


def peer_seconds(program: Path, model: Path, name: str) -> float:
    """Its own `quantize time`, in which its files are in memory."""
    out = model.with_name("out.gguf")
    file_type = PEER_FILE_TYPES.get(name, name)
    command = [program, "--pure", model, out, file_type, str(PEER_THREADS)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    out.unlink()
    for line in (done.stdout + done.stderr).splitlines():
        if "quantize time" in line:
            return float(line.split("=")[1].split("ms")[0]) / 1e3
    raise RuntimeError(f"no quantize time in the output of {program}")


def write_model(path: Path) -> int:
    """A llama of random BF16 weights, written by hand as GGUF version 3; returns its weights."""
    norm, shapes = (PEER_WIDTH,), {"token_embd.weight": (256, PEER_WIDTH)}
    shapes |= {"output_norm.weight": norm, "output.weight": (256, PEER_WIDTH)}
    for layer in range(PEER_LAYERS):
        prefix = f"blk.{layer}."
        shapes |= {prefix + f"{n}_norm.weight": norm for n in ("attn", "ffn")}
        shapes |= {prefix + f"attn_{n}.weight": (PEER_WIDTH, PEER_WIDTH) for n in ("q", "k", "v")}
        shapes[prefix + "attn_output.weight"] = (PEER_WIDTH, PEER_WIDTH)
        shapes |= {prefix + f"ffn_{n}.weight": (PEER_HIDDEN, PEER_WIDTH) for n in ("gate", "up")}
        shapes[prefix + "ffn_down.weight"] = (PEER_WIDTH, PEER_HIDDEN)
    infos, offset = b"", 0
    for name, shape in shapes.items():
        dims = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        type_id = 0 if shape == norm else 30
        infos += text(name) + struct.pack("<I", len(shape)) + dims
        infos += struct.pack("<IQ", type_id, offset)
        offset += int(np.prod(shape)) * (4 if shape == norm else 2)
    numbers = {
        "context_length": 512,
        "embedding_length": PEER_WIDTH,
        "block_count": PEER_LAYERS,
        "feed_forward_length": PEER_HIDDEN,
        "attention.head_count": 16,
        "attention.head_count_kv": 16,
    }
    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    pairs += [text(f"llama.{k}") + struct.pack("<II", 4, v) for k, v in numbers.items()]
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    pairs.append(text(epsilon) + struct.pack("<If", 6, 1e-6))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join(pairs) + infos
    rng = np.random.default_rng(4)
    noise = (rng.standard_normal(1 << 22) * 0.02).astype(np.float32)
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % 32))
        for shape in shapes.values():
            values = np.resize(noise, int(np.prod(shape)))
            bfloats = (values.view(np.uint32) >> 16).astype("<u2")
            file.write(values.tobytes() if shape == norm else bfloats.tobytes())
    return sum(int(np.prod(shape)) for shape in shapes.values())


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


if __name__ == "__main__":
    main()
