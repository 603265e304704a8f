"""`capture`: against transformers in float64, and llama-imatrix where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quantkit.capture.importance import TWINS, WatchedModel
from quantkit.capture.run import capture_importance, write_captured
from quantkit.containers.gguf import open_gguf
from quantkit.containers.imatrix import Entry, Importance, read_importance
from quantkit.errors import ModelError, TextError
from quantkit.models.arch import layer_roles
from quantkit.models.transforms import tiled_head_order
from quantkit.quantize import convert_checkpoint
from quantkit.quantize.encode import Rule, encode_gguf
from quantkit.runtime import sweep
from quantkit.weights import ModelWeights, open_model
from tests.tiny import (
    ARCHITECTURES,
    CPU,
    EMBEDDED,
    Logits,
    Zoo,
    edit_config,
    random_model,
    sample_text,
    sample_tokens,
    save_checkpoint,
)

CONTEXT = 40
PROGRAM = "QUANTKIT_LLAMA_IMATRIX"


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    torch.set_num_threads(1)
    return Zoo(tmp_path_factory.mktemp("zoo"))


def captured(model: ModelWeights, batches: list[Tensor]) -> dict[str, Entry]:
    watched = WatchedModel.of(model)
    with watched.products:
        sweep(watched, batches, device=CPU, sink=Logits())
        watched.finish(None)
    return watched.entries


class Oracle:
    """Sums of squares in float64 of what transformers' modules are called with."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = defaultdict(float)
        self.counts: dict[str, Any] = defaultdict(int)

    def add(self, name: str, x: Tensor) -> None:
        flat = x.reshape(-1, x.shape[-1])
        self.sums[name] = self.sums[name] + flat.square().sum(0)
        self.counts[name] += len(flat)

    def experts(self, name: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Input, chosen experts (and their weights), by the definition of the block."""
        x, chosen = args[0].reshape(-1, args[0].shape[-1]), args[1]
        for expert in range(len(module.gate_up_proj)):
            own = x[(chosen == expert).any(-1)]
            self.add(f"{name}.{expert}.gate", own)
            gate, up = (own @ module.gate_up_proj[expert].T).chunk(2, dim=-1)
            self.add(f"{name}.{expert}.down", nn.functional.silu(gate) * up)

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                handles.append(
                    module.register_forward_pre_hook(
                        lambda _, args, name=name: self.add(name, args[0])
                    )
                )
            elif name.endswith("mlp.experts"):
                handles.append(
                    module.register_forward_pre_hook(
                        lambda module, args, name=name: self.experts(name, module, args)
                    )
                )
        yield
        for handle in handles:
            handle.remove()


def close(found: Entry, expert: int, oracle: Oracle, name: str) -> None:
    wanted = oracle.sums[name]
    assert int(found.counts[expert]) == oracle.counts[name], name
    if oracle.counts[name]:
        sums = torch.from_numpy(found.sums[expert]).double()
        assert float((sums - wanted).norm() / wanted.norm()) < 1e-4, name


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_values_are_those_of_an_independent_computation(arch: str, zoo: Zoo) -> None:
    """Every linear layer and every expert of transformers' model, in float64."""
    tokens = sample_tokens(2, CONTEXT)
    reference = random_model(arch).double()
    reference.set_experts_implementation("eager")  # the grouped products know no float64
    oracle = Oracle()
    with torch.no_grad(), oracle.listening(reference):
        for row in tokens:
            reference(row[None], use_cache=False)
    model = open_model(zoo.gguf(arch))
    entries = captured(model, [tokens])
    config, checked = model.config, 0
    for layer in range(config.n_layers):
        for role in layer_roles(config, layer):
            entry = entries.get(role.gguf_name(layer))
            name = f"model.layers.{layer}.{role.hf}".removesuffix(".weight")
            if role.name in ("experts_gate", "experts_up", "experts_down"):
                assert entry is not None
                part = role.name.removeprefix("experts_").replace("up", "gate")
                base = f"model.layers.{layer}.mlp.experts"
                for expert in range(config.moe.n_experts):
                    close(entry, expert, oracle, f"{base}.{expert}.{part}")
                checked += 1
            elif entry is not None and name in oracle.sums:
                if role.name == "gdn_out":
                    assert config.delta_net is not None
                    grouped = torch.from_numpy(entry.sums).unflatten(
                        1, (-1, config.delta_net.value_dim)
                    )
                    undo = torch.argsort(tiled_head_order(config.delta_net))
                    entry = Entry(grouped[:, undo].flatten(1).numpy(), entry.counts)
                close(entry, 0, oracle, name)
                checked += 1
    close(entries["output.weight"], 0, oracle, "lm_head")
    assert checked >= {"qwen3moe": 14, "qwen35moe": 44, "qwen4exp": 60}[arch]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_matrix_has_an_entry(arch: str, zoo: Zoo) -> None:
    """All weights of two dimensions but tables and convolutions, with the row's channels."""
    path = zoo.gguf(arch)
    entries = captured(open_model(path), [sample_tokens(2, 20)])
    importance = Importance(entries)
    without = {"token_embd", "per_layer_token_embd"}
    for name, tensor in open_gguf(path).tensors.items():
        stem = name.split(".")[-2] if name.endswith(".weight") else name
        if len(tensor.shape) < 2 or stem in without or "conv1d" in name:
            continue
        found = importance.mean_squares(name, tensor.shape)
        assert found is not None, name
        assert found.values.shape[-1] == tensor.shape[-1]


def test_gate_and_up_share_their_input_and_the_indexer_the_queries(zoo: Zoo) -> None:
    """Within the indexer's budget (32) it does not run, beyond it does: the same entry."""
    model = open_model(zoo.gguf("qwen4exp"))
    for length in (20, 60):
        entries = captured(model, [sample_tokens(1, length)])
        gate, up = (entries[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up"))
        assert np.array_equal(gate.sums, up.sums)
        assert np.array_equal(gate.counts, up.counts)
        assert int(gate.counts.sum()) == length * model.config.moe.n_experts_used
        for role, twin in TWINS.items():
            part = f"blk.3.indexer.{role[-1]}_proj.weight"
            assert np.array_equal(entries[part].sums, entries[f"blk.3.{twin}.weight"].sums)


def test_tied_head_is_the_embeddings_entry(tmp_path: Path) -> None:
    folder = save_checkpoint(
        random_model("qwen3moe", tie_word_embeddings=True), tmp_path / "m", "qwen3moe"
    )
    edit_config(folder, tie_word_embeddings=True)
    convert_checkpoint(folder, tmp_path / "m.gguf")
    entries = captured(open_model(tmp_path / "m.gguf"), [sample_tokens(1, 20)])
    assert "output.weight" not in entries
    assert int(entries["token_embd.weight"].counts[0]) == 20


def test_experts_that_no_token_reaches_are_cold(zoo: Zoo) -> None:
    entries = captured(open_model(zoo.gguf("qwen3moe")), [torch.tensor([[5, 5]])])
    cold = Importance(entries).cold_experts()["blk.0.ffn_down_exps.weight"]
    entry = entries["blk.0.ffn_down_exps.weight"]
    assert len(cold) == 6, "two equal tokens choose the same two of eight"
    assert not entry.sums[list(cold)].any()
    found = Importance(entries).mean_squares("blk.0.ffn_down_exps.weight", (8, 128, 96))
    assert found is not None
    assert np.isfinite(found.values).all()
    assert found.cold == cold


def text_file(folder: Path, n_words: int = 300) -> Path:
    path = folder / "text.txt"
    path.write_text(sample_text(n_words), encoding="utf-8")
    return path


def test_file_says_what_it_is_from_and_is_the_same_every_time(zoo: Zoo, tmp_path: Path) -> None:
    text = text_file(tmp_path)
    outs = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for out in outs:
        found = capture_importance(
            zoo.gguf("qwen3moe"), [text], context=32, max_tokens=100, device=CPU
        )
        write_captured(found, out, "gguf")
    assert outs[0].read_bytes() == outs[1].read_bytes()
    file, read = open_gguf(outs[0]), read_importance(outs[0])
    assert file.metadata["general.type"] == "imatrix"
    assert (read.chunk_count, read.chunk_size, read.datasets) == (4, 32, ("text.txt",))
    assert file.metadata["quantkit.source.sha256"] == [f.sha256 for f in found.model]
    assert file.metadata["quantkit.text.sha256"] == [f.sha256 for f in found.texts]
    assert int(read.entries["blk.0.attn_q.weight"].counts[0]) == found.n_tokens == 128


def test_checkpoint_and_its_gguf_give_the_same(zoo: Zoo, tmp_path: Path) -> None:
    text = text_file(tmp_path)
    a, b = (
        capture_importance(path, [text], context=64, device=CPU).importance.entries
        for path in (zoo.checkpoint("qwen35moe"), zoo.gguf("qwen35moe"))
    )
    assert set(a) == set(b)
    for name in a:
        assert np.allclose(a[name].sums, b[name].sums, rtol=1e-4), name


def test_text_that_is_too_short(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="too short"):
        capture_importance(zoo.gguf("qwen3moe"), [text_file(tmp_path, 5)], context=64, device=CPU)


def test_activations_that_overflow_are_named(tmp_path: Path) -> None:
    model = random_model("qwen3moe")
    model.model.layers[1].self_attn.v_proj.weight.fill_(3e38)
    folder = save_checkpoint(model, tmp_path / "m", "qwen3moe")
    with pytest.raises(ModelError, match="not finite") as caught:
        captured(open_model(folder), [sample_tokens(1, 20)])
    assert caught.value.tensor == "blk.1.attn_output.weight"


def test_memory_is_that_of_a_sweep(zoo: Zoo) -> None:
    """The sums are small; weights are dropped layer by layer as without them."""
    model, tokens = open_model(zoo.gguf("qwen4exp")), sample_tokens(2, 32)

    def weights_alive() -> int:
        watched = WatchedModel.of(model)
        with watched.products:
            sweep(watched, [tokens], device=CPU)
            watched.finish(model.config.n_layers - 1)
        return len(watched.products._known)

    assert weights_alive() == 0
    tracemalloc.start()
    entries = captured(model, [tokens])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert entries
    layers = [sum(h.nbytes for h in layer.values()) for layer in model.layers]
    assert peak < 2 * (2 * max(layers)) + 8e6


@pytest.fixture(scope="module")
def llama_imatrix() -> str:
    found = os.environ.get(PROGRAM) or shutil.which("llama-imatrix")
    if not found:
        pytest.skip(f"llama-imatrix is neither in PATH nor in {PROGRAM}")
    return found


@pytest.mark.peer
def test_embedded_model_against_llama_imatrix(llama_imatrix: str, tmp_path: Path) -> None:
    """In F32 nothing is rounded but sums: the same entries, counts and values."""
    text = tmp_path / "text.txt"
    text.write_text(
        (EMBEDDED.parents[2] / "calib" / "capture.txt").read_text(encoding="utf-8")[:9000],
        encoding="utf-8",
    )
    convert_checkpoint(EMBEDDED, tmp_path / "bf16.gguf")
    model = tmp_path / "f32.gguf"
    encode_gguf(tmp_path / "bf16.gguf", model, [Rule.parse(".*=F32")])
    indexer = open_model(model).config.indexer
    assert indexer is not None  # beyond its budget llama.cpp selects other tokens
    n = indexer.budget
    ours = capture_importance(model, [text], context=n, device=CPU).importance
    command = [llama_imatrix, "-m", str(model), "-f", str(text), "-c", f"{n}", "-b", f"{n}"]
    command += ["-ub", f"{n}", "-t", "1", "--process-output", "-o", str(tmp_path / "theirs.gguf")]
    subprocess.run([*command, "-fa", "off", "-ctk", "f32", "-ctv", "f32"], check=True)
    theirs = read_importance(tmp_path / "theirs.gguf")
    assert theirs.chunk_count == ours.chunk_count
    assert set(ours.entries) - set(theirs.entries) == {
        "output_hc_down.weight",
        "output_hc_up.weight",
    }
    assert set(theirs.entries) <= set(ours.entries)
    errors = {}
    for name, entry in theirs.entries.items():
        own = ours.entries[name]
        moved = np.abs(own.counts - entry.counts).sum() / entry.counts.sum()
        assert moved < 0.002, name
        errors[name] = np.linalg.norm(own.sums - entry.sums) / np.linalg.norm(entry.sums)
    assert np.median(list(errors.values())) < 1e-4
    assert max(errors.values()) < 0.01
