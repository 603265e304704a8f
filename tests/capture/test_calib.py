"""The texts of the repository: intact, apart from each other, rebuilt where that is possible."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from quantkit.capture.texts import build_text, check_disjoint, load_manifest, load_text
from quantkit.errors import TextError

CALIB = Path(__file__).parents[2] / "calib"
MANIFESTS = sorted(CALIB.glob("*.yaml"))
DEB_DIR = "QUANTKIT_DEB_DIR"


def deb_dirs() -> list[Path]:
    """Folders with .deb files, named by QUANTKIT_DEB_DIR."""
    return [Path(name) for name in os.environ.get(DEB_DIR, "").split(os.pathsep) if name]


def test_the_four_texts_are_there() -> None:
    assert [path.stem for path in MANIFESTS] == ["capture", "check", "heldout", "selection"]
    assert {path.stem for path in CALIB.glob("*.txt")} == {path.stem for path in MANIFESTS}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_texts_match_their_manifests(path: Path) -> None:
    manifest = load_manifest(path)
    text = load_text(path)
    assert manifest.name == path.stem
    assert len(text.encode()) == manifest.bytes
    assert 50_000 < manifest.bytes < 80_000


def test_texts_do_not_overlap() -> None:
    check_disjoint({path.stem: load_text(path) for path in MANIFESTS})


def test_the_german_text_is_german() -> None:
    words = load_text(CALIB / "check.yaml").lower().split()
    assert words.count("der") > 100
    assert words.count("the") < 5


def test_pydoc_topics_are_rebuilt() -> None:
    manifest = load_manifest(CALIB / "selection.yaml")
    revision = manifest.sources["topics"].revision
    if platform.python_version() != revision:
        pytest.skip(f"the topics are those of Python {revision}, not {platform.python_version()}")
    assert build_text(manifest).text == load_text(CALIB / "selection.yaml")


def test_topics_of_another_python_are_explained() -> None:
    manifest = load_manifest(CALIB / "selection.yaml")
    other = replace(manifest.sources["topics"], revision="3.0.1")
    topic = replace(manifest.documents[0], sha256="00" * 32)
    foreign = replace(manifest, sources={"topics": other}, documents=(topic,))
    here = platform.python_version()
    with pytest.raises(TextError, match=f"python is {here} here and 3.0.1 in the manifest"):
        build_text(foreign)


@pytest.mark.peer
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_texts_are_rebuilt_from_packages(path: Path) -> None:
    manifest = load_manifest(path)
    kinds = {source.kind for source in manifest.sources.values()}
    revisions = {s.revision for s in manifest.sources.values() if s.package == "python"}
    if "deb" in kinds and not deb_dirs():
        pytest.skip(f"{DEB_DIR} names no folder with the packages of {path.name}")
    if revisions - {platform.python_version()}:
        pytest.skip(f"the text has parts of Python {revisions.pop()}")
    assert build_text(manifest, deb_dirs=deb_dirs()).text == load_text(path)
