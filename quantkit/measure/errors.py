"""The relative output error of each donor at a layer's MoE block, for both units and together.

    err = sum_t |y_Q(t) - y_ref(t)|^2 / sum_t |y_ref(t)|^2

over captured tokens t, with y the block's output (routed and shared experts), the reference's
input and the reference's routing, and only the unit's tensors taken from the donor (FLE report,
section 3). The routing is the reference's because a hybrid keeps the base's router.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, LAYER, UnitError
from quantkit.errors import ModelError
from quantkit.measure.donor import identity_cosines
from quantkit.models.layers.moe import ExpertWeights, Route
from quantkit.weights import ModelWeights

BLOCK_TOKENS = 256
"""Tokens whose errors are summed before the standard error is taken: neighbours are alike."""

UNITS = (LAYER, GATE_UP, DOWN)
COSINE_ROLES = {
    LAYER: ("experts_gate", "experts_up", "experts_down"),
    GATE_UP: ("experts_gate", "experts_up"),
    DOWN: ("experts_down",),
}


def ratio_with_error(numerator: Tensor, denominator: Tensor) -> tuple[float, float]:
    """Ratio of the sums over blocks, and its standard error (linearised ratio estimator)."""
    total = denominator.sum()
    if total == 0:
        return 0.0, 0.0
    ratio = numerator.sum() / total
    n = len(numerator)
    residual = (numerator - ratio * denominator).square().sum()
    error = (residual * n / max(1, n - 1)).sqrt() / total
    return float(ratio), float(error)


def _block_sums(per_token: Tensor) -> Tensor:
    pad = -len(per_token) % BLOCK_TOKENS
    return F.pad(per_token.double(), (0, pad)).view(-1, BLOCK_TOKENS).sum(-1)


def unit_differences(
    x: Tensor, chosen: Route, reference: list[ExpertWeights], donor: list[ExpertWeights]
) -> dict[str, Tensor]:
    """Squared change (N) of the block's output when a unit of every expert is the donor's."""
    changes = {unit: torch.zeros_like(x) for unit in UNITS}
    flat = chosen.experts.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=len(reference)).tolist()
    for ours, theirs, slots in zip(reference, donor, order.split(counts), strict=True):
        if not len(slots):
            continue
        tokens = slots // chosen.experts.shape[1]
        weights = chosen.weights.flatten()[slots, None]
        inner, inner_q = (
            F.silu(F.linear(x[tokens], w.gate)) * F.linear(x[tokens], w.up) for w in (ours, theirs)
        )
        y = F.linear(inner, ours.down)
        swapped = {
            LAYER: F.linear(inner_q, theirs.down),
            GATE_UP: F.linear(inner_q, ours.down),
            DOWN: F.linear(inner, theirs.down),
        }
        for unit, y_q in swapped.items():
            changes[unit].index_add_(0, tokens, (y_q - y) * weights)
    return {unit: change.square().sum(-1) for unit, change in changes.items()}


@dataclass
class DonorErrors:
    """Observer of a sweep over the reference: measures every source at every layer it passes."""

    reference: ModelWeights
    sources: dict[str, ModelWeights]
    device: torch.device

    def __post_init__(self) -> None:
        self.found: dict[str, dict[int, dict[str, UnitError]]] = {n: {} for n in self.sources}

    def moe(self, layer: int, x: Tensor, chosen: Route, output: Tensor) -> None:
        """Measure all sources on this layer's captured input."""
        ours = self._experts(self.reference, layer)
        self._require_numbers(layer, [output, *(matrix for expert in ours for matrix in expert)])
        denominator = _block_sums(output.square().sum(-1))
        for name, source in self.sources.items():
            theirs = self._experts(source, layer)
            cosines = identity_cosines(name, layer, source, ours, theirs)
            changes = unit_differences(x, chosen, ours, theirs)
            self.found[name][layer] = {
                unit: self._unit_error(unit, changes[unit], denominator, len(x), cosines)
                for unit in UNITS
            }

    def _require_numbers(self, layer: int, found: Sequence[Tensor]) -> None:
        """Otherwise the donors would be blamed for what the reference computes."""
        if not all(bool(torch.isfinite(values).all()) for values in found):
            raise ModelError(
                "the reference does not compute numbers",
                file=self.reference.path,
                value=f"NaN or infinity in the experts or their output, layer {layer}",
                rule="weights and outputs of the unquantized model are finite",
                hint="the model is damaged, or its arithmetic overflows on this device",
            )

    def _experts(self, model: ModelWeights, layer: int) -> list[ExpertWeights]:
        view = model.layer(layer, self.device)
        return [view.expert(e) for e in range(model.config.moe.n_experts)]

    @staticmethod
    def _unit_error(
        unit: str,
        change: Tensor,
        denominator: Tensor,
        n_tokens: int,
        cosines: dict[str, float],
    ) -> UnitError:
        ratio, standard_error = ratio_with_error(_block_sums(change), denominator)
        return UnitError(
            relative_error=ratio,
            standard_error=standard_error,
            n_tokens=n_tokens,
            n_blocks=len(denominator),
            identity_cosine=max(-1.0, min(1.0, min(cosines[r] for r in COSINE_ROLES[unit]))),
        )
