"""Plain text from documentation pages.

What the page says stays, with its block structure (paragraphs and headings apart, list items and
table rows on lines of their own, preformatted text untouched); what belongs to the site around it
(navigation, headers, footers, tables of contents, permalinks) goes. The names in the tables below
are those of the generators behind the packages that the manifests use: Sphinx, DocBook, Publican,
Texinfo, AsciiDoc and the LibreOffice help.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from typing import NamedTuple


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


SKIP_TAGS = _words(
    "head script style nav header footer aside form button noscript svg select label"
)
# Classes, ids and roles. MAC: the LibreOffice help writes the macOS wording of a menu path, which
# a browser hides, right before the usual one.
SKIP_NAMES = _words(
    "banner docnav footer floattoc headerlink index-label indexterm menu mobile-nav nav-item",
    "nav_table navfooter navheader navigation related reportbug shortcontents sphinxsidebar",
    "toc tocheader toc2 tocframe toctree-wrapper MAC",
)
VOID_TAGS = _words("area base br col embed hr img input link meta source track wbr")
BLOCK_TAGS = _words(
    "address article blockquote body caption center dd details div dl dt fieldset figcaption",
    "figure h1 h2 h3 h4 h5 h6 hr li main ol p pre section summary table tbody td tfoot th thead",
    "tr ul",
)
PREFORMATTED_TAGS = _words("pre textarea")
CELL_TAGS = _words("td th")
TAB_COLUMNS = 8
SPACES = re.compile(r"[\s\u200b]+")


class _Block(NamedTuple):
    """A paragraph, heading, list item, table row or listing.

    Between two tight blocks (items, rows) there is no blank line.
    """

    text: str
    tight: bool


class _TextBuilder(HTMLParser):
    """Collects the blocks of a page, and the numbers of those that begin a section."""

    def __init__(self, split_level: int) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[_Block] = []
        self.starts: list[int] = []
        self._buffer: list[str] = []
        self._skip_tag = ""
        self._skip_depth = 0
        self._preformatted = 0
        self._row = 0
        self._item = False
        self._split_tags = frozenset(f"h{level}" for level in range(1, split_level + 1))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            # Ends the head of pages that leave </head> out.
            self._skip_depth = 0
        if self._skip_depth:
            self._skip_depth += tag == self._skip_tag
            return
        if tag not in VOID_TAGS and tag != "body" and self._is_furniture(tag, attrs):
            self._skip_tag, self._skip_depth = tag, 1
            return
        if tag == "br":
            self._buffer.append("\n" if self._preformatted else " ")
        elif tag in PREFORMATTED_TAGS:
            self._flush()
            self._preformatted += 1
        elif tag in BLOCK_TAGS:
            self._open_block(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # XHTML pages write empty anchors as <a id="x"/>; they hold no text and skip nothing.
        if not self._skip_depth and (tag == "br" or tag in BLOCK_TAGS):
            self.handle_starttag(tag, [])
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._skip_depth:
            self._skip_depth -= tag == self._skip_tag
            return
        if tag in PREFORMATTED_TAGS and self._preformatted:
            self._flush()
            self._preformatted -= 1
        elif tag == "tr" and self._row:
            self._row -= 1
            self._flush(tight=True)
        elif tag in CELL_TAGS and self._row:
            self._buffer.append("\t")
        elif tag in BLOCK_TAGS:
            self._close_block(tag)

    def handle_data(self, data: str) -> None:
        if not self._skip_depth:
            self._buffer.append(data if self._preformatted else SPACES.sub(" ", data))

    def close(self) -> None:
        super().close()
        self._flush()

    @staticmethod
    def _is_furniture(tag: str, attrs: list[tuple[str, str | None]]) -> bool:
        if tag in SKIP_TAGS:
            return True
        names = " ".join(value or "" for key, value in attrs if key in ("class", "id", "role"))
        return not SKIP_NAMES.isdisjoint(names.split())

    def _open_block(self, tag: str) -> None:
        if self._row and tag not in ("tr", "table"):
            self._buffer.append(" ")
            return
        self._flush(tight=self._row > 0)
        if tag in self._split_tags:
            self.starts.append(len(self.blocks))
        if tag == "tr":
            self._row += 1
        elif tag == "li":
            self._item = True

    def _close_block(self, tag: str) -> None:
        if self._row and tag != "table":
            self._buffer.append(" ")
            return
        self._flush()
        if tag == "li":
            self._item = False

    def _flush(self, tight: bool = False) -> None:
        raw = "".join(self._buffer)
        self._buffer.clear()
        if self._preformatted:
            text = raw.expandtabs(TAB_COLUMNS).strip("\n").rstrip()
            self.blocks += [_Block(text, tight=False)] if text.strip() else []
            return
        cells = [SPACES.sub(" ", cell).strip() for cell in raw.split("\t")]
        text = " | ".join(cell for cell in cells if cell)
        if not text:
            return
        if self._item:
            text, tight, self._item = f"- {text}", True, False
        self.blocks.append(_Block(text, tight))


def html_to_sections(page: str, split_level: int) -> list[str]:
    """The texts of a page cut at its headings h1 ... h`split_level`; 0 leaves it whole.

    Blocks are apart by a blank line, list items and table rows by a newline; sections without
    text are left out.
    """
    builder = _TextBuilder(split_level)
    builder.feed(page)
    builder.close()
    edges = [0, *builder.starts, len(builder.blocks)]
    return [_join(builder.blocks[a:b]) for a, b in pairwise(edges) if b > a]


def _join(blocks: Sequence[_Block]) -> str:
    parts = [blocks[0].text]
    for previous, block in pairwise(blocks):
        parts += ["\n" if block.tight and previous.tight else "\n\n", block.text]
    return "".join(parts) + "\n"
