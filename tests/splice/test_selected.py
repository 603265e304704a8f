"""From a selection artifact to a plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import load, save
from quantkit.containers.gguf import GGUFFile, open_gguf
from quantkit.errors import ArtifactError
from quantkit.splice import plan_from_selection, write_splice

from .conftest import MakeModel, flip, leave_nothing


def test_selected_hybrid_has_the_predicted_size(
    selection: Selection, base: GGUFFile, donors: dict[str, GGUFFile], tmp_path: Path
) -> None:
    save(selection, tmp_path / "selection.json")
    loaded = load(Selection, tmp_path / "selection.json")
    out = tmp_path / "hybrid.gguf"
    result = write_splice(plan_from_selection(loaded, base, donors), out)
    assert out.stat().st_size == result.nbytes == selection.predicted_file_bytes
    metadata = open_gguf(out).metadata
    known = [f.sha256 for source in selection.sources for f in source.files]
    assert metadata["quantkit.source.sha256"] == known
    assert metadata["quantkit.selection"] == '{"0":{"layer":"iq4"},"2":{"layer":"q2"}}'


def test_donor_that_was_not_given(
    selection: Selection, base: GGUFFile, donors: dict[str, GGUFFile]
) -> None:
    with pytest.raises(ArtifactError, match="was not given") as caught:
        plan_from_selection(selection, base, {"iq4": donors["iq4"]})
    assert (caught.value.value, caught.value.rule) == ("q2", "given: iq4")


def test_file_that_was_not_measured(
    selection: Selection, base: GGUFFile, donors: dict[str, GGUFFile], make_model: MakeModel
) -> None:
    other = donors | {"iq4": make_model("other", "Q4_0", other="F16")}
    with pytest.raises(ArtifactError, match="'iq4' is not the model that was measured"):
        plan_from_selection(selection, base, other)


def test_prediction_that_does_not_fit(
    selection: Selection, base: GGUFFile, donors: dict[str, GGUFFile]
) -> None:
    wrong = dataclasses.replace(
        selection,
        fixed_bytes=selection.fixed_bytes - 32,
        predicted_file_bytes=selection.predicted_file_bytes - 32,
    )
    with pytest.raises(ArtifactError, match="predicts another size"):
        plan_from_selection(wrong, base, donors)


def test_an_earlier_versions_selection_has_the_files_hashed_whole(
    selection: Selection, base: GGUFFile, donors: dict[str, GGUFFile], out: Path
) -> None:
    path = donors["iq4"].path
    flip(path, -1)
    plan = plan_from_selection(selection, base, donors)
    with pytest.raises(ArtifactError, match="not the file it was measured as") as caught:
        write_splice(plan, out)
    assert caught.value.file == str(path)
    leave_nothing(out.parent)


TAKEN = [
    ("iq4", "blk.0.ffn_down_exps.weight"),
    ("q2", "blk.2.ffn_gate_exps.weight"),
    ("q8", "blk.1.ffn_up_exps.weight"),
    ("q8", "token_embd.weight"),
]


@pytest.mark.parametrize(("source", "name"), TAKEN)
@pytest.mark.parametrize("byte", [0, -1])
def test_a_part_that_is_not_what_was_measured(
    hashed: Selection,
    base: GGUFFile,
    donors: dict[str, GGUFFile],
    out: Path,
    source: str,
    name: str,
    byte: int,
) -> None:
    entry = {"q8": base, **donors}[source].tensors[name]
    flip(entry.path, entry.offset + byte % entry.nbytes)
    plan = plan_from_selection(hashed, base, donors)
    with pytest.raises(ArtifactError, match="not the file it was measured as") as caught:
        write_splice(plan, out)
    assert (caught.value.file, caught.value.tensor) == (str(entry.path), name)
    assert caught.value.rule == f"blake3 {hashed.contents[source].tensors[name]}"
    assert caught.value.hint
    leave_nothing(out.parent)


def test_a_part_that_changed_and_is_not_taken_does_not_matter(
    hashed: Selection, base: GGUFFile, donors: dict[str, GGUFFile], out: Path
) -> None:
    write_splice(plan_from_selection(hashed, base, donors), out)
    before = out.read_bytes()
    entry = donors["iq4"].tensors["blk.1.ffn_down_exps.weight"]
    flip(entry.path, entry.offset)
    write_splice(plan_from_selection(hashed, base, donors), out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("source", ["q8", "iq4"])
def test_a_header_that_is_not_what_was_measured(
    hashed: Selection, base: GGUFFile, donors: dict[str, GGUFFile], source: str
) -> None:
    path = {"q8": base, **donors}[source].path
    flip(path, path.read_bytes().index(b"general.architecture"))
    again = {name: open_gguf(model.path) for name, model in {"q8": base, **donors}.items()}
    with pytest.raises(ArtifactError, match="its header differs"):
        plan_from_selection(hashed, again.pop("q8"), again)


def test_a_part_without_a_hash_has_its_source_hashed_whole(
    hashed: Selection, base: GGUFFile, donors: dict[str, GGUFFile], out: Path
) -> None:
    entry = donors["q2"].tensors["blk.2.ffn_up_exps.weight"]
    del hashed.contents["q2"].tensors[entry.name]
    plan = plan_from_selection(hashed, base, donors)
    assert plan.unmeasured_files() == list(donors["q2"].shards)
    write_splice(plan, out)
    flip(entry.path, entry.offset)
    with pytest.raises(ArtifactError, match="not the file it was measured as") as caught:
        write_splice(plan, out)
    assert caught.value.file == str(entry.path)


def test_a_hybrid_does_not_depend_on_how_its_sources_were_checked(
    selection: Selection,
    hashed: Selection,
    base: GGUFFile,
    donors: dict[str, GGUFFile],
    out: Path,
) -> None:
    found = []
    for chosen in (selection, hashed):
        result = write_splice(plan_from_selection(chosen, base, donors), out)
        found.append((out.read_bytes(), result.provenance_path.read_bytes()))
    assert found[0] == found[1]
