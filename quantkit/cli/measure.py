"""`quantkit measure REFERENCE --source NAME=FILE... --text FILE...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, LAYER, Sensitivity
from quantkit.artifacts.store import save
from quantkit.cli.common import (
    AsJson,
    Context,
    Device,
    DryRun,
    emit,
    emit_written,
    guarded,
    named_paths,
    require_outputs,
)
from quantkit.measure import measure as run_measure
from quantkit.runtime import pick_device

EPILOG = (
    "Example: quantkit measure bf16.gguf --source base=q4_0.gguf --source iq4=iq4_nl.gguf "
    "--text calib/capture.txt --out sensitivity.json"
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("measure", epilog=EPILOG)(measure)


@guarded
def measure(
    reference: Annotated[Path, typer.Argument(help="Unquantized model: GGUF or checkpoint.")],
    source: Annotated[list[str], typer.Option(help="NAME=GGUF; the first is the base.")],
    text: Annotated[list[Path], typer.Option(help="Texts to capture inputs on.")],
    out: Annotated[Path, typer.Option(help="Artifact to write.")] = Path("sensitivity.json"),
    context: Context = 512,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to capture, at least 4096.")] = 4096,
    device: Device = "auto",
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Relative output error of every donor's experts, layer by layer, in one sweep."""
    sources = named_paths(source, "--source")
    require_outputs([out], [reference, *sources.values(), *text])
    if dry_run:
        reads = [str(path) for path in (reference, *sources.values(), *text)]
        emit(as_json, {"reads": reads, "tokens": tokens}, "\n".join(f"reads {p}" for p in reads))
        return
    found = run_measure(
        reference,
        sources,
        text,
        context=context,
        max_tokens=tokens,
        device=pick_device(device),
    )
    save(found, out)
    emit_written(as_json, [out], table(found))


def table(found: Sensitivity) -> str:
    """Relative error of each source and unit, one row a layer."""
    columns = [(s, unit) for s in found.sources for unit in (LAYER, GATE_UP, DOWN)]
    head = "layer  " + "  ".join(f"{s.name + ' ' + unit:>18}" for s, unit in columns)
    rows = [
        f"{own.layer:5}  "
        + "  ".join(
            f"{s.by_layer[own.layer].errors[unit].relative_error:18.6f}" for s, unit in columns
        )
        for own in found.base.layers
    ]
    return "\n".join([head, *rows])
