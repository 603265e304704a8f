"""The fields of a recipe, and reading them strictly.

The hints are the schema (see `artifacts.schema`); a field with a default may be left out. Nothing
is guessed: an unknown field, a number written as text or a name given twice is a RecipeError that
names the field.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml

from quantkit.artifacts.schema import (
    Check,
    NonNegative,
    PathText,
    Positive,
    Problem,
    Scalar,
    duplicates,
    field_hints,
    from_json,
)
from quantkit.artifacts.selection import UnitMode
from quantkit.errors import ArtifactError, QuantkitError, RecipeError
from quantkit.gate.criterion import criterion_from_bars
from quantkit.measure.run import MIN_TOKENS
from quantkit.quantize.encode import Rule
from quantkit.select.solve import MAX_GB, MIN_GB

SCHEMA = "quantkit.recipe/1"
RESERVED_NAME = "reference"
EXPECTATIONS = ("pass", "fail")
HINT = "recipes/README.md explains every field"

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _is_name(text: str) -> bool:
    return bool(FILE_NAME.fullmatch(text)) and text != RESERVED_NAME


Name = Annotated[
    str,
    Check(f"letters, digits, '.', '_' and '-', and not '{RESERVED_NAME}'", _is_name),
]
Expectation = Annotated[str, Check(f"one of {EXPECTATIONS}", EXPECTATIONS.__contains__)]
SizeGb = Annotated[float, Check(f"{MIN_GB} to {MAX_GB}", lambda v: MIN_GB <= v <= MAX_GB)]
Tokens = Annotated[Positive, Check(f"at least {MIN_TOKENS}", lambda v: v >= MIN_TOKENS)]
Context = Annotated[Positive, Check("at least 16", lambda v: v >= 16)]
Chunks = Annotated[Positive, Check("at least 2", lambda v: v >= 2)]


@dataclass(frozen=True)
class Texts:
    """One text for each role: a UTF-8 file, or the manifest (`.yaml`) of one."""

    selection: PathText
    check: PathText
    held_out: PathText
    capture: PathText


@dataclass(frozen=True)
class Quantization:
    """A whole model: made from the reference by `rules` (pattern=TYPE), or a `file` that exists."""

    name: Name
    rules: tuple[str, ...] = ()
    file: PathText | None = None

    def problems(self) -> Iterator[Problem]:
        """Rules over several fields (read by the schema reader)."""
        if bool(self.rules) == (self.file is not None):
            yield Problem("rules", list(self.rules), "exactly one of rules and file is given")
        for index, text in enumerate(self.rules):
            try:
                Rule.parse(text)
            except QuantkitError as error:
                yield Problem(f"rules[{index}]", text, f"{error.what}: {error.rule or error.value}")


@dataclass(frozen=True)
class MeasureSettings:
    """On how many tokens the donors' errors are measured."""

    context: Context = 512
    tokens: Tokens = MIN_TOKENS


@dataclass(frozen=True)
class SelectSettings:
    """What is chosen: whole expert layers, or {gate and up} and {down} apart."""

    unit: UnitMode = "split"


@dataclass(frozen=True)
class Hybrid:
    """A hybrid by its size or by its predicted error, and what the gate should say of it."""

    name: Name
    target_gb: SizeGb | None = None
    max_error: NonNegative | None = None
    expect: Expectation = "pass"

    def problems(self) -> Iterator[Problem]:
        """Rules over several fields (read by the schema reader)."""
        if (self.target_gb is None) == (self.max_error is None):
            goals = (self.target_gb, self.max_error)
            yield Problem("target_gb", goals, "exactly one of target_gb and max_error is given")


@dataclass(frozen=True)
class GateSettings:
    """How the hybrids are judged; `bars` that are left out have the criterion's defaults."""

    baseline: Name
    context: Context = 512
    max_chunks: Chunks | None = None
    bars: dict[str, Scalar] = dataclasses.field(default_factory=dict)

    def problems(self) -> Iterator[Problem]:
        """Rules over several fields (read by the schema reader)."""
        try:
            criterion_from_bars(self.bars)
        except RecipeError as error:
            yield Problem("bars", error.value or dict(self.bars), error.rule or error.what)


@dataclass(frozen=True)
class RecipeFields:
    """A whole recipe; paths in it are relative to its file."""

    name: Name
    model: PathText
    texts: Texts
    quantizations: tuple[Quantization, ...]
    base: Name
    hybrids: tuple[Hybrid, ...]
    gate: GateSettings
    measure: MeasureSettings = MeasureSettings()
    select: SelectSettings = SelectSettings()
    description: str = ""
    work: PathText | None = None

    def problems(self) -> Iterator[Problem]:
        """Rules over several fields (read by the schema reader)."""
        made = [q.name for q in self.quantizations]
        for field, count, least in (
            ("quantizations", len(made), 2),
            ("hybrids", len(self.hybrids), 1),
        ):
            if count < least:
                yield Problem(field, count, f"at least {least}")
        names = made + [h.name for h in self.hybrids]
        # File systems that ignore case would mix two models up.
        for name in duplicates(name.lower() for name in names):
            yield Problem("name", name, "quantizations and hybrids have names of their own")
        for field, name in (("base", self.base), ("gate.baseline", self.gate.baseline)):
            if name not in made:
                yield Problem(field, name, f"one of the quantizations: {', '.join(made)}")


class _PlainMappings(yaml.SafeLoader):
    """YAML whose keys are texts, each given once: otherwise the last one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping; ConstructorError at a key's second appearance."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in seen:
                problem = "appears twice" if isinstance(key, str) else "is not a text"
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' {problem}", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_recipe(text: str, file: Path) -> RecipeFields:
    """The fields of a recipe's text; RecipeError names the first one that breaks the schema."""
    try:
        # A SafeLoader: it constructs plain values only.
        document = yaml.load(text, Loader=_PlainMappings)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RecipeError(
            "the recipe is not readable as YAML", file=file, value=str(error), hint=HINT
        ) from error
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise RecipeError("not a recipe", file=file, value=found, rule=f"schema: {SCHEMA}")
    fields = {key: value for key, value in document.items() if key != "schema"}
    try:
        return from_json(RecipeFields, with_defaults(RecipeFields, fields), label=file.name)
    except ArtifactError as error:
        raise RecipeError(
            error.what, file=file, value=error.value, rule=error.rule, hint=HINT
        ) from error


def with_defaults(hint: Any, value: Any) -> Any:
    """`value` with the defaults of dataclasses for the fields that it leaves out, all levels."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        filled = {f.name: _default(f) for f in dataclasses.fields(hint)}
        given = {name: v for name, v in filled.items() if v is not dataclasses.MISSING} | value
        hints = field_hints(typing.cast(type, hint))
        return {name: with_defaults(hints.get(name), v) for name, v in given.items()}
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return [with_defaults(typing.get_args(hint)[0], item) for item in value]
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    """A field's default in the form that YAML would give it; MISSING where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if dataclasses.is_dataclass(field.default):
        return {}
    return list(field.default) if isinstance(field.default, tuple) else field.default
