"""The stage: from files to an artifact, and the sizes in it against real hybrids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from quantkit.artifacts.sensitivity import DOWN, GATE_UP, LAYER, PART_UNITS, Sensitivity
from quantkit.artifacts.store import FileId, dumps, load, save
from quantkit.containers.base import spec_of
from quantkit.containers.gguf import open_gguf, write_gguf
from quantkit.containers.hashing import sha256_file
from quantkit.errors import ContainerError, DonorError, TextError
from quantkit.measure import measure
from quantkit.measure.errors import BLOCK_TOKENS
from quantkit.measure.run import MIN_TOKENS
from quantkit.measure.sizes import overhead_bytes
from quantkit.select import select
from quantkit.splice import UnitChoice, plan_from_selection, plan_splice, write_splice
from tests.tiny import CPU, Zoo, sample_text

EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"
TYPES = {"base": "Q5_0", "fine": "Q8_0", "iq4": "IQ4_NL", "q2": "Q2_0"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "capture.txt"
    path.write_text(sample_text(2600), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sources(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base and donors, one of them in shards."""
    found = {n: zoo.quantized("qwen3moe", f"{EXPERTS}={q}") for n, q in TYPES.items()}
    file = open_gguf(found["q2"])
    shards = write_gguf(
        tmp_path_factory.mktemp("shards") / "q2.gguf",
        file.metadata.carried(),
        [spec_of(entry) for entry in file.tensors.values()],
        split_max_bytes=200_000,
    )
    return found | {"q2": shards[1]}


@pytest.fixture(scope="module")
def found(zoo: Zoo, sources: dict[str, Path], text: Path) -> Sensitivity:
    return measure(zoo.gguf("qwen3moe"), sources, [text], context=128, device=CPU)


def test_artifact(found: Sensitivity, zoo: Zoo, text: Path, tmp_path: Path) -> None:
    save(found, tmp_path / "sensitivity.json")
    assert load(Sensitivity, tmp_path / "sensitivity.json") == found
    assert [source.name for source in found.sources] == list(TYPES)
    assert found.parameters == {"context": 128, "n_tokens": 4096, "block_tokens": BLOCK_TOKENS}
    assert found.architecture == "qwen3moe"
    assert [file.sha256 for file in found.reference] == [sha256_file(zoo.gguf("qwen3moe"))]
    assert [file.sha256 for file in found.texts] == [sha256_file(text)]
    assert len(found.sources[3].files) > 2, "every shard, whichever was given"
    for source in found.sources:
        assert [layer.layer for layer in source.layers] == [0, 1]
        for layer in source.layers:
            assert {t.qtype for t in layer.tensors[GATE_UP]} == {TYPES[source.name]}
            error = layer.errors[LAYER]
            assert (error.n_tokens, error.n_blocks) == (4096, 16)
            assert 0 < error.standard_error < error.relative_error


def test_units_add_up_nearly(found: Sensitivity) -> None:
    """gate+up and down err independently, so that their errors add to the layer's."""
    for source in found.sources:
        for layer in source.layers:
            parts = sum(layer.errors[unit].relative_error for unit in PART_UNITS)
            assert layer.errors[LAYER].relative_error == pytest.approx(parts, rel=0.2)


def test_rows_that_do_not_fit_are_seen(found: Sensitivity) -> None:
    """Rows of 96 made the Q2_0 donor's down projections Q4_0: small error, more bytes."""
    layer = found.sources[3].layers[0]
    assert [t.qtype for t in layer.tensors[DOWN]] == ["Q4_0"]
    assert layer.errors[DOWN].relative_error < layer.errors[GATE_UP].relative_error / 5


def test_reference_as_its_own_source(zoo: Zoo, text: Path) -> None:
    """Exactly nothing, which also means that nothing else differs between the two paths."""
    own = measure(
        zoo.checkpoint("qwen3moe"), {"base": zoo.gguf("qwen3moe")}, [text], context=128, device=CPU
    )
    for layer in own.base.layers:
        for error in layer.errors.values():
            assert (error.relative_error, error.standard_error) == (0.0, 0.0)
            assert error.identity_cosine == pytest.approx(1.0, abs=1e-12)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {f.name for f in own.reference}


def test_same_bytes_every_time(
    found: Sensitivity, zoo: Zoo, sources: dict[str, Path], text: Path
) -> None:
    again = measure(zoo.gguf("qwen3moe"), sources, [text], context=128, device=CPU)
    assert dumps(again) == dumps(found)


def predicted(found: Sensitivity, choices: dict[tuple[int, str], str]) -> int:
    by_name = {source.name: source for source in found.sources}
    units = (
        by_name[name].by_layer[layer].bytes_of(unit) for (layer, unit), name in choices.items()
    )
    return found.fixed_bytes + sum(units)


