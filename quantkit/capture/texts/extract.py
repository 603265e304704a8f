"""From the bytes of a file to the texts of its documents."""

from __future__ import annotations

import io
import re
import tokenize
import unicodedata
from collections.abc import Callable, Mapping
from types import MappingProxyType

from quantkit.capture.texts.html import html_to_sections

BLANK_LINES = re.compile(r"\n{3,}")
# Byte order marks, soft hyphens and form feeds mean nothing to a reader and cost tokens.
INVISIBLE = str.maketrans("", "", "\ufeff\u00ad\x0c")


def normalize(text: str) -> str:
    """NFC, line feeds only, no trailing spaces, at most one blank line in a row."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = [line.rstrip() for line in text.translate(INVISIBLE).split("\n")]
    return BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n") + "\n"


def _text(data: bytes, split_level: int) -> list[str]:
    return [data.decode("utf-8", "replace")]


def _python(data: bytes, split_level: int) -> list[str]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return [data.decode(encoding)]
    except (SyntaxError, UnicodeDecodeError):
        # Test files of the standard library that are broken on purpose.
        return []


def _html(data: bytes, split_level: int) -> list[str]:
    return html_to_sections(data.decode("utf-8", "replace"), split_level)


EXTRACTORS: Mapping[str, Callable[[bytes, int], list[str]]] = MappingProxyType(
    {"text": _text, "python": _python, "html": _html}
)


def extract(method: str, data: bytes, split_level: int = 0) -> list[str]:
    """The normalised texts of one file, empty ones left out.

    `method` is a key of EXTRACTORS; `split_level` n cuts an HTML page at its headings h1 ... hn.
    """
    texts = (normalize(text) for text in EXTRACTORS[method](data, split_level))
    return [text for text in texts if text.strip()]
