"""The hybrid on disk: bytes, size, provenance, and nothing at all when something goes wrong."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import quantkit
from quantkit.artifacts.provenance import Provenance
from quantkit.artifacts.store import FileId, load
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf, pack_kv
from quantkit.errors import ArtifactError, ContainerError
from quantkit.splice import UnitChoice, plan_splice, predicted_bytes, write_splice
from quantkit.splice.plan import SplicePlan
from quantkit.splice.sources import hash_files

from .conftest import CHOICES, N_LAYERS, MakeModel, bytes_of, is_routed, leave_nothing


def test_every_tensor_has_its_sources_bytes(plan: SplicePlan, out: Path) -> None:
    write_splice(plan, out)
    seeds = {"base": 0, "iq4": 1, "q2": 2}
    written = open_gguf(out).tensors
    for tensor in plan.tensors:
        name, copy = tensor.entry.name, written[tensor.entry.name]
        expected = bytes_of(seeds[tensor.source], name, copy.nbytes)
        assert copy.parts()["data"].tobytes() == expected
        assert copy.qtype == tensor.entry.qtype
    types = {copy.qtype.name for name, copy in written.items() if is_routed(name)}
    assert types == {"Q8_0", "IQ4_NL", "Q2_0"}


def test_metadata_is_the_bases_with_provenance(plan: SplicePlan, out: Path, base: GGUFFile) -> None:
    write_splice(plan, out)
    metadata = open_gguf(out).metadata
    for key in base.metadata:
        assert metadata.raw(key) == base.metadata.raw(key)
    assert metadata["general.file_type"] == 7
    assert metadata["quantkit.schema_version"] == 1
    assert metadata["quantkit.tool_version"] == quantkit.__version__
    assert json.loads(metadata["quantkit.selection"]) == {
        "0": {"layer": "iq4"},
        "1": {"down": "q2"},
    }
    files = dict(
        zip(metadata["quantkit.source.files"], metadata["quantkit.source.sha256"], strict=True)
    )
    paths = [path for model in plan.sources.values() for path in model.shards]
    assert files == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
    assert len(files) > 3  # the second donor has shards
    assert set(metadata["quantkit.source.names"]) == {"base", "iq4", "q2"}


def test_old_provenance_and_split_keys_are_not_carried(
    make_model: MakeModel, out: Path, donors: dict[str, GGUFFile]
) -> None:
    old = pack_kv("quantkit.selection", ValueType.STRING, "old")
    keep = pack_kv("quantkitten.key", ValueType.BOOL, True)
    base = make_model("split", pairs=[old, keep], limit=50_000)
    assert len(base.shards) > 1
    write_splice(plan_splice(base, donors, CHOICES), out)
    metadata = open_gguf(out).metadata
    assert metadata["quantkit.selection"] != "old"
    assert metadata["quantkitten.key"] is True
    assert not any(key.startswith("split.") for key in metadata)


def test_provenance_json_lists_every_tensor(plan: SplicePlan, out: Path) -> None:
    selection = FileId("s.json", "a" * 64, 3)
    result = write_splice(
        plan, out, inputs=[selection], parameters={"note": "x"}, command=["quantkit", "splice"]
    )
    assert result.provenance_path.name == "hybrid.gguf.provenance.json"
    provenance = load(Provenance, result.provenance_path)
    assert provenance.operation == "splice"
    assert provenance.inputs == (selection,)
    assert provenance.outputs == result.outputs
    assert result.outputs[0].blake3 == blake3(out.read_bytes()).hexdigest()
    written = open_gguf(out).tensors
    assert [t.name for t in provenance.tensors] == list(written)
    for origin in provenance.tensors:
        data = written[origin.name].parts()["data"].tobytes()
        assert origin.blake3 == blake3(data).hexdigest()
        assert (origin.bytes, origin.copied) == (len(data), True)
    sources = {t.name: t.source for t in provenance.tensors}
    assert sources["blk.1.ffn_down_exps.weight"] == "q2"
    assert sources["blk.1.ffn_down_shexp.weight"] == "base"


@pytest.mark.parametrize("limit", [None, 10**9, 40_000, 1])
def test_predicted_size_is_the_real_size(plan: SplicePlan, out: Path, limit: int | None) -> None:
    result = write_splice(plan, out, split_max_bytes=limit)
    assert predicted_bytes(plan, split_max_bytes=limit) == sum(
        path.stat().st_size for path in result.paths
    )
    assert result.nbytes == predicted_bytes(plan, split_max_bytes=limit)
    assert {path.name for path in out.parent.iterdir()} == {
        *(path.name for path in result.paths),
        result.provenance_path.name,
    }
    assert len(open_gguf(result.paths[-1]).tensors) == len(plan.tensors)


choices = st.lists(
    st.tuples(
        st.integers(0, N_LAYERS - 1),
        st.sampled_from(["gate_up", "down"]),
        st.sampled_from(["base", "iq4", "q2"]),
    ),
    unique_by=lambda choice: choice[:2],
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=choices)
def test_size_is_fixed_bytes_plus_the_chosen_units(
    base: GGUFFile, donors: dict[str, GGUFFile], drawn: list[tuple[int, str, str]]
) -> None:
    """What `select` relies on: with a fixed overhead nothing but tensor sizes varies."""
    overhead = 8192
    nothing = predicted_bytes(plan_splice(base, donors, [], overhead_bytes=overhead))
    plan = plan_splice(
        base, donors, [UnitChoice(*choice) for choice in drawn], overhead_bytes=overhead
    )
    saved = sum(
        base.tensors[t.entry.name].nbytes - t.entry.nbytes
        for t in plan.tensors
        if t.source != "base"
    )
    assert predicted_bytes(plan) == nothing - saved


def test_same_inputs_same_bytes_in_any_order(
    base: GGUFFile, donors: dict[str, GGUFFile], plan: SplicePlan, out: Path
) -> None:
    write_splice(plan, out)
    other = out.parent / "again" / out.name
    other.parent.mkdir()
    again = plan_splice(base, dict(reversed(donors.items())), CHOICES[::-1])
    write_splice(again, other)
    assert out.read_bytes() == other.read_bytes()
    provenance = "hybrid.gguf.provenance.json"
    assert (out.parent / provenance).read_bytes() == (other.parent / provenance).read_bytes()


def test_nothing_inside_tells_where_it_was_made(
    plan: SplicePlan, out: Path, tmp_path: Path
) -> None:
    result = write_splice(plan, out)
    for path in (*result.paths, result.provenance_path):
        assert str(tmp_path).encode() not in path.read_bytes()


def test_opaque_types_are_spliced(base: GGUFFile, opaque_donor: GGUFFile, out: Path) -> None:
    plan = plan_splice(base, {"fork": opaque_donor}, [UnitChoice(2, "layer", "fork")])
    write_splice(plan, out)
    written = open_gguf(out).tensors["blk.2.ffn_down_exps.weight"]
    source = opaque_donor.tensors["blk.2.ffn_down_exps.weight"]
    assert written.qtype.name == "TYPE_153"
    assert written.sha256() == source.sha256()


def test_unpadded_opaque_tensor_at_the_end_of_its_file(
    base: GGUFFile, opaque_donor: GGUFFile, out: Path
) -> None:
    path = opaque_donor.path
    path.write_bytes(path.read_bytes()[:-5])
    donor = open_gguf(path)
    assert donor.tensors["blk.2.ffn_down_exps.weight"].nbytes == 3195
    result = write_splice(plan_splice(base, {"fork": donor}, [UnitChoice(2, "down", "fork")]), out)
    origins = {t.name: t for t in load(Provenance, result.provenance_path).tensors}
    assert origins["blk.2.ffn_down_exps.weight"].bytes == 3195


def test_too_small_an_overhead_is_refused(base: GGUFFile, donors: dict[str, GGUFFile]) -> None:
    plan = plan_splice(base, donors, CHOICES, overhead_bytes=320)
    with pytest.raises(ArtifactError, match="does not fit in the header space"):
        predicted_bytes(plan)


def test_a_hash_that_was_not_read_is_never_written(plan: SplicePlan, out: Path) -> None:
    first = hash_files(path for model in plan.sources.values() for path in model.shards)
    write_splice(plan_splice(plan.base, plan.donors, CHOICES, known_sha256=first), out)
    assert open_gguf(out).metadata["quantkit.source.sha256"] == list(first.values())
    for path in (*out.parent.iterdir(),):
        path.unlink()
    for path in first:
        wrong = plan_splice(plan.base, plan.donors, CHOICES, known_sha256=first | {path: "0" * 64})
        with pytest.raises(ArtifactError, match="not the file it was measured as") as caught:
            write_splice(wrong, out)
        assert caught.value.file == str(path)
        leave_nothing(out.parent)


def test_base_is_never_overwritten(plan: SplicePlan) -> None:
    before = plan.base.path.read_bytes()
    with pytest.raises(ContainerError, match="overwrite one of its inputs"):
        write_splice(plan, plan.base.path)
    assert plan.base.path.read_bytes() == before


def test_source_that_is_cut_short_meanwhile(
    plan: SplicePlan, out: Path, donors: dict[str, GGUFFile]
) -> None:
    last = donors["iq4"].tensors["blk.0.ffn_down_exps.weight"]
    last.path.write_bytes(last.path.read_bytes()[: last.offset + 10])
    with pytest.raises(ContainerError, match="ends before the bytes"):
        write_splice(plan, out)
    leave_nothing(out.parent)


INTERRUPTED = """
import sys
from pathlib import Path
from quantkit.containers.gguf import open_gguf
from quantkit.splice import UnitChoice, plan_splice, write, write_splice

