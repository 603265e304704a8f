"""Finding packages: .deb files, dpkg's database, Python distributions, the interpreter."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from quantkit.capture.texts.sources import installed_package, locate, match_path
from quantkit.errors import TextError
from tests.capture.helpers import make_deb

STATUS = """\
Package: made
Status: install ok installed
Architecture: all
Version: 1:2.0-3
Description: a package
 with a second line
 Version: 9

Package: removed
Status: deinstall ok config-files
Version: 1.0

Package: gone
Status: install ok installed
Version: 1.0
"""


def every(path: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("path", "pattern", "matches"),
    [
        ("usr/doc/a.html", "usr/doc/*.html", True),
        ("usr/doc/b/a.html", "usr/doc/*.html", False),
        ("usr/doc/b/a.html", "usr/**.html", True),
        ("usr/doc/b/a.html", "**/a.html", True),
        ("xa.html", "**/a.html", False),
        ("a1.html", "a?.html", True),
        ("a/.html", "a?.html", False),
        ("a.html", "a+html", False),
        ("c++/[x].py", "c++/[x].py", True),
        ("a.htmlx", "*.html", False),
    ],
)
def test_match_path(path: str, pattern: str, matches: bool) -> None:
    assert match_path(path, ["no such file", pattern]) is matches
    assert not match_path(path, [])


def test_deb_folders_come_first_and_the_version_is_decoded(tmp_path: Path) -> None:
    path = make_deb(tmp_path, {"b": b"2", "a": b"1"}, package="base-files", version="4:7.4.7-1")
    make_deb(tmp_path, {"c": b"3"}, package="base-files-extra")
    located = locate("deb", "base-files", [tmp_path / "empty", tmp_path])
    assert located.revision == "4:7.4.7-1"
    assert located.archive == path
    assert list(located.read(every)) == [("a", b"1"), ("b", b"2")]
    assert list(located.read("b".__eq__)) == [("b", b"2")]


def test_installed_package(tmp_path: Path) -> None:
    (tmp_path / "info").mkdir()
    (tmp_path / "status").write_text(STATUS)
    files = tmp_path / "root"
    files.mkdir()
    (files / "b.txt").write_bytes(b"b")
    (files / "a.txt").write_bytes(b"a")
    (files / "link").symlink_to("a.txt")
    names = [f"{files}", f"{files}/b.txt", f"{files}/a.txt", f"{files}/link", "/no/such/file"]
    (tmp_path / "info/made.list").write_text("\n".join(names) + "\n")
    (tmp_path / "info/removed.list").write_text("/etc\n")
    located = installed_package("made", tmp_path)
    assert located is not None
    assert located.revision == "1:2.0-3"
    inside = str(files).lstrip("/")
    assert list(located.read(every)) == [(f"{inside}/a.txt", b"a"), (f"{inside}/b.txt", b"b")]
    for absent in ("removed", "gone", "mad", "unknown"):
        assert installed_package(absent, tmp_path) is None


def test_installed_package_agrees_with_dpkg() -> None:
    query = shutil.which("dpkg-query")
    if query is None:
        pytest.skip("dpkg-query is not installed")
    command = [query, "--show", "--showformat", "${Version}", "base-files"]
    version = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    located = installed_package("base-files")
    assert located is not None
    assert located.revision == version
    assert dict(located.read("etc/debian_version".__eq__)) == {
        "etc/debian_version": Path("/etc/debian_version").read_bytes()
    }


def test_pip() -> None:
    located = locate("pip", "numpy")
    assert located.revision == importlib.metadata.version("numpy")
    found = dict(located.read(lambda path: match_path(path, ["numpy/_core/records.py"])))
    assert list(found) == ["numpy/_core/records.py"]
    assert b"recarray" in found["numpy/_core/records.py"]


def test_python_stdlib() -> None:
    located = locate("python-stdlib", "python")
    assert located.revision == platform.python_version()
    found = dict(located.read({"textwrap.py", "json/decoder.py"}.__contains__))
    assert list(found) == ["json/decoder.py", "textwrap.py"]
    assert not list(located.read(lambda path: "site-packages" in path))


def test_pydoc_topics() -> None:
    located = locate("pydoc-topics", "python")
    assert located.revision == platform.python_version()
    found = list(located.read({"with", "assignment"}.__contains__))
    assert [path for path, _ in found] == ["assignment", "with"]
    assert b"context manager" in found[1][1]


@pytest.mark.parametrize(
    ("kind", "hint"), [("pip", "pip install no-such-package"), ("deb", "apt-get download no-such")]
)
def test_missing_packages(tmp_path: Path, kind: str, hint: str) -> None:
    with pytest.raises(TextError, match="not installed") as error:
        locate(kind, "no-such-package", [tmp_path])
    assert error.value.value == f"{kind} no-such-package"
    assert hint in str(error.value)
