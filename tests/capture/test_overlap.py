"""Shared runs of words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.capture.texts.overlap import run_set, shared_runs, shares_run, words_of

# Few different words, so that long shared runs and near misses are common.
WORDS = st.lists(st.sampled_from(["ja", "nein", "a_b", "12"]), max_size=40)
SEPARATORS = st.sampled_from([" ", "\n\n", ", ", " - ", '." ('])
LENGTHS = st.integers(1, 6)


def brute_force(a: list[str], b: list[str], words: int) -> set[tuple[str, ...]]:
    runs_a = {tuple(a[i : i + words]) for i in range(len(a) - words + 1)}
    runs_b = {tuple(b[i : i + words]) for i in range(len(b) - words + 1)}
    return runs_a & runs_b


@given(WORDS, WORDS, LENGTHS, SEPARATORS, SEPARATORS)
def test_agrees_with_brute_force(
    a: list[str], b: list[str], words: int, sep_a: str, sep_b: str
) -> None:
    text_a, text_b = sep_a.join(a), sep_b.join(word.upper() for word in b)
    found = shared_runs(text_a, text_b, words)
    assert {tuple(run.split()) for run in found} == brute_force(a, b, words)
    assert len(found) == len(set(found))
    assert set(found) == set(shared_runs(text_b, text_a, words))
    assert shares_run(text_a, run_set([text_b], words), words) is bool(found)


@given(WORDS, WORDS, WORDS)
def test_a_planted_run_is_found(run: list[str], before: list[str], after: list[str]) -> None:
    planted = [f"w{number}" for number in range(12)]
    text = " ".join([*before, *planted, *after])
    assert " ".join(planted) in shared_runs(text, "; ".join([*run, *planted]))
    assert shared_runs(text, " ".join(planted[:11])) == []


def test_words_ignore_case_and_punctuation() -> None:
    assert words_of("Die »Straße«, die\nSTRASSE: x_1-2") == ["die", "strasse"] * 2 + ["x_1", "2"]


def test_a_run_does_not_cross_the_texts_of_a_set() -> None:
    runs = run_set(["a b", "c d"], words=2)
    assert runs == {"a b", "c d"}
    assert not shares_run("b c", runs, words=2)


def test_german_umlauts_belong_to_words() -> None:
    assert words_of("über Größe") == ["über", "grösse"]


@pytest.mark.parametrize("text", ["", "zu kurz", "..."])
def test_short_texts_share_nothing(text: str) -> None:
    assert shared_runs(text, text) == []
