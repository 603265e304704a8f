"""Opening models: one view of every container, and a named error for each that is broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.gguf.values import key_of
from quantkit.errors import ContainerError, ModelError
from quantkit.quantize import convert_checkpoint
from quantkit.weights import open_model
from tests.tiny import (
    ARCHITECTURES,
    CPU,
    Zoo,
    edit_config,
    fuse_experts,
    random_model,
    rewrite,
    save_checkpoint,
)

EditTensors = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_container_gives_the_same_values(arch: str, zoo: Zoo) -> None:
    single = open_model(zoo.checkpoint(arch))
    for path in (zoo.checkpoint(arch, fused=True), zoo.gguf(arch)):
        other = open_model(path)
        assert other.config == single.config
        assert set(other.top) == set(single.top)
        for role, handle in single.top.items():
            assert torch.equal(other.top[role].value(), handle.value()), role
        for ours, theirs in zip(single.layers, other.layers, strict=True):
            assert set(ours) == set(theirs)
            for role, handle in ours.items():
                assert torch.equal(theirs[role].value().squeeze(), handle.value().squeeze()), role


def test_layer_view(zoo: Zoo) -> None:
    model = open_model(zoo.gguf("qwen4exp"))
    view = model.layer(1, CPU)
    assert view["router"] is view["router"], "dense roles stay decoded"
    down = model.layers[1]["experts_down"].value()
    assert torch.equal(view.expert(5).down, down[5])
    rows = torch.tensor([[3, 400], [0, 3]])
    table = model.top["ngram_table"].value()
    assert torch.equal(view.ngram_rows(rows), table[rows])
    tokens = torch.tensor([[1, 2, 1]])
    assert torch.equal(model.embedding_rows(tokens), model.top["token_embd"].value()[tokens])


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_checkpoint(random_model("qwen3moe", tie_word_embeddings=True), folder, "qwen3moe")
    convert_checkpoint(folder, tmp_path / "model.gguf")
    assert "output.weight" not in open_gguf(tmp_path / "model.gguf").tensors
    for path in (folder, tmp_path / "model.gguf"):
        top = open_model(path).top_view(CPU)
        assert torch.equal(top["output"], top["token_embd"])


class TestBrokenCheckpoint:
    @pytest.fixture
    def folder(self, zoo: Zoo, tmp_path: Path) -> Path:
        return Path(shutil.copytree(zoo.checkpoint("qwen4exp"), tmp_path / "model"))

    @staticmethod
    def edited(folder: Path, edit: EditTensors) -> Path:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        rewrite(folder, tensors)
        return folder

    @pytest.mark.parametrize(
        "name",
        [
            "lm_head.weight",
            "model.layers.3.self_attn.k_proj.weight",
            "model.layers.2.mlp.experts.5.up_proj.weight",
            "model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight",
            "model.hyper_connection_mixer.hc_norm.weight",
        ],
    )
    def test_missing_tensor(self, folder: Path, name: str) -> None:
        self.edited(folder, lambda tensors: tensors.pop(name))
        with pytest.raises(ModelError, match="lacks a tensor") as caught:
            open_model(folder)
        assert caught.value.tensor == name
        assert caught.value.file == str(folder)
        assert caught.value.rule
        assert caught.value.hint

    def test_no_embedding(self, folder: Path) -> None:
        self.edited(folder, lambda tensors: tensors.pop("model.embed_tokens.weight"))
        with pytest.raises(ModelError, match="no token embedding"):
            open_model(folder)

    @pytest.mark.parametrize("field", ["num_experts", "hidden_size", "vocab_size", "hc_lowrank"])
    @pytest.mark.parametrize("change", [-2, 2])
    def test_configuration_of_another_model(self, folder: Path, field: str, change: int) -> None:
        value = json.loads((folder / "config.json").read_text())[field]
        edit_config(folder, **{field: value + change})
        with pytest.raises(ModelError) as caught:
            open_model(folder)
        assert caught.value.tensor
        assert caught.value.rule

    def test_fewer_experts_in_the_configuration_than_stored(self, folder: Path) -> None:
        """Ignoring the last experts would run without a complaint and compute something else."""
        edit_config(folder, num_experts=6)
        self.edited(
            folder,
            lambda tensors: tensors.update(
                {n: t[:6].clone() for n, t in tensors.items() if n.endswith("mlp.gate.weight")}
            ),
        )
        with pytest.raises(ModelError, match="another number of experts") as caught:
            open_model(folder)
        assert "experts.0.gate_proj" in str(caught.value.tensor)
        assert caught.value.value == [8, 96, 128]

    def test_fused_experts_of_another_number(self, folder: Path) -> None:
        def edit(tensors: dict[str, Tensor]) -> None:
            fused = fuse_experts(tensors)
            tensors.clear()
            tensors.update({n: t[:7] if ".experts." in n else t for n, t in fused.items()})

        self.edited(folder, edit)
        with pytest.raises(ModelError, match="another number of experts"):
            open_model(folder)

    def test_table_that_is_too_short_for_the_hash(self, folder: Path) -> None:
        name = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_1.weight"
        self.edited(folder, lambda tensors: tensors.update({name: tensors[name][:-64]}))
        with pytest.raises(ModelError, match="another shape") as caught:
            open_model(folder)
        assert caught.value.value == [384, 32]

    @pytest.mark.parametrize(
        ("changes", "tensor"),
        [
            ({"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}, "layers.2."),
            ({"ple_layer_ids": []}, "layers.1.ple."),
            ({"shared_expert_intermediate_size": 0}, "shared_expert"),
            (
                {
                    "indexer_n_heads": None, "indexer_kv_heads": None, "indexer_head_dim": None,
                    "indexer_budget": None, "indexer_compress_ratio": None,
                },
                "indexer",
            ),
        ],
    )  # fmt: skip
    def test_configuration_that_leaves_tensors_out(
        self, folder: Path, changes: dict[str, Any], tensor: str
    ) -> None:
        edit_config(folder, **changes)
        with pytest.raises(ModelError, match="no use for") as caught:
            open_model(folder)
        assert tensor in str(caught.value.tensor)
        assert "config.json" in str(caught.value.rule)

    def test_surplus_tensors(self, folder: Path) -> None:
        """Another part of the model is none of the trunk's; a surplus of the trunk is refused."""
        more = {
            name: torch.zeros(2)
            for name in ("mtp.fc.weight", "model.visual.x", "model.rotary_emb.inv_freq", "lm_heads")
        }
        self.edited(folder, lambda tensors: tensors.update(more))
        open_model(folder)
        name = "model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"
        self.edited(folder, lambda tensors: tensors.update({name: torch.zeros(2)}))
        with pytest.raises(ModelError, match="no use for") as caught:
            open_model(folder)
        assert (caught.value.tensor, caught.value.value) == (name, "1 of them")

    @pytest.mark.parametrize("constant", ["layer_multipliers", "ngram_heads_offsets"])
    @pytest.mark.parametrize(
        "value", [torch.zeros(1, dtype=torch.int64), torch.ones(5), torch.full((4,), -1)]
    )
    def test_constants_that_are_none(self, folder: Path, constant: str, value: Tensor) -> None:
        name = f"model.layers.1.ple.ple_embedding.{constant}"
        self.edited(folder, lambda tensors: tensors.update({name: value}))
        with pytest.raises(ModelError, match="constants of the n-gram hash") as caught:
            open_model(folder)
        assert caught.value.tensor == name

    def test_truncated_file(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ContainerError) as caught:
            open_model(folder)
        assert caught.value.file == str(path)

    def test_missing_shard(self, folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        index = {name: f"part-{len(name) % 2}.safetensors" for name in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        (folder / "model.safetensors").rename(folder / "part-0.safetensors")
        with pytest.raises(ContainerError) as caught:
            open_model(folder)
        assert "part-1.safetensors" in str(caught.value)

    @pytest.mark.parametrize(
        "text",
        [
            "", "[1]", '{"model_type": "llama"}', '{"model_type": 3', '{"model_type": 3}', "null",
            "\udcff", '{"text_config": []}', '{"text_config": null}', "[" * 100_000,
            '{"a": ' * 50_000, '{"a": ' + "9" * 5000 + "}",
        ],
        ids=lambda text: text[:20].encode("ascii", "replace").decode(),
    )  # fmt: skip
    def test_unusable_configuration(self, folder: Path, text: str) -> None:
        (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelError) as caught:
            open_model(folder)
        assert "config.json" in caught.value.render()


class TestBrokenGGUF:
    @pytest.fixture
    def source(self, zoo: Zoo) -> Path:
        return zoo.gguf("qwen4exp")

    @staticmethod
    def rewritten(
        source: Path,
        out: Path,
        *,
        drop: str | None = None,
        shapes: dict[str, tuple[int, ...]] | None = None,
        keys: dict[str, bytes] | None = None,
    ) -> Path:
        """A copy without a tensor, with other shapes (zeros), or with other keys (b"" drops)."""
        file = open_gguf(source)
        specs = []
        for name, e in file.tensors.items():
            shape = (shapes or {}).get(name, e.shape)
            data = bytes(e.qtype.nbytes(torch.Size(shape).numel()))
            body = e.byte_range if shape == e.shape else (lambda data=data: [data])
            if name != drop:
                specs.append(TensorSpec(name, shape, e.qtype, body))
        pairs = [(keys or {}).get(key_of(raw), raw) for raw in file.metadata.carried()]
        write_gguf(out, [pair for pair in pairs if pair], specs)
        return out

    @pytest.mark.parametrize(
        "name", ["output_hc_down.weight", "blk.1.ple_key.weight", "blk.3.ffn_up_exps.weight"]
    )
    def test_missing_tensor(self, source: Path, tmp_path: Path, name: str) -> None:
        path = self.rewritten(source, tmp_path / "x.gguf", drop=name)
        with pytest.raises(ModelError, match="lacks a tensor") as caught:
            open_model(path)
        assert (caught.value.tensor, caught.value.file) == (name, str(path))
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("name", "shape", "words"),
        [
            ("blk.2.ffn_down_exps.weight", (7, 128, 96), "another number of experts"),
            ("blk.2.ffn_gate_inp.weight", (7, 128), "another shape"),
            ("token_embd.weight", (320, 64), "another shape"),
            ("per_layer_token_embd.weight", (400, 32), "another shape"),
            ("blk.0.ssm_a", (4,), "another shape"),
            ("blk.0.attn_qkv.weight", (128, 160), "another shape"),
        ],
    )
    def test_shapes(
        self, source: Path, tmp_path: Path, name: str, shape: tuple[int, ...], words: str
    ) -> None:
        path = self.rewritten(source, tmp_path / "x.gguf", shapes={name: shape})
        with pytest.raises(ModelError, match=words) as caught:
            open_model(path)
        assert (caught.value.tensor, caught.value.value) == (name, list(shape))
        assert caught.value.file == str(path)

    def test_expert_count_that_is_not_the_tensors(self, source: Path, tmp_path: Path) -> None:
        key = "qwen4exp.expert_count"
        pair = pack_kv(key, ValueType.UINT32, 6)
        path = self.rewritten(source, tmp_path / "x.gguf", keys={key: pair})
        with pytest.raises(ModelError, match=r"shape|number of experts") as caught:
            open_model(path)
        assert caught.value.tensor

    def test_missing_key(self, source: Path, tmp_path: Path) -> None:
        path = self.rewritten(source, tmp_path / "x.gguf", keys={"qwen4exp.ssm.state_size": b""})
        with pytest.raises(ModelError, match="lacks a key") as caught:
            open_model(path)
        assert (caught.value.value, caught.value.file) == ("qwen4exp.ssm.state_size", str(path))

    @pytest.mark.parametrize(
        ("keys", "tensor"),
        [
            (
                {
                    "qwen4exp.block_count": pack_kv("qwen4exp.block_count", ValueType.UINT32, 3),
                    "qwen4exp.full_attention_interval": b"",
                },
                "blk.3.",
            ),
            ({"qwen4exp.ple.layers": b""}, "per_layer_token_embd.weight"),
            ({"qwen4exp.expert_shared_feed_forward_length": b""}, "shexp"),
            ({"qwen4exp.attention.compress_ratios": b""}, "indexer"),
        ],
    )
    def test_metadata_that_leaves_tensors_out(
        self, source: Path, tmp_path: Path, keys: dict[str, bytes], tensor: str
    ) -> None:
        path = self.rewritten(source, tmp_path / "x.gguf", keys=keys)
        with pytest.raises(ModelError, match="no use for") as caught:
            open_model(path)
        assert tensor in str(caught.value.tensor)
        assert caught.value.file == str(path)

    def test_not_a_model(self, source: Path, tmp_path: Path) -> None:
        for change in ({"keys": {"general.architecture": b""}}, {"drop": "token_embd.weight"}):
            path = self.rewritten(source, tmp_path / "x.gguf", **change)
            with pytest.raises(ModelError, match="not a language model"):
                open_model(path)

    def test_old_layouts_are_named_in_the_hint(self, source: Path, tmp_path: Path) -> None:
        """Experts one by one, or gate and up fused: other programs' files."""
        file = open_gguf(source)
        for surplus, word in (
            ("blk.0.ffn_gate.0.weight", "one by one"),
            ("blk.0.ffn_gate_up_exps.weight", "fused"),
        ):
            specs = [
                TensorSpec(
                    surplus if n == "blk.0.ffn_gate_exps.weight" else n,
                    e.shape,
                    e.qtype,
                    e.byte_range,
                )
                for n, e in file.tensors.items()
            ]
            write_gguf(tmp_path / "x.gguf", file.metadata.carried(), specs)
            with pytest.raises(ModelError) as caught:
                open_model(tmp_path / "x.gguf")
            assert word in str(caught.value.hint)

    def test_truncated(self, source: Path, tmp_path: Path) -> None:
        path = tmp_path / "x.gguf"
        path.write_bytes(source.read_bytes()[:-1000])
        with pytest.raises(ContainerError) as caught:
            open_model(path)
        assert caught.value.file == str(path)
        assert caught.value.tensor

    def test_missing_shard(self, source: Path, tmp_path: Path) -> None:
        file = open_gguf(source)
        specs = [TensorSpec(e.name, e.shape, e.qtype, e.byte_range) for e in file.tensors.values()]
        pairs = file.metadata.carried()
        shards = write_gguf(tmp_path / "x.gguf", pairs, specs, split_max_bytes=1_000_000)
        assert torch.equal(
            open_model(shards[-1]).layers[0]["experts_up"].value(),
            open_model(source).layers[0]["experts_up"].value(),
        )
        shards[1].unlink()
        with pytest.raises(ContainerError) as caught:
            open_model(shards[0])
        assert shards[1].name in str(caught.value)

    def test_every_cut_is_a_named_error(self, zoo: Zoo, tmp_path: Path) -> None:
        """No IndexError, no struct.error: whatever is left of the header."""
        whole = zoo.gguf("qwen3moe").read_bytes()
        path = tmp_path / "x.gguf"
        for size in [*range(0, 60), *range(60, 9000, 397), len(whole) // 2, len(whole) - 1]:
            path.write_bytes(whole[:size])
            with pytest.raises((ContainerError, ModelError)):
                open_model(path)

    def test_unknown_architecture(self, source: Path, tmp_path: Path) -> None:
        pair = pack_kv("general.architecture", ValueType.STRING, "llama")
        path = self.rewritten(source, tmp_path / "x.gguf", keys={"general.architecture": pair})
        with pytest.raises(ModelError, match="unknown architecture 'llama'") as caught:
            open_model(path)
        assert caught.value.file == str(path)
