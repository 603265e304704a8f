"""Do a file's tensors have the shapes that its own configuration asks for?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from quantkit.errors import ModelError
from quantkit.models.config import ModelConfig
from quantkit.models.roles import EXPERT_ROLES
from quantkit.models.shapes import fits, role_shapes
from quantkit.weights.handle import TensorHandle


def check_shapes(
    config: ModelConfig, groups: Iterable[Mapping[str, TensorHandle]], file: Path
) -> None:
    """Raise ModelError for the first tensor whose shape is not that of its role."""
    wanted = role_shapes(config)
    for group in groups:
        for role, handle in group.items():
            if not fits(role, handle.shape, wanted[role]):
                raise _misfit(config, handle, wanted[role], file)


def _misfit(
    config: ModelConfig, handle: TensorHandle, wanted: tuple[int, ...], file: Path
) -> ModelError:
    other_count = handle.role in EXPERT_ROLES and handle.shape[0] != wanted[0]
    what = "another number of experts" if other_count else "another shape"
    return ModelError(
        f"a tensor with {what} than the model's configuration gives",
        file=file,
        tensor=handle.pieces[0].entry.name,
        value=list(handle.shape),
        rule=f"{list(wanted)} for {handle.role} of {config.arch}",
        hint="the file was pruned or edited incompletely"
        if other_count
        else "tensors and configuration are of different models; get both from one place",
    )
