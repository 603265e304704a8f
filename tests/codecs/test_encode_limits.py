"""Encoders at their limits: extreme and refused values, importance, shapes, and memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from quantkit.codecs import can_encode, decode, encode
from quantkit.codecs.base import codec_for
from quantkit.errors import FormatError
from quantkit.qtypes import QTYPES, QType, by_gguf_id, by_name
from tests.codecs.helpers import (
    BLOCK_TYPES,
    ENCODABLE,
    ROW,
    SCALED,
    channel_weights,
    each,
    gaussian,
    round_trip,
    squared_error,
)


@each(BLOCK_TYPES)
def test_largest_magnitude_is_stored_and_more_is_refused(qtype: QType) -> None:
    largest = np.float32(codec_for(qtype).largest)
    for value in (largest, -largest):
        values = np.zeros((2, ROW), np.float32)
        values[1, 7] = value
        decoded = round_trip(qtype, values)
        assert np.isfinite(decoded).all()
        # Q1_0 spreads one element's magnitude over its block.
        if qtype.name != "Q1_0":
            np.testing.assert_allclose(decoded[1, 7], value, rtol=0.13)
    values[1, 7] = np.nextafter(largest, np.float32(np.inf))
    with pytest.raises(FormatError, match=r"index \(1, 7\)"):
        encode(qtype, values)


@each(BLOCK_TYPES)
def test_tiny_values_do_no_harm(qtype: QType) -> None:
    for magnitude in (1e-6, 1e-8, 1e-20, 1e-42):
        values = gaussian(24, (2, ROW)) * np.float32(magnitude)
        decoded = round_trip(qtype, values)
        assert squared_error(decoded, values) <= 1.001 * squared_error(values, 0 * values)


@each(SCALED)
def test_values_below_the_scanned_scales_use_the_smallest_one(qtype: QType) -> None:
    values = np.full((1, ROW), -5e-8, np.float32)
    np.testing.assert_allclose(round_trip(qtype, values), -(2.0**-24))


@each(ENCODABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_by_position(qtype: QType, bad: float) -> None:
    values = gaussian(25, (2, 3, ROW))
    values[1, 2, 130] = bad
    with pytest.raises(FormatError, match=r"index \(1, 2, 130\)") as caught:
        encode(qtype, values)
    assert qtype.name in str(caught.value)


@each(BLOCK_TYPES)
def test_rows_of_partial_blocks_are_refused(qtype: QType) -> None:
    with pytest.raises(FormatError, match=f"multiple of {qtype.block_size}"):
        encode(qtype, gaussian(26, (2, qtype.block_size * 3 // 2)))


@pytest.mark.parametrize(
    ("shape", "importance"),
    [
        ((4, ROW), np.ones(ROW - 1)),
        ((4, ROW), np.ones((4, ROW))),
        ((4, 2, ROW), np.ones((2, ROW))),
        ((ROW,), np.ones(())),
    ],
)
def test_importance_of_another_shape_is_refused(
    shape: tuple[int, ...], importance: np.ndarray
) -> None:
    for qtype in ENCODABLE:
        with pytest.raises(FormatError, match="does not fit the tensor"):
            encode(qtype, gaussian(27, shape), importance)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_importance_that_is_no_mean_square_is_refused(bad: float) -> None:
    importance = np.ones((2, ROW))
    importance[1, 3] = bad
    with pytest.raises(FormatError, match=r"index \(1, 3\)"):
        encode(by_name("Q4_0"), gaussian(28, (2, 2, ROW)), importance)


@pytest.mark.parametrize("qtype", [q for q in QTYPES if not can_encode(q)], ids=lambda q: q.name)
def test_types_without_an_encoder_say_so(qtype: QType) -> None:
    with pytest.raises(FormatError, match=qtype.name):
        encode(qtype, gaussian(29, (1, ROW)))


def test_opaque_types_cannot_be_written() -> None:
    assert not can_encode(by_gguf_id(153))
    with pytest.raises(FormatError, match="TYPE_153"):
        encode(by_gguf_id(153), gaussian(30, (1, ROW)))


@each(ENCODABLE)
def test_no_rows(qtype: QType) -> None:
    values = np.zeros((0, 3, ROW), np.float32)
    assert encode(qtype, values)["data"].size == 0
    assert encode(qtype, values, np.ones((0, ROW)))["data"].size == 0


@pytest.mark.parametrize("name", ["Q1_0", "MXFP4", "NVFP4", "BF16"])
def test_temporary_memory_is_bounded(name: str) -> None:
    qtype = by_name(name)
    values = gaussian(31, (2048, 2048))
    tracemalloc.start()
    try:
        parts = encode(qtype, values, channel_weights(32, 2048))
        _, encode_peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        decoded = decode(qtype, parts, values.shape)
        _, decode_peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allowance_bytes = 8 << 20  # half the size of the values
    assert encode_peak_bytes < parts["data"].nbytes + allowance_bytes
    assert decode_peak_bytes < parts["data"].nbytes + decoded.nbytes + allowance_bytes
