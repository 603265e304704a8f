"""Strict JSON for dataclasses: the type hints are the schema.

Files between stages are written by one run and read by another, perhaps of another version or
edited by hand, so nothing is guessed on the way in: an unknown field, a missing one, a number
that is a string, a duplicate key or NaN is an `ArtifactError` that names the field by its path
(`sources[2].layers[0].errors.down.relative_error`). Only a field with a default may be missing:
one that earlier versions did not write.

Supported hints: str, int, float, bool, None, unions of them, `X | None`, dataclasses,
`tuple[X, ...]`, `tuple[X, Y]`, `dict[str, X]`, and `Annotated[X, Check(...)]` for a rule on a
value. Rules over several fields: a `problems()` method that yields `Problem`s.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from quantkit.errors import ArtifactError

D = TypeVar("D")

SHA256_DIGITS = 64
MAX_COUNT = 2**53 - 1
"""What every reader of JSON takes as a whole number (RFC 8259, section 6)."""
MAX_NUMBER = 1e100
"""Sums and squares of such numbers stay finite."""
MAX_HEADER = 2**26
"""Bytes of a header that exists in memory."""


class Check(NamedTuple):
    """A rule on a single value, attached to a hint with `Annotated`."""

    rule: str
    holds: Callable[[Any], bool]


class Problem(NamedTuple):
    """A rule over several fields that an object breaks, yielded by its `problems()`."""

    field: str
    value: object
    rule: str


def is_sha256(text: str) -> bool:
    """True for 64 lower-case hexadecimal digits."""
    return len(text) == SHA256_DIGITS and set(text) <= set("0123456789abcdef")


def _is_file_name(text: str) -> bool:
    return text not in ("", ".", "..") and set(text).isdisjoint("/\\\0")


def _is_path(text: str) -> bool:
    return bool(text) and "\0" not in text


Sha256 = Annotated[str, Check("64 lower-case hexadecimal digits", is_sha256)]
Blake3 = Sha256
"""As long as the other, at several times its speed: for what is hashed while it is copied."""
FileName = Annotated[str, Check("a file name without its folder", _is_file_name)]
PathText = Annotated[str, Check("a path: not empty, no NUL", _is_path)]
Label = Annotated[str, Check("must not be empty", bool)]
Count = Annotated[int, Check(f"must be 0 to {MAX_COUNT}", lambda v: 0 <= v <= MAX_COUNT)]
Positive = Annotated[int, Check(f"must be 1 to {MAX_COUNT}", lambda v: 1 <= v <= MAX_COUNT)]
NonNegative = Annotated[
    float, Check(f"must be 0 to {MAX_NUMBER:g}", lambda v: 0 <= v <= MAX_NUMBER)
]
HeaderBytes = Annotated[int, Check(f"must be 0 to {MAX_HEADER}", lambda v: 0 <= v <= MAX_HEADER)]
Share = Annotated[float, Check("must lie between 0 and 1", lambda v: 0 <= v <= 1)]
Cosine = Annotated[float, Check("must lie between -1 and 1", lambda v: -1 <= v <= 1)]
Scalar = str | int | float | bool | None


class _Reader:
    """Decodes one document; holds what every message needs to say."""

    def __init__(self, label: str, file: Path | None) -> None:
        self.label = label
        self.file = file

    def fail(self, path: str, value: object, rule: str, hint: str | None = None) -> ArtifactError:
        text = repr(value)
        return ArtifactError(
            f"{self.label}: field '{path or '.'}' is not valid",
            file=self.file,
            value=text if len(text) <= 80 else text[:77] + "...",
            rule=rule,
            hint=hint or "write the file again with the stage that makes it",
        )

    def read(self, hint: Any, value: object, path: str) -> Any:
        origin = get_origin(hint)
        if origin is Annotated:
            return self._annotated(hint, value, path)
        if origin in (typing.Union, types.UnionType):
            return self._union(get_args(hint), value, path)
        if origin is tuple:
            return self._tuple(get_args(hint), value, path)
        if origin is dict:
            return self._dict(get_args(hint)[1], value, path)
        if dataclasses.is_dataclass(hint):
            return self._dataclass(typing.cast(type, hint), value, path)
        return self._scalar(hint, value, path)

    def _annotated(self, hint: Any, value: object, path: str) -> Any:
        inner, *checks = get_args(hint)
        result = self.read(inner, value, path)
        for check in checks:
            if not check.holds(result):
                raise self.fail(path, value, check.rule)
        return result

    def _union(self, members: tuple[Any, ...], value: object, path: str) -> Any:
        if value is None and types.NoneType in members:
            return None
        some = [member for member in members if member is not types.NoneType]
        if len(some) == 1:
            return self.read(some[0], value, path)
        if type(value) in some:
            return self._scalar(type(value), value, path)
        names = ", ".join(getattr(member, "__name__", str(member)) for member in some)
        raise self.fail(path, value, f"must be one of: {names}")

    def _tuple(self, members: tuple[Any, ...], value: object, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise self.fail(path, value, "must be a list")
        hints = (members[0],) * len(value) if members[-1] is Ellipsis else members
        if len(hints) != len(value):
            raise self.fail(path, value, f"must be a list of {len(hints)}")
        pairs = enumerate(zip(hints, value, strict=True))
        return tuple(self.read(hint, item, f"{path}[{index}]") for index, (hint, item) in pairs)

    def _dict(self, hint: Any, value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(path, value, "must be an object")
        return {key: self.read(hint, item, f"{path}.{key}") for key, item in value.items()}

    def _scalar(self, hint: Any, value: object, path: str) -> Any:
        if hint is float and type(value) is int and abs(value) <= MAX_COUNT:
            value = float(value)
        if type(value) is not hint:
            raise self.fail(path, value, f"must be of type {hint.__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.fail(path, value, "must be a finite number")
        return value

    def _dataclass(self, cls: type, value: object, path: str) -> Any:
        if not isinstance(value, dict):
            raise self.fail(path, value, "must be an object")
        prefix = f"{path}." if path else ""
        hints = field_hints(cls)
        for name in value:
            if name not in hints:
                known = ", ".join(hints)
                raise self.fail(prefix + name, value[name], f"unknown field; known: {known}")
        for name in _required_fields(cls):
            if name not in value:
                raise self.fail(prefix + name, None, "the field is missing")
        made = cls(**{n: self.read(hints[n], item, prefix + n) for n, item in value.items()})
        for problem in getattr(made, "problems", lambda: ())():
            raise self.fail(prefix + problem.field, problem.value, problem.rule)
        return made


@cache
def field_hints(cls: type) -> dict[str, Any]:
    """Field name -> resolved type hint of a dataclass, in the order of declaration."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _required_fields(cls: type) -> list[str]:
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]


def from_json(cls: type[D], value: object, *, label: str, file: Path | None = None) -> D:
    """Decode parsed JSON to the dataclass `cls`; `ArtifactError` names the first bad field."""
    made: D = _Reader(label, file).read(cls, value, "")
    return made


def to_json(value: Any) -> Any:
    """Parsed-JSON form of dataclasses, tuples and dicts; dict keys sorted, fields as declared."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_json(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def parse_json(data: bytes, *, label: str, file: Path | None = None) -> Any:
    """Parse UTF-8 JSON without NaN, infinities and duplicate keys; `ArtifactError` otherwise."""

    def constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) != len(items):
            twice = next(key for key in made if sum(key == other for other, _ in items) > 1)
            raise ValueError(f"the key '{twice}' appears twice in one object")
        return made

    try:
        return json.loads(data.decode(), parse_constant=constant, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{label}: not readable as JSON",
            file=file,
            value=str(error)[:120],
            rule="UTF-8 JSON, finite numbers, every key once",
            hint="the file may be truncated; write it again with the stage that makes it",
        ) from error


def duplicates(names: typing.Iterable[str]) -> Iterator[str]:
    """The names that occur more than once, each once, in order."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    return (name for name, count in seen.items() if count > 1)
