"""Recipes that break the schema: each names the field, the value and the rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import RecipeError, TextError
from quantkit.gate.criterion import Criterion
from quantkit.pipeline import load_recipe
from quantkit.pipeline.schema import parse_recipe
from tests.pipeline.short import document, write_recipe

RECIPES = Path(__file__).parents[2] / "recipes"

Change = Callable[[dict[str, Any]], object]

BROKEN: dict[str, tuple[Change, str]] = {
    "unknown field": (lambda r: r.update(modle="x"), "modle"),
    "unknown field below": (lambda r: r["gate"].update(ctx=1), "gate.ctx"),
    "missing field": (lambda r: r.pop("base"), "base"),
    "missing field below": (lambda r: r["texts"].pop("check"), "texts.check"),
    "missing text role": (lambda r: r["texts"].pop("held_out"), "texts.held_out"),
    "number as text": (lambda r: r["hybrids"][0].update(target_gb="1"), "hybrids[0].target_gb"),
    "size of nothing": (lambda r: r["hybrids"][0].update(target_gb=0), "hybrids[0].target_gb"),
    "two goals": (lambda r: r["hybrids"][0].update(max_error=1.0), "hybrids[0].target_gb"),
    "no goal": (lambda r: r["hybrids"][1].pop("max_error"), "hybrids[1].target_gb"),
    "expectation": (lambda r: r["hybrids"][0].update(expect="maybe"), "hybrids[0].expect"),
    "path as name": (lambda r: r["hybrids"][0].update(name="../x"), "hybrids[0].name"),
    "hidden name": (lambda r: r.update(name=".x"), "name"),
    "reserved name": (lambda r: r["hybrids"][0].update(name="reference"), "hybrids[0].name"),
    "name given twice": (lambda r: r["hybrids"][0].update(name="Q4_0"), "name"),
    "no hybrid": (lambda r: r.update(hybrids=[]), "hybrids"),
    "no donor": (lambda r: r.update(quantizations=r["quantizations"][:1]), "quantizations"),
    "unknown base": (lambda r: r.update(base="q9"), "base"),
    "unknown baseline": (lambda r: r["gate"].update(baseline="q9"), "gate.baseline"),
    "rules and file": (lambda r: r["quantizations"][0].update(file="x"), "quantizations[0].rules"),
    "neither": (lambda r: r["quantizations"][0].pop("rules"), "quantizations[0].rules"),
    "unknown type": (
        lambda r: r["quantizations"][1].update(rules=[".*=Q8_0", ".*=Q9_9"]),
        "quantizations[1].rules[1]",
    ),
    "broken pattern": (
        lambda r: r["quantizations"][0].update(rules=["(=Q8_0"]),
        "quantizations[0].rules[0]",
    ),
    "too few tokens": (lambda r: r.update(measure={"tokens": 4095}), "measure.tokens"),
    "unit": (lambda r: r.update(select={"unit": "expert"}), "select.unit"),
    "one chunk": (lambda r: r["gate"].update(max_chunks=1), "gate.max_chunks"),
    "unknown bar": (lambda r: r["gate"]["bars"].update(kld=1), "gate.bars"),
    "bar's value": (lambda r: r["gate"]["bars"].update(min_chunks="4"), "gate.bars"),
    "list for a mapping": (lambda r: r.update(gate=[1]), "gate"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_recipe_is_refused_with_its_field(name: str, tmp_path: Path) -> None:
    change, field = BROKEN[name]
    recipe = document()
    change(recipe)
    path = write_recipe(tmp_path / "broken.yaml", recipe)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert f"field '{field}" in caught.value.what
    assert caught.value.file == str(path)
    assert caught.value.rule or "missing" in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1\na: 2\n", "'a' appears twice"),
        ("1: 2\n", "'1' is not a text"),
        ("a: [1\n", "expected"),
        ("- 1\n", "list"),
        ("schema: quantkit.recipe/2\n", "quantkit.recipe/2"),
        ("a: !!python/object/apply:os.getcwd []\n", "python/object"),
        ("", "NoneType"),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert part in str(caught.value)


def test_a_recipe_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(tmp_path / "binary.yaml")


def test_the_recipes_of_the_repository_follow_the_schema() -> None:
    for path in RECIPES.glob("*.yaml"):
        recipe = load_recipe(path)
        assert recipe.name == path.stem
        assert all(text.is_file() for text in recipe.gate_texts.values())
        # What a recipe does not say it leaves to defaults that may change: so it says all bars.
        assert recipe.fields.gate.bars == recipe.criterion.bars()
    blocks = re.findall(r"```yaml\n(.*?)```", (RECIPES / "README.md").read_text(), re.DOTALL)
    assert [parse_recipe(block, RECIPES / "README.md").base for block in blocks] == ["ud-iq4_xs"]


def test_defaults_are_those_of_the_stages(tmp_path: Path) -> None:
    recipe = document()
    recipe["gate"] = {"baseline": "q4_0"}
    del recipe["select"]
    loaded = load_recipe(write_recipe(tmp_path / "r.yaml", recipe))
    assert loaded.criterion == Criterion()
    assert loaded.fields.select.unit == "split"
    assert (loaded.fields.measure.context, loaded.fields.measure.tokens) == (512, 4096)
    assert loaded.fields.gate.max_chunks is None
    assert loaded.work == Path("runs/short")


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    recipe = document()
    recipe |= {"model": "model", "work": "out"}
    recipe["quantizations"][1] = {"name": "given", "file": "donors/given.gguf"}
    (tmp_path / "model").mkdir()
    loaded = load_recipe(write_recipe(tmp_path / "r.yaml", recipe))
    assert loaded.model == tmp_path / "model"
    assert loaded.work == tmp_path / "out"
    given = loaded.file_of(loaded.fields.quantizations[1])
    assert given == tmp_path / "donors" / "given.gguf"


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "r.yaml", document() | {"model": "nowhere"})
    with pytest.raises(RecipeError, match="model is not there"):
        load_recipe(path)


def test_a_text_that_differs_from_its_manifest_is_refused(tmp_path: Path) -> None:
    manifest = Path(document()["texts"]["check"])
    (tmp_path / "check.yaml").write_bytes(manifest.read_bytes())
    (tmp_path / "check.txt").write_text("another text")
    recipe = document()
    recipe["texts"]["check"] = "check.yaml"
    loaded = load_recipe(write_recipe(tmp_path / "r.yaml", recipe))
    with pytest.raises(TextError, match="differs from its manifest"):
        _ = loaded.gate_texts
