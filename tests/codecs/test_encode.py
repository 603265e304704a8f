"""Encoders: error bars, symmetries, importance, limits. Every encoder in the table is tested."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quantkit.codecs import decode, encode
from quantkit.codecs.blocks import as_columns
from quantkit.qtypes import QType, by_name
from tests.codecs.helpers import (
    AFFINE,
    BLOCK_TYPES,
    ENCODABLE,
    ROW,
    SCALED,
    SCALED_SCALES,
    channel_weights,
    each,
    engine_in_use,
    gaussian,
    heavy_tailed,
    round_trip,
    squared_error,
)

PEER_QUANTIZERS = [by_name(n) for n in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")]
SLACK = {"numpy": 1e-12, "native": 2.0**-22}
# Of the least error that any scale gives, without and with importance.
NEAR_BEST = {"numpy": (1.02, 1.1), "native": (1.05, 1.15)}
REQUIRED = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "MXFP4", "Q2_0"}


def test_required_types_can_be_written() -> None:
    assert {qtype.name for qtype in ENCODABLE} >= REQUIRED


@each(ENCODABLE)
def test_parts_have_the_size_of_the_table(qtype: QType) -> None:
    values = gaussian(0, (3, 2, ROW))
    parts = encode(qtype, values)
    assert set(parts) == {"data"}
    assert parts["data"].dtype == np.uint8
    assert parts["data"].shape == (qtype.nbytes(values.size),)


@each(BLOCK_TYPES)
def test_error_of_gaussian_values_is_near_that_of_the_bits(qtype: QType) -> None:
    # The distortion-rate bound of a Gaussian is 4^-bits; the worst of these grids is 5.3 times it.
    values = gaussian(1)
    error = squared_error(round_trip(qtype, values), values) / squared_error(values, 0 * values)
    assert error <= 5.5 * 4.0**-qtype.bpw


@each([q for q in ENCODABLE if q.block_size == 1])
def test_error_of_plain_floats_is_half_a_step(qtype: QType) -> None:
    mantissa_bits = {"F32": 23, "F16": 10, "BF16": 7}[qtype.name]
    values = gaussian(1)
    error = np.abs(round_trip(qtype, values) - values)
    # F16 has its last steps, of 2^-24, below 2^-14.
    assert (error <= np.maximum(np.abs(values) * 2.0 ** -(mantissa_bits + 1), 2.0**-25)).all()


@each([q for q in BLOCK_TYPES if q not in AFFINE and q not in SCALED_SCALES])
@pytest.mark.parametrize("weighted", [False, True])
def test_encoding_what_was_decoded_changes_nothing(qtype: QType, weighted: bool) -> None:
    importance = channel_weights(3) if weighted else None
    once = round_trip(qtype, heavy_tailed(2), importance)
    np.testing.assert_array_equal(round_trip(qtype, once, importance), once)


@each([q for q in BLOCK_TYPES if q in AFFINE or q in SCALED_SCALES])
def test_encoding_what_was_decoded_changes_little(qtype: QType) -> None:
    values = heavy_tailed(2)
    once = round_trip(qtype, values)
    assert squared_error(round_trip(qtype, once), once) <= 0.04 * squared_error(once, values)


@each([qtype for qtype in ENCODABLE if qtype not in AFFINE])
def test_negated_values_decode_negated(qtype: QType) -> None:
    values = heavy_tailed(4)
    values[0, :64] = np.tile([1, -1], 32)  # ties in magnitude
    values[1] = np.round(4 * values[1]) / 4  # values on the midpoints of levels
    if qtype.name == "Q1_0":
        values[values == 0] = 1  # it has no zero, and 0 counts as positive
    importance = channel_weights(5)
    ours = round_trip(qtype, values, importance)
    np.testing.assert_array_equal(round_trip(qtype, -values, importance), -ours)


@each(AFFINE)
def test_negated_values_lose_as_much(qtype: QType) -> None:
    values = heavy_tailed(4)
    error = squared_error(round_trip(qtype, values), values)
    negated = squared_error(round_trip(qtype, -values), -values)
    assert negated == pytest.approx(error, rel=0.02)


@each(ENCODABLE)
@pytest.mark.parametrize("exponent", [-2, 1, 3])
def test_scaling_by_a_power_of_two_scales_the_result(qtype: QType, exponent: int) -> None:
    # Large enough that no scale is subnormal, not even an e4m3 one.
    values = gaussian(6, scale=32.0)
    if qtype.name == "F16":
        values = np.where(np.abs(values) < 2**-10, 0, values).astype(np.float32)
    factor = np.float32(2.0**exponent)
    importance = channel_weights(7)
    expected = round_trip(qtype, values, importance) * factor
    np.testing.assert_array_equal(round_trip(qtype, values * factor, importance), expected)


@each(ENCODABLE)
def test_zeros_stay_zero(qtype: QType) -> None:
    values = gaussian(8, (4, ROW))
    values[1] = 0
    values[2, :128] = 0
    for importance in (None, channel_weights(9), np.zeros(ROW, np.float32)):
        decoded = round_trip(qtype, values, importance)
        assert not decoded[1].any()
        assert not decoded[2, :128].any()
        assert np.isfinite(decoded).all()


@each(BLOCK_TYPES)
def test_constant_blocks_are_kept(qtype: QType) -> None:
    for constant in (0.75, -3.0):
        values = np.full((2, ROW), constant, np.float32)
        np.testing.assert_allclose(round_trip(qtype, values), values, rtol=2e-3)


def test_sums_of_one_block_are_those_of_many() -> None:
    # With a single column numpy would sum along memory, in another order.
    blocks = gaussian(34, (512, 32))
    together = np.add.reduce(as_columns(blocks), axis=0)
    alone = [np.add.reduce(as_columns(block[None]), axis=0)[0] for block in blocks]
    np.testing.assert_array_equal(alone, together)


@each(BLOCK_TYPES)
def test_result_does_not_depend_on_the_chunking(
    qtype: QType, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, importance = heavy_tailed(10, (9, ROW)), channel_weights(11)
    whole = encode(qtype, values, importance)["data"]
    rows = [encode(qtype, row, importance)["data"] for row in values]
    np.testing.assert_array_equal(np.concatenate(rows), whole)
    monkeypatch.setattr("quantkit.codecs.blocks.ENCODE_CHUNK_ELEMENTS", qtype.block_size)
    np.testing.assert_array_equal(encode(qtype, values, importance)["data"], whole)


@each(BLOCK_TYPES)
def test_strided_values_encode_like_contiguous_ones(qtype: QType) -> None:
    values = heavy_tailed(12, (ROW, 6)).T
    expected = encode(qtype, np.ascontiguousarray(values))["data"]
    np.testing.assert_array_equal(encode(qtype, values)["data"], expected)


@each(BLOCK_TYPES)
def test_importance_lowers_the_weighted_error(qtype: QType) -> None:
    values, importance = heavy_tailed(13), channel_weights(14)
    plain = squared_error(round_trip(qtype, values), values, importance)
    weighted = squared_error(round_trip(qtype, values, importance), values, importance)
    assert weighted < plain


@each(ENCODABLE)
def test_importance_per_expert_is_that_of_each_matrix(qtype: QType) -> None:
    values = heavy_tailed(15, (3, 4, ROW))
    importance = np.stack([channel_weights(seed) for seed in (16, 17, 18)])
    importance[1] = 0  # an expert that no token reached
    together = encode(qtype, values, importance)["data"].reshape(3, -1)
    for expert in range(3):
        alone = encode(qtype, values[expert], importance[expert])["data"]
        np.testing.assert_array_equal(together[expert], alone)
    np.testing.assert_array_equal(
        encode(qtype, values, importance[0])["data"],
        encode(qtype, values, np.stack([importance[0]] * 3))["data"],
    )


@each(BLOCK_TYPES)
def test_only_the_relative_size_of_importance_counts(qtype: QType) -> None:
    values, weights = heavy_tailed(19, (4, ROW)), channel_weights(20)
    zeros = encode(qtype, values, np.zeros(ROW, np.float32))["data"]
    np.testing.assert_array_equal(zeros, encode(qtype, values)["data"])
    expected = encode(qtype, values, weights)["data"]
    larger = encode(qtype, values, weights * np.float32(2.0**40))["data"]
    np.testing.assert_array_equal(larger, expected)


@each(BLOCK_TYPES)
def test_constant_importance_is_not_worse_than_none(qtype: QType) -> None:
    values = heavy_tailed(33)
    constant = squared_error(round_trip(qtype, values, np.full(ROW, 3.0)), values)
    assert constant <= 1.01 * squared_error(round_trip(qtype, values), values)


@each(BLOCK_TYPES)
def test_channels_without_importance_do_not_set_the_scale(qtype: QType) -> None:
    values = gaussian(21, (8, ROW))
    importance = np.ones(ROW, np.float32)
    importance[::32] = 0
    quiet = values.copy()
    quiet[:, ::32] = 0
    values[:, ::32] *= 4
    loud_error = squared_error(round_trip(qtype, values, importance), values, importance)
    plain_error = squared_error(round_trip(qtype, values), values, importance)
    assert loud_error < plain_error
    # The scales of a super-block share one step, which the loud channels may still stretch.
    bound = 2.0 if qtype in SCALED_SCALES else 1.3
    quiet_error = squared_error(round_trip(qtype, quiet, importance), quiet, importance)
    assert loud_error < bound * quiet_error


@each(PEER_QUANTIZERS)
@settings(max_examples=30, deadline=None)
@given(
    # gguf-py overflows on an inverse scale below 1e-38.
    values=hnp.arrays(
        np.float32,
        (2, 64),
        elements=st.floats(-1000, 1000, width=32).map(lambda v: v if abs(v) > 1e-30 else 0),
    )
)
def test_no_block_is_worse_than_by_rounding(qtype: QType, values: np.ndarray) -> None:
    peer_type = gguf.GGMLQuantizationType[qtype.name]
    peer = gguf.quants.dequantize(gguf.quants.quantize(values, peer_type), peer_type)
    ours = round_trip(qtype, values)
    for start in range(0, 64, 32):
        block = np.s_[:, start : start + 32]
        for row in range(2):
            exact = values[block][row]
            bar = squared_error(peer[block][row], exact)
            # The searches compare errors computed in single precision; the native ones do not
            # look for a scale that happens to be a half, a relative 2^-11 from theirs.
            slack = 1e-5 * bar + SLACK[engine_in_use()] * squared_error(exact, 0 * exact) + 1e-13
            assert squared_error(ours[block][row], exact) <= bar + slack


@each(BLOCK_TYPES)
@settings(max_examples=30, deadline=None)
@given(
    values=hnp.arrays(
        np.float32, (1, ROW), elements=st.floats(-2600, 2600, width=32, allow_subnormal=True)
    ),
    importance=hnp.arrays(np.float32, ROW, elements=st.floats(0, 2.0**60, width=32)),
)
def test_any_values_lose_at_most_their_square(
    qtype: QType, values: np.ndarray, importance: np.ndarray
) -> None:
    decoded = round_trip(qtype, values, importance)
    assert np.isfinite(decoded).all()
    floor = 1e-6 * (importance.mean(dtype=np.float64) or 1.0)
    weight = importance.astype(np.float64) + floor
    # Storing zeros is the least a type with a zero can do; Q1_0's optimum is better still.
    bound = squared_error(values, 0 * values, weight)
    assert squared_error(decoded, values, weight) <= bound * (1 + 1e-3) + 1e-30


def stored_levels(qtype: QType) -> np.ndarray:
    """All values of a type at scale 1, from random codes."""
    blocks = np.random.default_rng(0).integers(0, 256, (512, qtype.type_size), dtype=np.uint8)
    blocks[:, :2] = np.array([1.0], "<f2").view(np.uint8)
    values = decode(qtype, {"data": blocks.reshape(-1)}, (512 * qtype.block_size,))
    levels = np.unique(values)
    return levels[levels > -128]  # our Q8_0 leaves it out


def exhaustive_error(levels: np.ndarray, block: np.ndarray, weight: np.ndarray) -> float:
    """The least weighted squared error over every half-precision scale of either sign."""
    scales = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    largest = np.abs(block).max()
    reach = np.abs(levels).max()
    scales = scales[(scales > largest / reach / 20) & (scales < 2 * largest)]
    midpoints = (levels[1:] + levels[:-1]) / 2
    best = np.inf
    for signed in (scales, -scales):
        targets = block[None, :] / signed[:, None]
        nearest = levels[np.searchsorted(midpoints, targets)]
        errors = (weight * (nearest * signed[:, None] - block) ** 2).sum(axis=1)
        best = min(best, float(errors.min()))
    return best


@each(SCALED)
@pytest.mark.parametrize("weighted", [False, True])
def test_search_is_near_the_best_of_all_scales(engine: str, qtype: QType, weighted: bool) -> None:
    values = heavy_tailed(22, (2, ROW)) * np.float32(0.05)
    importance = channel_weights(23) if weighted else np.ones(ROW, np.float32)
    decoded = round_trip(qtype, values, importance if weighted else None)
    levels = stored_levels(qtype)
    weights = np.broadcast_to(importance, values.shape).reshape(-1, qtype.block_size)
    blocks = values.astype(np.float64).reshape(-1, qtype.block_size)
    best = sum(exhaustive_error(levels, b, w) for b, w in zip(blocks, weights, strict=True))
    ours = squared_error(decoded, values, importance)
    assert best * (1 - 1e-5) <= ours <= NEAR_BEST[engine][weighted] * best
