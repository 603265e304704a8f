"""Deduplication of documents and of the blocks they repeat."""

from __future__ import annotations

from collections import Counter

from quantkit.capture.texts.build import text_sha256

LONG_BLOCK_CHARS = 200
SHORT_BLOCK_CHARS = 60
SHORT_BLOCK_COPIES = 3
BLOCK_GAP = "\n\n"


class Deduplicator:
    """Drops documents seen before and blocks seen too often, over all texts it is given.

    A block is what blank lines set apart, compared without regard to white space. Blocks of
    LONG_BLOCK_CHARS and more stay once; shorter ones of at least SHORT_BLOCK_CHARS stay
    SHORT_BLOCK_COPIES times, except in code, where a short block that recurs is an idiom and its
    removal would break the program around it; shorter ones (headings) always stay.
    """

    def __init__(self) -> None:
        self._documents: set[str] = set()
        self._blocks: Counter[str] = Counter()

    def clean(self, text: str, *, code: bool) -> str:
        """The text without what was seen too often; empty when the whole text was."""
        digest = text_sha256(text)
        if digest in self._documents:
            return ""
        self._documents.add(digest)
        blocks = text.rstrip("\n").split(BLOCK_GAP)
        return BLOCK_GAP.join(block for block in blocks if self._keep(block, code)) + "\n"

    def _keep(self, block: str, code: bool) -> bool:
        normal = " ".join(block.split())
        if len(normal) < (LONG_BLOCK_CHARS if code else SHORT_BLOCK_CHARS):
            return True
        self._blocks[normal] += 1
        copies = 1 if len(normal) >= LONG_BLOCK_CHARS else SHORT_BLOCK_COPIES
        return self._blocks[normal] <= copies
