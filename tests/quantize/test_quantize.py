"""`quantize`: importance, errors, threads, memory, checkpoints, a head file, and refusals."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantkit import codecs
from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf, pack_kv, write_gguf
from quantkit.containers.hashing import sha256_file
from quantkit.containers.imatrix import Entry, Importance, write_importance
from quantkit.errors import ContainerError, FormatError, QuantkitError
from quantkit.qtypes import QType, by_name
from quantkit.quantize import convert_checkpoint
from quantkit.quantize.encode import Options, Rule, encode_gguf, make_plan, plan_bytes
from tests.tiny import Zoo

EXPERTS = r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight"
F32, Q8_0 = by_name("F32"), by_name("Q8_0")
RNG = np.random.default_rng(5)


def rules(*texts: str) -> list[Rule]:
    return [Rule.parse(text) for text in texts]


def importance_for(file: GGUFFile, path: Path, pattern: str = "_exps", cold: bool = False) -> Path:
    """Uneven importance for the tensors whose name has `pattern`; the last expert may be cold."""
    rng = np.random.default_rng(3)
    entries = {}
    for name, tensor in file.tensors.items():
        if pattern in name:
            n = tensor.shape[0] if len(tensor.shape) == 3 else 1
            counts = np.full(n, 64)
            counts[-1] = 0 if cold else 64
            sums = rng.gamma(0.2, size=(n, tensor.shape[-1])) * counts[:, None]
            entries[name] = Entry(sums.astype(np.float32), counts)
    write_importance(Importance(entries, ("t.txt",), 1, 64), path)
    return path


def model_file(path: Path, tensors: dict[str, tuple[QType, np.ndarray]]) -> Path:
    """A GGUF with these values, without anything that makes it a model."""
    specs = []
    for name, (qtype, values) in tensors.items():
        data = codecs.encode(qtype, values)["data"]
        specs.append(TensorSpec(name, values.shape, qtype, lambda data=data: [data.data]))
    pairs = [
        pack_kv("general.architecture", ValueType.STRING, "qwen4exp"),
        pack_kv("general.file_type", ValueType.UINT32, 7),
    ]
    write_gguf(path, pairs, specs)
    return path


def values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def head_file(path: Path) -> Path:
    """What a file with only a multi-token prediction head looks like."""
    shapes = {"gate": (4, 64, 96), "up": (4, 64, 96), "down": (4, 96, 64)}
    tensors: dict[str, tuple[QType, np.ndarray]] = {
        f"blk.48.ffn_{part}_exps.weight": (Q8_0, values(*shape)) for part, shape in shapes.items()
    }
    tensors |= {
        "blk.48.attn_q.weight": (Q8_0, values(64, 96)),
        "blk.48.ffn_gate_inp.weight": (F32, values(4, 96)),
        "blk.48.nextn.eh_proj.weight": (by_name("BF16"), values(96, 192)),
        "blk.48.attn_norm.weight": (F32, values(96)),
    }
    return model_file(path, tensors)


def test_head_file_gets_smaller_experts_and_nothing_else(tmp_path: Path) -> None:
    """The report's case: three tensors from Q8_0 to IQ4_NL, every other one byte for byte."""
    source = head_file(tmp_path / "head.gguf")
    out = tmp_path / "out.gguf"
    done = encode_gguf(source, out, rules(f"{EXPERTS}=IQ4_NL"))
    before, after = open_gguf(source), open_gguf(out)
    assert list(before.tensors) == list(after.tensors)
    changed = {n for n in before.tensors if before.tensors[n].qtype != after.tensors[n].qtype}
    assert changed == {f"blk.48.ffn_{part}_exps.weight" for part in ("gate", "up", "down")}
    for name, tensor in after.tensors.items():
        if name in changed:
            assert tensor.qtype.name == "IQ4_NL"
            wanted = codecs.encode(
                by_name("IQ4_NL"),
                codecs.decode(Q8_0, before.tensors[name].parts(), tensor.shape),
            )
            assert np.array_equal(tensor.parts()["data"], wanted["data"])
        else:
            assert np.array_equal(tensor.parts()["data"], before.tensors[name].parts()["data"])
    assert after.metadata["general.architecture"] == "qwen4exp"
    assert all(e.is_requantized for e in done.plan.encodings if not e.is_copy)
    assert set(done.errors) == changed
    assert all(1e-3 < error.relative < 0.02 for error in done.errors.values())


