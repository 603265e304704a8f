"""Damaged and hostile GGUF files: each raises a `ContainerError` that names what is wrong."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quantkit.containers.gguf import open_gguf
from quantkit.errors import ContainerError

from .builders import (
    ARRAY,
    STRING,
    TYPE_F32,
    TYPE_UNKNOWN,
    RawGGUF,
    RawTensor,
    noise,
    pair,
    small_model,
    split_pairs,
    text_pair,
    u32_pair,
)


def refused(path: Path) -> ContainerError:
    """The error that opening `path` ends with; it must name the file."""
    with pytest.raises(ContainerError) as caught:
        open_gguf(path)
    assert caught.value.file is not None
    return caught.value


def change(**fields: object) -> Callable[[], RawGGUF]:
    def build() -> RawGGUF:
        raw = small_model()
        for name, value in fields.items():
            setattr(raw, name, value)
        return raw

    return build


def with_pair(*raw_pairs: bytes) -> Callable[[], RawGGUF]:
    def build() -> RawGGUF:
        raw = small_model()
        raw.pairs += raw_pairs
        return raw

    return build


def with_tensor(index: int, **fields: object) -> Callable[[], RawGGUF]:
    def build() -> RawGGUF:
        raw = small_model()
        for name, value in fields.items():
            setattr(raw.tensors[index], name, value)
        return raw

    return build


def nested() -> bytes:
    return pair("nested", ARRAY, struct.pack("<IQ", ARRAY, 1))


HOSTILE = {
    "magic": (change(magic=b"GGJT"), "not a GGUF"),
    "web page": (change(magic=b"<htm"), "web page"),
    "zeros": (change(magic=bytes(4), version=0), "empty space"),
    "version 1": (change(version=1), "version that is not supported"),
    "version 4": (change(version=4), "version that is not supported"),
    "big endian": (change(version=0x03000000), "big-endian"),
    "tensor count": (change(n_tensors=2**63), "absurd number of tensors"),
    "pair count": (change(n_pairs=2**62), "absurd number of key-value pairs"),
    "one tensor too many": (change(n_tensors=5), "ends inside its header|out of range"),
    "one pair too many": (change(n_pairs=4), "unknown type|ends inside|out of range|array"),
    "duplicate key": (with_pair(u32_pair("qwen3moe.block_count", 2)), "stands in the file twice"),
    "empty key": (with_pair(u32_pair("", 1)), "length of a metadata key is out of range"),
    "huge key": (with_pair(struct.pack("<Q", 2**60) + b"k"), "metadata key is out of range"),
    "unknown value type": (with_pair(pair("k", 77, b"")), "'k' has an unknown type"),
    "nested array": (with_pair(nested()), "nests arrays"),
    "huge string": (with_pair(pair("k", STRING, struct.pack("<Q", 2**61))), "strings of key 'k'"),
    "huge array": (
        with_pair(pair("k", ARRAY, struct.pack("<IQ", 5, 2**61))),
        "ends inside its header, in key 'k'",
    ),
    "huge string array": (
        with_pair(pair("k", ARRAY, struct.pack("<IQ", STRING, 2**61))),
        "absurd number of strings",
    ),
    "string in array too long": (
        with_pair(pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 2**63))),
        "strings of key 'k'",
    ),
    "alignment 48": (with_pair(u32_pair("general.alignment", 48)), "no alignment"),
    "alignment 0": (with_pair(u32_pair("general.alignment", 0)), "no alignment"),
    "alignment text": (with_pair(text_pair("general.alignment", "32")), "no alignment"),
    "name of 64 bytes": (with_tensor(1, name="n" * 64), "name of tensor 1 is out of range"),
    "empty name": (with_tensor(1, name=""), "name of tensor 1 is out of range"),
    "duplicate tensor": (with_tensor(1, name="a.weight"), "two tensors of the same name"),
    "5 dimensions": (with_tensor(0, ne=(1,) * 5), "too many dimensions"),
    "huge dimension": (with_tensor(0, ne=(2**63,)), "absurd shape"),
    "huge product": (with_tensor(0, ne=(2**32, 2**32)), "absurd shape"),
    "half a block": (with_tensor(1, ne=(48, 2)), "do not fill whole blocks"),
    "overlap": (with_tensor(1, offset=32), "overlaps the one before"),
    "hole": (with_tensor(1, offset=96), "a hole in the data section"),
    "offset off the grid": (with_tensor(1, offset=65), "not a multiple of the alignment"),
    "offset far away": (with_tensor(1, offset=2**63), "a hole in the data section"),
    "after opaque, backwards": (with_tensor(3, offset=0), "overlaps the one before"),
    "after opaque, same place": (with_tensor(3, offset=224), "overlaps the one before"),
    "shape beyond the file": (with_tensor(3, ne=(2**40,)), "ends inside a tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    build, message = HOSTILE[case]
    error = refused(build().write(tmp_path / "hostile.gguf"))
    text = str(error)
    assert any(part in text for part in message.split("|")), text


@pytest.mark.parametrize("case", ["tensor count", "huge array", "huge string array"])
def test_hostile_counts_do_not_allocate(tmp_path: Path, case: str) -> None:
    path = HOSTILE[case][0]().write(tmp_path / "hostile.gguf")
    tracemalloc.start()
    refused(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = small_model().bytes()
    end = len(whole) - 28  # the padding behind the last tensor may be missing
    path = tmp_path / "cut.gguf"
    for length in range(end):
        path.write_bytes(whole[:length])
        refused(path)


def test_truncation_says_which_tensor_and_how_much(tmp_path: Path) -> None:
    raw = small_model()
    raw.tensors = raw.tensors[:2]
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw.bytes()[: -(24 + 100)])
    error = refused(path)
    assert error.tensor == "b.weight"
    assert str(error.value).startswith("100 bytes of it are missing")
    assert "download" in str(error.hint)


def test_truncated_last_opaque_tensor_shows_beside_its_kin(tmp_path: Path) -> None:
    kin = [RawTensor(f"t{i}", (64, 8), TYPE_UNKNOWN, noise(i, 320)) for i in range(2)]
    whole = RawGGUF([], kin).bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    assert open_gguf(path).tensors["t1"].nbytes == 320
    path.write_bytes(whole[:-40])
    assert refused(path).tensor == "t1"
    path.write_bytes(whole + bytes(64))
    assert "more bytes than the last tensor has" in str(refused(path))


def test_shards_joined_with_cat_are_recognised(tmp_path: Path, shards: list[Path]) -> None:
    joined = tmp_path / "joined.gguf"
    # The first shard ends with a tensor of known size, so its end is known.
    joined.write_bytes(b"".join(path.read_bytes() for path in shards))
    error = refused(joined)
    assert "second GGUF" in error.what
    assert "cat" in str(error.hint)


@pytest.mark.parametrize("name", ["m.gguf.part1of2", "m.gguf.part-aa", "m.gguf.001"])
def test_raw_parts_are_recognised(tmp_path: Path, name: str) -> None:
    path = small_model().write(tmp_path / name)
    error = refused(path)
    assert "raw part" in error.what
    assert "cat m.gguf.* > m.gguf" in str(error.hint)


def test_folder_with_raw_parts_only(tmp_path: Path) -> None:
    small_model().write(tmp_path / "m.gguf.part1of2")
    assert "join the raw parts" in str(refused(tmp_path).hint)


def test_missing_shard_is_named(shards: list[Path]) -> None:
    shards[1].unlink()
    error = refused(shards[2])
    assert "1 of 3 shards are missing" in error.what
    assert error.value == "m-00002-of-00003.gguf"


def test_two_models_in_a_folder(tmp_path: Path, small: Path, shards: list[Path]) -> None:
    error = refused(tmp_path)
    assert "several models" in error.what
    assert small.name in str(error.hint)
    assert shards[0].name in str(error.hint)


def test_empty_folder_points_to_the_folder_below(tmp_path: Path) -> None:
    (tmp_path / "Q4").mkdir()
    small_model().write(tmp_path / "Q4" / "m.gguf")
    assert "name a folder below it: Q4" in str(refused(tmp_path).hint)


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in str(refused(tmp_path / "none.gguf"))


def rewrite_shard(path: Path, number: int, count: int, n_tensors: int, tensors: int) -> None:
    group = [RawTensor(f"x{i}", (2,), TYPE_F32, noise(i, 8)) for i in range(tensors)]
    RawGGUF(split_pairs(number, count, n_tensors), group).write(path)


def test_wrong_split_number(shards: list[Path]) -> None:
    rewrite_shard(shards[1], 2, 3, 4, 1)
    error = refused(shards[0])
    assert error.file == str(shards[1])
    assert "split.no = 2" in str(error.value)


def test_wrong_split_count(shards: list[Path]) -> None:
    rewrite_shard(shards[1], 1, 4, 4, 1)
    assert "not the one its name says" in refused(shards[0]).what


def test_wrong_tensor_total(shards: list[Path]) -> None:
    rewrite_shard(shards[1], 1, 3, 4, 2)
    error = refused(shards[0])
    assert (error.value, error.rule) == ("5 tensors", "split.tensors.count = 4")


def test_tensor_in_two_shards(shards: list[Path]) -> None:
    group = [RawTensor("a.weight", (1,), TYPE_F32, noise(0, 4))]
    RawGGUF(split_pairs(1, 3, 4), group).write(shards[1])
    error = refused(shards[2])
    assert error.tensor == "a.weight"
    assert "stands in two shards" in error.what


def test_renamed_shard(shards: list[Path]) -> None:
    renamed = shards[0].rename(shards[0].with_name("model.gguf"))
    error = refused(renamed)
    assert "does not say which one it is" in error.what


def test_split_key_of_the_wrong_type(shards: list[Path]) -> None:
    RawGGUF([text_pair("split.count", "three")]).write(shards[0])
    assert "'split.count' is no number" in str(refused(shards[0]))


def test_a_file_that_shrinks_after_opening(small: Path) -> None:
    tensor = open_gguf(small).tensors["b.weight"]
    small.write_bytes(small.read_bytes()[: tensor.offset + 10])
    for read in (tensor.parts, tensor.sha256):
        with pytest.raises(ContainerError, match="ends before the bytes"):
            read()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_damage_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Any header bytes either parse to tensors inside the file or raise our error."""
    raw = bytearray(small_model().bytes())
    header_bytes = len(small_model().header())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(4, header_bytes - 1))
        raw[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    try:
        model = open_gguf(path)
    except ContainerError:
        return
    assert model.shards == (path,)
    for tensor in model.tensors.values():
        assert tensor.offset + tensor.nbytes <= len(raw)
    for key in model.metadata:
        model.metadata[key]
