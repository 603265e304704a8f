"""GGUF to GGUF by rules: `pattern=type`, first match wins, the rest is copied byte for byte.

Encoding goes expert by expert and in blocks of rows, so that memory does not grow with the model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from quantkit import codecs
from quantkit.containers.base import TensorEntry, TensorSpec
from quantkit.containers.gguf import (
    GGUFFile,
    ValueType,
    gguf_file_bytes,
    open_gguf,
    pack_kv,
    write_gguf,
)
from quantkit.containers.gguf.values import key_of
from quantkit.errors import QuantkitError
from quantkit.models.arch import ARCHITECTURES
from quantkit.qtypes import QTYPES, QType, by_name, fallback_for_row
from quantkit.weights.handle import decode_rows, naming

FILE_TYPE_KEY = "general.file_type"
FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 12, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XXS": 23,
    "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ2_S": 28, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip
"""llama.cpp's `general.file_type` for a file that mostly has one type."""
CHUNK_ELEMENTS = 1 << 22
KEPT_FLOAT = {
    role.gguf
    for arch in ARCHITECTURES
    for group in (arch.layer_roles, arch.attention_roles, arch.delta_net_roles, arch.ngram_roles)
    for role in group
    if role.float32
}


@dataclass(frozen=True)
class Rule:
    """Tensors whose whole name matches `pattern` (a regular expression) become `qtype`."""

    pattern: re.Pattern[str]
    qtype: QType

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read `pattern=type`; QuantkitError for a broken pattern or a type we cannot write."""
        pattern, separator, name = text.rpartition("=")
        if not separator or not pattern:
            raise QuantkitError(
                "not a rule", value=text, rule="pattern=TYPE", hint=r"'.*_exps\.weight=IQ4_NL'"
            )
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise QuantkitError(
                "the pattern of a rule is not a regular expression", value=pattern, rule=str(error)
            ) from error
        qtype = by_name(name)
        if not codecs.can_encode(qtype):
            writable = ", ".join(q.name for q in QTYPES if codecs.can_encode(q))
            raise QuantkitError(
                "a type that we cannot write", value=name, rule=f"one of {writable}"
            )
        return cls(compiled, qtype)


@dataclass(frozen=True)
class Encoding:
    """What becomes of one tensor; `wanted` differs from `qtype` where rows do not fit."""

    entry: TensorEntry
    qtype: QType
    wanted: QType | None

    @property
    def is_copy(self) -> bool:
        """Whether the bytes stay as they are."""
        return self.qtype == self.entry.qtype


def is_kept_float(name: str) -> bool:
    """Whether llama.cpp needs this tensor in F32 (routers, convolutions) whatever the rules say."""
    return re.sub(r"^blk\.\d+\.", "", name) in KEPT_FLOAT


def plan_encoding(file: GGUFFile, rules: Sequence[Rule]) -> list[Encoding]:
    """The final type of every tensor; vectors and kept floats keep theirs.

    Raises QuantkitError for a rule that no tensor is left for.
    """
    used: set[int] = set()
    plan = []
    for entry in file.tensors.values():
        number = next(
            (i for i, rule in enumerate(rules) if rule.pattern.fullmatch(entry.name)), None
        )
        if number is None or len(entry.shape) < 2 or is_kept_float(entry.name):
            plan.append(Encoding(entry, entry.qtype, None))
            continue
        used.add(number)
        wanted = rules[number].qtype
        plan.append(Encoding(entry, _fitting(entry, wanted), wanted))
    unused = [rule.pattern.pattern for i, rule in enumerate(rules) if i not in used]
    if unused:
        raise QuantkitError(
            "a rule that no tensor is left for",
            file=file.path,
            value=unused[0],
            rule="patterns match whole tensor names; the first rule that matches wins",
            hint="correct the pattern, or put the more special rule first",
        )
    return plan


def _fitting(entry: TensorEntry, wanted: QType) -> QType:
    """`wanted`, or what llama-quantize takes for such rows, unless that saves nothing."""
    with naming(entry):
        found = fallback_for_row(wanted, entry.shape[-1])
    if found != wanted and found.nbytes(prod(entry.shape)) >= entry.nbytes:
        return entry.qtype
    return found


def encode_gguf(source: Path, out: Path, rules: Sequence[Rule]) -> list[Encoding]:
    """Write `source` to `out` with the types that `rules` give; returns what became of each."""
    file = open_gguf(source)
    plan = plan_encoding(file, rules)
    label = f"quantize {out.name}"
    write_gguf(out, _metadata(file, plan), _specs(plan), progress_label=label)
    return plan


def encoded_bytes(source: Path, rules: Sequence[Rule]) -> int:
    """Exact size of what `encode_gguf` would write; encodes nothing."""
    file = open_gguf(source)
    plan = plan_encoding(file, rules)
    return gguf_file_bytes(_metadata(file, plan), _specs(plan))


def _specs(plan: Sequence[Encoding]) -> list[TensorSpec]:
    return [
        TensorSpec(
            e.entry.name,
            e.entry.shape,
            e.qtype,
            e.entry.byte_range if e.is_copy else _encoder(e),
        )
        for e in plan
    ]


def _metadata(file: GGUFFile, plan: Sequence[Encoding]) -> list[bytes]:
    own = pack_kv(FILE_TYPE_KEY, ValueType.UINT32, file_type(plan))
    return [own if key_of(raw) == FILE_TYPE_KEY else raw for raw in file.metadata.carried()]


def file_type(plan: Sequence[Encoding]) -> int:
    """llama.cpp's number of the type that holds the most weights."""
    weights: Counter[str] = Counter()
    for e in plan:
        if len(e.entry.shape) >= 2:
            weights[e.qtype.name] += prod(e.entry.shape)
    ranked = sorted(weights, key=lambda name: (-weights[name], name))
    return next((FILE_TYPES[name] for name in ranked if name in FILE_TYPES), 0)


def _encoder(e: Encoding) -> Callable[[], Iterator[memoryview]]:
    rows, columns = prod(e.entry.shape[:-1]), e.entry.shape[-1]
    step = max(1, CHUNK_ELEMENTS // columns)

    def encoded() -> Iterator[memoryview]:
        for start in range(0, rows, step):
            count = min(step, rows - start)
            values = decode_rows(e.entry, start, count, (count, columns))
            with naming(e.entry):
                data = codecs.encode(e.qtype, values)["data"]
            yield np.ascontiguousarray(data).data

    return encoded