@pytest.mark.parametrize("seed", range(6))
def test_predicted_size_is_the_hybrids(
    seed: int, found: Sensitivity, sources: dict[str, Path], tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    units = (LAYER,) if seed % 2 else PART_UNITS
    choices = {(i, unit): str(rng.choice(list(TYPES))) for i in range(2) for unit in units}
    files = {name: open_gguf(path) for name, path in sources.items()}
    plan = plan_splice(
        files.pop("base"),
        files,
        [UnitChoice(layer, unit, name) for (layer, unit), name in choices.items()],
        overhead_bytes=found.overhead_bytes,
    )
    result = write_splice(plan, tmp_path / "hybrid.gguf")
    assert (tmp_path / "hybrid.gguf").stat().st_size == predicted(found, choices)
    assert result.nbytes == predicted(found, choices)


def test_all_that_a_hybrid_takes_has_a_hash(found: Sensitivity, sources: dict[str, Path]) -> None:
    files = {name: open_gguf(path) for name, path in sources.items()}
    donors = {name: file for name, file in files.items() if name != "base"}
    for goal in ({"max_error": 1e9}, {"max_error": 0.2}):
        chosen = select(found, FileId("s.json", "0" * 64, 1), name="x", unit_mode="split", **goal)
        plan = plan_from_selection(chosen, files["base"], donors)
        assert plan.unmeasured_files() == []
        measured = plan.measured_tensors()
        for tensor in plan.tensors:
            data = tensor.entry.parts()["data"].tobytes()
            assert measured.pop(tensor.entry.name) == blake3(data).hexdigest()
        assert sum(len(contents.tensors) for contents in chosen.contents.values()) == len(
            plan.tensors
        )
        assert not measured


def test_tensors_that_end_between_boundaries_are_counted_padded(
    zoo: Zoo, text: Path, tmp_path: Path
) -> None:
    """Vectors of six heads have 24 bytes and take 32."""
    paths = {n: zoo.quantized("qwen35moe", f"{EXPERTS}={q}") for n, q in TYPES.items()}
    used = {name: paths[name] for name in ("base", "q2")}
    found = measure(zoo.gguf("qwen35moe"), used, [text], context=128, device=CPU)
    assert {t.bytes for t in found.fixed_tensors if t.name.endswith("ssm_a")} == {32}
    base, donor = (open_gguf(path) for path in used.values())
    plan = plan_splice(
        base, {"q2": donor}, [UnitChoice(3, DOWN, "q2")], overhead_bytes=found.overhead_bytes
    )
    write_splice(plan, tmp_path / "hybrid.gguf")
    choices = {(i, unit): "base" for i in range(4) for unit in PART_UNITS} | {(3, DOWN): "q2"}
    assert (tmp_path / "hybrid.gguf").stat().st_size == predicted(found, choices)


def test_room_for_provenance_of_many_donors(found: Sensitivity) -> None:
    assert found.overhead_bytes == overhead_bytes(3 + len(found.sources[3].files), 4)
    assert overhead_bytes(17, 96) % 4096 == 0
    assert overhead_bytes(17, 96) >= 1024 + 17 * 512 + 96 * 64


class TestTexts:
    def test_chunks_are_taken_until_there_are_enough(
        self, zoo: Zoo, sources: dict[str, Path], text: Path, tmp_path: Path
    ) -> None:
        """From each text in turn; a context that does not divide 4096 gives some more."""
        short = tmp_path / "short.txt"
        short.write_text(sample_text(300, seed=2), encoding="utf-8")
        base = {"base": sources["base"]}
        found = measure(zoo.gguf("qwen3moe"), base, [short, text, short], context=300, device=CPU)
        assert [file.name for file in found.texts] == ["short.txt", "capture.txt"]
        assert found.parameters["n_tokens"] == 4200

    def test_too_few_tokens(self, zoo: Zoo, sources: dict[str, Path], tmp_path: Path) -> None:
        short = tmp_path / "short.txt"
        short.write_text(sample_text(500), encoding="utf-8")
        with pytest.raises(TextError, match="too few tokens") as caught:
            measure(zoo.gguf("qwen3moe"), sources, [short], context=64, device=CPU)
        assert str(MIN_TOKENS) in str(caught.value.rule)
        assert caught.value.file == str(short)

    def test_text_shorter_than_two_chunks(
        self, zoo: Zoo, sources: dict[str, Path], tmp_path: Path
    ) -> None:
        short = tmp_path / "short.txt"
        short.write_text("the")
        with pytest.raises(TextError, match="too short"):
            measure(zoo.gguf("qwen3moe"), sources, [short], context=64, device=CPU)


def test_geometry_is_checked_before_anything_runs(zoo: Zoo, sources: dict[str, Path]) -> None:
    wrong = sources | {"other": zoo.gguf("qwen35moe")}
    with pytest.raises(DonorError, match="'other' is not the same model"):
        measure(zoo.gguf("qwen3moe"), wrong, [Path("does-not-exist.txt")], device=CPU)


def test_truncated_donor(zoo: Zoo, sources: dict[str, Path], text: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(sources["iq4"].read_bytes()[:-5000])
    with pytest.raises(ContainerError) as caught:
        measure(zoo.gguf("qwen3moe"), sources | {"iq4": cut}, [text], device=CPU)
    assert caught.value.file == str(cut)
