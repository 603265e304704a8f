"""The input of the multi-token prediction head, and its tensors in the embedded model."""

from __future__ import annotations

import json
import math

import torch

from quantkit.containers.safetensors import open_safetensors
from quantkit.models.arch import layer_roles
from quantkit.models.config import Mixer, ModelConfig
from quantkit.models.hf_config import config_from_hf
from quantkit.models.mtp import (
    MTP_INPUT_NAMES,
    MTP_LAYER_PREFIX,
    MTP_PREFIX,
    MtpInputWeights,
    mtp_input,
)
from quantkit.models.roles import HYPER_OUTPUT, Role
from quantkit.models.shapes import role_shapes
from tests.tiny import EMBEDDED

N_TENSORS = 31


def test_input_written_out() -> None:
    """One token at a time, one stream at a time, with a norm over all streams together."""
    generator = torch.Generator().manual_seed(0)
    n_streams, hidden, eps = 3, 5, 1e-6

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    w = MtpInputWeights(
        normal(hidden), normal(n_streams * hidden), normal(hidden, hidden), normal(hidden, hidden)
    )
    state, embedding = normal(2, 4, n_streams * hidden), normal(2, 4, hidden)
    found = mtp_input(state, embedding, w, n_streams, eps)
    for b in range(2):
        for t in range(4):
            e, s = embedding[b, t].tolist(), state[b, t].tolist()
            rms_e = math.sqrt(sum(x * x for x in e) / hidden + eps)
            rms_s = math.sqrt(sum(x * x for x in s) / (n_streams * hidden) + eps)
            e = [x / rms_e * float(g) for x, g in zip(e, w.norm_embedding, strict=True)]
            s = [x / rms_s * float(g) for x, g in zip(s, w.norm_hidden, strict=True)]
            for stream in range(n_streams):
                own = s[stream * hidden : (stream + 1) * hidden]
                for i in range(hidden):
                    wanted = sum(float(w.fc_hidden[i, j]) * own[j] for j in range(hidden))
                    wanted += sum(float(w.fc_embedding[i, j]) * e[j] for j in range(hidden))
                    assert math.isclose(
                        float(found[b, t, stream * hidden + i]), wanted, rel_tol=1e-9, abs_tol=1e-12
                    )


def _embedded_config() -> ModelConfig:
    return config_from_hf(json.loads((EMBEDDED / "config.json").read_text()))


def _stored_shape(role: Role, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Shape of the transformers tensor, whose fused rows belong to several roles."""
    shape = shapes[role.name]
    if role.hf_part in ("gate", "up"):
        return (shape[0], 2 * shape[1], shape[2])
    if role.hf_part in ("indexer_q", "indexer_k"):
        return (shapes["indexer_q"][0] + shapes["indexer_k"][0], shape[1])
    return shape


def test_embedded_model_has_every_tensor() -> None:
    config = _embedded_config()
    assert config.hyper is not None
    shapes = role_shapes(config)
    wide = config.hyper.n_streams * config.hidden
    wanted = {
        MTP_PREFIX + MTP_INPUT_NAMES["norm_embedding"]: (config.hidden,),
        MTP_PREFIX + MTP_INPUT_NAMES["norm_hidden"]: (wide,),
        MTP_PREFIX + MTP_INPUT_NAMES["fc_embedding"]: (config.hidden, config.hidden),
        MTP_PREFIX + MTP_INPUT_NAMES["fc_hidden"]: (config.hidden, config.hidden),
    }
    wanted |= {MTP_PREFIX + role.hf: _stored_shape(role, shapes) for role in HYPER_OUTPUT}
    attention_layer = config.mixers.index(Mixer.ATTENTION)
    for role in layer_roles(config, attention_layer):
        wanted[MTP_LAYER_PREFIX + role.hf] = _stored_shape(role, shapes)
    entries = open_safetensors(EMBEDDED).tensors
    found = {name: entry for name, entry in entries.items() if name.startswith(MTP_PREFIX)}
    assert {name: entry.shape for name, entry in found.items()} == wanted
    assert len(found) == N_TENSORS
    assert {entry.qtype.name for entry in found.values()} == {"BF16"}


def test_names_of_the_released_checkpoint() -> None:
    """Literally, because no other program here would notice a wrong one."""
    assert {MTP_PREFIX + name for name in MTP_INPUT_NAMES.values()} == {
        "mtp.fc_embedding.weight",
        "mtp.fc_hidden.weight",
        "mtp.pre_fc_norm_embedding.weight",
        "mtp.pre_fc_norm_hidden.weight",
    }
    assert MTP_LAYER_PREFIX == "mtp.layers.0."
    assert {MTP_PREFIX + role.hf for role in HYPER_OUTPUT} == {
        "mtp.hyper_connection_mixer.hc_norm.weight",
        "mtp.hyper_connection_mixer.input_mix_weight_down.weight",
        "mtp.hyper_connection_mixer.input_mix_weight_up.weight",
    }


def test_head_is_trained() -> None:
    """No tensor is left at its initial value: all zeros, or one number everywhere."""
    for name, entry in open_safetensors(EMBEDDED).tensors.items():
        if name.startswith(MTP_PREFIX):
            stored = torch.frombuffer(bytearray(entry.parts()["data"]), dtype=torch.bfloat16)
            assert float(stored.float().std()) > 0, name
