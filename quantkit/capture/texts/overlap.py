"""Runs of words that two texts share.

A word is a maximal run of letters, digits and underscores, compared without case; punctuation,
markup and line breaks between words do not count, so a paragraph that was only reflowed or
re-punctuated is still found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

WORD = re.compile(r"\w+")
RUN_WORDS = 12


def words_of(text: str) -> list[str]:
    """The words of a text, case-folded, in order."""
    return WORD.findall(text.casefold())


def _runs(text: str, words: int) -> Iterator[str]:
    found = words_of(text)
    return (" ".join(found[i : i + words]) for i in range(len(found) - words + 1))


def run_set(texts: Iterable[str], words: int = RUN_WORDS) -> frozenset[str]:
    """Every run of `words` consecutive words inside any one of `texts`."""
    return frozenset(run for text in texts for run in _runs(text, words))


def shares_run(text: str, runs: frozenset[str], words: int = RUN_WORDS) -> bool:
    """Whether `text` contains one of `runs`, a result of `run_set` with the same `words`."""
    return any(run in runs for run in _runs(text, words))


def shared_runs(a: str, b: str, words: int = RUN_WORDS) -> list[str]:
    """The runs of `words` words that both texts contain, each once, in the order of `a`."""
    runs = run_set([b], words)
    return list(dict.fromkeys(run for run in _runs(a, words) if run in runs))
