"""A base and donors: two layers of eight experts, the same model in several types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantkit.containers.base import ByteRange, TensorSpec
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf, pack_kv, write_gguf
from quantkit.qtypes import QType, by_gguf_id, by_name
from quantkit.splice import UnitChoice, plan_splice
from quantkit.splice.plan import SplicePlan

N_LAYERS, N_EXPERTS, MODEL, INNER = 3, 4, 256, 64

CHOICES = [
    UnitChoice(0, "layer", "iq4"),
    UnitChoice(1, "down", "q2"),
    UnitChoice(1, "gate_up", "base"),
]

MakeModel = Callable[..., GGUFFile]


def shapes(n_experts: int = N_EXPERTS) -> dict[str, tuple[int, ...]]:
    """Tensor name -> row-major shape, with names that a loose pattern would mistake."""
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (32, MODEL)}
    for layer in range(N_LAYERS):
        found |= {
            f"blk.{layer}.ffn_gate_inp.weight": (n_experts, MODEL),
            f"blk.{layer}.ffn_gate_exps.weight": (n_experts, INNER, MODEL),
            f"blk.{layer}.ffn_up_exps.weight": (n_experts, INNER, MODEL),
            f"blk.{layer}.ffn_down_exps.weight": (n_experts, MODEL, INNER),
            f"blk.{layer}.ffn_down_shexp.weight": (MODEL, INNER),
            f"blk.{layer}.hc_ffn_down.weight": (2, MODEL),
        }
    return found


def is_routed(name: str) -> bool:
    return "_exps." in name


def bytes_of(seed: int, name: str, nbytes: int) -> bytes:
    """Reproducible bytes that differ by model and tensor."""
    return np.random.default_rng([seed, *name.encode()]).bytes(nbytes)


def spec(seed: int, name: str, shape: tuple[int, ...], qtype: QType) -> TensorSpec:
    nbytes = qtype.nbytes(int(np.prod(shape)))
    return TensorSpec(name, shape, qtype, lambda: [bytes_of(seed, name, nbytes)])


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Write and open a model: routed experts in `routed`, everything else in `other`."""

    def make(
        name: str,
        routed: str = "Q8_0",
        other: str = "F32",
        seed: int = 0,
        pairs: list[bytes] | None = None,
        rename: dict[str, str] | None = None,
        n_experts: int = N_EXPERTS,
        limit: int | None = None,
        extra: list[TensorSpec] | None = None,
    ) -> GGUFFile:
        metadata = [
            pack_kv("general.architecture", ValueType.STRING, "qwen3moe"),
            pack_kv("general.file_type", ValueType.UINT32, 7),
            pack_kv("tokenizer.ggml.tokens", ValueType.ARRAY, ["a", "ü"] * 600, ValueType.STRING),
        ]
        specs = [
            spec(
                seed,
                (rename or {}).get(tensor, tensor),
                shape,
                by_name(routed if is_routed(tensor) else other),
            )
            for tensor, shape in shapes(n_experts).items()
        ]
        if pairs is not None:
            metadata = pairs
        path = tmp_path / f"{name}.gguf"
        return open_gguf(
            write_gguf(path, metadata, [*specs, *(extra or [])], split_max_bytes=limit)[0]
        )

    return make


@pytest.fixture
def base(make_model: MakeModel) -> GGUFFile:
    return make_model("base")


@pytest.fixture
def donors(make_model: MakeModel) -> dict[str, GGUFFile]:
    """Two donors, one of them in shards."""
    return {
        "iq4": make_model("donor-iq4", "IQ4_NL", seed=1),
        "q2": make_model("donor-q2", "Q2_0", seed=2, limit=20_000),
    }


@pytest.fixture
def opaque_donor(tmp_path: Path, base: GGUFFile) -> GGUFFile:
    """A donor whose routed experts have a type that only a fork knows."""
    raw = tmp_path / "opaque.bin"
    raw.write_bytes(bytes_of(5, "opaque", 1 << 20))
    specs = [
        TensorSpec(name, shape, by_gguf_id(153), ByteRange(raw, 64 * index, 3200))
        for index, (name, shape) in enumerate(shapes().items())
        if is_routed(name)
    ]
    return open_gguf(write_gguf(tmp_path / "opaque.gguf", [], specs)[0])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "hybrid.gguf"


@pytest.fixture
def plan(base: GGUFFile, donors: dict[str, GGUFFile]) -> SplicePlan:
    return plan_splice(base, donors, CHOICES)


def leave_nothing(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == []
