"""Roles, their names in both containers, their shapes, and llama.cpp's order of value heads."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import ModelError
from quantkit.models.arch import ARCHITECTURES, architecture, layer_roles, model_roles
from quantkit.models.config import DeltaNetConfig, ModelConfig
from quantkit.models.hf_config import config_from_hf
from quantkit.models.roles import Role
from quantkit.models.shapes import fits, role_shapes
from quantkit.models.transforms import (
    GGUF_LAYOUTS,
    HF_FORMS,
    HF_PARTS,
    from_gguf_layout,
    tiled_head_order,
    to_gguf_layout,
)
from tests import tiny


def config_of(arch: str) -> ModelConfig:
    return config_from_hf(tiny.random_model(arch).config.to_dict())


def all_roles(config: ModelConfig) -> list[Role]:
    layers = [role for i in range(config.n_layers) for role in layer_roles(config, i)]
    return [*model_roles(config), *layers]


def test_every_architecture_has_a_tiny_model() -> None:
    assert {arch.gguf for arch in ARCHITECTURES} == set(tiny.ARCHITECTURES)


@pytest.mark.parametrize("arch", tiny.ARCHITECTURES)
def test_tables_are_complete(arch: str) -> None:
    config = config_of(arch)
    shapes = role_shapes(config)
    for role in all_roles(config):
        assert role.name in shapes
        assert role.hf_form in HF_FORMS
        assert role.hf_part in HF_PARTS
        assert role.gguf_layout in GGUF_LAYOUTS


@pytest.mark.parametrize("arch", tiny.ARCHITECTURES)
def test_names_are_unique_within_a_layer(arch: str) -> None:
    config = config_of(arch)
    for layer in range(config.n_layers):
        roles = layer_roles(config, layer)
        assert len({role.name for role in roles}) == len(roles)
        assert len({role.gguf for role in roles}) == len(roles)


@pytest.mark.parametrize("arch", tiny.ARCHITECTURES)
def test_every_trained_tensor_has_a_role(arch: str) -> None:
    """What transformers stores and what the roles read are the same set."""
    config = config_of(arch)
    # lm_head stands beside the trunk; the n-gram table is named by its layer already.
    wanted = {"lm_head.weight"}
    for role in model_roles(config):
        place = role.hf.format(ngram_layer=config.ngram.layer) if config.ngram else role.hf
        wanted |= {f"model.{place}"} if role.name != "output" else set()
    for layer in range(config.n_layers):
        wanted |= {f"model.layers.{layer}.{role.hf}" for role in layer_roles(config, layer)}
    constants = re.compile(r"layer_multipliers|ngram_heads_")
    stored = {n for n in tiny.random_model(arch).state_dict() if not constants.search(n)}
    assert stored == wanted


def test_unknown_architecture() -> None:
    with pytest.raises(ModelError, match="unknown architecture 'llama'"):
        architecture("llama")


def test_shapes_fit_up_to_unit_axes_and_streams() -> None:
    assert fits("gdn_conv", (128, 1, 4), (128, 4))
    assert fits("shared_gate_row", (128,), (1, 128))
    assert fits("hc_attn_norm", (4, 128), (512,))
    assert fits("ngram_table", (500, 32), (408, 32))
    assert not fits("ngram_table", (400, 32), (408, 32))
    assert not fits("ngram_table", (500, 16), (408, 32))
    assert not fits("router", (128, 8), (8, 128))
    assert not fits("attn_q_norm", (64,), (32,))


class TestValueHeads:
    """Grouped by key head in transformers, tiled over key heads in llama.cpp."""

    CONFIG = config_of("qwen35moe")

    def test_order(self) -> None:
        assert tiled_head_order(DeltaNetConfig(2, 6, 4, 4, 4, "silu")).tolist() == [
            0,
            3,
            1,
            4,
            2,
            5,
        ]
        assert tiled_head_order(DeltaNetConfig(3, 3, 4, 4, 4, "silu")).tolist() == [0, 1, 2]

    @pytest.mark.parametrize("layout", GGUF_LAYOUTS)
    def test_round_trip(self, layout: str) -> None:
        entry = GGUF_LAYOUTS[layout]
        assert self.CONFIG.delta_net is not None
        size = 7 if entry is None else len(entry[1](self.CONFIG.delta_net))
        for axis in (0, 1) if entry is None else entry[:1]:
            shape = (size, 3) if axis == 0 else (3, size)
            value = torch.arange(size * 3.0).reshape(shape)
            stored = to_gguf_layout(value, layout, self.CONFIG)
            assert torch.equal(from_gguf_layout(stored, layout, self.CONFIG), value)
            moved = layout != "same"
            assert torch.equal(stored, value) != moved

    def test_query_and_key_rows_stay(self) -> None:
        g = self.CONFIG.delta_net
        assert g is not None
        keys = 2 * g.n_key_heads * g.key_dim
        value = torch.arange(keys + g.n_value_heads * g.value_dim)
        stored = to_gguf_layout(value, "qkv_value_rows", self.CONFIG)
        assert torch.equal(stored[:keys], value[:keys])
        heads = stored[keys:].reshape(g.n_value_heads, g.value_dim)
        assert ((heads - keys) // g.value_dim)[:, 0].tolist() == [0, 3, 1, 4, 2, 5]
        assert bool(((heads - keys) % g.value_dim == torch.arange(g.value_dim)).all())

    @given(groups=st.integers(1, 6), per_group=st.integers(1, 5))
    def test_place_of_a_head(self, groups: int, per_group: int) -> None:
        """Place j of the file belongs to key head j modulo the number of key heads."""
        order = tiled_head_order(DeltaNetConfig(groups, groups * per_group, 1, 1, 1, "silu"))
        assert sorted(order.tolist()) == list(range(groups * per_group))
        for place, head in enumerate(order.tolist()):
            assert head // per_group == place % groups


def test_stored_forms() -> None:
    x = torch.tensor([[-1.0, 0.5]])
    assert torch.equal(HF_FORMS["plus_one"](x), torch.tensor([[0.0, 1.5]]))
    assert torch.allclose(HF_FORMS["negative_exp"](x), -x.exp())
    assert HF_FORMS["squeeze"](torch.zeros(5, 1, 3)).shape == (5, 3)
