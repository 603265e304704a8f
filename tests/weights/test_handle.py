"""Handles: parts of a tensor are the parts of the whole, whatever pieces it is stored in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantkit import codecs
from quantkit.containers.base import TensorEntry, TensorSpec
from quantkit.containers.gguf import open_gguf, write_gguf
from quantkit.qtypes import by_name
from quantkit.weights.handle import Piece, TensorHandle

TYPES = ("F32", "BF16", "Q8_0", "Q2_0")
COLUMNS = 64


def entry_of(folder: Path, qtype: str, shape: tuple[int, ...], seed: int = 0) -> TensorEntry:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    data = codecs.encode(by_name(qtype), values)["data"].tobytes()
    spec = TensorSpec("x", shape, by_name(qtype), lambda: [data])
    path = folder / f"{qtype}-{seed}-{'x'.join(map(str, shape))}.gguf"
    return open_gguf(write_gguf(path, [], [spec])[0]).tensors["x"]


def decoded(entry: TensorEntry) -> torch.Tensor:
    return torch.from_numpy(np.array(codecs.decode(entry.qtype, entry.parts(), entry.shape)))


@pytest.fixture(scope="module", params=TYPES)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TensorEntry:
    return entry_of(tmp_path_factory.mktemp("stack"), request.param, (5, 12, COLUMNS))


def test_whole_stack(stack: TensorEntry) -> None:
    handle = TensorHandle("r", (Piece(stack),))
    assert handle.shape == (5, 12, COLUMNS)
    assert handle.nbytes == stack.nbytes
    assert handle.qtype == stack.qtype
    assert torch.equal(handle.value(), decoded(stack))
    for number in range(5):
        assert torch.equal(handle.expert(number), decoded(stack)[number])


def test_rows_of_a_fused_stack(stack: TensorEntry) -> None:
    """Gate and up in one tensor: each is some rows of every expert."""
    for rows in (range(0, 4), range(4, 12), range(3, 5)):
        handle = TensorHandle("r", (Piece(stack, rows),))
        wanted = decoded(stack)[:, rows.start : rows.stop]
        assert handle.shape == tuple(wanted.shape)
        assert handle.nbytes == stack.nbytes * len(rows) // 12
        assert torch.equal(handle.value(), wanted)
        assert torch.equal(handle.expert(3), wanted[3])


@pytest.mark.parametrize("qtype", TYPES)
def test_rows_of_a_fused_matrix(qtype: str, tmp_path: Path) -> None:
    entry = entry_of(tmp_path, qtype, (10, COLUMNS))
    handle = TensorHandle("r", (Piece(entry, range(6, 10)),))
    assert torch.equal(handle.value(), decoded(entry)[6:])


@pytest.mark.parametrize("qtype", TYPES)
def test_stack_of_single_experts(qtype: str, tmp_path: Path) -> None:
    entries = [entry_of(tmp_path, qtype, (3, COLUMNS), seed) for seed in range(4)]
    handle = TensorHandle("r", tuple(map(Piece, entries)), stacked=True)
    assert handle.shape == (4, 3, COLUMNS)
    assert handle.nbytes == sum(entry.nbytes for entry in entries)
    assert torch.equal(handle.value(), torch.stack([decoded(entry) for entry in entries]))
    assert torch.equal(handle.expert(2), decoded(entries[2]))


@pytest.fixture(scope="module", params=TYPES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TensorHandle:
    folder = tmp_path_factory.mktemp("table")
    shards = [entry_of(folder, request.param, (n, COLUMNS), n) for n in (7, 1, 20)]
    return TensorHandle("r", tuple(map(Piece, shards)))


@given(rows=st.lists(st.integers(0, 27), min_size=0, max_size=60))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scattered_rows_of_a_sharded_table(table: TensorHandle, rows: list[int]) -> None:
    assert table.shape == (28, COLUMNS)
    wanted = table.value()
    found = table.rows(torch.tensor(rows, dtype=torch.long))
    assert torch.equal(found, wanted[rows])


def test_each_row_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(tmp_path, "Q8_0", (50, COLUMNS))
    sizes: list[int] = []
    decode = codecs.decode

    def counting(*arguments: object) -> np.ndarray:
        values = decode(*arguments)
        sizes.append(len(values))
        return values

    monkeypatch.setattr(codecs, "decode", counting)
    TensorHandle("r", (Piece(entry),)).rows(torch.tensor([4, 9, 4, 4, 9, 0]))
    assert sizes == [3]


def test_effective_value_is_of_the_whole(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, "F32", (6, COLUMNS))
    handle = TensorHandle("r", (Piece(entry),), effective=lambda x: x.flip(0) + 1)
    assert torch.equal(handle.value(), decoded(entry).flip(0) + 1)


def test_values_are_writable_copies(tmp_path: Path) -> None:
    """A view of the file would make in-place operations fail, or worse."""
    entry = entry_of(tmp_path, "F32", (6, COLUMNS))
    before = entry.sha256()
    TensorHandle("r", (Piece(entry),)).value().zero_()
    assert entry.sha256() == before


def test_vectors_and_scalars_have_their_shape(tmp_path: Path) -> None:
    for shape in ((), (5,)):
        handle = TensorHandle("r", (Piece(entry_of(tmp_path, "F32", shape)),))
        assert handle.shape == shape
        assert tuple(handle.value().shape) == shape
