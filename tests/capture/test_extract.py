"""From bytes to normalised documents."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.capture.texts.extract import EXTRACTORS, extract, normalize


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("a\r\nb\rc", "a\nb\nc\n"),
        ("a  \n\t\n\n\n\nb\n\n", "a\n\nb\n"),
        ("\n\n  indented", "  indented\n"),
        ("\ufeffcoo\u00adpe\x0cration", "cooperation\n"),
        ("u\u0308ber", "über\n"),
    ],
)
def test_normalize(raw: str, text: str) -> None:
    assert normalize(raw) == text


@given(st.text())
def test_normalize_is_idempotent(raw: str) -> None:
    once = normalize(raw)
    assert normalize(once) == once
    assert unicodedata.is_normalized("NFC", once)


def test_python_obeys_the_declared_encoding() -> None:
    assert extract("python", "# coding: latin-1\nx = 'ü'\n".encode("latin-1")) == [
        "# coding: latin-1\nx = 'ü'\n"
    ]
    assert extract("python", b"\xef\xbb\xbfx = 1\n") == ["x = 1\n"]


@pytest.mark.parametrize("data", [b"x = '\xff'\n", b"# coding: no-such-encoding\n", b"\n\n"])
def test_python_that_cannot_be_read_is_left_out(data: bytes) -> None:
    assert extract("python", data) == []


def test_html_is_cut_at_headings() -> None:
    page = b"<h1>A</h1><p>a</p><h2>B</h2>"
    assert extract("html", page, split_level=2) == ["A\n\na\n", "B\n"]
    assert extract("html", page) == ["A\n\na\n\nB\n"]


@given(st.binary(max_size=300), st.sampled_from(sorted(EXTRACTORS)))
def test_any_bytes_are_read(data: bytes, method: str) -> None:
    for text in extract(method, data):
        assert text.strip()
        text.encode()
