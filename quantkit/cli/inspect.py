"""`quantkit inspect FILE...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.common import AsJson, DryRun, emit, guarded
from quantkit.report.inspect import inspect_model

EPILOG = "Example: quantkit inspect model.gguf --json"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("inspect", epilog=EPILOG)(inspect)


@guarded
def inspect(
    files: Annotated[list[Path], typer.Argument(help="GGUF files or checkpoint folders.")],
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Types, bytes by role, bits per weight with and without the n-gram table, provenance."""
    if dry_run:
        emit(as_json, {"reads": [str(f) for f in files]}, "\n".join(f"reads {f}" for f in files))
        return
    found = [inspect_model(path) for path in files]
    data = {"models": [inspection.to_json() for inspection in found]}
    emit(as_json, data, "\n\n".join(inspection.render() for inspection in found))
