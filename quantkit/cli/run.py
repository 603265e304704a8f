"""`quantkit run RECIPE`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.common import AsJson, Device, DryRun, emit, emit_written, guarded
from quantkit.errors import UsageError
from quantkit.pipeline import load_recipe, plan_recipe, run_recipe
from quantkit.pipeline.meters import METERS
from quantkit.runtime import pick_device

EPILOG = "Example: quantkit run recipes/tiny-hybrid.yaml"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("run", epilog=EPILOG)(run)


@guarded
def run(
    recipe: Annotated[Path, typer.Argument(help="Recipe (recipes/*.yaml).")],
    meter: Annotated[str, typer.Option(help="quantkit or llama.cpp.")] = "quantkit",
    device: Device = "auto",
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """A whole recipe: quantize, measure, select, splice, gate, report. Resumable."""
    if meter not in METERS:
        raise UsageError("unknown meter", value=meter, rule=f"one of {', '.join(METERS)}")
    chosen = pick_device(device)
    loaded = load_recipe(recipe)
    if dry_run:
        steps = plan_recipe(loaded, device=chosen, meter=meter)
        emit(as_json, {"steps": [s.to_json() for s in steps]}, "\n".join(map(str, steps)))
        return
    result = run_recipe(loaded, device=chosen, meter=meter)
    emit_written(as_json, [result.report_path], result.table, **result.to_json())
    raise typer.Exit(result.exit_code)
