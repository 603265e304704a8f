"""Deduplication of documents and blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.capture.texts.dedup import (
    LONG_BLOCK_CHARS,
    SHORT_BLOCK_CHARS,
    SHORT_BLOCK_COPIES,
    Deduplicator,
)

HEADING = "h" * (SHORT_BLOCK_CHARS - 1)
SHORT = "s" * SHORT_BLOCK_CHARS
LONG = "l" * LONG_BLOCK_CHARS
FIVE = range(5)


@pytest.mark.parametrize(
    ("block", "code", "copies"),
    [
        (HEADING, False, 5),
        (SHORT, False, SHORT_BLOCK_COPIES),
        (LONG, False, 1),
        (SHORT, True, 5),
        (LONG, True, 1),
    ],
)
def test_copies_that_stay(block: str, code: bool, copies: int) -> None:
    cleaner = Deduplicator()
    texts = [cleaner.clean(f"{block}\n\nown {i}\n", code=code) for i in FIVE]
    assert sum(block in text for text in texts) == copies
    assert [f"own {i}" in text for i, text in enumerate(texts)] == [True] * 5


def test_white_space_makes_no_difference() -> None:
    cleaner = Deduplicator()
    words = "word " * 60
    assert cleaner.clean(f"{words}\n", code=False).split() == words.split()
    assert cleaner.clean(words.replace(" ", "\n") + "end\n\nown\n", code=False) != "own\n"
    assert cleaner.clean(words.strip().replace(" ", "\n  ") + "\n\nown\n", code=False) == "own\n"


def test_a_document_seen_before_is_empty() -> None:
    cleaner = Deduplicator()
    assert cleaner.clean("a\n", code=False) == "a\n"
    assert cleaner.clean("a\n", code=False) == ""
    assert cleaner.clean("a\n\nb\n", code=False) == "a\n\nb\n"


@given(st.lists(st.text("ab \n", min_size=1, max_size=300), max_size=6))
def test_only_whole_blocks_go(texts: list[str]) -> None:
    cleaner = Deduplicator()
    for text in texts:
        blocks = text.rstrip("\n").split("\n\n")
        kept = cleaner.clean(text, code=False)
        remaining = iter(blocks)
        assert not kept or all(block in remaining for block in kept[:-1].split("\n\n") if block)
