"""Roles of a model in a transformers checkpoint: fused or single experts, sharded tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.containers.base import TensorEntry
from quantkit.containers.safetensors import SafetensorsModel, open_safetensors
from quantkit.errors import ModelError
from quantkit.files import read_regular
from quantkit.models.arch import layer_roles, model_roles
from quantkit.models.config import ModelConfig, NgramConfig
from quantkit.models.fields import shown
from quantkit.models.hf_config import config_from_hf
from quantkit.models.roles import Role
from quantkit.models.transforms import HF_FORMS, HF_PARTS
from quantkit.weights.fit import check_shapes, refuse_unread
from quantkit.weights.handle import Piece, TensorHandle

Handles = Mapping[str, TensorHandle]
PREFIXES = ("model.language_model.", "model.", "")
"""Where the text model sits: multimodal checkpoints, language models, bare trunks."""
OTHER_PARTS = ("mtp.", "visual.", "vision_tower.", "multi_modal_projector.", "lm_head.")
"""What may stand under the prefix without being of the trunk."""
BUFFERS = ("rotary_emb.inv_freq",)
"""Old checkpoints store what follows from the configuration."""
CONSTANTS = {
    "multipliers": "layer_multipliers",
    "head_offsets": "ngram_heads_offsets",
    "head_vocab_sizes": "ngram_heads_vocab_sizes",
}
"""Field of `NgramConfig` -> tensor of integers beside the n-gram table."""


def open_checkpoint(folder: Path) -> tuple[ModelConfig, Handles, tuple[Handles, ...]]:
    """Geometry and handles of the checkpoint in `folder`."""
    file = open_safetensors(folder)
    config = checkpoint_config(folder)
    prefix = _prefix(file, folder)
    if config.ngram:
        base = _ngram_base(prefix, config.ngram)
        config = replace(config, ngram=_stored_constants(file, base, config.ngram))
    lookup = _Lookup(file, folder, prefix, config)
    top = {role.name: lookup.handle(role, "") for role in model_roles(config)}
    layers = tuple(
        {role.name: lookup.handle(role, f"layers.{i}.") for role in layer_roles(config, i)}
        for i in range(config.n_layers)
    )
    check_shapes(config, (top, *layers), folder)
    refuse_unread(_text_tensors(file, prefix, config), (top, *layers), folder, "config.json")
    return config, top, layers


def checkpoint_config(folder: Path) -> ModelConfig:
    """The geometry that config.json gives; ModelError with the file's name where it is none."""
    path = folder / "config.json"
    found = read_json(path)
    try:
        return config_from_hf(found)
    except ModelError as error:
        error.file = str(path)
        raise


def read_text(path: Path) -> str:
    """A text file of a checkpoint folder; ModelError if it cannot be read or is no UTF-8."""
    try:
        return read_regular(path).decode("utf-8")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint folder; ModelError if it is none."""
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(found, dict):
        raise ModelError("not a JSON object", file=path, value=type(found).__name__)
    return found


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(
        "cannot read a file of the checkpoint",
        file=path,
        value=str(error),
        hint="check that the download is complete",
    )


def _prefix(file: SafetensorsModel, folder: Path) -> str:
    for prefix in PREFIXES:
        if f"{prefix}embed_tokens.weight" in file.tensors:
            return prefix
    raise ModelError(
        "no token embedding in the checkpoint",
        file=folder,
        rule="one of " + ", ".join(f"{p}embed_tokens.weight" for p in PREFIXES),
        hint="check that all shards are there",
    )


def _ngram_base(prefix: str, ngram: NgramConfig) -> str:
    return f"{prefix}layers.{ngram.layer}.ple.ple_embedding."


def _text_tensors(file: SafetensorsModel, prefix: str, config: ModelConfig) -> Iterator[str]:
    """Names of the text model's tensors, but for constants that the geometry holds already."""
    known: set[str] = set()
    if config.ngram:
        known = {_ngram_base(prefix, config.ngram) + name for name in CONSTANTS.values()}
    for name in file.tensors:
        own = name.removeprefix(prefix)
        is_text = name.startswith(prefix) and not own.startswith(OTHER_PARTS)
        if is_text and name not in known and not name.endswith(BUFFERS):
            yield name


