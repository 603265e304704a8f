"""The relative output error against a direct computation in float64, and its standard error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, LAYER
from quantkit.measure.errors import (
    BLOCK_TOKENS,
    DonorErrors,
    ratio_with_error,
    unit_differences,
)
from quantkit.models.layers.moe import ExpertWeights, Route
from quantkit.runtime import sweep
from quantkit.weights import ModelWeights, open_model
from tests.tiny import CPU, Zoo, sample_tokens

EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"


class Capture:
    """Every layer's MoE input, routing and output."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Route, Tensor]] = []

    def moe(self, layer: int, x: Tensor, chosen: Route, output: Tensor) -> None:
        self.layers.append((x.double(), chosen, output.double()))


def weights_of(model: ModelWeights, layer: int) -> dict[str, Tensor]:
    return {role: handle.value().double() for role, handle in model.layers[layer].items()}


def block_output(x: Tensor, chosen: Route, w: dict[str, Tensor]) -> Tensor:
    """The MoE block's output in float64, token by token and expert by expert."""
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for slot, expert in enumerate(chosen.experts[token].tolist()):
            gate, up, down = (w[f"experts_{part}"][expert] for part in ("gate", "up", "down"))
            inner = F.silu(gate @ x[token]) * (up @ x[token])
            out[token] += float(chosen.weights[token, slot]) * (down @ inner)
    if "shared_up" in w:
        inner = F.silu(x @ w["shared_gate"].T) * (x @ w["shared_up"].T)
        shared = inner @ w["shared_down"].T
        out += torch.sigmoid(x @ w["shared_gate_row"].reshape(-1, 1)) * shared
    return out


UNIT_ROLES = {
    LAYER: ("experts_gate", "experts_up", "experts_down"),
    GATE_UP: ("experts_gate", "experts_up"),
    DOWN: ("experts_down",),
}


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen4exp"])
def test_errors_are_those_of_a_direct_computation(arch: str, zoo: Zoo) -> None:
    """Also cuts the units apart: only their own tensors come from the donor."""
    reference = open_model(zoo.gguf(arch))
    donor = open_model(zoo.quantized(arch, f"{EXPERTS}=Q2_0"))
    capture, observer = Capture(), DonorErrors(reference, {"donor": donor}, CPU)
    batches = [sample_tokens(2, 47), sample_tokens(1, 30, seed=5)]
    sweep(reference, batches, device=CPU, observers=[capture, observer])
    for layer, (x, chosen, output) in enumerate(capture.layers):
        ours, theirs = weights_of(reference, layer), weights_of(donor, layer)
        y = block_output(x, chosen, ours)
        assert float((y - output).norm() / y.norm()) < 1e-5, "the captured output is the block's"
        for unit, roles in UNIT_ROLES.items():
            swapped = ours | {role: theirs[role] for role in roles}
            wanted = (block_output(x, chosen, swapped) - y).square().sum() / y.square().sum()
            found = observer.found["donor"][layer][unit]
            assert found.relative_error == pytest.approx(float(wanted), rel=1e-4)
            assert found.n_tokens == len(x) == 124


def test_cosines_are_the_lowest_of_the_unit(zoo: Zoo) -> None:
    reference = open_model(zoo.gguf("qwen3moe"))
    donor = open_model(zoo.quantized("qwen3moe", f"{EXPERTS}=Q2_0"))
    observer = DonorErrors(reference, {"donor": donor}, CPU)
    sweep(reference, [sample_tokens(1, 20)], device=CPU, observers=[observer])
    ours, theirs = weights_of(reference, 1), weights_of(donor, 1)
    for unit, roles in UNIT_ROLES.items():
        wanted = min(
            float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))
            for role in roles
            for a, b in zip(ours[role], theirs[role], strict=True)
        )
        found = observer.found["donor"][1][unit].identity_cosine
        assert found == pytest.approx(wanted, abs=1e-9)
        assert 0.5 < found < 1


