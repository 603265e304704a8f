"""From a selection artifact to a splice plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quantkit.artifacts.selection import Selection, SelectionSource
from quantkit.artifacts.sensitivity import Contents
from quantkit.containers.gguf import GGUFFile
from quantkit.containers.gguf.contents import header_blake3
from quantkit.containers.hashing import file_bytes
from quantkit.errors import ArtifactError
from quantkit.splice.plan import SplicePlan, UnitChoice, plan_splice
from quantkit.splice.write import predicted_bytes


def plan_from_selection(
    selection: Selection, base: GGUFFile, donors: Mapping[str, GGUFFile]
) -> SplicePlan:
    """The plan that a selection describes, with `donors` by the names that it uses.

    The files must be those that were measured: their number, sizes and headers are compared here,
    the hashes of what is taken from them by `write_splice`, which has to read it. Raises
    `ArtifactError` where they are not, or where the size would not be the predicted one.
    """
    used = {choice.source for choice in selection.choices}
    known: dict[Path, str] = {}
    for source in selection.sources:
        if source is selection.base or source.name in used:
            model = base if source is selection.base else _donor(source.name, donors)
            known |= _known_files(source, model)
            _check_header(selection.contents.get(source.name), model)
    plan = plan_splice(
        base,
        {name: donor for name, donor in donors.items() if name in used},
        [UnitChoice(choice.layer, choice.unit, choice.source) for choice in selection.choices],
        base_name=selection.base.name,
        overhead_bytes=selection.overhead_bytes,
        known_sha256=known,
        measured=selection.contents,
    )
    nbytes = predicted_bytes(plan)
    if nbytes != selection.predicted_file_bytes:
        raise ArtifactError(
            "the selection predicts another size than these files give",
            file=base.path,
            value=f"{nbytes} bytes",
            rule=f"predicted_file_bytes = {selection.predicted_file_bytes}",
            hint="measure and select again with the files as they are now",
        )
    return plan


def _donor(name: str, donors: Mapping[str, GGUFFile]) -> GGUFFile:
    if name not in donors:
        raise ArtifactError(
            "the selection uses a donor that was not given",
            value=name,
            rule=f"given: {', '.join(sorted(donors)) or 'none'}",
            hint="name the file of every donor that the selection uses",
        )
    return donors[name]


def _known_files(source: SelectionSource, model: GGUFFile) -> dict[Path, str]:
    sizes = [file_bytes(path) for path in model.shards]
    measured = [identity.bytes for identity in source.files]
    if sizes != measured:
        raise ArtifactError(
            f"{source.name!r} is not the model that was measured",
            file=model.path,
            value=f"{len(sizes)} files, {sum(sizes)} bytes",
            rule=f"{len(measured)} files, {sum(measured)} bytes",
            hint="name the measured files, or measure and select again",
        )
    # These files, if the hashes of their parts are right: what else they hold does not matter.
    return {path: f.sha256 for path, f in zip(model.shards, source.files, strict=True)}


def _check_header(measured: Contents | None, model: GGUFFile) -> None:
    if measured is not None and (found := header_blake3(model)) != measured.header:
        raise ArtifactError(
            "a source that is not the file it was measured as: its header differs",
            file=model.path,
            value=f"blake3 {found}",
            rule=f"blake3 {measured.header}",
            hint="name the measured file, or measure and select again with this one",
        )
