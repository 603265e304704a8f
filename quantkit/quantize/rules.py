"""Rules: `pattern=TYPE`, whole names, first match wins.

A rule that decides nothing is nearly always a mistake (a pattern that is not anchored the way its
author thinks, or a special rule behind a general one), so that each one is named with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantkit import codecs
from quantkit.errors import QuantkitError
from quantkit.models.arch import ARCHITECTURES
from quantkit.qtypes import QTYPES, QType, by_name

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

    @property
    def text(self) -> str:
        """The rule as it is written."""
        return f"{self.pattern.pattern}={self.qtype.name}"

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
        if not codecs.can_encode(qtype) or qtype.gguf_id is None:
            writable = ", ".join(
                q.name for q in QTYPES if codecs.can_encode(q) and q.gguf_id is not None
            )
            raise QuantkitError(
                "a type that we cannot write", value=name, rule=f"one of {writable}"
            )
        return cls(compiled, qtype)


@dataclass(frozen=True)
class UnusedRule:
    """A rule that decided no tensor, and why."""

    rule: Rule
    reason: str


def is_kept_float(name: str) -> bool:
    """Whether llama.cpp needs this tensor in F32 (routers, convolutions) whatever the rules say."""
    return re.sub(r"^blk\.\d+\.", "", name) in KEPT_FLOAT


def first_match(rules: Sequence[Rule], name: str) -> int | None:
    """Index of the rule that decides the tensor `name`."""
    return next((i for i, rule in enumerate(rules) if rule.pattern.fullmatch(name)), None)


def unused_rules(rules: Sequence[Rule], deciders: Mapping[str, int | None]) -> list[UnusedRule]:
    """Rules that decide nothing; `deciders` has every tensor, None where no rule may decide."""
    used = set(deciders.values())
    found = []
    for number, rule in enumerate(rules):
        if number in used:
            continue
        matched = {n: d for n, d in deciders.items() if rule.pattern.fullmatch(n)}
        earlier = sorted({d for d in matched.values() if d is not None})
        if earlier:
            by = ", ".join(rules[d].text for d in earlier)
            reason = f"shadowed by {by}"
        elif matched:
            reason = f"matches only tensors that stay as they are, such as {min(matched)}"
        else:
            reason = "matches no tensor"
        found.append(UnusedRule(rule, reason))
    return found


def unused_error(unused: Sequence[UnusedRule], file: Path) -> QuantkitError:
    """The error for rules that decide nothing."""
    reasons = "; ".join(f"{u.rule.text}: {u.reason}" for u in unused)
    return QuantkitError(
        "a rule that no tensor is left for",
        file=file,
        value="; ".join(u.rule.pattern.pattern for u in unused),
        rule=f"patterns match whole tensor names; the first rule that matches wins ({reasons})",
        hint="correct the pattern, put the more special rule first, or allow unused rules",
    )
