"""Write the trained model as transformers would: names, layout, BF16, shards with an index."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from model import Block, EmbeddedModel
from safetensors.torch import save_file
from torch import Tensor, nn

from quantkit.models import arch
from quantkit.models.mtp import MTP_INPUT_NAMES, MTP_LAYER_PREFIX, MTP_PREFIX
from quantkit.models.roles import EXPERT_ROLES, Role

N_TABLE_SHARDS = 2
MAX_SHARD_BYTES = 15_000_000


def _layer_tensors(block: Block, found: tuple[Role, ...], prefix: str, fused: bool) -> dict:
    """Stored tensors of one layer; experts one by one as in the trunk, or fused as in the head."""
    values = {role.name: block.stored[role.name].detach() for role in found}
    out: dict[str, Tensor] = {}
    for role in found:
        if role.name in EXPERT_ROLES and not fused:
            assert role.hf_single
            for number, matrix in enumerate(values[role.name]):
                out[prefix + role.hf_single.format(expert=number)] = matrix
        elif role.hf_part == "all":
            out[prefix + role.hf] = values[role.name]
        else:
            same = [values[r.name] for r in found if r.hf == role.hf]
            out[prefix + role.hf] = torch.cat(same, dim=-2)
    return out


def checkpoint_tensors(model: EmbeddedModel) -> dict[str, Tensor]:
    """Every tensor of the checkpoint by its transformers name, BF16 except the hash constants."""
    c = model.c
    assert c.ngram
    out: dict[str, Tensor] = {}
    for role in arch.model_roles(c):
        if role.name == "ngram_table":
            continue
        name = role.hf if role.name == "output" else f"model.{role.hf}"
        out[name] = model.top.stored[role.name].detach()
    for i, block in enumerate(model.layers):
        out |= _layer_tensors(block, arch.layer_roles(c, i), f"model.layers.{i}.", fused=False)
    mtp_roles = arch.layer_roles(c, model.mtp_layer)
    out |= _layer_tensors(model.mtp, mtp_roles, MTP_LAYER_PREFIX, fused=True)
    for role in arch.model_roles(c):
        if role.name in model.mtp.stored:
            out[MTP_PREFIX + role.hf] = model.mtp.stored[role.name].detach()
    for field, name in MTP_INPUT_NAMES.items():
        out[MTP_PREFIX + name] = model.mtp_input[field].detach()
    out = {name: value.to(torch.bfloat16).cpu().contiguous() for name, value in out.items()}

    ngram = f"model.layers.{c.ngram.layer}.ple.ple_embedding."
    table = model.top.stored["ngram_table"].detach().to(torch.bfloat16).cpu()
    for shard, rows in enumerate(table.chunk(N_TABLE_SHARDS)):
        out[f"{ngram}ngram_embedding.shard_{shard}.weight"] = rows.contiguous()
    out[f"{ngram}layer_multipliers"] = torch.tensor(c.ngram.multipliers)
    out[f"{ngram}ngram_heads_offsets"] = torch.tensor(c.ngram.head_offsets)
    out[f"{ngram}ngram_heads_vocab_sizes"] = torch.tensor(c.ngram.head_vocab_sizes)
    return out


def round_to_bf16(model: nn.Module) -> None:
    """Make the parameters what the checkpoint will hold, so that an evaluation is about it."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(torch.bfloat16))


def save_checkpoint(model: EmbeddedModel, folder: Path) -> None:
    """Write `model-0000k-of-0000n.safetensors` and their index into `folder`."""
    tensors = checkpoint_tensors(model)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name in sorted(tensors):
        nbytes = tensors[name].nbytes
        if size + nbytes > MAX_SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name]
        size += nbytes
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
