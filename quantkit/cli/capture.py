"""`quantkit capture MODEL --text FILE... --out importance.gguf`"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quantkit.capture.run import Captured, capture_chunks, capture_importance, write_captured
from quantkit.cli.common import (
    AsJson,
    Context,
    Device,
    DryRun,
    emit,
    emit_written,
    guarded,
    require_outputs,
)
from quantkit.runtime import pick_device

EPILOG = (
    "Example: quantkit capture bf16.gguf --text calib/capture.txt --out importance.gguf; then "
    "quantkit quantize bf16.gguf small.gguf --rule '.*=IQ4_NL' --importance importance.gguf"
)


class Form(StrEnum):
    """llama.cpp's two forms of the file."""

    gguf = "gguf"
    dat = "dat"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("capture", epilog=EPILOG)(capture)


@guarded
def capture(
    model: Annotated[Path, typer.Argument(help="Unquantized model: GGUF or checkpoint.")],
    text: Annotated[list[Path], typer.Option(help="Texts to sweep over, in turn.")],
    out: Annotated[Path, typer.Option(help="Importance file to write.")] = Path("importance.gguf"),
    context: Context = 512,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many tokens; default: whole texts.")
    ] = None,
    form: Annotated[
        Form, typer.Option(help="gguf, or dat for older tools; dat keeps no counts of experts.")
    ] = Form.gguf,
    device: Device = "auto",
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Mean squares of every matrix's input channels, for quantize and llama-quantize (imatrix)."""
    require_outputs([out], [model, *text])
    if dry_run:
        found = capture_chunks(model, text, context, tokens)
        counts = {chunk.file.name: chunk.tokens.numel() for chunk in found}
        lines = [f"reads {name}: {count:,} tokens" for name, count in counts.items()]
        data = {"reads": [str(model), *counts], "tokens": counts, "would_write": [str(out)]}
        emit(as_json, data, "\n".join([*lines, f"would write {out}"]))
        return
    captured = capture_importance(
        model, text, context=context, max_tokens=tokens, device=pick_device(device)
    )
    write_captured(captured, out, form.value)
    cold = captured.importance.cold_experts()
    emit_written(
        as_json,
        [out],
        summary(captured),
        entries=len(captured.importance.entries),
        tokens=captured.n_tokens,
        cold_experts={name: list(experts) for name, experts in cold.items()},
    )


def summary(captured: Captured) -> str:
    """Entries and tokens, and the experts that no token reached."""
    importance = captured.importance
    lines = [
        f"{len(importance.entries)} entries from {captured.n_tokens:,} tokens "
        f"in {importance.chunk_count} chunks of {importance.chunk_size}"
    ]
    lines += [
        f"{name}: no token reached {len(experts)} of {len(importance.entries[name].counts)} "
        f"experts: {', '.join(map(str, experts))}"
        for name, experts in importance.cold_experts().items()
    ]
    return "\n".join(lines)
