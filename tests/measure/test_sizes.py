"""Sizes of units whose weights have scales beside them, against the files that splice writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, PART_UNITS, Sensitivity
from quantkit.artifacts.store import load, save
from quantkit.containers.base import TensorSpec, spec_of
from quantkit.containers.gguf import open_gguf, write_gguf
from quantkit.measure import measure
from quantkit.qtypes import by_name
from quantkit.splice import UnitChoice, plan_splice, write_splice
from tests.tiny import CPU, Zoo, sample_text

EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"
N_LAYERS = 2


def with_scales(source: Path, out: Path, suffixes: list[str]) -> Path:
    """A copy with a factor of 1 for each expert beside every expert weight."""
    file = open_gguf(source)
    specs = []
    for entry in file.tensors.values():
        specs.append(spec_of(entry))
        if entry.name.endswith("_exps.weight"):
            data = np.ones(entry.shape[0], np.float32).tobytes()
            for suffix in suffixes:
                name = entry.name.removesuffix(".weight") + suffix
                shape = entry.shape[:1]
                specs.append(TensorSpec(name, shape, by_name("F32"), lambda data=data: [data]))
    return write_gguf(out, file.metadata.carried(), specs)[0]


@pytest.fixture(scope="module")
def sources(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scaled")
    q5, q8, q2 = (zoo.quantized("qwen3moe", f"{EXPERTS}={q}") for q in ("Q5_0", "Q8_0", "Q2_0"))
    return {
        "plain": q5,
        "one": with_scales(q8, folder / "one.gguf", [".scale"]),
        "two": with_scales(q2, folder / "two.gguf", [".scale", ".input_scale"]),
    }


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "capture.txt"
    path.write_text(sample_text(2600), encoding="utf-8")
    return path


def measured(base: str, sources: dict[str, Path], zoo: Zoo, text: Path) -> Sensitivity:
    ordered = {base: sources[base]} | sources
    return measure(zoo.gguf("qwen3moe"), ordered, [text], context=128, device=CPU)


@pytest.mark.parametrize("base", ["plain", "one", "two"])
def test_predicted_size_is_the_hybrids(
    base: str, sources: dict[str, Path], zoo: Zoo, text: Path, tmp_path: Path
) -> None:
    """Whichever of base and donors have scales, one unit or all of them swapped."""
    found = measured(base, sources, zoo, text)
    save(found, tmp_path / "s.json")
    assert load(Sensitivity, tmp_path / "s.json") == found
    by_name_ = {source.name: source for source in found.sources}
    rng = np.random.default_rng(3)
    for number in range(8):
        drawn = {
            (i, unit): str(rng.choice(list(sources)))
            for i in range(N_LAYERS)
            for unit in PART_UNITS
        }
        predicted = found.fixed_bytes + sum(
            by_name_[name].by_layer[i].bytes_of(unit) for (i, unit), name in drawn.items()
        )
        files = {name: open_gguf(path) for name, path in sources.items()}
        choices = [UnitChoice(i, unit, name) for (i, unit), name in drawn.items()]
        plan = plan_splice(
            files.pop(base),
            files,
            choices,
            base_name=base,
            overhead_bytes=found.overhead_bytes,
        )
        out = tmp_path / f"{number}.gguf"
        write_splice(plan, out)
        assert out.stat().st_size == predicted


def test_companions_are_counted_once(sources: dict[str, Path], zoo: Zoo, text: Path) -> None:
    found = measured("two", sources, zoo, text)
    assert not [t.name for t in found.fixed_tensors if "_exps" in t.name]
    two, plain = (
        next(s for s in found.sources if s.name == name).by_layer[1] for name in ("two", "plain")
    )
    weights = {
        name: sum(
            open_gguf(sources[name]).tensors[f"blk.1.ffn_{part}_exps.weight"].nbytes
            for part in ("gate", "up")
        )
        for name in ("two", "plain")
    }
    assert plain.bytes_of(GATE_UP) == weights["plain"]
    # Two weights with two vectors of 8 float32 each, whose records take 64 padded bytes.
    assert two.bytes_of(GATE_UP) == weights["two"] + 4 * (32 + 64)
    assert [t.name for t in two.tensors[DOWN]] == ["blk.1.ffn_down_exps.weight"]
