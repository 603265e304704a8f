"""Golden blocks made by ggml, and that every type has all it needs: codec, twin, golden, docs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from quantkit.codecs import can_decode, can_encode, decode, decode_bfloat
from quantkit.codecs.base import bfloat_bits
from quantkit.native import cpu, lib
from quantkit.native.abi import Operation
from quantkit.qtypes import QType
from tests.codecs import golden

TYPES_PAGE = Path(__file__).parents[2] / "docs" / "types.md"
each_type = pytest.mark.parametrize("qtype", golden.STORED_TYPES, ids=lambda q: q.name)
needs_library = pytest.mark.skipif(
    lib.cpu() is None, reason=f"native library: {lib.load().diagnosis}"
)


def documented() -> dict[str, list[str]]:
    """The rows of the table in docs/types.md, by type."""
    rows = {}
    for line in TYPES_PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"`\w+`", cells[0]):
            rows[cells[0].strip("`")] = cells[1:]
    return rows


@pytest.mark.parametrize("engine", ["numpy", "native"], indirect=True)
@each_type
def test_golden_blocks_decode_to_the_bit(qtype: QType) -> None:
    blocks, values = golden.load(qtype).arrays()
    ours = decode(qtype, {"data": blocks}, (values.size,))
    np.testing.assert_array_equal(ours.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("engine", ["numpy", "native"], indirect=True)
@each_type
def test_golden_blocks_decode_to_the_nearest_bfloat(qtype: QType) -> None:
    blocks, values = golden.load(qtype).arrays()
    bits = decode_bfloat(qtype, {"data": blocks}, (values.size,))
    assert bits.dtype == np.uint16
    np.testing.assert_array_equal(bits, bfloat_bits(values))


@each_type
def test_every_type_has_a_codec_and_a_golden_file_of_its_own(qtype: QType) -> None:
    assert can_decode(qtype)
    found = golden.load(qtype)
    assert found.type == qtype.name
    assert found.producer.startswith("ggml ")
    blocks, values = found.arrays()
    assert blocks.size == qtype.nbytes(values.size) > 0


@needs_library
@each_type
def test_every_type_has_a_native_decoder_of_the_same_layout(qtype: QType) -> None:
    assert cpu.block(Operation.DECODE, qtype.gguf_id) == (qtype.block_size, qtype.type_size)
    if cpu.can_encode(qtype.gguf_id):
        assert cpu.block(Operation.ENCODE, qtype.gguf_id) == (qtype.block_size, qtype.type_size)


@needs_library
@each_type
def test_every_type_is_documented_as_it_is(qtype: QType) -> None:
    rows = documented()
    assert qtype.name in rows, f"docs/types.md has no row for {qtype.name}"
    gguf_id, block, nbytes, bpw, writes = rows[qtype.name][:5]
    assert (int(gguf_id), int(block), int(nbytes)) == (
        qtype.gguf_id,
        qtype.block_size,
        qtype.type_size,
    )
    assert float(bpw) == pytest.approx(qtype.bpw, abs=5e-5)
    assert writes == ("yes" if can_encode(qtype) else "later")


def test_nothing_else_is_documented_or_golden() -> None:
    names = {qtype.name for qtype in golden.STORED_TYPES}
    assert set(documented()) == names
    assert {path.stem for path in golden.FOLDER.glob("*.json")} == names
