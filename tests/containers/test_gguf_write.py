"""The GGUF writer: byte-equal round trips, splits, exact sizes, and what it refuses."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.containers.base import ByteRange, TensorSpec, spec_of
from quantkit.containers.gguf import (
    GGUFFile,
    ValueType,
    gguf_file_bytes,
    gguf_header_bytes,
    open_gguf,
    pack_kv,
    write_gguf,
)
from quantkit.errors import ContainerError
from quantkit.qtypes import QTYPES, QType, by_gguf_id, by_name

from .builders import RawGGUF, RawTensor, small_model, u32_pair

GGUF_TYPES = [qtype for qtype in QTYPES if qtype.gguf_id is not None]


def rewrite(model: GGUFFile, path: Path, limit: int | None = None) -> list[Path]:
    """Write what `model` holds to `path`."""
    specs = [spec_of(entry) for entry in model.tensors.values()]
    carried = model.metadata.carried()
    paths = write_gguf(path, carried, specs, split_max_bytes=limit)
    total = sum(p.stat().st_size for p in paths)
    assert gguf_file_bytes(carried, specs, limit) == total
    return paths


def contents(model: GGUFFile) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    return {
        name: (t.shape, t.qtype.name, t.parts()["data"].tobytes())
        for name, t in model.tensors.items()
    }


def floats(name: str, *shape: int) -> TensorSpec:
    data = np.arange(np.prod(shape), dtype=np.float32)
    return TensorSpec(name, shape, by_name("F32"), lambda: [data.tobytes()])


def test_round_trip_is_byte_equal(tmp_path: Path, small: Path) -> None:
    assert rewrite(open_gguf(small), tmp_path / "again.gguf")[0].read_bytes() == small.read_bytes()


@st.composite
def raw_files(draw: st.DrawFn) -> RawGGUF:
    """Files of every type the table has, and of unknown ones, with odd shapes and sizes."""
    tensors = []
    for index in range(draw(st.integers(0, 6))):
        qtype = draw(st.sampled_from([*GGUF_TYPES, QType("opaque", 0, 0, 4321)]))
        rows = draw(st.lists(st.integers(1, 3), max_size=3))
        blocks = draw(st.integers(1, 3))
        ne = (blocks * max(qtype.block_size, 1), *rows)
        nbytes = 32 * draw(st.integers(1, 4)) if qtype.is_opaque else qtype.nbytes(int(np.prod(ne)))
        name = f"{draw(st.text(max_size=10))}.{index}"
        data = (
            draw(st.binary(min_size=nbytes, max_size=nbytes))
            if nbytes < 64
            else bytes(np.random.default_rng(index).bytes(nbytes))
        )
        assert qtype.gguf_id is not None
        tensors.append(RawTensor(name, ne, qtype.gguf_id, data))
    values = draw(st.lists(st.integers(0, 2**32 - 1), max_size=4))
    pairs = [u32_pair(f"k{index}", value) for index, value in enumerate(values)]
    return RawGGUF(pairs, tensors)


@settings(max_examples=100, deadline=None)
@given(raw=raw_files())
def test_write_read_write_is_byte_equal(
    tmp_path_factory: pytest.TempPathFactory, raw: RawGGUF
) -> None:
    folder = tmp_path_factory.mktemp("round")
    first = raw.write(folder / "first.gguf")
    second = rewrite(open_gguf(first), folder / "second.gguf")[0]
    assert second.read_bytes() == first.read_bytes()


@settings(max_examples=60, deadline=None)
@given(raw=raw_files(), limit=st.integers(1, 5000))
def test_splits_of_any_size_hold_the_same_model(
    tmp_path_factory: pytest.TempPathFactory, raw: RawGGUF, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    whole = open_gguf(raw.write(folder / "whole.gguf"))
    shards = rewrite(whole, folder / "parts.gguf", limit)
    again = open_gguf(shards[-1])
    assert contents(again) == contents(whole)
    assert again.shards == tuple(shards)
    for shard in shards:
        data_bytes = sum(-(-t.nbytes // 32) * 32 for t in again.tensors.values() if t.path == shard)
        n_tensors = sum(t.path == shard for t in again.tensors.values())
        assert data_bytes <= limit or n_tensors == 1
    merged = rewrite(again, folder / "merged.gguf")[0]
    assert merged.read_bytes() == (folder / "whole.gguf").read_bytes()


def test_shards_are_named_and_numbered_as_gguf_split_does(tmp_path: Path, small: Path) -> None:
    paths = rewrite(open_gguf(small), tmp_path / "m.gguf", 200)
    assert [p.name for p in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for number, path in enumerate(paths):
        raw = path.read_bytes()
        for key, code, type_id, value in (
            ("split.no", "<H", 2, number),
            ("split.count", "<H", 2, 3),
            ("split.tensors.count", "<i", 5, 4),
        ):
            expected = key.encode() + struct.pack("<I", type_id) + struct.pack(code, value)
            assert expected in raw
        assert (b"tokenizer.ggml.tokens" in raw) is (number == 0)


def test_one_tensor_larger_than_a_shard_stands_alone(tmp_path: Path) -> None:
    specs = [floats("a", 4), floats("b", 1000), floats("c", 4)]
    paths = write_gguf(tmp_path / "m.gguf", [], specs, split_max_bytes=100)
    assert [list(open_gguf(paths[0]).tensors), len(paths)] == [["a", "b", "c"], 3]


@pytest.mark.parametrize("alignment", [16, 64, 4096])
def test_other_alignments_become_32(tmp_path: Path, alignment: int) -> None:
    raw = small_model()
    raw.alignment = alignment
    raw.pairs.insert(1, u32_pair("general.alignment", alignment))
    raw.tensors = [raw.tensors[0], raw.tensors[1], raw.tensors[3]]
    model = open_gguf(raw.write(tmp_path / "in.gguf"))
    again = open_gguf(rewrite(model, tmp_path / "out.gguf")[0])
    assert again.metadata["general.alignment"] == again.alignment == 32
    assert list(again.metadata) == list(model.metadata)
    assert contents(again) == contents(model)


def test_header_bytes_and_file_bytes(tmp_path: Path) -> None:
    pairs, specs = [pack_kv("k", ValueType.STRING, "v" * 77)], [floats("a", 3), floats("b", 9)]
    path = write_gguf(tmp_path / "m.gguf", pairs, specs)[0]
    first = open_gguf(path).tensors["a"]
    assert gguf_header_bytes(pairs, specs) == first.offset
    assert gguf_file_bytes(pairs, specs) == path.stat().st_size == first.offset + 32 + 64


def test_produced_bytes_are_written_in_pieces(tmp_path: Path) -> None:
    data = np.arange(1000, dtype=np.float32)

    def pieces() -> Iterator[memoryview]:
        for start in range(0, 1000, 7):
            yield memoryview(data[start : start + 7])

    spec = TensorSpec("x", (10, 100), by_name("F32"), pieces)
    model = open_gguf(write_gguf(tmp_path / "m.gguf", [], [spec])[0])
    assert model.tensors["x"].parts()["data"].tobytes() == data.tobytes()


def opaque(name: str) -> TensorSpec:
    return TensorSpec(name, (3,), by_gguf_id(9999), lambda: [b""])


def spec(name: str, shape: tuple[int, ...], kind: str, data: bytes = b"") -> TensorSpec:
    return TensorSpec(name, shape, by_name(kind), lambda: [data])


REFUSED = {
    "name too long": ([spec("n" * 64, (1,), "F32")], "a tensor name that GGUF cannot hold"),
    "name of 64 bytes in UTF-8": ([spec("ü" * 32, (1,), "F32")], "1 to 63 bytes"),
    "no name": ([spec("", (1,), "F32")], "1 to 63 bytes"),
    "five dimensions": ([spec("n", (1,) * 5, "F32")], "5 dimensions"),
    "rows": ([spec("n", (2, 48), "Q8_0")], "do not fill whole blocks"),
    "twice": ([floats("n", 1), floats("n", 1)], "two tensors of the same name"),
    "no GGUF type": ([spec("n", (4,), "F8_E4M3")], "GGUF has no type for F8_E4M3"),
    "too few bytes": ([spec("n", (2,), "F32", b"1234")], "another number of bytes"),
    "too many bytes": ([spec("n", (1,), "F32", b"12345")], "at least 5 bytes"),
    "opaque from nowhere": ([opaque("n")], "can only come from a file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_specs_leave_nothing(tmp_path: Path, case: str) -> None:
    specs, message = REFUSED[case]
    with pytest.raises(ContainerError, match=message):
        write_gguf(tmp_path / "m.gguf", [], specs)
    assert list(tmp_path.iterdir()) == []


def test_source_range_of_another_size(tmp_path: Path, small: Path) -> None:
    bad = TensorSpec("n", (4,), by_name("F32"), ByteRange(small, 0, 12))
    with pytest.raises(ContainerError, match="do not fit the shape"):
        write_gguf(tmp_path / "m.gguf", [], [bad])


def test_metadata_key_twice(tmp_path: Path) -> None:
    raw = pack_kv("k", ValueType.BOOL, True)
    with pytest.raises(ContainerError, match="'k' is given twice"):
        write_gguf(tmp_path / "m.gguf", [raw, raw], [])


@pytest.mark.parametrize("how", ["same", "symlink", "hardlink"])
def test_input_is_never_overwritten(tmp_path: Path, small: Path, how: str) -> None:
    before = small.read_bytes()
    out = small if how == "same" else tmp_path / "other.gguf"
    if how == "symlink":
        out.symlink_to(small)
    if how == "hardlink":
        out.hardlink_to(small)
    with pytest.raises(ContainerError, match="overwrite one of its inputs"):
        rewrite(open_gguf(small), out)
    assert small.read_bytes() == before


def test_other_outputs_are_replaced(tmp_path: Path, small: Path) -> None:
    out = tmp_path / "old.gguf"
    out.write_bytes(b"old")
    rewrite(open_gguf(small), out)
    assert out.read_bytes() == small.read_bytes()


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[bytes]:
        yield bytes(4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_gguf(tmp_path / "m.gguf", [], [TensorSpec("x", (2,), by_name("F32"), interrupted)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "value", "item"),
    [
        (ValueType.UINT8, 256, None),
        (ValueType.UINT32, -1, None),
        (ValueType.STRING, 5, None),
        (ValueType.INT32, "5", None),
        (ValueType.ARRAY, [1], None),
        (ValueType.ARRAY, [[1]], ValueType.ARRAY),
        (ValueType.ARRAY, 7, ValueType.INT8),
    ],
)
def test_pack_refuses_what_the_type_cannot_hold(
    kind: ValueType, value: object, item: ValueType | None
) -> None:
    with pytest.raises(ContainerError, match="metadata key 'k' cannot hold"):
        pack_kv("k", kind, value, item)


def test_pack_refuses_an_empty_key() -> None:
    with pytest.raises(ContainerError, match="may not be empty"):
        pack_kv("", ValueType.BOOL, True)


@pytest.mark.peer
def test_gguf_py_reads_our_files(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the Python package gguf is not installed")
    rows = {q.name: q for q in GGUF_TYPES if q.name in gguf.GGMLQuantizationType.__members__}
    specs, blobs = [], {}
    for name, qtype in rows.items():
        shape = (2, 3, qtype.block_size)
        blobs[name] = np.random.default_rng(7).bytes(qtype.nbytes(6 * qtype.block_size))
        specs.append(TensorSpec(name, shape, qtype, lambda name=name: [blobs[name]]))
    pairs = [
        pack_kv("general.architecture", ValueType.STRING, "qwen3moe"),
        pack_kv("n", ValueType.ARRAY, [2**64 - 59, 1], ValueType.UINT64),
        pack_kv("tokens", ValueType.ARRAY, ["a", "ü", ""], ValueType.STRING),
    ]
    path = write_gguf(tmp_path / "m.gguf", pairs, specs)[0]
    reader = gguf.GGUFReader(path)
    assert reader.get_field("tokens").contents() == ["a", "ü", ""]
    assert reader.get_field("n").contents() == [2**64 - 59, 1]
    found = {t.name: t for t in reader.tensors}
    assert list(found) == list(rows)
    for name, tensor in found.items():
        assert tensor.tensor_type.name == name
        assert tuple(reversed(tensor.shape.tolist())) == (2, 3, rows[name].block_size)
        if name != "Q8_1":  # gguf-py lists 40 bytes a block for it, ggml has 36
            assert tensor.data.tobytes() == blobs[name]


@pytest.mark.peer
def test_we_read_what_gguf_py_writes(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the Python package gguf is not installed")
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_uint32("qwen3moe.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["x", "yz"])
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("a.weight", values)
    writer.add_tensor("b.weight", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = open_gguf(path)
    assert model.metadata["tokenizer.ggml.tokens"] == ["x", "yz"]
    assert model.tensors["a.weight"].shape == (3, 4)
    half = model.tensors["b.weight"].parts()["data"].view(np.float16)
    assert half.tolist() == values.ravel().tolist()
    assert rewrite(model, tmp_path / "out.gguf")[0].read_bytes() == path.read_bytes()


@pytest.mark.peer
def test_shards_are_those_of_gguf_split_byte_for_byte(tmp_path: Path) -> None:
    program = shutil.which("llama-gguf-split")
    if program is None:
        pytest.skip("llama-gguf-split is not installed")
    specs = [floats(f"t{index}", 50 + index, 64) for index in range(200)]
    keys = [pack_kv("general.architecture", ValueType.STRING, "qwen3moe")]
    whole = write_gguf(tmp_path / "whole.gguf", keys, specs)[0]
    ours = rewrite(open_gguf(whole), tmp_path / "ours.gguf", 1_000_000)
    subprocess.run(
        [program, "--split-max-size", "1M", whole, tmp_path / "theirs"],
        check=True,
        capture_output=True,
    )
    theirs = sorted(tmp_path.glob("theirs-*.gguf"))
    assert [p.read_bytes() for p in ours] == [p.read_bytes() for p in theirs]
    merged = tmp_path / "merged.gguf"
    subprocess.run([program, "--merge", ours[0], merged], check=True, capture_output=True)
    assert contents(open_gguf(merged)) == contents(open_gguf(whole))
