"""Typed, range-checked access to fields that someone else wrote: GGUF keys, JSON of a checkpoint.

Files come from many converters, damaged downloads and text editors. Whatever is read through
`Fields` has the type and lies in the range that the reader asked for, or is a ModelError that
names the field, its value and the rule; nothing behind it has to check again. JSON's `null` counts
as absent, as transformers means it.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from quantkit.errors import ModelError

T = TypeVar("T")

MAX_SIZE = 2**31 - 1
"""Of a dimension or a count; ggml and torch index with more, no model needs it."""
MAX_LAYERS = 512
"""As many as llama.cpp runs (LLAMA_MAX_LAYERS)."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: object) -> str:
    """A value for a message: one line, of limited length and depth."""
    return _SHORT.repr(value)


class Fields:
    """The fields of one mapping; `prefix` stands before every key in the mapping.

    `source` and `noun` ("config.json", "field") word the errors, `needed_by` is the rule that a
    missing field breaks, `path` names the section that the mapping is in. A field without a
    default has to be there.
    """

    def __init__(
        self,
        found: Mapping[str, Any],
        *,
        source: str,
        noun: str = "field",
        prefix: str = "",
        path: str = "",
        needed_by: str | None = None,
        hint: str | None = None,
        file: Path | None = None,
    ) -> None:
        self._found = found
        self._prefix = prefix
        self._path = path
        self._words: dict[str, Any] = {
            "source": source, "noun": noun, "needed_by": needed_by, "hint": hint, "file": file
        }  # fmt: skip

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.value(key) is not None

    def value(self, key: str) -> Any:
        """Whatever the field holds; None where it is absent."""
        return self._found.get(self._prefix + key)

    def integer(
        self,
        key: str,
        *,
        low: int = 1,
        high: int = MAX_SIZE,
        multiple_of: int = 1,
        default: int | None = None,
    ) -> int:
        """A whole number from `low` to `high`."""
        if default is not None and not self.has(key):
            return default
        value = self._required(key)
        if not _is_integer(value, low, high) or value % multiple_of:
            rule = _integer_rule(low, high)
            more = f", a multiple of {multiple_of}" if multiple_of > 1 else ""
            raise self.invalid(key, value, f"{rule}{more}")
        return int(value)

    def number(self, key: str, *, above: float, high: float, default: float | None = None) -> float:
        """A finite number above `above`, at most `high`."""
        if default is not None and not self.has(key):
            return default
        value = self._required(key)
        if type(value) not in (int, float) or not (math.isfinite(value) and above < value <= high):
            raise self.invalid(key, value, f"a number above {above:g}, at most {high:g}")
        return float(value)

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """True or false."""
        if default is not None and not self.has(key):
            return default
        value = self._required(key)
        if type(value) is not bool:
            raise self.invalid(key, value, "true or false")
        return value

    def text(self, key: str, *, choices: Collection[str] = (), default: str | None = None) -> str:
        """A text without bytes that are no UTF-8, one of `choices` if there are any."""
        if default is not None and not self.has(key):
            return default
        value = self._required(key)
        if not is_text(value):
            raise self.invalid(key, value, "a text in UTF-8")
        if choices and value not in choices:
            raise self.invalid(key, value, f"one of {', '.join(choices)}")
        return str(value)

    def integers(
        self,
        key: str,
        *,
        low: int = 0,
        high: int = MAX_SIZE,
        first: int | None = None,
        default: tuple[int, ...] | None = None,
    ) -> tuple[int, ...]:
        """Whole numbers; of at least `first` of them the first ones, if that is given."""
        rule = f"each {_integer_rule(low, high)}"
        return self._items(key, lambda item: _is_integer(item, low, high), rule, first, default)

    def flags(
        self, key: str, *, first: int, default: tuple[bool, ...] | None = None
    ) -> tuple[bool, ...]:
        """The first of at least `first` truth values."""
        return self._items(key, lambda item: type(item) is bool, "each a bool", first, default)

    def texts(self, key: str, *, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Texts in UTF-8."""
        return self._items(key, is_text, "each a text in UTF-8", None, default)

    def items(self, key: str) -> tuple[Any, ...]:
        """The items of a list, of any type; none where the field is absent."""
        return self._items(key, lambda item: True, "", None, ())

    def section(self, key: str) -> Fields:
        """The fields of an object; an absent one has none."""
        value = self.value(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.invalid(key, value, "an object")
        return Fields(value, path=f"{self._path}{key}.", **self._words)

    def sections(self, key: str) -> Iterator[Fields]:
        """The objects of a list; none where the field is absent."""
        for number, item in enumerate(self.items(key)):
            if not isinstance(item, dict):
                raise self.invalid(f"{key}[{number}]", item, "an object")
            yield Fields(item, path=f"{self._path}{key}[{number}].", **self._words)

    def entries(self) -> Mapping[str, Any]:
        """The mapping itself."""
        return self._found

    def invalid(self, key: str, value: object, rule: str) -> ModelError:
        """The error of a field whose value breaks a rule."""
        words = self._words
        return ModelError(
            f"{words['source']} has a {words['noun']} that cannot be used: {self._name(key)}",
            file=words["file"],
            value=shown(value),
            rule=rule,
            hint=words["hint"],
        )

    def missing(self, key: str) -> ModelError:
        """The error of a field that has to be there."""
        words = self._words
        return ModelError(
            f"{words['source']} lacks a {words['noun']}",
            file=words["file"],
            value=self._name(key),
            rule=words["needed_by"],
            hint=words["hint"],
        )

    def _name(self, key: str) -> str:
        return f"{self._path}{self._prefix}{key}"

    def _required(self, key: str) -> Any:
        value = self.value(key)
        if value is None:
            raise self.missing(key)
        return value

    def _items(
        self,
        key: str,
        holds: Callable[[Any], bool],
        rule: str,
        first: int | None,
        default: tuple[T, ...] | None,
    ) -> tuple[T, ...]:
        if default is not None and not self.has(key):
            return default
        value = self._required(key)
        if not isinstance(value, list):
            raise self.invalid(key, value, "a list")
        if first is not None and len(value) < first:
            raise self.invalid(key, value, f"a list of at least {first}, not of {len(value)}")
        wanted = value if first is None else value[:first]
        for number, item in enumerate(wanted):
            if not holds(item):
                raise self.invalid(f"{key}[{number}]", item, rule)
        return tuple(wanted)


def is_text(value: object) -> bool:
    """A text that UTF-8 can hold: no stray bytes of a GGUF, no half of a surrogate pair of JSON."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


def _is_integer(value: object, low: int, high: int) -> bool:
    # A bool is an int to isinstance, and never a count.
    return type(value) is int and low <= value <= high


def _integer_rule(low: int, high: int) -> str:
    return f"a whole number from {low} to {high}"
