"""The GGUF reader on well-formed files."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from quantkit.containers.gguf import ValueType, open_gguf
from quantkit.errors import ContainerError

from .builders import (
    ARRAY,
    RawGGUF,
    noise,
    pair,
    small_model,
    split_pairs,
    string,
    write_big_vocabulary,
)

SCALARS = {
    ValueType.UINT8: ("B", 255),
    ValueType.INT8: ("b", -128),
    ValueType.UINT16: ("H", 65535),
    ValueType.INT16: ("h", -2),
    ValueType.UINT32: ("I", 2**32 - 1),
    ValueType.INT32: ("i", -3),
    ValueType.FLOAT32: ("f", 0.5),
    ValueType.BOOL: ("?", True),
    ValueType.UINT64: ("Q", 2**64 - 59),
    ValueType.INT64: ("q", -(2**63)),
    ValueType.FLOAT64: ("d", 0.1),
}


def test_open_small_lists_tensors_row_major(small: Path) -> None:
    model = open_gguf(small)
    facts = [(t.name, t.shape, t.qtype.name, t.nbytes) for t in model.tensors.values()]
    assert facts == [
        ("a.weight", (3, 5), "F32", 60),
        ("b.weight", (2, 2, 32), "Q8_0", 136),
        ("c.weight", (1, 7), "TYPE_9999", 64),
        ("d.scalar", (), "F32", 4),
    ]
    assert (model.version, model.alignment, model.shards) == (3, 32, (small,))


def test_parts_are_the_bytes_and_cannot_be_written(small: Path) -> None:
    for raw, entry in zip(small_model().tensors, open_gguf(small).tensors.values(), strict=True):
        data = entry.parts()["data"]
        assert data.tobytes() == raw.data
        assert data.dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1


@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.name)
def test_metadata_scalars_and_arrays_of_every_type(tmp_path: Path, kind: ValueType) -> None:
    code, value = SCALARS[kind]
    one = struct.pack("<" + code, value)
    pairs = [
        pair("one", kind, one),
        pair("many", ARRAY, struct.pack("<IQ", kind, 3) + one * 3),
        pair("none", ARRAY, struct.pack("<IQ", kind, 0)),
    ]
    metadata = open_gguf(RawGGUF(pairs).write(tmp_path / "m.gguf")).metadata
    assert metadata["one"] == pytest.approx(value, rel=1e-7)
    assert metadata["many"] == [metadata["one"]] * 3
    assert metadata["none"] == []
    assert metadata.value_type("many") is ValueType.ARRAY
    assert metadata.item_type("many") is kind
    assert metadata.array_length("many") == 3
    assert [metadata.raw(key) for key in metadata] == pairs


def test_strings_that_are_not_utf8_survive(tmp_path: Path) -> None:
    raw = pair("s", ValueType.STRING, string(b"\xff\xfe ok"))
    metadata = open_gguf(RawGGUF([raw]).write(tmp_path / "m.gguf")).metadata
    assert metadata["s"].encode("utf-8", "surrogateescape") == b"\xff\xfe ok"


def test_big_vocabulary_is_read_on_access_only(tmp_path: Path) -> None:
    path = write_big_vocabulary(tmp_path / "v.gguf", 20_000)
    metadata = open_gguf(path).metadata
    assert metadata.array_length("tokenizer.ggml.tokens") == 20_000
    assert len(metadata.raw("tokenizer.ggml.tokens")) > 100_000
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert merges[7] == f"{tokens[7]} {tokens[8]}"
    # Nothing of the vocabulary was kept: without the file it cannot be decoded any more.
    path.unlink()
    assert metadata["general.architecture"] == "qwen4exp"
    with pytest.raises(ContainerError, match="no such file"):
        metadata["tokenizer.ggml.tokens"]


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments_are_read(tmp_path: Path, alignment: int) -> None:
    raw = small_model()
    raw.alignment = alignment
    raw.pairs.append(pair("general.alignment", ValueType.UINT32, struct.pack("<I", alignment)))
    raw.tensors[2].data = noise(9, alignment * 2)
    model = open_gguf(raw.write(tmp_path / "m.gguf"))
    assert model.alignment == alignment
    for tensor in raw.tensors:
        assert model.tensors[str(tensor.name)].parts()["data"].tobytes() == tensor.data


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    raw = small_model()
    raw.version = 2
    model = open_gguf(raw.write(tmp_path / "m.gguf"))
    assert model.version == 2
    assert len(model.tensors) == 4


def test_missing_padding_behind_the_last_tensor_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_model().bytes()[:-28])
    assert open_gguf(path).tensors["d.scalar"].parts()["data"].size == 4


def test_empty_tensors_and_no_tensors(tmp_path: Path) -> None:
    raw = small_model()
    raw.tensors[0].ne, raw.tensors[0].data = (4, 0), b""
    assert open_gguf(raw.write(tmp_path / "e.gguf")).tensors["a.weight"].parts()["data"].size == 0
    raw.tensors = []
    assert open_gguf(raw.write(tmp_path / "n.gguf")).tensors == {}


@pytest.mark.parametrize("which", [0, 1, 2, "folder"])
def test_any_shard_or_the_folder_opens_the_whole_model(
    small: Path, shards: list[Path], which: int | str
) -> None:
    expected = open_gguf(small)
    small.unlink()
    model = open_gguf(shards[0].parent if which == "folder" else shards[int(which)])
    assert model.shards == tuple(shards)
    assert model.path == shards[0]
    assert model.metadata["general.architecture"] == "qwen3moe"
    assert list(model.tensors) == list(expected.tensors)


def test_shard_bytes_are_those_of_the_whole(small: Path, shards: list[Path]) -> None:
    whole, split = open_gguf(small).tensors, open_gguf(shards[2]).tensors
    assert {n: t.sha256() for n, t in whole.items()} == {n: t.sha256() for n, t in split.items()}


def test_a_first_shard_without_tensors_is_legal(tmp_path: Path) -> None:
    folder = tmp_path / "no_tensor_first"
    folder.mkdir()
    whole = small_model()
    RawGGUF([*whole.pairs, *split_pairs(0, 2, 4)]).write(folder / "m-00001-of-00002.gguf")
    RawGGUF(split_pairs(1, 2, 4), whole.tensors).write(folder / "m-00002-of-00002.gguf")
    assert len(open_gguf(folder).tensors) == 4


def test_hidden_files_in_a_folder_are_ignored(tmp_path: Path, small: Path) -> None:
    shutil.copy(small, tmp_path / ".small.gguf")
    assert open_gguf(tmp_path).path == small
