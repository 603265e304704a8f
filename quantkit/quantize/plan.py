"""What becomes of every tensor: its final type, and why it is not the one that a rule asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from quantkit import codecs
from quantkit.containers.imatrix import Importance
from quantkit.errors import ContainerError, FormatError, QuantkitError
from quantkit.qtypes import QType, fallback_for_row
from quantkit.quantize.rules import (
    Rule,
    UnusedRule,
    first_match,
    is_kept_float,
    unused_error,
    unused_rules,
)
from quantkit.quantize.source import Source, SourceTensor

FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XXS": 23,
    "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ2_S": 28, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip
"""llama.cpp's `general.file_type` for a file that mostly has one type."""
INTEGERS = ("I8", "I16", "I32", "I64")
MIN_REQUANTIZED_BPW = 8.0
"""A source of fewer bits has an error of its own that the next quantization adds to."""


@dataclass(frozen=True)
class Options:
    """What is allowed.

    `fallback`: another type where rows do not fill the blocks. `requantize`: encode again what is
    quantized below 8 bits already. `unused_rules`: rules that decide nothing.
    """

    fallback: bool = True
    requantize: bool = False
    unused_rules: bool = False


DEFAULTS = Options()


@dataclass(frozen=True)
class Encoding:
    """What becomes of one tensor; `wanted` is the type that `rule` asked for, if one matched."""

    entry: SourceTensor
    qtype: QType
    wanted: QType | None = None
    rule: Rule | None = None
    reason: str = ""
    """Why the type is kept, or is not the wanted one."""

    @property
    def is_copy(self) -> bool:
        """Whether the bytes stay as they are."""
        return self.qtype == self.entry.qtype

    @property
    def is_requantized(self) -> bool:
        """Whether quantized values are quantized a second time."""
        return not self.is_copy and min(self.qtype.block_size, self.entry.qtype.block_size) > 1

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the output."""
        return self.entry.nbytes if self.is_copy else self.qtype.nbytes(prod(self.entry.shape))


@dataclass(frozen=True)
class Plan:
    """Encodings in file order, and the rules that decided nothing."""

    source: Source
    encodings: tuple[Encoding, ...]
    unused: tuple[UnusedRule, ...]
    importance: Importance | None = None

    @property
    def without_importance(self) -> list[str]:
        """Tensors that are encoded into blocks but that the importance file does not have."""
        if self.importance is None:
            return []
        return [
            e.entry.name
            for e in self.encodings
            if not e.is_copy
            and e.qtype.block_size > 1
            and e.entry.name not in self.importance.entries
        ]


def plan_encoding(
    source: Source,
    rules: Sequence[Rule],
    importance: Importance | None = None,
    options: Options = DEFAULTS,
) -> Plan:
    """The final type of every tensor; vectors, integers and kept floats keep theirs.

    Raises QuantkitError for a rule that no tensor is left for and for what `options` forbid,
    FormatError for rows or types that cannot be encoded, ContainerError for importance that does
    not fit.
    """
    kept = {name: _fixed(tensor) for name, tensor in source.tensors.items()}
    deciders = {name: None if kept[name] else first_match(rules, name) for name in kept}
    unused = unused_rules(rules, deciders)
    if unused and not options.unused_rules:
        raise unused_error(unused, source.path)
    encodings = []
    for name, tensor in source.tensors.items():
        number = deciders[name]
        if number is None:
            reason = kept[name] or "no rule matches"
            encodings.append(Encoding(tensor, tensor.qtype, reason=reason))
        else:
            encodings.append(_encoding(tensor, rules[number], options))
    _check_requantized(source, encodings, options)
    _check_importance(source, encodings, importance)
    return Plan(source, tuple(encodings), tuple(unused), importance)


def _fixed(tensor: SourceTensor) -> str:
    """Why a tensor keeps its type whatever the rules say; empty if it does not."""
    if len(tensor.shape) < 2:
        return "vectors keep their type"
    if is_kept_float(tensor.name):
        return "llama.cpp needs it as it is"
    return "integers are not weights" if tensor.qtype.name in INTEGERS else ""


def _encoding(tensor: SourceTensor, rule: Rule, options: Options) -> Encoding:
    wanted = rule.qtype
    if wanted == tensor.qtype:
        return Encoding(tensor, wanted, wanted, rule, "has the type already")
    if not codecs.can_decode(tensor.qtype):
        raise FormatError(
            f"no codec reads {tensor.qtype.name}",
            file=tensor.path,
            tensor=tensor.name,
            value=tensor.qtype.name,
            rule="a type with a decoder; other tensors can only be copied",
            hint="exclude the tensor from the rules",
        )
    row, blocks = tensor.shape[-1], wanted.block_size
    if wanted.fits_row(row):
        return Encoding(tensor, wanted, wanted, rule)
    reason = f"rows of {row} values do not fill {wanted.name} blocks of {blocks}"
    if not options.fallback:
        raise FormatError(
            f"rows of {row} elements do not fit {wanted.name}",
            file=tensor.path,
            tensor=tensor.name,
            value=row,
            rule=f"a multiple of {blocks} elements; fallbacks are not allowed",
            hint="give this tensor a rule of its own, in front of this one",
        )
    try:
        found = fallback_for_row(wanted, row)
    except FormatError as error:
        error.file, error.tensor = str(tensor.path), tensor.name
        raise
    if found.nbytes(prod(tensor.shape)) >= tensor.nbytes:
        reason += f", and {found.name} would not be smaller"
        return Encoding(tensor, tensor.qtype, wanted, rule, reason)
    return Encoding(tensor, found, wanted, rule, reason)


def _check_requantized(source: Source, plan: Sequence[Encoding], options: Options) -> None:
    again = [e for e in plan if e.is_requantized and e.entry.qtype.bpw < MIN_REQUANTIZED_BPW]
    if not again or options.requantize:
        return
    first = again[0]
    raise QuantkitError(
        "a tensor that is quantized already",
        file=source.path,
        tensor=first.entry.name,
        value=f"{first.entry.qtype.name} to {first.qtype.name}, {len(again)} such tensors",
        rule=f"sources have at least {MIN_REQUANTIZED_BPW:g} bits a weight, or requantizing is "
        "allowed",
        hint="start from the unquantized model, or allow it if you accept both errors",
    )


def _check_importance(
    source: Source, plan: Sequence[Encoding], importance: Importance | None
) -> None:
    """Shapes of all entries for encoded tensors, before anything is written."""
    entries: Mapping[str, object] = importance.entries if importance else MappingProxyType({})
    for e in plan:
        if importance and not e.is_copy:
            importance.mean_squares(e.entry.name, e.entry.shape)
        if e.qtype.needs_importance and not e.is_copy and e.entry.name not in entries:
            raise FormatError(
                f"{e.qtype.name} without importance",
                file=e.entry.path,
                tensor=e.entry.name,
                value="no importance file" if importance is None else "no entry in the file",
                rule=f"{e.qtype.name} has too few bits to be chosen without",
                hint="capture the importance first, or choose another type for this tensor",
            )
    if importance and not any(name in entries for name in source.tensors):
        raise ContainerError(
            "an importance file without an entry for any tensor of the model",
            file=importance.path,
            value=f"{len(entries)} entries, such as {next(iter(entries))}",
            rule=f"names of {source.path}, such as {next(iter(source.tensors))}",
            hint="the file was made for another model",
        )


def file_type(encodings: Sequence[Encoding]) -> int:
    """llama.cpp's number of the type that holds the most weights."""
    weights: Counter[str] = Counter()
    for e in encodings:
        if len(e.entry.shape) >= 2:
            weights[e.qtype.name] += prod(e.entry.shape)
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return next((FILE_TYPES[name] for name in ranked if name in FILE_TYPES), 0)