def test_provenance_is_inside(zoo: Zoo, tmp_path: Path) -> None:
    source = zoo.gguf("qwen3moe")
    file = importance_for(open_gguf(source), tmp_path / "i.gguf")
    used = rules(f"{EXPERTS}=IQ4_NL", r"output\.weight=Q8_0")
    encode_gguf(source, tmp_path / "out.gguf", used, importance=file)
    found = open_gguf(tmp_path / "out.gguf").metadata
    assert found["quantkit.source.files"] == [source.name]
    assert found["quantkit.source.sha256"] == [sha256_file(source)]
    assert found["quantkit.rules"] == [rule.text for rule in used]
    assert found["quantkit.importance.sha256"] == sha256_file(file)
    assert found["quantize.imatrix.file"] == "i.gguf"
    assert found["quantize.imatrix.entries_count"] == 6
    plan = make_plan(source, used, importance=file)
    assert plan_bytes(plan, used) == (tmp_path / "out.gguf").stat().st_size


def test_importance_is_each_experts_own(zoo: Zoo, tmp_path: Path) -> None:
    """The bytes of every expert are those of its own weights; a cold one has the others' mean."""
    source = open_gguf(zoo.gguf("qwen3moe"))
    file = importance_for(source, tmp_path / "i.gguf", cold=True)
    done = encode_gguf(
        source.path, tmp_path / "out.gguf", rules(f"{EXPERTS}=IQ4_NL"), importance=file
    )
    name = "blk.1.ffn_up_exps.weight"
    tensor = source.tensors[name]
    original = codecs.decode(tensor.qtype, tensor.parts(), tensor.shape)
    assert done.plan.importance is not None
    means = done.plan.importance.mean_squares(name, tensor.shape)
    assert means is not None
    data = open_gguf(tmp_path / "out.gguf").tensors[name].parts()["data"]
    for expert, part in enumerate(np.split(data, 8)):
        wanted = codecs.encode(by_name("IQ4_NL"), original[expert], means.values[expert])["data"]
        assert np.array_equal(part, wanted), expert
    assert done.cold[name] == (7,)
    np.testing.assert_allclose(means.values[7], means.values[:7].mean(0), rtol=1e-5)
    plain = codecs.encode(by_name("IQ4_NL"), original)["data"]
    assert not np.array_equal(data, plain)


def test_errors_are_those_of_the_written_values(zoo: Zoo, tmp_path: Path) -> None:
    source = open_gguf(zoo.gguf("qwen3moe"))
    file = importance_for(source, tmp_path / "i.gguf")
    used = rules(f"{EXPERTS}=Q4_0", r"output\.weight=Q4_0")
    done = encode_gguf(source.path, tmp_path / "a.gguf", used, importance=file)
    plain = encode_gguf(source.path, tmp_path / "b.gguf", used)
    out = open_gguf(tmp_path / "a.gguf")
    assert done.plan.importance is not None
    for name, error in done.errors.items():
        a, b = (
            np.float64(codecs.decode(t.qtype, t.parts(), t.shape))
            for t in (source.tensors[name], out.tensors[name])
        )
        assert np.isclose(error.relative, np.square(a - b).sum() / np.square(a).sum(), rtol=1e-6)
        means = done.plan.importance.mean_squares(name, a.shape)
        assert plain.errors[name].weighted is None
        if means is None:
            assert name == "output.weight"
            assert error.weighted is None
            assert error == plain.errors[name]
            continue
        w = means.values[:, None, :].astype(np.float64)
        wanted = (w * np.square(a - b)).sum() / (w * np.square(a)).sum()
        assert error.weighted is not None
        assert np.isclose(error.weighted, wanted, rtol=1e-6)
        assert error.weighted < error.relative, "errors went to where they weigh less"
        assert error.relative > plain.errors[name].relative
    assert done.plan.without_importance == ["output.weight"]


