"""Whatever a foreign mapping holds, `Fields` gives a value as asked or the one named error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import ModelError
from quantkit.models.fields import Fields, shown

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def fields(value: Any) -> Fields:
    return Fields(
        {"p.key": value}, source="the file", prefix="p.", hint="do this", file=Path("/x/f.json")
    )


def check(error: ModelError) -> None:
    assert "p.key" in error.render()
    assert error.file == "/x/f.json"
    assert error.hint == "do this"
    assert len(str(error.value)) < 2000


@given(value=ANYTHING, low=st.integers(-3, 3), width=st.integers(0, 5), step=st.integers(1, 3))
def test_integers_are_in_range(value: Any, low: int, width: int, step: int) -> None:
    try:
        found = fields(value).integer("key", low=low, high=low + width, multiple_of=step)
    except ModelError as error:
        check(error)
        is_one = type(value) is int and low <= value <= low + width
        assert not is_one or value % step
    else:
        assert type(found) is int
        assert low <= found <= low + width
        assert found == value


@given(value=ANYTHING)
def test_numbers_are_finite(value: Any) -> None:
    try:
        found = fields(value).number("key", above=0, high=100)
    except ModelError as error:
        check(error)
    else:
        assert type(found) is float
        assert math.isfinite(found)
        assert 0 < found <= 100


@given(value=ANYTHING, first=st.none() | st.integers(0, 3))
def test_lists_have_items_of_one_kind(value: Any, first: int | None) -> None:
    try:
        found = fields(value).integers("key", low=0, high=9, first=first)
    except ModelError as error:
        check(error)
    else:
        assert found == tuple(value if first is None else value[:first])
        assert all(type(item) is int and 0 <= item <= 9 for item in found)
        assert first is None or len(found) == first


@given(value=ANYTHING)
def test_every_kind_gives_a_value_or_the_error(value: Any) -> None:
    for read in (
        lambda f: f.flag("key"),
        lambda f: f.text("key"),
        lambda f: f.texts("key"),
        lambda f: f.items("key"),
        lambda f: f.flags("key", first=1),
        lambda f: f.section("key").entries(),
        lambda f: [part.entries() for part in f.sections("key")],
    ):
        try:
            read(fields(value))
        except ModelError as error:
            check(error)


@pytest.mark.parametrize("value", [True, 1.0, "1", [1], {}, -1, 10**30, math.nan])
def test_what_is_no_count(value: Any) -> None:
    with pytest.raises(ModelError, match=r"cannot be used: p\.key") as caught:
        fields(value).integer("key")
    assert caught.value.value == shown(value)
    assert caught.value.rule == "a whole number from 1 to 2147483647"


@pytest.mark.parametrize("text", ["\udcff", "a\ud800"])
def test_stray_bytes_are_no_text(text: str) -> None:
    with pytest.raises(ModelError, match="cannot be used"):
        fields(text).text("key")
    with pytest.raises(ModelError, match="cannot be used"):
        fields([text]).texts("key")


def test_null_is_absent() -> None:
    assert not fields(None).has("key")
    assert fields(None).integer("key", default=7) == 7
    with pytest.raises(ModelError, match="the file lacks a field") as caught:
        fields(None).integer("key")
    assert caught.value.value == "p.key"


def test_sections_name_their_place() -> None:
    inner = Fields({"a": [{"b": {"c": 0}}]}, source="the file")
    (item,) = inner.sections("a")
    with pytest.raises(ModelError, match=r"cannot be used: a\[0\]\.b\.c"):
        item.section("b").integer("c")


def test_values_are_short_in_messages() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, [0] * 10**6, 10**1000, b"\xff"):
        assert len(shown(value)) < 400
