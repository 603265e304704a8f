"""`quantkit select SENSITIVITY --target-gb N`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.artifacts.schema import MAX_NUMBER, to_json
from quantkit.artifacts.selection import UNITS_OF, Selection
from quantkit.artifacts.sensitivity import Sensitivity
from quantkit.artifacts.store import load_with_id, save
from quantkit.cli.common import (
    AsJson,
    DryRun,
    as_usage,
    command_line,
    emit,
    emit_written,
    guarded,
    require_outputs,
)
from quantkit.errors import UsageError
from quantkit.files import make_folder
from quantkit.select import bytes_from_gb
from quantkit.select import select as run_select

EPILOG = (
    "Example: quantkit select sensitivity.json --target-gb 88.87 --out selections/iq3_m.json; "
    "quantkit select sensitivity.json --max-error 0.4 --unit layer"
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("select", epilog=EPILOG)(select)


@guarded
def select(
    sensitivity: Annotated[Path, typer.Argument(help="What `measure` wrote.")],
    target_gb: Annotated[
        str | None, typer.Option(metavar="GB", help="Size of the whole file, 1 GB = 1e9 bytes.")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Summed relative error; gives the smallest file.")
    ] = None,
    unit: Annotated[
        str, typer.Option(help="split ({gate+up} and {down} apart) or layer.")
    ] = "split",
    name: Annotated[str | None, typer.Option(help="Name of the selection.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: selections/<name>.json")] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """The exact best source for every expert unit at a file size, or the smallest good file."""
    if (target_gb is None) == (max_error is None):
        raise UsageError(
            "what to aim at is not clear",
            value=f"target {target_gb}, error {max_error}",
            rule="exactly one of --target-gb and --max-error",
        )
    if unit not in UNITS_OF:
        raise UsageError("unknown unit", value=unit, rule=f"one of {', '.join(sorted(UNITS_OF))}")
    with as_usage("--target-gb"):
        target_bytes = None if target_gb is None else bytes_from_gb(target_gb)
    if max_error is not None and not 0 <= max_error <= MAX_NUMBER:
        raise UsageError("--max-error: not usable", value=max_error, rule=f"0 to {MAX_NUMBER:g}")
    found, identity = load_with_id(Sensitivity, sensitivity)
    place = out or Path("selections") / f"{name or sensitivity.stem}.json"
    if out is not None or place.parent.is_dir():
        require_outputs([place], [sensitivity])
    chosen = run_select(
        found,
        identity,
        name=name or place.stem,
        unit_mode=unit,
        target_bytes=target_bytes,
        max_error=max_error,
        command=command_line(),
    )
    if dry_run:
        emit(as_json, to_json(chosen), f"{table(chosen)}\nwould write {place}")
        return
    make_folder(place.parent)
    save(chosen, place)
    emit_written(as_json, [place], table(chosen), selection=to_json(chosen))


def table(chosen: Selection) -> str:
    """Choices, one row each, and what the sources allow."""
    rows = [
        f"{c.layer:5}  {c.unit:8} {c.source:16} {'/'.join(sorted(set(c.types.values()))):16}"
        f" {c.bytes:>14,}  {c.relative_error:.6f} ± {c.standard_error:.6f}"
        for c in chosen.choices
    ]
    summary = [
        f"file {chosen.predicted_file_bytes:,} bytes, predicted error {chosen.predicted_error:.6f}",
        f"these sources allow {chosen.floor.file_bytes:,} bytes (error {chosen.floor.error:.6f})"
        f" to {chosen.ceiling.file_bytes:,} (error {chosen.ceiling.error:.6f})",
        *(f"floor: {reason}" for reason in chosen.floor_reasons),
    ]
    head = f"layer  {'unit':8} {'source':16} {'types':16} {'bytes':>14}  error"
    return "\n".join([head, *rows, *summary])
