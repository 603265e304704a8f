"""`quantkit convert HF_DIR OUT.gguf`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.common import AsJson, DryRun, emit, emit_written, guarded, require_outputs
from quantkit.quantize import convert_checkpoint, converted_bytes

EPILOG = "Example: quantkit convert Qwen3.8-Flash-Next/ flash-next-bf16.gguf"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("convert", epilog=EPILOG)(convert)


@guarded
def convert(
    folder: Annotated[Path, typer.Argument(help="Checkpoint of transformers.")],
    out: Annotated[Path, typer.Argument(help="GGUF to write.")],
    name: Annotated[str | None, typer.Option(help="general.name; default: the folder's.")] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Write a transformers checkpoint as a BF16 GGUF that llama.cpp loads."""
    require_outputs([out], [folder])
    if dry_run:
        size = converted_bytes(folder, name=name)
        emit(as_json, {"would_write": {str(out): size}}, f"would write {out}  {size:,} bytes")
        return
    emit_written(as_json, convert_checkpoint(folder, out, name=name))
