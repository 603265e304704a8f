"""`quantkit splice SELECTION OUT --source NAME=FILE...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import load_with_id
from quantkit.cli.common import (
    AsJson,
    DryRun,
    command_line,
    emit,
    guarded,
    named_paths,
    parse_size,
    require_outputs,
)
from quantkit.containers.gguf import open_gguf
from quantkit.errors import UsageError
from quantkit.progress import log
from quantkit.splice import output_paths, plan_from_selection, predicted_bytes, write_splice

EPILOG = (
    "Example: quantkit splice selections/iq3_m.json hybrid.gguf --source base=q4_0.gguf "
    "--source iq4=iq4_nl.gguf --split-max-size 45G"
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("splice", epilog=EPILOG)(splice)


@guarded
def splice(
    selection: Annotated[Path, typer.Argument(help="What `select` wrote.")],
    out: Annotated[Path, typer.Argument(help="GGUF to write.")],
    source: Annotated[list[str], typer.Option(help="NAME=GGUF, the names of the selection.")],
    split_max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest shard, for example 45G.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Write the hybrid by byte copy, with provenance, and verify every tensor."""
    chosen, identity = load_with_id(Selection, selection)
    files = named_paths(source, "--source")
    inputs = [selection, *files.values()]
    require_outputs([out], inputs)
    base = chosen.base.name
    if base not in files:
        raise UsageError(
            "the base is missing",
            value=", ".join(files),
            rule=f"--source {base}=FILE, the first source of the selection",
        )
    split = None if split_max_size is None else parse_size(split_max_size)
    donors = {name: open_gguf(path) for name, path in files.items() if name != base}
    plan = plan_from_selection(chosen, open_gguf(files[base]), donors)
    require_outputs(output_paths(plan, out, split_max_bytes=split), inputs)
    size = predicted_bytes(plan, split_max_bytes=split)
    over = _over_target(chosen, size)
    if dry_run:
        data = {"would_write": {str(out): size}, "over_target_bytes": over}
        emit(as_json, data, f"would write {out}  {size:,} bytes")
        return
    result = write_splice(
        plan,
        out,
        split_max_bytes=split,
        inputs=[identity],
        parameters={"split_max_bytes": split or 0},
        command=command_line(),
    )
    written: list[dict[str, object]] = [
        {"path": str(out.with_name(file.name)), "bytes": file.bytes, "blake3": file.blake3}
        for file in (*result.outputs, result.provenance)
    ]
    line = "wrote {path}  {bytes:,} bytes  blake3 {blake3}"
    text = "\n".join(line.format(**file) for file in written)
    emit(as_json, {"over_target_bytes": over, "written": written}, text)


def _over_target(chosen: Selection, size: int) -> int:
    """Bytes above the selection's target, said on stderr: every shard has a header of its own."""
    target = chosen.goal.target_bytes
    over = 0 if target is None else max(0, size - target)
    if over:
        log(f"warning: the shards together are {over:,} bytes larger than the target of {target:,}")
    return over
