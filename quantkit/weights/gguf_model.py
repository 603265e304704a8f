"""Roles of a model in a GGUF, with llama.cpp's order of value heads undone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from quantkit.containers.base import TensorEntry
from quantkit.containers.gguf import GGUFFile, open_gguf
from quantkit.errors import ModelError
from quantkit.models.arch import layer_roles, model_roles
from quantkit.models.companions import companion_names
from quantkit.models.config import ModelConfig
from quantkit.models.gguf_config import config_from_gguf
from quantkit.models.roles import EXPERT_ROLES, Role
from quantkit.models.transforms import from_gguf_layout
from quantkit.weights.fit import check_shapes, refuse_unread
from quantkit.weights.handle import Piece, TensorHandle

Handles = Mapping[str, TensorHandle]


def open_gguf_model(path: Path) -> tuple[ModelConfig, Handles, tuple[Handles, ...]]:
    """Geometry and handles of the GGUF at `path`."""
    file = open_gguf(path)
    config = gguf_config(file)
    top = {role.name: _handle(file, role, None, config) for role in model_roles(config)}
    layers = tuple(
        {role.name: _handle(file, role, layer, config) for role in layer_roles(config, layer)}
        for layer in range(config.n_layers)
    )
    check_shapes(config, (top, *layers), file.path)
    _refuse_unread(file, config, (top, *layers))
    return config, top, layers


def gguf_config(file: GGUFFile) -> ModelConfig:
    """The geometry of an opened GGUF; ModelError with the file's name where it is not a model."""
    for needed, present in (
        ("general.architecture", file.metadata),
        ("token_embd.weight", file.tensors),
    ):
        if needed not in present:
            raise ModelError(
                "not a language model's GGUF",
                file=file.path,
                value=f"no {needed}",
                hint="give the file that holds the model itself (not a projector or an imatrix)",
            )
    shapes = {name: entry.shape for name, entry in file.tensors.items()}
    try:
        return config_from_gguf(file.metadata, shapes)
    except ModelError as error:
        error.file = str(file.path)
        raise


def _handle(file: GGUFFile, role: Role, layer: int | None, config: ModelConfig) -> TensorHandle:
    name = role.gguf_name(layer)
    entry = file.tensors.get(name)
    if entry is None:
        raise ModelError(
            "the model lacks a tensor",
            file=file.path,
            tensor=name,
            rule=f"architecture {config.arch} needs it",
            hint=_missing_hint(file.tensors, layer),
        )
    undo = partial(from_gguf_layout, layout=role.gguf_layout, config=config)
    scale, input_scale = (file.tensors.get(name) for name in companion_names(entry.name))
    if scale is not None:
        _check_scale(scale, role, config)
    unused = () if input_scale is None else (input_scale,)
    return TensorHandle(role.name, (Piece(entry),), effective=undo, scale=scale, unused=unused)


def _check_scale(scale: TensorEntry, role: Role, config: ModelConfig) -> None:
    counts = {1, config.moe.n_experts} if role.name in EXPERT_ROLES else {1}
    if scale.qtype.name != "F32" or scale.n_elements not in counts:
        raise ModelError(
            "a scale that does not fit its tensor",
            file=scale.path,
            tensor=scale.name,
            value=f"{scale.qtype.name} {list(scale.shape)}",
            rule=f"F32 with {' or '.join(map(str, sorted(counts)))} values",
            hint="the file is damaged or was pruned incompletely",
        )


def _refuse_unread(file: GGUFFile, config: ModelConfig, groups: Iterable[Handles]) -> None:
    """A tensor that nothing here reads would make the model another one than the file holds."""
    mtp = range(config.n_layers, config.n_layers + config.n_mtp_layers)
    refuse_unread(
        (name for name in file.tensors if not name.startswith(tuple(f"blk.{i}." for i in mtp))),
        groups,
        file.path,
        "the metadata",
    )


def _missing_hint(tensors: Mapping[str, TensorEntry], layer: int | None) -> str:
    if f"blk.{layer}.ffn_gate.0.weight" in tensors:
        return "experts are stored one by one, an old layout; convert the model again"
    if f"blk.{layer}.ffn_gate_up_exps.weight" in tensors:
        return "gate and up are fused in this file; write it with separate tensors"
    return "check that the download is complete and the file belongs to this model"
