"""`quantkit quantize SOURCE OUT --rule PATTERN=TYPE...`"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quantkit.cli.common import AsJson, DryRun, emit, emit_written, guarded, require_parent
from quantkit.containers.gguf import open_gguf
from quantkit.quantize.encode import Encoding, Rule, encode_gguf, encoded_bytes, plan_encoding

EPILOG = (
    "Example: quantkit quantize bf16.gguf iq4.gguf "
    r"--rule '.*_exps\.weight=IQ4_NL' --rule '.*=Q8_0'"
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("quantize", epilog=EPILOG)(quantize)


@guarded
def quantize(
    source: Annotated[Path, typer.Argument(help="GGUF to read.")],
    out: Annotated[Path, typer.Argument(help="GGUF to write.")],
    rule: Annotated[list[str], typer.Option(help="Whole tensor name = type; first match wins.")],
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Encode tensors by rules; what no rule matches is copied byte for byte."""
    require_parent(out)
    rules = [Rule.parse(text) for text in rule]
    if dry_run:
        plan = plan_encoding(open_gguf(source), rules)
        size = encoded_bytes(source, rules)
        data = {"would_write": {str(out): size}, "tensors": _tensors(plan)}
        emit(as_json, data, f"{_summary(plan)}\nwould write {out}  {size:,} bytes")
        return
    plan = encode_gguf(source, out, rules)
    emit_written(as_json, [out], _summary(plan), tensors=_tensors(plan))


def _tensors(plan: Sequence[Encoding]) -> list[dict[str, Any]]:
    return [
        {
            "name": e.entry.name,
            "from": e.entry.qtype.name,
            "to": e.qtype.name,
            "wanted": e.wanted.name if e.wanted else None,
        }
        for e in plan
    ]


def _summary(plan: Sequence[Encoding]) -> str:
    counts = Counter(e.qtype.name for e in plan)
    lines = [f"{name:8} {count} tensors" for name, count in sorted(counts.items())]
    lines += [
        f"{e.entry.name}: {e.qtype.name} instead of {e.wanted.name}, "
        f"rows of {e.entry.shape[-1]} values do not fill its blocks"
        for e in plan
        if e.wanted and e.wanted != e.qtype
    ]
    return "\n".join(lines)
