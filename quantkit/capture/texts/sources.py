"""Where documents come from: .deb files, installed packages, the interpreter itself.

A source yields (path, bytes) pairs in the order of their paths. Its revision is the version of
the package, so that a text built from another revision is noticed and can be explained.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote

from quantkit.capture.texts.deb import deb_files
from quantkit.errors import TextError

DPKG = Path("/var/lib/dpkg")
DEB_NAME = re.compile(r"(?P<package>[^_]+)_(?P<version>[^_]+)_[^_]+\.deb")
WILDCARD = re.compile(r"(\*\*|\*|\?)")
WILDCARD_MEANING = MappingProxyType({"**": ".*", "*": "[^/]*", "?": "[^/]"})

Wanted = Callable[[str], bool]
Files = Iterator[tuple[str, bytes]]


@dataclass(frozen=True)
class Located:
    """A source found on this machine.

    `read(wanted)` yields the files whose path `wanted` accepts, ordered by path; `archive` is the
    .deb that they are read from.
    """

    revision: str
    read: Callable[[Wanted], Files]
    archive: Path | None = None


def locate(kind: str, package: str, deb_dirs: Sequence[Path] = ()) -> Located:
    """Find a source on this machine; `kind` is a key of KINDS. Raises TextError when absent."""
    return KINDS[kind](package, deb_dirs)


def match_path(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path matches one of the patterns: `*` and `?` inside a folder, `**` across."""
    return any(_compiled(pattern).fullmatch(path) for pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = (WILDCARD_MEANING.get(part) or re.escape(part) for part in WILDCARD.split(pattern))
    return re.compile("".join(parts), re.DOTALL)


def _pydoc_topics(package: str, deb_dirs: Sequence[Path]) -> Located:
    # Imported here: 700 kB of text that nothing else needs.
    from pydoc_data.topics import topics

    def read(wanted: Wanted) -> Files:
        return ((name, topics[name].encode()) for name in sorted(topics) if wanted(name))

    return Located(platform.python_version(), read)


def _python_stdlib(package: str, deb_dirs: Sequence[Path]) -> Located:
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    named = ((path.relative_to(root).as_posix(), path) for path in paths)
    return Located(platform.python_version(), lambda wanted: _read_files(sorted(named), wanted))


def _pip(package: str, deb_dirs: Sequence[Path]) -> Located:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise _not_installed(f"pip {package}", f"pip install {package}") from error
    files = distribution.files or ()
    named = sorted((file.as_posix(), Path(str(file.locate()))) for file in files)
    return Located(distribution.version, lambda wanted: _read_files(named, wanted))


def _deb(package: str, deb_dirs: Sequence[Path]) -> Located:
    for folder in deb_dirs:
        for path in sorted(folder.glob("*.deb")):
            name = DEB_NAME.fullmatch(path.name)
            if name and name["package"] == package:
                return _deb_archive(path, unquote(name["version"]))
    installed = installed_package(package)
    if installed is None:
        hint = f"apt-get download {package} into a folder, and name the folder with --deb-dir"
        raise _not_installed(f"deb {package}", hint)
    return installed


def _deb_archive(path: Path, version: str) -> Located:
    return Located(version, lambda wanted: iter(sorted(deb_files(path, wanted))), path)


def installed_package(package: str, database: Path = DPKG) -> Located | None:
    """An installed Debian package, by dpkg's database; None when it is not installed."""
    info = database / "info"
    listings = [info / f"{package}.list", *sorted(info.glob(f"{package}:*.list"))]
    listing = next((path for path in listings if path.is_file()), None)
    version = _installed_version(package, database / "status")
    if listing is None or version is None:
        return None
    names = sorted(listing.read_text("utf-8").split("\n"))
    named = [(name.lstrip("/"), Path(name)) for name in names if name]
    return Located(version, lambda wanted: _read_files(named, wanted))


def _installed_version(package: str, status: Path) -> str | None:
    if not status.is_file():
        return None
    for entry in status.read_text("utf-8", "replace").split("\n\n"):
        lines = (line.partition(": ") for line in entry.split("\n"))
        fields = {name: value for name, _, value in lines}
        installed = fields.get("Status", "").endswith(" installed")
        if installed and fields.get("Package") == package:
            return fields.get("Version")
    return None


def _read_files(named: Sequence[tuple[str, Path]], wanted: Wanted) -> Files:
    for name, path in named:
        if wanted(name) and path.is_file() and not path.is_symlink():
            yield name, path.read_bytes()


def _not_installed(source: str, hint: str) -> TextError:
    return TextError("a source of the text is not installed", value=source, hint=hint)


KINDS: Mapping[str, Callable[[str, Sequence[Path]], Located]] = MappingProxyType(
    {
        "pydoc-topics": _pydoc_topics,
        "python-stdlib": _python_stdlib,
        "pip": _pip,
        "deb": _deb,
    }
)
