"""Importance: the mean square of what each input channel of every matrix sees (imatrix).

The layers multiply by a role's effective weight with `F.linear`. While the sweep runs, every
weight that it asks a layer for is remembered by its address, and each such product adds the
squares of its input to the role's sums, for a routed expert to that expert's. A product with a
weight of any role is thereby seen, whatever block it stands in.

Channels are in the order of the GGUF, where llama.cpp permutes value heads. gate and up of an
expert see the same input and both have an entry, as in llama-imatrix's files.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from quantkit.containers.imatrix import Entry
from quantkit.errors import ModelError
from quantkit.models.arch import layer_roles, model_roles
from quantkit.models.config import ModelConfig
from quantkit.models.layers.moe import ExpertWeights
from quantkit.models.roles import EXPERT_ROLES, Role
from quantkit.models.transforms import GGUF_LAYOUTS, to_gguf_layout
from quantkit.weights import LayerView, ModelWeights

NOT_MULTIPLIED = {"token_embd", "ngram_table", "gdn_conv", "ngram_conv"}
"""Roles of two dimensions that are looked up or convolved with."""
TWINS = {"indexer_q": "attn_q", "indexer_k": "attn_q"}
"""Role -> the role whose input it shares: the indexer runs only beyond its budget."""

Remember = Callable[[str, int, Tensor], None]


@dataclass
class Sums:
    """Sums of squares (n, channels) in float64 and tokens (n) of one role; n experts, or 1."""

    squares: Tensor
    counts: np.ndarray

    @classmethod
    def empty(cls, n: int, channels: int, device: torch.device) -> Sums:
        squares = torch.zeros(n, channels, dtype=torch.float64, device=device)
        return cls(squares, np.zeros(n, np.int64))

    def add(self, expert: int, x: Tensor) -> None:
        """Add inputs (..., channels)."""
        flat = x.reshape(-1, x.shape[-1])
        self.squares[expert] += flat.square().sum(0, dtype=torch.float64)
        self.counts[expert] += len(flat)


class Products(TorchFunctionMode):
    """Sums the squares of what is multiplied with remembered weights while it is entered."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.sums: dict[str, Sums] = {}
        self._n_experts = config.moe.n_experts
        self._known: dict[int, tuple[weakref.ref[Tensor], str, int]] = {}

    def remember(self, role: str, expert: int, weight: Tensor) -> None:
        """Products with `weight` belong to this role (and this of its experts)."""
        self._known[weight.data_ptr()] = (weakref.ref(weight), role, expert)

    def take(self) -> dict[str, Sums]:
        """What was summed since the last call; forgets all weights."""
        taken, self.sums, self._known = self.sums, {}, {}
        return taken

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear:
            self._see(*args[:2])
        return func(*args, **(kwargs or {}))

    def _see(self, x: Tensor, weight: Tensor) -> None:
        known = self._known.get(weight.data_ptr())
        # A weight that is gone may have left its address to another tensor.
        if known is None or known[0]() is None:
            return
        _, role, expert = known
        if role not in self.sums:
            n = self._n_experts if role in EXPERT_ROLES else 1
            self.sums[role] = Sums.empty(n, x.shape[-1], x.device)
        self.sums[role].add(expert, x)


class _Watched:
    """A layer's weights; each one that is asked for is remembered."""

    def __init__(self, weights: LayerView, remember: Remember, head: Tensor | None = None) -> None:
        self._weights = weights
        self._remember = remember
        self._head = head

    def __getitem__(self, role: str) -> Tensor:
        is_head = role == "output" and self._head is not None
        weight = cast(Tensor, self._head) if is_head else self._weights[role]
        self._remember(role, 0, weight)
        return weight

    def expert(self, number: int) -> ExpertWeights:
        found = self._weights.expert(number)
        for role, weight in zip(EXPERT_ROLES, found, strict=True):
            self._remember(role, number, weight)
        return found

    def ngram_rows(self, rows: Tensor) -> Tensor:
        return self._weights.ngram_rows(rows)


@dataclass(frozen=True)
class WatchedModel(ModelWeights):
    """A model whose products go to `products`; after a sweep `entries` holds all of them."""

    products: Products = field(kw_only=True)
    entries: dict[str, Entry] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of(cls, model: ModelWeights) -> WatchedModel:
        """The same model, watched."""
        products = Products(model.config)
        return cls(model.path, model.config, model.top, model.layers, products=products)

    def layer(self, number: int, device: torch.device) -> LayerView:
        self.finish(number - 1)
        watched = _Watched(super().layer(number, device), self.products.remember)
        return cast(LayerView, watched)

    def top_view(self, device: torch.device) -> LayerView:
        self.finish(self.config.n_layers - 1)
        # Only the head's input is wanted; one row of zeros spares decoding and multiplying it.
        head = torch.zeros(1, self.config.hidden, device=device)
        watched = _Watched(super().top_view(device), self.products.remember, head)
        return cast(LayerView, watched)

    def finish(self, layer: int | None) -> None:
        """Turn the sums of a layer (None: of what follows the layers) into entries."""
        sums = self.products.take()
        if layer is not None and layer < 0:
            return
        roles = model_roles(self.config) if layer is None else layer_roles(self.config, layer)
        handles = self.top if layer is None else self.layers[layer]
        for role in roles:
            shape = [n for n in handles[role.name].shape if n != 1]
            found = sums.get(role.name, sums.get(TWINS.get(role.name, "")))
            if role.name == "token_embd" and layer is None and self.config.tied_head:
                found = sums.get("output")
            elif role.name in NOT_MULTIPLIED:
                continue
            if found is not None:
                self.entries[role.gguf_name(layer)] = self._entry(role, layer, found)
            else:
                assert len(shape) < 2, f"no product with {role.name} was seen"

    def _entry(self, role: Role, layer: int | None, found: Sums) -> Entry:
        squares = found.squares
        if not bool(torch.isfinite(squares).all()):
            raise ModelError(
                "activations that are not finite",
                file=self.path,
                tensor=role.gguf_name(layer),
                value="NaN or infinity in its input",
                rule="finite activations",
                hint="the weights are damaged, or the model needs a wider type than float32",
            )
        placed = GGUF_LAYOUTS[role.gguf_layout]
        if placed is not None and placed[0] == 1:
            squares = to_gguf_layout(squares.cpu(), role.gguf_layout, self.config)
        return Entry(squares.float().cpu().numpy(), found.counts)
