"""Decoders against gguf-py and ggml bit for bit, hand-computed blocks, and damaged input."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest

from quantkit.codecs import can_decode, decode
from quantkit.codecs.base import HUGE_PAGE_BYTES, HUGE_PAGES_FROM_BYTES, new_output
from quantkit.errors import FormatError
from quantkit.qtypes import QTYPES, QType, by_gguf_id, by_name
from tests.ggml import Ggml

N_BLOCKS = 96
GGUF_TYPES = [qtype for qtype in QTYPES if qtype.gguf_id is not None]
BLOCK_TYPES = [qtype for qtype in GGUF_TYPES if qtype.block_size > 1]
PEER_NAMES = {peer.name for peer in gguf.quants._type_traits} | {"F32", "F16"}

MakeBlocks = Callable[[QType, int], np.ndarray]


def half(value: float) -> bytes:
    return np.array(value, "<f2").tobytes()


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_array_equal(
        np.ascontiguousarray(ours).view(np.uint32), np.ascontiguousarray(theirs).view(np.uint32)
    )


@pytest.mark.parametrize("qtype", GGUF_TYPES, ids=lambda q: q.name)
def test_decode_reads_every_ggml_type(qtype: QType) -> None:
    assert can_decode(qtype)
    zeros = np.zeros(3 * qtype.type_size, np.uint8)
    values = decode(qtype, {"data": zeros}, (3, qtype.block_size))
    assert values.dtype == np.float32
    assert values.shape == (3, qtype.block_size)
    assert not values.any()


BOTH = pytest.mark.parametrize("engine", ["numpy", "native"], indirect=True)


@BOTH
@pytest.mark.parametrize(
    "qtype", [q for q in GGUF_TYPES if q.name in PEER_NAMES], ids=lambda q: q.name
)
def test_decode_equals_gguf_py(qtype: QType, random_blocks: MakeBlocks) -> None:
    data = random_blocks(qtype, N_BLOCKS)
    peer = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[qtype.name])
    assert_same_bits(decode(qtype, {"data": data.reshape(-1)}, peer.shape), peer)


@pytest.mark.peer
@BOTH
@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda q: q.name)
def test_decode_equals_ggml(qtype: QType, random_blocks: MakeBlocks, ggml: Ggml) -> None:
    assert ggml.sizes(qtype) == (qtype.block_size, qtype.type_size)
    data = random_blocks(qtype, N_BLOCKS)
    peer = ggml.decode(qtype, data)
    if peer is None:
        assert qtype.name == "Q8_1"  # ggml never reads its activation type back
        return
    assert_same_bits(decode(qtype, {"data": data.reshape(-1)}, peer.shape), peer)


def test_q8_0_block_by_hand() -> None:
    data = half(0.5) + np.arange(-16, 16, dtype=np.int8).tobytes()
    values = decode_block("Q8_0", data)
    np.testing.assert_array_equal(values, np.arange(-16, 16) / 2)


def test_q4_0_block_by_hand() -> None:
    # Byte j holds element j in the low and element j + 16 in the high nibble; code 8 is zero.
    data = half(-0.25) + bytes(low | (15 - low) << 4 for low in range(16))
    values = decode_block("Q4_0", data)
    np.testing.assert_array_equal(values[:16], (np.arange(16) - 8) * -0.25)
    np.testing.assert_array_equal(values[16:], (7 - np.arange(16)) * -0.25)


def test_q4_1_block_by_hand() -> None:
    data = half(0.5) + half(-3) + bytes([0xF0] * 16)
    np.testing.assert_array_equal(decode_block("Q4_1", data), [-3.0] * 16 + [4.5] * 16)


def test_q5_0_block_by_hand() -> None:
    # Fifth bits: element 0 and element 31 only. Nibbles: 3 in the low, 5 in the high half.
    data = half(2) + bytes([0x01, 0, 0, 0x80]) + bytes([0x53] * 16)
    expected = [6.0] + [-26.0] * 15 + [-22.0] * 15 + [10.0]
    np.testing.assert_array_equal(decode_block("Q5_0", data), expected)


def test_q5_1_block_by_hand() -> None:
    data = half(1) + half(100) + bytes([0x01, 0, 0, 0x80]) + bytes([0x53] * 16)
    expected = [119.0] + [103.0] * 15 + [105.0] * 15 + [121.0]
    np.testing.assert_array_equal(decode_block("Q5_1", data), expected)


def test_iq4_nl_block_by_hand() -> None:
    levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
    data = half(2) + bytes(code | code << 4 for code in range(16))
    np.testing.assert_array_equal(decode_block("IQ4_NL", data), [2 * v for v in levels] * 2)


def test_mxfp4_block_by_hand() -> None:
    # e8m0 byte 128 is a scale of 2; e2m1 codes 0 to 7 are 0, .5, 1, 1.5, 2, 3, 4, 6, then minus.
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    data = bytes([128]) + bytes(code | code << 4 for code in range(16))
    expected = [2 * v for v in magnitudes] + [-2 * v for v in magnitudes]
    np.testing.assert_array_equal(decode_block("MXFP4", data), expected * 2)


def test_nvfp4_block_by_hand() -> None:
    # e4m3 bytes: 0x38 is 1, 0x40 is 2, 0x30 is 0.5, 0x01 is 2^-9; code 7 is 6, code 9 is -0.5.
    data = bytes([0x38, 0x40, 0x30, 0x01]) + bytes([0x97] * 32)
    values = decode_block("NVFP4", data).reshape(4, 2, 8)
    np.testing.assert_array_equal(values[:, 0, 0], [6, 12, 3, 6 * 2**-9])
    np.testing.assert_array_equal(values[:, 1, 7], [-0.5, -1, -0.25, -0.5 * 2**-9])
    assert (values == values[:, :, :1]).all()


def test_q2_0_block_by_hand() -> None:
    # 0b11_10_01_00: four elements, the first in the lowest bits: -1, 0, 1, 2 times d.
    for d in (0.5, -0.5):
        values = decode_block("Q2_0", half(d) + bytes([0b11100100] * 16))
        np.testing.assert_array_equal(values, np.tile([-d, 0, d, 2 * d], 16))


def test_q1_0_block_by_hand() -> None:
    values = decode_block("Q1_0", half(1.5) + bytes([0b00000001] * 16))
    np.testing.assert_array_equal(values, np.tile([1.5] + [-1.5] * 7, 16))


def test_q8_1_and_q8_k_blocks_by_hand() -> None:
    codes = np.arange(-16, 16, dtype=np.int8)
    data = half(0.5) + half(99) + codes.tobytes()
    np.testing.assert_array_equal(decode_block("Q8_1", data), codes * 0.5)
    many = np.arange(-128, 128).astype(np.int8)
    data = np.array(0.25, "<f4").tobytes() + many.tobytes() + bytes(range(32))
    np.testing.assert_array_equal(decode_block("Q8_K", data), many * 0.25)


def decode_block(name: str, data: bytes) -> np.ndarray:
    qtype = by_name(name)
    return decode(qtype, {"data": np.frombuffer(data, np.uint8)}, (qtype.block_size,))


@BOTH
@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda q: q.name)
def test_decode_does_not_depend_on_the_chunking(
    qtype: QType, random_blocks: MakeBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random_blocks(qtype, 48).reshape(-1)
    shape = (3, 4, 4 * qtype.block_size)
    whole = decode(qtype, {"data": data}, shape)
    monkeypatch.setattr("quantkit.codecs.blocks.DECODE_CHUNK_ELEMENTS", 5 * qtype.block_size)
    assert_same_bits(decode(qtype, {"data": data}, shape), whole)


@pytest.mark.parametrize("qtype", GGUF_TYPES, ids=lambda q: q.name)
def test_decode_of_no_rows(qtype: QType) -> None:
    empty = np.zeros(0, np.uint8)
    assert decode(qtype, {"data": empty}, (0, qtype.block_size)).shape == (0, qtype.block_size)


@pytest.mark.parametrize("qtype", GGUF_TYPES, ids=lambda q: q.name)
def test_decode_refuses_bytes_of_another_size(qtype: QType) -> None:
    data = np.zeros(qtype.type_size, np.uint8)
    for shape in ((2, qtype.block_size), (0, qtype.block_size)):
        with pytest.raises(FormatError, match="wrong size"):
            decode(qtype, {"data": data}, shape)
    with pytest.raises(FormatError, match="without its 'data' part"):
        decode(qtype, {"weight": data}, (qtype.block_size,))


@pytest.mark.parametrize("qtype", BLOCK_TYPES, ids=lambda q: q.name)
def test_decode_refuses_rows_of_partial_blocks(qtype: QType) -> None:
    # Two rows of one and a half blocks have the bytes of three whole ones.
    data = np.zeros(3 * qtype.type_size, np.uint8)
    with pytest.raises(FormatError, match=f"multiple of {qtype.block_size}"):
        decode(qtype, {"data": data}, (2, 3 * qtype.block_size // 2))


@BOTH
@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0", "IQ4_NL", "Q2_0", "Q6_K", "IQ3_S"])
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
def test_decode_names_the_block_of_a_scale_that_is_not_finite(name: str, bits: int) -> None:
    qtype = by_name(name)
    data = np.full((6, qtype.type_size), 0x11, np.uint8)
    offset = qtype.type_size - 2 if name == "Q6_K" else 0  # its scale comes last
    data[4, offset : offset + 2] = np.array([bits], "<u2").view(np.uint8)
    with pytest.raises(FormatError, match="block 4") as caught:
        decode(qtype, {"data": data.reshape(-1)}, (3, 2 * qtype.block_size))
    assert "index (2, 0)" in str(caught.value)


@BOTH
def test_decode_refuses_the_nan_exponent_of_mxfp4() -> None:
    qtype = by_name("MXFP4")
    data = np.zeros((2, qtype.type_size), np.uint8)
    data[1, 0] = 0xFF
    with pytest.raises(FormatError, match="block 1"):
        decode(qtype, {"data": data.reshape(-1)}, (2, 32))


def test_decode_refuses_an_opaque_type() -> None:
    with pytest.raises(FormatError, match="no codec reads TYPE_153"):
        decode(by_gguf_id(153), {"data": np.zeros(16, np.uint8)}, (16,))
    assert not can_decode(by_gguf_id(153))


@pytest.mark.parametrize("n_elements", [0, 7, (1 << 21) - 1, 1 << 21, (3 << 20) + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_large_outputs_start_at_a_huge_page(n_elements: int, dtype: type) -> None:
    out = new_output(n_elements, dtype)
    assert (out.shape, out.dtype) == ((n_elements,), dtype)
    assert out.flags.c_contiguous
    assert out.flags.writeable
    if out.nbytes >= HUGE_PAGES_FROM_BYTES:
        assert out.ctypes.data % HUGE_PAGE_BYTES == 0
    out[:] = 3  # all of it is there
    assert (out == 3).all()
