"""Byte ranges, copying, hashing and atomic writing."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from quantkit.containers import ranges
from quantkit.containers.hashing import sha256_file, sha256_range
from quantkit.containers.ranges import (
    ByteRange,
    Copier,
    copy_range,
    default_copiers,
    iterate_range,
    map_range,
    read_range,
)
from quantkit.errors import ContainerError
from quantkit.files import (
    atomic_path,
    atomic_paths,
    write_json_atomic,
    write_text_atomic,
)

from .builders import noise


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(noise(3, 3_000_000))
    return path


def copied(source: ByteRange, target: Path, *copiers: Copier) -> bytes:
    """The target after copying the range to its byte 5."""
    heard: list[int] = []
    with target.open("w+b") as file:
        copy_range(source, file.fileno(), 5, on_bytes=heard.append, copiers=copiers or None)
    assert sum(heard) == source.nbytes
    return target.read_bytes()


@pytest.mark.parametrize("index", range(len(default_copiers())))
def test_every_copier_copies_the_range(source: Path, tmp_path: Path, index: int) -> None:
    wanted = ByteRange(source, 1001, 2_500_001)
    result = copied(wanted, tmp_path / "target", default_copiers()[index])
    assert result == bytes(5) + source.read_bytes()[1001 : 1001 + 2_500_001]


def refusing(error_number: int) -> Copier:
    def copier(*arguments: int) -> int:
        raise OSError(error_number, os.strerror(error_number))

    return copier


@pytest.mark.parametrize("error_number", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_refused_copier_is_left_for_the_next(
    source: Path, tmp_path: Path, error_number: int
) -> None:
    ways = (refusing(error_number), *default_copiers())
    assert copied(ByteRange(source, 0, 999), tmp_path / "t", *ways)[5:] == read_range(
        ByteRange(source, 0, 999)
    )


def test_copier_that_moves_nothing_is_left_for_the_next(source: Path, tmp_path: Path) -> None:
    ways = (lambda *arguments: 0, *default_copiers())
    assert len(copied(ByteRange(source, 0, 999), tmp_path / "t", *ways)) == 1004


def test_real_io_errors_are_not_swallowed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        copied(ByteRange(source, 0, 9), tmp_path / "t", refusing(errno.ENOSPC), *default_copiers())


@pytest.mark.parametrize("index", range(len(default_copiers())))
def test_range_past_the_end_is_an_error(source: Path, tmp_path: Path, index: int) -> None:
    wanted = ByteRange(source, 2_999_990, 11)
    with pytest.raises(ContainerError, match="ends before the bytes"):
        copied(wanted, tmp_path / "t", default_copiers()[index])
    for read in (map_range, read_range, sha256_range, lambda r: list(iterate_range(r))):
        with pytest.raises(ContainerError, match="ends before the bytes"):
            read(wanted)


def test_map_range_at_any_offset(source: Path) -> None:
    raw = source.read_bytes()
    for offset, nbytes in ((0, 1), (4097, 5000), (2_999_999, 1), (7, 0)):
        mapped = map_range(ByteRange(source, offset, nbytes))
        assert mapped.tobytes() == raw[offset : offset + nbytes]
        assert not mapped.flags.writeable


def test_hashes_are_those_of_hashlib(source: Path) -> None:
    raw = source.read_bytes()
    assert sha256_file(source) == hashlib.sha256(raw).hexdigest()
    assert (
        sha256_range(ByteRange(source, 17, 2_000_000))
        == hashlib.sha256(raw[17:2_000_017]).hexdigest()
    )
    assert sha256_range(ByteRange(source, 17, 0)) == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("what", ["nothing", "folder", "below a file", "loop"])
def test_unreadable_inputs_are_named(tmp_path: Path, source: Path, what: str) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    paths = {
        "nothing": tmp_path / "none",
        "folder": tmp_path,
        "below a file": source / "x",
        "loop": loop,
    }
    with pytest.raises(ContainerError) as caught:
        read_range(ByteRange(paths[what], 0, 1))
    assert caught.value.file == str(paths[what])


def test_atomic_set_appears_together(tmp_path: Path) -> None:
    finals = [tmp_path / "a.txt", tmp_path / "b.txt"]
    with atomic_paths(finals) as temporary:
        assert [path.name for path in temporary] == ["a.txt", "b.txt"]
        for path in temporary:
            path.write_text(path.name)
        assert not any(path.exists() for path in finals)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def write_and_fail(final: Path, error: BaseException) -> None:
    with atomic_path(final) as temporary:
        temporary.write_text("new")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError()], ids=repr)
def test_failure_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    final = tmp_path / "a.txt"
    final.write_text("old")
    with pytest.raises(type(error)):
        write_and_fail(final, error)
    assert final.read_text() == "old"
    assert list(tmp_path.iterdir()) == [final]


def test_forgotten_file_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_paths([tmp_path / "a", tmp_path / "b"]) as paths:
        paths[1].write_text("only b")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_process_are_cleared(tmp_path: Path) -> None:
    leftover = tmp_path / ".a.txt.partial"
    (leftover / "deep").mkdir(parents=True)
    (leftover / "a.txt").write_text("half")
    write_text_atomic(tmp_path / "a.txt", "ü")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == "ü".encode()


def _hold(final: Path, started: object, release: object) -> None:
    with atomic_path(final) as temporary:
        temporary.write_text("first")
        started.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "a", started, release))
    other.start()
    assert started.wait(30)
    with pytest.raises(ContainerError, match="another process"):
        write_text_atomic(tmp_path / "a", "second")
    release.set()
    other.join(30)
    assert (tmp_path / "a").read_text() == "first"


def test_json_is_stable_and_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json_atomic(path, {"b": [1, 0.5], "a": "ü"})
    assert json.loads(path.read_text()) == {"b": [1, 0.5], "a": "ü"}
    assert path.read_text().index('"b"') < path.read_text().index('"a"')
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomic(path, float("nan"))


def test_bad_targets_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no such folder"):
        write_text_atomic(tmp_path / "none" / "a", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ContainerError, match="a folder stands"):
        write_text_atomic(tmp_path / "folder", "")


def test_full_disk_is_our_error(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ContainerError, match="could not write: No space") as caught:
        write_and_fail(tmp_path / "a", full)
    assert "free space" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_unreadable_input_is_not_reported_as_output(tmp_path: Path) -> None:
    denied = PermissionError(errno.EACCES, "denied", "/some/input")
    with pytest.raises(PermissionError):
        write_and_fail(tmp_path / "a", denied)


def test_copy_steps_cover_large_ranges(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "COPY_STEP_BYTES", 777_777)
    assert copied(ByteRange(source, 0, 3_000_000), tmp_path / "t")[5:] == source.read_bytes()
