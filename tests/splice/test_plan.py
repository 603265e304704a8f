"""Which tensor comes from where, and which choices and donors are refused."""

from __future__ import annotations

import pytest

from quantkit.containers.gguf import GGUFFile, ValueType, pack_kv
from quantkit.errors import ArtifactError, DonorError
from quantkit.qtypes import by_name
from quantkit.splice import SplicePlan, UnitChoice, plan_splice
from quantkit.splice.plan import EXPERT_TENSOR

from .conftest import INNER, MODEL, N_EXPERTS, MakeModel, shapes, spec


def taken(plan: SplicePlan, source: str) -> list[str]:
    return [tensor.entry.name for tensor in plan.tensors if tensor.source == source]


@pytest.mark.parametrize(
    ("unit", "kinds"),
    [("layer", ("gate", "up", "down")), ("gate_up", ("gate", "up")), ("down", ("down",))],
)
def test_unit_takes_its_tensors_and_no_other(
    base: GGUFFile, donors: dict[str, GGUFFile], unit: str, kinds: tuple[str, ...]
) -> None:
    plan = plan_splice(base, donors, [UnitChoice(1, unit, "iq4")])
    assert taken(plan, "iq4") == [f"blk.1.ffn_{kind}_exps.weight" for kind in kinds]
    assert [tensor.entry.name for tensor in plan.tensors] == list(shapes())
    assert list(plan.donors) == ["iq4"]


def test_layer_1_does_not_match_layer_10() -> None:
    assert EXPERT_TENSOR.fullmatch("blk.10.ffn_down_exps.weight")
    for name in (
        "blk.1.ffn_down_shexp.weight",
        "blk.1.hc_ffn_down.weight",
        "blk.1.ffn_down.weight",
        "blk.1.ffn_down_exps.bias",
        "xblk.1.ffn_down_exps.weight",
        "blk.1.ffn_down_exps.weight.x",
        "blk.1.ffn_down_exps.weight\n",
        "blk.1.ffn_gate_inp.weight",
    ):
        assert not EXPERT_TENSOR.fullmatch(name)


def test_fused_gate_and_up(make_model: MakeModel) -> None:
    names = {f"blk.{i}.ffn_gate_exps.weight": f"blk.{i}.ffn_gate_up_exps.weight" for i in range(3)}
    base = make_model("fused", rename=names)
    donor = make_model("fused-donor", "IQ4_NL", rename=names, seed=1)
    plan = plan_splice(base, {"d": donor}, [UnitChoice(0, "gate_up", "d")])
    assert "blk.0.ffn_gate_up_exps.weight" in taken(plan, "d")


def test_choosing_the_base_changes_nothing(base: GGUFFile, donors: dict[str, GGUFFile]) -> None:
    plan = plan_splice(base, donors, [UnitChoice(0, "layer", "base")])
    assert taken(plan, "base") == list(shapes())
    assert plan.donors == {}


def test_scales_travel_with_their_weight(make_model: MakeModel) -> None:
    scales = {
        seed: [
            spec(seed, f"blk.{layer}.ffn_down_exps.scale", (N_EXPERTS,), by_name("F32"))
            for layer in range(3)
        ]
        for seed in (0, 1)
    }
    base = make_model("base", extra=scales[0][:2])
    donor = make_model("donor", "NVFP4", seed=1, extra=scales[1][1:])
    plan = plan_splice(base, {"d": donor}, [UnitChoice(i, "down", "d") for i in range(3)])
    names = [tensor.entry.name for tensor in plan.tensors]
    # The base's scale of layer 0 goes with its weight; the donor brings those of layers 1 and 2.
    assert [name for name in names if name.endswith(".scale")] == [
        "blk.1.ffn_down_exps.scale",
        "blk.2.ffn_down_exps.scale",
    ]
    place = names.index("blk.2.ffn_down_exps.scale")
    assert names[place - 1] == "blk.2.ffn_down_exps.weight"
    assert "blk.2.ffn_down_exps.scale" in taken(plan, "d")
    kept = plan_splice(base, {"d": donor}, [UnitChoice(0, "gate_up", "d")])
    assert "blk.0.ffn_down_exps.scale" in taken(kept, "base")


BAD_CHOICES = {
    "unit": ([UnitChoice(0, "gate", "iq4")], "units are layer, gate_up, down"),
    "source": ([UnitChoice(0, "down", "iq3")], "sources are base, iq4, q2"),
    "layer": ([UnitChoice(7, "down", "iq4")], "layers with routed experts: 0-2"),
    "twice": ([UnitChoice(0, "down", "iq4")] * 2, "each tensor is chosen once"),
    "overlap": (
        [UnitChoice(0, "layer", "iq4"), UnitChoice(0, "down", "q2")],
        "each tensor is chosen once",
    ),
}


@pytest.mark.parametrize("case", BAD_CHOICES)
def test_bad_choice_is_refused(base: GGUFFile, donors: dict[str, GGUFFile], case: str) -> None:
    choices, rule = BAD_CHOICES[case]
    with pytest.raises(ArtifactError, match="does not fit the base") as caught:
        plan_splice(base, donors, choices)
    assert caught.value.rule == rule
    assert caught.value.hint


def test_donor_named_like_the_base(base: GGUFFile) -> None:
    with pytest.raises(ArtifactError, match="name of the base"):
        plan_splice(base, {"base": base}, [])


def test_donor_of_another_shape(base: GGUFFile, make_model: MakeModel) -> None:
    donor = make_model("pruned", "IQ4_NL", n_experts=3)
    with pytest.raises(DonorError, match="another shape") as caught:
        plan_splice(base, {"d": donor}, [UnitChoice(0, "down", "d")])
    error = caught.value
    assert error.file == str(donor.path)
    assert error.tensor == "blk.0.ffn_down_exps.weight"
    assert str([3, MODEL, INNER]) in str(error.value)
    assert str([N_EXPERTS, MODEL, INNER]) in str(error.rule)
    assert error.hint


def test_donor_with_fused_experts(base: GGUFFile, make_model: MakeModel) -> None:
    renamed = {"blk.0.ffn_gate_exps.weight": "blk.0.ffn_gate_up_exps.weight"}
    donor = make_model("fused", rename=renamed)
    with pytest.raises(DonorError, match="without a tensor of the base") as caught:
        plan_splice(base, {"d": donor}, [UnitChoice(0, "layer", "d")])
    assert caught.value.tensor == "blk.0.ffn_gate_exps.weight"


def test_donor_of_another_architecture(base: GGUFFile, make_model: MakeModel) -> None:
    donor = make_model(
        "other", pairs=[pack_kv("general.architecture", ValueType.STRING, "qwen35moe")]
    )
    with pytest.raises(DonorError, match="another architecture") as caught:
        plan_splice(base, {"d": donor}, [UnitChoice(0, "layer", "d")])
    assert caught.value.value == "qwen35moe"
    # A donor that is not used is not looked at.
    assert plan_splice(base, {"d": donor}, []).donors == {}
