"""Scales that stand beside a weight (llama.cpp's NVFP4 files): decoded values times the scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from quantkit.containers.base import TensorSpec, spec_of
from quantkit.containers.gguf import open_gguf, write_gguf
from quantkit.errors import FormatError, ModelError
from quantkit.qtypes import by_name
from quantkit.runtime import sweep
from quantkit.weights import ModelWeights, open_model
from tests.tiny import CPU, Zoo, sample_tokens, sweep_logits

N_EXPERTS = 8
EXPERTS, DENSE = "blk.1.ffn_down_exps", "blk.0.attn_gate"
POWERS = [2.0 ** (e % 3 - 1) for e in range(N_EXPERTS)]


def with_tensors(source: Path, out: Path, more: Mapping[str, list[float]]) -> Path:
    """A copy with vectors of F32 beside its tensors."""
    file = open_gguf(source)
    specs = [spec_of(entry) for entry in file.tensors.values()]
    for name, values in more.items():
        data = np.array(values, np.float32).tobytes()
        specs.append(TensorSpec(name, (len(values),), by_name("F32"), lambda data=data: [data]))
    write_gguf(out, file.metadata.carried(), specs)
    return out


def multiplied(source: Path, out: Path, factors: Mapping[str, Tensor]) -> Path:
    """A copy whose BF16 weights are multiplied by powers of two, which is exact."""
    file = open_gguf(source)
    specs = []
    for entry in file.tensors.values():
        spec = spec_of(entry)
        if entry.name in factors:
            assert entry.qtype.name == "BF16"
            stored = torch.from_numpy(entry.parts()["data"].copy()).view(torch.bfloat16)
            scaled = stored.view(entry.shape) * factors[entry.name].bfloat16()
            data = scaled.contiguous().view(torch.uint8).numpy().tobytes()
            spec = TensorSpec(entry.name, entry.shape, entry.qtype, lambda data=data: [data])
        specs.append(spec)
    write_gguf(out, file.metadata.carried(), specs)
    return out


@pytest.fixture
def pair(zoo: Zoo, tmp_path: Path) -> tuple[ModelWeights, ModelWeights]:
    """A model with scales, and one whose weights hold them."""
    source = zoo.gguf("qwen4exp")
    scales = {f"{EXPERTS}.scale": POWERS, f"{DENSE}.scale": [0.5], "output.scale": [4.0]}
    factors = {
        f"{EXPERTS}.weight": torch.tensor(POWERS).view(-1, 1, 1),
        f"{DENSE}.weight": torch.tensor(0.5),
        "output.weight": torch.tensor(4.0),
    }
    scaled = with_tensors(source, tmp_path / "scaled.gguf", scales)
    return open_model(scaled), open_model(multiplied(source, tmp_path / "m.gguf", factors))


def test_values_are_multiplied(pair: tuple[ModelWeights, ModelWeights]) -> None:
    scaled, wanted = pair
    for ours, theirs in zip(
        (scaled.top, *scaled.layers), (wanted.top, *wanted.layers), strict=True
    ):
        for role, handle in theirs.items():
            assert torch.equal(ours[role].value(), handle.value()), role
    down, other = scaled.layers[1]["experts_down"], wanted.layers[1]["experts_down"]
    for expert in range(N_EXPERTS):
        assert torch.equal(down.expert(expert), other.expert(expert))
    rows = torch.tensor([3, 1, 3])
    assert torch.equal(scaled.top["output"].rows(rows), wanted.top["output"].rows(rows))


def test_logits_are_those_of_the_scaled_weights(pair: tuple[ModelWeights, ModelWeights]) -> None:
    scaled, wanted = pair
    tokens = sample_tokens(1, 24)
    assert torch.equal(sweep_logits(scaled, tokens), sweep_logits(wanted, tokens))


def test_input_scale_changes_nothing(zoo: Zoo, tmp_path: Path) -> None:
    source, name = zoo.gguf("qwen4exp"), f"{EXPERTS}.input_scale"
    model = open_model(with_tensors(source, tmp_path / "x.gguf", {name: [3.0] * N_EXPERTS}))
    tokens = sample_tokens(1, 24)
    assert torch.equal(sweep_logits(model, tokens), sweep_logits(source, tokens))
    handle = model.layers[1]["experts_down"]
    assert [entry.name for entry in handle.companions] == [name]
    assert handle.nbytes == handle.pieces[0].nbytes + 4 * N_EXPERTS


def test_one_factor_for_all_experts(zoo: Zoo, tmp_path: Path) -> None:
    source = zoo.gguf("qwen4exp")
    model = open_model(with_tensors(source, tmp_path / "x.gguf", {f"{EXPERTS}.scale": [0.25]}))
    wanted = open_model(source).layers[1]["experts_down"]
    assert torch.equal(model.layers[1]["experts_down"].value(), wanted.value() * 0.25)
    assert torch.equal(model.layers[1]["experts_down"].expert(5), wanted.expert(5) * 0.25)


@pytest.mark.parametrize(
    ("name", "count"), [(f"{EXPERTS}.scale", 7), (f"{DENSE}.scale", 8), (f"{EXPERTS}.scale", 0)]
)
def test_scale_of_another_length(name: str, count: int, zoo: Zoo, tmp_path: Path) -> None:
    path = with_tensors(zoo.gguf("qwen4exp"), tmp_path / "x.gguf", {name: [1.0] * count})
    with pytest.raises(ModelError, match="does not fit its tensor") as caught:
        open_model(path)
    assert (caught.value.tensor, caught.value.file) == (name, str(path))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scale_that_is_not_finite(bad: float, zoo: Zoo, tmp_path: Path) -> None:
    name = f"{EXPERTS}.scale"
    path = with_tensors(zoo.gguf("qwen4exp"), tmp_path / "x.gguf", {name: [1.0] * 7 + [bad]})
    with pytest.raises(FormatError, match="not finite") as caught:
        sweep(open_model(path), [sample_tokens(1, 24)], device=CPU)
    assert (caught.value.tensor, caught.value.file) == (name, str(path))
