"""Is a donor a quantization of the reference? Same geometry, and the same experts in order.

A donor whose experts were permuted (some tools reorder them by use) fits in shape, loads, and
computes garbage under the base's router; only the weights themselves show it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quantkit.containers.base import TensorEntry
from quantkit.errors import DonorError
from quantkit.models.config import ModelConfig
from quantkit.models.layers.moe import ExpertWeights
from quantkit.models.roles import EXPERT_ROLES
from quantkit.weights import ModelWeights

MIN_COSINE = 0.5
"""Any usable quantization is far above (1.1 bits per weight reach 0.8), any other matrix near 0."""


def check_geometry(name: str, donor: ModelWeights, reference: ModelWeights) -> None:
    """Raise DonorError unless the donor's geometry is the reference's."""
    ours, theirs = (_comparable(model.config) for model in (reference, donor))
    if ours == theirs:
        return
    differing = [
        field
        for field in ours.__dataclass_fields__
        if getattr(ours, field) != getattr(theirs, field)
    ]
    field = differing[0]
    raise DonorError(
        f"'{name}' is not the same model as the reference",
        file=donor.path,
        value=f"{field}: {getattr(theirs, field)}",
        rule=f"{field}: {getattr(ours, field)}",
        hint="use quantizations of one and the same model",
    )


def _comparable(config: ModelConfig) -> ModelConfig:
    # What a file may leave out, or a publisher may change, without touching the experts.
    return replace(config, context_length=0, tied_head=False, n_mtp_layers=0)


def identity_cosines(
    name: str,
    layer: int,
    donor: ModelWeights,
    reference: Sequence[ExpertWeights],
    theirs: Sequence[ExpertWeights],
) -> dict[str, float]:
    """Lowest cosine over the experts of a layer, per expert role; DonorError below MIN_COSINE.

    `reference` and `theirs` are the decoded experts of the layer, `donor` is where theirs are from.
    """
    lowest = {}
    for place, role in enumerate(EXPERT_ROLES):
        ours = [weights[place] for weights in reference]
        found = [weights[place] for weights in theirs]
        cosines = [_cosine(a, b) for a, b in zip(found, ours, strict=True)]
        worst = min(range(len(cosines)), key=cosines.__getitem__)
        lowest[role] = cosines[worst]
        if cosines[worst] < MIN_COSINE:
            tensor = donor.layers[layer][role].pieces[0].entry
            raise _stranger(name, tensor, worst, [_cosine(found[worst], b) for b in ours])
    return lowest


def _cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of two matrices as vectors; two zero matrices are alike, a NaN is like nothing."""
    a, b = a.flatten().double(), b.flatten().double()
    norms = a.norm() * b.norm()
    if norms == 0:
        return 1.0 if bool((a == b).all()) else 0.0
    found = float(torch.dot(a, b) / norms)
    return found if math.isfinite(found) else -1.0


def _stranger(name: str, tensor: TensorEntry, expert: int, cosines: Sequence[float]) -> DonorError:
    """`cosines` are those of the donor's expert with every expert of the reference."""
    best = max(range(len(cosines)), key=cosines.__getitem__)
    permuted = cosines[best] >= MIN_COSINE
    return DonorError(
        f"'{name}' has permuted experts" if permuted else f"'{name}' has other experts",
        file=tensor.path,
        tensor=tensor.name,
        value=f"expert {expert} has cosine {cosines[expert]:.3f} with the reference's"
        + (f", but {cosines[best]:.3f} with its expert {best}" if permuted else ""),
        rule=f"every expert's cosine with the reference is at least {MIN_COSINE}",
        hint="a file whose experts were reordered fits no other router; get the original order"
        if permuted
        else "this file was made from another model or another revision of it, or is damaged",
    )
