"""Reading .deb files, whole and damaged ones."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.capture.texts.deb import deb_files
from quantkit.errors import TextError
from tests.capture.helpers import ar_bytes, deb_bytes, tar_bytes

FILES = {"usr/share/doc/made/a.html": b"<p>a</p>", "usr/lib/b.py": b"b = 1\n", "empty": b""}
COMPRESSIONS = [("w:", ""), ("w:gz", ".gz"), ("w:xz", ".xz"), ("w:bz2", ".bz2")]


def every(path: str) -> bool:
    return True


@pytest.fixture
def deb(tmp_path: Path) -> Path:
    return tmp_path / "made_1_all.deb"


@pytest.mark.parametrize(("mode", "suffix"), COMPRESSIONS)
def test_reads_every_compression(deb: Path, mode: str, suffix: str) -> None:
    deb.write_bytes(deb_bytes(FILES, mode, suffix))
    assert dict(deb_files(deb, every)) == FILES


@pytest.mark.parametrize("length", range(4))
def test_members_of_odd_length_are_padded(deb: Path, length: int) -> None:
    deb.write_bytes(ar_bytes({"debian-binary": b"2.0\n"[:length], "data.tar.xz": tar_bytes(FILES)}))
    assert dict(deb_files(deb, every)) == FILES


def test_yields_only_wanted_files(deb: Path) -> None:
    deb.write_bytes(deb_bytes(FILES))
    assert dict(deb_files(deb, lambda path: path.endswith(".py"))) == {"usr/lib/b.py": b"b = 1\n"}


def test_links_are_not_files(deb: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "./other")):
            link = tarfile.TarInfo(f"./{kind!r}")
            link.type, link.linkname = kind, target
            tar.addfile(link)
    deb.write_bytes(ar_bytes({"debian-binary": b"2.0\n", "data.tar.gz": buffer.getvalue()}))
    assert list(deb_files(deb, every)) == []


def test_agrees_with_dpkg(deb: Path, tmp_path: Path) -> None:
    dpkg = shutil.which("dpkg-deb")
    if dpkg is None:
        pytest.skip("dpkg-deb is not installed")
    root = tmp_path / "root"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "DEBIAN").mkdir()
    control = "Package: made\nVersion: 1\nArchitecture: all\nMaintainer: me <a@b.c>\n"
    (root / "DEBIAN/control").write_text(control + "Description: made for a test\n")
    command = [dpkg, "--build", "--root-owner-group", "-Zxz", str(root), str(deb)]
    subprocess.run(command, check=True, capture_output=True)
    assert dict(deb_files(deb, every)) == FILES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with '!<arch>'"),
        (b"PK\x03\x04 a zip file", "starts with '!<arch>'"),
        (ar_bytes({"debian-binary": b"2.0\n"}), "no member data.tar"),
        (ar_bytes({"data.tar.zst": b"(\xb5/\xfd"}), "unsupported compression"),
        (ar_bytes({"data.tar.xz": b"not xz at all"}), "damaged Debian package"),
        (ar_bytes({"data.tar.gz": b"\x1f\x8b\x08 cut"}), "damaged Debian package"),
        (ar_bytes({"data.tar": b"x" * 2000}), "damaged Debian package"),
        (ar_bytes({"data.tar": b""})[:-10].replace(b"`\n", b"??"), "no member header"),
        (ar_bytes({"data.tar": b"12"}).replace(b"2         `", b"-2        `"), "no member header"),
    ],
)
def test_bad_packages(deb: Path, content: bytes, message: str) -> None:
    deb.write_bytes(content)
    with pytest.raises(TextError, match=message) as error:
        list(deb_files(deb, every))
    assert error.value.file == str(deb)


WHOLE = deb_bytes(FILES)
DATA_MEMBER = len(WHOLE) - len(tar_bytes(FILES))


@given(length=st.integers(0, len(WHOLE) - 2))
def test_every_truncation_is_noticed(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.deb"
    path.write_bytes(WHOLE[:length])
    with pytest.raises(TextError):
        list(deb_files(path, every))


@given(position=st.integers(DATA_MEMBER + 60, len(WHOLE) - 20), flip=st.integers(1, 255))
def test_altered_archives_never_crash(
    tmp_path_factory: pytest.TempPathFactory, position: int, flip: int
) -> None:
    altered = bytearray(WHOLE)
    altered[position] ^= flip
    path = tmp_path_factory.mktemp("altered") / "altered.deb"
    path.write_bytes(altered)
    try:
        found = dict(deb_files(path, every))
    except TextError:
        return
    # xz carries checksums: what it lets through is what was packed.
    assert found == FILES
