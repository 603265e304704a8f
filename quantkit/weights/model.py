"""Open a model by path: the geometry, and every tensor by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quantkit.models.config import ModelConfig
from quantkit.models.layers.moe import ExpertWeights
from quantkit.weights.checkpoint import open_checkpoint
from quantkit.weights.gguf_model import open_gguf_model
from quantkit.weights.handle import TensorHandle


@dataclass(frozen=True)
class ModelWeights:
    """A model: geometry and handles. `layers[i]` holds the roles of layer i."""

    path: Path
    config: ModelConfig
    top: Mapping[str, TensorHandle]
    layers: tuple[Mapping[str, TensorHandle], ...]

    def layer(self, number: int, device: torch.device) -> LayerView:
        """The weights of one layer, decoded as they are asked for."""
        return LayerView(self.layers[number], self.top.get("ngram_table"), device)

    def top_view(self, device: torch.device) -> LayerView:
        """The weights outside the layers; the head is the embedding where they are tied."""
        handles = dict(self.top)
        handles.setdefault("output", handles["token_embd"])
        return LayerView(handles, None, device)

    def embedding_rows(self, tokens: Tensor) -> Tensor:
        """Embeddings (..., H) of `tokens`; only their rows are decoded."""
        rows = self.top["token_embd"].rows(tokens.flatten())
        return rows.view(*tokens.shape, -1)


class LayerView:
    """Effective float32 values by role on one device; dense roles stay decoded, experts do not.

    The largest thing that lives is a layer's dense part and one expert, whatever the model's size.
    """

    def __init__(
        self,
        handles: Mapping[str, TensorHandle],
        table: TensorHandle | None,
        device: torch.device,
    ) -> None:
        self._handles = handles
        self._table = table
        self._device = device
        self._decoded: dict[str, Tensor] = {}

    def __getitem__(self, role: str) -> Tensor:
        if role not in self._decoded:
            self._decoded[role] = self._handles[role].value().to(self._device)
        return self._decoded[role]

    def expert(self, number: int) -> ExpertWeights:
        """One routed expert."""
        names = ("experts_gate", "experts_up", "experts_down")
        return ExpertWeights(
            *(self._handles[name].expert(number).to(self._device) for name in names)
        )

    def ngram_rows(self, rows: Tensor) -> Tensor:
        """Rows (..., row_dim) of the n-gram table."""
        assert self._table is not None
        return self._table.rows(rows.flatten()).to(self._device).view(*rows.shape, -1)


def open_model(path: Path) -> ModelWeights:
    """Open a GGUF (any shard, or a folder of shards) or a transformers checkpoint folder.

    Raises ContainerError for a damaged file, ModelError for an unknown or incomplete model.
    """
    if (path / "config.json").is_file():
        config, top, layers = open_checkpoint(path)
    else:
        config, top, layers = open_gguf_model(path)
    return ModelWeights(path, config, top, layers)
