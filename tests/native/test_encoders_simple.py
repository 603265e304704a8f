"""Types with one level of scales, and IQ4_XS: blocks alone, hard rows, error against ggml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quantkit
from quantkit.codecs import decode
from quantkit.containers.safetensors import open_safetensors
from quantkit.native import cpu
from quantkit.qtypes import QType, by_name
from tests.ggml import LIBRARY_VARIABLE, Ggml, find_ggml
from tests.native.encoding import encoded, round_trip, some_importance, squared_error

NAMES = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NVFP4",
    "Q1_0",
    "Q2_0",
)
TYPES = [by_name(name) for name in NAMES]
HALF_SCALES = [by_name(name) for name in ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "Q1_0", "Q2_0")]
EMBEDDED = Path(quantkit.__file__).parent / "data" / "embedded"
pytestmark = pytest.mark.usefixtures("library")


def each(qtypes: list[QType]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("qtype", qtypes, ids=lambda q: q.name)


@each(TYPES)
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 5, 8, 9, 17, 31, 40])
def test_a_block_is_encoded_as_if_it_were_alone(qtype: QType, n_blocks: int) -> None:
    # Blocks are searched side by side; 17 leaves one over, whatever the width.
    rng = np.random.default_rng(n_blocks)
    magnitudes = (2.0 ** rng.integers(-9, 9, (n_blocks, 1))).astype(np.float32)
    blocks = rng.standard_t(3, (n_blocks, qtype.block_size)).astype(np.float32) * magnitudes
    importance = some_importance(blocks.size).reshape(blocks.shape)
    together = encoded(qtype, blocks.reshape(1, -1), importance.reshape(-1))
    alone = [encoded(qtype, b[None], w) for b, w in zip(blocks, importance, strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@each(TYPES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-44, 10),
    spread=st.floats(0.1, 8.0),
    silent=st.floats(0.0, 1.0),
)
def test_variants_agree_and_beat_zeros_on_hard_rows(
    qtype: QType, seed: int, exponent: int, spread: float, silent: float
) -> None:
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1, 0, 1], np.float32), (2, 768))
    values = signs * np.exp(spread * rng.standard_normal((2, 768))) * 2.0**exponent
    values = np.clip(values, -2600, 2600).astype(np.float32)
    importance = np.exp(spread * rng.standard_normal(768)).astype(np.float32)
    importance[rng.random(768) < silent] = 0
    results = []
    try:
        for variant in cpu.VARIANTS:
            if cpu.set_variant(variant):
                results.append(encoded(qtype, values, importance))
    finally:
        cpu.set_variant(None)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    decoded = decode(qtype, {"data": results[0]}, values.shape)
    assert np.isfinite(decoded).all()
    # An encoder counts weights below 2^-24 of a block's largest as that share.
    blocks = importance.reshape(-1, qtype.block_size)
    counted = np.maximum(blocks, blocks.max(axis=1, keepdims=True) * np.float32(2.0**-24))
    counted[blocks.max(axis=1) == 0] = 1
    bound = squared_error(values, np.zeros_like(values), counted.reshape(-1))
    assert squared_error(values, decoded, counted.reshape(-1)) <= bound * (1 + 1e-3)


@each(HALF_SCALES)
def test_magnitudes_below_the_smallest_scale_become_zero_or_it(qtype: QType) -> None:
    smallest = np.float32(2.0**-24)
    for magnitude in (2.0**-40, 2.0**-30, 0.9 * 2.0**-24, 2.0**-24):
        values = np.full((1, qtype.block_size), magnitude, np.float32)
        decoded = round_trip(qtype, values)
        assert set(np.unique(decoded)) <= {0.0, smallest}
        assert squared_error(values, decoded) <= squared_error(values, np.zeros_like(values))


@each([q for q in TYPES if q.name != "Q1_0"])
def test_a_lone_value_is_kept(qtype: QType) -> None:
    values = np.zeros((1, 256), np.float32)
    for at, value in ((0, 3.0), (5, -3.0), (255, 0.75)):
        values[:] = 0
        values[0, at] = value
        # IQ4 has no zero: its smallest level is 1/127 of the largest.
        np.testing.assert_allclose(round_trip(qtype, values), values, atol=0.008 * abs(value))


def test_group_scales_weigh_as_the_importance_of_their_groups() -> None:
    # IQ4_XS shares its super-scale between groups, of which one matters and is met exactly.
    levels = np.array([-127, -104, -83, -65, 113, 89, 69, 53], np.float32)
    values = np.random.default_rng(2).standard_t(3, (1, 256)).astype(np.float32)
    values[0, 64:96] = np.tile(levels, 4) * np.float32(0.37)
    importance = np.ones(256, np.float32)
    importance[64:96] = 1e5
    decoded = round_trip(by_name("IQ4_XS"), values, importance)
    np.testing.assert_allclose(decoded[0, 64:96], values[0, 64:96], rtol=2e-3)


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    found = find_ggml()
    if found is None:
        pytest.skip(f"libggml-base not found; set {LIBRARY_VARIABLE} to it or to its folder")
    return found


def tensors(kind: str, qtype: QType) -> Iterator[np.ndarray]:
    """Matrices of one kind whose rows are whole blocks."""
    rng = np.random.default_rng(3)
    if kind == "gaussian":
        yield (0.02 * rng.standard_normal((48, 1280))).astype(np.float32)
    elif kind == "student-3":
        yield (0.02 * rng.standard_t(3, (48, 1280))).astype(np.float32)
    else:
        entries = open_safetensors(EMBEDDED).tensors
        names = [name for name in entries if ".mlp.experts.7." in name]
        assert len(names) >= 24
        for name in names:
            entry = entries[name]
            values = decode(entry.qtype, entry.parts(), entry.shape)
            if values.shape[1] % qtype.block_size == 0:
                yield values


@pytest.mark.peer
@each(TYPES)
@pytest.mark.parametrize("kind", ["gaussian", "student-3", "experts"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_error_is_at_most_that_of_ggml(qtype: QType, kind: str, weighted: bool, ggml: Ggml) -> None:
    ratios = []
    for values in tensors(kind, qtype):
        importance = some_importance(values.shape[1]) if weighted else None
        peer = ggml.decode(qtype, ggml.encode(qtype, values, importance))
        assert peer is not None
        bar = squared_error(values, peer.reshape(values.shape), importance)
        ratios.append(
            squared_error(values, round_trip(qtype, values, importance), importance) / bar
        )
    # Q1_0 has one best answer without importance, and ggml gives it.
    assert np.mean(ratios) <= 1 + 1e-6
    assert max(ratios) <= 1.01
    if weighted:
        assert np.mean(ratios) < 0.98
