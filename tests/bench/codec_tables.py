"""`python -m tests.bench.codec_tables [decode|encode] [scalar|avx2|avx512]`: the codecs' figures.

An asterisk marks a figure that misses the bound the project has set itself: one thread at least
as fast as ggml's, two threads five times gguf-py, an error at most ggml's.
"""

from __future__ import annotations

import sys

from quantkit.native import cpu, lib
from tests.bench import codecs

DECODE_HEAD = (
    f"{'decode':<10}{'MB/s':>9}{'ggml':>9}{'x ggml':>9}  {'2 threads':>9}{'gguf-py':>9}{'x':>9}"
    f"  {'reused':>9}"
)
ENCODE_HEAD = (
    f"{'encode':<10}{'values':<14}{'weights':<9}{'MB/s':>9}{'ggml':>9}{'x ggml':>9}  "
    f"{'error':>11}{'ggml':>11}{'error / ggml':>14}"
)


def _number(value: float | None, width: int, form: str = ".0f") -> str:
    return f"{'-' if value is None else format(value, form):>{width}}"


def _ratio(value: float | None, bound: float, width: int, *, at_most: bool = False) -> str:
    if value is None:
        return f"{'-':>{width}}"
    missed = value > bound * (1 + 1e-6) if at_most else value < bound
    return f"{value:>{width - 1}.3f}{'*' if missed else ' '}"


def decode_line(row: codecs.DecodeRow) -> str:
    """A line of the first table."""
    bound = codecs.MIN_OF_GGUF_PY if row.qtype.block_size > 1 else 0.0
    return (
        f"{row.qtype.name:<10}{_number(row.one_thread, 9)}{_number(row.ggml, 9)}"
        f"{_ratio(row.of_ggml, codecs.MIN_OF_GGML, 9)}  {_number(row.many_threads, 9)}"
        f"{_number(row.gguf_py, 9)}{_ratio(row.of_gguf_py, bound, 9)}"
        f"  {_number(row.reused, 9)}"
    )


def encode_line(row: codecs.EncodeRow) -> str:
    """A line of the second table."""
    error = _ratio(row.error_of_ggml, codecs.MAX_ERROR_OF_GGML, 14, at_most=True)
    return (
        f"{row.qtype.name:<10}{row.values:<14}{'channel' if row.weighted else 'none':<9}"
        f"{_number(row.speed, 9, '.1f')}{_number(row.ggml_speed, 9, '.1f')}"
        f"{_ratio(row.of_ggml, codecs.MIN_OF_GGML, 9)}  {_number(row.error, 11, '.4g')}"
        f"{_number(row.ggml_error, 11, '.4g')}{error}"
    )


def main(which: set[str]) -> None:
    """Print the tables named, or both, with the instructions named, or the best."""
    for variant in which & set(cpu.VARIANTS):
        if not cpu.set_variant(variant):
            sys.exit(f"this processor or build has no {variant}")
    which -= set(cpu.VARIANTS)
    print(f"{lib.library_path()}, {cpu.variant()}")
    if not which or "decode" in which:
        print(DECODE_HEAD)
        for decoded in codecs.decode_rows():
            print(decode_line(decoded), flush=True)
    if not which or "encode" in which:
        print(ENCODE_HEAD)
        for encoded in codecs.encode_rows():
            print(encode_line(encoded), flush=True)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
