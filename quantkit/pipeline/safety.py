"""What a run may write over: what it has written itself, never an input or a foreign file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from quantkit.containers.writing import overwritten
from quantkit.errors import RecipeError
from quantkit.pipeline.recipe import Recipe
from quantkit.pipeline.steps import Step
from quantkit.pipeline.workspace import Workspace

HINT = "give the recipe another `work` folder, or move the file"


def written_files(steps: Sequence[Step], space: Workspace) -> list[Path]:
    """Every file that the steps and their records are written to, whose name is known."""
    outputs = [path for step in steps for path in step.outputs]
    return [*outputs, *(space.record(step.name) for step in steps)]


def require_free_names(recipe: Recipe, steps: Sequence[Step], space: Workspace) -> None:
    """RecipeError if the run would write over a file that it reads, or that is not its own."""
    written = written_files(steps, space)
    made = set(written)
    inputs = [*recipe.given_files(), *(p for step in steps for p in step.inputs if p not in made)]
    found = overwritten(written, inputs)
    inside = _inside(inputs, space.private_folders)
    if found or inside:
        raise RecipeError(
            "the recipe names a file that the run itself writes",
            file=recipe.path,
            value=str(found[1] if found else inside),
            rule="inputs are never written over, and lie outside the run's state and cache",
            hint=HINT,
        )
    foreign = None if space.is_own else next((path for path in written if path.exists()), None)
    if foreign:
        raise RecipeError(
            "the run would write over a file that it has not made",
            file=foreign,
            rule=f"{space.root} has no state of an earlier run, so its files are somebody else's",
            hint=HINT,
        )


def _inside(paths: Iterable[Path], folders: Sequence[Path]) -> Path | None:
    resolved = [folder.resolve() for folder in folders]
    return next((p for p in paths if not set(p.resolve().parents).isdisjoint(resolved)), None)
