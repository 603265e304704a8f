"""`quantkit calib build MANIFEST...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quantkit.artifacts.schema import duplicates
from quantkit.capture.texts import build_text, check_disjoint, load_manifest, load_text
from quantkit.cli.common import AsJson, DryRun, emit, emit_written, guarded
from quantkit.containers.writing import refuse_inputs
from quantkit.errors import UsageError
from quantkit.files import make_folder, write_text_atomic

EPILOG = (
    "Example: quantkit calib build calib/selection.yaml --out texts/   (from installed packages); "
    "quantkit calib check calib/*.yaml"
)


def register(app: typer.Typer) -> None:
    """Add the verb group."""
    group = typer.Typer(help="Build and check the texts that models are measured on.")
    group.command("build", epilog=EPILOG)(build)
    group.command("check", epilog=EPILOG)(check)
    app.add_typer(group, name="calib")


Manifests = Annotated[list[Path], typer.Argument(help="Manifests (calib/*.yaml).")]


@guarded
def build(
    manifests: Manifests,
    out: Annotated[Path | None, typer.Option(help="Folder; default: beside each manifest.")] = None,
    deb_dir: Annotated[
        list[Path] | None, typer.Option(help="Folder with .deb files, for packages not installed.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Rebuild texts from installed packages and compare them with their manifests' hashes."""
    loaded = {path: load_manifest(path) for path in manifests}
    places = {path: (out or path.parent) / f"{path.stem}.txt" for path in manifests}
    twice = next(duplicates(str(place) for place in places.values()), None)
    if twice:
        raise UsageError(
            "two manifests of one name", value=twice, rule="each manifest's text has its own file"
        )
    refuse_inputs(places.values(), manifests)
    if dry_run:
        plan = {str(places[path]): manifest.bytes for path, manifest in loaded.items()}
        text = "\n".join(f"would write {place}  {size:,} bytes" for place, size in plan.items())
        emit(as_json, {"would_write": plan}, text)
        return
    built = {path: build_text(m, deb_dirs=deb_dir or ()) for path, m in loaded.items()}
    if out:
        make_folder(out)
    for path, found in built.items():
        write_text_atomic(places[path], found.text)
    emit_written(as_json, places.values())


@guarded
def check(manifests: Manifests, as_json: AsJson = False, dry_run: DryRun = False) -> None:
    """Check the committed texts: hashes, and that no two share a run of 12 words."""
    if dry_run:
        names = [str(path) for path in manifests]
        emit(as_json, {"reads": names}, "\n".join(f"reads {name}" for name in names))
        return
    texts = {path.stem: load_text(path) for path in manifests}
    check_disjoint(texts)
    sizes = {name: len(text.encode()) for name, text in texts.items()}
    lines = [f"{name}: {size:,} bytes, as in its manifest" for name, size in sizes.items()]
    lines.append("no run of 12 words is shared")
    emit(as_json, {"bytes": sizes, "disjoint": True}, "\n".join(lines))
