"""Who may be a donor: the same model, the same experts, in the same order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quantkit.containers.base import TensorEntry, spec_of
from quantkit.containers.gguf import ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.values import key_of
from quantkit.errors import DonorError, FormatError
from quantkit.measure.donor import MIN_COSINE, check_geometry
from quantkit.measure.errors import DonorErrors
from quantkit.quantize import convert_checkpoint
from quantkit.runtime import sweep
from quantkit.weights import open_model
from tests.measure.helpers import edited, reorder
from tests.tiny import CPU, Zoo, random_model, sample_tokens, save_checkpoint

EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"
SWAPPED = [0, 1, 5, 3, 4, 2, 6, 7]


def measured(zoo: Zoo, donor: Path) -> None:
    reference = open_model(zoo.gguf("qwen3moe"))
    observer = DonorErrors(reference, {"donor": open_model(donor)}, CPU)
    sweep(reference, [sample_tokens(1, 20)], device=CPU, observers=[observer])


@pytest.fixture
def donor(zoo: Zoo) -> Path:
    return zoo.quantized("qwen3moe", f"{EXPERTS}=IQ4_NL")


def test_good_donor(zoo: Zoo, donor: Path) -> None:
    measured(zoo, donor)


@pytest.mark.parametrize(
    ("words", "tensor"),
    [
        (("_exps", "ffn_gate_inp"), "blk.0.ffn_gate_exps.weight"),
        (("blk.1.ffn_gate_exps", "blk.1.ffn_up_exps"), "blk.1.ffn_gate_exps.weight"),
        (("blk.1.ffn_down_exps",), "blk.1.ffn_down_exps.weight"),
    ],
)
def test_permuted_experts(
    words: tuple[str, ...], tensor: str, zoo: Zoo, donor: Path, tmp_path: Path
) -> None:
    """With its router such a file is a sound model of its own, and no donor all the same."""
    path = edited(donor, tmp_path / "x.gguf", reorder(SWAPPED, *words))
    with pytest.raises(DonorError, match="'donor' has permuted experts") as caught:
        measured(zoo, path)
    error = caught.value
    assert (error.tensor, error.file) == (tensor, str(path))
    assert "expert 2 has cosine" in str(error.value) or "expert 5 has cosine" in str(error.value)
    assert "with its expert" in str(error.value)
    assert "router" in str(error.hint)


def test_experts_of_another_model(zoo: Zoo) -> None:
    path = zoo.quantized("qwen3moe", f"{EXPERTS}=IQ4_NL", seed=1)
    with pytest.raises(DonorError, match="'donor' has other experts") as caught:
        measured(zoo, path)
    assert caught.value.tensor == "blk.0.ffn_gate_exps.weight"
    assert str(MIN_COSINE) in str(caught.value.rule)


def damage(donor: Path, out: Path, value: np.ndarray) -> Path:
    def edit(entry: TensorEntry, data: np.ndarray) -> np.ndarray:
        if entry.name == "blk.1.ffn_up_exps.weight":
            raw = value.view(np.uint8)
            data.reshape(8, -1)[3, : len(raw)] = raw
        return data

    return edited(donor, out, edit)


def test_block_with_a_broken_scale(zoo: Zoo, donor: Path, tmp_path: Path) -> None:
    path = damage(donor, tmp_path / "x.gguf", np.array([np.nan], np.float16))
    with pytest.raises(FormatError, match="decodes to nan") as caught:
        measured(zoo, path)
    assert (caught.value.file, caught.value.tensor) == (str(path), "blk.1.ffn_up_exps.weight")


def test_values_that_are_no_numbers(zoo: Zoo, tmp_path: Path) -> None:
    """A plain type can hold them; they must not slip through comparisons of floats."""
    path = damage(zoo.gguf("qwen3moe"), tmp_path / "x.gguf", np.array([0x7FC0], np.uint16))
    with pytest.raises(DonorError, match="has other experts") as caught:
        measured(zoo, path)
    assert "expert 3" in str(caught.value.value)
    assert caught.value.tensor == "blk.1.ffn_up_exps.weight"


def test_zeroed_expert(zoo: Zoo, donor: Path, tmp_path: Path) -> None:
    def edit(entry: TensorEntry, data: np.ndarray) -> np.ndarray:
        if entry.name == "blk.0.ffn_down_exps.weight":
            data.reshape(8, -1)[7] = 0
        return data

    with pytest.raises(DonorError, match=r"expert 7 has cosine 0\.000"):
        measured(zoo, edited(donor, tmp_path / "x.gguf", edit))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_experts": 4}, "moe"),
        ({"num_experts_per_tok": 3}, "moe"),
        ({"hidden_size": 64}, "hidden"),
        ({"num_hidden_layers": 1}, "n_layers"),
        ({"head_dim": 64}, "attention"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "attention"),
    ],
)
def test_other_geometry(changes: dict[str, object], field: str, zoo: Zoo, tmp_path: Path) -> None:
    save_checkpoint(random_model("qwen3moe", **changes), tmp_path / "model", "qwen3moe")
    convert_checkpoint(tmp_path / "model", tmp_path / "x.gguf")
    with pytest.raises(DonorError, match="'donor' is not the same model") as caught:
        check_geometry("donor", open_model(tmp_path / "x.gguf"), open_model(zoo.gguf("qwen3moe")))
    assert str(caught.value.rule).startswith(f"{field}:")
    assert caught.value.file == str(tmp_path / "x.gguf")


def test_other_architecture(zoo: Zoo) -> None:
    with pytest.raises(DonorError) as caught:
        check_geometry("d", open_model(zoo.gguf("qwen35moe")), open_model(zoo.gguf("qwen3moe")))
    assert (caught.value.value, caught.value.rule) == ("arch: qwen35moe", "arch: qwen3moe")


def test_what_publishers_change_is_no_difference(zoo: Zoo, tmp_path: Path) -> None:
    """A longer context in the metadata, or other rope sections, touches no expert."""
    file = open_gguf(zoo.gguf("qwen4exp"))
    keys = {
        "qwen4exp.context_length": pack_kv("qwen4exp.context_length", ValueType.UINT32, 99),
        "qwen4exp.rope.dimension_sections": pack_kv(
            "qwen4exp.rope.dimension_sections", ValueType.ARRAY, [4, 0, 0, 0], ValueType.INT32
        ),
    }
    pairs = [keys.get(key_of(raw), raw) for raw in file.metadata.carried()]
    write_gguf(tmp_path / "x.gguf", pairs, [spec_of(e) for e in file.tensors.values()])
    check_geometry("d", open_model(tmp_path / "x.gguf"), open_model(zoo.gguf("qwen4exp")))


def test_usable_quantizations_are_far_from_the_bound(zoo: Zoo) -> None:
    """The bound lies between the coarsest type and other weights, with room on both sides."""
    reference = open_model(zoo.gguf("qwen3moe")).layers[0]["experts_gate"].value()
    rule = r"blk\.\d+\.ffn_gate_exps\.weight=Q1_0"
    coarse = open_model(zoo.quantized("qwen3moe", rule)).layers[0]["experts_gate"].value()
    other = open_model(zoo.gguf("qwen3moe", seed=1)).layers[0]["experts_gate"].value()

    def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))

    assert cosine(coarse, reference) > MIN_COSINE + 0.2
    assert abs(cosine(other, reference)) < MIN_COSINE - 0.4
