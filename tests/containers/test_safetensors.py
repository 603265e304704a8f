"""safetensors: reader, writer, index, and damaged files; the reference library is the oracle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.containers.base import TensorSpec, spec_of
from quantkit.containers.safetensors import SafetensorsModel, open_safetensors, write_safetensors
from quantkit.errors import ContainerError
from quantkit.qtypes import by_name

ARRAYS = {
    "b.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.scale": np.arange(3, dtype=np.uint8),
    "empty": np.zeros((0, 4), np.int64),
    "scalar": np.array(0.5),
    "half": np.arange(5, dtype=np.float16),
}


def raw_file(path: Path, header: Mapping[str, Any] | bytes, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def record(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def rewrite(model: SafetensorsModel, path: Path, limit: int | None = None) -> list[Path]:
    specs = [spec_of(entry) for entry in model.tensors.values()]
    return write_safetensors(path, specs, metadata=model.metadata, max_shard_bytes=limit)


def contents(model: SafetensorsModel) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    return {
        name: (t.shape, t.qtype.name, t.parts()["data"].tobytes())
        for name, t in model.tensors.items()
    }


@pytest.fixture
def single(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(ARRAYS, path, metadata={"format": "pt"})
    return path


@pytest.fixture
def folder(tmp_path: Path, single: Path) -> Path:
    """The same tensors in shards of at most 20 bytes."""
    target = tmp_path / "sharded"
    target.mkdir()
    rewrite(open_safetensors(single), target, 20)
    return target


def test_reads_what_the_library_writes(single: Path) -> None:
    model = open_safetensors(single)
    assert model.metadata == {"format": "pt"}
    assert set(model.tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        entry = model.tensors[name]
        assert entry.shape == array.shape
        assert entry.parts()["data"].tobytes() == array.tobytes()
        assert entry.qtype.name == {"float16": "F16", "float32": "F32", "float64": "F64"}.get(
            array.dtype.name, {"uint8": "U8", "int64": "I64"}.get(array.dtype.name)
        )


def test_library_reads_what_we_write(tmp_path: Path, single: Path) -> None:
    again = rewrite(open_safetensors(single), tmp_path / "again.safetensors")[0]
    loaded = safetensors.numpy.load_file(again)
    assert set(loaded) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_writing_is_deterministic_and_order_free(tmp_path: Path, single: Path) -> None:
    model = open_safetensors(single)
    specs = [spec_of(entry) for entry in model.tensors.values()]
    one = write_safetensors(tmp_path / "1.safetensors", specs)[0].read_bytes()
    two = write_safetensors(tmp_path / "2.safetensors", specs[::-1])[0].read_bytes()
    assert one == two
    assert int.from_bytes(one[:8], "little") % 8 == 0


@pytest.mark.parametrize("what", ["folder", "index"])
def test_folder_or_index_opens_all_shards(folder: Path, single: Path, what: str) -> None:
    path = folder if what == "folder" else folder / "model.safetensors.index.json"
    model = open_safetensors(path)
    assert contents(model) == contents(open_safetensors(single))
    assert len(model.files) > 2
    assert model.index_metadata == {"total_size": sum(a.nbytes for a in ARRAYS.values())}


def test_folder_with_one_file(single: Path) -> None:
    assert open_safetensors(single.parent).path == single
    other = single.rename(single.with_name("other.safetensors"))
    assert open_safetensors(single.parent).path == other


def test_model_that_fits_needs_no_index(tmp_path: Path, single: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    paths = rewrite(open_safetensors(single), target, 10_000)
    assert [p.name for p in paths] == ["model.safetensors"]
    assert [p.name for p in target.iterdir()] == ["model.safetensors"]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from(["F32", "U8", "BF16", "I64"]), st.integers(0, 9))),
    limit=st.integers(1, 200),
)
def test_round_trip_of_any_shards(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[str, int]], limit: int
) -> None:
    path = tmp_path_factory.mktemp("st")
    specs = []
    for index, (kind, count) in enumerate(sizes):
        data = np.random.default_rng(index).bytes(by_name(kind).nbytes(count))
        specs.append(TensorSpec(f"t{index}", (count,), by_name(kind), lambda d=data: [d]))
    write_safetensors(path, specs, max_shard_bytes=limit)
    model = open_safetensors(path)
    assert {n: t.nbytes for n, t in model.tensors.items()} == {s.name: s.nbytes for s in specs}
    merged = path / "merged.safetensors"
    rewrite(model, merged)
    assert contents(open_safetensors(merged)) == contents(model)


def test_unknown_dtype_is_carried(tmp_path: Path) -> None:
    header = {"x": record("F3_E1M1", [8], 0, 3), "y": record("F32", [1], 3, 7)}
    path = raw_file(tmp_path / "x.safetensors", header, b"abc1234")
    model = open_safetensors(path)
    assert model.tensors["x"].qtype.is_opaque
    again = open_safetensors(rewrite(model, tmp_path / "y.safetensors")[0])
    assert contents(again) == contents(model)


def test_sub_byte_floats_have_their_size(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "x.safetensors", {"x": record("F4", [2, 3], 0, 3)}, b"abc")
    assert open_safetensors(path).tensors["x"].nbytes == 3
    bad = raw_file(tmp_path / "y.safetensors", {"x": record("F4", [3], 0, 2)}, b"ab")
    with pytest.raises(ContainerError, match="do not fit the shape"):
        open_safetensors(bad)


F1 = record("F32", [1], 0, 4)
HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "truncated": ({"x": F1}, b"123", "ends inside a tensor"),
    "tail": ({"x": F1}, b"12345", "behind the last tensor"),
    "overlap": ({"x": F1, "y": record("F32", [1], 2, 6)}, b"123456", "overlaps"),
    "hole": ({"x": F1, "y": record("F32", [1], 8, 12)}, b"1" * 12, "a hole"),
    "late start": ({"x": record("F32", [1], 4, 8)}, b"1" * 8, "a hole"),
    "wrong size": ({"x": record("F32", [2], 0, 4)}, b"1234", "do not fit the shape"),
    "backwards": ({"x": record("F32", [0], 4, 0)}, b"1234", "do not fit the shape"),
    "backwards, opaque": ({"x": record("Q", [0], 4, 0)}, b"1234", "do not fit the shape"),
    "huge": ({"x": record("U8", [2**40, 2**40], 0, 4)}, b"1234", "do not fit the shape"),
    "negative": ({"x": record("U8", [-1], 0, 4)}, b"1234", "record that is none"),
    "boolean": ({"x": record("U8", [True], 0, 1)}, b"1", "record that is none"),
    "no dtype": ({"x": {"shape": [1], "data_offsets": [0, 4]}}, b"1234", "record that is none"),
    "list": ({"x": [1]}, b"", "record that is none"),
    "metadata": ({"__metadata__": {"a": 1}}, b"", "no map of texts"),
    "not JSON": (b"{'x':", b"", "not JSON"),
    "no object": (b"[]", b"", "not a JSON object"),
    "not UTF-8": (b'{"\xff":1}', b"", "not JSON"),
    "deep": (b"[" * 200_000, b"", "not JSON"),
    "twice": (b'{"x":{},"x":{}}', b"", "stands in the header twice"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused(tmp_path: Path, case: str) -> None:
    header, data, message = HOSTILE[case]
    path = raw_file(tmp_path / "x.safetensors", header, data)
    with pytest.raises(ContainerError, match=message) as caught:
        open_safetensors(path)
    assert caught.value.file == str(path)


@pytest.mark.parametrize("length", [2**63, 100_000_001, 50])
def test_header_too_large(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    with pytest.raises(ContainerError, match="header is cut off"):
        open_safetensors(path)


def test_every_truncation_is_refused(single: Path) -> None:
    whole = single.read_bytes()
    for length in range(len(whole)):
        single.write_bytes(whole[:length])
        with pytest.raises(ContainerError):
            open_safetensors(single)


def test_missing_shard_is_named(folder: Path) -> None:
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ContainerError, match="shards are missing") as caught:
        open_safetensors(folder)
    assert caught.value.value == shard.name


def edit_index(folder: Path, **entries: str) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"].update(entries)
    index.write_text(json.dumps(content))


def test_index_names_a_tensor_that_no_shard_has(folder: Path) -> None:
    first = sorted(folder.glob("*.safetensors"))[0].name
    edit_index(folder, ghost=first)
    with pytest.raises(ContainerError, match="not in the shard that the index names") as caught:
        open_safetensors(folder)
    assert (caught.value.tensor, caught.value.value) == ("ghost", "in no shard")


def test_index_names_the_wrong_shard(folder: Path) -> None:
    model = open_safetensors(folder)
    name, entry = next(iter(model.tensors.items()))
    other = next(file.name for file in model.files if file != entry.path)
    edit_index(folder, **{name: other})
    with pytest.raises(ContainerError, match="not in the shard that the index names"):
        open_safetensors(folder)


@pytest.mark.parametrize("where", ["../x.safetensors", "/etc/passwd", "", ".", ".."])
def test_index_cannot_lead_out_of_its_folder(folder: Path, where: str) -> None:
    edit_index(folder, evil=where)
    with pytest.raises(ContainerError, match="usable weight_map"):
        open_safetensors(folder)


def test_tensor_in_two_shards(folder: Path) -> None:
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    second.write_bytes(first.read_bytes())
    with pytest.raises(ContainerError, match="stands in two shards"):
        open_safetensors(folder)


def test_several_files_without_an_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ContainerError, match="without an index"):
        open_safetensors(folder)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("x", "Q8_0", "has no dtype for Q8_0"),
        ("__metadata__", "U8", "reserved name"),
    ],
)
def test_refused_specs(tmp_path: Path, name: str, kind: str, message: str) -> None:
    spec = TensorSpec(name, (32,), by_name(kind), lambda: [])
    with pytest.raises(ContainerError, match=message):
        write_safetensors(tmp_path / "x.safetensors", [spec])
    assert list(tmp_path.iterdir()) == []


def test_input_is_never_overwritten(single: Path) -> None:
    before = single.read_bytes()
    with pytest.raises(ContainerError, match="overwrite one of its inputs"):
        rewrite(open_safetensors(single), single)
    assert single.read_bytes() == before


def test_shards_need_a_folder(tmp_path: Path, single: Path) -> None:
    with pytest.raises(ContainerError, match="shards need a folder"):
        rewrite(open_safetensors(single), tmp_path / "x.safetensors", 10)
