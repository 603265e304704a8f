"""A recipe file, loaded: its fields, and the paths that they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import quantkit
from quantkit.artifacts.gate import ROLES
from quantkit.capture.texts import load_manifest, load_text
from quantkit.containers.inputs import input_files, is_checkpoint
from quantkit.errors import RecipeError
from quantkit.files import read_regular
from quantkit.gate.criterion import Criterion, criterion_from_bars
from quantkit.pipeline.schema import HINT, Quantization, RecipeFields, parse_recipe

EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(quantkit.__file__).parent / "data" / "embedded"
WORK_FOLDER = Path("runs")
MANIFEST_SUFFIX = ".yaml"


@dataclass(frozen=True)
class Recipe:
    """`path` is the file as it was named, `text` what stood in it."""

    path: Path
    text: str
    fields: RecipeFields

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self.fields.name

    @property
    def work(self) -> Path:
        """Where everything is written: `work`, or `runs/<name>` of the current folder."""
        given = self.fields.work
        return WORK_FOLDER / self.name if given is None else self._resolve(given)

    @property
    def model(self) -> Path:
        """The unquantized model: a checkpoint folder or a GGUF."""
        if self.fields.model == EMBEDDED:
            return EMBEDDED_FOLDER
        return self._resolve(self.fields.model)

    @property
    def model_is_checkpoint(self) -> bool:
        """Whether the model has to be converted to a GGUF first."""
        return is_checkpoint(self.model)

    @cached_property
    def criterion(self) -> Criterion:
        """The bars of the gate, defaults included."""
        return criterion_from_bars(self.fields.gate.bars)

    @cached_property
    def gate_texts(self) -> Mapping[str, Path]:
        """Role -> text, in the order of the gate."""
        return {role: self._text(getattr(self.fields.texts, role)) for role in ROLES}

    @cached_property
    def capture_text(self) -> Path:
        """The text that donors are measured on."""
        return self._text(self.fields.texts.capture)

    def given_files(self) -> Iterator[Path]:
        """Every file that the recipe names, and the recipe itself."""
        texts = self.fields.texts
        files = [self.file_of(q) for q in self.fields.quantizations]
        yield self.path
        for model in (self.model, *(file for file in files if file is not None)):
            yield from input_files(model)
        for given in (texts.selection, texts.check, texts.held_out, texts.capture):
            yield from (self._resolve(given), self._text(given))

    def file_of(self, quantization: Quantization) -> Path | None:
        """The existing file that a quantization names, if it names one."""
        return None if quantization.file is None else self._resolve(quantization.file)

    def _resolve(self, path: str) -> Path:
        return self.path.parent / path

    def _text(self, given: str) -> Path:
        """A text's path; where a manifest is named, the text must be the one it describes."""
        path = self._resolve(given)
        if path.suffix != MANIFEST_SUFFIX:
            return path
        load_text(path)
        return path.with_name(f"{load_manifest(path).name}.txt")


def load_recipe(path: Path) -> Recipe:
    """Read a recipe; RecipeError for a field that breaks the schema or a model that is not there.

    Whether texts and donors fit the model is found out when they are opened.
    """
    try:
        text = read_regular(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            "cannot read the recipe",
            file=path,
            value=str(error),
            rule="an existing YAML file in UTF-8",
            hint="check the path; the repository has recipes/tiny-hybrid.yaml",
        ) from error
    recipe = Recipe(path, text, parse_recipe(text, path))
    if not recipe.model.exists():
        raise RecipeError(
            "the recipe's model is not there",
            file=path,
            value=recipe.fields.model,
            rule=f"'{EMBEDDED}', or a checkpoint folder or GGUF relative to the recipe",
            hint=HINT,
        )
    return recipe
