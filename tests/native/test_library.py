"""The library's border: statuses, loading, doing without it; and encoders, whatever the variant."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantkit.native import abi, cpu, lib
from quantkit.native.abi import Status
from quantkit.qtypes import QTYPES, QType

HEADER = Path(lib.__file__).parent / "csrc" / "include" / "quantkit.h"
ENCODED = [q for q in QTYPES if cpu.can_encode(q.gguf_id)]
each_encoded = pytest.mark.parametrize("qtype", ENCODED, ids=lambda q: q.name)


def test_every_declared_function_is_in_the_table() -> None:
    declared = re.findall(r"^QK_API .*?(qk_\w+)\(", HEADER.read_text(encoding="utf-8"), re.M)
    assert set(declared) == set(abi.FUNCTIONS)


def test_statuses_are_those_of_the_header() -> None:
    text = HEADER.read_text(encoding="utf-8")
    declared = dict(re.findall(r"\bQK_(\w+) = (\d)", text[: text.index("QK_OP_DECODE")]))
    assert declared == {status.name: str(int(status)) for status in Status}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((9999, 1, 1, 0, 0, 32, 1), Status.NO_SUCH_TYPE),
        ((2, 1, 1, 0, 0, 31, 1), Status.BAD_ARGUMENT),
        ((2, 1, 1, 0, 0, -32, 1), Status.BAD_ARGUMENT),
        ((2, None, 1, 0, 0, 32, 1), Status.BAD_ARGUMENT),
        ((2, None, None, 0, 0, 0, 1), Status.OK),
    ],
)
def test_decode_refuses_by_status(
    library: ctypes.CDLL, arguments: tuple[object, ...], status: Status
) -> None:
    assert library.qk_cpu_decode(*arguments) == status
    if status != Status.OK:
        assert library.qk_last_error()


def test_unknown_variants_and_operations_are_refused(library: ctypes.CDLL) -> None:
    assert library.qk_cpu_set_variant(77) == Status.NO_SUCH_VARIANT
    size = ctypes.c_int32()
    assert library.qk_cpu_block(5, 2, size, size) == Status.BAD_ARGUMENT


@each_encoded
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("value", [np.nan, -np.inf, 9.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_encode_finds_the_first_bad_value(qtype: QType, value: float, weighted: bool) -> None:
    values = np.ones((300, 256), np.float32)
    importance = np.ones(256, np.float32) if weighted else None
    out = np.empty(qtype.nbytes(values.size), np.uint8)
    flat = values.reshape(-1)
    assert cpu.encode(qtype.gguf_id or 0, values, importance, out, largest=8.0) is None
    for index in (flat.size - 1, 64 * 256, 64 * 256 - 1, 4097, 4096, 0):
        flat[index] = value
        for threads in (1, 3):
            found = cpu.encode(
                qtype.gguf_id or 0, values, importance, out, largest=8.0, threads=threads
            )
            assert found == index


@each_encoded
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_encode_refuses_importance_that_is_no_weight(qtype: QType, value: float) -> None:
    row = 2 * qtype.block_size
    importance = np.ones(row, np.float32)
    importance[row - 5] = value
    out = np.empty(qtype.nbytes(3 * row), np.uint8)
    with pytest.raises(RuntimeError, match=rf"BAD_ARGUMENT: .*\(index {row - 5}\)"):
        cpu.encode(qtype.gguf_id or 0, np.ones((3, row), np.float32), importance, out)


@each_encoded
@pytest.mark.usefixtures("library")
def test_encoders_do_not_depend_on_variant_nor_threads(qtype: QType) -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_t(4, (37, 512)).astype(np.float32)
    values[3] = 0
    values[5, 100] = 50
    importance = np.exp(1.5 * rng.standard_normal(512)).astype(np.float32)
    for weights in (None, importance):
        encoded = []
        for variant in cpu.VARIANTS:
            if not cpu.set_variant(variant):
                continue
            for threads in (1, 3):
                out = np.empty(qtype.nbytes(values.size), np.uint8)
                cpu.encode(qtype.gguf_id or 0, values, weights, out, threads=threads)
                encoded.append(out)
        for other in encoded[1:]:
            np.testing.assert_array_equal(other, encoded[0])


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(lib.__file__).parents[2]), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


CODE = """
import numpy as np
from quantkit.codecs import decode, encode
from quantkit.native import lib
from quantkit.qtypes import by_name
q = by_name("IQ4_NL")
values = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
print(lib.cpu() is not None, decode(q, encode(q, values), (4, 64)).shape)
"""


def test_everything_works_without_the_library() -> None:
    done = run_python(CODE, QUANTKIT_NATIVE="0")
    assert done.stdout.split() == ["False", "(4,", "64)"], done.stderr
    assert not done.stderr


def test_a_missing_library_is_diagnosed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lib, "FOLDER", tmp_path)
    monkeypatch.delenv(lib.SWITCH, raising=False)
    lib.load.cache_clear()
    try:
        for _ in range(3):
            assert lib.cpu() is None
        assert len(caplog.records) == 1
        assert "does not exist" in caplog.text
        assert "pip install" in caplog.text
        assert not cpu.can_decode(2)
        with pytest.raises(RuntimeError, match="does not exist"):
            cpu.variant()
    finally:
        lib.load.cache_clear()


def test_a_file_that_is_no_library_is_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lib, "FOLDER", tmp_path)
    monkeypatch.delenv(lib.SWITCH, raising=False)
    lib.library_path().write_bytes(b"not a library")
    lib.load.cache_clear()
    try:
        assert "does not load" in lib.load().diagnosis
    finally:
        lib.load.cache_clear()


@pytest.mark.parametrize(("text", "threads"), [("3", 3), ("0", None), ("-2", None), ("x", None)])
def test_thread_count_is_the_users_or_the_machines(
    text: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = lib.thread_count()
    monkeypatch.setenv(lib.THREADS, text)
    assert lib.thread_count() == (threads or everything)
