"""`report.md`: what a run built, how good it is, and how to build it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from quantkit.artifacts.gate import INCONCLUSIVE, CheckRow
from quantkit.artifacts.kld import KldStatistics
from quantkit.artifacts.selection import UNITS_OF, Selection
from quantkit.report.facts import HYBRID, HybridFacts, ModelFacts, RunFacts
from quantkit.report.tables import (
    figure,
    markdown_table,
    percent,
    size_text,
    size_unit,
    text_table,
    with_error,
)

ROLE_NAMES = {"selection": "selection", "check": "check", "held_out": "held-out"}
UNIT_NAMES = {"layer": "experts", "gate_up": "gate + up", "down": "down"}
BAR_MEANINGS = {
    "kld_combined_standard_errors": "mean KLD at most this many combined standard errors above the "
    "baseline's",
    "top1_points_lower": "top-1 agreement at most this many percentage points below the baseline's",
    "standard_error": "standard errors are taken over these",
    "min_tokens": "fewer scored tokens are no evidence",
    "min_chunks": "fewer chunks are no evidence",
    "max_excess_share": "a pass needs the allowed excess to be within this share of the baseline's "
    "KLD",
    "max_top1_halfwidth_points": "a pass or fail near the bar needs top-1 to be known to ± this",
}


def run_table(facts: RunFacts) -> str:
    """The table as plain text, one row a model; top-1 shares of all texts in one column."""
    return text_table(*_table(facts, [_ALL_TOP1]))


def _markdown_results(facts: RunFacts) -> str:
    roles = facts.models[0].statistics
    return markdown_table(*_table(facts, [((role,), ROLE_NAMES[role]) for role in roles]))


_ALL_TOP1 = ((), "same texts")
_Top1Columns = Sequence[tuple[Sequence[str], str]]
"""Columns of top-1 agreement: their roles (none is all), and what the head says of them."""


def _table(facts: RunFacts, top1: _Top1Columns) -> tuple[str, list[str], list[list[str]]]:
    """Alignment, head and rows."""
    unit, per = size_unit(model.bytes for model in facts.models)
    head = ["file", "kind", unit, "bpw"]
    head += [f"KLD {ROLE_NAMES[role]}" for role in facts.models[0].statistics]
    head += [f"top-1 %, {name}" for _, name in top1]
    rows = [_row(facts, model, per, top1) for model in facts.models]
    return "ll" + "r" * (len(head) - 2) + "l", [*head, "verdict"], rows


def _row(facts: RunFacts, model: ModelFacts, per: int, top1: _Top1Columns) -> list[str]:
    found = model.statistics
    shares = {role: percent(s.top1_agreement) for role, s in found.items()}
    return [
        model.name,
        model.kind,
        size_text(model.bytes, per),
        f"{model.inspection.bpw:.3f}",
        *(with_error(s.kld_mean, _error(facts, s)) for s in found.values()),
        *("  ".join(shares[role] for role in roles or shares) for roles, _ in top1),
        _verdict(facts, model),
    ]


def _error(facts: RunFacts, statistics: KldStatistics) -> float | None:
    """The standard error of the kind that the criterion uses."""
    kind = facts.bars["standard_error"]
    found: float | None = getattr(statistics, f"kld_se_{kind}")
    return found


def _verdict(facts: RunFacts, model: ModelFacts) -> str:
    if model.verdict is None:
        return "baseline" if model.name == facts.baseline else ""
    return model.verdict + (" as expected" if model.as_expected else f", expected {model.expected}")


def render_report(facts: RunFacts, plot_name: str) -> str:
    """The whole page in Markdown; `plot_name` is the picture beside it."""
    sections = [
        f"# {facts.name}",
        _opening(facts),
        _results(facts, plot_name),
        *(_hybrid_section(facts, name, found) for name, found in facts.hybrids.items()),
        _layers_section(facts),
        _criterion_section(facts),
        _inputs_section(facts),
        _machine_section(facts),
        _redo_section(facts),
        _limits_section(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _opening(facts: RunFacts) -> str:
    hybrids = [model for model in facts.models if model.kind == HYBRID]
    donors = [
        name for name in (s.name for s in facts.sensitivity.sources) if name != facts.models[0].name
    ]
    reference = facts.reference
    lines = [facts.description.strip(), ""] if facts.description.strip() else []
    lines += [
        f"Hybrids of {facts.model} ({reference.architecture}, {reference.parameters:,} weights): "
        f"whole expert units by byte copy from {_listed(donors)}, everything else from "
        f"{facts.models[0].name}. Each was judged against {facts.baseline}, both compared with the "
        "unquantized model.",
        "",
        *(f"- **{m.name}**: {_verdict(facts, m)}, {_saving(facts, m)}" for m in hybrids),
    ]
    return "\n".join(lines)


def _saving(facts: RunFacts, model: ModelFacts) -> str:
    baseline = next(m for m in facts.models if m.name == facts.baseline)
    change = model.bytes / baseline.bytes - 1
    word = "smaller" if change <= 0 else "larger"
    return f"{abs(change):.1%} {word} than {facts.baseline}"


def _results(facts: RunFacts, plot_name: str) -> str:
    kind = facts.bars["standard_error"]
    return "\n\n".join(
        [
            "## Results",
            _markdown_results(facts),
            f"KLD in nats a token, ± one standard error over {kind}; bpw over the whole file's "
            "weights. "
            f"Measured by {_meter(facts)} on {_tokens(facts)}.",
            f"![file size and KLD]({plot_name})",
            "Mean KLD over all three texts, bars of two standard errors over chunks. The line "
            "joins the donors: between two of them it is their mixture in proportion, what a "
            "hybrid would have if every layer counted the same. Below it, the choice of layers "
            "has paid.",
        ]
    )


def _meter(facts: RunFacts) -> str:
    gate = facts.any_gate
    settings = ", ".join(f"{name} {value}" for name, value in gate.settings.items())
    return f"{gate.meter} ({settings})"


def _tokens(facts: RunFacts) -> str:
    texts = facts.any_gate.texts
    return ", ".join(
        f"{t.candidate.n_tokens:,} tokens in {t.candidate.n_chunks} chunks of {t.text.name}"
        for t in texts
    )


def _hybrid_section(facts: RunFacts, name: str, found: HybridFacts) -> str:
    chosen, gate = found.selection, found.gate
    model = next(m for m in facts.models if m.name == name)
    rows = [_check_row(row) for row in gate.checks]
    parts = [
        f"## {name}: {_verdict(facts, model)}",
        f"{_goal(chosen)} The file has {model.bytes:,} bytes, as predicted: "
        f"{chosen.predicted_file_bytes:,}. Predicted error "
        f"{with_error(chosen.predicted_error, chosen.predicted_standard_error)} (sum over "
        f"{len(chosen.choices)} units; {_proof(chosen)}). These sources allow "
        f"{chosen.floor.file_bytes:,} bytes (error {chosen.floor.error:.4f}) to "
        f"{chosen.ceiling.file_bytes:,} (error {chosen.ceiling.error:.4f}).",
        markdown_table(
            "llrrrll", ["check", "text", "figure", "interval", "bar", "unit", "verdict"], rows
        ),
    ]
    notes = [f"- {row.role}, {row.check}: {row.note}" for row in gate.checks if row.note]
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _goal(chosen: Selection) -> str:
    goal = chosen.goal
    if goal.target_bytes is not None:
        return f"The least error within {goal.target_bytes:,} bytes."
    return f"The smallest file with an error of at most {goal.max_error}."


def _proof(chosen: Selection) -> str:
    if chosen.optimality_gap == 0:
        return "a proved optimum"
    return f"within {chosen.optimality_gap:g} of the optimum"


def _check_row(row: CheckRow) -> list[str]:
    interval = "" if row.interval is None else f"{row.interval[0]:+.5f} .. {row.interval[1]:+.5f}"
    role = ROLE_NAMES.get(row.role, row.role)
    text = f"{role} ({row.text})" if row.text else role
    return [
        row.check,
        text,
        figure(row.figure),
        interval,
        figure(row.bar),
        row.unit,
        row.verdict,
    ]


def _layers_section(facts: RunFacts) -> str:
    """One row a layer: the source of each unit in each hybrid."""
    columns = [
        (name, unit)
        for name, found in facts.hybrids.items()
        for unit in UNITS_OF[found.selection.unit]
    ]
    chosen = {
        (name, choice.unit, choice.layer): f"{choice.source} ({_types(choice.types)})"
        for name, found in facts.hybrids.items()
        for choice in found.selection.choices
    }
    layers = sorted({layer for _, _, layer in chosen})
    rows = [
        [str(layer), *(chosen.get((name, unit, layer), "") for name, unit in columns)]
        for layer in layers
    ]
    head = ["layer", *(f"{name}, {UNIT_NAMES[unit]}" for name, unit in columns)]
    return "## Sources by layer\n\n" + markdown_table("r" + "l" * len(columns), head, rows)


def _types(types: Mapping[str, str]) -> str:
    return "/".join(sorted(set(types.values())))


def _criterion_section(facts: RunFacts) -> str:
    rows = [[name, str(value), BAR_MEANINGS.get(name, "")] for name, value in facts.bars.items()]
    return "\n\n".join(
        [
            "## Criterion",
            "Fixed in the recipe and hashed before the first measurement; the held-out text must "
            "confirm what the others show.",
            markdown_table("lrl", ["bar", "value", "meaning"], rows),
            f"sha256 of the bars: `{facts.bars_sha256}`",
        ]
    )


def _inputs_section(facts: RunFacts) -> str:
    rows = [[what, f.name, f"{f.bytes:,}", f"`{f.sha256}`"] for what, f in facts.inputs]
    rows += [
        [model.kind, f.name, f"{f.bytes:,}", f"`{f.sha256}`"]
        for model in facts.models
        for f in model.files
    ]
    table = markdown_table("llrl", ["what", "file", "bytes", "sha256"], rows)
    return f"## Files\n\n{table}"


def _machine_section(facts: RunFacts) -> str:
    machine = facts.any_gate.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine.libraries.items())
    devices = "".join(f", {device}" for device in machine.devices)
    return (
        f"## Machine\n\n{machine.processor}, {machine.cores} cores{devices}; {machine.system}; "
        f"Python {machine.python}; {libraries}. quantkit {facts.tool_version}."
    )


def _redo_section(facts: RunFacts) -> str:
    steps = "\n".join(shlex.join(command) for command in facts.commands)
    return "\n\n".join(
        [
            "## Again",
            f"```sh\n{facts.run_command}\n```",
            "or step by step, in the folder of this report:",
            f"```sh\n{steps}\n```",
            f"The recipe, `{facts.recipe_name}`:",
            f"```yaml\n{facts.recipe_text.strip()}\n```",
        ]
    )


def _limits_section(facts: RunFacts) -> str:
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(facts))


def _limits(facts: RunFacts) -> Iterator[str]:
    yield (
        "A small KLD on these texts says that the models answer alike on texts like these. It is "
        "no test of knowledge, of long answers or of other languages."
    )
    yield (
        "KLD figures compare only within one engine, machine and setting: another order of "
        "computation flips experts and moves the figures."
    )
    yield (
        "The predicted error adds up units that were measured alone, each on the reference's own "
        "inputs. It ranks choices; the gate decides."
    )
    if facts.bars["standard_error"] == "tokens":
        yield (
            "Standard errors over tokens take neighbouring tokens as independent; those over "
            "chunks are larger, and in gate/ and kld/ beside them."
        )
    if any(row.verdict == INCONCLUSIVE for f in facts.hybrids.values() for row in f.gate.checks):
        yield "INCONCLUSIVE means too little evidence for either verdict: use longer texts."
    if facts.is_embedded:
        yield (
            "The embedded model is a small one that exists to try the tool; its figures say "
            "nothing about another model."
        )


def _listed(names: Sequence[str]) -> str:
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last