def test_threads_change_nothing(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantkit.quantize.source.CHUNK_ELEMENTS", 6000)
    source = zoo.gguf("qwen3moe")
    file = importance_for(open_gguf(source), tmp_path / "i.gguf")
    used = rules(f"{EXPERTS}=IQ4_NL", ".*=Q5_0")
    runs = [
        encode_gguf(source, tmp_path / f"{n}.gguf", used, importance=file, n_threads=n)
        for n in (1, 2, 7)
    ]
    digests = {sha256_file(run.paths[0]) for run in runs}
    assert len(digests) == 1
    assert runs[0].errors == runs[1].errors == runs[2].errors


@pytest.mark.parametrize("arch", ["qwen3moe", "qwen4exp"])
def test_checkpoint_gives_what_its_gguf_gives(arch: str, zoo: Zoo, tmp_path: Path) -> None:
    """In one step or in two: the same tensors, and the same keys but for the source."""
    used = rules(f"{EXPERTS}=IQ4_NL", ".*=Q8_0")
    folder = zoo.checkpoint(arch)
    one = encode_gguf(folder, tmp_path / "one.gguf", used, name="m")
    convert_checkpoint(folder, tmp_path / "bf16.gguf", name="m")
    two = encode_gguf(tmp_path / "bf16.gguf", tmp_path / "two.gguf", used)
    a, b = open_gguf(one.paths[0]), open_gguf(two.paths[0])
    assert list(a.tensors) == list(b.tensors)
    for name in a.tensors:
        assert a.tensors[name].qtype == b.tensors[name].qtype
        assert np.array_equal(a.tensors[name].parts()["data"], b.tensors[name].parts()["data"])
    assert one.errors == two.errors
    keys = [[k for k in f.metadata if "source" not in k] for f in (a, b)]
    assert keys[0] == keys[1]
    assert all(a.metadata[key] == b.metadata[key] for key in keys[0])
    assert a.metadata["quantkit.source.files"] == ["model.safetensors"]
    plan = make_plan(folder, used, name="m")
    assert plan_bytes(plan, used) == one.paths[0].stat().st_size


def test_memory_is_a_few_blocks(tmp_path: Path) -> None:
    """16 experts of 1 MiB (float32) of which a few exist at a time, not 16 MiB."""
    source = model_file(
        tmp_path / "m.gguf", {"blk.0.ffn_up_exps.weight": (F32, values(16, 256, 1024))}
    )
    used = rules(".*=IQ4_NL")
    encode_gguf(source, tmp_path / "warm.gguf", used, n_threads=1)
    tracemalloc.start()
    encode_gguf(source, tmp_path / "out.gguf", used, n_threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6, "numpy's reference encoder holds about six copies of what it works on"


def test_unused_rules_are_all_named(zoo: Zoo, tmp_path: Path) -> None:
    used = rules(
        r"blk\..*=Q8_0", f"{EXPERTS}=Q4_0", "nothing=Q4_0", r"blk\.0\.ffn_gate_inp\.weight=Q4_0"
    )
    source = zoo.gguf("qwen3moe")
    with pytest.raises(QuantkitError, match="no tensor is left for") as caught:
        make_plan(source, used)
    for words in ("shadowed by blk", "matches no tensor", "stay as they are"):
        assert words in str(caught.value.rule)
    plan = make_plan(source, used, options=Options(unused_rules=True))
    assert [u.rule.text for u in plan.unused] == [rule.text for rule in used[1:]]
    assert [u.reason.split()[0] for u in plan.unused] == ["shadowed", "matches", "matches"]


def test_every_tensor_has_a_type_and_a_reason(zoo: Zoo) -> None:
    plan = make_plan(zoo.gguf("qwen4exp"), rules(f"{EXPERTS}=Q2_0", ".*_shexp.weight=BF16"))
    reasons = {e.entry.name: e.reason for e in plan.encodings}
    assert reasons["blk.0.attn_qkv.weight"] == "no rule matches"
    assert reasons["blk.0.ffn_gate_inp.weight"] == "llama.cpp needs it as it is"
    assert reasons["blk.0.hc_attn_norm.weight"] == "vectors keep their type"
    assert reasons["blk.0.ffn_up_shexp.weight"] == "has the type already"
    assert reasons["blk.0.ffn_up_exps.weight"] == ""
    down = next(e for e in plan.encodings if e.entry.name == "blk.0.ffn_down_exps.weight")
    assert (down.wanted, down.qtype) == (by_name("Q2_0"), by_name("Q4_0"))
    assert down.reason == "rows of 96 values do not fill Q2_0 blocks of 64"


def test_fallbacks_can_be_forbidden(zoo: Zoo) -> None:
    with pytest.raises(FormatError, match="rows of 96 elements do not fit Q2_0") as caught:
        make_plan(zoo.gguf("qwen3moe"), rules(f"{EXPERTS}=Q2_0"), options=Options(fallback=False))
    assert caught.value.tensor == "blk.0.ffn_down_exps.weight"


def test_low_bits_are_not_quantized_again_by_accident(zoo: Zoo, tmp_path: Path) -> None:
    source = zoo.quantized("qwen3moe", f"{EXPERTS}=Q4_0")
    used = rules(f"{EXPERTS}=IQ4_NL")
    with pytest.raises(QuantkitError, match="quantized already") as caught:
        encode_gguf(source, tmp_path / "out.gguf", used)
    assert "Q4_0 to IQ4_NL, 6 such tensors" in str(caught.value.value)
    assert list(tmp_path.iterdir()) == []
    done = encode_gguf(source, tmp_path / "out.gguf", used, options=Options(requantize=True))
    assert sum(e.is_requantized for e in done.plan.encodings) == 6
    # To floats nothing is lost.
    encode_gguf(source, tmp_path / "f.gguf", rules(f"{EXPERTS}=F16"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("qtype", ["IQ4_NL", "Q8_0", "F16", "BF16"])
def test_weights_that_are_not_finite_are_named(bad: float, qtype: str, tmp_path: Path) -> None:
    weights = values(4, 64, 64)
    weights[2, 3, 5] = bad
    raw = weights.tobytes()
    source = tmp_path / "m.gguf"
    spec = TensorSpec("blk.0.ffn_up_exps.weight", weights.shape, F32, lambda: [raw])
    write_gguf(source, [pack_kv("general.architecture", ValueType.STRING, "x")], [spec])
    with pytest.raises(FormatError) as caught:
        encode_gguf(source, tmp_path / "out.gguf", rules(f".*={qtype}"))
    assert caught.value.tensor == "blk.0.ffn_up_exps.weight"
    assert caught.value.file == str(source)
    assert "(2, 3, 5)" in str(caught.value.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_importance_of_another_model(zoo: Zoo, tmp_path: Path) -> None:
    source, used = zoo.gguf("qwen3moe"), rules(f"{EXPERTS}=IQ4_NL")
    name = "blk.0.ffn_up_exps.weight"

    def refused(entries: dict[str, Entry], word: str) -> QuantkitError:
        write_importance(Importance(entries), tmp_path / "i.gguf")
        with pytest.raises(ContainerError, match=word) as caught:
            make_plan(source, used, importance=tmp_path / "i.gguf")
        assert caught.value.file == str(tmp_path / "i.gguf")
        return caught.value

    ones: Callable[[int, int], Entry] = lambda n, c: Entry(  # noqa: E731
        np.ones((n, c), np.float32), np.ones(n, np.int64)
    )
    assert refused({name: ones(4, 128)}, "does not fit").tensor == name
    assert refused({name: ones(8, 96)}, "does not fit").tensor == name
    assert "blk.77" in str(refused({"blk.77.x.weight": ones(1, 8)}, "without an entry").value)


def test_integers_stay(tmp_path: Path) -> None:
    table = np.arange(64, dtype=np.int32).reshape(2, 32)
    source = tmp_path / "m.gguf"
    specs = [
        TensorSpec("blk.0.table.weight", table.shape, by_name("I32"), lambda: [table.tobytes()]),
        TensorSpec("a.weight", (2, 32), F32, lambda: [values(2, 32).tobytes()]),
    ]
    write_gguf(source, [pack_kv("general.architecture", ValueType.STRING, "x")], specs)
    encode_gguf(source, tmp_path / "out.gguf", rules(".*=Q8_0"))
    types = {n: t.qtype.name for n, t in open_gguf(tmp_path / "out.gguf").tensors.items()}
    assert types == {"blk.0.table.weight": "I32", "a.weight": "Q8_0"}


def test_inputs_are_never_overwritten(zoo: Zoo, tmp_path: Path) -> None:
    source = open_gguf(zoo.gguf("qwen3moe"))
    file = importance_for(source, tmp_path / "i.gguf")
    before = sha256_file(file)
    with pytest.raises(ContainerError, match="overwrite one of its inputs"):
        encode_gguf(source.path, file, rules(".*=Q8_0"), importance=file)
    assert sha256_file(file) == before
