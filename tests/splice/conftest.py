"""A base and donors: two layers of eight experts, the same model in several types."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantkit.artifacts.selection import Choice, Extreme, Goal, Selection, SelectionSource
from quantkit.artifacts.store import FileId
from quantkit.containers.base import ByteRange, TensorSpec, spec_of
from quantkit.containers.gguf import (
    GGUFFile,
    ValueType,
    gguf_header_bytes,
    open_gguf,
    pack_kv,
    write_gguf,
)
from quantkit.containers.gguf.contents import contents_of
from quantkit.qtypes import QType, by_gguf_id, by_name
from quantkit.splice import UnitChoice, plan_splice
from quantkit.splice.plan import SplicePlan

N_LAYERS, N_EXPERTS, MODEL, INNER = 3, 4, 256, 64
OVERHEAD_BYTES = 4096
SOURCES = {0: "iq4", 1: "q8", 2: "q2"}

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


def identities(model: GGUFFile) -> tuple[FileId, ...]:
    return tuple(
        FileId(p.name, hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_size)
        for p in model.shards
    )


@pytest.fixture
def selection(base: GGUFFile, donors: dict[str, GGUFFile]) -> Selection:
    """Each layer from another source, sizes as `measure` defines them; the base is called q8."""
    models = {"q8": base, **donors}
    choices = []
    for layer in range(N_LAYERS):
        names = [f"blk.{layer}.ffn_{kind}_exps.weight" for kind in ("gate", "up", "down")]
        tensors = [models[SOURCES[layer]].tensors[name] for name in names]
        types = {t.name: t.qtype.name for t in tensors}
        nbytes = sum(-(-t.nbytes // 32) * 32 for t in tensors)
        choices.append(Choice(layer, "layer", SOURCES[layer], types, 0.01, 0.001, nbytes))
    header = gguf_header_bytes(
        base.metadata.carried(), [spec_of(entry) for entry in base.tensors.values()]
    )
    rest = sum(-(-t.nbytes // 32) * 32 for n, t in base.tensors.items() if not is_routed(n))
    fixed = header + OVERHEAD_BYTES + rest
    return Selection(
        name="test",
        unit="layer",
        goal=Goal(target_bytes=10**9, max_error=None),
        sources=tuple(SelectionSource(name, identities(m)) for name, m in models.items()),
        predicted_file_bytes=fixed + sum(choice.bytes for choice in choices),
        predicted_error=0.03,
        predicted_standard_error=0.002,
        optimality_gap=0.0,
        fixed_bytes=fixed,
        overhead_bytes=OVERHEAD_BYTES,
        floor=Extreme(1, 0.5),
        ceiling=Extreme(2, 0.1),
        floor_reasons=(),
        choices=tuple(choices),
        sensitivity=FileId("sensitivity.json", "b" * 64, 7),
        command=("quantkit", "select"),
    )


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


@pytest.fixture
def hashed(selection: Selection, base: GGUFFile, donors: dict[str, GGUFFile]) -> Selection:
    """The selection with the hashes that `measure` takes."""
    models = {"q8": base, **donors}
    found = {name: contents_of(model, model.tensors) for name, model in models.items()}
    return dataclasses.replace(selection, contents=found)


def leave_nothing(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == []
