"""A run reads its inputs and writes its outputs, and never mistakes one for the other."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import RecipeError
from quantkit.pipeline import load_recipe, plan_recipe
from tests.pipeline.short import CALIB, ShortRun, contents, document, run_in, write_recipe

Change = Callable[[dict[str, Any], Path, Path], object]


def _model(recipe: dict[str, Any], folder: Path, reference: Path) -> None:
    (folder / "models").mkdir()
    shutil.copy(reference, folder / "models" / "q2_0.gguf")
    recipe["model"] = "models/q2_0.gguf"


def _text_as(name: str, role: str = "capture") -> Change:
    def change(recipe: dict[str, Any], folder: Path, reference: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(CALIB / "capture.txt", folder / name)
        recipe["texts"][role] = name

    return change


def _linked_text(recipe: dict[str, Any], folder: Path, reference: Path) -> None:
    shutil.copy(CALIB / "capture.txt", folder / "report.md")
    os.symlink("report.md", folder / "capture.txt")
    recipe["texts"]["capture"] = "capture.txt"


def _donor(recipe: dict[str, Any], folder: Path, reference: Path) -> None:
    (folder / "models").mkdir()
    shutil.copy(reference, folder / "models" / "far.gguf")
    recipe["quantizations"][1] = {"name": "given", "file": "models/far.gguf"}


def _manifest(recipe: dict[str, Any], folder: Path, reference: Path) -> None:
    (folder / "cache").mkdir()
    for name in ("check.yaml", "check.txt"):
        shutil.copy(CALIB / name, folder / "cache" / name)
    recipe["texts"]["check"] = "cache/check.yaml"


INPUTS: dict[str, Change] = {
    "the model is a quantization": _model,
    "a text is the report": _text_as("report.md"),
    "a text is the plot": _text_as("size-kld.png", "selection"),
    "a text is a record": _text_as("state/measure.json", "check"),
    "a text is in the cache": _text_as("cache/notes.txt", "held_out"),
    "a text leads to the report": _linked_text,
    "a donor is a hybrid": _donor,
    "a manifest is in the cache": _manifest,
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("go", [run_in, None], ids=["run", "dry run"])
def test_inputs_are_never_written_over(
    name: str, go: Callable[..., object] | None, shared: ShortRun, tmp_path: Path
) -> None:
    recipe = document() | {"work": "."}
    INPUTS[name](recipe, tmp_path, shared.root / "models" / "reference.gguf")
    path = write_recipe(tmp_path / "short.yaml", recipe)
    before = contents(tmp_path)
    with pytest.raises(RecipeError, match="names a file that the run itself writes"):
        go(tmp_path, path) if go else plan_recipe(load_recipe(path), device="cpu")
    assert contents(tmp_path) == before


def test_the_recipe_is_an_input(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "criterion.json", document() | {"work": "."})
    with pytest.raises(RecipeError, match="names a file that the run itself writes"):
        run_in(tmp_path, path)


def test_files_of_somebody_else_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("mine")
    path = write_recipe(tmp_path / "short.yaml", document() | {"work": "."})
    with pytest.raises(RecipeError, match="it has not made") as caught:
        run_in(tmp_path, path)
    assert caught.value.file == str(tmp_path / "report.md")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.md", "short.yaml"]
