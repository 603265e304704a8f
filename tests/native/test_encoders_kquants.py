"""Q2_K ... Q6_K: what their encoders keep, whatever the values, and their error against ggml's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantkit
from quantkit.codecs import decode
from quantkit.codecs.base import codec_for
from quantkit.codecs.blocks import EncodingCodec
from quantkit.containers.safetensors import open_safetensors
from quantkit.native import cpu
from quantkit.qtypes import QType, by_name
from tests.ggml import LIBRARY_VARIABLE, Ggml, find_ggml
from tests.native.encoding import encoded, round_trip, some_importance, squared_error

TYPES = [by_name(name) for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")]
ROW = 512
# Of the first encoding's error. With mins, codes need not span what the table of guesses assumes.
LOSS_AGAIN = {"Q2_K": 1e-3, "Q3_K": 1e-3, "Q4_K": 0.02, "Q5_K": 0.06, "Q6_K": 2e-3}
EMBEDDED = Path(quantkit.__file__).parent / "data" / "embedded"
each_type = pytest.mark.parametrize("qtype", TYPES, ids=lambda q: q.name)
pytestmark = pytest.mark.usefixtures("library")


def heavy_tailed(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, (rows, ROW)).astype(np.float32)


def hard_rows() -> np.ndarray:
    """One kind of difficulty to a row, at a magnitude of its own."""
    rows = heavy_tailed(12)
    rows[0] = 0
    rows[1] = 1
    rows[2] = -3
    rows[3] = np.abs(rows[3])
    rows[4] = -np.abs(rows[4])
    rows[5, ::256] = 1e6  # one value above all others of its block
    rows[6, 16:] = 0
    rows[7] *= np.float32(1e-7)  # super-scales are subnormal
    rows[8] *= np.float32(1e-40)  # so are the values
    rows[9] *= np.float32(1e37)  # above what the types hold
    rows[10] += 1000
    rows[11, 1::2] = rows[11, ::2]
    return rows


@each_type
def test_hard_rows_are_never_worse_than_zeros(qtype: QType) -> None:
    rows = hard_rows()
    for weights in (None, some_importance(ROW)):
        decoded = round_trip(qtype, rows, weights)
        assert np.isfinite(decoded).all()
        for row, approximation in zip(rows, decoded, strict=True):
            blank = squared_error(row, np.zeros_like(row), weights)
            assert squared_error(row, approximation, weights) <= blank * (1 + 1e-6)
    assert not round_trip(qtype, rows)[[0, 8]].any()


@each_type
def test_variants_agree_on_hard_rows(qtype: QType) -> None:
    results = [encoded(qtype, hard_rows(), w) for w in (None, some_importance(ROW))]
    for variant in cpu.VARIANTS:
        if cpu.set_variant(variant):
            for weights, expected in zip((None, some_importance(ROW)), results, strict=True):
                again = encoded(qtype, hard_rows(), weights)
                np.testing.assert_array_equal(again, expected, err_msg=variant)


@each_type
def test_a_power_of_two_passes_through(qtype: QType) -> None:
    values, weights = heavy_tailed(8), some_importance(ROW)
    decoded = round_trip(qtype, values, weights)
    for exponent in (-4, 1, 7):
        factor = np.float32(2.0**exponent)
        np.testing.assert_array_equal(round_trip(qtype, values * factor, weights), decoded * factor)
        np.testing.assert_array_equal(round_trip(qtype, values, weights * factor), decoded)


@each_type
def test_encoding_again_loses_next_to_nothing(qtype: QType) -> None:
    values = heavy_tailed(32)
    once = round_trip(qtype, values)
    twice = round_trip(qtype, once)
    assert squared_error(once, twice) <= LOSS_AGAIN[qtype.name] * squared_error(values, once)


@each_type
def test_subnormal_super_scales_are_used(qtype: QType) -> None:
    """At a magnitude of 2^-20 a super-scale has a few bits at most, and the error tells."""
    values = np.clip(heavy_tailed(8), -3, 3) * np.float32(2.0**-20)
    decoded = round_trip(qtype, values)
    assert squared_error(values, decoded) < 0.2 * squared_error(values, np.zeros_like(values))


@each_type
def test_importance_moves_the_error_to_where_it_matters_less(qtype: QType) -> None:
    values = heavy_tailed(32)
    weights = np.where(np.arange(ROW) % 2, 1.0, 0.01).astype(np.float32)
    aware, plain = round_trip(qtype, values, weights), round_trip(qtype, values)
    assert squared_error(values, aware, weights) < 0.97 * squared_error(values, plain, weights)


@each_type
def test_no_importance_in_a_block_is_equal_importance(qtype: QType) -> None:
    values, weights = heavy_tailed(4), np.ones(ROW, np.float32)
    equal = encoded(qtype, values, weights)
    weights[:256] = 0
    np.testing.assert_array_equal(encoded(qtype, values, weights), equal)


@each_type
@given(
    exponent=st.integers(-10, 10),
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 4),
    offset=st.floats(-3, 3),
)
def test_error_is_within_the_codes_spacing(
    qtype: QType, exponent: int, seed: int, spread: float, offset: float
) -> None:
    """The mean miss is below a step of codes that span each block from its extremes to 0."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((1, 256)) * np.exp(spread * rng.standard_normal(256)) + offset
    codec = codec_for(qtype)
    assert isinstance(codec, EncodingCodec)
    reach = codec.largest  # beyond it no code is near, and `codecs.encode` refuses the value
    values = np.clip(values * 2.0**exponent, -reach, reach).astype(np.float32)
    levels = {"Q2_K": 4, "Q3_K": 8, "Q4_K": 16, "Q5_K": 32, "Q6_K": 64}[qtype.name]
    step = 2 * np.abs(values).max() / (levels - 1)
    assert squared_error(values, round_trip(qtype, values)) < 256 * step**2 / 2


def embedded_tensors() -> list[np.ndarray]:
    """One tensor of each role, layers and experts aside."""
    roles = {}
    for name, entry in open_safetensors(EMBEDDED).tensors.items():
        role = "".join(c for c in name if not c.isdigit())
        if len(entry.shape) >= 2 and entry.shape[-1] % 256 == 0 and role not in roles:
            values = decode(entry.qtype, entry.parts(), entry.shape)
            roles[role] = np.ascontiguousarray(values.reshape(-1, entry.shape[-1])[:64])
    return list(roles.values())


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    found = find_ggml()
    if found is None:
        pytest.skip(f"no ggml library: set {LIBRARY_VARIABLE}")
    return found


@pytest.mark.peer
@each_type
def test_error_is_at_most_that_of_ggml(ggml: Ggml, qtype: QType) -> None:
    rng = np.random.default_rng(3)
    gaussian = rng.standard_normal((64, ROW)).astype(np.float32)
    sets = {"Gaussian": [gaussian], "t": [heavy_tailed(64)], "embedded": embedded_tensors()}
    for label, tensors in sets.items():
        for with_importance in (False, True):
            ratios = []
            for values in tensors:
                weights = some_importance(values.shape[1]) if with_importance else None
                theirs = decode(qtype, {"data": ggml.encode(qtype, values, weights)}, values.shape)
                ours = round_trip(qtype, values, weights)
                ratios.append(
                    squared_error(values, ours, weights) / squared_error(values, theirs, weights)
                )
            assert np.mean(ratios) < 0.97, (label, with_importance)
            assert max(ratios) <= 1, (label, with_importance)
