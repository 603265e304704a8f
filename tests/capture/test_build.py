"""Rebuilding texts and noticing every difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quantkit.capture.texts import (
    Manifest,
    build_text,
    check_disjoint,
    dump_manifest,
    load_text,
    pin_manifest,
    verify,
)
from quantkit.capture.texts.build import text_sha256
from quantkit.capture.texts.manifest import DocumentRef, Source
from quantkit.errors import TextError
from tests.capture.helpers import make_deb

PAGE = b"<h1>A</h1><p>first</p><h1>B</h1><p>second</p>"
FILES = {"doc/a.html": PAGE, "doc/b.html": b"<p>third</p>", "lib/c.py": b"c = 3\n"}


@pytest.fixture
def debs(tmp_path: Path) -> Path:
    folder = tmp_path / "debs"
    folder.mkdir()
    make_deb(folder, FILES)
    return folder


@pytest.fixture
def manifest(debs: Path) -> Manifest:
    html = Source("deb", "made", "MIT", "html", split_level=1)
    python = Source("deb", "made", "MIT", "python")
    draft = Manifest(
        name="t",
        language="en",
        description="a text",
        sources={"pages": html, "code": python},
        documents=(
            DocumentRef("pages", "doc/a.html#1"),
            DocumentRef("code", "lib/c.py"),
            DocumentRef("pages", "doc/b.html#0"),
        ),
    )
    return pin_manifest(draft, deb_dirs=[debs])[0]


def test_builds_in_the_order_of_the_manifest(manifest: Manifest, debs: Path) -> None:
    built = build_text(manifest, deb_dirs=[debs])
    assert built.text == "B\n\nsecond\n\n\nc = 3\n\n\nthird\n"
    assert [document.key for document in built.documents] == [
        "pages/doc/a.html#1",
        "code/lib/c.py",
        "pages/doc/b.html#0",
    ]
    assert built.nbytes == manifest.bytes
    assert build_text(manifest, deb_dirs=[debs]) == built


def test_another_revision_with_the_same_documents_is_the_same_text(
    manifest: Manifest, debs: Path
) -> None:
    built = build_text(manifest, deb_dirs=[debs])
    (debs / "made_1.0-1_all.deb").unlink()
    make_deb(debs, FILES, version="1.1-1")
    assert build_text(manifest, deb_dirs=[debs]).text == built.text


def test_a_document_of_another_revision(manifest: Manifest, debs: Path) -> None:
    (debs / "made_1.0-1_all.deb").unlink()
    make_deb(debs, FILES | {"lib/c.py": b"c = 4\n"}, version="1.1-1")
    with pytest.raises(TextError, match=r"document lib/c\.py differs from the manifest") as error:
        build_text(manifest, deb_dirs=[debs])
    message = str(error.value)
    assert manifest.documents[1].sha256 in message
    assert f"{text_sha256('c = 4' + chr(10))} (made 1.1-1)" in message
    assert "made is 1.1-1 here and 1.0-1 in the manifest" in message


def test_a_modified_package(manifest: Manifest, debs: Path) -> None:
    make_deb(debs, FILES | {"lib/c.py": b"c = 4\n"})
    with pytest.raises(TextError, match="the files of made were changed"):
        build_text(manifest, deb_dirs=[debs])


@pytest.mark.parametrize(
    ("version", "hint"), [("1.0-1", "leave /usr/share/doc out"), ("2.0", "made is 2.0 here")]
)
def test_a_missing_document(manifest: Manifest, debs: Path, version: str, hint: str) -> None:
    (debs / "made_1.0-1_all.deb").unlink()
    make_deb(debs, {"doc/a.html": PAGE, "lib/c.py": b"c = 3\n"}, version=version)
    with pytest.raises(TextError, match="a document is missing") as error:
        build_text(manifest, deb_dirs=[debs])
    assert error.value.value == "doc/b.html#0"
    assert hint in str(error.value)


def test_a_missing_section(manifest: Manifest, debs: Path) -> None:
    ref = DocumentRef("pages", "doc/a.html#2", "00" * 32)
    with pytest.raises(TextError, match="a document is missing"):
        build_text(replace(manifest, documents=(ref,)), deb_dirs=[debs])


def test_documents_in_another_order_are_another_text(manifest: Manifest, debs: Path) -> None:
    swapped = replace(manifest, documents=manifest.documents[::-1])
    with pytest.raises(TextError, match="text t differs from its manifest") as error:
        build_text(swapped, deb_dirs=[debs])
    assert f"rule: sha256 {manifest.sha256}, {manifest.bytes} bytes" in str(error.value)


def test_the_text_beside_a_manifest(manifest: Manifest, debs: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(dump_manifest(manifest), "utf-8")
    with pytest.raises(TextError, match="cannot read the text"):
        load_text(path)
    text = build_text(manifest, deb_dirs=[debs]).text
    (tmp_path / "t.txt").write_text(text, "utf-8")
    assert load_text(path) == text
    (tmp_path / "t.txt").write_bytes(text.replace("\n", "\r\n").encode())
    with pytest.raises(TextError, match="differs from its manifest") as error:
        load_text(path)
    assert error.value.file == str(tmp_path / "t.txt")
    (tmp_path / "t.txt").write_bytes(b"\xff")
    with pytest.raises(TextError, match="cannot read the text"):
        load_text(path)


def test_verify_says_both_sizes(manifest: Manifest) -> None:
    with pytest.raises(TextError, match="0 bytes") as error:
        verify(manifest, "")
    assert f"{manifest.bytes} bytes" in str(error.value)


def test_check_disjoint() -> None:
    run = "one two three four five six seven eight nine ten eleven twelve"
    check_disjoint({"a": run, "b": run.removesuffix(" twelve"), "c": run.removeprefix("one ")})
    with pytest.raises(TextError, match="the texts a and c overlap") as error:
        check_disjoint({"a": f"x {run}", "b": "other", "c": f"{run.upper()}!"})
    assert run in str(error.value)
