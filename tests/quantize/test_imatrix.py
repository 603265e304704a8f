"""Importance files: both forms, round trips, hostile ones, and llama-quantize as their reader."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.imatrix import Entry, Importance, read_importance, write_importance
from quantkit.errors import EXIT_BAD_INPUT, ContainerError
from quantkit.qtypes import by_name
from tests.tiny import Zoo

F32 = by_name("F32")
EXPS = "blk.0.ffn_down_exps.weight"
DENSE = "blk.0.attn_q.weight"


def entry(sums: object, counts: object) -> Entry:
    return Entry(np.array(sums, np.float32), np.array(counts, np.int64))


@pytest.fixture
def importance() -> Importance:
    """Three experts, the second cold, and a dense weight."""
    entries = {
        EXPS: entry([[2, 4], [0, 0], [9, 3]], [2, 0, 3]),
        DENSE: entry([[8, 16, 24]], [8]),
    }
    return Importance(entries, ("a.txt", "b.txt"), chunk_count=2, chunk_size=4)


def equal(a: Importance, b: Importance) -> bool:
    same = [
        np.array_equal(a.entries[n].sums, b.entries[n].sums)
        and np.array_equal(a.entries[n].counts, b.entries[n].counts)
        for n in a.entries
    ]
    about = [(i.datasets, i.chunk_count, i.chunk_size, sorted(i.entries)) for i in (a, b)]
    return all(same) and about[0] == about[1]


def test_gguf_form_is_llamacpps(importance: Importance, tmp_path: Path) -> None:
    write_importance(importance, tmp_path / "i.gguf")
    file = open_gguf(tmp_path / "i.gguf")
    assert file.metadata["general.type"] == "imatrix"
    assert file.metadata["imatrix.datasets"] == ["a.txt", "b.txt"]
    assert file.metadata["imatrix.chunk_count"] == 2
    assert file.metadata["imatrix.chunk_size"] == 4
    assert file.metadata.value_type("imatrix.chunk_size") is ValueType.UINT32
    assert {name: t.shape for name, t in file.tensors.items()} == {
        f"{DENSE}.in_sum2": (1, 3),
        f"{DENSE}.counts": (1, 1),
        f"{EXPS}.in_sum2": (3, 2),
        f"{EXPS}.counts": (3, 1),
    }
    assert equal(read_importance(tmp_path / "i.gguf"), importance)


def test_legacy_form_is_llamacpps(importance: Importance, tmp_path: Path) -> None:
    """Calls: the greatest count in chunks of 4, rounded up; values: mean times calls; 1 if cold."""
    write_importance(importance, tmp_path / "i.dat", form="dat")

    def packed(name: str, calls: int, values: list[float]) -> bytes:
        head = struct.pack("<i", len(name)) + name.encode()
        return head + struct.pack(f"<ii{len(values)}f", calls, len(values), *values)

    assert (tmp_path / "i.dat").read_bytes() == (
        struct.pack("<i", 2)
        + packed(DENSE, 2, [2, 4, 6])
        + packed(EXPS, 1, [1, 2, 1, 1, 3, 1])
        + struct.pack("<ii", 2, 5)
        + b"b.txt"
    )


def test_means_and_the_stand_in_of_cold_experts(importance: Importance, tmp_path: Path) -> None:
    """The mean over all tokens of the others: (2 + 9) / 5 and (4 + 3) / 5."""
    found = importance.mean_squares(EXPS, (3, 5, 2))
    assert found is not None
    assert found.cold == (1,)
    np.testing.assert_allclose(found.values, [[1, 2], [2.2, 1.4], [3, 1]], rtol=1e-6)
    assert importance.cold_experts() == {EXPS: (1,)}
    write_importance(importance, tmp_path / "i.dat", form="dat")
    legacy = read_importance(tmp_path / "i.dat").mean_squares(EXPS, (3, 5, 2))
    assert legacy is not None
    assert legacy.cold == (1,), "ones in a legacy file are what nothing was summed over"
    np.testing.assert_allclose(legacy.values[[0, 2]], [[1, 2], [3, 1]], rtol=1e-6)
    np.testing.assert_allclose(legacy.values[1], [2, 1.5], rtol=1e-6)


def test_nothing_but_cold_experts_counts_evenly() -> None:
    cold = Importance({EXPS: entry(np.zeros((2, 3)), [0, 0])})
    with np.errstate(all="raise"):
        found = cold.mean_squares(EXPS, (2, 4, 3))
    assert found is not None
    assert found.cold == (0, 1)
    assert (found.values == 1).all()


def test_other_weights_have_no_entry(importance: Importance) -> None:
    assert importance.mean_squares("token_embd.weight", (10, 3)) is None


@pytest.mark.parametrize(
    ("name", "shape"),
    [(EXPS, (2, 5, 2)), (EXPS, (3, 5, 4)), (EXPS, (15, 2)), (DENSE, (5, 4)), (DENSE, (3, 5, 3))],
)
def test_entries_of_another_shape(
    importance: Importance, name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ContainerError, match="does not fit the tensor") as caught:
        importance.mean_squares(name, shape)
    assert caught.value.tensor == name


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_round_trips(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    n, channels = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    counts = np.array(data.draw(st.lists(st.integers(0, 2**24), min_size=n, max_size=n)))
    numbers = st.floats(0, 2.0**99, width=32, allow_subnormal=False)
    rows = st.lists(numbers, min_size=channels, max_size=channels)
    sums = np.array(data.draw(st.lists(rows, min_size=n, max_size=n)), np.float32)
    sums[counts == 0] = 0
    texts = tuple(data.draw(st.lists(st.text(max_size=8), max_size=2)))
    made = Importance({"w": Entry(sums, counts)}, texts, 7, 512)
    path = tmp_path_factory.mktemp("i") / "i"
    write_importance(made, path)
    assert equal(read_importance(path), made)
    if counts.any():
        write_importance(made, path, form="dat")
        again = read_importance(path)
        shape = (n, 1, channels) if n > 1 else (1, channels)
        kept, found = made.mean_squares("w", shape), again.mean_squares("w", shape)
        assert kept is not None
        assert found is not None
        warm = counts > 0
        np.testing.assert_allclose(found.values[warm], kept.values[warm], rtol=1e-5)
        write_importance(again, path.with_name("second"), form="dat")
        assert path.with_name("second").read_bytes() == path.read_bytes()


def test_legacy_has_no_counts_to_write(importance: Importance, tmp_path: Path) -> None:
    write_importance(importance, tmp_path / "i.dat", form="dat")
    with pytest.raises(ContainerError, match="without counts"):
        write_importance(read_importance(tmp_path / "i.dat"), tmp_path / "i.gguf")
    assert not (tmp_path / "i.gguf").exists()


def gguf_file(path: Path, tensors: dict[str, np.ndarray], kind: str = "imatrix") -> Path:
    specs = [
        TensorSpec(name, values.shape, F32, lambda values=values: [values.tobytes()])
        for name, values in tensors.items()
    ]
    write_gguf(path, [pack_kv("general.type", ValueType.STRING, kind)], specs)
    return path


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("sums", "counts", "word"),
    [
        (floats(1, np.nan), floats(1), "not a sum of squares"),
        (floats(1, np.inf), floats(1), "not a sum of squares"),
        (floats(1, -1), floats(1), "not a sum of squares"),
        (floats(1, 1), floats(np.nan), "not numbers of tokens"),
        (floats(1, 1), floats(-1), "not numbers of tokens"),
        (floats(1, 1), floats(np.inf), "not numbers of tokens"),
        (floats(1, 1, 1), floats(1, 1), "do not fit together"),
        (floats(1, 1), floats(1, 0), "sums but no tokens"),
    ],
)
def test_bad_values_name_file_and_entry(
    tmp_path: Path, sums: np.ndarray, counts: np.ndarray, word: str
) -> None:
    path = gguf_file(tmp_path / "i.gguf", {"w.in_sum2": sums, "w.counts": counts})
    with pytest.raises(ContainerError, match=word) as caught:
        read_importance(path)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    assert caught.value.file == str(path)
    assert str(caught.value.tensor).startswith("w")


def test_other_ggufs(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", {"w.in_sum2": floats(1)}, kind="model")
    with pytest.raises(ContainerError, match="not an importance file"):
        read_importance(path)
    with pytest.raises(ContainerError, match="without its counts"):
        read_importance(gguf_file(tmp_path / "i.gguf", {"w.in_sum2": floats(1)}))
    with pytest.raises(ContainerError, match="without entries"):
        read_importance(gguf_file(tmp_path / "e.gguf", {"x": floats(1)}))


GOOD = struct.pack("<ii", 1, 1) + b"w" + struct.pack("<iiff", 2, 2, 1, 2)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<i", 0),
        struct.pack("<i", -5),
        struct.pack("<i", 2**31 - 1) + bytes(100),
        struct.pack("<ii", 1, -1) + bytes(20),
        struct.pack("<ii", 1, 1000) + bytes(20),
        GOOD[:-1],
        GOOD[:-8] + struct.pack("<ff", 1, np.nan),
        GOOD[:-8] + struct.pack("<ff", 1, -2),
        GOOD[:9] + struct.pack("<ii", -1, 2) + bytes(8),
        GOOD[:9] + struct.pack("<ii", 1, 2**30) + bytes(8),
        struct.pack("<i", 2) + GOOD[4:] + GOOD[4:],
        GOOD + b"\0\0",
        GOOD + struct.pack("<ii", 1, 50),
    ],
)
def test_damaged_legacy_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(data)
    with pytest.raises(ContainerError) as caught:
        read_importance(path)
    assert caught.value.file == str(path)


def test_legacy_without_its_tail_and_calls(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(GOOD)
    found = read_importance(path)
    means = found.mean_squares("w", (1, 2))
    assert means is not None
    assert means.values.tolist() == [[0.5, 1.0]]
    path.write_bytes(GOOD[:9] + struct.pack("<iiff", 0, 2, 1, 2))
    means = read_importance(path).mean_squares("w", (1, 2))
    assert means is not None
    assert means.values.tolist() == [[1.0, 2.0]]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=15))
def test_no_bytes_crash_the_reader(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "i"
    path.write_bytes(data)
    with pytest.raises(ContainerError) as caught:  # 16 bytes are the least that mean something
        read_importance(path)
    assert caught.value.file == str(path)


PROGRAM = "QUANTKIT_LLAMA_QUANTIZE"


@pytest.fixture(scope="module")
def llama_quantize() -> str:
    found = os.environ.get(PROGRAM) or shutil.which("llama-quantize")
    if not found:
        pytest.skip(f"llama-quantize is neither in PATH nor in {PROGRAM}")
    return found


@pytest.mark.peer
@pytest.mark.parametrize("form", ["gguf", "dat"])
def test_llama_quantize_takes_it(form: str, zoo: Zoo, llama_quantize: str, tmp_path: Path) -> None:
    """The weights of the file decide: other importance, other bytes; the same, the same."""
    model = zoo.gguf("qwen3moe")
    shapes = {
        name: tensor.shape
        for name, tensor in open_gguf(model).tensors.items()
        if len(tensor.shape) > 1 and name.startswith("blk.")
    }

    def quantized(seed: int) -> bytes:
        rng = np.random.default_rng(seed)
        entries = {}
        for name, shape in shapes.items():
            n = shape[0] if len(shape) == 3 else 1
            counts = np.full(n, 100)
            counts[n // 2 :] = 0 if n > 1 else 100
            sums = rng.gamma(0.3, size=(n, shape[-1])) * counts[:, None]
            entries[name] = Entry(sums.astype(np.float32), counts)
        file, out = tmp_path / f"{seed}.{form}", tmp_path / f"{seed}.gguf"
        write_importance(Importance(entries, ("t",), 2, 50), file, form=form)
        done = subprocess.run(
            [llama_quantize, "--imatrix", str(file), "--pure", str(model), str(out), "IQ4_NL", "1"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"loaded {len(entries)} importance matrix entries" in done.stdout
        return b"".join(bytes(t.parts()["data"]) for t in open_gguf(out).tensors.values())

    first = quantized(1)
    assert first == quantized(1)
    assert first != quantized(2)
