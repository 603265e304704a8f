"""Plain types: floats and integers of every width, their specials and their limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantkit.codecs import can_encode, decode, encode
from quantkit.errors import FormatError
from quantkit.qtypes import by_name

TORCH_EIGHT_BITS = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}
NUMPY_INTEGERS = {
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "U64": np.uint64,
}
HALF_WIDTH = {"F16": torch.float16, "BF16": torch.bfloat16}

finite_floats = hnp.arrays(
    np.float32, st.integers(1, 40), elements=st.floats(-60000, 60000, width=32)
)


@pytest.mark.parametrize("name", TORCH_EIGHT_BITS)
def test_eight_bit_floats_equal_torch(name: str) -> None:
    data = np.arange(256, dtype=np.uint8)
    peer = torch.from_numpy(data).view(TORCH_EIGHT_BITS[name]).float().numpy()
    np.testing.assert_array_equal(decode(by_name(name), {"data": data}, (256,)), peer)


def test_f4_pairs_low_nibble_first() -> None:
    values = decode(by_name("F4"), {"data": np.array([0x71, 0xF9], np.uint8)}, (2, 2))
    np.testing.assert_array_equal(values, [[0.5, 6.0], [-0.5, -6.0]])


@pytest.mark.parametrize("name", HALF_WIDTH)
def test_half_width_floats_decode_every_bit_pattern_as_torch(name: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    peer = torch.from_numpy(bits.view(np.int16)).view(HALF_WIDTH[name]).float().numpy()
    values = decode(by_name(name), {"data": bits.view(np.uint8)}, bits.shape)
    np.testing.assert_array_equal(values, peer)


@pytest.mark.parametrize("name", HALF_WIDTH)
@given(values=finite_floats)
def test_half_width_floats_encode_as_torch(name: str, values: np.ndarray) -> None:
    peer = torch.from_numpy(values).to(HALF_WIDTH[name]).view(torch.int16).numpy()
    np.testing.assert_array_equal(encode(by_name(name), values)["data"].view(np.int16), peer)


@given(values=finite_floats)
def test_f32_is_stored_as_it_is(values: np.ndarray) -> None:
    parts = encode(by_name("F32"), values)
    assert parts["data"].tobytes() == values.tobytes()
    np.testing.assert_array_equal(decode(by_name("F32"), parts, values.shape), values)


def test_f32_decodes_without_a_copy() -> None:
    data = np.arange(8, dtype=np.float32).view(np.uint8)
    assert np.shares_memory(decode(by_name("F32"), {"data": data}, (2, 4)), data)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_decode_passes_specials_on(name: str) -> None:
    qtype = by_name(name)
    specials = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0])
    dtype = {"F32": torch.float32, **HALF_WIDTH}[name]
    data = specials.to(dtype).view(torch.uint8).numpy()
    values = decode(qtype, {"data": data}, (4,))
    np.testing.assert_array_equal(values, specials.numpy())
    assert np.signbit(values[3])


@pytest.mark.parametrize(
    ("name", "largest", "too_large"),
    [
        ("F16", 65519.996, 65520.0),
        ("BF16", float(np.uint32(0x7F7F7FFF).view(np.float32)), 3.4e38),
        ("F32", float(np.finfo(np.float32).max), float("inf")),
    ],
)
def test_encode_refuses_what_rounds_to_infinity(
    name: str, largest: float, too_large: float
) -> None:
    qtype = by_name(name)
    values = np.zeros((2, 3), np.float32)
    values[1, 2] = -largest
    assert np.isfinite(decode(qtype, encode(qtype, values), values.shape)).all()
    values[1, 2] = too_large
    with pytest.raises(FormatError, match=r"index \(1, 2\)"):
        encode(qtype, values)


@pytest.mark.parametrize("name", NUMPY_INTEGERS)
def test_integers_decode_exactly(name: str) -> None:
    limits = np.iinfo(NUMPY_INTEGERS[name])
    stored = np.array([max(limits.min, -(2**24)), 0, 1, min(limits.max, 2**24)])
    stored = stored.astype(NUMPY_INTEGERS[name])
    values = decode(by_name(name), {"data": stored.view(np.uint8)}, (4,))
    np.testing.assert_array_equal(values.astype(np.int64), stored.astype(np.int64))
    assert not can_encode(by_name(name))


@pytest.mark.parametrize("name", ["I32", "I64", "U32", "U64"])
def test_integers_that_float32_would_round_are_refused(name: str) -> None:
    wide = [2**24 + 1] + ([2**60] if name.endswith("64") else [])
    for integer in wide:
        stored = np.array([[0, 1], [integer, 2]], NUMPY_INTEGERS[name])
        with pytest.raises(FormatError, match=rf"{integer} at index \(1, 0\)"):
            decode(by_name(name), {"data": stored.reshape(-1).view(np.uint8)}, (2, 2))


def test_f64_rounds_and_refuses_overflow() -> None:
    stored = np.array([1 / 3, -2.5, np.inf])
    values = decode(by_name("F64"), {"data": stored.view(np.uint8)}, (3,))
    np.testing.assert_array_equal(values, stored.astype(np.float32))
    with pytest.raises(FormatError, match=r"1e\+300 at index \(1,\)"):
        decode(by_name("F64"), {"data": np.array([0, 1e300]).view(np.uint8)}, (2,))


def test_bool_decodes_to_zero_and_one() -> None:
    values = decode(by_name("BOOL"), {"data": np.array([0, 1, 1], np.uint8)}, (3,))
    np.testing.assert_array_equal(values, [0, 1, 1])


def test_scalar_shape() -> None:
    parts = encode(by_name("BF16"), np.array(1.5, np.float32))
    assert decode(by_name("BF16"), parts, ()).item() == 1.5


@pytest.mark.parametrize("name", ["C64", "F6_E2M3", "F6_E3M2"])
def test_types_without_a_decoder_say_so(name: str) -> None:
    qtype = by_name(name)
    data = np.zeros(qtype.type_size, np.uint8)
    with pytest.raises(FormatError, match=f"no codec reads {name}"):
        decode(qtype, {"data": data}, (qtype.block_size,))
