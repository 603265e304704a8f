"""The type table against gguf-py and ggml, and its look-ups and fallbacks."""

from __future__ import annotations

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import FormatError
from quantkit.qtypes import (
    QTYPES,
    QType,
    by_gguf_id,
    by_name,
    by_safetensors_dtype,
    fallback_for_row,
)

GGUF_TYPES = [qtype for qtype in QTYPES if qtype.gguf_id is not None]
# gguf-py describes Q8_1 as it was before ggml stored its two scales as halves.
STALE_IN_GGUF_PY = {"Q8_1": 40}
# llama-quantize stops on these. A new type without a row in ROW_FALLBACK shows up here.
WITHOUT_SUBSTITUTE = ("NVFP4", "Q1_0", "Q8_K")


def test_table_names_and_ids_are_unique() -> None:
    for keys in (
        [qtype.name for qtype in QTYPES],
        [qtype.gguf_id for qtype in GGUF_TYPES],
        [q.safetensors_dtype for q in QTYPES if q.safetensors_dtype is not None],
    ):
        assert len(keys) == len(set(keys))


def test_table_has_every_type_of_gguf_py_with_its_size() -> None:
    for peer, (block_size, type_size) in gguf.GGML_QUANT_SIZES.items():
        qtype = by_gguf_id(peer.value)
        assert qtype.name == peer.name
        assert qtype.block_size == block_size, peer
        assert STALE_IN_GGUF_PY.get(qtype.name, qtype.type_size) == type_size, peer


@pytest.mark.parametrize("qtype", QTYPES, ids=lambda q: q.name)
def test_lookup_finds_every_row(qtype: QType) -> None:
    assert by_name(qtype.name) is qtype
    assert by_name(qtype.name.lower()) is qtype
    if qtype.gguf_id is not None:
        assert by_gguf_id(qtype.gguf_id) is qtype
    if qtype.safetensors_dtype is not None:
        assert by_safetensors_dtype(qtype.safetensors_dtype) is qtype


@pytest.mark.parametrize("qtype", QTYPES, ids=lambda q: q.name)
@settings(max_examples=20)
@given(n_blocks=st.integers(0, 1 << 40))
def test_nbytes_counts_whole_blocks(qtype: QType, n_blocks: int) -> None:
    n_elements = n_blocks * qtype.block_size
    assert qtype.nbytes(n_elements) * 8 == round(n_elements * qtype.bpw)
    assert qtype.fits_row(n_elements)
    if qtype.block_size > 1:
        assert not qtype.fits_row(n_elements + 1)
        with pytest.raises(FormatError, match=f"multiple of {qtype.block_size}"):
            qtype.nbytes(n_elements + 1)


def test_nbytes_refuses_a_negative_count() -> None:
    with pytest.raises(FormatError):
        by_name("F32").nbytes(-4)


def test_bpw_of_known_types() -> None:
    expected = {"Q8_0": 8.5, "IQ4_NL": 4.5, "MXFP4": 4.25, "Q2_0": 2.25, "Q1_0": 1.125}
    assert {name: by_name(name).bpw for name in expected} == expected
    assert by_name("IQ3_S").bpw == 3.4375
    assert by_name("F4").bpw == 4


@pytest.mark.parametrize("type_id", [4, 31, 36, 43, 153, 4_000_000_000])
def test_unknown_id_is_opaque(type_id: int) -> None:
    qtype = by_gguf_id(type_id)
    assert qtype.is_opaque
    assert qtype.name == f"TYPE_{type_id}"
    assert qtype.gguf_id == type_id
    assert not qtype.fits_row(256)
    with pytest.raises(FormatError, match="layout of type TYPE_"):
        qtype.nbytes(256)
    with pytest.raises(FormatError):
        _ = qtype.bpw


def test_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(FormatError) as caught:
        by_name("Q4_O")
    assert caught.value.hint is not None
    assert "Q4_0" in caught.value.hint
    with pytest.raises(FormatError, match="safetensors dtype"):
        by_safetensors_dtype("float8")


@pytest.mark.parametrize(
    ("name", "row_length", "expected"),
    [
        ("IQ3_S", 640, "IQ4_NL"),
        ("IQ4_XS", 640, "IQ4_NL"),
        ("IQ2_XXS", 2560, "IQ2_XXS"),
        ("Q2_0", 640, "Q2_0"),
        ("Q2_0", 96, "Q4_0"),
        ("Q3_K", 640, "Q4_0"),
        ("TQ2_0", 640, "Q4_0"),
        ("Q4_K", 640, "Q5_0"),
        ("Q5_K", 640, "Q5_1"),
        ("Q6_K", 640, "Q8_0"),
        ("Q6_K", 48, "F16"),
        ("Q8_0", 48, "F16"),
        ("MXFP4", 4, "F16"),
        ("BF16", 5, "BF16"),
    ],
)
def test_fallback_follows_llama_quantize(name: str, row_length: int, expected: str) -> None:
    assert fallback_for_row(by_name(name), row_length).name == expected


@pytest.mark.parametrize("qtype", GGUF_TYPES, ids=lambda q: q.name)
@settings(max_examples=20)
@given(row_length=st.integers(1, 4096))
def test_fallback_fits_or_is_refused(qtype: QType, row_length: int) -> None:
    if qtype.name in WITHOUT_SUBSTITUTE and row_length % qtype.block_size:
        with pytest.raises(FormatError, match=f"multiple of {qtype.block_size}"):
            fallback_for_row(qtype, row_length)
    else:
        assert fallback_for_row(qtype, row_length).fits_row(row_length)


def test_fallback_of_an_opaque_type_is_refused() -> None:
    with pytest.raises(FormatError):
        fallback_for_row(by_gguf_id(153), 256)
