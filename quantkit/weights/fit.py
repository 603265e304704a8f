"""Do a file's tensors and its own configuration fit: every shape, and nothing left over?"""

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


def refuse_unread(
    names: Iterable[str],
    groups: Iterable[Mapping[str, TensorHandle]],
    file: Path,
    configuration: str,
) -> None:
    """Raise ModelError if a tensor of `names` belongs to no role.

    The model would run without it and compute something else than its file was made for.
    """
    read = {
        entry.name
        for group in groups
        for handle in group.values()
        for entry in (*(piece.entry for piece in handle.pieces), *handle.companions)
    }
    unread = [name for name in names if name not in read]
    if unread:
        raise ModelError(
            "tensors that the model's configuration has no use for",
            file=file,
            tensor=unread[0],
            value=f"{len(unread)} of them",
            rule=f"every tensor of the text model belongs to what {configuration} describes",
            hint=f"{configuration} has fewer layers than the tensors, or leaves a part out; "
            "get both from one place",
        )


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