def test_identical_experts_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    experts = [ExpertWeights(normal(6, 4), normal(6, 4), normal(4, 6)) for _ in range(3)]
    x = normal(9, 4)
    chosen = Route(torch.randint(0, 3, (9, 2), generator=generator), normal(9, 2).abs())
    for change in unit_differences(x, chosen, experts, experts).values():
        assert torch.equal(change, torch.zeros(9))
    # An expert that no token chose may differ as it likes.
    chosen = Route(chosen.experts.clamp_max(1), chosen.weights)
    other = [*experts[:2], ExpertWeights(normal(6, 4), normal(6, 4), normal(4, 6))]
    for change in unit_differences(x, chosen, experts, other).values():
        assert torch.equal(change, torch.zeros(9))


class TestStandardError:
    def test_written_out(self) -> None:
        a, b = torch.tensor([1.0, 2.0, 6.0]).double(), torch.tensor([10.0, 10.0, 20.0]).double()
        ratio, error = ratio_with_error(a, b)
        assert ratio == pytest.approx(9 / 40)
        residuals = [x - 9 / 40 * y for x, y in ((1, 10), (2, 10), (6, 20))]
        wanted = (3 / 2 * sum(r * r for r in residuals)) ** 0.5 / 40
        assert error == pytest.approx(wanted)

    def test_covers_the_spread_of_repetitions(self) -> None:
        """The estimate from one sample is the spread of the ratio over many."""
        rng = np.random.default_rng(0)
        ratios, errors = [], []
        for _ in range(400):
            size = rng.gamma(4.0, 1.0, 24)
            noise = rng.normal(1.0, 0.3, 24)
            pair = (torch.from_numpy(0.05 * size * noise), torch.from_numpy(size))
            ratio, error = ratio_with_error(*pair)
            ratios.append(ratio)
            errors.append(error)
        assert np.mean(ratios) == pytest.approx(0.05, rel=0.02)
        assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.15)

    def test_constant_ratio_has_none(self) -> None:
        b = torch.tensor([1.0, 5.0, 2.0]).double()
        assert ratio_with_error(0.25 * b, b) == (0.25, pytest.approx(0.0, abs=1e-15))

    def test_nothing_to_divide_by(self) -> None:
        zeros = torch.zeros(3).double()
        assert ratio_with_error(zeros, zeros) == (0.0, 0.0)

    def test_blocks_of_tokens(self, zoo: Zoo) -> None:
        reference = open_model(zoo.gguf("qwen3moe"))
        observer = DonorErrors(reference, {"same": reference}, CPU)
        length = BLOCK_TOKENS // 2 + 1
        sweep(reference, [sample_tokens(4, length)], device=CPU, observers=[observer])
        found = observer.found["same"][0][LAYER]
        assert (found.n_tokens, found.n_blocks) == (4 * length, 3), "the last block is a short one"
        assert (found.relative_error, found.standard_error) == (0.0, 0.0)
        assert found.identity_cosine == pytest.approx(1.0, abs=1e-12)


def test_finer_donors_have_smaller_errors(zoo: Zoo) -> None:
    reference = open_model(zoo.gguf("qwen4exp"))
    names = ("Q8_0", "Q5_0", "IQ4_NL", "Q2_0")
    sources = {q: open_model(zoo.quantized("qwen4exp", f"{EXPERTS}={q}")) for q in names}
    observer = DonorErrors(reference, sources, CPU)
    sweep(reference, [sample_tokens(4, 64)], device=CPU, observers=[observer])
    for layer in range(4):
        errors = [observer.found[name][layer][LAYER].relative_error for name in names]
        assert errors == sorted(errors)
        assert 0 < errors[0] < 1e-3 < errors[-1] < 2


def test_path_of_reference_does_not_matter(zoo: Zoo) -> None:
    """A checkpoint folder and its GGUF are one reference."""
    found = []
    donor = open_model(zoo.quantized("qwen3moe", f"{EXPERTS}=IQ4_NL"))
    paths: tuple[Path, ...] = (zoo.checkpoint("qwen3moe"), zoo.gguf("qwen3moe"))
    for path in paths:
        reference = open_model(path)
        observer = DonorErrors(reference, {"donor": donor}, CPU)
        sweep(reference, [sample_tokens(2, 40)], device=CPU, observers=[observer])
        found.append(observer.found)
    assert found[0] == found[1]