def _stored_constants(file: SafetensorsModel, base: str, derived: NgramConfig) -> NgramConfig:
    """The hash constants as the checkpoint stores them: they, not the formula, made the table."""

    def read(field: str) -> tuple[int, ...]:
        formula: tuple[int, ...] = getattr(derived, field)
        entry = file.tensors.get(base + CONSTANTS[field])
        return formula if entry is None else _constant(entry, len(formula))

    return replace(
        derived,
        multipliers=read("multipliers"),
        head_offsets=read("head_offsets"),
        head_vocab_sizes=read("head_vocab_sizes"),
    )


def _constant(entry: TensorEntry, count: int) -> tuple[int, ...]:
    usable = entry.qtype.name == "I64" and entry.n_elements == count
    values = entry.parts()["data"].view(np.int64).tolist() if usable else []
    # Offsets start at 0; a product with a negative number would address no row.
    if not usable or min(values, default=0) < 0:
        raise ModelError(
            "constants of the n-gram hash that are none",
            file=entry.path,
            tensor=entry.name,
            value=shown(values) if usable else f"{entry.qtype.name} {list(entry.shape)}",
            rule=f"{count} integers (I64), none below 0",
            hint="the file is damaged, or config.json belongs to another checkpoint",
        )
    return tuple(values)


class _Lookup:
    """Finds the stored tensors of a role."""

    def __init__(
        self, file: SafetensorsModel, folder: Path, prefix: str, config: ModelConfig
    ) -> None:
        self.file, self.folder, self.prefix, self.config = file, folder, prefix, config

    def handle(self, role: Role, layer_prefix: str) -> TensorHandle:
        name = self._name(role, layer_prefix)
        form = HF_FORMS[role.hf_form]
        if name in self.file.tensors:
            entry = self.file.tensors[name]
            return TensorHandle(role.name, (self._piece(entry, role),), effective=form)
        if role.name == "ngram_table":
            return TensorHandle(role.name, self._table_shards(name))
        if role.hf_single:
            return self._single_experts(role, self.prefix + layer_prefix + role.hf_single)
        raise self._missing(name)

    def _name(self, role: Role, layer_prefix: str) -> str:
        if role.name == "output":
            return role.hf
        if role.name == "ngram_table":
            assert self.config.ngram is not None
            return self.prefix + role.hf.format(ngram_layer=self.config.ngram.layer)
        return self.prefix + layer_prefix + role.hf

    def _piece(self, entry: TensorEntry, role: Role) -> Piece:
        if role.hf_part == "all" or len(entry.shape) < 2:
            return Piece(entry)
        part = HF_PARTS[role.hf_part](self.config)
        return Piece(entry, range(*part.indices(entry.shape[-2])))

    def _single_experts(self, role: Role, pattern: str) -> TensorHandle:
        """All experts that are there, at least as many as the configuration has."""
        n_wanted, stored = self.config.moe.n_experts, self.file.tensors
        names = (pattern.format(expert=number) for number in count())
        found = takewhile(lambda item: item[0] < n_wanted or item[1] in stored, enumerate(names))
        pieces = tuple(Piece(self._entry(name)) for _, name in found)
        return TensorHandle(role.name, pieces, stacked=True)

    def _table_shards(self, name: str) -> tuple[Piece, ...]:
        pattern = re.compile(re.escape(name.removesuffix("weight")) + r"shard_(\d+)\.weight")
        found = {
            int(match.group(1)): entry
            for stored, entry in self.file.tensors.items()
            if (match := pattern.fullmatch(stored))
        }
        if not found:
            raise self._missing(name)
        missing = set(range(max(found) + 1)) - set(found)
        if missing:
            raise self._missing(name.replace("weight", f"shard_{min(missing)}.weight"))
        return tuple(Piece(found[number]) for number in sorted(found))

    def _entry(self, name: str) -> TensorEntry:
        if name not in self.file.tensors:
            raise self._missing(name)
        return self.file.tensors[name]

    def _missing(self, name: str) -> ModelError:
        return ModelError(
            "the checkpoint lacks a tensor",
            file=self.folder,
            tensor=name,
            rule=f"architecture {self.config.arch} needs it",
            hint="check that all shards are there and config.json belongs to this checkpoint",
        )
