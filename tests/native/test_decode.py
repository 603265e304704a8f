"""Native decoders: variants, threads, alignment and sizes never change a bit."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.codecs.base import bfloat_bits
from quantkit.native import cpu
from quantkit.native.abi import Operation
from quantkit.qtypes import QTYPES, QType, by_name

TYPES = [q for q in QTYPES if cpu.can_decode(q.gguf_id)]
each_type = pytest.mark.parametrize("qtype", TYPES, ids=lambda q: q.name)
pytestmark = pytest.mark.usefixtures("library")


def random_bytes(qtype: QType, n_blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, n_blocks * qtype.type_size, dtype=np.uint8)


def decoded(qtype: QType, data: np.ndarray, dtype: type = np.float32, threads: int = 1):
    out = np.full(data.size // qtype.type_size * qtype.block_size, 7, dtype)
    cpu.decode(qtype.gguf_id or 0, data, out, threads=threads)
    return out


def assert_same(ours: np.ndarray, expected: np.ndarray) -> None:
    """Same bits; any NaN stands for any other."""
    as_bits = {4: np.uint32, 2: np.uint16}[ours.dtype.itemsize]
    both_nan = np.isnan(as_float(ours)) & np.isnan(as_float(expected))
    same = ours.view(as_bits) == expected.view(as_bits)
    assert (same | both_nan).all()


def as_float(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.float32:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


@each_type
@pytest.mark.parametrize("variant", ["avx2", "avx512"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_variants_give_the_bits_of_the_scalar_one(qtype: QType, variant: str, dtype: type) -> None:
    data = random_bytes(qtype, 12288 // qtype.block_size + 3)
    assert cpu.set_variant("scalar")
    expected = decoded(qtype, data, dtype)
    if not cpu.set_variant(variant):
        pytest.skip(f"this processor has no {variant}")
    assert cpu.variant() == variant
    assert_same(decoded(qtype, data, dtype), expected)


@each_type
@pytest.mark.parametrize("variant", ["scalar", "avx2", "avx512"])
def test_outputs_past_the_caches_equal_small_ones(qtype: QType, variant: str) -> None:
    # From 16 MiB on the results are streamed unless the output is fresh: whole tasks and a tail,
    # and an odd address.
    if not cpu.set_variant(variant):
        pytest.skip(f"this processor has no {variant}")
    n_blocks = (1 << 22) // qtype.block_size + 5
    unit = random_bytes(qtype, 512)
    data = np.resize(unit, n_blocks * qtype.type_size)
    expected = np.resize(decoded(qtype, unit), n_blocks * qtype.block_size)
    space = np.full(expected.size + 3, 7, np.float32)
    for fresh in (False, True):
        space[:] = 7
        cpu.decode(qtype.gguf_id or 0, data, space[1:-2], fresh=fresh, threads=2)
        assert_same(space[1:-2], expected)
        assert space[0] == space[-1] == space[-2] == 7


@each_type
@settings(max_examples=15, deadline=None)
@given(n_blocks=st.integers(0, 70), offset=st.integers(0, 9), seed=st.integers(0, 2**32 - 1))
def test_any_address_and_number_of_blocks(
    qtype: QType, n_blocks: int, offset: int, seed: int
) -> None:
    data = random_bytes(qtype, n_blocks, seed)
    shifted = np.concatenate([np.zeros(offset, np.uint8), data])[offset:]
    assert_same(decoded(qtype, shifted), decoded(qtype, data))
    blocks = data.reshape(n_blocks, qtype.type_size)
    alone = [decoded(qtype, block) for block in blocks]
    assert_same(decoded(qtype, data), np.concatenate([np.empty(0, np.float32), *alone]))


@each_type
def test_threads_do_not_change_the_result(qtype: QType) -> None:
    data = random_bytes(qtype, (1 << 20) // qtype.block_size + 1)
    expected = decoded(qtype, data)
    for threads in (2, 3, 8):
        assert_same(decoded(qtype, data, threads=threads), expected)


@each_type
def test_bfloats_are_the_floats_rounded(qtype: QType) -> None:
    data = random_bytes(qtype, 8192 // qtype.block_size)
    assert_same(decoded(qtype, data, np.uint16), bfloat_bits(decoded(qtype, data)))


def test_bfloat_rounds_every_upper_half_to_nearest_even() -> None:
    halves = np.arange(1 << 16, dtype=np.uint32) << 16
    lows = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    floats = (halves[:, None] | lows).reshape(-1).view(np.float32)
    out = np.empty(floats.size, np.uint16)
    cpu.decode(0, floats.view(np.uint8), out)
    assert_same(out, bfloat_bits(floats))


@each_type
def test_power_of_two_scales_scale_the_values(qtype: QType) -> None:
    if qtype.block_size == 1:
        pytest.skip("no scale")
    offsets = {"MXFP4": None, "NVFP4": None, "IQ1_M": None, "Q2_K": 80, "Q3_K": 108, "Q6_K": 208}
    offset = offsets.get(qtype.name, {"TQ1_0": 52, "TQ2_0": 64}.get(qtype.name, 0))
    if offset is None:
        pytest.skip("its scale is no half in one place")
    blocks = random_bytes(qtype, 64).reshape(64, qtype.type_size)
    n_halves = 2 if qtype.name in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K") else 1

    def with_scale(exponent: int) -> np.ndarray:
        changed = blocks.copy()
        scale = np.full(n_halves, 1.5 * 2.0**exponent, "<f2")
        changed[:, offset : offset + 2 * n_halves] = scale.view(np.uint8)
        return decoded(qtype, changed.reshape(-1))

    # 1.5 times 2^-24 is not a half: the smallest here, 1.5 * 2^-23, is subnormal.
    for exponent in (-23, -15, -1, 14):
        assert_same(with_scale(exponent), with_scale(0) * np.float32(2.0**exponent))


@each_type
def test_scales_that_are_not_finite_are_reported(qtype: QType) -> None:
    if qtype.block_size == 1 or qtype.name == "NVFP4":  # every e4m3 byte reads as a number
        pytest.skip("nothing to report")
    rng = np.random.default_rng(1)
    found = set()
    for _ in range(400):
        data = rng.integers(0, 256, qtype.type_size, dtype=np.uint8)
        out = np.empty(qtype.block_size, np.float32)
        fine = cpu.decode(qtype.gguf_id or 0, data, out)
        assert not fine or np.isfinite(out).all()
        found.add(fine)
    assert found == {True, False}


def test_input_may_be_a_read_only_mapping(tmp_path: Path) -> None:
    qtype = by_name("Q6_K")
    data = random_bytes(qtype, 8)
    path = tmp_path / "blocks"
    path.write_bytes(data.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert_same(decoded(qtype, np.frombuffer(mapped, np.uint8)), decoded(qtype, data))


def test_calls_from_several_threads_do_not_meet() -> None:
    qtype = by_name("IQ3_S")
    data = [random_bytes(qtype, 2048, seed) for seed in range(8)]
    expected = [decoded(qtype, d) for d in data]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = pool.map(lambda d: decoded(qtype, d, threads=3), data)
            for ours, wanted in zip(results, expected, strict=True):
                assert_same(ours, wanted)


def _decode_in_child(data: np.ndarray) -> bytes:
    return decoded(by_name("Q4_K"), data, threads=3).tobytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    data = random_bytes(by_name("Q4_K"), 8192)
    expected = decoded(by_name("Q4_K"), data, threads=3)  # the pool exists before the fork
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert_same(
            np.frombuffer(pool.apply_async(_decode_in_child, (data,)).get(30), np.float32),
            expected,
        )


@each_type
def test_layouts_are_those_of_the_table(qtype: QType) -> None:
    assert cpu.block(Operation.DECODE, qtype.gguf_id) == (qtype.block_size, qtype.type_size)
