"""`quantkit quantize SOURCE OUT --rule PATTERN=TYPE...`"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from quantkit.cli.common import (
    AsJson,
    DryRun,
    as_usage,
    emit,
    emit_written,
    guarded,
    require_outputs,
)
from quantkit.quantize.encode import (
    Encoding,
    Options,
    Plan,
    Quantized,
    Rule,
    encode_gguf,
    make_plan,
    plan_bytes,
)
from quantkit.quantize.stream import TensorError

EPILOG = (
    "Example: quantkit quantize bf16.gguf iq4.gguf "
    r"--rule '.*_exps\.weight=IQ4_NL' --rule '.*=Q8_0' --importance importance.gguf"
)
MAX_LISTED = 8


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("quantize", epilog=EPILOG)(quantize)


@guarded
def quantize(
    source: Annotated[Path, typer.Argument(help="GGUF, or checkpoint folder of transformers.")],
    out: Annotated[Path, typer.Argument(help="GGUF to write.")],
    rule: Annotated[list[str], typer.Option(help="Whole tensor name = type; first match wins.")],
    importance: Annotated[
        Path | None, typer.Option(help="Importance file of capture or llama-imatrix (or its .dat).")
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="Fail where rows do not fill a type's blocks.")
    ] = False,
    allow_requantize: Annotated[
        bool,
        typer.Option("--allow-requantize", help="Encode again what has less than 8 bits already."),
    ] = False,
    allow_unused_rules: Annotated[
        bool, typer.Option("--allow-unused-rules", help="List rules that decide nothing; go on.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="general.name for a checkpoint; default: the folder's.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Default: all processors; changes no byte.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Encode tensors by rules; what no rule matches is copied byte for byte.

    A pattern is a regular expression for the whole name. Where the rows of a tensor do not fill a
    type's blocks, the type that llama-quantize falls back to is taken, and said. Values below 8
    bits a weight are not quantized again unless that is allowed. The error of a tensor is
    sum (x - y)^2 / sum x^2, with importance also weighted by it.
    """
    require_outputs([out], [source, *([importance] if importance else [])])
    with as_usage("--rule"):
        rules = [Rule.parse(text) for text in rule]
    options = Options(not no_fallback, allow_requantize, allow_unused_rules)
    if dry_run:
        plan = make_plan(source, rules, importance=importance, options=options, name=name)
        size = plan_bytes(plan, rules)
        data = {"would_write": {str(out): size}, **_facts(plan, {})}
        text = _text(plan, {}, {})
        emit(as_json, data, f"{text}\nwould write {out}  {size:,} bytes")
        return
    done = encode_gguf(
        source,
        out,
        rules,
        importance=importance,
        options=options,
        name=name,
        n_threads=threads,
    )
    cold = {tensor: list(experts) for tensor, experts in done.cold.items()}
    emit_written(as_json, done.paths, _done_text(done), **_facts(done.plan, done.errors), cold=cold)


def _facts(plan: Plan, errors: dict[str, TensorError]) -> dict[str, Any]:
    return {
        "tensors": [_row(e, errors.get(e.entry.name)) for e in plan.encodings],
        "unused_rules": [{"rule": u.rule.text, "reason": u.reason} for u in plan.unused],
        "without_importance": plan.without_importance,
    }


def _row(e: Encoding, error: TensorError | None) -> dict[str, Any]:
    return {
        "name": e.entry.name,
        "shape": list(e.entry.shape),
        "from": e.entry.qtype.name,
        "to": e.qtype.name,
        "wanted": e.wanted.name if e.wanted else None,
        "rule": e.rule.text if e.rule else None,
        "reason": e.reason,
        "requantized": e.is_requantized,
        "bytes": e.nbytes,
        "relative_error": error.relative if error else None,
        "weighted_error": error.weighted if error else None,
    }


def _done_text(done: Quantized) -> str:
    return _text(done.plan, done.errors, done.cold)


def _text(plan: Plan, errors: dict[str, TensorError], cold: dict[str, tuple[int, ...]]) -> str:
    """One line a tensor, then what needs attention, then the sums."""
    width = max((len(e.entry.name) for e in plan.encodings), default=0)
    lines = [_line(e, errors.get(e.entry.name), width) for e in plan.encodings]
    lines += [f"unused rule {u.rule.text}: {u.reason}" for u in plan.unused]
    again = [e.entry.name for e in plan.encodings if e.is_requantized]
    for title, names in (
        ("quantized from quantized values", again),
        ("encoded without importance", plan.without_importance),
    ):
        if names:
            lines.append(f"{title}: {_listed(names)}")
    lines += [
        f"{tensor}: no token reached {_counted(experts)}; they have the others' mean importance"
        for tensor, experts in cold.items()
    ]
    counts = Counter(e.qtype.name for e in plan.encodings)
    sizes: Counter[str] = Counter()
    for e in plan.encodings:
        sizes[e.qtype.name] += e.nbytes
    lines += [
        f"{qtype:8} {count} tensors, {sizes[qtype]:,} bytes"
        for qtype, count in sorted(counts.items())
    ]
    return "\n".join(lines)


def _line(e: Encoding, error: TensorError | None, width: int) -> str:
    types = f"{e.entry.qtype.name} -> {e.qtype.name}" if not e.is_copy else e.qtype.name
    text = f"{e.entry.name:{width}}  {types:16}  {e.nbytes:>15,} bytes"
    if error:
        text += f"  error {error.relative:.3g}"
    if error and error.weighted is not None:
        text += f", weighted {error.weighted:.3g}"
    return f"{text}  ({e.reason})" if e.reason else text


def _listed(names: list[str]) -> str:
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _counted(experts: tuple[int, ...]) -> str:
    return f"{len(experts)} experts ({_listed([str(e) for e in experts])})"