def slow(shards, paths, **more):
    real(shards, paths, **more)
    print("copied", flush=True)
    import time; time.sleep(60)

real, write.write_planned = write.write_planned, slow
base, donor, out = map(Path, sys.argv[1:])
plan = plan_splice(open_gguf(base), {"d": open_gguf(donor)}, [UnitChoice(0, "layer", "d")])
write_splice(plan, out)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_process(
    base: GGUFFile, donors: dict[str, GGUFFile], plan: SplicePlan, out: Path, how: signal.Signals
) -> None:
    """Ctrl-C leaves nothing; what a killed process leaves is cleared by the next run."""
    arguments = [sys.executable, "-c", INTERRUPTED, base.path, donors["iq4"].path, out]
    root = Path(quantkit.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"copied\n"
    time.sleep(0.1)
    process.send_signal(how)
    assert process.wait(30) != 0
    assert not out.exists()
    if how is signal.SIGINT:
        leave_nothing(out.parent)
    write_splice(plan, out)
    assert sorted(path.suffix for path in out.parent.iterdir()) == [".gguf", ".json"]


@pytest.mark.peer
def test_gguf_py_reads_a_hybrid(base: GGUFFile, donors: dict[str, GGUFFile], out: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the Python package gguf is not installed")
    plan = plan_splice(base, donors, [UnitChoice(0, "layer", "iq4")])
    write_splice(plan, out)
    reader = gguf.GGUFReader(out)
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert list(found) == [tensor.entry.name for tensor in plan.tensors]
    assert found["blk.0.ffn_down_exps.weight"].tensor_type.name == "IQ4_NL"
    assert reader.get_field("quantkit.source.names").contents() == ["base", "iq4"]
