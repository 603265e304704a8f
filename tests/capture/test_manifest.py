"""Manifests: what they accept, what they refuse, and how drafts become manifests."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from quantkit.capture.texts import dump_manifest, load_manifest, pin_manifest
from quantkit.errors import TextError
from tests.capture.helpers import make_deb

HASH = "0f" * 32
VALID: dict[str, Any] = {
    "schema": "quantkit.text/1",
    "name": "t",
    "language": "en",
    "description": "a text",
    "sources": {
        "made": {
            "kind": "deb",
            "package": "made",
            "revision": "1.0-1",
            "licence": "MIT",
            "extract": "text",
        }
    },
    "documents": [{"source": "made", "path": "a.txt", "sha256": HASH}],
    "sha256": HASH,
    "bytes": 2,
}
REMOVE = object()


def write(path: Path, data: object) -> Path:
    path.write_text(yaml.safe_dump(data), "utf-8")
    return path


def changed(keys: tuple[str | int, ...], value: object) -> dict[str, Any]:
    data = deepcopy(VALID)
    inner: Any = data
    for key in keys[:-1]:
        inner = inner[key]
    if value is REMOVE:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    return data


def test_a_valid_manifest(tmp_path: Path) -> None:
    manifest = load_manifest(write(tmp_path / "t.yaml", VALID))
    assert manifest.name == "t"
    assert manifest.sources["made"].split_level == 0
    assert manifest.documents[0].sha256 == HASH


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("schema",), "quantkit.text/2", "quantkit.text/1"),
        (("name",), REMOVE, "field 'name' is not valid"),
        (("name",), "", "field 'name'"),
        (("surprise",), 1, "field 'surprise'"),
        (("sources",), [], "field 'sources'"),
        (("sources",), REMOVE, "field 'sources'"),
        (("sources", "made"), "deb", "field 'sources.made'"),
        (("sources", "made", "kind"), "rpm", "one of pydoc-topics, python-stdlib, pip, deb"),
        (("sources", "made", "extract"), "pdf", "one of text, python, html"),
        (("sources", "made", "licence"), REMOVE, "field 'sources.made.licence'"),
        (("sources", "made", "package"), "", "field 'sources.made.package'"),
        (("sources", "made", "revision"), 3.10, "needs quotes in YAML"),
        (("sources", "made", "revision"), REMOVE, "is a draft"),
        (("sources", "made", "split_level"), 7, "a heading level"),
        (("sources", "made", "include"), "*.html", "must be a list"),
        (("sources", "made", "archive_sha256"), "12", "64 lower-case hexadecimal digits"),
        (("sources", "made", "url"), "https://x", "unknown field"),
        (("documents",), [], "at least one document"),
        (("documents",), {"a": 1}, "field 'documents'"),
        (("documents", 0), "a.txt", "must be an object"),
        (("documents", 0, "source"), "other", "one of made"),
        (("documents", 0, "path"), REMOVE, r"field 'documents\[0\].path'"),
        (("documents", 0, "sha256"), HASH.upper(), r"field 'documents\[0\].sha256'"),
        (("documents", 0, "sha256"), REMOVE, "is a draft"),
        (("sha256",), HASH[:-1], "field 'sha256'"),
        (("sha256",), REMOVE, "is a draft"),
        (("bytes",), "2", "must be of type int"),
        (("bytes",), 0, "is a draft"),
    ],
)
def test_refuses(tmp_path: Path, keys: tuple[str | int, ...], value: object, message: str) -> None:
    path = write(tmp_path / "t.yaml", changed(keys, value))
    with pytest.raises(TextError, match=message) as error:
        load_manifest(path)
    assert error.value.file == str(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"- a list\n", b"a: [unclosed", b"\xff\xfe\x00", b"when: 2023-13-45\n", b"[" * 20000],
)
def test_refuses_what_is_no_manifest(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(content)
    with pytest.raises(TextError) as error:
        load_manifest(path)
    assert error.value.file == str(path)


def test_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="No such file"):
        load_manifest(tmp_path / "t.yaml")


def test_a_draft_is_pinned(tmp_path: Path) -> None:
    make_deb(tmp_path, {"a.txt": b"eins\n", "b.txt": b"zwei\n"}, version="2.5")
    draft_data = changed(
        ("documents",), [{"source": "made", "path": p} for p in ("b.txt", "a.txt")]
    )
    for key in ("sha256", "bytes"):
        del draft_data[key]
    del draft_data["sources"]["made"]["revision"]
    draft = load_manifest(write(tmp_path / "t.yaml", draft_data), draft=True)
    pinned, built = pin_manifest(draft, deb_dirs=[tmp_path])
    assert built.text == "zwei\n\n\neins\n"
    assert (pinned.sha256, pinned.bytes) == (built.sha256, 12)
    assert pinned.sources["made"].revision == "2.5"
    (tmp_path / "p.yaml").write_text(dump_manifest(pinned), "utf-8")
    assert load_manifest(tmp_path / "p.yaml") == pinned
    assert pin_manifest(pinned, deb_dirs=[tmp_path]) == (pinned, built)
