"""The sweep's own behaviour: batches, observers, sinks, bad tokens, and how little it holds."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from quantkit import codecs
from quantkit.errors import QuantkitError, TextError, UsageError
from quantkit.models.layers.moe import Route
from quantkit.models.trunk import moe_block
from quantkit.qtypes import QType
from quantkit.quantize import convert_checkpoint
from quantkit.runtime import pick_device, sweep
from quantkit.weights import ModelWeights, open_model
from tests.tiny import (
    CPU,
    VOCAB_SIZE,
    Logits,
    Zoo,
    random_model,
    sample_tokens,
    save_checkpoint,
    sweep_logits,
)

Parts = Mapping[str, np.ndarray]


class Record:
    """An observer that keeps what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Tensor, Route, Tensor]] = []

    def moe(self, layer: int, x: Tensor, chosen: Route, output: Tensor) -> None:
        self.seen.append((layer, x.clone(), chosen, output.clone()))


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> ModelWeights:
    return open_model(zoo.gguf("qwen4exp"))


def test_batches_are_independent(model: ModelWeights) -> None:
    """Sequences of any batch and length give what they give alone."""
    batches = [sample_tokens(3, 40), sample_tokens(1, 70, seed=2), sample_tokens(2, 9, seed=3)]
    sink = Logits()
    sweep(model, batches, device=CPU, sink=sink)
    sequence = 0
    for batch in batches:
        alone = sweep_logits(model, batch)
        for row in alone:
            found = torch.cat([part for _, part in sink.rows[sequence]])
            torch.testing.assert_close(found, row, rtol=1e-5, atol=1e-5)
            sequence += 1
    assert sequence == len(sink.rows)


def test_only_the_scored_positions_reach_the_sink(
    model: ModelWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = sample_tokens(2, 30)
    wanted = sweep_logits(model, tokens)
    module = sys.modules["quantkit.runtime.sweep"]  # the package has a function of that name
    monkeypatch.setattr(module, "LOGIT_TILE_ELEMENTS", 7 * VOCAB_SIZE)
    sink = Logits()
    sweep(model, [tokens], device=CPU, sink=sink, scored_from=12)
    assert [first for first, _ in sink.rows[1]] == [12, 19, 26]
    assert [len(part) for _, part in sink.rows[1]] == [7, 7, 4]
    torch.testing.assert_close(sink.stacked(), wanted[:, 12:])


def test_observers_see_every_layer_and_change_nothing(model: ModelWeights) -> None:
    tokens = sample_tokens(2, 20)
    record = Record()
    watched = Logits()
    sweep(model, [tokens[:1], tokens[1:]], device=CPU, observers=[record], sink=watched)
    assert [layer for layer, *_ in record.seen] == [0, 1, 2, 3]
    for _, x, chosen, output in record.seen:
        assert x.shape == output.shape == (40, 128)
        assert chosen.experts.shape == (40, model.config.moe.n_experts_used)
    torch.testing.assert_close(watched.stacked(), sweep_logits(model, tokens))


def test_observed_output_is_the_block_of_the_input(model: ModelWeights) -> None:
    record = Record()
    sweep(model, [sample_tokens(1, 12)], device=CPU, observers=[record])
    layer, x, chosen, output = record.seen[2]
    wanted, route = moe_block(x, model.layer(layer, CPU), model.config)
    torch.testing.assert_close(output, wanted)
    assert torch.equal(route.experts, chosen.experts)


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 10**9])
def test_tokens_outside_the_vocabulary(model: ModelWeights, token: int) -> None:
    tokens = sample_tokens(1, 8).clone()
    tokens[0, 3] = token
    with pytest.raises(TextError, match="token that the model does not have") as caught:
        sweep(model, [tokens], device=CPU)
    assert caught.value.value == token


def test_devices() -> None:
    assert pick_device("cpu") == CPU
    assert pick_device().type in ("cpu", "cuda")
    with pytest.raises(QuantkitError, match="cannot use this device") as caught:
        pick_device("cuda:99")
    assert caught.value.value == "cuda:99"


@pytest.mark.parametrize("name", ["nonsense", "meta", "cuda:", "cuda:-1", "cpu:0", ""])
def test_other_kinds_of_devices_are_errors_of_usage(name: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        pick_device(name)


def test_same_bits_every_time(model: ModelWeights) -> None:
    tokens = sample_tokens(2, 70)
    assert torch.equal(sweep_logits(model, tokens), sweep_logits(model, tokens))


MANY_EXPERTS, N_LAYERS, HIDDEN, INNER = 96, 6, 64, 128


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts make up nearly all of it: 6 layers of 96, 9.4 MB of float32 a layer."""
    folder = tmp_path_factory.mktemp("wide")
    model = random_model(
        "qwen3moe",
        num_hidden_layers=N_LAYERS,
        num_experts=MANY_EXPERTS,
        hidden_size=HIDDEN,
        moe_intermediate_size=INNER,
        num_experts_per_tok=4,
    )
    save_checkpoint(model, folder / "model", "qwen3moe")
    return convert_checkpoint(folder / "model", folder / "model.gguf")[0]


class TestMemory:
    """Decoded weights alive at one time, counted as numpy reports them to tracemalloc."""

    def test_never_more_than_a_dense_part_and_an_expert(self, wide: Path) -> None:
        model = open_model(wide)
        expert = 3 * HIDDEN * INNER * 4
        layer = MANY_EXPERTS * expert
        dense = sum(
            handle.value().numel() * 4
            for role, handle in model.layers[0].items()
            if not role.startswith("experts_")
        )
        tokens = sample_tokens(2, 64)
        sweep(model, [tokens], device=CPU)  # imports and caches are not counted
        tracemalloc.start()
        try:
            sweep(model, [tokens], device=CPU)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        embedding = tokens.numel() * HIDDEN * 4
        # Decoding has temporaries of its own; an expert and its codec's scratch fit in four.
        assert peak < 2 * dense + 2 * embedding + 4 * expert + 200_000
        assert peak < layer / 4, "a quarter of one layer, and there are six"

    def test_each_weight_is_decoded_once_for_all_batches(
        self, wide: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = open_model(wide)
        batches = list(sample_tokens(6, 32).split(2))
        decoded = {"elements": 0}
        decode = codecs.decode

        def counting(qtype: QType, parts: Parts, shape: tuple[int, ...]) -> np.ndarray:
            decoded["elements"] += torch.Size(shape).numel()
            return decode(qtype, parts, shape)

        monkeypatch.setattr(codecs, "decode", counting)
        sweep(model, batches, device=CPU)
        stored = sum(
            torch.Size(handle.shape).numel() for layer in model.layers for handle in layer.values()
        )
        assert decoded["elements"] <= stored + sum(b.numel() for b in batches) * HIDDEN
