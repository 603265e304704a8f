"""Muon (Jordan et al. 2024): momentum, orthogonalised, for weight matrices.

torch's own takes single matrices; a model of hundreds of small experts needs the batched form,
where all matrices of one shape go through Newton-Schulz together.
"""

from __future__ import annotations

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly, to `matrices` (n, rows, columns)."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Updates have the root mean square of an AdamW step, so that one learning rate serves both."""

    def __init__(
        self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[Tensor]] = {}
            for p in group["params"]:
                by_shape.setdefault((p.shape[-2], p.shape[-1]), []).append(p)
            for shape, params in by_shape.items():
                self._update(params, shape, group)

    def _update(self, params: list[Tensor], shape: tuple[int, int], group: dict) -> None:
        directions = []
        for p in params:
            buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
            buffer.lerp_(p.grad, 1 - group["momentum"])
            directions.append(p.grad.lerp(buffer, group["momentum"]).reshape(-1, *shape))
        sizes = [d.shape[0] for d in directions]
        steps = orthogonalize(torch.cat(directions)) * (0.2 * max(shape) ** 0.5)
        for p, step in zip(params, steps.split(sizes), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(step.reshape(p.shape).to(p.dtype), alpha=-group["lr"])
